"""Data parallelism: every replica computes its share of the batch; gradients are summed.

Sends: an all-reduce of gradients (DDP), or reduce-scatter and all-gather (ZeRO-1/2), once a step;
or, with parameters sharded too (ZeRO-3, FSDP), a gather of every layer in each pass of each
micro-batch and a reduce-scatter of its gradient. Dense parameters reduce over dp x cp, experts
over their own group. Hides: behind the last micro-batch (Megatron) or behind every layer (FSDP).
Stores: parameters, gradients and optimizer states, each at its own dtype and sharding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.axes.pipeline import StageTimes
from costmodel.axes.situation import Block, Situation, communication_line, exposed_sum
from costmodel.bill import LazyTerms, MemoryLine, TimeLine, broadcast_sum, memory_line, time_line
from costmodel.describe.recipe import DTYPE_BYTES
from costmodel.physics import schedules
from costmodel.physics.kernel_formulas import memory_formula
from costmodel.physics.mesh import Group, split_group
from costmodel.physics.params import (
    ParamBlock,
    embedding_param_blocks,
    head_param_blocks,
    layer_param_blocks,
    mtp_param_blocks,
)
from costmodel.physics.roofline import memory_time_s

Array = NDArray[np.float64]

# Megatron-Core's default bucket: max(40 million, 1 million x dp) gradients; the last one is exposed.
_BUCKET_ELEMENTS = 40e6
# Parameters that the vectorised Adam of a two-socket host steps: 10 billion in 2.57 s
# (Ren et al., "ZeRO-Offload," arXiv:2101.06840, table 4). The GPUs of the host share it.
_HOST_ADAM_PARAMS_PER_S = 10e9 / 2.57


class Params(NamedTuple):
    """Parameters that one rank holds before data parallelism shards them: dense and expert. [-]"""

    dense: Array
    expert: Array

    def __add__(self, other: object) -> Params:
        """Add two sets block by block."""
        assert isinstance(other, Params)
        return Params(np.asarray(self.dense + other.dense), np.asarray(self.expert + other.expert))

    def scaled(self, factor: Array) -> Params:
        """Return `factor` such sets."""
        return Params(np.asarray(self.dense * factor), np.asarray(self.expert * factor))

    def for_stages(self) -> Params:
        """Return the same with a trailing dimension for pipeline stages."""
        return Params(self.dense[..., None], self.expert[..., None])


def _held(blocks: tuple[ParamBlock, ...], situation: Situation) -> Params:
    """Divide parameter blocks by the axes that split them."""
    layout = situation.layout
    dense: Array = np.zeros_like(layout.tp)
    expert: Array = np.zeros_like(layout.ep * layout.etp)
    for block in blocks:
        if block.sharding == "expert":
            expert = expert + block.count / (layout.ep * layout.etp)
        else:
            dense = dense + block.count / (layout.tp if block.sharding == "tp" else 1.0)
    return Params(np.asarray(dense), np.asarray(expert))


def block_params(situation: Situation, block: Block) -> Params:
    """Return what one rank holds of a layer, the embedding or the head."""
    model = situation.model
    if block.role == "embedding":
        return _held(tuple(embedding_param_blocks(model)), situation)
    if block.role == "head":
        return _held(tuple(head_param_blocks(model)), situation)
    assert block.kind is not None
    return _held(tuple(layer_param_blocks(model, block.kind)), situation)


def stage_params(situation: Situation, blocks: list[Block]) -> Params:
    """Return the parameters on each looked-at stage (last dimension)."""
    stages, model = situation.stages, situation.model
    zero = np.zeros_like(stages.has_head)
    total = Params(zero, zero)
    layer_index = 0
    for block in blocks:
        if block.role == "layer":
            where = stages.layers[layer_index]
            layer_index += 1
        else:
            where = stages.has_head if block.role == "head" else stages.has_embedding
        total = total + block_params(situation, block).for_stages().scaled(where)
    if model.tied_embeddings:
        # With several stages the last one needs its own copy of the table for the logits.
        table = np.asarray(float(model.vocab_size * model.hidden_size) / situation.layout.tp)[..., None]
        copies = stages.has_head * (1.0 - stages.has_embedding)
        total = total + Params(table * copies, np.zeros_like(copies))
    if model.mtp_layers:
        # The planner already counts the layers; what is left are their projection and norms.
        extra = _held(tuple(b for b in mtp_param_blocks(model) if b.name in ("mtp.projection", "mtp.norm")), situation)
        total = total + extra.for_stages().scaled(stages.has_head)
    return total


def _shard_ranks(situation: Situation) -> tuple[Array, Array]:
    """Ranks that shard dense and expert states between them. [-]"""
    group = situation.layout.shard_group
    dense, expert = situation.mesh.grad.ranks, situation.mesh.edp.ranks
    whole = group == 0
    return (
        np.asarray(np.where(whole, dense, np.minimum(np.where(whole, 1.0, group), dense))),
        np.asarray(np.where(whole, expert, np.minimum(np.where(whole, 1.0, group), expert))),
    )


def time_lines(
    situation: Situation, blocks: list[Block], block_counts: list[Array], block_lines: list[list[TimeLine]],
    stage: StageTimes,
) -> list[TimeLine]:  # fmt: skip
    """Return gradient reduction, parameter gathers and the optimizer step.

    `block_counts` are the blocks that the critical stage runs in a step, `block_lines` the lines
    of the other axes for one block: their exposed time is the window that FSDP hides in.

    References
    ----------
    .. [1] S. Rajbhandari et al., "ZeRO," arXiv:1910.02054, sections 5 and 7.
    .. [2] Y. Zhao et al., "PyTorch FSDP," arXiv:2304.11277, section 3.3 (prefetch, resharding).
    """
    lines: list[TimeLine] = []
    params = stage_params(situation, blocks)
    zero = situation.layout.zero_stage
    if np.any(zero < 3):
        lines += _replicated_lines(situation, params, stage)
    if np.any(zero == 3):
        for block, count, others in zip(blocks, block_counts, block_lines, strict=True):
            lines += _sharded_lines(situation, block, count, others)
    lines += _optimizer_lines(situation, params)
    return lines


def _groups(situation: Situation, expert: bool) -> tuple[Group, Group]:
    """Shard group and replica group of dense or expert parameters."""
    whole = situation.mesh.edp if expert else situation.mesh.grad
    ranks = _shard_ranks(situation)[1 if expert else 0]
    return split_group(whole, ranks)


def _replicated_lines(situation: Situation, params: Params, stage: StageTimes) -> list[TimeLine]:
    """DDP and ZeRO-1/2: one reduction and, where the optimizer is sharded, one gather a step.

    Under ZeRO-2 a framework that keeps no full gradient at all reduces after every micro-batch.
    """
    recipe, layout = situation.recipe, situation.layout
    sharded = np.asarray((layout.zero_stage >= 1) & (layout.zero_stage < 3), dtype=np.float64)
    plain = np.asarray(layout.zero_stage == 0, dtype=np.float64)
    every = (layout.zero_stage == 2) & recipe.reduce_each_micro_batch
    repeats = np.where(every, situation.micro_batches, 1.0)
    whole_sum = plain + sharded * recipe.zero_all_reduce
    scattered = sharded * (not recipe.zero_all_reduce)
    overlaps = recipe.dp_overlap != "none"
    grad_window = stage.backward_s if overlaps else np.asarray(0.0)
    param_window = stage.forward_s if overlaps else np.asarray(0.0)
    lines = []
    for part, expert in (("dense", False), ("expert", True)):
        held = (params.expert if expert else params.dense).max(axis=-1)
        if not np.any(held):
            continue
        shard, replica = _groups(situation, expert)
        whole = situation.mesh.edp if expert else situation.mesh.grad
        grad = held * DTYPE_BYTES[recipe.grad_reduce_dtype]
        bucket = _BUCKET_ELEMENTS / np.maximum(held, _BUCKET_ELEMENTS)
        least = np.asarray(bucket if overlaps else 0.0)
        several = np.asarray(replica.ranks > 1, dtype=np.float64)
        one = np.asarray(1.0)
        owners, reduce, gather = one, "reduce_scatter", "all_gather"
        if recipe.zero_by_tensor:
            # Owners hand out their parameters after the step, not behind the next forward pass.
            param_window = np.asarray(0.0)
            owners, reduce, gather = np.minimum(shard.ranks, _tensors(situation)), "reduce", "broadcast"
        made: list[TimeLine] = []

        def add(
            label: str, phase: str, primitive: str, group: Group, size: Array, window: Array, share: Array, count: Array,
            part: str = part, least: Array = least, made: list[TimeLine] = made,
        ) -> None:  # fmt: skip
            if np.any(share):
                made.append(
                    communication_line(situation, f"dp.{part}.{label}", axis="dp", phase=phase, primitive=primitive,
                                       size_bytes=size / count, group=group, window_s=window / count,
                                       least_share=least, share=share, count=count)
                )  # fmt: skip

        add("grad_all_reduce", "grad_sync", "all_reduce", whole, grad, grad_window, whole_sum, one)
        add(f"grad_{reduce}", "grad_sync", reduce, shard, grad * repeats, grad_window * repeats, scattered,
            repeats * owners)  # fmt: skip
        # Replicas, and then experts, use the same links behind the same pass: they have what is left of it.
        grad_window = np.maximum(grad_window - _busy(made, "grad_sync") / repeats, 0.0)
        add("grad_replica_all_reduce", "grad_sync", "all_reduce", replica, grad / shard.ranks, grad_window,
            scattered * several, one)  # fmt: skip
        replicas = [line for line in made if line.name.endswith("grad_replica_all_reduce")]
        grad_window = np.maximum(grad_window - _busy(replicas, "grad_sync"), 0.0)
        add(f"param_{gather}", "param_sync", gather, shard, held * DTYPE_BYTES[recipe.gather_dtype], param_window,
            sharded, owners)  # fmt: skip
        param_window = np.maximum(param_window - _busy(made, "param_sync"), 0.0)
        lines += made
    return lines


def _busy(lines: list[TimeLine], phase: str) -> Array:
    """Add up the time that the lines of a phase keep the links busy. [s]"""
    return np.asarray(sum((line.seconds for line in lines if line.phase == phase), start=np.asarray(0.0)))


def _tensors(situation: Situation) -> Array:
    """Weights of the layers that a stage holds, counted as tensors. [-]"""
    model = situation.model
    kinds = situation.kinds
    held = [len(layer_param_blocks(model, kinds[kind])) for kind in model.kind_of_layer]
    return np.asarray(float(sum(held)) / situation.layout.pp)


def _sharded_lines(situation: Situation, block: Block, count: Array, others: list[TimeLine]) -> list[TimeLine]:
    """ZeRO-3 / FSDP: gather the block before each pass, reduce-scatter its gradient after the last."""
    recipe, layout = situation.recipe, situation.layout
    on = np.asarray(layout.zero_stage == 3, dtype=np.float64)
    overlaps = recipe.dp_overlap == "every-layer"
    zero = np.asarray(0.0)
    forward_s = exposed_sum(line for line in others if line.phase == "forward") if overlaps else zero
    backward_s = exposed_sum(line for line in others if line.phase != "forward") if overlaps else zero
    held = block_params(situation, block)
    stays = _stays_gathered(situation)
    steps = np.where(stays, 1.0, np.maximum(situation.micro_batches, 1.0))
    count = np.asarray(count * steps / np.maximum(situation.micro_batches, 1.0))
    regather = np.where(stays, 0.0, on) if recipe.fsdp_reshard_after_forward else zero
    lines: list[TimeLine] = []
    for part, expert in (("dense", False), ("expert", True)):
        size = held.expert if expert else held.dense
        if not np.any(size):
            continue
        shard, replica = _groups(situation, expert)
        gathered, reduced = size * DTYPE_BYTES[recipe.gather_dtype], size * DTYPE_BYTES[recipe.grad_reduce_dtype]
        name = f"dp.{block.label}{block.role}.{part}"

        def line(
            label: str, phase: str, primitive: str, group: Group, size: Array, window: Array, share: Array,
            times: Array, name: str = name,
        ) -> TimeLine:  # fmt: skip
            return communication_line(situation, f"{name}.{label}", axis="dp", phase=phase, primitive=primitive,
                                      size_bytes=size, group=group, window_s=window, share=share,
                                      count=times)  # fmt: skip

        # All collectives of a pass share the links, so each hides in what those before it leave.
        ahead = line("param_all_gather.forward", "param_sync", "all_gather", shard, gathered, forward_s, on, count)
        behind = backward_s if recipe.fsdp_backward_prefetch else zero
        again = line("param_all_gather.backward", "param_sync", "all_gather", shard, gathered, behind, regather, count)
        if recipe.fsdp_backward_prefetch:
            backward_s = np.maximum(backward_s - again.each_s, 0.0)
        back = line("grad_reduce_scatter", "grad_sync", "reduce_scatter", shard, reduced, backward_s, on, count)
        forward_s, backward_s = np.maximum(forward_s - ahead.each_s, 0.0), np.maximum(backward_s - back.each_s, 0.0)
        several = shard.ranks > 1
        lines += [ahead, again, back]
        lines += _buffer_lines(situation, name, size, on * several, regather * several, count)
        if np.any(replica.ranks > 1):
            once = np.asarray(count / steps)
            lines.append(line("grad_replica_all_reduce", "grad_sync", "all_reduce", replica,
                              np.asarray(reduced / shard.ranks), zero, on * (replica.ranks > 1), once))  # fmt: skip
        if overlaps and block.role == "layer":
            # Nothing runs yet before the first gather, and nothing is left after the last reduction.
            hidden = ahead.each_s - ahead.exposed_each_s + back.each_s - back.exposed_each_s
            present = np.asarray(np.minimum(count, steps))
            lines.append(
                time_line(f"{name}.first_and_last", axis="dp", toll="communication", phase="param_sync", count=present,
                          each_s=hidden, formula="gather_s - gather_exposed_s + reduce_s - reduce_exposed_s",
                          terms={"gather_s": ahead.each_s, "gather_exposed_s": ahead.exposed_each_s,
                                 "reduce_s": back.each_s, "reduce_exposed_s": back.exposed_each_s},
                          source="FSDP has no compute to hide the first gather and the last reduction behind")
            )  # fmt: skip
    return lines


def _buffer_lines(
    situation: Situation, name: str, params: Array, on: Array, regather: Array, count: Array
) -> list[TimeLine]:
    """Return the copies that a framework makes around the collectives of sharded parameters.

    Both run on the stream of the layers. FSDP2 copies the gathered buffer into every parameter,
    and every gradient into the buffer to be reduced. FSDP1 gathers into one flat parameter, but
    concatenates the gradients of its pieces, casts them and scales them before the reduction.

    References
    ----------
    .. [1] pytorch/pytorch, torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py
       (foreach_all_gather_copy_out, foreach_reduce).
    .. [2] pytorch/pytorch, torch/distributed/fsdp/_runtime_utils.py (_post_backward_hook).
    """
    recipe, accelerator = situation.recipe, situation.accelerator
    kind = recipe.fsdp_buffers
    if kind == "none":
        return []
    gathered, reduced = DTYPE_BYTES[recipe.gather_dtype], DTYPE_BYTES[recipe.grad_reduce_dtype]
    cast = 0.0 if reduced == gathered else gathered + reduced
    copied = {"flat": (0.0, 2.0 * gathered + cast + 2.0 * reduced), "per-parameter": (2.0 * gathered, gathered + reduced)}
    after_gather, before_reduce = copied[kind]
    lines = []
    for label, phase, width, times in (
        ("gather_copy", "param_sync", after_gather, on + regather),
        ("reduce_copy", "grad_sync", before_reduce, on),
    ):
        if not width:
            continue
        moved = times * width * params
        about: dict[str, Any] = {
            "constants": accelerator.kernels.memory, "kernels": times,
            "memory_bandwidth_bytes_per_s": accelerator.memory_bandwidth_bytes_per_s,
        }  # fmt: skip
        formula = memory_formula(moved, **about)
        lines.append(
            time_line(f"{name}.{label}", axis="dp", toll="hbm", phase=phase, count=count,
                      each_s=memory_time_s(moved, **about), bytes_each=moved, formula=formula.text,
                      terms=LazyTerms(formula.terms),
                      source="PyTorch FSDP: copies between parameters and communication buffers")
        )  # fmt: skip
    return lines


def _stays_gathered(situation: Situation) -> NDArray[np.bool_]:
    """Whether ZeRO-3 gathers parameters once a step and keeps them for all micro-batches."""
    return np.asarray(situation.recipe.fsdp_pp_keeps_gathered & (situation.layout.pp > 1))


def _local_params(situation: Situation, params: Params) -> Array:
    """Parameters that a rank's optimizer steps, worst stage. [-]"""
    dense_ranks, expert_ranks = _shard_ranks(situation)
    sharded = situation.layout.zero_stage >= 1
    dense = params.dense.max(axis=-1) / np.where(sharded, dense_ranks, 1.0)
    expert = params.expert.max(axis=-1) / np.where(sharded, expert_ranks, 1.0)
    return np.asarray(dense + expert)


def _optimizer_lines(situation: Situation, params: Params) -> list[TimeLine]:
    """Return Adam, priced by the bytes it reads and writes, and the gradient norm before it."""
    recipe, accelerator = situation.recipe, situation.accelerator
    local = _local_params(situation, params)
    states = recipe.master_weights_bytes + recipe.moments_bytes
    # Read gradient and states, write states and the parameter.
    moved = recipe.grad_bytes() + 2.0 * states + recipe.param_bytes()
    bandwidth = accelerator.memory_bandwidth_bytes_per_s
    constants = accelerator.kernels.memory
    if recipe.offload_optimizer:
        # Gradients travel behind the backward pass; the new parameters come back after the step.
        link = accelerator.host_link_bytes_per_s
        sharing = np.minimum(situation.layout.gpus, float(situation.cluster.gpus_per_node))
        seconds = local * (sharing / _HOST_ADAM_PARAMS_PER_S + recipe.param_bytes() / link)
        formula = "params * (gpus_per_host / host_params_per_s + link_bytes_per_param / link_bytes_per_s)"
        terms = {"params": local, "gpus_per_host": sharing,
                 "host_params_per_s": np.asarray(_HOST_ADAM_PARAMS_PER_S), "link_bytes_per_s": np.asarray(link),
                 "link_bytes_per_param": np.asarray(recipe.param_bytes())}  # fmt: skip
    else:
        seconds = memory_time_s(local * moved, constants=constants, memory_bandwidth_bytes_per_s=bandwidth)
        formula = "fixed_s + params * bytes_per_param / bytes_per_s"
        terms = {"params": local, "bytes_per_param": np.asarray(moved), "fixed_s": np.asarray(constants.fixed_s),
                 "bytes_per_s": np.asarray(constants.bandwidth_fraction * bandwidth)}  # fmt: skip
    # The norm reads every gradient once; clipping and zeroing write it.
    full = np.where(situation.layout.zero_stage >= 1, local, (params.dense + params.expert).max(axis=-1))
    norm = memory_time_s(3.0 * recipe.grad_bytes() * full, constants=constants, memory_bandwidth_bytes_per_s=bandwidth)
    return [
        time_line("optimizer.adam", axis="optimizer", toll="state", phase="optimizer", count=1.0, each_s=seconds,
                  bytes_each=local * moved, formula=formula, terms=terms,
                  source="Adam: reads gradient, main weight and two moments, writes the latter three and the weight"),
        time_line("optimizer.grad_norm", axis="optimizer", toll="state", phase="optimizer", count=1.0, each_s=norm,
                  bytes_each=3.0 * recipe.grad_bytes() * full,
                  formula="fixed_s + 3 * grad_bytes * params / bytes_per_s",
                  terms={"params": full, "grad_bytes": np.asarray(recipe.grad_bytes()),
                         "fixed_s": np.asarray(constants.fixed_s),
                         "bytes_per_s": np.asarray(constants.bandwidth_fraction * bandwidth)},
                  source="gradient norm, clipping and zeroing"),
    ]  # fmt: skip


def memory_lines(situation: Situation, blocks: list[Block]) -> list[MemoryLine]:
    """Return parameters, gradients, optimizer states and gathered layers per stage (last dimension).

    References
    ----------
    .. [1] S. Rajbhandari et al., "ZeRO," arXiv:1910.02054, section 3.1 and figure 1.
    """
    recipe = situation.recipe
    params = stage_params(situation, blocks)
    zero = situation.layout.zero_stage[..., None]
    copies = schedules.weight_copies(situation.layout.schedule)[..., None]
    dense_ranks, expert_ranks = (ranks[..., None] for ranks in _shard_ranks(situation))
    lines = []
    # What autograd keeps in the resident gradient is sharded from ZeRO-2 on, the weights from ZeRO-3 on.
    states = (
        ("parameters", recipe.param_bytes(), zero >= 3, copies),
        ("gradients", recipe.grad_bytes(), zero >= 2, copies),
        ("gradients.autograd", recipe.autograd_grad_bytes, np.asarray(False), copies),
        ("optimizer.main_weights", recipe.master_weights_bytes, zero >= 1, np.asarray(1.0)),
        ("optimizer.moments", recipe.moments_bytes, zero >= 1, np.asarray(1.0)),
    )
    for part, held, ranks in (("dense", params.dense, dense_ranks), ("expert", params.expert, expert_ranks)):
        if not np.any(held):
            continue
        for name, width, is_sharded, factor in states:
            if not width:
                continue
            on_gpu = 0.0 if recipe.offload_optimizer and name.startswith("optimizer") else 1.0
            shards = np.where(is_sharded, ranks, 1.0)
            lines.append(
                memory_line(f"state.{part}.{name}", axis="dp", toll="state",
                            size_bytes=on_gpu * factor * width * held / shards,
                            formula="on_gpu * copies * bytes_per_param * params / shards",
                            terms={"on_gpu": np.asarray(on_gpu), "copies": factor, "bytes_per_param": np.asarray(width),
                                   "params": held, "shards": shards},
                            source="ZeRO, arXiv:1910.02054, section 3.1, at the recipe's dtypes")
            )  # fmt: skip
    if np.any(zero >= 3):
        lines.append(_gathered_line(situation, blocks, params, np.asarray(zero >= 3, dtype=np.float64)))
    return lines


def _largest_tensor(situation: Situation) -> Array:
    """Elements of the largest parameter on each stage: a matrix of a layer, or the token table. [-]"""
    model, stages, tp = situation.model, situation.stages, situation.layout.tp[..., None]
    table = float(model.vocab_size * model.hidden_size) / tp * np.maximum(stages.has_embedding, stages.has_head)
    layer = max(
        block.count / (max(model.num_experts, 1) if block.sharding == "expert" else 1.0)
        for kind in situation.kinds
        for block in layer_param_blocks(model, kind)
    )
    return np.asarray(np.maximum(table, layer / tp))


def step_memory_lines(situation: Situation, blocks: list[Block], others: list[MemoryLine]) -> list[MemoryLine]:
    """Return what the end of a step needs: bucket and norm of gradients, and temporaries of Adam.

    Activations are gone by then, so Adam's temporaries only count for what they exceed them by.
    Bucket and norm each take one large block, for which the caching allocator has no free one: they
    add to what is reserved, not to the peak of what is allocated.
    """
    recipe = situation.recipe
    params = stage_params(situation, blocks)
    lines = []
    if recipe.reduce_bucket_elements:
        several = (situation.mesh.grad.ranks > 1)[..., None] * 1.0
        elements = np.minimum(params.dense + params.expert, recipe.reduce_bucket_elements)
        # The flat copy, and its conversion where the reduction has another dtype.
        cast = DTYPE_BYTES[recipe.grad_reduce_dtype] if recipe.grad_reduce_dtype != recipe.grad_accum_dtype else 0.0
        width = np.asarray(recipe.grad_bytes() + cast)
        lines.append(
            memory_line("reserve.reduce_bucket", axis="dp", toll="state", size_bytes=several * elements * width,
                        formula="several * elements * bytes_per_element",
                        terms={"several": several, "elements": elements, "bytes_per_element": width},
                        source=f"recipe {recipe.name}: reduce_bucket_elements")
        )  # fmt: skip
    dense_ranks, expert_ranks = (ranks[..., None] for ranks in _shard_ranks(situation))
    sharded = situation.layout.zero_stage[..., None] >= 1
    local = params.dense / np.where(sharded, dense_ranks, 1.0) + params.expert / np.where(sharded, expert_ranks, 1.0)
    if recipe.norm_copy_bytes:
        largest = np.minimum(_largest_tensor(situation), local)
        lines.append(
            memory_line("reserve.gradient_norm", axis="dp", toll="state", size_bytes=recipe.norm_copy_bytes * largest,
                        formula="bytes_per_element * largest",
                        terms={"bytes_per_element": np.asarray(recipe.norm_copy_bytes), "largest": largest},
                        source=f"recipe {recipe.name}: norm_copy_bytes")
        )  # fmt: skip
    if recipe.adam_temporary_bytes:
        activations = broadcast_sum([line.bytes for line in others if line.toll == "activation"])
        size = np.maximum(recipe.adam_temporary_bytes * local - activations, 0.0)
        lines.append(
            memory_line("state.optimizer.temporaries", axis="dp", toll="state", size_bytes=size,
                        formula="max(bytes_per_param * params - activation_bytes, 0)",
                        terms={"bytes_per_param": np.asarray(recipe.adam_temporary_bytes), "params": local,
                               "activation_bytes": activations},
                        source=f"recipe {recipe.name}: adam_temporary_bytes; activations are gone in the step")
        )  # fmt: skip
    return lines


def _gathered_line(situation: Situation, blocks: list[Block], params: Params, on: Array) -> MemoryLine:
    """ZeRO-3: full parameters of the layers being computed and prefetched, and one layer's gradient.

    A group of one has nothing to gather.
    """
    recipe, stages = situation.recipe, situation.stages
    dense, expert = (ranks > 1 for ranks in _shard_ranks(situation))
    held = {b.role: (block_params(situation, b).dense * dense)[..., None] for b in blocks if b.role != "layer"}
    root = held["embedding"] * stages.has_embedding + held["head"] * stages.has_head
    layer_params = [block_params(situation, block) for block in blocks if block.role == "layer"]
    sizes = [np.asarray(p.dense * dense + p.expert * expert) for p in layer_params]
    largest = np.maximum.reduce(np.broadcast_arrays(*sizes))[..., None]
    gather, grad = DTYPE_BYTES[recipe.gather_dtype], DTYPE_BYTES[recipe.grad_reduce_dtype]
    stays = _stays_gathered(situation)[..., None]
    whole = stays | (not recipe.fsdp_reshard_after_forward)
    gathered = params.dense * dense[..., None] + params.expert * expert[..., None]
    layers = np.where(whole, 1.0, 1.0 + recipe.fsdp_prefetch)
    unit = largest
    largest = np.where(whole, gathered, largest)
    root = np.where(whole, 0.0, root)
    # The gradient of one unit is whole twice: as autograd made it, and in the reduction's dtype. Over
    # several micro-batches of a pipeline, all of them add up in the latter.
    grads = np.where(whole, unit, np.maximum(unit, root))
    summed = np.where(stays, gathered, grads)
    size = on * (gather * (layers * largest + root) + gather * grads + grad * summed)
    formula = "on * (gather_bytes * (layers * params + root_params + grad_params) + grad_bytes * summed_params)"
    return memory_line("buffer.dp.gathered_layers", axis="dp", toll="state", size_bytes=size, formula=formula,
                       terms={"on": on, "params": largest, "layers": np.asarray(layers),
                              "gather_bytes": np.asarray(gather), "grad_bytes": np.asarray(grad),
                              "root_params": root, "grad_params": grads, "summed_params": summed},
                       source="PyTorch FSDP, arXiv:2304.11277, section 3.3")  # fmt: skip
