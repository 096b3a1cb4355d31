"""Kernel constants of an accelerator: the ``kernels:`` block of its YAML file, read into `physics`.

`tools/fit/fit_kernels.py` writes what was measured, `kernel_rules` reads the rest. Every group of constants says where
it comes from:
``basis: measured`` (with its source, points and held-out error), ``generation-average`` or
``estimated``. A dtype without an entry takes the nearest measured one (`FALLBACK_DTYPES`) with
its own peak, because the kernels share their tiles and schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from costmodel.base.units import parse_quantity
from costmodel.describe.hardware.strict import Seconds, Strict
from costmodel.physics.kernels.roofline import (
    AttentionConstants,
    AttentionPassConstants,
    MatmulConstants,
    MemoryConstants,
)

Flops = Annotated[
    float,
    BeforeValidator(lambda text: parse_quantity(text, "FLOP")),
    WithJsonSchema({"type": ["string", "number"]}),
]

Basis = Literal["measured", "generation-average", "estimated"]

PEAK_KEY: dict[str, str] = {
    **{dtype: dtype for dtype in ("fp32", "tf32", "fp16", "bf16", "int8", "fp8")},
    **{"fp8-block": "fp8", "mxfp8": "fp8", "nvfp4": "fp4"},
}
"""Key of `Accelerator.peak_flops_per_s` for each dtype of a matrix kernel."""

FP8_ATTENTION = "cudnn-fp8"
"""Attention in 8 bits: its kernel beside those that a recipe names, its shares those of the fp8 peak."""

FALLBACK_DTYPES: dict[str, tuple[str, ...]] = {
    "bf16": ("fp16",),
    "fp16": ("bf16",),
    "tf32": ("bf16", "fp16"),
    "fp32": ("bf16", "fp16"),
    "int8": ("bf16",),
    "fp8": ("fp8-block", "bf16"),
    "fp8-block": ("fp8", "bf16"),
    "mxfp8": ("fp8-block", "fp8", "bf16"),
    "nvfp4": ("fp8-block", "fp8", "bf16"),
}
"""Where a dtype without constants of its own takes them from, nearest first."""


_Start = Annotated[Seconds, Field(ge=0, le=1)]
"""What a launch takes, whatever its size. [s]"""
_Share = Annotated[float, Field(gt=0, le=1)]
_Tile = Annotated[float, Field(ge=1, le=65536)]


class _Block(Strict):
    """A group of fitted constants and their provenance."""

    basis: Basis
    source: str
    points: int = Field(default=0, ge=0)
    held_out_error: float | None = Field(default=None, ge=0)

    def _sizes(self, but: str) -> dict[str, float]:
        """Return the constants under the names that formulas have for them, which end in their unit."""
        names = type(self).model_fields.keys() - _Block.model_fields.keys() - {but}
        return {f"{name}_s" if name in _TIMES else name: getattr(self, name) for name in names}


_TIMES = ("fixed", "cast_fixed", "fixed_per_group")


class MatmulBlock(_Block):
    """Constants of the matrix kernels at one dtype, as the file writes them."""

    fixed: _Start
    peak_fraction: float = Field(gt=0, le=1)
    memory_fraction: float = Field(gt=0, le=1)
    tile: tuple[_Tile, _Tile] = (128.0, 128.0)
    wave_fraction: float = Field(default=0.0, ge=0, le=1)
    split_k: float = Field(default=0.0, ge=0)
    small_tile_fraction: float = Field(default=0.0, ge=0, le=1)
    epilogue_fraction: float = Field(default=0.0, ge=0)
    ramp_k: float = Field(default=0.0, ge=0)
    sustained_loss: float = Field(default=0.0, ge=0, lt=1)
    sustained_flops: Annotated[Flops, Field(gt=0)] = 1e12
    cast_bytes_per_element: float = Field(default=0.0, ge=0)
    cast_fixed: _Start = 0.0
    fixed_per_group: _Start = 0.0
    shared_rows: float = Field(default=0.0, ge=0)

    def constants(self, num_sms: float) -> MatmulConstants:
        """Return what `matmul_time` takes."""
        (tile_m, tile_n), sizes = self.tile, self._sizes("tile")
        return MatmulConstants(num_sms=num_sms, tile_m=tile_m, tile_n=tile_n, **sizes)


class AttentionPassBlock(_Block):
    """Constants of one pass of an attention kernel, as the file writes them."""

    fixed: _Start
    memory_fraction: float = Field(default=0.8, gt=0, le=1)
    peak_fractions: dict[Annotated[int, Field(ge=1)], _Share] = Field(min_length=1)
    """Share of the dense peak by head dimension."""
    causal_fraction: float = Field(default=1.0, gt=0, le=1.2)
    ramp_seq: float = Field(default=0.0, ge=0)
    tile_rows: float = Field(default=128.0, gt=0)
    wave_fraction: float = Field(default=0.0, ge=0, le=1)
    side_bytes_per_element: float = Field(default=0.0, ge=0)

    def constants(self, num_sms: float) -> AttentionPassConstants:
        """Return what `attention_time` takes."""
        dims = sorted(self.peak_fractions)
        return AttentionPassConstants(
            num_sms=num_sms,
            head_dims=tuple(float(dim) for dim in dims),
            peak_fractions=tuple(self.peak_fractions[dim] for dim in dims),
            **self._sizes("peak_fractions"),
        )


class AttentionBlock(Strict):
    """Both passes of one attention kernel."""

    forward: AttentionPassBlock
    backward: AttentionPassBlock


class MemoryBlock(_Block):
    """Constants of memory-bound kernels."""

    bandwidth_fraction: float = Field(gt=0, le=1)
    fixed: _Start

    def constants(self) -> MemoryConstants:
        """Return what `memory_time` takes."""
        return MemoryConstants(bandwidth_fraction=self.bandwidth_fraction, fixed_s=self.fixed)


class KernelBlocks(Strict):
    """The ``kernels:`` block of an accelerator file, word for word."""

    num_sms: float = Field(gt=0)
    matmul: dict[str, MatmulBlock] = Field(min_length=1)
    grouped_matmul: dict[str, MatmulBlock] = {}  # noqa: RUF012  # pydantic copies it
    attention: dict[str, AttentionBlock] = {}  # noqa: RUF012  # pydantic copies it
    memory: MemoryBlock


class KernelConstants(BaseModel):
    """What the formulas receive: constants by dtype or kernel name, and where each came from."""

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    matmul: dict[str, MatmulConstants]
    grouped_matmul: dict[str, MatmulConstants]
    attention: dict[str, AttentionConstants]
    memory: MemoryConstants
    blocks: KernelBlocks

    @model_validator(mode="before")
    @classmethod
    def _read_blocks(cls, data: Any) -> Any:
        """Turn the mapping of a YAML file into constants."""
        if not isinstance(data, Mapping) or "blocks" in data:
            return data
        blocks = KernelBlocks.model_validate(data)
        sms = blocks.num_sms
        matmul = fill_dtypes({dtype: block.constants(sms) for dtype, block in blocks.matmul.items()})
        grouped = {dtype: block.constants(sms) for dtype, block in blocks.grouped_matmul.items()}
        return {
            "matmul": matmul,
            "grouped_matmul": matmul | (fill_dtypes(grouped) if grouped else {}),
            "attention": {
                name: AttentionConstants(block.forward.constants(sms), block.backward.constants(sms))
                for name, block in blocks.attention.items()
            },
            "memory": blocks.memory.constants(),
            "blocks": blocks,
        }

    def changed(
        self,
        product: Callable[[MatmulConstants], MatmulConstants] = lambda c: c,
        one_pass: Callable[[AttentionPassConstants], AttentionPassConstants] = lambda c: c,
    ) -> KernelConstants:
        """Return the kernels with every product and every pass of attention changed."""
        tables = {
            table: {dtype: product(c) for dtype, c in getattr(self, table).items()}
            for table in ("matmul", "grouped_matmul")
        }
        attention = {name: AttentionConstants(*map(one_pass, both)) for name, both in self.attention.items()}
        return self.model_copy(update={**tables, "attention": attention})


def fill_dtypes(known: dict[str, MatmulConstants]) -> dict[str, MatmulConstants]:
    """Return constants for every dtype, taken from the nearest known one."""
    filled = dict(known)
    for dtype, nearest in FALLBACK_DTYPES.items():
        source = next((near for near in nearest if near in known), None)
        if dtype not in known and source is not None:
            filled[dtype] = known[source]
    return filled
