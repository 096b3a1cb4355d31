"""A job placed on its machine: process groups, pipeline stages and the shard of one rank, as every axis needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, reduce
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.errors import RecipeError
from costmodel.bill.lines import (
    Array,
    Axis,
    any_nonzero,
    broadcast_sum,
    highest_on_stages,
    without_constant_axes,
)
from costmodel.bill.quantity import Quantity, quantity
from costmodel.describe.factors import OTHER
from costmodel.describe.hardware.cluster import ATTENTION_KERNELS, Accelerator
from costmodel.describe.hardware.kernels import KernelConstants
from costmodel.describe.jobs.job import Job
from costmodel.describe.jobs.layout import place_groups
from costmodel.describe.models.model import LayerKind, tower_layers
from costmodel.describe.recipe import require_cores
from costmodel.physics.kernels.roofline import ScalarRate, memory_time
from costmodel.physics.network.fabric import GroupCost
from costmodel.physics.network.mesh import Group, Mesh, split_group
from costmodel.physics.network.messages import Messages
from costmodel.physics.pipeline import schedules
from costmodel.physics.pipeline.stages import (
    ChunkWaits,
    Split,
    StagePlan,
    WaitCycles,
    balanced_split,
    chunk_shares,
    plan_chunk_waits,
    plan_stages,
    plan_wait_cycles,
)
from costmodel.physics.run.stragglers import expected_maximum_normal
from costmodel.step.anatomy.operator_parts import Given, Operator, ParamBlock, Part, Role, ScalarWork, Shard
from costmodel.step.anatomy.params import Params, active_fraction, layer_param_blocks
from costmodel.step.recomputation import Recomputation

DataPart = Literal["dense", "expert"]
"""Parameters that share a group of ranks: experts have one of their own."""
DATA_PARTS: tuple[DataPart, ...] = get_args(DataPart)

OVERLAPPED_AXES: tuple[Axis, ...] = ("tp", "cp", "ep", "dp")
"""Axes whose messages overlap with compute, within a window."""


class OperatorTime(NamedTuple):
    """Seconds of one operator on one micro-batch, by pass.

    `recompute_share` of the forward pass runs again before the backward pass; `kept_bytes` of the saved activations
    are not recomputed and stay in memory.
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

    @property
    def recompute_s(self) -> Array:
        """Recomputed part of the forward pass. [s]"""
        return np.asarray(self.recompute_share * self.forward_s)


@dataclass(frozen=True)
class Block:
    """A layer of one kind, also of a tower, the embedding, the head, or the input projection of an MTP layer.

    Its lines are for one micro-batch through one such block; `critical_stage` counts how often the slowest
    stage runs it in a step.
    """

    label: str
    role: Literal["layer", "embedding", "head", "mtp", "tower"]
    by_operator: Mapping[str, OperatorTime]
    """Its operators in the order in which they run, one micro-batch."""
    parts: tuple[ParamBlock, ...]
    """Parameters of one such block, unsharded."""
    params: Params
    """Parameters of such a block on a rank. [-]"""
    trained: Params
    """Parameters with gradients. [-]"""
    quantised: Params
    """Parameters in the dtype of a frozen base. [-]"""
    num_on_stage: Array
    """Number of such blocks on each stage (last dimension). [-]"""
    runs_on_stage: Array
    """How often a micro-batch runs such blocks on each stage: every MTP layer runs the head again. [-]"""
    runs_in_model: float | Array
    """The same on all stages together. [-]"""
    kind: LayerKind | None = None
    other_share: Array | None = None
    """Its time on the second kind of nodes over that on the first. [-]"""
    frozen: bool = False
    """Whether it runs forward only: a tower without gradients and with nothing to train before it."""

    def of_role(self, role: Role) -> list[OperatorTime]:
        """Return the operators that play a role, in the order in which they run."""
        return [item for item in self.by_operator.values() if item.operator.role == role]

    def of_part(self, part: Part) -> list[OperatorTime]:
        """Return the operators of a part, in the order in which they run."""
        return [item for item in self.by_operator.values() if item.operator.part == part]

    @cached_property
    def forward_s(self) -> Array:
        """Forward pass of all operators. [s]"""
        return broadcast_sum([item.forward_s for item in self.by_operator.values()])

    @cached_property
    def backward_s(self) -> Array:
        """Their backward pass without recomputation. [s]"""
        return broadcast_sum([item.backward_s for item in self.by_operator.values()])

    @cached_property
    def recompute_s(self) -> Array:
        """Recomputed part of the forward pass. [s]"""
        return broadcast_sum([item.recompute_s for item in self.by_operator.values()])

    @cached_property
    def saved_bytes(self) -> Array:
        """Bytes that all operators save in a forward pass. [B]"""
        return broadcast_sum([item.operator.saved_bytes for item in self.by_operator.values()])

    @cached_property
    def kept_bytes(self) -> Array:
        """What of it is kept until the backward pass. [B]"""
        return broadcast_sum([item.kept_bytes for item in self.by_operator.values()])

    @cached_property
    def peak_gradient_bytes(self) -> Array:
        """Gradients alive at the widest point of the backward pass: of an operator's output and input. [B]"""
        products = [item.operator for item in self.by_operator.values() if item.operator.is_product]
        sizes = (2.0 * op.m * (op.n + op.k) * op.groups for op in products)
        return np.asarray(reduce(np.maximum, sizes, np.asarray(0.0)))


def scaled(made: Quantity, factor: Array | None) -> Quantity:
    """Return a quantity times a factor, as it is where there is none."""
    return made if factor is None else made.then("nominal_s", "factor * nominal_s", factor=factor)


@dataclass(frozen=True, kw_only=True)
class PlacedJob(Job):
    """A job, or an array of jobs that differ in layout, ready to be priced."""

    mesh: Mesh
    split: Split
    stages: StagePlan
    shard: Shard
    kinds: tuple[LayerKind, ...]
    imbalance: Array
    """Tokens of the busiest expert rank over the mean. [-]"""
    other_share: Array | None = None
    """Time on the job's other nodes over that on the cluster's own, for the same work. [-]"""

    @cached_property
    def tower(self) -> PlacedJob | None:
        """The layers of the model's tower as a job of its own, None where no images are encoded.

        All context ranks encode all images of their micro-batch, and tensor ranks too where they do not divide its heads.
        """
        own, images, layout = self.model.tower, self.images, self.layout
        if own is None or not images.per_sample:
            return None
        one = np.asarray(1.0)
        tp = np.asarray(np.where(own.num_heads % layout.tp == 0, layout.tp, 1.0))
        sp = np.asarray(layout.sequence_parallel * (tp > 1))
        layout = replace(layout, tp=tp, cp=one, ep=one, etp=one, sequence_parallel=sp)
        count, tokens = layout.micro_batch * images.per_sample, np.asarray(images.tokens * own.merge)
        shard = self.shard._replace(
            micro_batch=count,
            seq_len=tokens,
            # Scores grow with the square of an image's tokens.
            span=np.asarray(tokens * (1.0 + images.spread**2)),
            tokens=count * tokens,
            tokens_sp=np.asarray(count * tokens / np.where(sp > 0, tp, 1.0)),
            **{"tp": tp, "cp": one, "etp": one, "swaps": one},
        )
        mesh, layers = place_groups(layout, self.cluster, self.axis_order), tower_layers(own)
        return replace(self, model=layers, layout=layout, shard=shard, mesh=mesh, kinds=layers.layer_kinds())

    def of(self, block: Block) -> PlacedJob:
        """Return the job whose sizes a block has: the tower's for those of a tower."""
        return self.tower if block.role == "tower" and self.tower is not None else self

    @cached_property
    def micro_batches(self) -> Array:
        """Micro-batches a step of each replica. [-]"""
        return self.layout.micro_batches(self.global_batch)

    @property
    def given(self) -> Given:
        """Model, shard, recipe and precision, from which the operators follow."""
        return Given(self.model, self.shard, self.recipe, self.precision)

    @property
    def whole(self) -> Given:
        """The same without any parallelism, for one token."""
        return Given.whole(self.model, self.recipe, self.precision)

    @property
    def hidden(self) -> float:
        """Width of the model. [-]"""
        return float(self.model.hidden_size)

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
        """Time of memory-bound kernels; see `roofline.memory_time`. [s]"""
        per_s, rate = self.accelerator.scalar_elements_per_s, None
        if scalar is not None and per_s:
            rate = ScalarRate(scalar.size_bytes, scalar.elements, per_s)
        made = memory_time(
            moved_bytes,
            constants=self.kernels.memory,
            memory_bandwidth_bytes_per_s=self.accelerator.memory_bandwidth_bytes_per_s,
            kernels=kernels,
            cast_slowdown=cast_slowdown,
            waves=waves,
            scalar=rate,
        )
        return scaled(made, self.factors.of("memory_kernels", self.accelerator.generation))

    @property
    def contention(self) -> float:
        """Share of compute speed lost while a collective overlaps, by the cores that move its data. [-]"""
        overlap = self.recipe.overlap
        return 0.0 if overlap.collectives_on == "sparse-cores" else overlap.overlap_contention

    @property
    def launch_s(self) -> Array:
        """Host time to launch one kernel, on the host that the recipe was measured on. [s]"""
        launch_s, factor = self.recipe.host.launch_s, self.factors.of("launch")
        return np.asarray(launch_s if factor is None else factor * launch_s)

    @property
    def host_slowdown(self) -> float:
        """Launch time on this cluster's host over that on the recipe's. [-]"""
        accelerator = self.accelerator
        bound = self.recipe.host.cpu_binding
        return accelerator.host_slowdown_bound if bound else accelerator.host_slowdown

    def message_time(self, cost: GroupCost) -> Quantity:
        """Return the time of a collective, with the uncertainty factors of the fabric that it crosses. [s]"""
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
            if factor is not None and any_nonzero(here := tier == index):
                found = np.where(here, factor, found)
        return found

    def window_s(self, axis: Axis, compute_s: ArrayLike) -> ArrayLike:
        """Return the compute time that messages of an axis can overlap with. [s]"""
        factor = self.factors.of("overlap", axis) if self.factors and axis in OVERLAPPED_AXES else None
        return compute_s if factor is None else factor * np.asarray(compute_s)

    @cached_property
    def messages(self) -> Messages:
        """Costs of messages over this fabric, by the algorithms that the recipe's NCCL may choose."""
        return Messages(self.cluster.tiers, () if self.recipe.overlap.nccl_pat else ("pat",))

    @cached_property
    def gpus_per_host(self) -> Array:
        """GPUs of the job that share a host. [-]"""
        return np.asarray(np.minimum(self.layout.gpus, float(self.cluster.gpus_per_node)))

    @cached_property
    def host_link(self) -> Quantity:
        """Bandwidth of each GPU to the host's memory when all GPUs of the host use it. [B/s]

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
        return np.asarray(without_constant_axes(self.layout.zero_stage >= 1) > 0)

    @cached_property
    def shards_parameters(self) -> NDArray[np.bool_]:
        """Whether data parallelism shards the parameters (ZeRO-3, FSDP); one value where all are alike."""
        return np.asarray(without_constant_axes(self.layout.zero_stage >= 3) > 0)

    @cached_property
    def shard_ranks(self) -> Params:
        """Ranks over which dense and expert states are sharded. [-]"""
        group = self.layout.shard_group
        return Params(
            *(
                np.asarray(np.where(group == 0, ranks, np.minimum(group, ranks)))
                for ranks in (self.mesh.grad.ranks, self.mesh.edp.ranks)
            )
        )

    def state_group(self, part: DataPart) -> Group:
        """Return the ranks that share the optimizer's states of a part: one where nothing is sharded."""
        whole = self.mesh.grad if part == "dense" else self.mesh.edp
        return split_group(whole, np.where(self.shards_optimizer, self.shard_ranks.of(part), 1.0))[0]

    def optimizer_params(self, params: Params) -> Array:
        """Parameters that a rank's optimizer updates, on each stage (last dimension). [-]"""
        sharded = self.shards_optimizer[..., None]
        ranks = self.shard_ranks.for_stages()
        dense = params.dense / np.where(sharded, ranks.dense, 1.0)
        return np.asarray(dense + params.expert / np.where(sharded, ranks.expert, 1.0))

    def max_optimizer_params(self, params: Params) -> Array:
        """Parameters that an optimizer updates: the most dense ones on any stage plus the most expert ones. [-]"""
        most = Params(highest_on_stages(params.dense), highest_on_stages(params.expert))
        return np.asarray(self.optimizer_params(most.for_stages())[..., 0])

    @cached_property
    def weight_copies(self) -> Array:
        """Copies of a stage's parameters on a rank: two where a schedule runs both ways. [-]"""
        return without_constant_axes(schedules.fact("weight_copies", self.layout.schedule))

    @cached_property
    def splits_backward(self) -> NDArray[np.bool_]:
        """Whether the schedule splits input and weight gradients (zero bubble); one value where all are alike."""
        return np.asarray(without_constant_axes(schedules.fact("splits_backward", self.layout.schedule)) > 0)

    @cached_property
    def waits_differ_by_rank(self) -> NDArray[np.bool_]:
        """Whether equally busy ranks have different bubbles; one value where all are alike."""
        return np.asarray(
            without_constant_axes(schedules.fact("waits_differ_by_rank", self.layout.schedule)) > 0
        )

    @cached_property
    def wait_cycles(self) -> WaitCycles | None:
        """Neighbouring ranks that wait for each other in a cycle; None where no schedule has such."""
        if not any_nonzero(schedules.fact("has_wait_cycles", self.layout.schedule)):
            return None
        return plan_wait_cycles(self.model.kind_of_layer, len(self.kinds), self.layout.pp, self.split)

    @cached_property
    def chunk_waits(self) -> ChunkWaits | None:
        """Where the last rank waits for larger chunks of other ranks; None where no schedule interleaves."""
        layout = self.layout
        if not any_nonzero(schedules.fact("waits_by_chunk", layout.schedule)):
            return None
        return plan_chunk_waits(self.model.kind_of_layer, len(self.kinds), layout.pp, layout.vp, self.split)

    @cached_property
    def in_flight(self) -> Array:
        """Micro-batches whose activations each stage holds at its peak (last dimension: stages). [-]"""
        terms = self.schedule_terms(by_stage=True)
        return schedules.in_flight(
            **{
                name: terms[name] for name in terms if name not in ("pending_weight_fraction", "synchronized")
            },
            stage=self.stages.index,
            paired=self.overlaps_expert_exchange[..., None],
            layers=float(self.model.num_layers),
        )

    @cached_property
    def chunk_shares(self) -> tuple[Array, Array]:
        """Share of the fullest rank's layers in its largest and its smallest chunk. [-]"""
        return chunk_shares(self.stages, self.layout.vp, self.split.chunks)

    @cached_property
    def recomputation(self) -> Recomputation:
        """What is recomputed in the backward pass."""
        memory = self.recipe.memory
        return Recomputation(self.layout.recompute, memory.selective_modules, memory.recompute_early_stop)

    def schedule_terms(self, *, by_stage: bool = False) -> dict[str, Array]:
        """Return the layout's terms of the closed forms of schedules, with a last dimension for stages or without."""
        layout, (largest, smallest) = self.layout, self.chunk_shares
        terms = {
            "schedule": layout.schedule,
            "stages": layout.pp,
            "micro_batches": self.micro_batches,
            "virtual_stages": layout.vp,
            "pending_weight_fraction": self.pending_weight_fraction,
            "synchronized": np.asarray(float(self.synchronized)),
            "largest_chunk": largest,
            "smallest_chunk": smallest,
        }
        return {name: value[..., None] for name, value in terms.items()} if by_stage else terms

    @property
    def pending_weight_fraction(self) -> Array:
        """Share of a layer's activations that a delayed weight gradient still needs. [-]

        Zero-bubble schedules free the rest (scores and masks of unfused attention) with the input
        gradient: 32 of 34 + 5 a s / h bytes per token and hidden (Qi et al., arXiv:2401.10241, table 1).
        """
        scores = 0.0
        if ATTENTION_KERNELS[self.recipe.kernels.attention_kernel].writes_scores:
            scores = 5.0 * self.model.num_heads / self.hidden
        return np.asarray(32.0 / (34.0 + scores * self.seq_len))

    @property
    def synchronized(self) -> bool:
        """Whether ranks synchronise before the optimizer step; zero-bubble schedules can validate after it."""
        return not self.recipe.overlap.post_validation

    @property
    def overlaps_expert_exchange(self) -> Array:
        """1 where the experts' all-to-all overlaps with another micro-batch's compute, else 0. [-]

        Megatron-Core refuses it under full recomputation (transformer_config.py,
        `overlap_moe_expert_parallel_comm`).
        """
        wanted = self.recipe.moe.ep_overlap and self.model.num_experts > 0
        return np.asarray(wanted * (self.layout.ep > 1) * (1.0 - self.recomputation.whole_layers))


def place_job(job: Job, *, every_stage: bool = False) -> PlacedJob:
    """Place the ranks on the machine, and return the job with its groups, stages and the shard of a rank."""
    model, layout = job.model, job.layout
    kinds = tuple(model.layer_kinds())
    split = stage_split(job)
    stages = stages_of(job, split, every_stage=every_stage)
    tokens = np.asarray(layout.micro_batch * job.seq_len / layout.cp)
    tokens_sp = np.asarray(np.where(layout.sequence_parallel > 0, tokens / layout.tp, tokens))
    imbalance = _expert_imbalance(job, tokens_sp)
    mesh = place_groups(layout, job.cluster, job.axis_order)
    shard = Shard(
        micro_batch=layout.micro_batch,
        seq_len=job.seq_len,
        span=job.span,
        tokens=tokens,
        tokens_sp=tokens_sp,
        tp=layout.tp,
        cp=layout.cp,
        etp=layout.etp,
        expert_tokens=np.asarray(tokens_sp * max(model.top_k, 1) * layout.etp * imbalance),
        local_experts=np.asarray(max(model.num_experts, 1) / layout.ep),
        swaps=_ulysses_ranks(job, mesh.cp),
    )
    require_cores(job.recipe, job.cluster.accelerator)
    return PlacedJob(
        **{field.name: getattr(job, field.name) for field in fields(job)},
        mesh=mesh,
        split=split,
        stages=stages,
        shard=shard,
        kinds=kinds,
        imbalance=imbalance,
    )


def _ulysses_ranks(job: Job, group: Group) -> Array:
    """Return the size of the all-to-all (Ulysses) groups of context parallelism; the rest is a ring. [-]

    The recipe's number, or all of the innermost domain, reduced to a divisor of the group and of a rank's K/V heads;
    1 where the method has no all-to-all part.
    """
    overlap, layout = job.recipe.overlap, job.layout
    if overlap.cp_method != "a2a+p2p":
        return np.asarray(1.0)
    wanted = group.members[0] if overlap.cp_a2a_ranks == 0 else np.asarray(float(overlap.cp_a2a_ranks))
    heads = np.maximum(job.model.heads_of_keys() / layout.tp, 1.0)
    whole = (np.rint(np.asarray(each)).astype(np.int64) for each in (wanted, layout.cp, heads))
    return np.asarray(reduce(np.gcd, whole), dtype=np.float64)


def _expert_imbalance(job: Job, tokens: Array) -> Array:
    r"""Tokens of the busiest expert rank over the mean. [-]

    Where each of T tokens a rank picks k of E experts by itself, a rank of n gets
    :math:`1 + m_n \sqrt{(E - k) / ((E - 1) T k)}` times the mean on the busiest, with :math:`m_n` the
    expected maximum of n normals: picks without replacement have the variance of a hypergeometric count,
    their sum over tokens is nearly normal, and what one rank gets another lacks.
    """
    moe, model, ranks = job.recipe.moe, job.model, job.layout.ep
    factor = job.factors.of("routing")
    if moe.moe_capacity_factor > 0:
        return np.asarray(moe.moe_capacity_factor)
    if moe.moe_balance == "balanced" or model.num_experts < 2 or not any_nonzero(ranks > 1):
        return np.asarray(moe.moe_imbalance)
    if moe.moe_loads:
        return np.asarray(moe.moe_imbalance * measured_load(moe.moe_loads, model.num_experts, ranks))
    deviations = expected_maximum_normal(ranks)
    spread = quantity(
        "sqrt((experts - top_k) / ((experts - 1) * tokens * top_k))",
        experts=float(model.num_experts),
        top_k=float(model.top_k),
        tokens=tokens,
    )
    excess = deviations * spread.value
    return np.asarray(moe.moe_imbalance * (1.0 + (excess if factor is None else factor * excess)))


def measured_load(of_experts: Sequence[float], experts: int, ranks: Array) -> Array:
    """Tokens of the busiest expert rank over the mean, of measured tokens of every expert. [-]"""
    loads = np.asarray(of_experts)
    if len(loads) != experts:
        raise RecipeError(f"moe_loads: expected a load for each of {experts} experts, got {len(loads)}")
    degrees, where = np.unique(ranks, return_inverse=True)
    # A degree that does not divide the experts is no valid layout; its value is never used.
    busiest = [
        float(loads.reshape(int(degree), -1).sum(axis=1).max() * degree / loads.sum())
        if experts % int(degree) == 0
        else 1.0
        for degree in degrees
    ]
    return np.asarray(np.asarray(busiest)[where].reshape(np.shape(ranks)))


def stages_of(job: Job, split: Split, *, every_stage: bool = False) -> StagePlan:
    """Return the contents of the stages of a job that are priced; see `plan_stages`."""
    return plan_stages(
        job.model.kind_of_layer,
        len(job.model.layer_kinds()),
        job.layout.pp,
        split,
        fold=without_constant_axes(schedules.fact("fold", job.layout.schedule)),
        every_stage=every_stage,
    )


def stage_split(job: Job) -> Split:
    """Return how layers are split over pipeline stages: as `pipeline_layout` lists them, or by the recipe's rule."""
    model, memory, layout = job.model, job.recipe.memory, job.layout
    if job.balanced_stages:
        ways, chunks = (
            without_constant_axes(schedules.fact("fold", layout.schedule)),
            without_constant_axes(layout.vp),
        )
        head = head_in_layers(job)
        return balanced_split(model.kind_of_layer, layout.pp, head, model.mtp_layers, fold=ways, vp=chunks)
    # Heads x head size x hidden size four times, whatever the key-value heads, and the MLP.
    layer = 4 * model.num_heads * model.head_dim + (3 if model.gated_mlp else 2) * model.ffn_size
    head = model.vocab_size / layer if memory.head_by_work else memory.head_as_layer
    return Split(float(memory.embedding_as_layer), float(head), model.mtp_layers, job.pipeline_layout)


def head_in_layers(job: Job) -> float:
    """Return the FLOPs of head and loss in units of one layer; every MTP layer runs them again. [-]"""
    kind = job.model.layer_kinds()[-1]
    model = job.model.seen_by(kind)
    active = sum(block.count * active_fraction(model, block) for block in layer_param_blocks(model, kind))
    # Scores and their product with the values, half of them behind a causal mask.
    attends = float(kind.attends) * (0.5 if model.causal else 1.0)
    scores = attends * float(np.max(job.span)) * model.num_heads * (model.head_dim + model.v_head_dim)
    return float(model.vocab_size * model.hidden_size * (1 + model.mtp_layers) / (active + scores))
