"""Phases of a step of reinforcement learning: each is a bill, made of the bills of a training step and of a decode step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from costmodel.base.csv_text import read_records
from costmodel.bill.lines import Axis, Category, Cause, TimeLine, repeated, sum_exposed, time_line
from costmodel.describe.models.model import Model
from costmodel.estimates.estimate import Estimate, estimate
from costmodel.generation.decode import decode_step, prefill_step
from costmodel.generation.deployment import number_format
from costmodel.generation.memory import largest_batch, weights_bytes
from costmodel.generation.rl_job import RLJob
from costmodel.generation.rollout import Lengths, Spans, rollout_spans
from costmodel.step.anatomy.params import layer_param_blocks, num_params

Pool = Literal["generation", "training"]

_PACKED = 256
_PASSES = ("forward", "backward", "backward_weight", "recompute")

HOST_COPY_BYTES_PER_S = 5e9
"""Between a GPU and main memory that is not pinned, all GPUs of a node at once: optimizer and gradients of 30B 7.5 s,
of 235B 22 s on B200 (total less transfer, NVIDIA-NeMo/RL PR 3294), of DeepSeek-V3 about 20 s (PR 638). [B/s]"""


@dataclass(frozen=True)
class Phase:
    """A part of the step: its lines, and which GPUs it keeps busy."""

    name: str
    pool: Pool
    lines: tuple[TimeLine, ...]

    @cached_property
    def seconds(self) -> float:
        """Seconds of all its lines. [s]"""
        return float(sum_exposed(self.lines))


class RefitMethod(NamedTuple):
    """A way to bring weights from the trainer to the engine: a row of ``refit.csv``."""

    # Once a refit, and for each tensor. [s]
    start_s: float
    tensor_s: float
    bytes_per_s: float  # Of the slowest path. [B/s]
    moves_all: bool  # Whether the whole model passes that path, or what one generating GPU holds
    source: str  # Where it was measured


REFITS: dict[str, RefitMethod] = read_records(Path(__file__).with_name("refit.csv"), RefitMethod)
"""Every method by name."""


def packed_sequences(lengths: Lengths, capacity: float) -> float:
    """Return the packed sequences that an answer takes on average, by first fit of the longest first. [-]"""
    levels = (np.arange(_PACKED) + 0.5) / _PACKED
    rooms: list[float] = []
    for length in sorted(np.minimum(lengths.quantile(levels), capacity), reverse=True):
        at = next((index for index, room in enumerate(rooms) if length <= room), None)
        if at is None:
            rooms.append(capacity - length)
        else:
            rooms[at] -= length
    return len(rooms) / _PACKED


def training_step(job: RLJob, model: Model | None = None) -> Estimate:
    """Price one optimizer step on the answers of an RL step: packed sequences, or padded ones.

    Packed sequences hold only tokens; what remains free of their capacity costs nothing but more of them.
    """
    given = dict(job.training)
    if model is not None:
        given |= {"model": model}
        if not model.num_experts:
            given = {name: value for name, value in given.items() if name not in ("ep", "etp")}
    tp, cp, pp, vp, micro_batch = (
        int(given.get(name) or 1) for name in ("tp", "cp", "pp", "vp", "micro_batch")
    )
    # Interleaved stages take micro-batches in groups of as many as there are stages.
    ranks = max(job.train_gpus // (tp * cp * pp), 1) * micro_batch * (pp if vp > 1 else 1)
    return estimate(**given, **training_batch(job, ranks, 2 * cp * tp))


def training_batch(job: RLJob, ranks: int, parts: int) -> dict[str, Any]:
    """Return batch and lengths of an optimizer step: sequences a multiple of the ranks, tokens of the parts of one."""
    whole = job.lengths.after(job.prompt_len)
    answers, mean = job.answers / job.optimizer_steps, min(whole.mean, job.capacity)
    sequences = answers * (packed_sequences(whole, job.capacity) if job.packs else 1.0)
    batch = int(np.ceil(sequences / ranks - 1e-9)) * ranks
    length = max(answers * mean / batch, 1.0) if job.packs else min(whole.longest, job.capacity)
    length = int(np.ceil(length / parts)) * parts
    packing: dict[str, Any] = (
        {"packed_len": int(mean), "packed_spread": whole.spread} if job.packs and mean < 0.8 * length else {}
    )
    return {"global_batch": batch, "seq_len": length, **packing}


def forward_lines(est: Estimate) -> list[TimeLine]:
    """Return what of a training step its forward passes take, pipeline included.

    Lines of a pass are the training bill's. Waiting at the ends of the pipeline, messages between stages, and what is
    proportional to the rest are shared by the seconds of the passes; reducing gradients and the optimizer are left out.
    """
    lines = est.bill.time_lines
    forward = [line for line in lines if line.phase in ("forward", "param_sync")]
    passes = [line for line in lines if line.phase in _PASSES]
    whole = float(sum_exposed(passes))
    share = float(sum_exposed([line for line in passes if line.phase == "forward"])) / whole if whole else 0.0
    ends = [line for line in lines if line.phase == "step" and line.cause != "proportion"]
    part = [*forward, *repeated(ends, np.asarray(share))]
    proportional = [line for line in lines if line.cause == "proportion"]
    others = float(sum_exposed(lines)) - float(sum_exposed(proportional))
    return [*part, *repeated(proportional, np.asarray(float(sum_exposed(part)) / others))]


def trainer_bytes(est: Estimate, *parts: str) -> float:
    """Return parts of the trainer's states on the fullest GPU. [B]"""
    lines = [line.bytes for line in est.bill.memory_lines if line.part in parts and line.lasts == "step"]
    return float(np.max(sum(lines, np.asarray(0.0))))


def num_trained(job: RLJob) -> int:
    """Return the models that are trained: with PPO the critic beside the policy, as large as it. [-]"""
    return 2 if job.algorithm == "ppo" else 1


def places(job: RLJob) -> float:
    """Return the sequences that a replica runs together: those that its cache holds, and the engine takes. [-]"""
    fit = float(largest_batch(job.served, job.split, job.prompt_len + job.lengths.mean_age))
    return min(fit, job.max_running * float(job.split.dp))


def rollout(job: RLJob) -> Spans:
    """Return the decode steps of the replica that holds the longest answer, for one step's answers."""
    answers = job.answers * job.rollout_factor
    return rollout_spans(
        job.lengths,
        max(answers / job.replicas, 1.0),
        max(places(job), 1.0),
        job.prompt_len,
        of_all=answers,
    )


def generation_phase(job: RLJob, spans: Spans) -> Phase:
    """Return the rollout of one step: the prefill of a replica's prompts, and the means of all its decode steps."""
    lines: list[TimeLine] = []
    if job.prompt_len >= 1.0:
        # The answers to one prompt share its cache.
        prompts = max(job.prompts * job.rollout_factor / (job.replicas * float(job.split.dp)), 1.0)
        lines += prefill_step(job.served, job.split, prompts, job.prompt_len, host=False).time_lines
    steps = float(spans.steps.sum())
    for line in decode_step(job.served, job.split, spans.batch, spans.context).time_lines:
        lines.append(
            time_line(
                line.name,
                axis=line.axis,
                category=line.category,
                phase=line.phase,
                cause=line.cause,
                group=line.group,
                count=steps,
                formula="mean_s",
                terms={"mean_s": float((spans.steps * line.exposed_seconds).sum()) / steps},
                bytes_each=float((spans.steps * line.bytes).sum()) / steps,
                source=f"mean over the decode steps of the rollout; {line.source}",
            )
        )
    if job.environment_s:
        source = "as given; other answers decode meanwhile, and the longest ends later by it"
        lines.append(_step_line("environment", "environment_s", source, environment_s=job.environment_s))
    return Phase("generate", "generation", _named("generate", lines))


def _named(prefix: str, lines: Iterable[TimeLine]) -> tuple[TimeLine, ...]:
    """Return lines under the name of their phase."""
    return tuple(line._replace(name=f"{prefix}.{line.name}") for line in lines)


def trainer_phases(job: RLJob, est: Estimate) -> list[Phase]:
    """Return what the trainer does with the answers of a step, in order."""
    forward = forward_lines(est)
    found: list[Phase] = []

    def add(name: str, lines: Iterable[TimeLine], *more: TimeLine, times: int = job.optimizer_steps) -> None:
        label = name.replace(" ", "_").replace("-", "_")
        steps = repeated(lines, np.asarray(float(times)))
        found.append(Phase(name, "training", (*_named(label, steps), *more)))

    if job.reward_s or job.reward_model:
        scored = [] if job.reward_model is None else forward_lines(training_step(job, job.reward_model))
        given = (
            [_step_line("reward.given", "reward_s", "as given", reward_s=job.reward_s)]
            if job.reward_s
            else []
        )
        add("reward", scored, *given)
    if job.old_logprobs:
        add("old log-probs", forward)
    if job.reference:
        # The reference takes the policy's place on the GPU, and the policy comes back.
        swapped = 2.0 * trainer_bytes(est, "parameters")
        swap = _host_copy("ref_log_probs.swap", swapped, "weights of reference and policy change places")
        add("ref log-probs", forward, swap)
    if job.teacher is not None:
        add("teacher log-probs", forward_lines(training_step(job, job.teacher)))
    if job.algorithm == "ppo":
        add("values", forward)
        add("train critic", est.bill.time_lines, times=job.optimizer_steps * job.critic_epochs)
    add("train", est.bill.time_lines, times=job.updates)
    return found


def _step_line(
    name: str,
    formula: str,
    source: str,
    *,
    axis: Axis = "compute",
    category: Category = "overhead",
    cause: Cause = "work",
    moved_bytes: float = 0.0,
    **terms: float,
) -> TimeLine:
    """Return a line of a phase that is no line of a step: seconds as given, or what bytes take that move."""
    return time_line(
        name,
        axis=axis,
        category=category,
        phase="step",
        cause=cause,
        formula=formula,
        terms={"moved_bytes": moved_bytes, **terms} if moved_bytes else terms,
        bytes_each=moved_bytes,
        source=source,
    )


def framework_phase(phases: Iterable[Phase], share: float, source: str) -> Phase:
    """Return what the framework takes beside the phases: data, advantages, messages between processes."""
    seconds = sum(phase.seconds for phase in phases)
    line = _step_line(
        "framework.unexplained",
        "share * phases_s",
        source,
        cause="proportion",
        share=share,
        phases_s=seconds,
    )
    return Phase("framework", "training", (line,))


def _host_copy(name: str, moved_bytes: float, source: str) -> TimeLine:
    """Return what a copy of so many bytes of a GPU from or to main memory takes."""
    return _step_line(
        name,
        "moved_bytes / bytes_per_s",
        source,
        axis="optimizer",
        category="communication",
        moved_bytes=moved_bytes,
        bytes_per_s=HOST_COPY_BYTES_PER_S,
    )


def num_tensors(model: Model) -> int:
    """Return the tensors of a checkpoint, every expert's matrices apart. [-]"""
    count = 3
    for number, kind in enumerate(model.layer_kinds()):
        blocks = layer_param_blocks(model, kind)
        of_experts = sum(block.part == "experts" for block in blocks)
        each = len(blocks) - of_experts
        if of_experts:
            each += model.num_experts * (3 if model.gated_mlp else 2)
        count += model.kind_of_layer.count(number) * each
    return count


def refit_line(method: str, *, tensors: float, all_bytes: float, held_bytes: float) -> TimeLine:
    """Return what one refit takes: `all_bytes` are those of all weights, `held_bytes` of one generating GPU. [B]"""
    refit = REFITS[method]
    return _step_line(
        f"refit.{method}",
        "start_s + tensors * tensor_s + moved_bytes / bytes_per_s",
        refit.source,
        axis="dp",
        category="communication",
        moved_bytes=all_bytes if refit.moves_all else held_bytes,
        start_s=refit.start_s,
        tensors=tensors,
        tensor_s=refit.tensor_s,
        bytes_per_s=refit.bytes_per_s,
    )


def refit_phases(job: RLJob, est: Estimate) -> list[Phase]:
    """Return how weights come to the engine, and what of the trainer makes room for it."""
    if not job.generates or job.algorithm == "ssd":
        return []
    line = refit_line(
        job.refit,
        tensors=float(num_tensors(job.model)),
        all_bytes=2.0 * num_params(job.model),
        held_bytes=float(weights_bytes(replace(job.served, weights=number_format("bf16")), job.split)),
    )
    found = [Phase("refit", "training", (line,))]
    if job.optimizer_swap:
        moved = 2.0 * trainer_bytes(est, "optimizer") * num_trained(job)
        source = "optimizer to main memory while the engine runs, and back"
        found.append(Phase("sleep and wake", "training", (_host_copy("swap.optimizer", moved, source),)))
    return found
