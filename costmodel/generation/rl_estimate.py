"""A step of reinforcement learning as a graph of phases, and the figures people ask for first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.base.answer import Answer, columns_of
from costmodel.base.csv_text import read_rows
from costmodel.base.units import format_bytes, format_seconds
from costmodel.base.version import __version__
from costmodel.bill.quantity import Figure, Quantity, quantity
from costmodel.estimates.estimate import Estimate
from costmodel.estimates.record import SCHEMA_VERSION
from costmodel.generation.decode import decode_step, line_rows
from costmodel.generation.deployment import beyond_context
from costmodel.generation.memory import cache_bytes, cache_room, weights_bytes
from costmodel.generation.phases import (
    Phase,
    framework_phase,
    generation_phase,
    num_trained,
    places,
    refit_phases,
    rollout,
    trainer_bytes,
    trainer_phases,
    training_step,
)
from costmodel.generation.rl_job import RLJob
from costmodel.generation.rollout import Spans

_PADDED = 1.5  # longest over mean
_LEVELS = (np.arange(10_000) + 0.5) / 10_000
_LONG_REFIT = 0.2
_TAIL = 0.35
_FEW = 0.125
_WAITS = 0.25

OVERHEADS: dict[str, tuple[float, str]] = {
    row["framework"]: (float(row["share"]), row["source"])
    for row in read_rows(Path(__file__).with_name("rl_overheads.csv"))
}
"""Share of the phases' seconds that a framework takes beside them, by its name, with its source. [-]"""

ERROR_FACTORS = {"dense": 1.19, "experts": 1.49}
"""Four of five published steps lie within this factor of the estimate: 27 of dense models, 48 of mixtures of experts, each
with its framework's share fitted without its model (tools/fit/score_rl.py --fit). [-]"""


@dataclass(frozen=True, repr=False)
class RLEstimate(Answer):
    """A priced step of reinforcement learning. Every figure comes from the lines of its phases."""

    _device = "job.cluster.accelerator.called"

    job: RLJob
    training: Estimate
    """One optimizer step."""
    spans: Spans
    phases: tuple[Phase, ...]
    """What the GPUs do, phase by phase; the ones of a pool follow each other."""
    period: Quantity
    """Seconds from one step to the next. [s]"""

    def __repr__(self) -> str:
        """Return the step in one line."""
        job = self.job
        where = f"{job.gpus:,} GPUs of {job.cluster.name}"
        fits = "fits" if self.fits else "does not fit"
        return f"RLEstimate({job.model.name}, {job.algorithm} on {where}: {format_seconds(self.step_time_s, 4)} a step, {fits})"

    def seconds_of(self, pool: str) -> float:
        """Return the seconds that a pool is busy in a step: ``generation`` or ``training``. [s]"""
        return sum(phase.seconds for phase in self.phases if phase.pool == pool)

    @property
    def step_time_s(self) -> float:
        """Seconds from one step to the next. [s]"""
        return float(self.period.value)

    @property
    def range_s(self) -> tuple[float, float]:
        """Between which four of five published steps lie, as far off as those of like models. [s]"""
        factor = ERROR_FACTORS["experts" if self.job.model.num_experts else "dense"]
        return self.step_time_s / factor, self.step_time_s * factor

    @property
    def period_text(self) -> str:
        """What sets the time of a step whose halves overlap, with its seconds; empty where phases add up."""
        terms = self.period.terms
        if "latency_s" not in terms:
            return ""
        training, full, longest = (
            format_seconds(float(np.max(terms[name]))) for name in ("training_s", "throughput_s", "latency_s")
        )
        return (
            f"the step is {self.period.formula}: training_s {training}, throughput_s {full} (its tokens at full batches), "
            f"latency_s {longest} (the longest answer, at the batch that answers of overlapping steps make), lag {self.job.lag:g}"
        )

    @property
    def answer_latency_s(self) -> float | None:
        """From the start of the longest answer to its end; None where halves take turns. [s]."""
        terms = self.period.terms
        return float(np.max(terms["latency_s"])) if "latency_s" in terms else None

    @property
    def waiting_s(self) -> float:
        """Seconds in which the GPUs that train wait for answers; none where the same GPUs generate. [s]"""
        return 0.0 if self.job.colocated else max(self.step_time_s - self.seconds_of("training"), 0.0)

    @property
    def shares(self) -> dict[str, float]:
        """Share of the step in which each phase runs; with lag they overlap and sum to more than one. [-]"""
        found: dict[str, float] = {}
        for phase in self.phases:
            found[phase.name] = found.get(phase.name, 0.0) + phase.seconds / self.step_time_s
        return found

    tokens = Figure(
        "answers * (prompt_len + response_len)",
        "Prompt and answer tokens of a step that are trained on. [-]",
        answers="job.answers",
        prompt_len="job.prompt_len",
        response_len="job.lengths.mean",
    )
    tokens_per_s_per_gpu = Figure(
        "tokens / step_time_s / gpus", "Those tokens a second and GPU, over all GPUs. [1/s]", gpus="job.gpus"
    )
    samples_per_day = Figure(
        "answers * 86400 / step_time_s",
        "Answers trained on in a day of such steps. [-]",
        answers="job.answers",
    )

    @property
    def places(self) -> float:
        """Sequences that a replica runs together at most; below 1 the model does not fit. [-]"""
        return places(self.job)

    @property
    def fits(self) -> bool:
        """Whether both halves fit their GPUs, and what stays on them of the other."""
        capacity = float(self.job.cluster.accelerator.memory_bytes)
        memory = self.memory
        beside = memory.get("resident_optimizer", 0.0) + self.job.served.memory_fraction * capacity
        return (
            bool(self.training.fits)
            and memory["training"] <= capacity
            and (not self.job.generates or self.places >= 1.0)
            and ("resident_optimizer" not in memory or beside <= capacity)
        )

    @property
    def usd_per_step(self) -> float | None:
        """Dollars a step, where the cluster has a price. [USD]"""
        price = self.training.job.cluster.price_usd_per_gpu_hour
        return None if price is None else self.job.gpus * self.step_time_s / 3600.0 * price

    @cached_property
    def memory(self) -> dict[str, float]:
        """Bytes on one GPU of each half: what trains, and of what generates the weights and the room of the cache. [B]"""
        job = self.job
        optimizer = trainer_bytes(self.training, "optimizer")
        found = {"training": float(np.max(self.training.memory_bytes_per_gpu))}
        if job.algorithm == "ppo":
            # The critic stays beside the policy while that trains, its optimizer as the policy's does.
            critic = trainer_bytes(self.training, "parameters", "gradients")
            found["critic"] = critic + (0.0 if job.optimizer_swap else optimizer)
            found["training"] += found["critic"]
        if job.generates:
            found["generation_weights"] = float(weights_bytes(job.served, job.split))
            found["generation_cache_room"] = max(float(cache_room(job.served, job.split).value), 0.0)
            found["cache_per_token"] = float(cache_bytes(job.served, job.split, 1.0))
        if job.colocated and job.generates and job.algorithm != "ssd":
            name = "swapped_optimizer" if job.optimizer_swap else "resident_optimizer"
            found[name] = optimizer * num_trained(job)
        return found

    @cached_property
    def warnings(self) -> list[str]:
        """Plain words about what is sick or does not fit."""
        return _warnings(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and texts."""
        job = self.job
        of_job = ("algorithm", "gpus", "train_gpus", "generation_gpus", "lag", "answers")
        of_step = (
            "step_time_s",
            "waiting_s",
            "tokens_per_s_per_gpu",
            "samples_per_day",
            "usd_per_step",
            "fits",
        )
        return {
            "schema_version": SCHEMA_VERSION,
            "version": __version__,
            "model": job.model.name,
            "cluster": job.cluster.name,
            **{name: getattr(job, name) for name in of_job},
            "generation_layout": job.split.degrees,
            **{name: getattr(self, name) for name in of_step},
            "step_time_range_s": list(self.range_s),
            "period": {
                "formula": self.period.formula,
                "terms": {k: float(np.asarray(v)) for k, v in self.period.terms.items()},
            },
            "phases": [
                {
                    "phase": phase.name,
                    "pool": phase.pool,
                    "seconds": phase.seconds,
                    "share": phase.seconds / self.step_time_s,
                }
                for phase in self.phases
            ],
            "mean_running_batch": self.spans.mean_batch if job.generates else None,
            "places": self.places if job.generates else None,
            "memory_bytes": self.memory,
            "lines": self._lines(),
            "warnings": self.warnings,
        }

    def _lines(self) -> list[dict[str, Any]]:
        return [
            row for phase in self.phases for row in line_rows(phase.lines, phase=phase.name, pool=phase.pool)
        ]

    def columns(self) -> dict[str, list[Any]]:
        """Return a row a line of a phase."""
        return columns_of(self._lines())


PERIOD_TOGETHER = "generation_s + training_s"
PERIOD_APART = "max(training_s, throughput_s, (latency_s + max(1 - lag, 0) * training_s) / max(lag, 1))"


def step_period(job: RLJob, generation_s: float, training_s: float, spans: Spans) -> Quantity:
    r"""Return the seconds from one step to the next. [s]

    GPUs that train and generate in turn, or a trainer without lag, add up. With a lag of k steps the answers of k steps
    are under way while the trainer works on earlier ones (NVIDIA-NeMo/RL's ``max_trajectory_age_steps``), so that
    :math:`k T` has room for the longest answer, and below one step of lag for a part of the training too; no step is
    shorter than the training, or than decoding its tokens at the batch that those answers keep full. Answers of several
    steps then run together: the time of a decode step is that of the batch, :math:`b = n \bar l\, t(b) / T` by
    Little's law, and the tail of one step hides behind the next. What a framework takes beside the phases lengthens both.
    """
    if job.colocated or not job.generates or not job.lag:
        return quantity(PERIOD_TOGETHER, generation_s=generation_s, training_s=training_s)
    tokens = job.answers * job.rollout_factor * job.lengths.mean / job.replicas
    longest = float(spans.steps.sum()) if spans.batch[0] < places(job) else job.lengths.longest
    context = job.prompt_len + job.lengths.mean_age
    low, high = 1.0, max(min(places(job), max(job.lag, 1.0) * tokens / job.lengths.mean), 1.0)
    beside = 1.0 + OVERHEADS[job.framework][0]
    full_s = float(decode_step(job.served, job.split, high, context).step_time_s())
    throughput_s = beside * tokens * full_s / high
    # The batch that Little's law asks for falls as the batch grows: they meet once.
    for _ in range(3):
        batch = np.geomspace(low, high, 65)
        each = decode_step(job.served, job.split, batch, context).step_time_s()
        latency_s = beside * (longest * each + job.environment_s)
        # Below one step of lag no answer is under way for longer than its own length, whatever the step.
        period = np.maximum(latency_s / max(job.lag, 1.0), max(training_s, throughput_s))
        meets = batch >= tokens * each / np.minimum(period, longest * each + job.environment_s)
        at = int(np.argmax(meets)) if np.any(meets) else len(batch) - 1
        low, high = batch[max(at - 1, 0)], batch[at]
    return quantity(
        PERIOD_APART, training_s=training_s, throughput_s=throughput_s, latency_s=latency_s[at], lag=job.lag
    )


def _warnings(found: RLEstimate) -> list[str]:
    """Return a sentence for everything that costs much more than it needs to, or does not fit."""
    job, step_s = found.job, found.step_time_s
    warnings: list[str] = []
    if job.generates and found.places < 1.0:
        warnings.append(
            f"The generating half does not fit: {format_bytes(found.memory['generation_weights'])} of weights leave no room for "
            f"one answer in {job.served.memory_fraction:.0%} of the GPU; split it over more GPUs (generation_layout)."
        )
    one = f"one of {job.updates:,} optimizer steps" if job.updates > 1 else "the optimizer step"
    each_s = f"{format_seconds(found.training.step_time_s)} of the step's {format_seconds(step_s, 4)}"
    warnings += [f"Training, {one} ({each_s}): {warning}" for warning in found.training.warnings]
    if found.training.fits and not found.fits and (not job.generates or found.places >= 1.0):
        resident = found.memory.get("resident_optimizer")
        warnings.append(
            f"Training with its critic does not fit: {format_bytes(found.memory['training'])} a GPU."
            if resident is None or found.memory["training"] > job.cluster.accelerator.memory_bytes
            else f"The engine's {job.served.memory_fraction:.0%} of the GPU leave no room for {format_bytes(resident)} of "
            "optimizer that stays; optimizer_swap: true moves it, or lower memory_fraction."
        )
    whole = job.lengths.after(job.prompt_len)
    warnings += beyond_context(job.model, whole.longest)
    if job.capacity < whole.longest:
        longer = float(np.mean(whole.quantile(_LEVELS) > job.capacity))
        warnings.append(
            f"seq_len {job.capacity:,.0f} does not hold the longest answer and its prompt, {whole.longest:,.0f} tokens: "
            f"training cuts the longest {longer:.1%} off there."
        )
    if not job.packs and whole.longest / whole.mean > _PADDED:
        warnings.append(
            f"Answers are padded to {whole.longest:,.0f} tokens, {whole.longest / whole.mean:.1f} times their mean: training and "
            "log-probs compute the padding too; batching: packing leaves it out."
        )
    refit_s = sum(phase.seconds for phase in found.phases if phase.name == "refit")
    if refit_s > _LONG_REFIT * step_s:
        others = "reshard or bucketed" if not job.colocated else "ipc"
        warnings.append(
            f"Refit by {job.refit} takes {format_seconds(refit_s)}, {refit_s / step_s:.0%} of the step: "
            f"{others} takes a fraction of it."
        )
    if not job.generates:
        return warnings
    if not job.served.cuda_graphs:
        warnings.append(
            "The engine issues every kernel (no CUDA graphs): decode steps of few sequences wait for the host."
        )
    spans = found.spans
    few = spans.steps[spans.batch < _FEW * float(np.max(spans.batch))].sum() / spans.steps.sum()
    if few > _TAIL and (job.colocated or not job.lag):
        warnings.append(
            f"In {few:.0%} of the decode steps less than an eighth of the answers still run: the step waits for the longest. "
            "A lag, a lower max_response_len or more prompts a step hide that."
        )
    if found.waiting_s > _WAITS * step_s:
        warnings.append(
            f"The {job.train_gpus:,} GPUs that train wait {format_seconds(found.waiting_s)} of each step for answers "
            f"({found.waiting_s / step_s:.0%}): more generation_gpus or a longer lag would help."
        )
    return warnings


def estimate_rl_job(job: RLJob) -> RLEstimate:
    """Price a checked job of reinforcement learning; of engine layouts that are left open, the one with the shortest step."""
    training = training_step(job)
    found = (_priced(replace(job, split=split), training) for split in job.engine_layouts)
    return min(found, key=lambda one: (not one.fits, one.step_time_s))


def _priced(job: RLJob, training: Estimate) -> RLEstimate:
    """Price a job whose engine has one layout."""
    spans = rollout(job)
    generation = [generation_phase(job, spans)] if job.generates else []
    trained = [*trainer_phases(job, training), *refit_phases(job, training)]
    phases = [*generation, *trained]
    share, source = OVERHEADS[job.framework]
    if share:
        phases.append(framework_phase(phases if job.colocated or not job.lag else trained, share, source))
    busy = {pool: sum(p.seconds for p in phases if p.pool == pool) for pool in ("generation", "training")}
    period = step_period(job, busy["generation"], busy["training"], spans)
    return RLEstimate(job, training, spans, tuple(phases), period)
