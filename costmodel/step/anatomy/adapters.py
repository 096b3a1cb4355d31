"""What training only a part of a model makes of its operators: no weight gradients, adapters, quantised bases; what is trained.

References
----------
.. [1] E. Hu et al., "LoRA," arXiv:2106.09685, section 4.1.
.. [2] T. Dettmers et al., "QLoRA," arXiv:2305.14314, section 3, equations 5 and 6.
.. [3] huggingface/peft, src/peft/tuners/lora/layer.py (an adapter each of q, k, v, gate and up); NVIDIA-NeMo/Megatron-Bridge,
   src/megatron/bridge/peft/utils.py, `ParallelLinearAdapter` (one of each fused layer; A beside a row-parallel layer is split).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from costmodel.describe.jobs.job import Job
from costmodel.describe.jobs.tuning import Tuning
from costmodel.describe.models.model import Model, tower_layers
from costmodel.describe.precision import Precision
from costmodel.describe.recipe import Recipe
from costmodel.step.anatomy.mixers.rows import SCANS
from costmodel.step.anatomy.operator_parts import (
    BF16,
    Adapter,
    Array,
    Given,
    Operator,
    ParamBlock,
    Part,
    Traffic,
    elementwise,
    linear,
)
from costmodel.step.anatomy.operators import layer_operators
from costmodel.step.anatomy.params import (
    active_fraction,
    all_blocks,
    model_flops_per_token,
    mtp_param_blocks,
)

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


def tuned(operators: Iterable[Operator], given: Given, tuning: Tuning) -> list[Operator]:
    """Return the operators of a block as a job runs them that trains only a part of the model."""
    made: list[Operator] = []
    for operator in operators:
        frozen = _FREEZES[operator.part] in tuning.frozen
        if frozen and operator.part == "embedding" and not operator.is_product:
            # A look-up whose table has no gradient.
            operator = operator._replace(backward_bytes=np.asarray(0.0), kernels_backward=0.0)
        if not (frozen and operator.is_product and operator.has_parameters):
            made.append(operator)
            continue
        if tuning.computes_in and operator.part not in _IN_16_BITS:
            made.append(_dequantised(operator, tuning.base_bytes))
        made.append(
            operator._replace(has_weight=False, kernels_backward=np.asarray(operator.kernels_backward) / 2.0)
        )
        made += _adapters(operator, given, tuning)
    return _without_inputs(made, given.input_bytes)


def _dequantised(product: Operator, base_bytes: float) -> Operator:
    """Return what makes a quantised weight into 16 bits, again in each pass: reads the one, writes the other.

    Two kernels, as the constants are quantised too (bitsandbytes functional.py, `dequantize_4bit`).
    """
    traffic = Traffic(base_bytes + BF16, base_bytes + BF16, 2, 2)
    return elementwise(
        product.part,
        f"{product.leaf}_dequantise",
        product.n * product.k * product.groups,
        traffic,
        adapter=Adapter(product.leaf, "dequantise"),
    )._replace(modules=product.modules)


_LATENT: Mapping[str, tuple[str, ...]] = {
    "q_down": ("q",),
    "q_up": ("q",),
    "kv_down": ("k", "v"),
    "kv_up": ("k", "v"),
}
"""Projections of latent attention, and what they are called for in adapters."""


def _pieces(product: Operator, given: Given, targets: tuple[str, ...]) -> dict[str, Array]:
    """Return the width on a rank of each part of a layer's output that has an adapter of its own. [-]"""
    model, part, leaf, width = given.model, product.part, product.leaf, product.n
    if part == "mixer":
        return {leaf: width} if "mixer" in targets else {}
    if part == "experts" and "experts" not in targets:
        return {}
    if leaf in ("fc1", "qkv") and leaf in targets:
        return {leaf: width}
    if leaf == "fc1":
        halves = ("gate", "up") if model.gated_mlp else ("up",)
        return {word: np.asarray(width / len(halves)) for word in halves if word in targets}
    if leaf in ("fc2", "out"):
        word = {"fc2": "down", "out": "o"}[leaf]
        return {word: width} if word in targets else {}
    if part != "attention":
        return {}
    if leaf == "qkv":
        gate = given.heads * float(model.v_head_dim) if model.attention_gate else 0.0
        queries = given.heads * float(model.head_dim) + gate
        sizes = (queries, given.kv_heads * float(model.head_dim), given.kv_heads * float(model.v_head_dim))
        # Adapters stand beside the projections that there are.
        there = zip("qkv"[: 1 + model.kv_projections], sizes, strict=False)
        return {word: np.asarray(size) for word, size in there if word in targets}
    # Latent attention: queries, and keys with values, each down to a rank and up again.
    return {leaf: width} if {*_LATENT[leaf], "qkv"} & set(targets) else {}


def _adapters(product: Operator, given: Given, tuning: Tuning) -> list[Operator]:
    """Return the adapters beside one frozen layer: down to the rank, up again, scaled and added.

    Beside a row-parallel layer each rank reads its slice of the input, so that the small results are summed;
    beside the others every rank has the whole first matrix.
    """
    if not tuning.lora_rank:
        return []
    part, rank, inner, row = product.part, float(tuning.lora_rank), product.k, product.role == "row"
    grouped = product.kind == "grouped_matmul"
    rows = given.shard.tokens_sp if row else product.m
    made: list[Operator] = []
    for name, width in _pieces(product, given, tuning.lora_targets).items():
        into = linear(
            part,
            f"lora_{name}_a",
            "summed" if row else "expert" if grouped else "replicated",
            product.m,
            rank,
            inner,
            kept=BF16,
            groups=product.groups,
            low_precision=False,
            adapter=Adapter(product.leaf, "into"),
        )
        out = linear(
            part,
            f"lora_{name}_b",
            "expert" if grouped else "replicated" if row else "column",
            rows,
            width,
            rank,
            groups=product.groups,
            low_precision=False,
            adapter=Adapter(product.leaf, "out"),
        )
        # Forward the product is scaled (4 bytes) and added (6); backward its gradient scaled, and that of the input added.
        elements, entering = rows * width * product.groups, product.m * inner * product.groups
        added = elementwise(
            part,
            f"lora_{name}_add",
            elements,
            Traffic(10, 4, 2, 2),
            adapter=Adapter(product.leaf, "add"),
        )
        made += [
            into._replace(kind=product.kind),
            out._replace(kind=product.kind),
            added._replace(backward_bytes=np.asarray(added.backward_bytes + 6.0 * entering)),
        ]
        if tuning.magnitudes:
            made += _magnitude(product, name, width, elements, tuning)
    return [one._replace(modules=product.modules) for one in made]


def _magnitude(product: Operator, name: str, width: Array, elements: Array, tuning: Tuning) -> list[Operator]:
    """Return what DoRA adds to one adapter: the lengths of the weight's rows, and both results times theirs.

    huggingface/peft src/peft/tuners/lora/dora.py; without dropout, which would multiply by the base once more.
    """
    row = product.role == "row"
    work = SCANS["dora-lengths"].of(
        groups=product.groups,
        inner=product.k,
        width=width,
        rank=float(tuning.lora_rank),
        dequantised=tuning.base_bytes + BF16 if tuning.computes_in else 0.0,
    )
    lengths = Operator(
        product.part,
        f"lora_{name}_lengths",
        "summed" if row else "scan",
        "scan",
        product.modules,
        # Ranks with a slice of the input add up their fp32 squares.
        m=np.asarray(1.0 if row else 0.0),
        n=np.asarray(2.0 * width if row else 0.0),
        kernels_forward=work.kernels_forward,
        kernels_backward=0.0,
        has_weight=False,
        scan=work,
        adapter=Adapter(product.leaf, "lengths"),
    )
    # Forward the base's result is scaled (4) and added (6); backward both magnitudes' gradients (8) and a scaled one (4).
    scaled = elementwise(
        product.part,
        f"lora_{name}_magnitude",
        elements,
        Traffic(10, 12, 2, 5),
        2.0 * BF16 * elements,
        n=width,
        k=np.asarray(1.0),
        groups=product.groups,
        adapter=Adapter(product.leaf, "magnitude"),
    )
    return [lengths, scaled]


def _without_inputs(operators: list[Operator], input_bytes: float) -> list[Operator]:
    """Leave out what is kept only for weight gradients that nobody takes: inputs of layers without an adapter.

    The norm before a part keeps its output for all that read it, the activation for the second layer, `input_bytes` bytes
    an element; adapters read it in 16 bits.
    """
    read: dict[tuple[str, str], float] = {}
    for one in operators:
        reads = one.adapter is None or one.adapter.does == "into"
        if one.is_product and one.has_weight and reads:
            layer = one.leaf if one.adapter is None else one.adapter.of
            of = (one.part, "activation" if layer == "fc2" else "norm")
            read[of] = max(read.get(of, 0.0), input_bytes if one.adapter is None else BF16)
    made = []
    for one in operators:
        saved = one.saved_bytes
        if one.leaf == "norm" and one.part in ("attention", "mixer", "mlp"):
            parts: set[str] = {one.part} if one.part != "mlp" else {"mlp", "router", "experts", "shared"}
            wide = max(read.get((part, "norm"), 0.0) for part in parts)
            first = next(other for other in operators if other.part in parts and other.kind == "matmul")
            # What may remain are the copies of an unfused norm.
            saved = np.maximum(saved + (wide - input_bytes) * first.m * first.k, 0.0)
        if one.leaf == "activation":
            wide = read.get((one.part, "activation"), 0.0)
            product = next(other for other in operators if (other.part, other.leaf) == (one.part, "fc2"))
            saved = np.maximum(saved + (wide - input_bytes) * product.m * product.k * product.groups, 0.0)
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


def num_trained_params(model: Model, tuning: Tuning, recipe: Recipe, precision: Precision) -> float:
    """Return the parameters that have gradients, adapters among them, multi-token prediction left out. [-]"""
    trained = sum(block.count for block in all_blocks(model) if not is_frozen(tuning, block))
    return trained + sum(_all_adapters(model, tuning, recipe, precision))


def job_flops_per_token(job: Job, *, causal: bool = False) -> Array:
    """Return the model FLOPs that a job trains a token with, frozen weights counted four times. [FLOP]

    Its packing says how far attention reaches, its tuning what is trained; see `model_flops_per_token`.
    """
    model, tuning = job.model, job.tuning
    whole = np.asarray(model_flops_per_token(model, job.span, causal) + _tower_flops(job))
    if tuning.whole:
        return whole
    # No weight gradient of frozen matrices, two FLOPs each; adapters are matrices of their own.
    frozen = sum(
        block.count * active_fraction(model, block)
        for block in (*all_blocks(model), *mtp_param_blocks(model))
        if block.is_matrix and is_frozen(tuning, block)
    )
    if model.tied_embeddings and "head" in tuning.frozen:
        frozen += float(model.vocab_size) * model.hidden_size
    dense, expert = _all_adapters(model, tuning, job.recipe, job.precision)
    adapters = dense + expert * model.top_k / max(model.num_experts, 1)
    return np.asarray(whole + 6.0 * adapters - 2.0 * frozen)


def _tower_flops(job: Job) -> Array:
    """Return the model FLOPs of the tower for each token of the language model. [FLOP]"""
    tower, images = job.model.tower, job.images
    if tower is None or not images.per_sample:
        return np.asarray(0.0)
    span = images.tokens * tower.merge * (1.0 + images.spread**2)
    # Without the one row of its table.
    layers = model_flops_per_token(tower_layers(tower), span) - 6.0 * tower.hidden_size
    each = tower.merge * (layers + 6.0 * tower.patch_params) + 6.0 * tower.projector_params
    # A frozen tower has no backward pass.
    passes = 1.0 / 3.0 if "tower" in job.tuning.frozen else 1.0
    return np.asarray(passes * images.per_sample * images.tokens * each / job.seq_len)


def _all_adapters(model: Model, tuning: Tuning, recipe: Recipe, precision: Precision) -> tuple[float, float]:
    """Return the parameters of all adapters: beside dense layers, and experts'. [-]"""
    if not tuning.lora_rank:
        return 0.0, 0.0
    whole = Given.whole(model, recipe, precision)
    dense = expert = 0.0
    for number, kind in enumerate(model.layer_kinds()):
        made = tuned(layer_operators(whole, kind), whole.seen_by(kind), tuning)
        beside, inside = adapter_params(made)
        layers = model.kind_of_layer.count(number)
        dense, expert = dense + layers * float(beside), expert + layers * float(inside)
    return dense, expert
