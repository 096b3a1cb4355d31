"""How much of a step a trace holds, where it holds only some layers of it.

Layers are counted by their attention: it is one kernel a layer and micro-batch in each pass, and a line of the bill.
Layers with experts are counted by their grouped products.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from costmodel.bill.lines import TimeLine

_CORE = re.compile(r"^compute\.((?:[\w-]+\.)?)attention\.core\.(forward|recompute)$")
_EXPERTS = re.compile(r"^compute\.((?:[\w-]+\.)?)moe\.experts\.fc1\.(forward|recompute)$")
_OF_A_LAYER = r"^\w+\.{label}(attention|mlp|moe|mixer|layer|expert_tensor)\."
_WHOLE = 0.9
"""Share of a step's layers from which a trace counts as a whole one."""


class Window(NamedTuple):
    """What of a step a trace holds.

    Attributes
    ----------
    layers : float
        Passes through a layer that the trace holds, of `of_layers` on the bill; those of a step where it is whole.
    of_layers : float
        On the bill: layers of the critical stage times micro-batches.
    scales : dict
        By beginning of the names of lines, how much of them the trace holds; empty for a whole step.
    """

    layers: float
    of_layers: float
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
    """Count the layers of a trace against those of a bill.

    Parameters
    ----------
    lines : sequence of TimeLine
        Of the bill.
    kernels : mapping
        Kernels of a step by class.
    sliced : bool
        Whether attention is cut along the sequence, so that a layer may run several kernels.
    """
    attends = _counts(lines, _CORE)
    routed = _counts(lines, _EXPERTS)
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
    found: dict[str, float] = {}
    for line in lines:
        match = pattern.match(line.name)
        if match:
            found[match[1]] = found.get(match[1], 0.0) + float(np.asarray(line.count))
    return found
