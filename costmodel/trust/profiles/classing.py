"""What each kernel of a trace does, and in which pass."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.trust.profiles.activities import Activities, Recording
from costmodel.trust.profiles.intervals import Whole
from costmodel.trust.profiles.kernel_families import (
    BY_PASS,
    COMMUNICATION,
    Class,
    Pass,
    family_of,
    layout_of,
    pass_of_range,
)

_PASSES: tuple[Pass, ...] = ("", "forward", "backward", "backward_weight")


class Labels(NamedTuple):
    """What each activity does.

    Attributes
    ----------
    names : tuple of str
        Class, with the pass behind a dot where it is known; engines' copies are called `memcpy` and `memset`.
    which : Whole
        Index into `names`, an activity each.
    """

    names: tuple[str, ...]
    which: Whole

    def communicates(self) -> NDArray[np.bool_]:
        """Tell which activities move data between GPUs."""
        known = np.array([name in COMMUNICATION for name in self.names])
        return np.asarray(known[self.which])


def label(work: Activities, recording: Recording) -> Labels:
    """Class every activity.

    A pass is told by the kernel's own name; otherwise by the innermost range of the host that names one, or by the
    engine of gradients, at the time of its launch. In a backward pass a product whose layout is that of a gradient of
    weights is one. Where a trace has neither ranges nor calls, it is left open.
    """
    passes = _pass_at_launch(work, recording)
    # Few different names, many kernels: each pair of name and pass is looked up once.
    pairs, members = np.unique(work.name * len(_PASSES) + passes, return_inverse=True)
    kinds = np.zeros(pairs.size, dtype=np.int64)
    first = np.full(pairs.size, -1, dtype=np.int64)
    first[members] = np.arange(members.size)
    texts: dict[str, int] = {}
    for row, pair in enumerate(pairs):
        name, at = divmod(int(pair), len(_PASSES))
        text = _text(work.names[name], int(work.work[first[row]]), _PASSES[at])
        kinds[row] = texts.setdefault(text, len(texts))
    return Labels(tuple(texts), kinds[members])


def _text(kernel: str, work: int, launched_in: Pass) -> str:
    """Return the label of one kernel."""
    if work:
        return ("memcpy", "memset")[work - 1]
    family = family_of(kernel)
    if family.does not in BY_PASS:
        return family.does
    runs_in = family.runs_in or _of_layout(family.does, kernel, launched_in)
    return f"{family.does}.{runs_in}" if runs_in else family.does


def _of_layout(does: Class, kernel: str, launched_in: Pass) -> Pass:
    """Return the pass of a kernel whose name alone does not tell it."""
    product = does in ("matmul", "experts")
    return (
        "backward_weight"
        if launched_in == "backward" and product and layout_of(kernel) == "nt"
        else launched_in
    )


def _pass_at_launch(work: Activities, recording: Recording) -> Whole:
    """Return which pass the host was in when it issued each activity, as an index into `_PASSES`."""
    found = np.zeros(work.launch_ns.size, dtype=np.int64)
    issued = np.flatnonzero(work.launch_ns >= 0)
    order = issued[np.argsort(work.launch_ns[issued], kind="stable")]
    times, threads = work.launch_ns[order], work.thread[order]
    here = np.zeros(order.size, dtype=np.int64)
    told = [(one, pass_of_range(one.name)) for one in recording.ranges]
    told = [(one, runs_in) for one, runs_in in told if runs_in]
    if recording.backward and not told:
        here[:] = _PASSES.index("forward")
    for thread, (starts, ends) in recording.backward.items():
        of_thread = np.flatnonzero(threads == thread)
        opens = np.searchsorted(times[of_thread], starts, side="left")
        closes = np.searchsorted(times[of_thread], ends, side="left")
        for low, high in zip(opens.tolist(), closes.tolist(), strict=True):
            here[of_thread[low:high]] = _PASSES.index("backward")
    # Ranges come in order of their start, the longer first: the innermost is painted last.
    for one, runs_in in told:
        low, high = np.searchsorted(times, (one.start_ns, one.end_ns), side="left")
        here[low:high] = _PASSES.index(runs_in)
    found[order] = here
    return found
