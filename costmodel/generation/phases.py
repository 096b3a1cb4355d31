"""Phases of a step of reinforcement learning: each is a bill, made of the bills of a training step and of a decode step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from costmodel.bill.lines import TimeLine, repeated, sum_exposed, time_line
from costmodel.describe.models.model import Model
from costmodel.estimates.estimate import Estimate, estimate
from costmodel.generation.decode import decode_step, prefill_step
from costmodel.generation.lengths import Lengths
from costmodel.generation.memory import largest_batch, weights_bytes
from costmodel.generation.refit import REFITS, host_copy_line, num_tensors, refit_lines
from costmodel.generation.rl_job import RLJob
from costmodel.generation.rollout import Spans, rollout_spans
from costmodel.step.anatomy.params import num_params

Array = NDArray[np.float64]
Pool = Literal["generation", "training"]

_PACKED = 256


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


def packed_sequences(lengths: Lengths, capacity: float) -> float:
    """Return the packed sequences that an answer takes on average, by first fit of the longest first. [-]

    Examples
    --------
    >>> from costmodel.generation.lengths import measured_lengths
    >>> packed_sequences(measured_lengths([600.0, 600.0]), 1000.0), packed_sequences(measured_lengths([500.0, 500.0]), 1000.0)
    (1.0, 0.5)
    """
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
    given: dict[str, Any] = {**job.training, **({"model": model} if model is not None else {})}
    if model is not None and not model.num_experts:
        given = {name: value for name, value in given.items() if name not in ("ep", "etp")}
    sharing = int(given.get("tp", 1)) * int(given.get("cp", 1)) * int(given.get("pp", 1))
    ranks = max(job.train_gpus // sharing, 1) * int(given.get("micro_batch", 1))
    parts = 2 * int(given.get("cp", 1)) * int(given.get("tp", 1))
    return estimate(**given, **training_batch(job, ranks, parts))


def training_batch(job: RLJob, ranks: int, parts: int) -> dict[str, Any]:
    """Return batch and lengths of an optimizer step: sequences a multiple of the ranks, tokens of the parts of one."""
    whole = job.lengths.sums(job.prompt_len)
    answers, mean = job.answers / job.optimizer_steps, min(whole.mean, job.capacity)
    sequences = answers * (packed_sequences(whole, job.capacity) if job.packs else 1.0)
    batch = int(np.ceil(sequences / ranks - 1e-9)) * ranks
    length = max(answers * mean / batch, 1.0) if job.packs else min(whole.longest, job.capacity)
    length = int(np.ceil(length / parts)) * parts
    packing: dict[str, Any] = (
        {"packed_len": int(mean), "packed_spread": whole.spread} if job.packs and mean < 0.8 * length else {}
    )
    return {"global_batch": batch, "seq_len": length, **packing}


def _scaled(lines: Iterable[TimeLine], prefix: str, times: float) -> tuple[TimeLine, ...]:
    """Return lines executed so many times, under the name of their phase."""
    return tuple(line._replace(name=f"{prefix}.{line.name}") for line in repeated(lines, np.asarray(times)))


def forward_lines(est: Estimate) -> list[TimeLine]:
    """Return what of a training step its forward passes take, pipeline included.

    Lines of a pass are the training bill's. Waiting at the ends of the pipeline, messages between stages, and what is
    proportional to the rest are shared by the seconds of the passes; reducing gradients and the optimizer are left out.
    """
    lines = est.bill.time_lines
    forward = [line for line in lines if line.phase in ("forward", "param_sync")]
    passes = [line for line in lines if line.phase in ("forward", "backward", "backward_weight", "recompute")]
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
    return min(fit, job.max_running * job.groups)


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


def decode_lines(job: RLJob, spans: Spans) -> list[TimeLine]:
    """Return the lines of all decode steps of a rollout, each with its mean over them."""
    bill = decode_step(job.served, job.split, spans.batch, spans.context)
    steps = float(spans.steps.sum())
    made = []
    for line in bill.time_lines:
        each = float((spans.steps * line.exposed_seconds).sum()) / steps
        made.append(
            time_line(
                line.name,
                axis=line.axis,
                category=line.category,
                phase=line.phase,
                cause=line.cause,
                group=line.group,
                count=steps,
                formula="mean_s",
                terms={"mean_s": each},
                bytes_each=float((spans.steps * line.bytes).sum()) / steps,
                source=f"mean over the decode steps of the rollout; {line.source}",
            )
        )
    return made


def prefill_lines(job: RLJob) -> list[TimeLine]:
    """Return the prefill of a replica's prompts, of which the answers to one prompt share the cache."""
    prompts = max(job.prompts * job.rollout_factor / (job.replicas * job.groups), 1.0)
    if job.prompt_len < 1.0:
        return []
    return list(prefill_step(job.served, job.split, prompts, job.prompt_len, host=False).time_lines)


def generation_phase(job: RLJob, spans: Spans) -> Phase:
    """Return the rollout of one step."""
    lines = [*prefill_lines(job), *decode_lines(job, spans)]
    return Phase(
        "generate", "generation", tuple(line._replace(name=f"generate.{line.name}") for line in lines)
    )


def trainer_phases(job: RLJob, est: Estimate) -> list[Phase]:
    """Return what the trainer does with the answers of a step, in order."""
    steps = float(job.optimizer_steps)
    forward = forward_lines(est)
    found: list[Phase] = []

    def add(
        name: str, lines: Iterable[TimeLine], times: float = steps, more: Iterable[TimeLine] = ()
    ) -> None:
        label = name.replace(" ", "_").replace("-", "_")
        found.append(Phase(name, "training", (*_scaled(lines, label, times), *more)))

    if job.reward_s or job.reward_model:
        line = time_line(
            "reward.given",
            axis="compute",
            category="overhead",
            phase="step",
            count=1.0,
            formula="reward_s",
            terms={"reward_s": job.reward_s},
            source="as given",
        )
        scored = [] if job.reward_model is None else forward_lines(training_step(job, job.reward_model))
        add("reward", scored, more=(line,) if job.reward_s else ())
    if job.old_logprobs:
        add("old log-probs", forward)
    if job.reference:
        # The reference takes the policy's place on the GPU, and the policy comes back.
        swapped = 2.0 * trainer_bytes(est, "parameters")
        swap = host_copy_line("ref_log_probs.swap", swapped, "weights of reference and policy change places")
        add("ref log-probs", forward, more=(swap,))
    if job.teacher is not None:
        add("teacher log-probs", forward_lines(training_step(job, job.teacher)))
    if job.algorithm == "ppo":
        add("values", forward)
        add("train critic", est.bill.time_lines)
    add("train", est.bill.time_lines)
    return found


def refit_phases(job: RLJob, est: Estimate) -> list[Phase]:
    """Return how weights come to the engine, and what of the trainer makes room for it."""
    if not job.generates or job.algorithm == "ssd":
        return []
    element = job.served.weights.weight_bytes
    lines = refit_lines(
        REFITS[job.refit],
        tensors=float(num_tensors(job.model)),
        all_bytes=2.0 * num_params(job.model),
        held_bytes=float(weights_bytes(job.served, job.split)) * 2.0 / element,
    )
    found = [Phase("refit", "training", tuple(lines))]
    if job.optimizer_swap:
        moved = 2.0 * trainer_bytes(est, "optimizer") * num_trained(job)
        line = host_copy_line(
            "swap.optimizer", moved, "optimizer to main memory while the engine runs, and back"
        )
        found.append(Phase("sleep and wake", "training", (line,)))
    return found
