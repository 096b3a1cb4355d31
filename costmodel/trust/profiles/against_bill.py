"""A trace beside a bill: the same work on both sides, the largest disagreement first.

One table of groups says which lines of a bill and which classes of kernels are the same work. Where a trace cannot tell
two groups apart (products of experts that run one by one, passes that nothing names, an exchange of experts by NCCL),
they are laid together on both sides. Where it holds only some layers of a step, they are counted by their attention,
one kernel a layer and micro-batch in each pass, and layers with experts by their grouped products.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from costmodel.base.answer import columns_of
from costmodel.base.csv_text import read_rows
from costmodel.bill.lines import TimeLine
from costmodel.describe.recipe import Recipe
from costmodel.estimates.estimate import Estimate
from costmodel.trust.profiles.classes import COMMUNICATION, PASSES

WAITING = "waiting"  # The group whose side in the trace is the time in which the GPU does nothing
_SAME = 0.05  # Difference below which a group is called the same, as a share of the longer side. [-]
_WHOLE = 0.9  # Share of a step's layers from which a trace counts as a whole one
_ATTENTION = {
    "FlashAttention-2": "flash2",
    "FlashAttention-3": "flash3",
    "cuDNN": "cudnn",
    "Triton": "triton",
}
"""Recipe's `attention_kernel` by what families of kernels are called."""
_DISPATCHERS = {"DeepEP": "deep-ep", "HybridEP": "hybrid-ep"}  # Recipe's `moe_dispatcher` in the same way
_CORE = re.compile(r"^compute\.((?:[\w-]+\.)?)attention\.core\.(forward|recompute)$")
_EXPERTS = re.compile(r"^compute\.((?:[\w-]+\.)?)moe\.experts\.fc1\.(forward|recompute)$")
_OF_A_LAYER = r"^\w+\.{label}(attention|mlp|moe|mixer|layer|expert_tensor)\."


@dataclass(frozen=True)
class ClassTime:
    """What the kernels of one class took; the pass stands behind a dot of its name where the trace tells it.

    `busy_s` is the sum of their durations, `exposed_s` the time in which one of them ran and no computing kernel of
    another class. [s]
    """

    name: str
    count: float
    busy_s: float
    exposed_s: float


class Group(NamedTuple):
    """Work that stands on the bill and in a trace: a row of ``trust/data/line_groups.csv``."""

    name: str  # Of the group; with a pass behind a dot where it is told apart by pass
    # Regular expression of ``axis category cause host_way name`` of the bill's lines, "" where the bill has
    # none
    lines: str
    classes: tuple[str, ...]  # Classes of kernels
    # What could explain that the bill is longer, or the trace, and the switch or field that says so
    bill_longer: str
    trace_longer: str
    by_pass: bool  # Whether its passes are groups of their own


GROUPS = tuple(
    Group(**{**row, "classes": tuple(row["classes"].split()), "by_pass": row["by_pass"] == "yes"})
    for row in read_rows(Path(__file__).parents[1] / "data" / "line_groups.csv")
)
"""A line belongs to the first group whose expression is found in it."""
_BY_NAME = {group.name: group for group in GROUPS}
_BY_CLASS = {name: group for group in GROUPS for name in group.classes}


def group_of_line(line: TimeLine) -> Group:
    """Return the group of a line of the bill."""
    text = f"{line.axis} {line.category} {line.cause} {line.host_way} {line.name}"
    for group in GROUPS:
        if group.lines and re.search(group.lines, text):
            return group
    raise LookupError(f"no group of lines has {text!r}")


def _pass_of_line(line: TimeLine, group: Group) -> str:
    """Return the pass in which a trace shows a line: what runs again in the backward one, attention by its kernel forward."""
    if not group.by_pass:
        return ""
    if line.phase == "recompute":
        return "forward" if group.name == "attention" else "backward"
    return line.phase


def _group_of_class(label: str) -> tuple[str, str]:
    """Return group and pass of a class of kernels."""
    name, _, runs_in = label.partition(".")
    return _BY_CLASS[name].name, runs_in


def merged(trace: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], str]:
    """Return under which name each group and pass is shown, by the busy seconds of a trace by group and pass."""
    names: dict[tuple[str, str], str] = {}
    for group in GROUPS:
        for runs_in in PASSES if group.by_pass else ("",):
            names[group.name, runs_in] = f"{group.name}.{runs_in}" if runs_in else group.name

    def have(group: str, *passes: str) -> float:
        return sum(
            seconds for (name, runs_in), seconds in trace.items() if name == group and runs_in in passes
        )

    for name in ("attention", "matmul", "experts"):
        if have(name, "") > 0.01 * have(name, "", *PASSES) or not have(name, "", *PASSES):
            names |= {(name, runs_in): name for runs_in in (*PASSES, "")}
        elif not have(name, "backward_weight"):
            # One backward pass, whose two products the names do not tell apart.
            names |= {(name, runs_in): f"{name}.backward" for runs_in in ("backward", "backward_weight")}
        names.setdefault((name, ""), name)
    # Products of experts that are not grouped are products like others.
    if not have("experts", "", "forward", "backward"):
        names |= {("experts", runs_in): names["matmul", runs_in] for runs_in in (*PASSES, "")}
    elif not have("experts", "backward_weight"):
        names["experts", "backward_weight"] = names["matmul", "backward_weight"]
    if not have("dispatch", "") and not have("combine", ""):
        names |= {(name, ""): "point_to_point" for name in ("dispatch", "combine")}
    return names


class Window(NamedTuple):
    """What of a step a trace holds."""

    # Passes through a layer that the trace holds, of `of_layers` on the bill; those of a step where it is
    # whole
    layers: float
    of_layers: float  # On the bill: layers of the critical stage times micro-batches
    # By beginning of the names of lines, how much of them the trace holds; empty for a whole step
    scales: dict[str, float]

    def share(self, line: TimeLine) -> float:
        """Return how much of a line the trace holds: nothing of what is not in a layer. [-]"""
        if not self.scales:
            return 1.0
        for label, scale in self.scales.items():
            if re.match(_OF_A_LAYER.format(label=re.escape(label)), line.name):
                return scale
        return 0.0


def find_window(lines: Sequence[TimeLine], kernels: Mapping[str, float], *, sliced: bool) -> Window:
    """Count the layers of a trace by its kernels against those of a bill; as whole where attention is `sliced` by sequence."""
    attends, routed = _counts(lines, _CORE), _counts(lines, _EXPERTS)
    on_bill = sum(attends.values())
    seen = kernels.get("attention.forward", 0.0)
    if sliced or not on_bill or not seen or seen >= _WHOLE * on_bill:
        return Window(on_bill, on_bill, {})
    # Two grouped products a layer and pass; without any the mix is that of the bill.
    grouped = min(kernels.get("experts.forward", 0.0) / 2.0, seen)
    with_experts = grouped if routed and grouped else seen * sum(attends[label] for label in routed) / on_bill
    scales = {}
    for label, count in attends.items():
        held = with_experts if label in routed else seen - with_experts
        of_kind = sum(other for name, other in attends.items() if (name in routed) == (label in routed))
        scales[label] = held / of_kind if count else 0.0
    return Window(seen, on_bill, scales)


def _counts(lines: Sequence[TimeLine], pattern: re.Pattern[str]) -> dict[str, float]:
    """Return how often lines run by the kind of layer that they belong to."""
    found: dict[str, float] = defaultdict(float)
    for line in lines:
        if match := pattern.match(line.name):
            found[match[1]] += float(np.asarray(line.count))
    return dict(found)


class GroupTime(NamedTuple):
    """One group of lines on both sides, a step. [s]"""

    group: str  # Name of the group, with the pass behind a dot
    # Busy time
    bill_s: float
    trace_s: float
    # What the step waits for
    bill_exposed_s: float
    trace_exposed_s: float
    # Executions of lines, and kernels: one execution may be several kernels
    bill_count: float
    trace_count: float
    # What could explain the difference, and the switch that would say so; "" where there is hardly one
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


class AgainstBill(NamedTuple):
    """A trace beside a bill."""

    groups: tuple[GroupTime, ...]  # Largest difference first
    # Step time of the bill, and the mean of the trace's steps; where the trace holds some layers of a step,
    # what the bill waits for in as many. [s]
    bill_step_s: float
    trace_step_s: float
    job: str  # What was priced
    window: Window  # How much of the step the trace holds

    def records(self) -> list[dict[str, Any]]:
        """Return a record a group."""
        return [
            {
                "line_group": one.group,
                "bill_s": one.bill_s,
                "trace_s": one.trace_s,
                "difference_s": one.difference_s,
                **dict(zip(one._fields[3:], one[3:], strict=True)),
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
        return columns_of(self.records())


def profile_against_bill(
    est: Estimate, classes: Sequence[ClassTime], families: Collection[str], *, step_s: float, idle_s: float
) -> AgainstBill:
    """Lay what a step took beside what it is priced at."""
    seen: dict[tuple[str, str], float] = defaultdict(float)
    for one in classes:
        seen[_group_of_class(one.name)] += one.busy_s
    names = merged(seen)
    job, lines = est.job, est.bill.time_lines
    counts = {one.name: one.count for one in classes}
    window = find_window(lines, counts, sliced=float(job.layout.cp) > 1.0)
    # Seconds, exposed seconds and executions by group.
    bill: dict[str, Any] = defaultdict(lambda: np.zeros(3))
    trace: dict[str, Any] = defaultdict(lambda: np.zeros(3))
    for line in lines:
        group = group_of_line(line)
        took = [float(line.seconds), float(line.exposed_seconds), float(line.count)]
        bill[names[group.name, _pass_of_line(line, group)]] += window.share(line) * np.array(took)
    for one in classes:
        trace[names[_group_of_class(one.name)]] += (one.busy_s, one.exposed_s, one.count)
    trace[WAITING] += (idle_s, idle_s, 0.0)
    rows = []
    for name in dict.fromkeys((*bill, *trace)):
        ours, theirs = bill[name].tolist(), trace[name].tolist()
        if ours[0] or theirs[0]:
            reasons = (_why(name, ours[0], theirs[0], job.recipe, families), _crowded(name, theirs))
            why = "; ".join(text for text in reasons if text)
            rows.append(GroupTime(name, ours[0], theirs[0], ours[1], theirs[1], ours[2], theirs[2], why))
    rows.sort(key=lambda row: -abs(row.difference_s))
    where = f"{float(job.layout.gpus):.0f} GPUs of {job.cluster.name}"
    text = f"{job.model.name}, {where}, recipe {job.recipe.name}"
    waited = sum(window.share(line) * float(line.exposed_seconds) for line in lines)
    return AgainstBill(tuple(rows), waited, step_s, text, window)


def _why(name: str, bill_s: float, trace_s: float, recipe: Recipe, families: Collection[str]) -> str:
    """Say what could explain a difference: what the kernels' names prove, otherwise what is usual."""
    if abs(bill_s - trace_s) <= _SAME * max(bill_s, trace_s):
        return ""
    group = _BY_NAME[name.partition(".")[0]]
    proof = _proof(group.name, recipe, families)
    if proof:
        return proof
    if not trace_s and group.bill_longer:
        return f"the trace has none: {group.bill_longer}"
    if not bill_s and group.lines and group.trace_longer:
        return f"the bill has none: {group.trace_longer}"
    return group.bill_longer if bill_s > trace_s else group.trace_longer


def _crowded(name: str, trace: Sequence[float]) -> str:
    """Say where kernels that compute run beside others that do, so that their times add up to more than they take."""
    classes = _BY_NAME[name.partition(".")[0]].classes
    computes = classes and not {*classes} & {*COMMUNICATION, "memcpy", "memset"}
    if not computes or trace[1] >= (1.0 - _SAME) * trace[0]:
        return ""
    return f"{1 - trace[1] / trace[0]:.0%} of it ran beside other kernels that compute, which slows both"


def _proof(kind: str, recipe: Recipe, families: Collection[str]) -> str:
    """Return what the names of the kernels say against the recipe; "" where they agree or say nothing."""

    def ran(libraries: Mapping[str, str]) -> list[str]:
        return [name for name in libraries if any(one.startswith(name) for one in families)]

    if kind == "attention":
        kernels, priced = {_ATTENTION[name] for name in ran(_ATTENTION)}, recipe.kernels.attention_kernel
        if kernels and priced not in kernels:
            kernel = min(kernels)
            return f"the trace runs {kernel}, the bill prices {priced}: --set attention_kernel={kernel}"
    if kind in ("dispatch", "combine", "point_to_point"):
        sent_by, priced = ran(_DISPATCHERS), recipe.moe.moe_dispatcher
        if sent_by and priced != _DISPATCHERS[sent_by[0]]:
            return (
                f"the trace runs {sent_by[0]}, the bill prices {priced}: "
                f"--set moe_dispatcher={_DISPATCHERS[sent_by[0]]}"
            )
        if not sent_by and priced in _DISPATCHERS.values() and "NCCL send and receive" in families:
            return f"the trace exchanges by NCCL, the bill prices {priced}: --set moe_dispatcher=all-to-all"
    return ""
