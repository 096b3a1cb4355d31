"""The ``kernels:`` block of a shipped accelerator: its own fits, and what it borrows from its nearest relatives."""

from __future__ import annotations

from collections.abc import Mapping

from kernel_estimates import (
    AMD_ATTENTION,
    FLASH1_CAUSAL,
    FLASH1_RATE,
    H20_ATTENTION,
    LIKENESS,
    MEMORY_FLOOR_S,
    TRITON_RATE,
    Likeness,
    memory_share,
)
from kernel_tables import count_sources

from costmodel.describe.hardware.kernels import FP8_ATTENTION
from costmodel.physics.kernels.roofline import AttentionConstants, AttentionPassConstants
from costmodel.trust.calibration.kernel_blocks import (
    Block,
    fraction,
    matmul_block,
    matmul_constants,
    seconds,
)
from costmodel.trust.calibration.kernel_blocks import attention_block as own_attention_block
from costmodel.trust.calibration.kernel_fits import AttentionFit, Device, MatmulFit

MatmulFits = Mapping[tuple[str, str, str], MatmulFit]
AttentionFits = Mapping[tuple[str, str], AttentionFit]

KERNEL_FLOOR_S = 5e-6
"""Longest floor of a measured kernel that is the kernel's own. [s]"""
GROUPED_FIXED_S = 2e-6
"""Fixed time a group where no grouped kernel was measured: between A100 (0) and B200 (4 us)."""

# Which measured accelerator lends dtypes and attention kernels that a relative has no rows of.
BF16_PEAK = {"h100-sxm-80gb": 989.4e12, "a100-sxm-80gb": 312e12, "b200-sxm-180gb": 2250e12}
DTYPE_LENDERS = {
    "hopper": {"bf16": "h100-sxm-80gb", "fp8": "h100-sxm-80gb", "fp8-block": "h100-sxm-80gb"},
    "blackwell": {"bf16": "b200-sxm-180gb", "fp8": "b300", "nvfp4": "b200-sxm-180gb"},
}
GROUPED_LENDERS = {"ampere": "a100-pcie-80gb", "blackwell": "b200-sxm-180gb"}
KERNELS = ("triton", "flash1", "flash2", "flash3", "cudnn")
# Which measured accelerator lends cuDNN's attention, and in 8 bits, to a relative.
CUDNN_LENDERS = {"b300": "gb300", "gb300": "gb300"}
FP8_ATTENTION_LENDERS = {"hopper": "h200-sxm-141gb", "blackwell": "gb200"}


def without_host(found: MatmulFit) -> MatmulFit:
    """Replace a fixed time that is a host's launch path, where single calls were timed, by a kernel's."""
    return found._replace(
        constants=found.constants._replace(fixed_s=min(found.constants.fixed_s, KERNEL_FLOOR_S))
    )


def shipped_matmul_block(found: MatmulFit) -> Block:
    """Write a fit of this accelerator's own rows."""
    source = count_sources(found.sources)
    return matmul_block(found, f"{source}; power limit: {found.power_limit}" if found.power_limit else source)


def _estimated(found: MatmulFit, why: str, basis: str, like: Likeness) -> Block:
    """Write another accelerator's fit, changed as `like` says."""
    return {"basis": basis, "source": why} | matmul_constants(
        without_host(found).constants, like.rate, like.sustained
    )


def borrowed_matmul(block: Block, this: Device, fits: MatmulFits) -> None:
    """Add the dtypes and the grouped kernels that this accelerator has no rows of."""
    like = LIKENESS.get(this.name, Likeness(this.name, 1.0, 1.0, "same chip"))
    for (owner, op, dtype), found in fits.items():
        if owner == like.base and op == "matmul" and dtype not in block["matmul"]:
            why = f"{like.base}, fitted ({like.reason})"
            block["matmul"][dtype] = _estimated(found, why, "estimated", like)
    for dtype, lender in DTYPE_LENDERS.get(this.generation, {}).items():
        if dtype not in block["matmul"]:
            why = f"{lender}: the nearest of its generation with measurements"
            found = fits[lender, "matmul", dtype]
            own_losses = [
                f.constants.sustained_loss
                for (n, op, _), f in fits.items()
                if (n, op) == (this.name, "matmul") and f.power_limit.startswith("interpolated")
            ]
            if own_losses:
                # The kernel is the lender's, the power limit is not.
                found = found._replace(constants=found.constants._replace(sustained_loss=max(own_losses)))
                why += "; power limit of its own TDP"
            block["matmul"][dtype] = _estimated(found, why, "generation-average", like)
    for dtype, dense in block["matmul"].items():
        if dtype in block["grouped_matmul"]:
            continue
        own = next(
            (f for (n, op, t), f in fits.items() if (n, op, t) == (like.base, "grouped_matmul", dtype)), None
        )
        per_group = GROUPED_FIXED_S
        lender = GROUPED_LENDERS.get(this.generation, "")
        if (lender, "grouped_matmul", "bf16") in fits:
            per_group = fits[lender, "grouped_matmul", "bf16"].constants.fixed_per_group_s
        if own is not None:
            why = f"{like.base}, fitted ({like.reason})"
            block["grouped_matmul"][dtype] = _estimated(own, why, "estimated", like)
        else:
            kept = {
                k: v for k, v in dense.items() if k not in ("points", "held_out_error", "basis", "source")
            }
            head = {"basis": "estimated", "source": f"as the {dtype} product, with a fixed time a group"}
            block["grouped_matmul"][dtype] = head | kept | {"fixed_per_group": seconds(per_group)}


def _peaks(c: AttentionPassConstants) -> dict[int, float]:
    """Return share of the peak by head dimension."""
    return {round(dim): value for dim, value in zip(c.head_dims, c.peak_fractions, strict=True)}


def attention_block(found: AttentionFit, this: Device, fits: AttentionFits) -> Block:
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
    return own_attention_block(changed, count_sources(found.sources))


def _scaled(found: Block, rate: float, why: str, causal: float = 1.0) -> Block:
    """Return a written kernel with its shares of the peak times `rate`, marked as an estimate."""
    block: Block = {}
    for name, one in found.items():
        kept = {k: v for k, v in one.items() if k not in ("points", "held_out_error")}
        peaks = {dim: fraction(min(0.95, value * rate)) for dim, value in one["peak_fractions"].items()}
        block[name] = kept | {
            "basis": "estimated",
            "source": why,
            "peak_fractions": peaks,
            "causal_fraction": fraction(one["causal_fraction"] * causal),
        }
    return block


def borrowed_attention(block: Block, this: Device, fits: AttentionFits) -> None:
    """Add the attention kernels that this accelerator has no rows of."""
    attention: Block = block["attention"]

    def lend(name: str, kernel: str) -> Block:
        lender = Device(name, this.generation, 0.0, {}, 0.0)
        return attention_block(fits[name, kernel], lender, fits)

    def lend_fp8(rate: float) -> None:
        lender = CUDNN_LENDERS.get(this.name, FP8_ATTENTION_LENDERS[this.generation])
        if FP8_ATTENTION not in attention and (lender, FP8_ATTENTION) in fits:
            attention[FP8_ATTENTION] = _scaled(
                lend(lender, FP8_ATTENTION), min(rate, 1.0), f"{lender}, by clock"
            )

    if this.generation == "hopper":
        for kernel in ("flash2", "flash3", "cudnn"):
            if kernel in attention:
                continue
            like = LIKENESS.get(this.name, Likeness("h100-sxm-80gb", 1.0, 1.0, "same SMs and power limit"))
            rate = H20_ATTENTION[kernel] if this.name.startswith("h20-") else min(like.sustained, 1.0)
            attention[kernel] = _scaled(lend("h100-sxm-80gb", kernel), rate, f"h100-sxm-80gb ({like.reason})")
        lend_fp8(LIKENESS.get(this.name, Likeness("h100-sxm-80gb", 1.0, 1.0, "same SMs")).sustained)
    elif this.generation == "blackwell":
        peak = this.peak_flops_per_s["bf16"]
        lender = CUDNN_LENDERS.get(this.name, "b200-sxm-180gb")
        if "cudnn" not in attention and (lender, "cudnn") in fits:
            attention["cudnn"] = _scaled(lend(lender, "cudnn"), 1.0, f"{lender}, by clock")
        elif "cudnn" not in attention:
            rate = BF16_PEAK["b200-sxm-180gb"] / peak * (1.05 if peak > 2.3e15 else 1.0)
            attention["cudnn"] = _scaled(lend("b200-sxm-180gb", "cudnn"), rate, "b200-sxm-180gb, by clock")
        lend_fp8(1.0)
        older = Device("h100-sxm-80gb", "hopper", 132.0, {}, 0.0)
        rate = BF16_PEAK["h100-sxm-80gb"] / peak * this.num_sms / older.num_sms
        why = "h100-sxm-80gb: the kernel uses no instruction newer than Ampere's, so its rate goes by SMs"
        attention["flash2"] = _scaled(
            attention_block(fits["h100-sxm-80gb", "flash2"], older, fits), rate, why
        )
        why = "cudnn of this accelerator: FlashAttention-3 is for Hopper, frameworks run cuDNN here"
        attention["flash3"] = _scaled(attention["cudnn"], 1.0, why)
    elif this.generation in ("ampere", "volta"):
        if "flash2" not in attention:
            base = LIKENESS[this.name].base
            attention["flash2"] = _scaled(lend(base, "flash2"), LIKENESS[this.name].rate, f"{base}, fitted")
        for kernel in ("flash3", "cudnn"):
            attention[kernel] = _scaled(
                attention["flash2"], 1.0, "flash2: no newer kernel for this generation"
            )
    else:
        like_a100 = lend("a100-sxm-80gb", "flash2")
        why = "no measured table was found; the shape follows the A100's kernel"
        for name, share in zip(("forward", "backward"), AMD_ATTENTION, strict=True):
            scale = share / like_a100[name]["peak_fractions"][128]
            like_a100[name] = _scaled({name: like_a100[name]}, scale, why)[name]
        attention |= {kernel: _scaled(like_a100, 1.0, why) for kernel in ("flash2", "flash3", "cudnn")}
    why = "flash2 times 0.53 (T. Dao, arXiv:2307.08691: 25-40 % of an A100's peak against 50-73 %)"
    attention["flash1"] = _scaled(attention["flash2"], FLASH1_RATE, why, FLASH1_CAUSAL)
    why = "flash2 times 0.55 (T. Dao, arXiv:2307.08691: FlashAttention-2 is 1.3-2.5 times faster than in Triton)"
    attention["triton"] = _scaled(attention["flash2"], TRITON_RATE, why)
    block["attention"] = {
        kernel: attention[kernel] for kernel in (*KERNELS, FP8_ATTENTION) if kernel in attention
    }


def memory_block(name: str) -> Block:
    """Write what memory-bound kernels of an accelerator reach."""
    share, basis, source = memory_share(name)
    return {"basis": basis, "source": source, "bandwidth_fraction": share, "fixed": seconds(MEMORY_FLOOR_S)}
