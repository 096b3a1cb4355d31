"""The optimizer: what steps parameters once their gradients are there, by the record of the job's choice.

Sends: what an optimizer of whole matrices gathers of those that ranks share. Hides: behind nothing, as the
step waits for it. Stores: states are in `step.states`, at the bytes that `state_widths` says.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from costmodel.bill.lines import (
    Array,
    Bill,
    HostWay,
    MemoryLine,
    TimeLine,
    any_nonzero,
    broadcast_sum,
    memory_line,
    time_line,
)
from costmodel.bill.quantity import Quantity, quantity
from costmodel.describe.hardware.kernels import PEAK_KEY
from costmodel.describe.jobs.job import Job
from costmodel.describe.optimizers import Optimizer, Product, Update
from costmodel.physics.kernels.roofline import matmul_time
from costmodel.physics.network.mesh import Group
from costmodel.step.anatomy.operator_parts import Given
from costmodel.step.anatomy.operators import Matrix, weight_matrices
from costmodel.step.anatomy.params import (
    Params,
    held_params,
    layer_param_blocks,
    param_blocks,
)
from costmodel.step.communication import communication_line
from costmodel.step.critical_stage import Step
from costmodel.step.placed_job import (
    DATA_PARTS,
    Block,
    DataPart,
    PlacedJob,
)

# Parameters that the vectorised Adam of a two-socket host steps: 10 billion in 2.57 s
# (Ren et al., "ZeRO-Offload," arXiv:2101.06840, table 4). The GPUs of the host share it.
_HOST_ADAM_PARAMS_PER_S = 10e9 / 2.57
_NONE = np.asarray(0.0)


class UpdateGroup(NamedTuple):
    """Parameters that an optimizer steps alike, on each stage (last dimension), and their sides. [-]"""

    update: Update
    params: Params
    sides: Params
    """Rows and columns of their matrices, or the squares of them, added up: what its states count."""

    def state_bytes(self, placed: PlacedJob, part: DataPart) -> Quantity:
        """Bytes a parameter of what it keeps of the dense or the expert part, on each stage. [B]"""
        params, counted = self.params.of(part), np.asarray(0.0)
        if self.update.counts_sides:
            counted = np.where(params > 0, self.sides.of(part) / np.where(params > 0, params, 1.0), 0.0)
        return quantity(
            self.update.state_bytes,
            moments_bytes=placed.recipe.dtypes.moments_bytes,
            **dict.fromkeys(("sides", "squares"), counted),
        )

    def mean_state_bytes(self, placed: PlacedJob, local: Array) -> Array:
        """Bytes a parameter of what it keeps of the `local` parameters that a rank steps. [B]"""
        dense, expert = (self.state_bytes(placed, part).value for part in DATA_PARTS)
        if not self.update.counts_sides:
            return dense
        kept = Params(np.asarray(dense * self.params.dense), np.asarray(expert * self.params.expert))
        return np.asarray(placed.max_optimizer_params(kept) / np.where(local > 0, local, 1.0))


def update_groups(step: Step) -> tuple[UpdateGroup, ...]:
    """Return the parameters of a rank by how its optimizer steps them, one entry a different way."""
    chosen = step.placed.optimizer
    nothing = step.trained.scaled(_NONE)
    if len(chosen.updates) == 1 and not chosen.matrices.counts_sides:
        return (UpdateGroup(chosen.matrices, step.trained, nothing),)
    by_update = dict.fromkeys(chosen.updates, (nothing, nothing))
    for update, params, sides in (
        (chosen.matrices, *_matrix_params(step)),
        (chosen.tables, *_table_params(step)),
        (chosen.others, _held_of(step, matrices=False), nothing),
    ):
        so_far = by_update[update]
        by_update[update] = (so_far[0] + params, so_far[1] + sides)
    return tuple(UpdateGroup(update, *so_far) for update, so_far in by_update.items())


def whole_state_bytes(job: Job) -> float:
    """Bytes of what the optimizer keeps of a whole model, multi-token prediction and main weights left out. [B]"""
    model, chosen = job.model, job.optimizer
    elements = dict.fromkeys(chosen.updates, 0.0)
    whole = Given.whole(model, job.recipe, job.precision)
    sides = dict.fromkeys(chosen.updates, 0.0)
    for kind in model.kind_of_layer:
        for block in layer_param_blocks(model, model.layer_kinds()[kind]):
            elements[chosen.matrices if block.is_matrix else chosen.others] += block.count
        for one in weight_matrices(whole, model.layer_kinds()[kind]):
            sides[chosen.matrices] += one.copies * _counted_sides(chosen, one)
    for table in (param_blocks("embedding", model), param_blocks("head", model)):
        count = sum(block.count for block in table)
        elements[chosen.tables] += count
        sides[chosen.tables] += count / model.hidden_size + model.hidden_size * (count > model.hidden_size)
    kept = [
        quantity(
            f"({update.state_bytes}) * params",
            moments_bytes=job.recipe.dtypes.moments_bytes,
            **dict.fromkeys(("sides", "squares"), sides[update] / count if count else 0.0),
            params=count,
        ).value
        for update, count in elements.items()
    ]
    return float(sum(kept))


def _counted_sides(chosen: Optimizer, matrix: Matrix) -> float:
    """Return what the states of a matrix count: its sides, or the squares of those that have a square matrix. [-]"""
    if "squares" not in chosen.matrices.state_bytes:
        return matrix.short + matrix.long
    cut, blocks = _blocks_of(chosen, matrix)
    return blocks * sum(side**2 for side in (cut.short, cut.long) if side <= chosen.largest_side)


def _blocks_of(chosen: Optimizer, matrix: Matrix) -> tuple[Matrix, float]:
    """Return the blocks that an optimizer cuts a matrix into, and how many whole ones it is. [-]"""
    cut = matrix._replace(short=min(matrix.short, chosen.block), long=min(matrix.long, chosen.block))
    return cut, matrix.elements / cut.elements


def _own_matrices(placed: PlacedJob, block: Block) -> tuple[Matrix, ...]:
    """Return the matrices of a layer, or of what multi-token prediction has before one."""
    return weight_matrices(placed.whole, block.kind) if block.role in ("layer", "mtp") else ()


def _held_of(step: Step, *, matrices: bool) -> Params:
    """Return the parameters of layers on a rank that are matrices, or that are not."""
    total = step.params.scaled(_NONE)
    for block in step.blocks:
        if block.role in ("layer", "mtp"):
            own = [one for one in block.parts if one.is_matrix == matrices]
            total = total + held_params(own, step.placed.layout).for_stages().scaled(block.num_on_stage)
    return total


def _matrix_params(step: Step) -> tuple[Params, Params]:
    """Return the matrices of layers on a rank and their sides, those of TP's parts counted whole."""
    placed = step.placed
    sides = step.params.scaled(_NONE)
    for block in step.blocks:
        for one in _own_matrices(placed, block):
            number = _copies(placed, one) * _counted_sides(placed.optimizer, one)
            each = Params(_NONE, number) if one.is_expert else Params(number, np.zeros_like(placed.layout.ep))
            sides = sides + each.for_stages().scaled(block.num_on_stage)
    return _held_of(step, matrices=True), sides


def _table_params(step: Step) -> tuple[Params, Params]:
    """Return what is of no layer: token table, positions and head, with their sides."""
    layers = _held_of(step, matrices=True) + _held_of(step, matrices=False)
    dense = np.maximum(step.params.dense - layers.dense, 0.0)
    stages, hidden = step.placed.stages, float(step.placed.model.hidden_size)
    tables = np.maximum(stages.has_embedding, stages.has_head)
    if not step.placed.model.tied_embeddings:
        tables = stages.has_embedding + stages.has_head
    return (
        Params(np.asarray(dense), np.zeros_like(step.params.expert)),
        Params(np.asarray(dense / hidden + tables * hidden), np.zeros_like(step.params.expert)),
    )


def _copies(placed: PlacedJob, matrix: Matrix) -> Array:
    """Count the matrices of a name on a rank that holds such a layer. [-]"""
    return np.asarray(matrix.copies / (placed.layout.ep if matrix.is_expert else 1.0))


def time_lines(step: Step) -> list[TimeLine]:
    """Return the gradient norm and the step of the optimizer.

    References
    ----------
    .. [1] The record of the job's optimizer names its own: `costmodel.describe.optimizers`.
    """
    return [
        *_iteration_lines(step),
        *(line for part in update_groups(step) for line in _update_lines(step, part)),
        _norm_line(step),
        *_outer_lines(step.placed, step.trained),
    ]


def _line(name: str, made: Quantity, moved: Array, source: str, count: float = 1.0, **more: Any) -> TimeLine:
    """Make the line of a kernel of the optimizer step by the bytes that it moves."""
    return time_line(
        f"optimizer.{name}",
        axis="optimizer",
        category="state",
        phase="optimizer",
        count=count,
        made=made,
        bytes_each=moved,
        source=source,
        **more,
    )


def _update_lines(step: Step, part: UpdateGroup) -> list[TimeLine]:
    """Return the kernel that steps some parameters, priced by the bytes it reads and writes.

    And, where its states are paged, their way from the host's memory to the GPU and back, once a step.
    """
    placed, recipe, source = step.placed, step.placed.recipe, step.placed.optimizer.source
    local = placed.max_optimizer_params(part.params)
    if not any_nonzero(local):
        return []
    own = part.mean_state_bytes(placed, local)
    states = recipe.dtypes.master_weights_bytes + own
    moved = quantity(
        f"({part.update.moved_bytes}) * params",
        grad_bytes=recipe.dtypes.grad_bytes(),
        state_bytes=states,
        weight_bytes=recipe.dtypes.param_bytes(),
        params=local,
    )
    offloaded = recipe.host.offload_optimizer
    made = _on_host(placed, local, states) if offloaded else placed.memory_bound(moved)
    lines = [_line(part.update.kernel, made, moved.value, source)]
    if not placed.optimizer.paged:
        return lines
    paging = placed.host_link.then(
        "link_bytes_per_s", "state_bytes * params / link_bytes_per_s", state_bytes=own, params=local
    )
    ways: tuple[HostWay, ...] = ("in", "out")
    paged = np.asarray(own * local)
    return lines + [_line(f"paging.{way}", paging, paged, source, host_way=way) for way in ways]


def _norm_line(step: Step) -> TimeLine:
    """Return the norm, which reads every gradient once; clipping and zeroing write it."""
    placed, params = step.placed, step.trained
    local = placed.max_optimizer_params(params)
    full = np.where(placed.shards_optimizer, local, (params.dense + params.expert).max(axis=-1))
    moved = quantity("3 * grad_bytes * params", grad_bytes=placed.recipe.dtypes.grad_bytes(), params=full)
    source = "gradient norm, clipping and zeroing"
    return _line("grad_norm", placed.memory_bound(moved), moved.value, source)


def _on_host(placed: PlacedJob, params: Array, state_bytes: Array) -> Quantity:
    """Time of Adam on the host, whose processors and NVMe the GPUs of a node share. [s]

    Gradients travel behind the backward pass; the new parameters come back after the step. From
    NVMe, states are read and written beside the steps of the host: the slower of both counts.
    """
    recipe = placed.recipe
    nvme = recipe.host.nvme_bytes_per_s
    stream = "2 * state_bytes / nvme_bytes_per_s" if nvme else "0"
    streamed: dict[str, ArrayLike] = {"state_bytes": state_bytes, "nvme_bytes_per_s": nvme} if nvme else {}
    return placed.host_link.then(
        "link_bytes_per_s",
        f"each_s = max(1 / host_params_per_s, {stream}); "
        "params * (gpus_per_host * each_s + weight_bytes / link_bytes_per_s)",
        params=params,
        host_params_per_s=_HOST_ADAM_PARAMS_PER_S,
        weight_bytes=recipe.dtypes.param_bytes(),
        **streamed,
    )


def _outer_lines(placed: PlacedJob, params: Params) -> list[TimeLine]:
    """Return the outer optimizer of rarely averaged replicas: three copies of the parameters read, two written."""
    if placed.policy.sync_every == 1:
        return []
    copies = 5.0 if placed.policy.outer_momentum else 3.0
    moved = quantity("4 * copies * params", copies=copies, params=placed.max_optimizer_params(params))
    source = "DiLoCo, arXiv:2311.08105, algorithm 1: Nesterov momentum on the mean change of parameters"
    rarely = 1.0 / placed.policy.sync_every
    return [_line("outer", placed.memory_bound(moved), moved.value, source, rarely)]


class _Iterated(NamedTuple):
    """One sort of matrices on a block, and how many of them each stage holds (last dimension). [-]"""

    label: str
    matrix: Matrix
    num_on_stage: Array
    products: tuple[tuple[Product, Quantity], ...]

    @property
    def each_s(self) -> Array:
        """Products of one step of the iteration on one of them. [s]"""
        return broadcast_sum([made.value for _, made in self.products])


def _iterated(step: Step) -> list[_Iterated]:
    """Return every matrix that the optimizer iterates on before it steps it."""
    placed, chosen = step.placed, step.placed.optimizer
    made = []
    for block in step.blocks if chosen.products else ():
        for one in _own_matrices(placed, block):
            cut = _blocks_of(chosen, one)[0]
            products = [
                (product, _product_time(placed, one, product))
                for product in chosen.products
                if not product.basis or getattr(cut, product.basis) <= chosen.largest_side
            ]
            num_on_stage = np.asarray(block.num_on_stage * _copies(placed, one)[..., None])
            made.append(_Iterated(block.label, one, num_on_stage, tuple(products)))
    return made


def _product_time(placed: PlacedJob, matrix: Matrix, product: Product) -> Quantity:
    """Time of one product of the iteration on a whole matrix, of all its blocks. [s]"""
    accelerator = placed.accelerator
    cut, blocks = _blocks_of(placed.optimizer, matrix)
    wide = 4.0 if product.dtype == "fp32" else 2.0
    made = matmul_time(
        getattr(cut, product.rows),
        getattr(cut, product.columns),
        getattr(cut, product.depth),
        constants=placed.kernels.matmul[product.dtype],
        peak_flops_per_s=accelerator.peak_flops_per_s[PEAK_KEY[product.dtype]],
        memory_bandwidth_bytes_per_s=accelerator.memory_bandwidth_bytes_per_s,
        input_bytes=wide,
        output_bytes=wide,
    )
    if blocks * product.times == 1.0:
        return made
    return made.then("one_s", "blocks * times * one_s", blocks=blocks, times=product.times)


# What a rank does of the matrices on its stage: those whose part it holds, of which two may be others' as well.
_DONE = "min(matrices, ceil(matrices / ranks) + shared) / matrices"


def _iteration_lines(step: Step) -> list[TimeLine]:
    """Return the iteration of an optimizer on whole matrices, and what is gathered for it.

    States are sharded over the ranks of data parallelism as one flat sequence, so that a rank touches the
    matrices of its part and one more. It gathers them over these ranks and over tensor parallelism, iterates on
    each, and keeps its part of the result; where parameters are sharded tensor by tensor (ZeRO-3), owners send
    the others' parts back. Without sharding every rank iterates on all.
    """
    every = _iterated(step)
    if not every:
        return []
    stage_s = broadcast_sum([one.num_on_stage * one.each_s[..., None] for one in every])
    slowest = np.argmax(stage_s, axis=-1)[..., None]

    def at_slowest(values: Array) -> Array:
        spread = np.broadcast_to(values, np.broadcast_shapes(values.shape, stage_s.shape))
        return np.asarray(np.take_along_axis(spread, slowest, axis=-1)[..., 0])

    lines: list[TimeLine] = []
    for part in DATA_PARTS:
        some = [one for one in every if one.matrix.is_expert == (part == "expert")]
        if some:
            counts = [at_slowest(one.num_on_stage) for one in some]
            lines += _part_lines(step, part, some, counts)
    return lines


def _part_lines(step: Step, part: DataPart, some: list[_Iterated], counts: list[Array]) -> list[TimeLine]:
    """Return the products and the gathers of the dense or the expert matrices, `counts` of each on the stage."""
    placed, chosen = step.placed, step.placed.optimizer
    group = placed.state_group(part)
    done = {
        "matrices": broadcast_sum(counts),
        "ranks": group.ranks,
        "shared": 1.0 * (group.ranks > 1),
    }
    lines = [
        time_line(
            f"optimizer.{product.name}.{one.label}{one.matrix.name}",
            axis="optimizer",
            category="math",
            phase="optimizer",
            count=count,
            made=made.then(
                "product_s",
                f"done = {_DONE}; done * iterations * product_s",
                iterations=float(chosen.iterations),
                **done,
            ),
            source=chosen.source,
        )
        for one, count in zip(some, counts, strict=True)
        for product, made in one.products
    ]
    launched = float(max(len(one.products) for one in some))
    lines.append(
        time_line(
            f"optimizer.host.{part}",
            axis="optimizer",
            category="overhead",
            phase="optimizer",
            cause="host",
            formula=f"done = {_DONE}; done * iterations * max(products * matrices * launch_s - step_s, 0)",
            terms={
                **done,
                "iterations": float(chosen.iterations),
                "products": launched,
                "launch_s": placed.launch_s * placed.host_slowdown,
                "step_s": broadcast_sum(
                    [np.asarray(n * one.each_s) for one, n in zip(some, counts, strict=True)]
                ),
            },
            source="host-bound iterations: the GPU waits for the products that the framework issues",
        )
    )
    whole, parts = (
        broadcast_sum(
            [
                np.asarray(count * one.matrix.elements * (one.matrix.is_split == split))
                for one, count in zip(some, counts, strict=True)
            ]
        )
        for split in (True, False)
    )
    inner = placed.mesh.tp if part == "dense" else placed.mesh.etp
    degree = placed.layout.tp if part == "dense" else placed.layout.etp
    on_rank = np.asarray(whole / degree + parts)
    share, one = quantity(_DONE, **done), np.asarray(1.0)
    sent: tuple[tuple[str, str, Group, Array, Array], ...] = (
        ("gather", "all_gather", group, on_rank, one),
        ("gather", "all_gather", inner, whole, one),
        ("hand_back", "all_to_all", group, on_rank, np.asarray(1.0 * placed.shards_parameters)),
    )
    return lines + [
        communication_line(
            placed,
            f"optimizer.{name}.{part}.{over.dim}",
            axis="optimizer",
            phase="optimizer",
            primitive=primitive,
            size_bytes=chosen.gathered_bytes * share.value * elements,
            group=over,
            share=times,
        )
        for name, primitive, over, elements, times in sent
        if any_nonzero(over.ranks > 1) and any_nonzero(times)
    ]


def end_of_step_lines(step: Step, bill: Bill) -> list[MemoryLine]:
    """Return the operands of an iteration on the largest matrix, where they exceed the activations gone by then."""
    every = _iterated(step)
    if not every:
        return []
    activations = broadcast_sum([line.bytes for line in bill.memory_lines if line.category == "activation"])
    largest = max((one.matrix for one in every), key=lambda one: one.elements)
    return [
        memory_line(
            "state.optimizer.iteration",
            part="optimizer",
            axis="optimizer",
            formula="max(element_bytes * (2 * short * long + 2 * short * short) - activation_bytes, 0)",
            terms={
                "element_bytes": step.placed.optimizer.gathered_bytes,
                "short": largest.short,
                "long": largest.long,
                "activation_bytes": activations,
            },
            source=f"{step.placed.optimizer.source}; a matrix, its outer product and their successors",
        )
    ]
