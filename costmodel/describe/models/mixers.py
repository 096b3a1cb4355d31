"""Layers that mix tokens by something else than softmax attention over all of them: their sizes.

A model names its sorts by a letter each (``mixers``) and says in its ``attention_pattern`` where each stands.
What they weigh and compute is `costmodel.step.anatomy.mixers`, one record a kind.
"""

from __future__ import annotations

from math import prod
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class MixerSizes(BaseModel):
    """What every sort has."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    split: ClassVar[dict[str, str]] = {}
    """Sizes that tensor parallelism must divide, each in words."""
    selected: ClassVar[tuple[str, ...]] = ()
    """Sizes whose product is what attention beside it is left with."""

    beside_attention: bool = False
    """The layer has the model's attention too, on the same input (Falcon-H1)."""

    def split_over_tp(self) -> tuple[tuple[str, int], ...]:
        """Return what tensor parallelism must divide, in words, and how many there are. [-]"""
        counts = ((words, getattr(self, name)) for name, words in self.split.items())
        return tuple((words, count) for words, count in counts if count)

    @property
    def selects(self) -> int:
        """Tokens that attention beside it is left with for each query, 0 for all. [-]"""
        return prod(getattr(self, name) for name in self.selected) if self.selected else 0


class Selecting(MixerSizes):
    """What chooses the keys that the model's attention looks at: it always stands beside it, whole on every tensor rank."""

    beside_attention: Literal[True] = True


class Indexed(Selecting):
    """Lightning indexer of DeepSeek sparse attention: DeepSeek-V3.2, arXiv:2512.02556, section 2.1."""

    selected: ClassVar[tuple[str, ...]] = ("top_k",)
    kind: Literal["indexed"] = "indexed"
    heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    top_k: int = Field(gt=0)
    """Tokens that it leaves to a query."""
    shared: bool = False
    """It takes the choice of the layer before, without an indexer of its own (GLM-5)."""


class BlockSparse(Selecting):
    """Mixture of block attention, by the mean key of each block: E. Lu et al., MoBA, arXiv:2502.13189."""

    selected: ClassVar[tuple[str, ...]] = ("block", "top_k")
    kind: Literal["block-sparse"] = "block-sparse"
    block: int = Field(gt=0)
    """Tokens of a block."""
    top_k: int = Field(gt=0)
    """Blocks that a query looks at, its own among them."""


class NativeSparse(Selecting):
    """Native sparse attention: compressed, selected and sliding keys, each with their own projections.

    J. Yuan et al., arXiv:2502.11089, section 3; the model's own attention is the selected branch.
    """

    selected: ClassVar[tuple[str, ...]] = ("select_block", "select_blocks")
    kind: Literal["native-sparse"] = "native-sparse"
    compress_block: int = Field(gt=0)
    """Tokens that become one compressed key."""
    compress_stride: int = Field(gt=0)
    select_block: int = Field(gt=0)
    select_blocks: int = Field(gt=0)
    window: int = Field(gt=0)


class GatedDelta(MixerSizes):
    """Gated DeltaNet: S. Yang et al., arXiv:2412.06464; keys of Qwen3-Next's config."""

    split: ClassVar[dict[str, str]] = {
        "key_heads": "key heads of the delta rule",
        "value_heads": "value heads",
    }
    kind: Literal["gated-delta"] = "gated-delta"
    key_heads: int = Field(gt=0)
    value_heads: int = Field(gt=0)
    key_head_dim: int = Field(gt=0)
    value_head_dim: int = Field(gt=0)
    conv_kernel: int = Field(gt=0)
    """Tokens that the convolution of queries, keys and values sees."""


class KimiDelta(MixerSizes):
    """Kimi Delta Attention, gated channel by channel: Kimi Team, arXiv:2510.26692."""

    split: ClassVar[dict[str, str]] = {"heads": "heads of the delta rule"}
    kind: Literal["kimi-delta"] = "kimi-delta"
    heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    """Of queries, keys and values; the rank of the projections of both gates too."""
    conv_kernel: int = Field(gt=0)


class Lightning(MixerSizes):
    """Lightning attention, a decay a head: Z. Qin et al., arXiv:2401.04658; MiniMax-01, arXiv:2501.08313."""

    split: ClassVar[dict[str, str]] = {"heads": "heads of linear attention"}
    kind: Literal["lightning"] = "lightning"
    heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)


class Mamba(MixerSizes):
    """Selective state space of the first kind: A. Gu and T. Dao, arXiv:2312.00752."""

    split: ClassVar[dict[str, str]] = {"inner": "channels of the state space"}
    kind: Literal["mamba"] = "mamba"
    inner: int = Field(gt=0)
    """Channels."""
    state: int = Field(gt=0)
    """State of a channel."""
    dt_rank: int = Field(gt=0)
    conv_kernel: int = Field(gt=0)
    conv_bias: bool = True
    bias: bool = False
    """Of the way in and out."""
    inner_norms: bool = False
    """A norm each of time step, B and C (Jamba)."""


class Mamba2(MixerSizes):
    """State space with a scalar decay a head: T. Dao and A. Gu, arXiv:2405.21060."""

    # Groups too: NVIDIA/Megatron-LM megatron/core/ssm/mamba_mixer.py.
    split: ClassVar[dict[str, str]] = {
        "heads": "heads of the state space",
        "groups": "groups of the state space",
    }
    kind: Literal["mamba-2"] = "mamba-2"
    heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    groups: int = Field(gt=0)
    """Groups of heads that share B and C."""
    state: int = Field(gt=0)
    """State of a channel of a head."""
    conv_kernel: int = Field(gt=0)
    chunk: int = Field(default=256, gt=0)
    """Tokens of a chunk."""
    conv_bias: bool = True
    bias: bool = False
    """Of the way in and out."""
    norm: bool = True
    """A gated norm before the way out; otherwise the gate alone."""


class ShortConvolution(MixerSizes):
    """A gated causal convolution over a few tokens: LFM2, arXiv:2511.23404, section 2."""

    split: ClassVar[dict[str, str]] = {"channels": "channels of the convolution"}
    kind: Literal["short-convolution"] = "short-convolution"
    channels: int = Field(gt=0)
    conv_kernel: int = Field(gt=0)
    bias: bool = False
    """Of the convolution and of the ways in and out."""


class OtherHeads(MixerSizes):
    """The model's own attention with other heads than its `num_heads` and so on (MiMo-V2, Gemma 4).

    No mixer beside attention but a change of it: `Model.seen_by` applies it.
    """

    split: ClassVar[dict[str, str]] = {
        "num_heads": "attention heads of other layers",
        "ffn_size": "MLP width of other layers",
    }
    kind: Literal["other-heads"] = "other-heads"
    num_heads: int = Field(gt=0)
    num_kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    v_head_dim: int = Field(gt=0)
    window: int = Field(default=0, ge=0)
    """Tokens a query looks back on, 0 for all."""
    attention_sinks: bool = False
    kv_projections: int = Field(default=2, ge=0, le=2)
    """As the model's field."""
    ffn_size: int = Field(default=0, ge=0)
    """Inner width of the dense MLP of such a layer, or of its shared expert; 0 for the model's."""

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} does not divide by num_kv_heads {self.num_kv_heads}"
            )
        return self


AnyMixer = Annotated[
    GatedDelta
    | KimiDelta
    | Lightning
    | Mamba
    | Mamba2
    | ShortConvolution
    | OtherHeads
    | Indexed
    | BlockSparse
    | NativeSparse,
    Field(discriminator="kind"),
]  # fmt: skip
"""Every kind; another one is refused by its name."""
