"""Precisions: what the matrix products of the transformer layers compute in."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

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
    cast_as_measured: bool
    """Casts reach what those of the matmul benchmarks reach, otherwise what other kernels reach."""
    scale_kernels: float
    """Kernels a GEMM that bring its block scales into the layout of the matrix units."""
    expert_weight_gradients_apart: bool
    """The weight gradient of each expert is a product of its own, where the other two passes are grouped."""
    norm_casts: bool
    """The norm before a linear layer writes its output already quantised."""


def _plain(name: str, dtype: str, width: float) -> Precision:
    """Return a precision in which nothing is quantised."""
    return Precision(
        name=name,
        matmul_dtype=dtype,
        input_bytes=width,
        cast_bytes=0.0,
        transpose_bytes=0.0,
        cast_as_measured=True,
        scale_kernels=0.0,
        expert_weight_gradients_apart=False,
        norm_casts=False,
    )


def _by_tensor(name: str, *, cast_bytes: float, norm_casts: bool) -> Precision:
    """Return 8 bits with one scale a tensor: cast, and transposed for the other product."""
    return Precision(
        name=name,
        matmul_dtype="fp8",
        input_bytes=1.0,
        cast_bytes=cast_bytes,
        transpose_bytes=2.0,
        cast_as_measured=True,
        scale_kernels=0.0,
        expert_weight_gradients_apart=False,
        norm_casts=norm_casts,
    )


def _by_block(
    name: str, dtype: str, *, input_bytes: float, cast_bytes: float, scale_kernels: float, apart: bool = False
) -> Precision:
    """Return a precision with a scale a block, whose casts make both orientations."""
    return Precision(
        name=name,
        matmul_dtype=dtype,
        input_bytes=input_bytes,
        cast_bytes=cast_bytes,
        transpose_bytes=0.0,
        cast_as_measured=True,
        scale_kernels=scale_kernels,
        expert_weight_gradients_apart=apart,
        norm_casts=False,
    )


PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        _plain("fp32", "tf32", 4.0),
        _plain("fp16", "fp16", 2.0),
        _plain("bf16", "bf16", 2.0),
        # AQT: rows of activations and columns of weights have scales of their own along what is summed, so that each
        # input is quantised once a direction: read for its maxima, read, and written twice. All three products of a
        # layer are in int8 (AI-Hypercomputer/maxtext layers/quantizations.py, fwd, dlhs and drhs of 8 bits).
        _by_block("int8", "int8", input_bytes=1.0, cast_bytes=6.0, scale_kernels=0.0),
        # Read bf16, write fp8 and its transpose.
        _by_tensor("fp8-delayed", cast_bytes=4.0, norm_casts=True),
        # One pass more: the scale is the maximum of this very tensor.
        _by_tensor("fp8-current", cast_bytes=6.0, norm_casts=False),
        # DeepGEMM's gradient of weights "is just looping for every expert" (its issues 104 and 125), as did the kernels
        # before it: eight products a layer in DeepSeek's profile of V3 (profile-data, train.json).
        _by_block("fp8-block", "fp8-block", input_bytes=1.03, cast_bytes=4.06, scale_kernels=0.0, apart=True),
        _by_block("mxfp8", "mxfp8", input_bytes=1.03, cast_bytes=4.06, scale_kernels=2.0),
        # Hadamard transform and stochastic rounding read and write once more.
        _by_block("nvfp4", "nvfp4", input_bytes=0.56, cast_bytes=6.0, scale_kernels=2.0),
        # The same on blocks of 32 with 8-bit scales (OCP MX; Tseng et al., arXiv:2502.20586), at the rates of NVFP4.
        _by_block("mxfp4", "nvfp4", input_bytes=0.53125, cast_bytes=6.0, scale_kernels=2.0),
    )
}


def precision(name: str, *, transposes: bool = True) -> Precision:
    """Return the named precision as the kernels of a device run it.

    Where 8-bit matrix units take either layout, as Blackwell's do, nothing scaled by tensor is
    transposed (Transformer Engine, `is_non_tn_fp8_gemm_supported`).

    Raises
    ------
    RecipeError
        If it does not exist.
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
