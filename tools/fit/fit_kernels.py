"""Fit the kernel constants of every shipped accelerator and write them into its profile.

    python tools/fit/fit_kernels.py MATMUL.csv ATTENTION.csv [ATTENTION.csv …]
        [--fp4 TABLE] [--write FOLDER]

The tables' columns are those of ``tests/published/matmul_sample.csv``, ``attention_h100_flash3_paper.csv``,
``attention_cudnn_2026.csv`` and ``matmul_fp4_cublaslt.csv``. Without ``--write`` the report is printed and nothing changes.
Entries that no row tells, those that say ``like`` among them, are left as they are.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bounded_fits import fit_attention, fit_matmul
from kernel_tables import ShippedFit, count_sources, read_attention, read_matmul
from library_fp4 import DTYPE, fit_library, of_chip

from costmodel.base.yaml_files import document, document_text, node
from costmodel.describe.hardware.hardware import list_profiles, load_accelerator
from costmodel.physics.kernels.roofline import AttentionConstants, AttentionPassConstants
from costmodel.trust.calibration.kernel_csv import Rows
from costmodel.trust.calibration.kernel_fits import MIN_POINTS, Block, kernel_block

# One die of an MI250X, sold alone; it has measurements and no profile.
MI210 = SimpleNamespace(
    name="mi210",
    generation="cdna2",
    num_sms=104,
    peak_flops_per_s={"bf16": 181e12, "fp16": 181e12},
    memory_bandwidth_bytes_per_s=1.638e12,
    tdp_w=0.0,
)

MatmulFits = dict[tuple[str, str, str], ShippedFit]
AttentionFits = dict[tuple[str, str], ShippedFit]


def device(name: str) -> Any:
    """Return what the fits need of an accelerator."""
    return MI210 if name == MI210.name else load_accelerator(name)


def fit_matmuls(rows: Mapping[tuple[str, str, str], Rows], known_names: set[str]) -> MatmulFits:
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
        fits[key] = ShippedFit(*fit_matmul(rows[key], device(name), dtype, known), rows[key].source)
    return share_power_limits(fits, rows)


def share_power_limits(fits: MatmulFits, rows: Mapping[tuple[str, str, str], Rows]) -> MatmulFits:
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


def fit_attentions(rows: Mapping[tuple[str, str], Rows], known_names: set[str]) -> AttentionFits:
    """Fit every attention kernel with enough rows."""
    fits: AttentionFits = {}
    for (name, kernel), part in sorted(rows.items()):
        timed = set(part.passes.tolist())
        if name in known_names and len(part.batch) >= MIN_POINTS and (2.0 in timed or len(timed) > 1):
            fits[name, kernel] = ShippedFit(*fit_attention(part, device(name), kernel), part.source)
    return fits


def shipped_matmul_block(found: ShippedFit) -> Block:
    """Write a fit of this accelerator's own rows."""
    source = count_sources(found.sources)
    return kernel_block(found, f"{source}; power limit: {found.power_limit}" if found.power_limit else source)


def _peaks(c: AttentionPassConstants) -> dict[int, float]:
    """Return share of the peak by head dimension."""
    return {round(dim): value for dim, value in zip(c.head_dims, c.peak_fractions, strict=True)}


def shipped_attention_block(found: ShippedFit, this: Any, fits: AttentionFits) -> Block:
    """Write a fit of this accelerator's own rows.

    Where every row was causal, the share without a mask is the fitted one over the causal factor
    of the kernel on its nearest relative, and head dimension 64 follows that relative's ratio.
    """
    relative = fits.get(
        ("a100-sxm-80gb", "flash2") if this.generation == "ampere" else ("h100-sxm-80gb", "cudnn")
    )
    adjusted = {}
    for name in ("forward", "backward"):
        own: AttentionPassConstants = getattr(found.constants, name)
        peaks, causal = _peaks(own), own.causal_fraction
        if relative is not None and 64 not in peaks and 128 in peaks:
            near: AttentionPassConstants = getattr(relative.constants, name)
            near_causal: AttentionPassConstants = relative.constants.forward
            ratio = _peaks(near)[64] / _peaks(near)[128]
            if causal == 1.0:
                causal = near_causal.causal_fraction
                peaks = {dim: value / causal for dim, value in peaks.items()}
            peaks[64] = peaks[128] * ratio
        adjusted[name] = own._replace(
            head_dims=tuple(float(dim) for dim in peaks),
            peak_fractions=tuple(peaks.values()),
            causal_fraction=causal,
        )
    changed = found._replace(constants=AttentionConstants(**adjusted))
    return kernel_block(changed, count_sources(found.sources))


def with_fits(text: str, name: str, matmuls: MatmulFits, attentions: AttentionFits) -> str:
    """Return the file of an accelerator with the kernels that its own rows tell; what it borrows (``like``) stays."""
    content = document(text)
    block = content["kernels"]
    for (owner, op, dtype), found in matmuls.items():
        if owner == name:
            block.setdefault(op, node({}))[dtype] = node(shipped_matmul_block(found))
    for (owner, kernel), fitted in attentions.items():
        if owner == name:
            known = shipped_attention_block(fitted, device(name), attentions)
            block.setdefault("attention", node({}))[kernel] = node(known)
    return document_text(content)


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
        own = {owner for owner, *_ in (*matmuls, *attentions)}
        for path in sorted(options.write.glob("*.yaml")):
            if path.stem in own:
                path.write_text(with_fits(path.read_text("utf-8"), path.stem, matmuls, attentions), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
