"""Choices beside the layout that a framework leaves to its users: switches and orders of the axes.

A search prices them on the best placements only. What a framework refuses stands in its assertions
(`costmodel.interop.assertions`), what a choice holds in the lines of the bill; what else it needs in ``choices.csv``: an
optimiser takes every saving that nothing speaks against.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.base.csv_text import read_rows
from costmodel.bill.formula import run
from costmodel.describe.frameworks import framework_of
from costmodel.describe.jobs.job import Job
from costmodel.describe.jobs.layout import Layout
from costmodel.describe.recipe import switch_text

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Choice(NamedTuple):
    """A job with one thing chosen otherwise: switches that belong together, or the order of its axes."""

    switches: Mapping[str, Any] = {}
    axis_order: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Say it as flags take it."""
        if self.axis_order:
            return f"axis order {' '.join(self.axis_order)}"
        return ", ".join(f"{name}={switch_text(value)}" for name, value in self.switches.items())

    @property
    def tuned(self) -> str:
        """What it turns, so that two choices of the same thing are not combined."""
        return "axis_order" if self.axis_order else next(iter(self.switches))

    def applied(self, job: Job) -> Job:
        """Return the job with it."""
        if self.axis_order:
            return replace(job, axis_order=self.axis_order)
        return job.switched(self.switches)

    def holds(self, job: Job) -> bool:
        """Say whether a job has it already."""
        if self.axis_order:
            return job.axis_order == self.axis_order
        return all(job.switches[name] == value for name, value in self.switches.items())


_CONDITIONS = {
    (row["framework"], row["switch"], row["value"] == "true" or row["value"]): row
    for row in read_rows(Path(__file__).with_name("choices.csv"))
}
"""Which layouts start with a choice (``starts``, a formula over what `_arguments` names), by framework, switch and value."""


def _arguments(job: Job, layout: Layout) -> dict[str, Any]:
    """Return what conditions look at: of layouts, and of their job."""
    host, model = job.recipe.host, job.model
    return {
        **{name: getattr(layout, name) for name in ("tp", "cp", "ep", "etp", "sequence_parallel")},
        "micro_batches": layout.micro_batches(job.global_batch),
        "domain": float(job.cluster.tiers[0].size),
        "has_user_buffers": job.cluster.accelerator.software.user_buffers,
        "offloads": bool(host.offload_optimizer or job.policy.offload_activations),
        "is_latent": model.attention == "mla",
        "is_compiled": job.recipe.kernels.compiled,
        "query_heads": float(model.heads_of_queries()),
        "kv_heads": float(model.heads_of_keys()),
    }


_FREE = (("tp_overlap", "weight-grad"), ("tp_overlap", "none"), ("ep_overlap", False), ("cuda_graphs", False))
"""Choices of less, which every layout starts with."""


def choices_of(job: Job, fixed: frozenset[str] = frozenset()) -> tuple[Choice, ...]:
    """Return what a job's framework lets a user choose otherwise than the job has it."""
    launches = job.recipe.launches
    framework = framework_of(launches)
    if framework is None or launches is None:
        return ()
    # A recipe of years ago leaves its users less than the framework does today.
    free = set(launches.chooses) - fixed
    found = [
        Choice(_with_scope(job, name, value))
        for name, values in framework.switches.items()
        if name in free
        for value in values
    ]
    if {"ep_overlap", "cuda_graphs"} <= free:
        # Passes cut into nodes cost launches, which graphs take away: neither may help without the other.
        found.append(Choice({"ep_overlap": True, **_with_scope(job, "cuda_graphs", True)}))
    if "axis_order" in free:
        found += [Choice(axis_order=tuple(order.split())) for order in framework.axis_orders]
    return tuple(choice for choice in found if not choice.holds(job) and _could_matter(choice, job))


def _with_scope(job: Job, name: str, value: object) -> dict[str, Any]:
    """Return a switch with those that go with it: graphs of a mixture of experts leave routed experts out."""
    if name == "cuda_graphs" and value and job.model.num_experts:
        return {name: value, "cuda_graph_scope": "attention"}
    return {name: value}


_MOST_NVLINK_PEERS = 8.0
"""GPUs that DeepEP's kernels join by NVLink (csrc/kernels/configs.cuh, NUM_MAX_NVL_PEERS)."""


def _could_matter(choice: Choice, job: Job) -> bool:
    if not job.model.num_experts:
        return not {"moe_dispatcher", "ep_overlap"} & set(choice.switches)
    # Beyond eight GPUs of one NVLink domain Hybrid-EP is what sends; up to there DeepEP, with less memory.
    wide = float(job.cluster.tiers[0].size) > _MOST_NVLINK_PEERS
    return choice.switches.get("moe_dispatcher") != ("deep-ep" if wide else "hybrid-ep")


def starts(job: Job, choices: tuple[Choice, ...], layout: Layout) -> Mask:
    """Return which of an array of layouts start with choices that a job has otherwise than its recipe.

    A choice without a condition in the job's framework is an error.
    """
    launches = job.recipe.launches
    family = "megatron" if launches and launches.framework in ("megatron", "nemo") else "torchtitan"
    fine, arguments = np.asarray(True), _arguments(job, layout)
    for name, value in (pair for choice in choices for pair in choice.switches.items()):
        if name not in ("cuda_graph_scope", "selective_modules") and (name, value) not in _FREE:
            fine = fine & np.asarray(
                run(_CONDITIONS[family, name, value]["starts"], arguments)[-1], dtype=bool
            )
    return np.asarray(fine)
