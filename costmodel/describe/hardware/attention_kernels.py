"""Kernels of attention: one record each. What a recipe may choose, and what each choice does to the bill."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class AttentionKind:
    """A way to compute attention.

    Attributes
    ----------
    name : str
        Value of the recipe's `attention_kernel`.
    is_open : bool
        Whether it means what the software of the device takes, and is never run by this name.
    writes_scores : bool
        Whether the matrix of scores goes through HBM between two batched products; otherwise one fused kernel
        keeps nothing quadratic, at the constants that an accelerator's ``kernels`` block has under its name.
    fused_softmax : bool
        Whether the softmax between the products is one kernel, not a chain of element-wise ones.
    source : str
        Where that is stated.
    """

    name: str
    is_open: bool
    writes_scores: bool
    fused_softmax: bool
    source: str


def _flash(name: str, source: str) -> AttentionKind:
    return AttentionKind(name=name, is_open=False, writes_scores=False, fused_softmax=True, source=source)


def _open(name: str, source: str) -> AttentionKind:
    return AttentionKind(name=name, is_open=True, writes_scores=False, fused_softmax=True, source=source)


ATTENTION_KERNELS: dict[str, AttentionKind] = {
    one.name: one
    for one in (
        _open("auto", "what NVIDIA's or AMD's libraries take on the device"),
        _open(
            "torch",
            "pytorch/torchtitan models/attention.py: flash first, cuDNN before it from compute capability 10 on",
        ),
        AttentionKind(
            name="unfused",
            is_open=False,
            writes_scores=True,
            fused_softmax=False,
            source="Korthikanti et al., arXiv:2205.05198, section 4: scores, softmax and dropout by themselves",
        ),
        AttentionKind(
            name="fused-softmax",
            is_open=False,
            writes_scores=True,
            fused_softmax=True,
            source="NVIDIA/Megatron-LM megatron/core/fusions/fused_softmax.py: scale, mask and softmax in one",
        ),
        _flash("triton", "triton-lang/triton tutorials/06-fused-attention.py"),
        _flash("flash1", "Dao et al., arXiv:2205.14135"),
        _flash("flash2", "Dao, arXiv:2307.08691"),
        _flash("flash3", "Shah et al., arXiv:2407.08608"),
        _flash("cudnn", "NVIDIA cuDNN, fused flash attention"),
    )
}
"""Every choice by name."""

OPEN_KERNELS = tuple(name for name, one in ATTENTION_KERNELS.items() if one.is_open)
"""Choices that the software of a device decides."""
