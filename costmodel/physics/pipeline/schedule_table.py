"""The registry of pipeline schedules: a new one is a row of `schedules.csv`, its closed forms, and the order of its tasks.

Time of one micro-batch on one stage is split in three, as zero-bubble schedules need it: forward
(F), backward towards the input (B) and backward towards the weights (W). Schedules that do not
split the backward run B and W together. A stage is everything one rank holds, so the chunk of an
interleaved schedule takes 1/v of these times.

Closed forms are text in the language of `costmodel.bill.formula`, over `NAMES` and the steps of `STEPS`, those of waits
a row of `schedule_forms.csv` a step; the text is the code. The oracle runs every order step by step (`engine`) and
holds the forms to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from costmodel.base.csv_text import read_records, read_rows
from costmodel.bill.formula import evaluate, inputs_of, with_steps
from costmodel.physics.pipeline import orders
from costmodel.physics.pipeline.stages import Fold

_HERE = Path(__file__).parent

UNLIKE: Mapping[str, str] = {row["name"]: row["alike"] for row in read_rows(_HERE / "schedule_terms.csv")}
"""Terms of the closed forms for unequal stages, and the formula of each where all stages are equal."""

WAIT_CYCLE_TERMS = tuple(name for name in UNLIKE if name.startswith(("pair_", "three_", "vee_")))
"""Terms of neighbouring ranks that wait for each other in a cycle (`stages.WaitCycles`)."""
LAYOUT = ("stages", "micro_batches", "virtual_stages")
NAMES = (
    *LAYOUT,
    *("forward_s", "backward_input_s", "backward_weight_s", "message_s", "stage", "layers"),
    *UNLIKE,
)
"""What closed forms may use: the layout, the times of the busiest rank and of a message, the rank and layers held."""

_FORMS = read_rows(_HERE / "schedule_forms.csv")
STEPS = tuple((row["step"], row["formula"]) for row in _FORMS if row["form"] == "step")
"""What several closed forms build on."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Everything that is known of a schedule; a field that is left out is an error at import."""

    name: str  # As users write it
    order: Callable[[int, int, int], orders.Orders]
    """What every rank does, from stages, micro-batches and virtual stages: the engine's task order."""
    fold: Fold  # Which stages are placed on one rank
    splits_backward: bool
    """Whether input and weight gradients are separate passes. If not, the stage with the most compute sets the pace;
    if so, the one with the most compute and bubble."""
    needs: Mapping[str, str]  # Conditions on `LAYOUT` under which it can run, by their text for messages
    bubble: str  # Time per step that the busiest rank is idle, messages not counted. [s]
    held: str
    """Micro-batches whose activations a rank holds at its peak, in units of its whole stage; never more
    than there are, and 1 without a pipeline. [-]"""
    messages: str
    """Messages between neighbours per step whose time the critical path pays where ranks compute while they send. [-]"""
    late: str
    """Time per step that the critical path waits beyond these, where messages take longer than what they
    hide behind. [s]"""
    unpaired: str
    """Micro-batches on the critical path that pass a stage with no pass of another beside them: all where
    the schedule never runs a forward and a backward together; else one, and those that fill and drain. [-]"""
    pair_held: str
    """Micro-batches of activations that running two passes together adds to `held`, in units of a whole stage. [-]"""
    source: str  # Where the order, and the forms that were not read off the simulation, come from

    @cached_property
    def weight_copies(self) -> float:
        """Copies of its parameters that a rank holds. [-]"""
        return 2.0 if self.fold is Fold.BIDIRECTIONAL else 1.0

    @cached_property
    def has_wait_cycles(self) -> bool:
        """Whether neighbouring ranks that wait for each other in a cycle may set its pace."""
        return bool(set(inputs_of(self.bubble)) & set(WAIT_CYCLE_TERMS))

    @cached_property
    def waits_by_chunk(self) -> bool:
        """Whether waits for larger chunks of other ranks may set its pace."""
        return "last_by_chunk_s" in inputs_of(self.bubble)

    @cached_property
    def waits_differ_by_rank(self) -> bool:
        """Whether equally busy ranks have different bubbles: the slowest stage is then found with its bubble."""
        return self.splits_backward or "behind" in inputs_of(with_steps(STEPS, self.bubble))

    def broken_rules(self, **layout: float) -> list[str]:
        """Return what keeps it from running with these `stages`, `micro_batches` and `virtual_stages`."""
        return [text for text, holds in self.needs.items() if not evaluate(holds, layout)]


def _waits(form: str) -> Callable[[dict[str, Any]], str]:
    """Return what finds the text of a closed form for a row of `schedules.csv`: its steps, then its result."""

    def of_schedule(schedule: dict[str, Any]) -> str:
        steps = [
            row for row in _FORMS if row["form"] == form and schedule["name"] in row["schedules"].split()
        ]
        if [row["step"] for row in steps].count("") != 1:
            raise ValueError(f"schedule_forms.csv: {schedule['name']} needs one result of {form}")
        return "; ".join(f"{row['step']} = {row['formula']}".removeprefix(" = ") for row in steps)

    return of_schedule


SCHEDULES: dict[str, Schedule] = read_records(
    _HERE / "schedules.csv",
    Schedule,
    order=lambda row: getattr(orders, row["order"]),
    fold=lambda row: Fold[row["fold"]],
    needs=lambda row: dict(rule.split(": ") for rule in row["needs"].split(" | ")),
    bubble=_waits("bubble"),
    messages=_waits("messages"),
    late=_waits("late"),
)
"""Every schedule by its name; its place here is its code."""
