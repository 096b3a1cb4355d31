"""Compute: what the GPU itself spends on layers, embedding, head and optimizer step.

`operator_times` prices every operator of every layer kind once; the other axes read their
overlap windows from it. Time lines: one an operator and pass. Memory lines: the activations that
the operators save, by block, for as many micro-batches as the pipeline keeps in flight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from costmodel.base.errors import RecipeError
from costmodel.bill.formula import where
from costmodel.bill.lines import (
    Array,
    Category,
    MemoryLine,
    Phase,
    TimeLine,
    any_nonzero,
    broadcast_sum,
    memory_line,
    time_line,
)
from costmodel.bill.quantity import Quantity, quantity
from costmodel.describe.factors import bits_of
from costmodel.describe.hardware.kernels import FP8_ATTENTION, PEAK_KEY
from costmodel.describe.models.model import LayerKind
from costmodel.describe.precision import Precision, without_weight_gradients
from costmodel.physics.kernels.roofline import attention_time, matmul_time
from costmodel.step.anatomy.adapters import adapter_params, is_frozen, is_quantised, tuned
from costmodel.step.anatomy.operator_parts import PATHS, Operator, OperatorKind, ParamBlock, Part
from costmodel.step.anatomy.operators import (
    embedding_operators,
    head_operators,
    layer_operators,
    prediction_operators,
)
from costmodel.step.anatomy.params import (
    Params,
    embedding_param_blocks,
    head_param_blocks,
    held_params,
    layer_param_blocks,
    mtp_own_param_blocks,
)
from costmodel.step.communication import exposed_sum
from costmodel.step.critical_stage import Step
from costmodel.step.placed_job import Block, OperatorTime, PlacedJob, scaled

ACTIVATION_SOURCE = (
    "Korthikanti et al., arXiv:2205.05198, sec. 4, operator by operator: costmodel/step/anatomy/operators.py"
)


def _memory_kernels(operator: Operator, placed: PlacedJob) -> tuple[Quantity, ...]:
    """Price element-wise kernels by the bytes that they move.

    Norms start as many blocks as the device runs at once (Transformer Engine and flash-attention, ln_api.cpp): what
    does not fit the SMs that are left to them waits for a whole wave more, each as long as all blocks' on their share.
    """
    slower, waves, left = 1.0, 1.0, _unreserved_share(placed)
    if operator.casts:
        slower = _cast_slowdown(placed) * placed.recipe.kernels.cast_slowdown
    if operator.role == "norm" and left < 1.0:
        waves = math.ceil(1.0 / left) * left
    sizes, launches = (
        (operator.forward_bytes, operator.backward_bytes),
        (operator.kernels_forward, operator.kernels_backward),
    )
    scalars = operator.scalar_forward, operator.scalar_backward
    return tuple(
        placed.memory_bound(size, kernels, slower, scalar, waves)
        for size, kernels, scalar in zip(sizes, launches, scalars, strict=True)
    )


def _cast_slowdown(placed: PlacedJob) -> float:
    """Bytes that quantising an element was measured to be worth, over those it reads and writes."""
    precision, kernels = placed.precision, placed.kernels
    if not precision.cast_as_measured:
        return 1.0
    constants = kernels.matmul[precision.matmul_dtype]
    worth = constants.cast_bytes_per_element * kernels.memory.bandwidth_fraction / constants.memory_fraction
    return max(worth / (2.0 + precision.input_bytes), 1.0)


def _unreserved_share(placed: PlacedJob) -> float:
    """Share of the SMs that nothing else holds for good. [-]"""
    reserved: float = placed.recipe.overlap.reserved_sm_share
    return 1.0 - reserved


def _plain_dtype(precision: Precision) -> str:
    """Return what is computed in where nothing is quantised: the job's own fp16 or fp32, else bf16."""
    return precision.matmul_dtype if precision.name in ("fp16", "fp32") else "bf16"


def _attention_kernels(operator: Operator, placed: PlacedJob) -> tuple[Quantity, ...]:
    """Price fused attention, forward and backward."""
    accelerator, shape, recipe = placed.accelerator, operator.attention, placed.recipe
    assert shape is not None
    low = recipe.kernels.fp8_attention and placed.precision.cast_bytes > 0
    dtype = "fp8" if low else PEAK_KEY[_plain_dtype(placed.precision)]
    kernel = FP8_ATTENTION if low else recipe.kernels.attention_kernel
    if kernel not in placed.kernels.attention:
        raise RecipeError(f"fp8_attention: no kernel of 8-bit attention is known on {accelerator.name}")
    windowed = shape.windowed if np.any(shape.windowed) else np.asarray(False)
    factor = placed.factors.of("attention", accelerator.generation)

    def one_pass(backward: bool) -> Quantity:
        # cuDNN's 8-bit backward pass takes a window's keys for those of the whole causal mask: its time grows
        # with the square of the sequence (NVIDIA/cudnn-frontend, results of gpt_oss).
        whole = low and backward
        share = np.where(windowed, 0.5, shape.causal_share) if whole else shape.causal_share
        call = attention_time(
            1.0,
            shape.seq_q,
            shape.seq_k,
            shape.heads,
            kv_heads=shape.kv_heads,
            qk_head_dim=shape.qk_head_dim,
            v_head_dim=shape.v_head_dim,
            causal=True,
            backward=backward,
            constants=placed.kernels.attention[kernel],
            peak_flops_per_s=accelerator.peak_flops_per_s[dtype] * _unreserved_share(placed),
            memory_bandwidth_bytes_per_s=accelerator.memory_bandwidth_bytes_per_s,
            keys_per_query=shape.seq_k * share,
            windowed=windowed if np.any(windowed) and not whole else False,
        )
        return scaled(call.then("kernel_s", "calls * kernel_s", calls=shape.calls), factor)

    return one_pass(backward=False), one_pass(backward=True)


# Shares of the data sheet's bandwidth and matrix peak that chunked kernels reach together, forward and backward. Set by
# timings of fla-org/flash-linear-attention's Triton kernels at heads of 128 or 256: its README's on H100 (retention),
# pytorch/helion #2966 on B200, MoonshotAI/FlashKDA's on H20 and flagos-ai/FlagGems-vllm #21 (delta rules): seven forward
# within 25 %, four backward within 45 %.
_SCAN_SHARES = (0.7, 0.36)
_VECTOR_SHARE = 1.0 / 16.0
"""Vector over matrix peak where the data sheet has no fp32 peak: H100's 67 of 989 TFLOP/s."""


def _scan_kernels(operator: Operator, placed: PlacedJob) -> tuple[Quantity, ...]:
    """Price a recurrence in chunks: what each kernel moves, and what it computes, one after the other."""
    work, accelerator = operator.scan, placed.accelerator
    assert work is not None
    peaks = accelerator.peak_flops_per_s
    peak = peaks[PEAK_KEY[_plain_dtype(placed.precision)]]
    if work.units:
        peak = peaks.get(work.units, peak if work.units == "fp8" else _VECTOR_SHARE * peak)

    def one_pass(moved: str, flops: str, kernels: float, share: float) -> Quantity:
        return quantity(
            f"moved_bytes = {moved}; flops = {flops}; "
            "kernels * fixed_s + (moved_bytes / hbm_bytes_per_s + flops / peak_flops_per_s) / share",
            kernels=kernels,
            fixed_s=placed.kernels.memory.fixed_s,
            hbm_bytes_per_s=accelerator.memory_bandwidth_bytes_per_s,
            peak_flops_per_s=peak * _unreserved_share(placed),
            share=share,
            **work.terms,
        )

    return (
        one_pass(work.forward_bytes, work.forward_flops, work.kernels_forward, _SCAN_SHARES[0]),
        one_pass(work.backward_bytes, work.backward_flops, work.kernels_backward, _SCAN_SHARES[1]),
    )


def _matmul_kernels(operator: Operator, placed: PlacedJob) -> tuple[Quantity, ...]:
    """Price a matrix product and the two of its backward pass."""
    accelerator, precision, recipe = placed.accelerator, placed.precision, placed.recipe
    kernels = placed.kernels
    low = operator.low_precision
    dtype = precision.matmul_dtype if low else _plain_dtype(precision)
    table = kernels.grouped_matmul if operator.kind == "grouped_matmul" else kernels.matmul
    m, n, k, groups = operator.m, operator.n, operator.k, operator.groups
    aligned: Array = np.asarray(True)
    peak: float | Array = accelerator.peak_flops_per_s[PEAK_KEY[dtype]] * _unreserved_share(placed)
    # Batched products over heads whose rows are no multiple of 16 bytes run without tensor cores: inferred from
    # BLOOM's runs with head dimensions of 108 and 150, no kernel was measured.
    if not operator.has_parameters:
        aligned = (n % 8 == 0) & (k % 8 == 0)
        peak = np.where(aligned, peak, min(peak, accelerator.peak_flops_per_s.get("fp32", np.inf)))
    common: dict[str, Any] = {
        # What draws the power that the limit is for are tensor cores.
        "sustained": True if operator.has_parameters else aligned,
        "groups": groups,
        "constants": table[dtype],
        "peak_flops_per_s": peak,
        "memory_bandwidth_bytes_per_s": accelerator.memory_bandwidth_bytes_per_s,
        "input_bytes": precision.input_bytes if low or precision.name == "fp32" else 2.0,
    }

    factor = placed.factors.of(operator.kind, accelerator.generation, bits_of(dtype))

    def product(rows: Array, columns: Array, depth: Array, **more: Any) -> Quantity:
        made = scaled(matmul_time(rows, columns, depth, **{**common, **more}), factor)
        if not low or precision.product_slowdown == 1.0:
            return made
        return made.then(
            "scaled_s", "product_slowdown * scaled_s", product_slowdown=precision.product_slowdown
        )

    forward, backward = product(m, n, k), product(m, k, n)
    if not operator.has_weight:
        return forward, backward
    if not operator.has_parameters:
        return forward, backward, product(k, n, m)
    own = kernels.matmul if low and precision.expert_weight_gradients_apart else table
    fused = recipe.kernels.fused_grad_accumulation
    summed = {"output_bytes": recipe.dtypes.grad_bytes(), "accumulate": True} if fused else {}
    weight = product(k, n, m, constants=own[dtype], **summed)
    slowdown = recipe.kernels.weight_gradient_slowdown
    if low and precision.cast_bytes and slowdown != 1.0:
        # The framework's own kernels in place of the library's.
        weight = weight.then("library_s", "slowdown * library_s", slowdown=slowdown)
    if not fused:
        # The gradient is written in 16 bits, then a kernel of its own reads both and writes the sum.
        weight = weight.then(
            "product_s",
            "product_s + add_fixed_s + add_bytes * m * n * groups / (add_memory_fraction * hbm_bytes_per_s)",
            add_fixed_s=kernels.memory.fixed_s,
            add_bytes=2.0 + 2.0 * recipe.dtypes.grad_bytes(),
            add_memory_fraction=kernels.memory.bandwidth_fraction,
        )
    return forward, backward, weight


_KERNELS: dict[OperatorKind, Callable[[Operator, PlacedJob], tuple[Quantity, ...]]] = {
    "memory": _memory_kernels,
    "attention": _attention_kernels,
    "scan": _scan_kernels,
    "matmul": _matmul_kernels,
    "grouped_matmul": _matmul_kernels,
}
"""What prices the forward, input-gradient and weight-gradient pass of an operator; the last only where there is one."""


def build_blocks(placed: PlacedJob) -> list[Block]:
    """Price the operators of every layer kind, of the embedding, of the head, and before a predicting layer.

    In the order of `StagePlan.blocks`.
    """
    model, given, stages, several = placed.model, placed.given, placed.stages, len(placed.kinds) > 1
    if placed.tuning.lora_rank:
        given = given._replace(precision=without_weight_gradients(placed.precision))
    blocks = []
    for number, kind in enumerate(placed.kinds):
        in_all = model.kind_of_layer.count(number) + model.mtp_layers * (number == model.kind_of_layer[-1])
        blocks.append(
            _block(
                placed,
                layer_operators(given, kind),
                layer_param_blocks(model, kind),
                stages.layers[number],
                float(in_all),
                label=f"{kind.name}." if several else "",
                kind=kind,
            )
        )
    table, tail = embedding_param_blocks(model), head_param_blocks(model)
    heads = 1.0 + model.mtp_layers
    blocks += [
        _block(placed, embedding_operators(given), table, stages.has_embedding, 1.0, role="embedding"),
        _block(placed, head_operators(given), tail, stages.has_head, heads, role="head"),
    ]
    if model.mtp_layers:
        joined, predicting = prediction_operators(given), float(model.mtp_layers)
        own = [replace(one, count=one.count / model.mtp_layers) for one in mtp_own_param_blocks(model)]
        blocks.append(_block(placed, joined, own, stages.mtp, predicting, role="mtp"))
    return blocks


def _block(
    placed: PlacedJob,
    operators: list[Operator],
    blocks: Sequence[ParamBlock],
    held: Array,
    in_all: float,
    *,
    label: str = "",
    role: Literal["layer", "embedding", "head", "mtp"] = "layer",
    kind: LayerKind | None = None,
) -> Block:
    """Price the operators of a block as the job trains them, and count its parameters on a rank."""
    tuning, layout = placed.tuning, placed.layout
    params = held_params(blocks, layout)
    trained, quantised = params, Params(np.asarray(0.0), np.asarray(0.0))
    if not tuning.whole:
        operators = tuned(operators, placed.given if kind is None else placed.given.seen_by(kind), tuning)
        adapters = Params(*adapter_params(operators))
        params = params + adapters
        trained = held_params([one for one in blocks if not is_frozen(tuning, one)], layout) + adapters
        quantised = held_params([one for one in blocks if is_quantised(tuning, one)], layout)
    times = {
        one.name: OperatorTime(one, _KERNELS[one.kind](one, placed), *placed.recomputation.of_operator(one))
        for one in operators
    }
    # Each layer of multi-token prediction runs the head once more.
    passes = np.asarray(held * in_all) if role == "head" else held
    return Block(label, role, times, tuple(blocks), params, trained, quantised, held, passes, in_all, kind)


_SOURCES: dict[str, str] = {
    "matmul": "roofline with tiles and waves, fitted to published matmuls: costmodel/physics/kernels/roofline.py, "
    "the accelerator's kernels block",
    "attention": "FLOP counts of FlashAttention-2, arXiv:2307.08691 sec. 4.1; kernels block of the accelerator",
    "memory": "bytes read and written over achieved HBM bandwidth; costmodel/step/anatomy/operators.py",
    "scan": "bytes and FLOPs of the chunked kernels, at the shares of peak that published timings of such kernels reach",
}


def time_lines(placed: PlacedJob, block: Block, _: Sequence[TimeLine] = ()) -> list[TimeLine]:
    """Return the operators of one block, one line a pass."""
    lines = []
    for name, item in block.by_operator.items():
        operator, kind = item.operator, item.operator.kind
        category: Category = "hbm" if kind == "memory" else "math"
        labels = ("backward_input", "backward_weight") if operator.has_weight else ("backward",)
        passes: list[tuple[str, Quantity, Array]] = [
            ("forward", item.passes[0], operator.forward_bytes),
            *(
                (label, made, operator.backward_bytes)
                for label, made in zip(labels, item.passes[1:], strict=True)
            ),
        ]
        if any_nonzero(item.recompute_share > 0):
            share = item.recompute_share
            again = item.passes[0].then("pass_s", "recompute_share * pass_s", recompute_share=share)
            passes.append(("recompute", again, share * operator.forward_bytes))
        for label, made, size in passes:
            lines.append(
                time_line(
                    f"compute.{block.label}{name}.{label}",
                    axis="compute",
                    category=category,
                    phase=_PHASES[label],
                    cause="attention" if kind == "attention" else "work",
                    made=made,
                    bytes_each=size,
                    source=_SOURCES.get(kind, _SOURCES["matmul"]),
                )
            )
    return lines


_PHASES: dict[str, Phase] = {
    "forward": "forward",
    "recompute": "recompute",
    "backward": "backward",
    "backward_input": "backward",
    "backward_weight": "backward_weight",
}

# What the host issues besides kernels, in launches: a collective (read off launch-bound single-node runs, vTrain,
# where TP of 2 adds less than a launch for each of six), and saving and restoring the random state around a recomputed layer.
_LAUNCHES_PER_COLLECTIVE = 1.0
_LAUNCHES_PER_CHECKPOINT = 20.0

_PAIRED_LAUNCHES = 1.6
"""Launches where the exchange of experts overlaps over those where it does not, outside full graphs: layers are cut into
schedule nodes, weight gradients are calls of their own (Megatron-Core models/common/model_chunk_schedule_plan.py);
Qwen3-30B on H100 takes 16.7 ms a layer with it and 9.4 without. [-]"""


class _Graphed(NamedTuple):
    """What CUDA graphs replay, so that the host does not issue it.

    Parts of a layer, or with `others` all of them and the collectives of all axes but experts'; `exchange`
    that of experts, with all shapes that depend on the routing.
    """

    parts: tuple[Part, ...]
    others: bool
    exchange: bool

    def holds(self, operator: Operator) -> bool:
        """Tell whether an operator is replayed."""
        if operator.part == "experts" or operator.role == "permutation":
            return self.exchange
        return self.others or operator.part in self.parts


_NO_GRAPH = _Graphed((), others=False, exchange=False)
_GRAPHED: dict[str, _Graphed] = {
    "all": _Graphed((), others=True, exchange=True),
    "static": _Graphed((), others=True, exchange=False),
    "attention": _Graphed(("attention", "router"), others=False, exchange=False),
    "router": _Graphed(("router",), others=False, exchange=False),
}


class _Issued(NamedTuple):
    """What the host issues in a pass of a block, and the kernels and collectives among it. [-]"""

    launches: Array
    kernels: Array


def host_lines(placed: PlacedJob, block: Block, made: Sequence[TimeLine]) -> list[TimeLine]:
    """Return what the host costs where it cannot issue kernels as fast as the GPU runs them.

    Each pass over a block takes the longer of GPU time, with a gap before every kernel, and launches x launch
    time; the excess is a line of its own. CUDA graphs take the host out of the way; with blocking launches host
    and GPU take turns. `made` are all other lines of the block.
    """
    host = placed.recipe.host
    sent = [line for line in made if line.axis != "compute"]
    before = [line for line in sent if line.phase == "forward"]
    after = [line for line in sent if line.phase != "forward"]
    issued = _issued(placed, block, forward=True, sent=before)
    back = _issued(placed, block, forward=False, sent=after)
    back_s = block.backward_s + block.recompute_s + exposed_sum(after)
    weights_s = broadcast_sum(
        [
            *(item.backward_weight_s for item in block.by_operator.values()),
            exposed_sum(line for line in sent if line.phase == "backward_weight"),
        ]
    )
    # Of a product's two kernels in the backward pass one is the weight gradient's.
    held = _graphed(placed)
    own = broadcast_sum(
        [
            np.asarray(0.5 * item.operator.kernels_backward)
            for item in block.by_operator.values()
            if len(item.passes) > 2 and not held.holds(item.operator)
        ]
    )
    # Where passes towards inputs and weights run apart, each waits for its own launches; else what the host adds
    # stretches all kernels of the backward pass alike.
    apart = placed.splits_backward
    of_weights = np.asarray(weights_s / np.maximum(back_s, np.finfo(float).tiny))
    taken = where(apart, own, 0.0)
    rest = _Issued(np.maximum(back.launches - taken, 0.0), np.maximum(back.kernels - taken, 0.0))
    passes: list[tuple[Phase, _Issued, ArrayLike, ArrayLike]] = [
        ("forward", issued, block.forward_s + exposed_sum(before), 1.0),
        ("backward", rest, where(apart, back_s - weights_s, back_s), where(apart, 1.0, 1.0 - of_weights)),
    ]
    if any_nonzero(of_weights):
        both = _Issued(where(apart, own, back.launches), where(apart, own, back.kernels))
        share = where(apart, 1.0, of_weights)
        passes.append(("backward_weight", both, where(apart, weights_s, back_s), share))
    return [
        time_line(
            f"compute.{block.label}{block.role}.host.{phase}",
            axis="compute",
            category="overhead",
            phase=phase,
            cause="host",
            formula="share * max(launches * launch_s - hidden * gpu_s, kernels * gap_s)",
            terms={
                "launches": of_pass.launches,
                "kernels": of_pass.kernels,
                "gap_s": host.kernel_gap_s * placed.accelerator.is_gpu,
                "launch_s": placed.launch_s * placed.host_slowdown,
                "gpu_s": gpu_s,
                "hidden": 0.0 if host.launch_blocking else 1.0,
                "share": share,
            },
            source="host-bound blocks: the GPU waits for the kernels that the framework issues",
        )
        for phase, of_pass, gpu_s, share in passes
    ]


def _graphed(placed: PlacedJob) -> _Graphed:
    """Return what the recipe's graphs hold."""
    host = placed.recipe.host
    return _GRAPHED[host.cuda_graph_scope] if host.cuda_graphs else _NO_GRAPH


def _issued(placed: PlacedJob, block: Block, *, forward: bool, sent: Iterable[TimeLine]) -> _Issued:
    """Count what the host issues in the forward pass of a block, or in the rest.

    A graph issues what it holds itself. Where two micro-batches share a pass, it is issued piece by piece.
    """
    held = _graphed(placed)
    issued, checkpoints = np.asarray(0.0), np.asarray(0.0)
    for item in block.by_operator.values():
        operator = item.operator
        if held.holds(operator):
            continue
        again = operator.kernels_forward * item.recompute_share
        issued = issued + (operator.kernels_forward if forward else operator.kernels_backward + again)
        checkpoints = np.maximum(checkpoints, 1.0 * (item.recompute_share > 0))
    for line in sent:
        by_host = not (held.exchange if line.axis == "ep" else held.others)
        issued = issued + _LAUNCHES_PER_COLLECTIVE * by_host * (line.each_s > 0)
    kernels = np.asarray(issued)
    if block.role == "layer" and not forward:
        # Saving and restoring the random state of what is recomputed inside of a graph is part of it.
        issued = issued + _LAUNCHES_PER_CHECKPOINT * checkpoints
    if block.kind is not None and block.kind.is_moe and not held.exchange:
        issued = issued * (1.0 + (_PAIRED_LAUNCHES - 1.0) * placed.pairs_passes)
    return _Issued(np.asarray(issued), kernels)


def memory_lines(step: Step) -> list[MemoryLine]:
    """Return the activation lines, per pipeline stage (last dimension).

    Where layers are recomputed, whole or by operator, each keeps its input, and one at a time is
    whole again. On top comes what one backward pass needs for a moment: the gradients at a layer's
    widest point, or the logits, whichever is more.
    """
    layer_stubs, head_stub = _weight_stubs(step)
    stubs = [
        memory_line(
            f"buffer.weight_gradient_stub.{name}",
            part="buffer",
            axis="compute",
            formula="stub_bytes",
            terms={"stub_bytes": stub},
            source="Transformer Engine get_dummy_wgrad; Megatron-Core tensor_parallel/layers.py",
        )
        for name, stub in (("layers", layer_stubs), ("head", head_stub))
        if any_nonzero(stub)
    ]
    sizes = _pass_sizes(step, head_stub)
    passing = memory_line(
        "activation.backward_pass",
        part="activation",
        lasts="pass",
        axis="compute",
        formula="max(recomputed_bytes + gradient_bytes - head_bytes, 0)",
        terms={
            "recomputed_bytes": sizes.recomputed,
            "gradient_bytes": sizes.gradients,
            "head_bytes": sizes.head,
        },
        source="one layer's recomputed activations and gradients are alive at a time, after the head's",
    )
    saved = [line for block in step.blocks for line in _saved_lines(step.placed, block)]
    return [*saved, *_graph_lines(step), *stubs, passing]


def _saved_lines(placed: PlacedJob, block: Block) -> list[MemoryLine]:
    """Return what the operators of a block save for the backward pass of all micro-batches in flight."""
    head, parts, held, in_flight = block.role == "head", {}, block.held, placed.in_flight
    if head:
        # A rank with the head works on the logits of one micro-batch at a time.
        parts, held, in_flight = {"head": block.saved_bytes}, np.ceil(block.held), np.asarray(1.0)
    elif block.role == "embedding":
        parts = {"embedding": block.saved_bytes}
    else:
        for item in block.by_operator.values():
            name = block.label + PATHS[item.operator.part].split(".", 1)[0]
            parts[name] = np.asarray(parts.get(name, 0.0) + item.kept_bytes)
    if block.role == "layer":
        inputs = 2.0 * placed.shard.tokens_sp * placed.hidden
        parts[f"{block.label}checkpoint"] = placed.recomputation.holds_inputs * inputs
    return [
        memory_line(
            f"activation.{name}",
            part="activation",
            lasts="micro_batch" if head else "in_flight",
            axis="compute",
            formula="blocks * saved_bytes * in_flight",
            terms={"blocks": held, "saved_bytes": saved[..., None], "in_flight": in_flight},
            source=ACTIVATION_SOURCE,
        )
        for name, saved in parts.items()
    ]


def _graph_lines(step: Step) -> list[MemoryLine]:
    """Return what graphs of parts of a layer keep for themselves: where they read their input and its gradient.

    Addresses inside of a graph are fixed, so that each layer and micro-batch in flight has its own. One graph of a
    whole iteration has no such seams: published runs with it fill their memory without.
    """
    placed = step.placed
    held = _graphed(placed)
    if held is _NO_GRAPH or held.exchange or not placed.recipe.memory.cuda_graph_pools:
        return []
    hidden = 2.0 * placed.shard.tokens_sp * placed.hidden
    return [
        memory_line(
            f"buffer.cuda_graphs.{block.label}static",
            part="buffer",
            lasts="in_flight",
            axis="compute",
            formula="2 * blocks * hidden_bytes * in_flight",
            terms={"blocks": block.held, "hidden_bytes": hidden[..., None], "in_flight": placed.in_flight},
            source="NVIDIA/Megatron-LM megatron/core/transformer/cuda_graphs.py: static input of the forward graph, "
            "static gradient of the backward graph, of every layer and micro-batch",
        )
        for block in step.blocks
        if block.role == "layer"
    ]


def _weight_stubs(step: Step) -> tuple[Array, Array]:
    """Bytes of the stubs that autograd gets where gradients are added in place: of the layers, of the head. [B]

    The stub of the logits matrix is made while the logits are alive. The layers' are cached by
    shape (Transformer Engine, module/base.py, get_dummy_wgrad), so one layer's are there for good
    and experts share theirs.
    """
    shapes: dict[str, Array] = {}
    head: Array = np.asarray(0.0)
    for block in step.blocks:
        for name, item in block.by_operator.items():
            op = item.operator
            if not (op.is_product and op.has_weight):
                continue
            size = (block.held > 0) * 2.0 * np.asarray(op.n * op.k)[..., None]
            if block.role == "head":
                head = head + size
            elif op.low_precision:
                shapes[name] = np.maximum(shapes.get(name, np.asarray(0.0)), size)
    on = float(step.placed.recipe.kernels.fused_wgrad)
    return np.asarray(on * sum(shapes.values(), np.asarray(0.0))), np.asarray(on * head)


class _PassSizes(NamedTuple):
    """What one backward pass makes for a moment on each stage (last dimension), and what the head has alive. [B]"""

    recomputed: Array
    gradients: Array
    head: Array


def _pass_sizes(step: Step, head_stub: Array) -> _PassSizes:
    """Return them, beside the stub of the logits matrix."""
    again: Array = np.asarray(0.0)
    working: Array = np.asarray(0.0)
    head_alive: Array = head_stub
    for block in step.blocks:
        saved = block.saved_bytes
        if block.role == "head":
            head_alive = head_alive + np.ceil(block.held) * saved[..., None]
        elif block.role == "layer":
            here = block.held > 0
            again = np.maximum(again, np.maximum(saved - block.kept_bytes, 0.0)[..., None] * here)
            working = np.maximum(working, block.widest_bytes[..., None] * here)
    return _PassSizes(again, working, head_alive)


def unfilled_by_layers(step: Step) -> Array:
    """Bytes that the head has alive beyond what a layer's pass makes, on each stage (last dimension). [B]

    What a layer needs for a moment only adds to the peak beyond these: the logits are gone by then.
    """
    sizes = _pass_sizes(step, _weight_stubs(step)[1])
    return np.asarray(np.maximum(sizes.head - sizes.recomputed - sizes.gradients, 0.0))
