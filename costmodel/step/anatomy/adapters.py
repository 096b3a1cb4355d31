"""What training only a part of a model makes of its operators: no weight gradients, adapters, quantised bases.

References
----------
.. [1] E. Hu et al., "LoRA," arXiv:2106.09685, section 4.1.
.. [2] T. Dettmers et al., "QLoRA," arXiv:2305.14314, section 3, equations 5 and 6.
.. [3] huggingface/peft, src/peft/tuners/lora/layer.py (an adapter each of q, k, v, gate and up); NVIDIA-NeMo/Megatron-Bridge,
   src/megatron/bridge/peft/utils.py, `ParallelLinearAdapter` (one of each fused layer; A beside a row-parallel layer is split).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from costmodel.step.anatomy.operator_parts import (
    BF16,
    Adapter,
    Array,
    Operator,
    Part,
    Scan,
    Shard,
    linear,
    memory_bound,
    saved_input_bytes,
)

if TYPE_CHECKING:
    from costmodel.describe.jobs.tuning import Tuning
    from costmodel.describe.models.model import Model
    from costmodel.describe.precision import Precision
    from costmodel.step.anatomy.operator_parts import ParamBlock

_FREEZES: dict[Part, str] = {
    "attention": "attention",
    "mixer": "mixer",
    "mlp": "mlp",
    "shared": "mlp",
    "router": "router",
    "experts": "experts",
    "embedding": "embedding",
    "head": "head",
    "mtp": "head",
}
"""What of `tuning.PARTS` operators and parameters belong to."""

_IN_16_BITS: tuple[Part, ...] = ("embedding", "head", "mtp", "router")
"""Parts that a quantised base leaves as they are."""


def is_frozen(tuning: Tuning, block: ParamBlock) -> bool:
    """Tell whether parameters have no gradient; norms of layers do as long as anything in them is trained."""
    if block.part == "norm":
        return {"attention", "mlp", "experts"} <= set(tuning.frozen)
    return _FREEZES[block.part] in tuning.frozen


def is_quantised(tuning: Tuning, block: ParamBlock) -> bool:
    """Tell whether parameters lie in the dtype of the base: matrices of frozen layers but the router's."""
    return is_frozen(tuning, block) and block.is_matrix and block.part not in _IN_16_BITS


def tuned(
    operators: Iterable[Operator], model: Model, shard: Shard, tuning: Tuning, precision: Precision
) -> list[Operator]:
    """Return the operators of a block as a job runs them that trains only a part of the model."""
    made: list[Operator] = []
    for operator in operators:
        frozen = _FREEZES[operator.part] in tuning.frozen
        if operator.kind not in ("matmul", "grouped_matmul") or not operator.has_parameters:
            made.append(_without_scatter(operator) if frozen and operator.part == "embedding" else operator)
            continue
        if not frozen:
            made.append(operator)
            continue
        if tuning.computes_in and operator.part not in _IN_16_BITS:
            made.append(_dequantised(operator, tuning.base_bytes))
        made.append(
            operator._replace(has_weight=False, kernels_backward=np.asarray(operator.kernels_backward) / 2.0)
        )
        made += _adapters(operator, model, shard, tuning)
    return _without_inputs(made, precision)


def _without_scatter(lookup: Operator) -> Operator:
    """Return a look-up whose table has no gradient."""
    return lookup._replace(backward_bytes=np.asarray(0.0), kernels_backward=0.0)


def _dequantised(product: Operator, base_bytes: float) -> Operator:
    """Return what makes a quantised weight into 16 bits, again in each pass: reads the one, writes the other.

    Two kernels, as the constants are quantised too (bitsandbytes functional.py, `dequantize_4bit`).
    """
    elements = np.asarray(product.n * product.k * product.groups)
    moved = base_bytes + BF16
    return memory_bound(
        product.part,
        f"{product.leaf}_dequantise",
        product.modules,
        elements,
        moved,
        moved,
        kernels_forward=2.0,
        kernels_backward=2.0,
        adapter=Adapter(product.leaf, "dequantise"),
    )


_LATENT: Mapping[str, tuple[str, ...]] = {
    "q_down": ("q",),
    "q_up": ("q",),
    "kv_down": ("k", "v"),
    "kv_up": ("k", "v"),
}
"""Projections of latent attention, and what they are called for in adapters."""


class _Piece(NamedTuple):
    """A part of a layer's output that has an adapter of its own: its name, and its width on a rank."""

    name: str
    width: Array


def _pieces(product: Operator, model: Model, shard: Shard, targets: tuple[str, ...]) -> list[_Piece]:
    """Return which parts of a layer get adapters."""
    part, leaf, width = product.part, product.leaf, np.asarray(product.n)
    if part == "mixer":
        return [_Piece(leaf, width)] if "mixer" in targets else []
    if part == "experts" and "experts" not in targets:
        return []
    if leaf == "fc1":
        halves = ("gate", "up") if model.gated_mlp else ("up",)
        named = [_Piece(word, width / len(halves)) for word in halves if word in targets]
        return [_Piece("fc1", width)] if "fc1" in targets else named
    if leaf == "fc2":
        return [_Piece("down", width)] if "down" in targets else []
    if part != "attention":
        return []
    if leaf == "out":
        return [_Piece("o", width)] if "o" in targets else []
    if leaf == "qkv" and "qkv" in targets:
        return [_Piece("qkv", width)]
    if leaf == "qkv":
        heads, kv_heads = model.num_heads / shard.tp, np.maximum(model.num_kv_heads / shard.tp, 1.0)
        key, value = kv_heads * float(model.head_dim), kv_heads * float(model.v_head_dim)
        gate = heads * float(model.v_head_dim) if model.attention_gate else 0.0
        sizes = {"q": heads * float(model.head_dim) + gate, "k": key, "v": value}
        # Adapters stand beside the projections that there are.
        sizes = dict(list(sizes.items())[: 1 + model.kv_projections])
        return [_Piece(word, np.asarray(size)) for word, size in sizes.items() if word in targets]
    # Latent attention: queries, and keys with values, each down to a rank and up again.
    return [_Piece(leaf, width)] if {*_LATENT[leaf], "qkv"} & set(targets) else []


def _adapters(product: Operator, model: Model, shard: Shard, tuning: Tuning) -> list[Operator]:
    """Return the adapters beside one frozen layer: down to the rank, up again, scaled and added.

    Beside a row-parallel layer each rank reads its slice of the input, so that the small results are summed;
    beside the others every rank has the whole first matrix.
    """
    if not tuning.lora_rank:
        return []
    rank, row = np.asarray(float(tuning.lora_rank)), product.role == "row"
    grouped = product.kind == "grouped_matmul"
    made: list[Operator] = []
    for piece in _pieces(product, model, shard, tuning.lora_targets):
        rows = shard.tokens_sp if row else product.m
        inner, width = np.asarray(product.k), piece.width
        into = linear(
            product.part,
            f"lora_{piece.name}_a",
            "summed" if row else "expert" if grouped else "replicated",
            product.modules,
            product.m,
            rank,
            inner,
            groups=product.groups,
            low_precision=False,
            saved_bytes=np.asarray(BF16 * product.m * rank * product.groups),
            adapter=Adapter(product.leaf, "into"),
        )
        out = linear(
            product.part,
            f"lora_{piece.name}_b",
            "expert" if grouped else "replicated" if row else "column",
            product.modules,
            rows,
            width,
            rank,
            groups=product.groups,
            low_precision=False,
            adapter=Adapter(product.leaf, "out"),
        )
        # Forward the product is scaled (4 bytes) and added (6); backward its gradient scaled, and that of the input added.
        elements, given = rows * width * product.groups, product.m * inner * product.groups
        added = memory_bound(
            product.part, f"lora_{piece.name}_add", product.modules, np.asarray(elements), 10.0, 4.0
        )
        made += [
            into._replace(kind=product.kind),
            out._replace(kind=product.kind),
            added._replace(
                backward_bytes=np.asarray(4.0 * elements + 6.0 * given),
                kernels_forward=2.0,
                kernels_backward=2.0,
                adapter=Adapter(product.leaf, "add"),
            ),
        ]
        if tuning.magnitudes:
            made += _magnitude(product, piece, rank, np.asarray(elements), tuning)
    return made


# The whole weight with its change, again in every forward pass: both small matrices times an identity, that scaled (4
# bytes), added to the weight (6), and the lengths of its rows (2); a quantised base is made into 16 bits once more.
_LENGTHS = Scan(
    forward_bytes="groups * (inner * width * (14 + dequantised) + 4 * inner ** 2)",
    forward_flops="2 * groups * rank * inner * (inner + width)",
    # Lengths have no gradient (DoRA, section 4.3).
    backward_bytes="0 * groups",
    backward_flops="0 * groups",
    kernels_forward=8.0,
    kernels_backward=0.0,
)


def _magnitude(
    product: Operator, piece: _Piece, rank: Array, elements: Array, tuning: Tuning
) -> list[Operator]:
    """Return what DoRA adds to one adapter: the lengths of the weight's rows, and both results times theirs.

    huggingface/peft src/peft/tuners/lora/dora.py; without dropout, which would multiply by the base once more.
    """
    inner, row = np.asarray(product.k), product.role == "row"
    dequantised = tuning.base_bytes + BF16 if tuning.computes_in else 0.0
    lengths = Operator(
        product.part,
        f"lora_{piece.name}_lengths",
        "scan" if not row else "summed",
        "scan",
        product.modules,
        # Ranks with a slice of the input add up their fp32 squares.
        m=np.asarray(1.0 if row else 0.0),
        n=np.asarray(2.0 * piece.width if row else 0.0),
        kernels_forward=_LENGTHS.kernels_forward,
        kernels_backward=0.0,
        has_weight=False,
        scan=_LENGTHS.of(
            groups=product.groups,
            inner=inner,
            width=piece.width,
            rank=rank,
            dequantised=np.asarray(dequantised),
        ),
        adapter=Adapter(product.leaf, "lengths"),
    )
    # Forward the base's result is scaled (4) and added (6); backward both magnitudes' gradients (8) and a scaled one (4).
    scaled = memory_bound(
        product.part,
        f"lora_{piece.name}_magnitude",
        product.modules,
        elements,
        10.0,
        12.0,
        n=piece.width,
        k=np.asarray(1.0),
        groups=product.groups,
        saved_bytes=2.0 * BF16 * elements,
        kernels_forward=2.0,
        kernels_backward=5.0,
        adapter=Adapter(product.leaf, "magnitude"),
    )
    return [lengths, scaled]


def _without_inputs(operators: list[Operator], precision: Precision) -> list[Operator]:
    """Leave out what is kept only for weight gradients that nobody takes: inputs of layers without an adapter.

    The norm before a part keeps its output for all that read it, the activation for the second layer; adapters
    read it in 16 bits.
    """
    read: dict[tuple[str, str], float] = {}
    held = saved_input_bytes(precision)
    for one in operators:
        reads = one.adapter is None or one.adapter.does == "into"
        if one.kind in ("matmul", "grouped_matmul") and one.has_weight and reads:
            layer = one.leaf if one.adapter is None else one.adapter.of
            of = (one.part, "activation" if layer == "fc2" else "norm")
            read[of] = max(read.get(of, 0.0), held if one.adapter is None else BF16)
    made = []
    for one in operators:
        saved = one.saved_bytes
        if one.leaf == "norm" and one.part in ("attention", "mixer", "mlp"):
            parts: set[str] = {one.part} if one.part != "mlp" else {"mlp", "router", "experts", "shared"}
            wide = max(read.get((part, "norm"), 0.0) for part in parts)
            first = next(other for other in operators if other.part in parts and other.kind == "matmul")
            # What may remain are the copies of an unfused norm.
            saved = np.maximum(saved + (wide - held) * first.m * first.k, 0.0)
        if one.leaf == "activation":
            wide = read.get((one.part, "activation"), 0.0)
            product = next(other for other in operators if (other.part, other.leaf) == (one.part, "fc2"))
            saved = np.maximum(saved + (wide - held) * product.m * product.k * product.groups, 0.0)
        made.append(one._replace(saved_bytes=np.asarray(saved)))
    return made


_LEARNING = ("into", "out", "magnitude")
"""What of an adapter has parameters."""


def adapter_params(operators: Iterable[Operator]) -> tuple[Array, Array]:
    """Parameters of the adapters among the operators of a block, on one rank: beside dense layers, and experts'. [-]"""
    dense: Array = np.asarray(0.0)
    expert: Array = np.asarray(0.0)
    for one in operators:
        if one.adapter is not None and one.adapter.does in _LEARNING:
            size = one.n * one.k * one.groups
            if one.part == "experts":
                expert = expert + size
            else:
                dense = dense + size
    return np.asarray(dense), np.asarray(expert)
