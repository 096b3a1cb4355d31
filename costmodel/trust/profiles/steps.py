"""Where one training step of a trace ends and the next begins."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from costmodel.base.errors import CostModelError
from costmodel.trust.profiles.activities import Activities, Range, Whole

_STEP_NAMES = re.compile(
    r"^ProfilerStep#\d+$|(^|[^a-z])(train(ing)?[ _]?)?(step|iter|iteration|global_step)[ _#:=]*\d+\s*$",
    re.IGNORECASE,
)
_ALIKE = 0.98  # Share of kernels that must recur for a trace to be steps that repeat
_MOST_STEPS = 1000
_SHORTEST_STEP = 8  # Kernels; fewer that recur are a loop, and no step


class StepSpan(NamedTuple):
    """A step: its name, when its first activity began [ns], and which were done in it."""

    name: str
    first: int
    members: Whole


def find_steps(
    work: Activities, ranges: tuple[Range, ...], step_range: str = ""
) -> tuple[str, tuple[StepSpan, ...]]:
    """Tell the steps of a trace apart, and by what: ``ranges``, ``repetition``, or "" where all is one.

    By ranges of the host whose names count steps, or begin with `step_range`: a kernel belongs to the step in which it
    was issued, or where the trace does not say, in which it began. Otherwise by repetition.
    """
    if step_range:
        named = [one for one in ranges if one.name.startswith(step_range)]
        if not named:
            known = ", ".join(sorted({one.name for one in ranges})[:8]) or "none at all"
            raise CostModelError(
                f"--step-range: no range of the trace begins with {step_range!r}; it has {known}"
            )
    else:
        named = [one for one in ranges if _STEP_NAMES.search(one.name)]
    if found := _by_ranges(work, named):
        return "ranges", found
    if step_range:
        raise CostModelError(f"--step-range: nothing was issued in the ranges that begin with {step_range!r}")
    if found := _by_repetition(work):
        return "repetition", found
    return "", (StepSpan("whole trace", int(work.start_ns[0]), np.arange(work.size)),)


def _by_ranges(work: Activities, named: list[Range]) -> tuple[StepSpan, ...]:
    """Return the work of each range; ranges inside others are left out."""
    outer: list[Range] = []
    for one in named:
        if not outer or one.start_ns >= outer[-1].end_ns:
            outer.append(one)
    issued = np.where(work.launch_ns >= 0, work.launch_ns, work.start_ns)
    found = []
    for one in outer:
        members = np.flatnonzero((issued >= one.start_ns) & (issued < one.end_ns))
        if members.size:
            found.append(StepSpan(one.name, int(work.start_ns[members].min()), members))
    return tuple(found)


def _by_repetition(work: Activities) -> tuple[StepSpan, ...]:
    """Return the parts of a trace whose kernels recur in the same order; none where they do not.

    Layers recur as well, but what stands before and after them does not: hence every name must recur in each part,
    and nearly every kernel must meet its like one period later.
    """
    kernels = np.flatnonzero(work.work == 0)
    streams, counts = np.unique(work.stream[kernels], return_counts=True)
    busiest = kernels[work.stream[kernels] == streams[np.argmax(counts)]]
    names = work.name[busiest]
    period = _period(names)
    if not period:
        return ()
    starts = work.start_ns[busiest[::period]]
    # What begins before the first kernel of the stream, such as a copy, belongs to the first step.
    step = np.maximum(np.searchsorted(starts, work.start_ns, side="right") - 1, 0)
    return tuple(
        StepSpan(f"repetition {index + 1}", int(starts[index]), np.flatnonzero(step == index))
        for index in range(starts.size)
    )


def _period(names: Whole) -> int:
    """Return after how many kernels a sequence repeats, 0 where it does not."""
    size = names.size
    found, times = np.unique(names, return_counts=True)
    best, best_score = 0, _ALIKE
    periods = set()
    for name in found[np.argsort(times, kind="stable")][:200]:
        places = np.flatnonzero(names == name)
        if places.size >= 2:
            gaps = np.diff(places)
            periods |= {int(np.median(gaps)), round(size / places.size)}
    for period in sorted(periods):
        parts = size / period if period >= _SHORTEST_STEP else 0.0
        if not 2 <= round(parts) <= _MOST_STEPS or abs(parts - round(parts)) > 0.02 * parts:
            continue
        score = float((names[period:] == names[:-period]).mean())
        once = float(times[times < round(parts)].sum()) / size
        if score > best_score and once <= 1.0 - _ALIKE:
            best, best_score = period, score
    return best
