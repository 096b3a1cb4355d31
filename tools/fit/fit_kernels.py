"""Fit the kernel constants of every shipped accelerator and write them into its profile.

    python tools/fit/fit_kernels.py MATMUL.csv ATTENTION.csv [ATTENTION.csv …]
        [--fp4 TABLE] [--write FOLDER]

The tables' columns are those of ``tests/published/matmul_sample.csv``, ``attention_h100_flash3_paper.csv``,
``attention_cudnn_2026.csv`` and ``matmul_fp4_cublaslt.csv``. Without ``--write`` the report is printed and nothing changes.
Accelerators without rows of their own take constants from `kernel_estimates`; a profile
that says ``kernels: {like: ...}`` is left as it is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernel_borrowing import (
    attention_block,
    borrowed_attention,
    borrowed_matmul,
    memory_block,
    shipped_matmul_block,
)
from kernel_tables import read_attention, read_matmul
from library_fp4 import DTYPE, fit_library, of_chip

from costmodel.base.errors import DataError
from costmodel.base.yaml_files import put_block
from costmodel.describe.hardware.hardware import list_profiles, load_accelerator
from costmodel.describe.hardware.profile_files import read_yaml
from costmodel.trust.calibration.kernel_csv import AttentionRows, MatmulRows
from costmodel.trust.calibration.kernel_fits import AttentionFit, Device, MatmulFit, fit_attention, fit_matmul

# One die of an MI250X, sold alone; it has measurements and no profile.
MI210 = Device("mi210", "cdna2", 104.0, {"bf16": 181e12, "fp16": 181e12}, 1.638e12)
WRITTEN = "written by tools/fit/fit_kernels.py from published measurements"
MIN_POINTS = 9
"""Fewer rows than this are a check, not a fit."""
BACKWARD_RATIO = 0.875
"""Backward over forward peak share of FlashAttention-2, as measured on H100 (322 of 370 TFLOP/s)."""

MatmulFits = dict[tuple[str, str, str], MatmulFit]
AttentionFits = dict[tuple[str, str], AttentionFit]


def device(name: str) -> Device:
    """Return what the fits need of an accelerator."""
    if name == MI210.name:
        return MI210
    a = load_accelerator(name)
    return Device(
        name, a.generation, a.num_sms, dict(a.peak_flops_per_s), a.memory_bandwidth_bytes_per_s, a.tdp_w
    )


def fit_matmuls(rows: Mapping[tuple[str, str, str], MatmulRows], known_names: set[str]) -> MatmulFits:
    """Fit dense products first; quantised and grouped ones keep what they cannot tell from them."""
    fits: MatmulFits = {}
    order = {"bf16": 0}
    for key in sorted(rows, key=lambda key: (key[0], key[1] != "matmul", order.get(key[2], 1), key)):
        name, op, dtype = key
        if len(rows[key].m) < MIN_POINTS or name not in known_names or op == "batched_matmul":
            continue
        known: dict[str, float] = {}
        dense = fits.get((name, "matmul", dtype))
        if op == "grouped_matmul" and dense is not None and dtype == "bf16":
            free: tuple[str, ...] = ("num_sms", "peak_fraction", "memory_fraction", "fixed_per_group_s")
            if len(rows[key].m) >= 30:
                free += ("epilogue_fraction", "ramp_k")
            known = {k: v for k, v in dense.constants._asdict().items() if k not in free}
        elif dtype != "bf16" and (name, "matmul", "bf16") in fits:
            known = {"fixed_s": fits[name, "matmul", "bf16"].constants.fixed_s}
        fits[key] = fit_matmul(rows[key], device(name), dtype, known)
    return share_power_limits(fits, rows)


def share_power_limits(fits: MatmulFits, rows: Mapping[tuple[str, str, str], MatmulRows]) -> MatmulFits:
    """Give dtypes that were only timed in bursts the power limit seen nearest to them.

    An accelerator that was never timed for long takes what its TDP says (`loss_at_power`), between the
    largest losses seen on each accelerator of its generation. One that was timed at another dtype takes
    the largest loss seen there, or what its siblings lose at this dtype where that is less: a loss is that of
    the machine that was timed, of its cooling too, and no average of two makes a third one slower.
    """
    seen: dict[str, list[float]] = {}
    at_dtype: dict[tuple[str, str], float] = {}
    own_dtypes = set()
    for (name, op, dtype), found in fits.items():
        if rows[name, op, dtype].sustained.any() and op == "matmul":
            seen.setdefault(name, []).append(found.constants.sustained_loss)
            at_dtype[name, dtype] = found.constants.sustained_loss
            own_dtypes.add((name, dtype))
    shared: MatmulFits = {}
    for key, found in fits.items():
        name, op, dtype = key
        constants, told = found.constants, ""
        if (name, dtype) not in own_dtypes and not (op == "grouped_matmul" and rows[key].sustained.any()):
            siblings = {
                other: losses
                for other, losses in seen.items()
                if device(other).generation == device(name).generation
            }
            if name in siblings:
                loss, told = max(siblings[name]), "its other dtypes"
                alike = {at_dtype[other, dtype]: other for other in siblings if (other, dtype) in at_dtype}
                if alike and min(alike) < loss:
                    loss, told = min(alike), f"{dtype} on {alike[min(alike)]}"
            elif siblings:
                points = [(device(other).tdp_w, max(losses)) for other, losses in siblings.items()]
                loss = loss_at_power(device(name).tdp_w, points)
                told = "interpolated by TDP from " + " and ".join(sorted(siblings))
            else:
                loss, told = 0.0, "none known"
            constants = constants._replace(sustained_loss=loss)
        shared[key] = found._replace(constants=constants, power_limit=told)
    return shared


def loss_at_power(tdp_w: float, seen: Sequence[tuple[float, float]]) -> float:
    """Return the share of the peak that long kernels lose at a power limit.

    Parameters
    ----------
    tdp_w : float
        Power limit of the accelerator. [W]
    seen : sequence of (float, float)
        Power limits and losses measured in its generation. [W, -]

    Returns
    -------
    loss : float
        On the least-squares line through the points, never below 0; with one power limit, what was
        seen there. More power never loses more. [-]

    >>> round(loss_at_power(1100, [(1000, 0.3), (1200, 0.1)]), 6), loss_at_power(1400, [(1000, 0.3), (1200, 0.1)])
    (0.2, 0.0)
    """
    mean_w = sum(w for w, _ in seen) / len(seen)
    mean_loss = sum(loss for _, loss in seen) / len(seen)
    spread = sum((w - mean_w) ** 2 for w, _ in seen)
    slope = sum((w - mean_w) * (loss - mean_loss) for w, loss in seen) / spread if spread else 0.0
    return max(mean_loss + min(slope, 0.0) * (tdp_w - mean_w), 0.0)


def with_library_fp4(fits: MatmulFits, table: Path) -> MatmulFits:
    """Return the 4-bit fits of every chip that has some, for the library in place of what its table timed."""
    others = {name: found for (name, op, dtype), found in fits.items() if (op, dtype) == ("matmul", DTYPE)}
    shared = fit_library(table, device)
    return {(name, "matmul", DTYPE): of_chip(name, shared, others) for name in others}


def fit_attentions(rows: Mapping[tuple[str, str], AttentionRows], known_names: set[str]) -> AttentionFits:
    """Fit every attention kernel with enough rows."""
    fits: AttentionFits = {}
    for (name, kernel), part in sorted(rows.items()):
        timed = set(part.passes.tolist())
        if name in known_names and len(part.batch) >= MIN_POINTS and (2.0 in timed or len(timed) > 1):
            both_only = bool((part.passes == 2.0).all())
            ratio = BACKWARD_RATIO if both_only else None
            fits[name, kernel] = fit_attention(part, device(name), ratio, kernel)
    return fits


def kernels_block(name: str, matmuls: MatmulFits, attentions: AttentionFits) -> dict[str, Any]:
    """Return the ``kernels:`` block of one accelerator: its own fits, then what is borrowed."""
    this = device(name)
    block: dict[str, Any] = {"num_sms": this.num_sms, "matmul": {}, "grouped_matmul": {}, "attention": {}}
    for (owner, op, dtype), found in matmuls.items():
        if owner == name:
            block[op][dtype] = shipped_matmul_block(found)
    borrowed_matmul(block, this, matmuls)
    for (owner, kernel), fitted in attentions.items():
        if owner == name:
            block["attention"][kernel] = attention_block(fitted, this, attentions)
    borrowed_attention(block, this, attentions)
    block["memory"] = memory_block(name)
    return block


def shipped_text(path: Path, matmuls: MatmulFits, attentions: AttentionFits) -> str:
    """Return the file of an accelerator with its new block; the rest stays as it is.

    Raises
    ------
    DataError
        If the tables have no rows of what it would borrow.
    """
    try:
        block = kernels_block(path.stem, matmuls, attentions)
    except KeyError as missing:
        raise DataError(
            f"{path.stem}: expected rows of {' '.join(missing.args[0])}, to borrow from"
        ) from None
    return put_block(path.read_text("utf-8"), "kernels", block, comment=WRITTEN, before="sources")


def report(matmuls: MatmulFits, attentions: AttentionFits) -> str:
    """Return the held-out errors as text."""
    lines = ["kernel            accelerator        dtype/kernel  points  held-out mean error"]
    for (name, op, dtype), found in matmuls.items():
        lines.append(f"{op:17} {name:18} {dtype:13} {found.points:6d}  {100 * found.held_out_error:5.1f} %")
    for (name, kernel), fitted in attentions.items():
        lines.append(
            f"{'attention':17} {name:18} {kernel:13} {fitted.points:6d}  {100 * fitted.held_out_error:5.1f} %"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, report, and with ``--write`` rewrite the profiles."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("matmul", type=Path, help="table of matrix products")
    parser.add_argument("attention", type=Path, nargs="+", help="tables of attention kernels")
    parser.add_argument(
        "--fp4", type=Path, metavar="TABLE", help="table of 4-bit products of the library that training calls"
    )
    parser.add_argument(
        "--write", type=Path, metavar="FOLDER", help="folder of accelerator profiles to rewrite"
    )
    options = parser.parse_args(arguments)
    names = set(list_profiles("accelerator"))
    measured = names | {MI210.name}
    matmuls = fit_matmuls(read_matmul(options.matmul), measured)
    if options.fp4:
        matmuls |= with_library_fp4(matmuls, options.fp4)
    attentions = fit_attentions(read_attention(options.attention), measured)
    sys.stdout.write(report(matmuls, attentions) + "\n")
    if options.write:
        texts = {
            path: shipped_text(path, matmuls, attentions)
            for path in sorted(options.write.glob("*.yaml"))
            if "like" not in (read_yaml(path).get("kernels") or {})
        }
        for path, text in texts.items():
            path.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
