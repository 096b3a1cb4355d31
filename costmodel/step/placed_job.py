"""What every axis is told: the job, where its ranks sit, and what one micro-batch looks like."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.bill.lines import (
    Axis,
    Phase,
    TimeLine,
    anywhere,
    broadcast_sum,
    highest_on_stages,
    settled,
    time_line,
)
from costmodel.bill.quantity import Quantity, quantity
from costmodel.describe.factors import OTHER, Factors
from costmodel.describe.hardware.attention_kernels import ATTENTION_KERNELS
from costmodel.describe.jobs.layout import Layout
from costmodel.describe.jobs.packing import Packing
from costmodel.describe.jobs.tuning import Tuning
from costmodel.describe.optimizers import Optimizer
from costmodel.describe.precision import Precision
from costmodel.describe.recipe import Recipe
from costmodel.describe.switch_table import Switches
from costmodel.physics.kernels.roofline import ScalarRate, memory_time
from costmodel.physics.network.fabric import GroupCost
from costmodel.physics.network.mesh import Group, Mesh, split_group
from costmodel.physics.network.messages import Messages
from costmodel.physics.pipeline import schedules
from costmodel.physics.pipeline.stages import (
    Meetings,
    Rings,
    Split,
    StagePlan,
    chunk_shares,
    plan_meetings,
    plan_rings,
)
from costmodel.step.anatomy.operator_parts import Given, Operator, Part, Role, ScalarWork, Shard
from costmodel.step.anatomy.params import Params
from costmodel.step.ports import Ports
from costmodel.step.recomputation import Recomputation

if TYPE_CHECKING:
    from costmodel.describe.hardware.hardware import Accelerator, Cluster
    from costmodel.describe.hardware.kernels import KernelConstants
    from costmodel.describe.models.model import LayerKind, Model

Array = NDArray[np.float64]

DataPart = Literal["dense", "expert"]
"""Parameters that share a group of ranks: experts have one of their own."""
DATA_PARTS: tuple[DataPart, ...] = get_args(DataPart)

NCCL_SOURCE = "Hockney alpha-beta, least over NCCL's (algorithm, protocol); NVIDIA/nccl src/graph/tuning.cc"

# Elements a second that an SM converts in PyTorch's kernels without vector loads, by published timings of large casts:
# pytorch/pytorch pull request 195542 (A100, bf16 to fp32, 67 M in 362 us), 137053 (H100 PCIe, fp32 to fp16 before it,
# 2,147 M in 9.11 ms) and PaddlePaddle/Paddle 76988 (torch beside it, bf16 to fp32, 1,074 M in 2.77 ms; the GPU is not
# named, its vector kernels reach 7.0 TB/s: 148 SMs taken).
SCALAR_PER_SM = {"ampere": 1.71e9, "hopper": 2.07e9, "blackwell": 2.61e9}
"""By generation; kernels of others are priced by their bytes alone."""


class OperatorTime(NamedTuple):
    """Seconds of one operator on one micro-batch, by pass.

    `recompute_share` of the forward pass is run again; `kept_bytes` of its output stay until then.
    """

    operator: Operator
    passes: tuple[Quantity, ...]
    """Forward, input-gradient and weight-gradient pass; forward and backward where these are one."""
    recompute_share: Array
    kept_bytes: Array

    @property
    def forward_s(self) -> Array:
        """Forward pass. [s]"""
        return self.passes[0].value

    @property
    def backward_input_s(self) -> Array:
        """Gradient of the input; the whole backward pass where there is no weight gradient. [s]"""
        return self.passes[1].value

    @property
    def backward_weight_s(self) -> Array:
        """Gradient of the weights. [s]"""
        return self.passes[2].value if len(self.passes) > 2 else np.asarray(0.0)

    @property
    def backward_s(self) -> Array:
        """Both backward passes, without recomputation. [s]"""
        return np.asarray(self.backward_input_s + self.backward_weight_s)


@dataclass(frozen=True)
class LayerTimes:
    """Compute seconds of one layer of one kind, one micro-batch, by operator and in sum."""

    by_operator: Mapping[str, OperatorTime]
    forward_s: Array
    backward_s: Array
    recompute_s: Array

    def of_role(self, role: Role) -> list[OperatorTime]:
        """Return the operators that play a role, in the order in which they run."""
        return [item for item in self.by_operator.values() if item.operator.role == role]

    def of_part(self, part: Part) -> list[OperatorTime]:
        """Return the operators of a part, in the order in which they run."""
        return [item for item in self.by_operator.values() if item.operator.part == part]

    @cached_property
    def saved_bytes(self) -> Array:
        """What all operators save in a whole pass. [B]"""
        return broadcast_sum([item.operator.saved_bytes for item in self.by_operator.values()])

    @cached_property
    def kept_bytes(self) -> Array:
        """What of it is kept until the backward pass. [B]"""
        return broadcast_sum([item.kept_bytes for item in self.by_operator.values()])

    @cached_property
    def widest_bytes(self) -> Array:
        """Gradients alive at the widest point of the backward pass: of an operator's output and input. [B]"""
        products = (
            item.operator
            for item in self.by_operator.values()
            if item.operator.kind in ("matmul", "grouped_matmul")
        )
        sizes = (2.0 * op.m * (op.n + op.k) * op.groups for op in products)
        return np.asarray(reduce(np.maximum, sizes, np.asarray(0.0)))

    def tp_pairs(self) -> list[tuple[OperatorTime, OperatorTime]]:
        """Return the first column-parallel and the last row-parallel layer of each part that TP splits."""
        columns = {item.operator.part: item for item in reversed(self.of_role("column"))}
        rows = {item.operator.part: item for item in self.of_role("row")}
        return [(columns[part], row) for part, row in rows.items() if part in columns]


@dataclass(frozen=True)
class Block:
    """What runs together in one pass: a layer of some kind, the embedding, or the head.

    Lines of a block are made for one micro-batch through one such block; `critical_stage` counts how
    many of them the slowest stage runs in a step. A rank holds `params` of
    one, and each stage `held` of them (last dimension). [-]
    """

    label: str
    role: str
    times: LayerTimes
    params: Params
    held: Array
    trained: Params
    """Those of `params` that have gradients. [-]"""
    quantised: Params
    """Those of `params` that lie in the dtype of a frozen base. [-]"""
    kind: LayerKind | None = None


HIDING: tuple[Axis, ...] = ("tp", "cp", "ep", "dp")
"""Axes whose messages hide behind compute by a window."""


def scaled(made: Quantity, factor: Array | None) -> Quantity:
    """Return a quantity times a factor, as it is where there is none."""
    return made if factor is None else made.then("nominal_s", "factor * nominal_s", factor=factor)


@dataclass(frozen=True)
class PlacedJob:
    """A job, or an array of jobs that differ in layout, ready to be priced."""

    model: Model
    cluster: Cluster
    recipe: Recipe
    policy: Switches
    health: Switches
    tuning: Tuning
    packing: Packing
    precision: Precision
    optimizer: Optimizer
    layout: Layout
    mesh: Mesh
    split: Split
    stages: StagePlan
    shard: Shard
    kinds: tuple[LayerKind, ...]
    global_batch: Array
    seq_len: Array
    micro_batches: Array
    imbalance: Array
    """Tokens of the busiest expert rank over the mean. [-]"""
    factors: Factors
    """What the calibrated constants are multiplied by."""

    @property
    def given(self) -> Given:
        """What its operators follow from."""
        return Given(self.model, self.shard, self.recipe, self.precision)

    @property
    def whole(self) -> Given:
        """The same of a rank that holds everything, for one token."""
        return Given.whole(self.model, self.recipe, self.precision)

    @property
    def accelerator(self) -> Accelerator:
        """The GPU of the cluster."""
        return self.cluster.accelerator

    @property
    def kernels(self) -> KernelConstants:
        """Constants of its kernels; `make_job` refuses an accelerator without."""
        constants = self.cluster.accelerator.kernels
        assert constants is not None
        return constants

    def memory_bound(
        self,
        moved_bytes: ArrayLike | Quantity,
        kernels: ArrayLike = 1.0,
        cast_slowdown: float = 1.0,
        scalar: ScalarWork | None = None,
        waves: float = 1.0,
    ) -> Quantity:
        """Time of kernels of this GPU that only move bytes; see `roofline.memory_time`. [s]"""
        made = memory_time(
            moved_bytes,
            constants=self.kernels.memory,
            memory_bandwidth_bytes_per_s=self.accelerator.memory_bandwidth_bytes_per_s,
            kernels=kernels,
            cast_slowdown=cast_slowdown,
            waves=waves,
            scalar=self._scalar_rate(scalar),
        )
        return scaled(made, self.factors.of("memory_kernels", self.accelerator.generation))

    def _scalar_rate(self, work: ScalarWork | None) -> ScalarRate | None:
        """Return work of kernels without vector loads with its rate on this GPU, where both are known."""
        per_sm = SCALAR_PER_SM.get(self.accelerator.generation)
        if work is None or per_sm is None:
            return None
        return ScalarRate(work.size_bytes, work.elements, self.accelerator.num_sms * per_sm)

    @property
    def contention(self) -> float:
        """Share of compute speed lost while a collective runs beside it, by the cores that move its data. [-]"""
        overlap = self.recipe.overlap
        return 0.0 if overlap.collectives_on == "sparse-cores" else overlap.overlap_contention

    @property
    def launch_s(self) -> Array:
        """Host time to issue one kernel, on a host of the recipe's. [s]"""
        launch_s, factor = self.recipe.host.launch_s, self.factors.of("launch")
        return np.asarray(launch_s if factor is None else factor * launch_s)

    def sent(self, cost: GroupCost) -> Quantity:
        """Return what a message takes, its latency and its transfer by the factors of the fabric that it crosses. [s]"""
        if not self.factors:
            return cost.made
        factors = {part: self._of_fabric(part, cost.tier) for part in ("latency", "transfer")}
        return cost.made.then(
            "nominal_s",
            "latency_factor * latency_s + transfer_factor * transfer_s",
            latency_factor=factors["latency"],
            transfer_factor=factors["transfer"],
        )

    def _of_fabric(self, part: str, tier: Array) -> Array:
        """Return a factor of collectives for the outermost tier that each crosses. [-]"""
        found: Array = np.asarray(1.0)
        for index, one in enumerate(self.cluster.tiers):
            factor = self.factors.of("collective", one.kind or OTHER, part)
            if factor is not None and anywhere(here := tier == index):
                found = np.where(here, factor, found)
        return found

    def window_s(self, axis: Axis, compute_s: ArrayLike) -> ArrayLike:
        """Return the part of some compute that messages of an axis really hide behind. [s]"""
        factor = self.factors.of("overlap", axis) if self.factors and axis in HIDING else None
        return compute_s if factor is None else factor * np.asarray(compute_s)

    @cached_property
    def messages(self) -> Messages:
        """What its groups send over the fabric, by algorithms that the recipe's library takes."""
        overlap = self.recipe.overlap
        sharp = () if overlap.nccl_sharp else ("nvls-sharp", "collnet-chain")
        return Messages(self.cluster.tiers, sharp if overlap.nccl_pat else ("pat", *sharp))

    @cached_property
    def gpus_per_host(self) -> Array:
        """GPUs of the job that share a host. [-]"""
        return np.asarray(np.minimum(self.layout.gpus, float(self.cluster.gpus_per_node)))

    @cached_property
    def host_link(self) -> Quantity:
        """What each GPU gets of the way to the host's memory when all GPUs of the host use it. [B/s]

        GPUs behind one switch share its port, and all of them the channels of the memory.
        """
        host = self.cluster.host
        return quantity(
            "min(port_bytes_per_s / min(gpus_per_link, gpus_per_host), channels_bytes_per_s / gpus_per_host)",
            port_bytes_per_s=self.accelerator.host_link_bytes_per_s,
            gpus_per_link=float(host.gpus_per_link),
            gpus_per_host=self.gpus_per_host,
            channels_bytes_per_s=host.memory_bandwidth_bytes_per_s,
        )

    @cached_property
    def shards_optimizer(self) -> NDArray[np.bool_]:
        """Whether data parallelism shards the states of the optimizer (ZeRO-1 to 3); one value where all are alike."""
        return np.asarray(settled(self.layout.zero_stage >= 1) > 0)

    @cached_property
    def shards_parameters(self) -> NDArray[np.bool_]:
        """Whether it shards the parameters too (ZeRO-3, FSDP); one value where all are alike."""
        return np.asarray(settled(self.layout.zero_stage >= 3) > 0)

    @cached_property
    def shard_ranks(self) -> tuple[Array, Array]:
        """Ranks that shard dense and expert states between them. [-]"""
        group = self.layout.shard_group
        dense, expert = self.mesh.grad.ranks, self.mesh.edp.ranks
        whole = group == 0
        return (
            np.asarray(np.where(whole, dense, np.minimum(np.where(whole, 1.0, group), dense))),
            np.asarray(np.where(whole, expert, np.minimum(np.where(whole, 1.0, group), expert))),
        )

    @cached_property
    def splits_backward(self) -> NDArray[np.bool_]:
        """Whether the passes towards inputs and towards weights run apart; one value where all are alike."""
        return np.asarray(settled(schedules.fact("splits_backward", self.layout.schedule)) > 0)

    @cached_property
    def ranks_wait_unlike(self) -> NDArray[np.bool_]:
        """Whether ranks that are equally busy wait for unlike times; one value where all are alike."""
        return np.asarray(settled(schedules.fact("differs_by_rank", self.layout.schedule)) > 0)

    @cached_property
    def rings(self) -> Rings | None:
        """What neighbours hold that wait for each other in a circle; none where no schedule has such."""
        if not anywhere(schedules.fact("has_rings", self.layout.schedule)):
            return None
        return plan_rings(self.model.kind_of_layer, len(self.kinds), self.layout.pp, self.split)

    @cached_property
    def meetings(self) -> Meetings | None:
        """Where chunks of the last rank meet larger ones; none where no schedule interleaves."""
        layout = self.layout
        if not anywhere(schedules.fact("meets_by_chunk", layout.schedule)):
            return None
        return plan_meetings(self.model.kind_of_layer, len(self.kinds), layout.pp, layout.vp, self.split)

    @cached_property
    def in_flight(self) -> Array:
        """Micro-batches whose activations each stage holds at its peak (last dimension: stages). [-]"""
        layout, (largest, smallest) = self.layout, self.chunk_shares
        return schedules.in_flight(
            layout.schedule[..., None],
            stages=layout.pp[..., None],
            micro_batches=self.micro_batches[..., None],
            virtual_stages=layout.vp[..., None],
            stage=self.stages.index,
            paired=self.pairs_passes[..., None],
            layers=float(self.model.num_layers),
            largest_chunk=largest[..., None],
            smallest_chunk=smallest[..., None],
        )

    @cached_property
    def chunk_shares(self) -> tuple[Array, Array]:
        """Shares of a full rank's layers in its largest and its smallest chunk. [-]"""
        return chunk_shares(self.stages, self.layout.vp, self.split.chunks)

    @cached_property
    def recomputation(self) -> Recomputation:
        """What is run again in the backward pass."""
        memory = self.recipe.memory
        return Recomputation(self.layout.recompute, memory.selective_modules, memory.recompute_early_stop)

    @property
    def pending_weight_fraction(self) -> Array:
        """Share of a layer's activations that a postponed weight gradient still needs. [-]

        Zero-bubble schedules free the rest (scores and masks of unfused attention) with the input
        gradient: 32 of 34 + 5 a s / h bytes per token and hidden (Qi et al., arXiv:2401.10241, table 1).
        """
        model = self.model
        scores = 0.0
        if ATTENTION_KERNELS[self.recipe.kernels.attention_kernel].writes_scores:
            scores = 5.0 * model.num_heads / model.hidden_size
        return np.asarray(32.0 / (34.0 + scores * self.seq_len))

    @property
    def synchronized(self) -> bool:
        """Whether all ranks wait for each other at the optimizer; the zero-bubble papers validate the step after it."""
        return not self.recipe.overlap.post_validation

    @property
    def pairs_passes(self) -> Array:
        """1 where the exchange of experts hides behind the pass of another micro-batch, else 0. [-]

        Megatron-Core refuses it under full recomputation (transformer_config.py,
        `overlap_moe_expert_parallel_comm`).
        """
        wanted = self.recipe.moe.ep_overlap and self.model.num_experts > 0
        return np.asarray(wanted * (self.layout.ep > 1) * (1.0 - self.recomputation.whole_layers))


HIDDEN = (
    "exposed_s = max(busy_s - window_s, least_share * busy_s); exposed_s + contention * (busy_s - exposed_s)"
)
"""What the critical path pays for ``busy_s`` of communication beside a window of compute.

The part beyond the window is exposed, at least `least_share` of it (the first and last piece of a
pipelined exchange cannot hide); the hidden part slows the compute that it runs beside by the share
of SMs and bandwidth that it takes.
"""


HIDDEN_BESIDE = f"free_s = max(window_s - port_busy_s, 0); {HIDDEN.replace('window_s', 'free_s')}"
"""The same where other messages take the port for `port_busy_s` of the window."""


HIDDEN_WHILE_OTHERS_WAIT = HIDDEN_BESIDE.replace("window_s", "window_s + waited_s", 1)
"""The same where the pass has waited for `waited_s` on other ports already, which leaves this one more time."""


def hidden_beside(
    beside: Ports | None, tier: Array, waited_s: Array | None = None
) -> tuple[str, dict[str, Array]]:
    """Return what of a message hides, as text, and the numbers of the messages `beside` it on its tier."""
    if not beside:
        return HIDDEN, {}
    taken = {"port_busy_s": beside.busy_s(tier)}
    if waited_s is None:
        return HIDDEN_BESIDE, taken
    return HIDDEN_WHILE_OTHERS_WAIT, {**taken, "waited_s": waited_s}


def communication_line(
    placed: PlacedJob,
    name: str,
    *,
    axis: Axis,
    phase: Phase,
    primitive: str,
    size_bytes: ArrayLike,
    group: Group,
    window_s: ArrayLike = 0.0,
    beside: Ports | None = None,
    waited_s: Array | None = None,
    least_share: ArrayLike = 0.0,
    share: ArrayLike = 1.0,
    count: ArrayLike = 1.0,
) -> TimeLine:
    """Price one collective over `group` and make its line; what fits into `window_s` is hidden.

    Messages `beside` it in the same window leave it what they do not take of its port, and what the pass has
    `waited_s` for them is time for this one. `share` scales the whole line (a recomputed pass that only
    some layouts run). A group of one costs nothing.
    """
    cost = placed.messages.collective(primitive, size_bytes, group)
    part = np.asarray(share, dtype=np.float64)
    hidden, taken = hidden_beside(beside, cost.tier, waited_s)
    made = placed.sent(cost).then(
        "collective_s",
        f"busy_s = share * collective_s; {hidden}",
        share=part,
        window_s=placed.window_s(axis, window_s),
        least_share=least_share,
        contention=placed.contention,
        **taken,
    )
    return time_line(
        name,
        axis=axis,
        category="communication",
        phase=phase,
        group=group.dim,
        count=count,
        made=made,
        bytes_each=cost.wire_bytes * part,
        tier=cost.tier,
        algorithm=cost.algorithm,
        source=NCCL_SOURCE,
    )


class Sent(NamedTuple):
    """One collective of a pass, the share of layouts or the times that it is done, and its window of compute."""

    label: str
    phase: Phase
    primitive: str
    size_bytes: Array
    share: ArrayLike = 1.0
    window_s: ArrayLike = 0.0


def collective_lines(
    placed: PlacedJob, axis: Axis, name: str, group: Group, sent: Iterable[Sent], least_share: ArrayLike = 0.0
) -> list[TimeLine]:
    """Return the lines of those collectives over `group` that some layout does."""
    return [
        communication_line(
            placed,
            f"{axis}.{name}.{one.label}.{one.phase}",
            axis=axis,
            phase=one.phase,
            primitive=one.primitive,
            size_bytes=one.size_bytes,
            group=group,
            window_s=one.window_s,
            least_share=least_share,
            share=one.share,
        )
        for one in sent
        if anywhere(one.share)
    ]


def exposed_sum(lines: Iterable[TimeLine]) -> Array:
    """Exposed seconds of one execution of each line, added up. [s]"""
    return broadcast_sum([line.exposed_each_s for line in lines])


def state_group(placed: PlacedJob, part: DataPart) -> Group:
    """Return the ranks that share the optimizer's states of a part: one where nothing is sharded."""
    dense, expert = placed.shard_ranks
    whole, ranks = (placed.mesh.grad, dense) if part == "dense" else (placed.mesh.edp, expert)
    return split_group(whole, np.where(placed.shards_optimizer, ranks, 1.0))[0]


def local_params(placed: PlacedJob, params: Params) -> Array:
    """Parameters that a rank's optimizer steps, worst stage. [-]"""
    dense_ranks, expert_ranks = placed.shard_ranks
    sharded = placed.shards_optimizer
    dense = highest_on_stages(params.dense) / np.where(sharded, dense_ranks, 1.0)
    expert = highest_on_stages(params.expert) / np.where(sharded, expert_ranks, 1.0)
    return np.asarray(dense + expert)
