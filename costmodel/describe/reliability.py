"""How a cluster fails and how a job comes back: what a long run needs beside its step.

Presets are published rates, in ``describe/data/reliability.yaml``; a user overrides single fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from costmodel.base.errors import CostModelError, choices_hint
from costmodel.base.yaml_files import read_mapping

Checkpointing = Literal["blocking", "async", "replica"]
_NODE_OF_THE_RATES = 8.0
OnFailure = Literal["wait", "spares", "shrink", "reroute"]


class Cause(BaseModel):
    """Why jobs are interrupted: how often among all interruptions, and how long until it is known."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    count: float = Field(gt=0)
    """Interruptions in the published run; shares are over the sum of them. [-]"""
    detection_s: float | None = Field(default=None, ge=0)
    """Until it is known, where another time than `Reliability.detection_s`: a hang lasts until a time-out. [s]"""


class Reliability(BaseModel):
    """Failures, restarts and checkpoints of a long run."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str = "given"
    source: str = ""
    failures_per_node_day: float = Field(default=0.0, ge=0)
    """Interruptions of a job for each node of eight GPUs and day; other nodes count by their GPUs."""
    failures_per_gpu_day: float | None = Field(default=None, ge=0)
    """The same for each GPU, in place of the above."""
    hardware_fraction: float = Field(default=0.78, ge=0, le=1)
    """Share of failures that take a node out for repair: 78 % of Llama 3's unexpected interruptions were
    confirmed or suspected hardware (arXiv:2407.21783, section 3.3.4)."""
    planned_stops_per_day: float = Field(default=0.0, ge=0)
    """Stops for maintenance, after a checkpoint, so that no work is lost."""
    detection_s: float = Field(default=300.0, ge=0)
    """From a failure until it is known and diagnosed; MegaScale (arXiv:2402.15627, section 6.3) reports less
    than 10 minutes on average, so half of that is assumed."""
    restart_s: float = Field(default=300.0, ge=0)
    """From then until the job runs again, without loading the checkpoint: exchange of nodes, start of
    processes and communicators. 5 minutes in Kokolis et al. (arXiv:2410.21680)."""
    checkpointing: Checkpointing = "async"
    """blocking: training waits until the checkpoint is on the file system; async: it waits for the copy to the
    host's memory only; replica: that copy goes to another node's memory and recovery reads it from there."""
    checkpoint_interval_s: float | None = Field(default=None, gt=0)
    """Work between two checkpoints; the best one where not given."""
    causes: dict[str, Cause] = Field(default_factory=dict)
    """Why, where it is published: what each takes is `TrainingRun.by_cause`."""
    on_failure: OnFailure = "spares"
    """wait: until the node is repaired; spares: a node that stands ready takes its place; shrink: training goes on with
    a replica less until then; reroute: the same ranks of other replicas take its micro-batches, and no work is lost but the
    step's (Gandhi et al., ReCycle, SOSP 2024, arXiv:2405.14009, section 3)."""
    spare_nodes: int | None = Field(default=None, ge=0)
    """Nodes kept ready; where not given, as many as make the job wait for repairs 1 % of the time."""
    repair_s: float = Field(default=2 * 86400.0, ge=0)
    """Until a node that failed is back. Assumed."""
    failure_rate_error: float = Field(default=0.5, ge=0, le=3)
    """Spread of the rate (of its logarithm): between Llama 3's cluster, RSC-1 and RSC-2 it is 0.5."""
    downtime_error: float = Field(default=0.5, ge=0, le=3)
    """Spread of detection and restart (of the logarithm). Assumed."""
    step_time_error: float | None = Field(default=None, ge=0, le=1)
    """Spread of the predicted step time (of its logarithm); where not given, as the uncertain factors of its constants
    say (`Estimate.sample`)."""

    @property
    def mean_detection_s(self) -> float:
        """From a failure until it is known, over all causes. [s]."""
        total = sum(cause.count for cause in self.causes.values())
        own = sum(
            c.count * (c.detection_s - self.detection_s)
            for c in self.causes.values()
            if c.detection_s is not None
        )
        return self.detection_s + (own / total if total else 0.0)

    def failures_per_second(self, gpus: float) -> float:
        """Rate at which a job of so many GPUs is interrupted. [1/s]."""
        per_gpu = self.failures_per_gpu_day
        per_day = (
            self.failures_per_node_day * gpus / _NODE_OF_THE_RATES if per_gpu is None else per_gpu * gpus
        )
        return per_day / 86400.0


@cache
def _presets() -> dict[str, dict[str, Any]]:
    """Read the shipped file."""
    path = files("costmodel") / "describe" / "data" / "reliability.yaml"
    return read_mapping(path, example="llama3: {downtime_s: 600}")


def make_reliability(name: str, changes: Mapping[str, Any] | None = None) -> Reliability:
    """Return a preset with some fields changed."""
    if name not in _presets():
        raise CostModelError(f"reliability: {name!r} is unknown; {choices_hint(name, _presets())}")
    given = {key: value for key, value in (changes or {}).items() if value is not None}
    unknown = sorted(given.keys() - Reliability.model_fields.keys())
    if unknown:
        raise CostModelError(
            f"reliability: {unknown[0]!r} is not a field; {choices_hint(unknown[0], Reliability.model_fields)}"
        )
    if "failures_per_node_day" in given and given.get("failures_per_gpu_day") is not None:
        raise CostModelError("reliability: failures_per_node_day and failures_per_gpu_day exclude each other")
    try:
        return Reliability.model_validate({"name": name, **_presets()[name], **given})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Input should be ")
        raise CostModelError(f"{key}: expected {message}, got {first['input']!r}") from None
