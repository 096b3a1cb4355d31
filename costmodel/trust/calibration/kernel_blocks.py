"""The ``kernels:`` block of a profile, built from fits."""

from __future__ import annotations

from typing import Any

from costmodel.physics.kernels.roofline import AttentionPassConstants, MatmulConstants
from costmodel.trust.calibration.kernel_fits import AttentionFit, MatmulFit

Block = dict[str, Any]


def seconds(value: float) -> str:
    """Return a time as the profiles write it."""
    return f"{value * 1e6:.4g} us"


def fraction(value: float) -> float:
    """Round a share to what the fit supports."""
    return float(f"{value:.3g}")


def matmul_constants(c: MatmulConstants, scale: float = 1.0, sustained: float = 1.0) -> Block:
    """Write matrix constants, leaving out what is zero."""
    loss = 1.0 - min(1.0, (1.0 - c.sustained_loss) * sustained)
    block: Block = {
        "fixed": seconds(c.fixed_s),
        "peak_fraction": fraction(min(0.98, c.peak_fraction * scale)),
        "memory_fraction": fraction(c.memory_fraction),
        "tile": [c.tile_m, c.tile_n],
        "wave_fraction": round(c.wave_fraction, 3),
        "ramp_k": fraction(c.ramp_k),
    }
    optional: Block = {
        "split_k": fraction(c.split_k),
        "small_tile_fraction": fraction(c.small_tile_fraction),
        "epilogue_fraction": round(c.epilogue_fraction, 3),
        "sustained_loss": round(loss, 3),
        "cast_bytes_per_element": fraction(c.cast_bytes_per_element),
    }
    block |= {key: value for key, value in optional.items() if value}
    if loss:
        block["sustained_flops"] = f"{c.sustained_flops / 1e9:.4g} GFLOP"
    if c.cast_fixed_s:
        block["cast_fixed"] = seconds(c.cast_fixed_s)
    if c.fixed_per_group_s > 1e-7:
        block["fixed_per_group"] = seconds(c.fixed_per_group_s)
    return block


def matmul_block(found: MatmulFit, source: str) -> Block:
    """Write a fit of matrix products."""
    return _head(found, source) | matmul_constants(found.constants)


def attention_block(found: AttentionFit, source: str) -> Block:
    """Write a fit of an attention kernel."""
    return {
        name: attention_pass_block(getattr(found.constants, name), _head(found, source))
        for name in ("forward", "backward")
    }


def _head(found: MatmulFit | AttentionFit, source: str) -> Block:
    """Say where constants come from and how good they are."""
    return {
        "basis": "measured",
        "source": source,
        "points": found.points,
        "held_out_error": round(found.held_out_error, 3),
    }


def attention_pass_block(c: AttentionPassConstants, head: Block) -> Block:
    """Write the constants of one pass."""
    block = head | {
        "fixed": seconds(c.fixed_s),
        "memory_fraction": c.memory_fraction,
        "peak_fractions": {
            round(dim): fraction(min(0.95, value))
            for dim, value in sorted(zip(c.head_dims, c.peak_fractions, strict=True))
        },
        "causal_fraction": fraction(c.causal_fraction),
        "ramp_seq": fraction(c.ramp_seq),
        "tile_rows": c.tile_rows,
        "wave_fraction": round(c.wave_fraction, 3),
    }
    if c.side_bytes_per_element > 0.2:
        block["side_bytes_per_element"] = fraction(c.side_bytes_per_element)
    return block
