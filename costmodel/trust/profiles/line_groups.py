"""Which lines of a bill and which classes of kernels are the same work: one table of groups.

A group has a side on the bill and one in the trace. Where a trace cannot tell two groups apart (products of experts
that run one by one, passes that nothing names, an exchange of experts by NCCL), they are laid together on both sides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from costmodel.base.csv_text import read_rows
from costmodel.bill.lines import TimeLine
from costmodel.trust.profiles.kernel_families import COMMUNICATION

WAITING = "waiting"
"""The group whose side in the trace is the time in which the GPU does nothing."""


class Group(NamedTuple):
    """Work that stands on the bill and in a trace: a row of ``trust/data/line_groups.csv``.

    Attributes
    ----------
    name : str
        Of the group; with a pass behind a dot where it is told apart by pass.
    lines : str
        Regular expression of ``axis category cause host_way name`` of the bill's lines, "" where the bill has none.
    classes : tuple of str
        Classes of kernels.
    bill_longer, trace_longer : str
        What could explain that the bill is longer, or the trace, and the switch or field that says so.
    by_pass : bool
        Whether its passes are groups of their own.
    """

    name: str
    lines: str
    classes: tuple[str, ...]
    bill_longer: str
    trace_longer: str
    by_pass: bool = False


GROUPS = tuple(
    Group(**{**row, "classes": tuple(row["classes"].split()), "by_pass": row["by_pass"] == "yes"})
    for row in read_rows(Path(__file__).parents[1] / "data" / "line_groups.csv")
)
"""A line belongs to the first group whose expression is found in it."""

COMPUTING = frozenset(
    group.name
    for group in GROUPS
    if not set(group.classes) & {*COMMUNICATION, "memcpy", "memset"} and group.classes
)
"""Groups whose kernels compute."""

_PATTERNS = tuple((re.compile(group.lines), group) for group in GROUPS if group.lines)
_BY_CLASS = {name: group for group in GROUPS for name in group.classes}


def group_of_line(line: TimeLine) -> Group:
    """Return the group of a line of the bill.

    Raises
    ------
    LookupError
        If none has it: a line must never be left out.
    """
    text = f"{line.axis} {line.category} {line.cause} {line.host_way} {line.name}"
    for pattern, group in _PATTERNS:
        if pattern.search(text):
            return group
    raise LookupError(f"no group of lines has {text!r}")


def pass_of_line(line: TimeLine) -> str:
    """Return the pass in which a trace shows a line.

    What runs again does so in the backward pass; attention, told by its name, shows as the forward kernel that it is.
    """
    if line.phase == "recompute":
        return "forward" if group_of_line(line).name == "attention" else "backward"
    return str(line.phase)


def group_of_class(label: str) -> tuple[str, str]:
    """Return group and pass of a class of kernels as `classing.Labels` names it."""
    name, _, runs_in = label.partition(".")
    return _BY_CLASS[name].name, runs_in


def merged(trace: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], str]:
    """Return under which name each group and pass of a trace is shown, after what it cannot tell apart.

    Parameters
    ----------
    trace : mapping
        Busy seconds by group and pass.
    """
    names: dict[tuple[str, str], str] = {}
    for group in GROUPS:
        passes = ("forward", "backward", "backward_weight") if group.by_pass else ("",)
        for runs_in in passes:
            names[group.name, runs_in] = f"{group.name}.{runs_in}" if runs_in else group.name

    def have(group: str, *passes: str) -> float:
        return sum(
            seconds for (name, runs_in), seconds in trace.items() if name == group and runs_in in passes
        )

    told = ("forward", "backward", "backward_weight")
    for name in ("attention", "matmul", "experts"):
        if have(name, "") > 0.01 * have(name, "", *told) or not have(name, "", *told):
            names |= {(name, runs_in): name for runs_in in (*told, "")}
        elif not have(name, "backward_weight"):
            # One backward pass, whose two products the names do not tell apart.
            names |= {(name, runs_in): f"{name}.backward" for runs_in in ("backward", "backward_weight")}
        names.setdefault((name, ""), name)
    _without_experts(
        names, have("experts", "", "forward", "backward"), have("experts", "backward_weight"), told
    )
    if not have("dispatch", "") and not have("combine", ""):
        names |= {(name, ""): "point_to_point" for name in ("dispatch", "combine")}
    return names


def _without_experts(
    names: dict[tuple[str, str], str], grouped: float, grouped_weights: float, told: Iterable[str]
) -> None:
    """Lay products of experts that are not grouped to the other products."""
    if not grouped:
        names |= {("experts", runs_in): names["matmul", runs_in] for runs_in in (*told, "")}
    elif not grouped_weights:
        names["experts", "backward_weight"] = names["matmul", "backward_weight"]
