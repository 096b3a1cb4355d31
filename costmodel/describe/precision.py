"""Precisions: what the matrix products of the transformer layers compute in, from ``describe/data/precisions.csv``."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from costmodel.base.csv_text import read_records
from costmodel.base.errors import RecipeError, choices_hint


class Precision(BaseModel):
    """What the GEMMs of the transformer layers compute in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    matmul_dtype: str
    """Key of the accelerator's peaks and matmul constants."""
    input_bytes: float
    """Bytes an element of a GEMM input, scales included."""
    cast_bytes: float
    """Bytes of HBM traffic an element for quantising a GEMM input, in both orientations where both are kept."""
    transpose_bytes: float
    """Bytes an element for transposing what was quantised before it was gathered, or by a norm."""
    cast_as_measured: bool = True
    """Casts reach what those of the matmul benchmarks reach, otherwise what other kernels reach."""
    scale_kernels: float
    """Kernels a GEMM that bring its block scales into the layout of the matrix units."""
    expert_weight_gradients_apart: bool
    """The weight gradient of each expert is a product of its own, where the other two passes are grouped."""
    norm_casts: bool
    """The norm before a linear layer writes its output already quantised."""
    product_slowdown: float
    """Time of a product over that of the library's kernel with the same matrix units. [-]"""
    source: str


PRECISIONS: dict[str, Precision] = read_records(Path(__file__).parent / "data" / "precisions.csv", Precision)


def precision(name: str, *, transposes: bool = True) -> Precision:
    """Return the named precision as the kernels of a device run it.

    Where 8-bit matrix units take either layout, as Blackwell's do, nothing scaled by tensor is
    transposed (Transformer Engine, `is_non_tn_fp8_gemm_supported`).
    """
    if name not in PRECISIONS:
        raise RecipeError(f"precision: {name!r} is unknown; {choices_hint(name, PRECISIONS)}")
    found = PRECISIONS[name]
    if transposes:
        return found
    # Without transposes quantising is plain streaming: 6 TB/s on a B200 (blog.fal.ai, chasing 6+ TB/s).
    update: dict[str, float | bool] = {"cast_as_measured": False}
    if found.transpose_bytes:
        update |= {"cast_bytes": found.cast_bytes - 1.0, "transpose_bytes": 0.0}
    return found.model_copy(update=update)


def without_weight_gradients(found: Precision) -> Precision:
    """Return the precision where no product takes a weight gradient: nothing is quantised in a second orientation."""
    if not found.cast_bytes:
        return found
    return found.model_copy(
        update={"cast_bytes": found.cast_bytes - found.input_bytes, "transpose_bytes": 0.0}
    )


def quantised_weight_bytes(found: Precision) -> float:
    """Bytes a weight of its quantised copy, both orientations where the matrix units need them; 0 in bf16."""
    if not found.cast_bytes:
        return 0.0
    return found.input_bytes * (2.0 if found.transpose_bytes else 1.0)
