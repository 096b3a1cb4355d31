"""Residuals of kernels and collectives by uncertain factor, and the spread that each says.

A row's residual is the logarithm of measured over priced time with the shipped constants. What matters to a step is
not the scatter of single shapes, most of which averages out over the products of a layer, but what the kernels of a
device or the messages of a fabric share: the spread between sources and devices, and of the rest what is left after
as many independent shapes as a step holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from fit_fabric import read_runs
from kernel_tables import read_attention, read_matmul
from numpy.typing import NDArray

from costmodel.describe.factors import bits_of
from costmodel.describe.hardware.hardware import list_profiles, load_accelerator, load_link
from costmodel.trust.calibration.fabric_fit import predict, predict_inner
from costmodel.trust.calibration.kernel_fits import predict_attention, predict_matmul

Array = NDArray[np.float64]

TRAINING_KERNEL_S = 5e-5
"""Shorter kernels are not those whose time makes a step's."""
SMALL_BYTES, LARGE_BYTES = 2.0**16, 2.0**26
"""Messages up to the one are latency, from the other on transfer."""
SHAPES_OF_A_STEP = 3.4
"""Independent shapes that a layer's products count as: of h x 3h, h x h, h x 4h and 4h x h, by their work,
(3 + 1 + 4 + 4)^2 / (3^2 + 1 + 4^2 + 4^2)."""
LEAST_ROWS = 5
"""Rows of a source and device that say where it lies."""
LEAST_TABLES = 3
"""Tables, or sweeps, that say how far such lie apart."""
_MAD = 1.4826


class Spread(NamedTuple):
    """What the residuals of a factor say: the scale of their logarithm, points, and a sentence of how."""

    scale: float
    points: int
    source: str


def robust_scale(values: Array) -> float:
    """Return the standard deviation that the median absolute deviation from 0 says.

    >>> round(robust_scale(np.array([-1.0, 1.0, 1.0, -1.0, 50.0])), 4)
    1.4826
    """
    return float(_MAD * np.median(np.abs(values))) if len(values) else float("nan")


def kernel_residuals(matmul: Path, attention: Sequence[Path]) -> pd.DataFrame:
    """Return a row a measured kernel: factor, device, source, residual.

    Parameters
    ----------
    matmul, attention : path
        Tables that `fit_kernels` reads.
    """
    frames = []
    shipped = set(list_profiles("accelerator"))
    for (name, op, dtype), rows in read_matmul(matmul).items():
        kernels = load_accelerator(name).kernels if name in shipped else None
        table = (
            {} if kernels is None else kernels.grouped_matmul if op == "grouped_matmul" else kernels.matmul
        )
        if op == "batched_matmul" or dtype not in table:
            continue
        device = load_accelerator(name)
        residual = np.log(rows.time_s / predict_matmul(rows, device, dtype, table[dtype]))
        factor = f"{op}.{device.generation}.{bits_of(dtype)}"
        frames.append(_frame(factor, name, rows.source, residual, rows.time_s))
    for (name, kernel), timed in read_attention(list(attention)).items():
        kernels = load_accelerator(name).kernels if name in shipped else None
        if kernels is None or kernel not in kernels.attention:
            continue
        device = load_accelerator(name)
        priced = predict_attention(timed, device, kernels.attention[kernel], kernel=kernel)
        here = timed.host_timed == 0
        factor = f"attention.{device.generation}"
        sources = [source for source, keep in zip(timed.source, here, strict=True) if keep]
        frames.append(
            _frame(
                factor, f"{name} {kernel}", sources, np.log(timed.time_s / priced)[here], timed.time_s[here]
            )
        )
    found = pd.concat(frames, ignore_index=True)
    long_enough: pd.DataFrame = found[found.time_s >= TRAINING_KERNEL_S]
    return long_enough


def _frame(factor: str, device: str, sources: Sequence[str], residual: Array, time_s: Array) -> pd.DataFrame:
    return pd.DataFrame(
        {"factor": factor, "device": device, "source": sources, "residual": residual, "time_s": time_s}
    )


def collective_residuals(table: Path) -> pd.DataFrame:
    """Return a row a message of a sweep: factor, sweep, residual; small ones are latency, large ones transfer.

    Parameters
    ----------
    table : path
        Sweeps that `fit_fabric` reads.
    """
    frames = []
    for run in read_runs(table):
        inner = load_link(run.inner, size=1024)
        if run.network is None:
            link, priced = inner, predict_inner(run, inner)
        else:
            link = load_link(run.network, size=1024)
            priced = predict(run, inner, link)
        part = np.where(run.size_bytes <= SMALL_BYTES, "latency", "")
        part = np.where(run.size_bytes >= LARGE_BYTES, "transfer", part)
        frames.append(
            pd.DataFrame(
                {
                    "factor": [f"collective.{link.kind}.{one}" for one in part],
                    "device": run.name,
                    "source": run.network or run.inner,
                    "residual": np.log(run.time_s / priced),
                }
            )[part != ""]
        )
    found: pd.DataFrame = pd.concat(frames, ignore_index=True)
    return found


def kernel_spreads(rows: pd.DataFrame) -> dict[str, Spread]:
    """Return the spread of every factor of kernels.

    Between tables (devices and sources), and of single shapes over as many as a step holds. Where fewer than
    `LEAST_TABLES` tables say it, that between tables is the one of all kernels: constants fitted to one table agree
    with it.
    """
    middles = _middles(rows, ["device", "source"])
    pooled = _root_mean_square(middles)
    found = {}
    for name, group in rows.groupby("factor"):
        if len(group) < LEAST_ROWS:
            continue
        own = _middles(group, ["device", "source"])
        between, whose = _own_or_pooled(own, pooled)
        around = group.residual - group.groupby(["device", "source"]).residual.transform("median")
        inside = robust_scale(around.to_numpy(np.float64))
        found[str(name)] = Spread(
            float(np.hypot(between, inside / np.sqrt(SHAPES_OF_A_STEP))),
            len(group),
            f"{len(group)} timings in {len(own)} tables: {between:.1%} between tables{whose}, {inside:.1%} between shapes",
        )
    return found


def collective_spreads(rows: pd.DataFrame) -> dict[str, Spread]:
    """Return the spread of every factor of collectives: between sweeps, each by the median of its messages."""
    pooled = _root_mean_square(_middles(rows, ["factor", "device"], least=1))
    found = {}
    for name, group in rows.groupby("factor"):
        own = _middles(group, ["device"], least=1)
        between, whose = _own_or_pooled(own, pooled)
        found[str(name)] = Spread(
            between, len(group), f"{len(group)} messages of {len(own)} sweeps, each by its median{whose}"
        )
    return found


def _middles(rows: pd.DataFrame, by: list[str], least: int = LEAST_ROWS) -> Array:
    """Return the median residual of each table that has enough rows."""
    groups = rows.groupby(by).residual
    return groups.median()[groups.size() >= least].to_numpy(np.float64)


def _own_or_pooled(own: Array, pooled: float) -> tuple[float, str]:
    """Return how far tables lie apart, and whose tables say so."""
    if len(own) < LEAST_TABLES:
        return pooled, " (of all, as these are few)"
    return _root_mean_square(own), ""


def _root_mean_square(middles: Array) -> float:
    """Return the root of the mean square, single tables within fences."""
    return float(np.sqrt(np.mean(np.clip(middles, *_fences(middles)) ** 2)))


def _fences(values: Array) -> tuple[float, float]:
    """Return where single values stop counting more: three robust standard deviations from the middle."""
    middle = float(np.median(values))
    reach = 3.0 * max(_MAD * float(np.median(np.abs(values - middle))), 1e-6)
    return middle - reach, middle + reach
