"""What a pipeline schedule is: one record, every field required, closed forms as text.

Time of one micro-batch on one stage is split in three, as zero-bubble schedules need it: forward
(F), backward towards the input (B) and backward towards the weights (W). Schedules that do not
split the backward run B and W together. A stage is everything one rank holds, so the chunk of an
interleaved schedule takes 1/v of these times.

The closed forms of a record are text in the language of `costmodel.bill.formula`, over the names of
`NAMES`; the text is the code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.bill.formula import evaluate, inputs_of
from costmodel.physics.pipeline import orders
from costmodel.physics.pipeline.stages import Fold

Array = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

UNLIKE = {
    "sum_forward_s": "F of all stages together",
    "sum_backward_s": "B + W of all stages together",
    "sum_backward_weight_s": "W of all stages together",
    "plain_forward_s": "F of layers alone on the stage that has most of them",
    "plain_backward_s": "B + W of layers alone there",
    "plain_backward_weight_s": "W of layers alone there",
    "mean_forward_s": "F of layers alone on the mean stage",
    "mean_backward_s": "B + W of layers alone there",
    "mean_backward_weight_s": "W of layers alone there",
    "most_forward_s": "F of the stage that takes longest for it",
    "most_backward_s": "B + W of the stage that takes longest for them",
    "pair_forward_s": "F of the two neighbours of a V (`stages.Rings`) that take longest for it",
    "pair_input_s": "B of the two that take longest for it",
    "pair_weight_s": "W of the two that take longest for it",
    "three_forward_s": "F of the three neighbours of a V that take longest for it",
    "three_input_s": "B of the three that take longest for it",
    "vee_turn_s": "F and B of the last chunks of the first three ranks of a V",
    "last_by_chunk_s": "F + B + W of the last rank with what it waits, chunk by chunk, for larger ones of another",
    "first_chunk_s": "F + B + W of the first chunk of a mean rank before the last",
    "largest_chunk": "share of a rank's layers in its largest chunk [-]",
    "smallest_chunk": "share of a rank's layers in its smallest chunk [-]",
    "pending_weight_fraction": "share of a micro-batch's activations that W still needs when B is done: 32/34 with "
    "flash attention, 32 / (34 + 5 a s / h) where the scores are kept (arXiv:2401.10241) [-]",
    "synchronized": "1 where all ranks wait for each other at the optimizer (a gradient norm, a check for overflow): "
    "ZB-2p and ZB-V reach their bubble only where they do not [-]",
    "first": "1 where the busiest rank is the first [-]",
    "last": "1 where the busiest rank is the last [-]",
    "behind": "ranks behind the busiest one [-]",
}
"""How stages may differ, by the names of the closed forms: seconds of one micro-batch unless said otherwise."""

_LAYOUT = ("stages", "micro_batches", "virtual_stages")
_OWN = ("forward_s", "backward_input_s", "backward_weight_s")
_MEANS = ("mean_forward_s", "mean_backward_s", "mean_backward_weight_s")
RINGS = tuple(name for name in UNLIKE if name.startswith(("pair_", "three_", "vee_")))
"""Of neighbours that wait for each other in a circle."""
_OF_OTHERS = tuple(name for name in UNLIKE if name.startswith(("sum_", "plain_", "mean_")))
MESSAGE_TERMS = ("message_s", *_OWN, *_MEANS, "first", "last", *RINGS)
"""What beside the layout the messages that a step waits for may depend on."""
NAMES = {
    "chunks": ("virtual_stages",),
    "bubble": (*_LAYOUT, *_OWN, *UNLIKE),
    "held": (*_LAYOUT, "stage", "largest_chunk", "smallest_chunk"),
    "messages": (*_LAYOUT, *MESSAGE_TERMS),
    "late": (*_LAYOUT, "message_s", "forward_s", "backward_s", "backward_weight_s", *_OF_OTHERS, *RINGS),
    "unpaired": _LAYOUT,
    "pair_held": (*_LAYOUT, "layers"),
}
"""What each closed form of a record may use beside `UNLIKE`: `bubble_time_s` and `in_flight` say what the names mean."""


class Rule(NamedTuple):
    """A condition on `stages`, `micro_batches` and `virtual_stages`, and how to say it."""

    holds: str
    text: str


class Exactness(NamedTuple):
    """How far the closed forms may be from the simulation.

    Attributes
    ----------
    bubble : float
        Of the step, with equal stages, W <= F and F <= B <= 1.25 F. [-]
    messages, messages_stopping : float
        Of the step, with messages of 2 % of F. [-]
    held_on_every_rank : bool
        Whether each rank holds what the form says, or only the fullest one.
    least_stages : int
        Pipelines shorter than this are not held to it. [-]
    """

    bubble: float
    messages: float
    messages_stopping: float
    held_on_every_rank: bool
    least_stages: int


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Everything that is known of a schedule; a field that is left out is a `TypeError` at import.

    Attributes
    ----------
    name : str
        As users write it.
    order : callable
        What every rank does, from stages, micro-batches and virtual stages: the engine's task order.
    fold : Fold
        Which stages share a rank.
    chunks : str
        Chunks of a rank that a micro-batch passes. [-]
    weight_copies : float
        Copies of its parameters that a rank holds. [-]
    splits_backward : bool
        Whether the passes towards inputs and towards weights run apart. Where they do not, the stage with the most
        compute sets the pace; where they do, the one that takes longest with its bubble.
    needs : tuple of Rule
        When it can run.
    bubble : str
        Time per step that the busiest rank is idle, messages not counted. [s]
    held : str
        Micro-batches whose activations a rank holds at its peak, in units of its whole stage; never more
        than there are, and 1 without a pipeline. [-]
    messages : str
        Messages between neighbours per step whose time the critical path pays where ranks compute
        while they send. [-]
    late : str
        Time per step that the critical path waits beyond these, where messages take longer than what they
        hide behind. [s]
    unpaired : str
        Micro-batches on the critical path that pass a stage with no pass of another beside them: all where
        the schedule never runs a forward and a backward together; else one, and those that fill and drain. [-]
    pair_held : str
        Micro-batches of activations that running two passes together adds to `held`, in units of a whole
        stage. [-]
    exact : Exactness
        What the oracle holds the forms to.
    source : str
        Where the order, and the forms that were not read off the simulation, come from.

    Raises
    ------
    ValueError
        If a form uses a name that it does not get.
    """

    name: str
    order: Callable[[int, int, int], orders.Orders]
    fold: Fold
    chunks: str
    weight_copies: float
    splits_backward: bool
    needs: tuple[Rule, ...]
    bubble: str
    held: str
    messages: str
    late: str
    unpaired: str
    pair_held: str
    exact: Exactness
    source: str

    def __post_init__(self) -> None:
        """Read every formula once, so that a typing error does not wait for the first job."""
        forms = [(getattr(self, form), names) for form, names in NAMES.items()]
        for text, names in [*forms, *((rule.holds, _LAYOUT) for rule in self.needs)]:
            if unknown := sorted(set(inputs_of(text)) - set(names)):
                raise ValueError(
                    f"schedule {self.name}: {unknown[0]!r} in {text!r} is none of {', '.join(names)}"
                )

    @property
    def has_rings(self) -> bool:
        """Whether neighbours that wait for each other in a circle may set its pace."""
        return bool(set(inputs_of(self.bubble)) & set(RINGS))

    def broken_rules(self, **layout: float) -> list[Rule]:
        """Return what keeps it from running with these `stages`, `micro_batches` and `virtual_stages`."""
        return [rule for rule in self.needs if not evaluate(rule.holds, layout)]
