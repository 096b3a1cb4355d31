"""What each kernel of a trace does, by its name, and in which pass: a table of families, each with where its names come from.

The first family whose pattern is found in a name has it; a name that none knows is of the class `UNKNOWN`, which is
a line like the others. Names tell what a library runs, not what for: a matrix product is one of experts where it is
grouped, and belongs to a pass where name or call say so.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from costmodel.base.csv_text import read_rows
from costmodel.trust.profiles.activities import WORKS, Activities, Flags, Recording, Whole

UNKNOWN = "unknown"
BY_PASS = ("matmul", "experts", "attention", "mixer")  # Classes that are told apart by pass
COMMUNICATION = (
    "dispatch",
    "combine",
    "exchange_wait",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "send_recv",
    "other_collective",
)
"""Classes that move data between GPUs, or wait for it; every other kernel computes, an unknown one too."""
PASSES = ("forward", "backward", "backward_weight")
_ANY_PASS = ("", *PASSES)


class Family(NamedTuple):
    """Kernels of one library that do one thing: a row of ``trust/data/kernel_families.csv``."""

    name: str  # Library, and what of it
    does: str  # Class of what they do
    pattern: str  # Regular expression, found anywhere in the name, whatever its case
    source: str  # Where these names come from
    runs_in: str = ""  # Pass that the name itself tells, "" where it does not


# The order counts. Communication stands first, as its arguments may hold any other word; attention before products
# (FlashAttention-3 is CUTLASS, cuDNN's names hold both words); optimizers before norms, whose helpers they share; casts
# before products, but what loads with a cast is something else.
FAMILIES = tuple(
    Family(**row) for row in read_rows(Path(__file__).parents[1] / "data" / "kernel_families.csv")
)

_UNKNOWN_FAMILY = Family("unknown", UNKNOWN, "", "no family has this name")
_PATTERNS = tuple((re.compile(family.pattern, re.IGNORECASE | re.DOTALL), family) for family in FAMILIES)


@cache
def family_of(kernel: str) -> Family:
    """Return the family of a kernel by its name."""
    return next((family for pattern, family in _PATTERNS if pattern.search(kernel)), _UNKNOWN_FAMILY)


_LAYOUT = re.compile(r"_(nn|nt|tn)(?:_|\b)|_(NN|NT|TN)[NT](?:_|\b)")


def layout_of(kernel: str) -> str:
    """Return which operands of a product are transposed, "" where its name does not say.

    A linear layer's forward product is TN, the gradient of its input NN, that of its weight NT (NVIDIA/TransformerEngine,
    transformer_engine/pytorch/module/linear.py).
    """
    found = _LAYOUT.search(kernel)
    return (found.group(1) or found.group(2)).lower() if found else ""


_WORDS_OF_PASSES = {
    "backward_weight": r"\(W\)$|(?<![a-z])(wgrad|weight[ _]grad(ient)?s?)(?![a-z])",
    "backward": r"\(B\)$|(?<![a-z])(backward|bwd)(?![a-z])",
    "forward": r"\(F\)$|(?<![a-z])(forward|fwd)(?![a-z])",
}


def pass_of_range(name: str) -> str:
    """Return the pass that a range's name tells, "" where it tells none or more than one."""
    named_passes = [each for each, words in _WORDS_OF_PASSES.items() if re.search(words, name, re.IGNORECASE)]
    return named_passes[0] if len(named_passes) == 1 or named_passes[:1] == ["backward_weight"] else ""


class Labels(NamedTuple):
    """What each activity does: an index into `names`."""

    names: tuple[str, ...]
    which: Whole

    def communicates(self) -> Flags:
        """Tell which activities move data between GPUs."""
        return np.asarray(np.isin(self.names, COMMUNICATION)[self.which])


def label(work: Activities, recording: Recording) -> Labels:
    """Class every activity.

    A pass is told by the kernel's own name; otherwise by the innermost range of the host that names one, or by the
    engine of gradients, at the time of its launch. In a backward pass a product whose layout is that of a gradient of
    weights is one. Where a trace has neither ranges nor calls, it is left open.
    """
    # Few different names, many kernels: each of them is looked up once a pass.
    keys = (work.name * len(WORKS) + work.work) * len(_ANY_PASS) + _pass_at_launch(work, recording)
    different, members = np.unique(keys, return_inverse=True)
    texts = []
    for key in different.tolist():
        named, runs_in = divmod(key, len(_ANY_PASS))
        name, kind = divmod(named, len(WORKS))
        texts.append(WORKS[kind] if kind else _text(recording.names[name], _ANY_PASS[runs_in]))
    names, which = np.unique(texts, return_inverse=True)
    return Labels(tuple(names.tolist()), which[members])


def _text(kernel: str, launched_in: str) -> str:
    """Return the label of one kernel."""
    family = family_of(kernel)
    if family.does not in BY_PASS:
        return family.does
    runs_in = family.runs_in or launched_in
    if not family.runs_in and launched_in == "backward" and family.does in ("matmul", "experts"):
        runs_in = "backward_weight" if layout_of(kernel) == "nt" else "backward"
    return f"{family.does}.{runs_in}" if runs_in else family.does


def _pass_at_launch(work: Activities, recording: Recording) -> Whole:
    """Return which pass the host was in when it issued each activity, as an index into `_ANY_PASS`."""
    found = np.zeros(work.size, dtype=np.int64)
    issued = np.flatnonzero(work.launch_ns >= 0)
    order = issued[np.argsort(work.launch_ns[issued], kind="stable")]
    times, threads = work.launch_ns[order], work.thread[order]
    here = np.zeros(order.size, dtype=np.int64)
    named_passes = [(one, pass_of_range(one.name)) for one in recording.ranges]
    named_passes = [(one, runs_in) for one, runs_in in named_passes if runs_in]
    if recording.backward and not named_passes:
        here[:] = _ANY_PASS.index("forward")
    for thread, (starts, ends) in recording.backward.items():
        of_thread = np.flatnonzero(threads == thread)
        opens = np.searchsorted(times[of_thread], starts, side="left")
        closes = np.searchsorted(times[of_thread], ends, side="left")
        for low, high in zip(opens.tolist(), closes.tolist(), strict=True):
            here[of_thread[low:high]] = _ANY_PASS.index("backward")
    # Ranges come in order of their start, the longer first: the innermost is painted last.
    for one, runs_in in named_passes:
        low, high = np.searchsorted(times, (one.start_ns, one.end_ns), side="left")
        here[low:high] = _ANY_PASS.index(runs_in)
    found[order] = here
    return found
