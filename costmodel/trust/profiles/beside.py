"""A trace beside a bill: the same work on both sides, the largest disagreement first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

from costmodel.describe.recipe import Recipe
from costmodel.estimates.estimate import Estimate
from costmodel.trust.profiles.line_groups import (
    COMPUTING,
    GROUPS,
    WAITING,
    group_of_class,
    group_of_line,
    merged,
    pass_of_line,
)
from costmodel.trust.profiles.window import Window, find_window

_SAME = 0.05
"""Difference below which a group is called the same, as a share of the longer side. [-]"""
_ATTENTION = {
    "FlashAttention-2": "flash2",
    "FlashAttention-3": "flash3",
    "cuDNN": "cudnn",
    "Triton": "triton",
}
"""Recipe's `attention_kernel` by what families of kernels are called."""


class Taken(Protocol):
    """Kernels of one class in one step. [s]"""

    @property
    def name(self) -> str:
        """Class, with the pass behind a dot."""

    @property
    def count(self) -> float:
        """Kernels."""

    @property
    def busy_s(self) -> float:
        """Sum of their durations."""

    @property
    def exposed_s(self) -> float:
        """What nothing hides."""


class GroupTime(NamedTuple):
    """One group of lines on both sides, a step. [s]

    Attributes
    ----------
    group : str
        Name of the group, with the pass behind a dot.
    bill_s, trace_s : float
        Busy time.
    bill_exposed_s, trace_exposed_s : float
        What the step waits for.
    bill_count, trace_count : float
        Executions of lines, and kernels: one execution may be several kernels.
    why : str
        What could explain the difference, and the switch that would say so; "" where there is hardly one.
    """

    group: str
    bill_s: float
    trace_s: float
    bill_exposed_s: float
    trace_exposed_s: float
    bill_count: float
    trace_count: float
    why: str

    @property
    def alone_s(self) -> float:
        """Time of the trace, or where its kernels run beside others that compute, that in which they alone do."""
        crowded = self.trace_exposed_s < (1.0 - _SAME) * self.trace_s
        return self.trace_exposed_s if crowded else self.trace_s

    @property
    def difference_s(self) -> float:
        """Bill less trace."""
        return self.bill_s - self.trace_s


class Beside(NamedTuple):
    """A trace beside a bill.

    Attributes
    ----------
    groups : tuple of GroupTime
        Largest difference first.
    bill_step_s, trace_step_s : float
        Step time of the bill, and the mean of the trace's steps; where the trace holds some layers of a step, what
        the bill waits for in as many. [s]
    job : str
        What was priced.
    window : Window
        How much of the step the trace holds.
    """

    groups: tuple[GroupTime, ...]
    bill_step_s: float
    trace_step_s: float
    job: str
    window: Window

    def records(self) -> list[dict[str, Any]]:
        """Return a record a group."""
        return [
            {
                "line_group": one.group,
                "bill_s": one.bill_s,
                "trace_s": one.trace_s,
                "difference_s": one.difference_s,
                "bill_exposed_s": one.bill_exposed_s,
                "trace_exposed_s": one.trace_exposed_s,
                "bill_count": one.bill_count,
                "trace_count": one.trace_count,
                "why": one.why,
            }
            for one in self.groups
        ]

    def step_record(self) -> dict[str, Any]:
        """Return both step times, and the layers they hold."""
        return {
            "job": self.job,
            "bill_s": self.bill_step_s,
            "trace_s": self.trace_step_s,
            "difference_s": self.bill_step_s - self.trace_step_s,
            "layers": self.window.layers,
            "layers_of_step": self.window.of_layers,
        }

    def columns(self) -> dict[str, list[Any]]:
        """Return the records as columns."""
        records = self.records()
        return {key: [record[key] for record in records] for key in records[0]}


def lay_beside(
    est: Estimate, classes: Sequence[Taken], families: Collection[str], *, step_s: float, idle_s: float
) -> Beside:
    """Lay what a step took beside what it is priced at.

    Parameters
    ----------
    est : Estimate
        Of one layout.
    classes : sequence of Taken
        What the classes of kernels took in one step.
    families : collection of str
        Names of the families that were seen.
    step_s, idle_s : float
        Mean step of the trace, and in it the time in which the GPU did nothing. [s]
    """
    seen: dict[tuple[str, str], float] = defaultdict(float)
    for one in classes:
        seen[group_of_class(one.name)] += one.busy_s
    shown = merged(seen)
    lines = est.bill.time_lines
    sliced = float(est.job.layout.cp) > 1.0
    window = find_window(lines, {one.name: one.count for one in classes}, sliced=sliced)
    waited = 0.0
    bill: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    trace: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for line in lines:
        group, held = group_of_line(line), window.share(line)
        name = shown[group.name, pass_of_line(line) if group.by_pass else ""]
        _add(
            bill[name],
            held * float(line.seconds),
            held * float(line.exposed_seconds),
            held * float(line.count),
        )
        waited += held * float(line.exposed_seconds)
    for one in classes:
        _add(trace[shown[group_of_class(one.name)]], one.busy_s, one.exposed_s, one.count)
    _add(trace[WAITING], idle_s, idle_s, 0.0)
    rows = []
    for name in dict.fromkeys((*bill, *trace)):
        ours, theirs = bill[name], trace[name]
        if ours[0] or theirs[0]:
            said = (_why(name, ours[0], theirs[0], est.job.recipe, families), _crowded(name, theirs))
            why = "; ".join(text for text in said if text)
            rows.append(GroupTime(name, ours[0], theirs[0], ours[1], theirs[1], ours[2], theirs[2], why))
    rows.sort(key=lambda row: -abs(row.difference_s))
    job = est.job
    text = (
        f"{job.model.name}, {float(job.layout.gpus):.0f} GPUs of {job.cluster.name}, recipe {job.recipe.name}"
    )
    return Beside(tuple(rows), waited, step_s, text, window)


def _add(sums: list[float], *values: float) -> None:
    for at, value in enumerate(values):
        sums[at] += value


def _why(name: str, bill_s: float, trace_s: float, recipe: Recipe, families: Collection[str]) -> str:
    """Say what could explain a difference: what the kernels' names prove, otherwise what is usual."""
    difference = bill_s - trace_s
    if abs(difference) <= _SAME * max(bill_s, trace_s):
        return ""
    kind = name.partition(".")[0]
    proof = _proof(kind, recipe, families)
    if proof:
        return proof
    group = next(one for one in GROUPS if one.name == kind)
    if not trace_s and group.bill_longer:
        return f"the trace has none: {group.bill_longer}"
    if not bill_s and group.lines and group.trace_longer:
        return f"the bill has none: {group.trace_longer}"
    return group.bill_longer if difference > 0 else group.trace_longer


def _crowded(name: str, trace: Sequence[float]) -> str:
    """Say where kernels that compute run beside others that do, so that their times add up to more than they take."""
    computes = name.partition(".")[0] in COMPUTING
    if not computes or trace[1] >= (1.0 - _SAME) * trace[0]:
        return ""
    return f"{1 - trace[1] / trace[0]:.0%} of it ran beside other kernels that compute, which slows both"


def _proof(kind: str, recipe: Recipe, families: Collection[str]) -> str:
    """Return what the names of the kernels say against the recipe; "" where they agree or say nothing."""
    if kind == "attention":
        ran = {
            kernel
            for library, kernel in _ATTENTION.items()
            if any(one.startswith(library) for one in families)
        }
        priced = recipe.kernels.attention_kernel
        if ran and priced not in ran:
            kernel = min(ran)
            return f"the trace runs {kernel}, the bill prices {priced}: --set attention_kernel={kernel}"
    if kind in ("dispatch", "combine", "point_to_point"):
        kernels = {"DeepEP": "deep-ep", "HybridEP": "hybrid-ep"}
        sent_by = [name for name in kernels if any(one.startswith(name) for one in families)]
        if sent_by and recipe.moe.moe_dispatcher != kernels[sent_by[0]]:
            return (
                f"the trace runs {sent_by[0]}, the bill prices {recipe.moe.moe_dispatcher}: "
                f"--set moe_dispatcher={kernels[sent_by[0]]}"
            )
        own = recipe.moe.moe_dispatcher in kernels.values()
        if not sent_by and own and "NCCL send and receive" in families:
            return (
                f"the trace exchanges by NCCL, the bill prices {recipe.moe.moe_dispatcher}: "
                "--set moe_dispatcher=all-to-all"
            )
    return ""
