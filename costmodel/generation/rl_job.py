"""A job of reinforcement learning: a training job, what generates for it, and what a step does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from costmodel.base.errors import CostModelError
from costmodel.describe.hardware.cluster import Cluster
from costmodel.describe.hardware.hardware import load_cluster
from costmodel.describe.jobs.fields import ANSWER_LENGTHS, FIELD, JOB_FIELDS, RL_FIELDS, names
from costmodel.describe.jobs.job import expand_layout
from costmodel.describe.jobs.reading import keywords, read
from costmodel.describe.models.model import Model
from costmodel.describe.models.model_files import load_model
from costmodel.generation.deployment import (
    SERVED,
    Deployment,
    Split,
    deployment,
    divides,
    parse_split,
    value_of,
)
from costmodel.generation.rollout import Lengths, exponential_lengths, quantile_lengths, read_lengths

_ONE_ANSWER = {"ppo": 1, "distill": 1, "ssd": 1, "dpo": 2}
_COMPARES = ("grpo", "ppo", "dpo")
_ENGINE_TP = (1, 2, 4, 8, 16, 32)
_QUANTILE = re.compile(r"p?(\d+(?:\.\d+)?)\s*[=:]\s*([\d.]+[kKmM]?)")


@dataclass(frozen=True)
class RLJob:
    """A checked job of reinforcement learning."""

    training: Mapping[str, Any]
    """Keywords of `costmodel.estimate` for the GPUs that train, without what follows from the answers."""
    model: Model
    cluster: Cluster
    served: Deployment
    split: Split
    engine_layouts: tuple[Split, ...]
    """The one that is named, or every tensor parallelism that divides the model and the GPUs."""
    lengths: Lengths
    gpus: int
    algorithm: str
    prompts: int
    samples: int
    prompt_len: float
    rollout_factor: float
    optimizer_steps: int
    ppo_epochs: int
    critic_epochs: int
    """Passes of training over the answers, of the policy and of a critic. [-]"""
    packs: bool
    capacity: float
    """Tokens of a packed sequence, or of the longest one where nothing is packed. [-]"""
    reference: bool
    old_logprobs: bool
    teacher: Model | None
    reward_model: Model | None
    reward_s: float
    environment_s: float
    """That an answer waits for its environment, over all its turns. [s]"""
    generation_gpus: int
    """GPUs that only generate, 0 where all train and generate in turn. [-]"""
    lag: float
    max_running: int
    optimizer_swap: bool
    """The optimizer is in main memory while the engine runs."""
    refit: str
    framework: str

    @property
    def colocated(self) -> bool:
        """Whether the same GPUs train and generate in turn."""
        return not self.generation_gpus

    @property
    def generates(self) -> bool:
        """Whether answers are generated in the step; those of DPO are there."""
        return self.algorithm != "dpo"

    @property
    def train_gpus(self) -> int:
        """GPUs that train. [-]"""
        return self.gpus - self.generation_gpus

    @property
    def answers(self) -> int:
        """Answers of a step that are trained on. [-]"""
        return self.prompts * self.samples

    @property
    def updates(self) -> int:
        """Optimizer steps of all passes. [-]"""
        return self.optimizer_steps * self.ppo_epochs

    @property
    def replicas(self) -> float:
        """Copies of the engine. [-]"""
        return (self.generation_gpus or self.gpus) / float(self.split.gpus)


def rl_job_of(fields: Mapping[str, Any], *, who: str) -> RLJob:
    """Check and complete a job of reinforcement learning given under the names of the table."""
    given = expand_layout(keywords(fields, (*JOB_FIELDS, *RL_FIELDS), who=who))
    if "global_batch" in given:
        raise CostModelError(
            "global_batch: follows from prompts, samples_per_prompt and optimizer_steps; leave it out"
        )
    for name in ("tokens", "dataset_samples", "epochs"):
        if name in given:
            raise CostModelError(
                f"{name}: is of a training run; steps of reinforcement learning have prompts and samples_per_prompt; leave it out"
            )
    missing = [
        name for name in ("model", "gpus", "prompts", "prompt_len", "max_response_len") if name not in given
    ]
    algorithm = read("algorithm", given.get("algorithm", FIELD["algorithm"].default))
    if "samples_per_prompt" not in given and algorithm not in _ONE_ANSWER:
        missing.append("samples_per_prompt")
    if not any(name in given for name in ANSWER_LENGTHS):
        missing.append("response_len (or response_quantiles, response_file)")
    if missing:
        raise CostModelError(
            f"{who}: {', '.join(missing)} missing; in a job file model and gpus are keys, the others keys of its section rl"
        )

    one = partial(value_of, given)
    model, cluster = _loaded(one("model")), one("cluster")
    cluster = load_cluster(cluster) if isinstance(cluster, str) else cluster
    gpus, generation_gpus, optimizer_steps = one("gpus"), one("generation_gpus"), one("optimizer_steps")
    lag = one("lag", 1.0 if generation_gpus else 0.0)
    samples = one("samples_per_prompt", _ONE_ANSWER.get(algorithm))
    prompts = one("prompts")
    answers, apart, dpo = prompts * samples, generation_gpus > 0, algorithm == "dpo"
    all_generate, uneven, odd = generation_gpus >= gpus, answers % optimizer_steps, dpo and samples % 2
    swaps = apart and "optimizer_swap" in given and one("optimizer_swap")
    untaught = (algorithm == "distill") != ("teacher" in given)
    refusals = {
        f"generation_gpus: expected fewer than the {gpus:,} gpus, got {generation_gpus:,}": all_generate,
        "generation_gpus: dpo trains on answers that are there; leave it out": apart and dpo,
        "lag: GPUs that train and generate in turn have none; give generation_gpus": lag and not apart,
        f"optimizer_steps: expected a divisor of the {answers:,} answers of a step, got {optimizer_steps:,}": uneven,
        f"samples_per_prompt: dpo compares pairs; expected an even number of answers, got {samples:,}": odd,
        "optimizer_swap: GPUs that only train keep their optimizer; leave it out with generation_gpus": swaps,
        "teacher: goes with algorithm distill, which needs one": untaught,
        "critic_epochs: only ppo has a critic; leave it out": "critic_epochs" in given and algorithm != "ppo",
    }
    for refusal, holds in refusals.items():
        if holds:
            raise CostModelError(refusal)
    serving = generation_gpus or gpus
    if "generation_layout" in given:
        layouts = [parse_split("generation_layout", given["generation_layout"], serving, model)]
    else:
        tps = [tp for tp in _ENGINE_TP if serving % tp == 0 and divides(model, tp, 1.0, 1.0, 1.0)]
        layouts = [Split(tp=float(tp)) for tp in tps]
    prompt_len, longest = one("prompt_len"), one("max_response_len")
    lengths = _lengths(given, longest)
    capacity = float(read("seq_len", given["seq_len"])) if "seq_len" in given else prompt_len + longest
    if capacity < prompt_len + lengths.mean:
        raise CostModelError(
            f"seq_len: expected at least a prompt and a mean answer, {prompt_len + lengths.mean:,.0f} tokens, got {capacity:,.0f}"
        )
    taken = {name for name in names(JOB_FIELDS) if not name.startswith(("packed_", "image"))}
    taken -= {"global_batch", "seq_len"}
    training = {name: value for name, value in given.items() if name in taken}
    return RLJob(
        training={**training, "model": model, "cluster": cluster, "gpus": gpus - generation_gpus},
        model=model,
        cluster=cluster,
        served=deployment(
            model,
            cluster,
            precision=one("generation_precision"),
            memory_fraction=one("memory_fraction", 0.8 if generation_gpus else 0.6),
            **{name: one(name) for name in SERVED},
        ),
        split=layouts[0],
        engine_layouts=tuple(layouts),
        lengths=lengths,
        gpus=gpus,
        algorithm=algorithm,
        prompts=prompts,
        samples=samples,
        prompt_len=prompt_len,
        optimizer_steps=optimizer_steps,
        critic_epochs=one("critic_epochs", one("ppo_epochs")),
        packs=one("batching") == "packing",
        capacity=capacity,
        reference=one("reference", algorithm in _COMPARES),
        old_logprobs=one("old_logprobs", algorithm in ("grpo", "dapo", "ppo")),
        **{name: one(name) for name in ("rollout_factor", "ppo_epochs", "max_running")},
        **{name: _loaded(one(name)) for name in ("teacher", "reward_model")},
        reward_s=one("reward_s") or 0.0,
        environment_s=one("environment_s") or 0.0,
        generation_gpus=generation_gpus,
        lag=lag,
        optimizer_swap=one("optimizer_swap", not generation_gpus),
        refit=one("refit", "bucketed" if generation_gpus else "ipc"),
        framework=one("rl_framework"),
    )


def _lengths(given: Mapping[str, Any], longest: float) -> Lengths:
    """Return how long answers are, from the one of three ways that is given."""
    ways = [name for name in ANSWER_LENGTHS if name in given]
    if len(ways) > 1:
        raise CostModelError(f"{ways[0]} and {ways[1]}: give one of them")
    if ways[0] == "response_len":
        return exponential_lengths(read("response_len", given["response_len"]), longest)
    if ways[0] == "response_file":
        return read_lengths(read("response_file", given["response_file"]))
    text = read("response_quantiles", given["response_quantiles"])
    points = {
        float(share) / 100.0: float(read("response_len", tokens)) for share, tokens in _QUANTILE.findall(text)
    }
    if _QUANTILE.sub("", text).strip(" ,;"):
        raise CostModelError(
            f"response_quantiles: expected quantiles such as p50=800 p90=3000, got {text[:60]!r}"
        )
    return quantile_lengths(points, longest)


def _loaded(named: str | Model | None) -> Any:
    """Return a model for its name; none, and one that is a model, as they are."""
    return load_model(named) if isinstance(named, str) else named
