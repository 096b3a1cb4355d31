"""4-bit products of the library that training calls, where the tables of single chips time another's.

TensorRT-LLM's kernels, timed on every Blackwell part, reach 0.5 of the 4-bit peak; cuBLASLt, which Transformer
Engine calls, reaches 0.76 at 16,384 and loses more where products are shallow. Few of its times are
published, so all chips of the generation share one fit in shares of their peaks. A chip that has none of them
takes the share by what TensorRT-LLM's kernels gain from the measured sibling to it.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from bounded_fits import Bound, Parameters, fit
from kernel_tables import ShippedFit
from numpy.typing import NDArray

from costmodel.describe.hardware.cluster import Accelerator
from costmodel.physics.kernels.roofline import MatmulConstants, matmul_time
from costmodel.trust.calibration.kernel_csv import INPUT_BYTES

Array = NDArray[np.float64]

DTYPE = "nvfp4"
SIBLINGS = {"b300": "b200-sxm-180gb", "gb300": "gb200"}
"""Measured chip whose share of the peak another takes."""
BOUNDS = {
    "fixed_s": Bound(1e-6, 6e-6, 2.5e-6, log=True),
    "peak_fraction": Bound(0.3, 1.0, 0.75),
    "wave_fraction": Bound(0.0, 1.0, 0.5),
    "ramp_k": Bound(1.0, 4000.0, 300.0, log=True),
    "epilogue_fraction": Bound(0.0, 1.5, 0.5),
}
FIXED = {"num_sms": 148.0, "memory_fraction": 0.8, "tile_m": 128.0, "tile_n": 128.0}


def fit_library(table: Path, device: Callable[[str], Accelerator]) -> ShippedFit:
    """Fit the shared constants; the error is the mean over rows left out one by one."""
    with table.open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(line for line in stream if not line.startswith("#")))
    m, n, k, tflops = (np.array([float(row[name]) for row in rows]) for name in ("m", "n", "k", "tflops"))
    chips = [device(row["gpu"]) for row in rows]
    peak = np.array([chip.peak_flops_per_s["fp4"] for chip in chips])
    time_s = 2.0 * m * n * k / (tflops * 1e12)

    def predict(parameters: Parameters, part: NDArray[np.bool_]) -> Array:
        return matmul_time(
            m[part],
            n[part],
            k[part],
            constants=MatmulConstants(**{**FIXED, **parameters}),
            peak_flops_per_s=peak[part],
            memory_bandwidth_bytes_per_s=chips[0].memory_bandwidth_bytes_per_s,
            input_bytes=INPUT_BYTES[DTYPE],
        ).value

    errors = []
    for row in range(len(rows)):
        test = np.arange(len(rows)) == row
        found, _ = fit(partial(predict, part=~test), time_s[~test], BOUNDS)
        errors.append(abs(float(predict(found, test)[0] / time_s[row]) - 1.0))
    found, _ = fit(partial(predict, part=np.full(len(rows), True)), time_s, BOUNDS)
    sources = tuple(row["source"] for row in rows)
    return ShippedFit(MatmulConstants(**{**FIXED, **found}), len(rows), float(np.mean(errors)), sources)


def of_chip(name: str, shared: ShippedFit, others: Mapping[str, ShippedFit]) -> ShippedFit:
    """Return the shared fit for one chip, with the casts of `others` (TensorRT-LLM's timings by chip)."""
    own = others[name].constants
    share = shared.constants.peak_fraction
    sibling = SIBLINGS.get(name)
    if sibling is not None:
        gain = own.peak_fraction / others[sibling].constants.peak_fraction
        share = min(share * gain, 0.98)
    constants = shared.constants._replace(
        peak_fraction=share,
        cast_bytes_per_element=own.cast_bytes_per_element,
        cast_fixed_s=own.cast_fixed_s,
    )
    return shared._replace(constants=constants, power_limit="in the sustained rows")
