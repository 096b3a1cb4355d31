"""What is sick about a step of reinforcement learning, in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from costmodel.base.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from costmodel.generation.rl_estimate import RLEstimate

_PADDED = 1.5
_LONG_REFIT = 0.2
_TAIL = 0.35
_FEW = 0.125
_WAITS = 0.25


def rl_warnings(found: RLEstimate) -> list[str]:
    """Return a sentence for everything that costs much more than it needs to, or does not fit."""
    job, step_s = found.job, found.step_time_s
    said: list[str] = []
    if job.generates and found.places < 1.0:
        said.append(
            f"The generating half does not fit: {format_bytes(found.memory['generation_weights'])} of weights leave no room for "
            f"one answer in {job.served.memory_fraction:.0%} of the GPU; split it over more GPUs (generation_layout)."
        )
    said += [f"Training: {warning}" for warning in found.training.warnings]
    whole = job.lengths.sums(job.prompt_len)
    if not job.packs and whole.longest / whole.mean > _PADDED:
        said.append(
            f"Answers are padded to {whole.longest:,.0f} tokens, {whole.longest / whole.mean:.1f} times their mean: training and "
            "log-probs compute the padding too; batching: packing leaves it out."
        )
    refit_s = sum(phase.seconds for phase in found.phases if phase.name == "refit")
    if refit_s > _LONG_REFIT * step_s:
        others = "reshard or bucketed" if not job.colocated else "ipc"
        said.append(
            f"Refit by {job.refit} takes {format_seconds(refit_s)}, {refit_s / step_s:.0%} of the step: "
            f"{others} takes a fraction of it."
        )
    if not job.generates:
        return said
    if not job.served.cuda_graphs:
        said.append(
            "The engine issues every kernel (no CUDA graphs): decode steps of few sequences wait for the host."
        )
    spans = found.spans
    few = spans.steps[spans.batch < _FEW * float(np.max(spans.batch))].sum() / spans.steps.sum()
    if few > _TAIL and (job.colocated or not job.lag):
        said.append(
            f"In {few:.0%} of the decode steps less than an eighth of the answers still run: the step waits for the longest. "
            "A lag, a lower max_response_len or more prompts a step hide that."
        )
    if found.waiting_s > _WAITS * step_s:
        said.append(
            f"The {job.train_gpus:,} GPUs that train wait {format_seconds(found.waiting_s)} of each step for answers "
            f"({found.waiting_s / step_s:.0%}): more generation_gpus or a longer lag would help."
        )
    return said
