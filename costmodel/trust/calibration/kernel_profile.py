"""Kernel constants fitted to a user's own timings, and the accelerator profile made of them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.base.errors import ProfileError
from costmodel.base.yaml_files import document_text
from costmodel.describe.hardware import profile_files as disk
from costmodel.describe.hardware.cluster import Accelerator
from costmodel.describe.hardware.hardware import ProfilePath
from costmodel.trust.calibration.fitting import Bound, fit
from costmodel.trust.calibration.kernel_blocks import attention_block, matmul_block, seconds
from costmodel.trust.calibration.kernel_csv import AttentionRows, MatmulRows, MemoryRows, Timings
from costmodel.trust.calibration.kernel_fits import (
    AttentionFit,
    Device,
    MatmulFit,
    fit_attention,
    fit_matmul,
    predict_attention,
    predict_matmul,
)

Array = NDArray[np.float64]
MIN_POINTS = 9
MAX_ERROR = 0.15
BACKWARD_RATIO = 0.875
"""Backward over forward share of the peak where only both together were timed (FlashAttention-2, H100)."""


class KernelResult(NamedTuple):
    """One fitted kernel: what it is, its error before and after, and its block of the profile."""

    section: str
    name: str
    points: int
    before: float
    held_out_error: float
    block: Mapping[str, Any]


def fit_kernels(
    timings: Timings, accelerator: Accelerator, source: str, *, max_error: float = MAX_ERROR
) -> tuple[list[KernelResult], list[str]]:
    """Fit every dtype and kernel that has rows; return the fits and why some should not be used."""
    device = Device(
        accelerator.name,
        accelerator.generation,
        accelerator.num_sms,
        dict(accelerator.peak_flops_per_s),
        accelerator.memory_bandwidth_bytes_per_s,
    )
    found: list[KernelResult] = []
    problems: list[str] = []
    sizes = {f"{op} {dtype}": len(rows.m) for (op, dtype), rows in timings.matmul.items()}
    sizes |= {f"attention {name}": len(rows.batch) for name, rows in timings.attention.items()}
    if timings.memory is not None:
        sizes["memory"] = len(timings.memory.time_s)
    for name, count in sizes.items():
        if count < MIN_POINTS:
            problems.append(f"{name}: {count} rows; expected at least {MIN_POINTS}")
    if problems:
        return found, problems
    for (op, dtype), rows in sorted(timings.matmul.items()):
        found.append(_matmul(op, dtype, rows, device, accelerator, source))
    for kernel, part in sorted(timings.attention.items()):
        result = _attention(kernel, part, device, accelerator, source)
        if isinstance(result, str):
            problems.append(result)
        else:
            found.append(result)
    if timings.memory is not None:
        found.append(_memory(timings.memory, device, accelerator, source))
    for one in found:
        if one.held_out_error > max_error:
            problems.append(
                f"{one.section} {one.name}: rows left out are missed by {one.held_out_error:.0%} on average, "
                f"more than {max_error:.0%} (--max-error)"
            )
    return found, problems


def _matmul(
    op: str, dtype: str, rows: MatmulRows, device: Device, accelerator: Accelerator, source: str
) -> KernelResult:
    """Fit matrix products; a power limit that the rows do not show stays as it was."""
    old = None if accelerator.kernels is None else getattr(accelerator.kernels, op).get(dtype)
    known: dict[str, float] = {}
    if old is not None and not rows.sustained.any():
        known = {"sustained_loss": old.sustained_loss, "sustained_flops": old.sustained_flops}
    before = np.nan
    if old is not None:
        before = float(np.mean(np.abs(predict_matmul(rows, device, dtype, old) / rows.time_s - 1.0)))
    result: MatmulFit = fit_matmul(rows, device, dtype, known)
    block = matmul_block(result, source)
    return KernelResult(op, dtype, result.points, before, result.held_out_error, block)


def _attention(
    kernel: str, rows: AttentionRows, device: Device, accelerator: Accelerator, source: str
) -> KernelResult | str:
    """Fit one attention kernel, or say why that cannot be."""
    passes = set(rows.passes.tolist())
    if 2.0 not in passes and len(passes) < 2:
        return f"attention {kernel}: expected attention_fwd and attention_bwd, or attention_fwd_bwd"
    old = None if accelerator.kernels is None else accelerator.kernels.attention.get(kernel)
    before = np.nan
    if old is not None:
        before = float(np.mean(np.abs(predict_attention(rows, device, old) / rows.time_s - 1.0)))
    result: AttentionFit = fit_attention(rows, device, BACKWARD_RATIO if passes == {2.0} else None)
    block = attention_block(result, source)
    return KernelResult("attention", kernel, result.points, before, result.held_out_error, block)


def _memory(rows: MemoryRows, device: Device, accelerator: Accelerator, source: str) -> KernelResult:
    """Fit fixed time and share of the bandwidth of memory-bound kernels."""
    bandwidth = device.memory_bandwidth_bytes_per_s
    bounds = {"fixed_s": Bound(1e-7, 1e-4, 2e-6, log=True), "fraction": Bound(0.05, 1.0, 0.85)}

    def predict(parameters: Mapping[str, float], part: Array) -> Array:
        return np.asarray(parameters["fixed_s"] + part / (parameters["fraction"] * bandwidth))

    def fitted(part: slice) -> Mapping[str, float]:
        return fit(lambda p: predict(p, rows.size_bytes[part]), rows.time_s[part], bounds)[0]

    errors = []
    for first in (0, 1):
        train, test = slice(first, None, 2), slice(1 - first, None, 2)
        errors.append(np.abs(predict(fitted(train), rows.size_bytes[test]) / rows.time_s[test] - 1.0))
    told = fitted(slice(None))
    old = None if accelerator.kernels is None else accelerator.kernels.memory
    before = np.nan
    if old is not None:
        was = predict({"fixed_s": old.fixed_s, "fraction": old.bandwidth_fraction}, rows.size_bytes)
        before = float(np.mean(np.abs(was / rows.time_s - 1.0)))
    error = float(np.concatenate(errors).mean())
    block = {
        "basis": "measured",
        "source": source,
        "points": len(rows.time_s),
        "held_out_error": round(error, 3),
        "bandwidth_fraction": round(told["fraction"], 3),
        "fixed": seconds(told["fixed_s"]),
    }
    return KernelResult("memory", "", len(rows.time_s), before, error, block)


def accelerator_text(
    path: Path,
    base: str,
    accelerator: Accelerator,
    results: Sequence[KernelResult],
    source: str,
    *,
    profile_path: ProfilePath = None,
) -> str:
    """Return the file of an accelerator that inherits all but the fitted kernels from `base`.

    Raises
    ------
    ProfileError
        If the base has no kernels to keep for what was not measured.
    """
    folders = disk.search_folders(profile_path)
    content = disk.read_profile(disk.find_profile("accelerator", base, folders), "accelerator", folders)
    block = content.get("kernels")
    if not isinstance(block, dict):
        raise ProfileError(
            f"{accelerator.name}: kernels: expected constants for what was not measured; none there"
        )
    block = {**block, **{key: dict(block.get(key, {})) for key in ("matmul", "grouped_matmul", "attention")}}
    for one in results:
        if one.section == "memory":
            block["memory"] = dict(one.block)
        else:
            block[one.section][one.name] = dict(one.block)
    content = {
        "schema_version": 1,
        "profile": "accelerator",
        "name": path.stem,
        "title": f"{accelerator.title}, calibrated",
        "inherit": base,
        "kernels": block,
        "sources": {
            "calibration": {"title": source, "accessed": datetime.datetime.now(tz=datetime.UTC).date()}
        },
    }
    return document_text(content, {"kernels": "written by costmodel calibrate kernels"})
