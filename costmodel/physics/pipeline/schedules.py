"""Pipeline schedules: one record each, with its order and its closed forms, and the registry of them.

Time of one micro-batch on one stage is split in three, as zero-bubble schedules need it: forward
(F), backward towards the input (B) and backward towards the weights (W). Schedules that do not
split the backward run B and W together. A stage is everything one rank holds, so the chunk of an
interleaved schedule takes 1/v of these times.

The closed forms of a record are text in the language of `costmodel.bill.formula`, over the names of
`NAMES`; the text is the code. The functions broadcast over arrays of codes (`schedule_code`: the
position in `SCHEDULES`) and layouts. A new schedule is a new record: the oracle runs every record's
order step by step (`engine`) and holds the forms to it, within what `Exactness` states.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from costmodel.base.errors import LayoutError, choices_hint
from costmodel.bill.formula import compiled, evaluate, named_result
from costmodel.physics.pipeline import orders
from costmodel.physics.pipeline.stages import Fold

Array = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

_LAYOUT = ("stages", "micro_batches", "virtual_stages")
NAMES = {
    "chunks": ("virtual_stages",),
    "bubble": (
        *_LAYOUT,
        "forward_s",
        "backward_input_s",
        "backward_weight_s",
        "sum_forward_s",
        "sum_backward_s",
        "sum_backward_weight_s",
        "pending_weight_fraction",
        "synchronized",
        "largest_chunk",
        "smallest_chunk",
        "plain_forward_s",
        "plain_backward_s",
    ),
    "held": (*_LAYOUT, "stage", "largest_chunk", "smallest_chunk"),
    "messages": _LAYOUT,
    "late": (
        *_LAYOUT,
        "message_s",
        "forward_s",
        "backward_s",
        "sum_forward_s",
        "sum_backward_s",
        "plain_forward_s",
        "plain_backward_s",
    ),
    "messages_stopping": _LAYOUT,
    "unpaired": _LAYOUT,
    "pair_held": (*_LAYOUT, "layers"),
}
"""What each closed form of a record may use; `bubble_time_s` and `in_flight` say what the names mean."""


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
    messages_stopping : str
        The same number where a rank stands still while it sends; never fewer. [-]
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
    messages_stopping: str
    unpaired: str
    pair_held: str
    exact: Exactness
    source: str

    def __post_init__(self) -> None:
        """Read every formula once, so that a typing error does not wait for the first job."""
        forms = [(getattr(self, form), names) for form, names in NAMES.items()]
        for text, names in [*forms, *((rule.holds, _LAYOUT) for rule in self.needs)]:
            if unknown := sorted(set(compiled(text).needs) - set(names)):
                raise ValueError(
                    f"schedule {self.name}: {unknown[0]!r} in {text!r} is none of {', '.join(names)}"
                )

    def broken_rules(self, **layout: float) -> list[Rule]:
        """Return what keeps it from running with these `stages`, `micro_batches` and `virtual_stages`."""
        return [rule for rule in self.needs if not evaluate(rule.holds, layout)]


_ONE_CHUNK = Rule("virtual_stages == 1", "vp = 1")
_TWO_CHUNKS = Rule("virtual_stages == 2", "vp = 2")
_FOUR_STAGES = Rule("stages >= 4", "pp >= 4, as its block is all turn with fewer")
_TWICE_THE_STAGES = Rule("micro_batches >= 2 * stages", "at least 2·pp micro-batches")

_HOPS = "hops = stages - 1"
_OTHERS = "others_s = sum_forward_s + sum_backward_s - forward_s - backward_input_s - backward_weight_s"
# What a micro-batch runs on the other stages on its way there, and on its way back.
_THERE = f"{_HOPS}; there_s = sum_forward_s - forward_s"
_THERE_AND_BACK = f"{_THERE}; back_s = sum_backward_s - sum_backward_weight_s - backward_input_s"
_HIGH_LOW = "high_s = max(forward_s, backward_input_s); low_s = min(forward_s, backward_input_s)"
# Where all ranks wait for each other at the optimizer (a gradient norm, a check for overflow) the forward
# passes that fill the pipeline show.
_SYNCHRONIZED = "synchronized * there_s"

_BACKWARD_OF_OTHERS = "stage_s = forward_s + backward_s; others_s = sum_forward_s + sum_backward_s - stage_s"

# Every message of an inner rank; with two ranks each is an end and sends in one direction only.
_INNER = "where(stages > 2, 2, 1)"
_FILL = "2 * (stages - 2)"


def _dual(share: str, part: str) -> str:
    """Return DualPipe's bubble: `share` of the other ranks from the turn, chunk times `part` of those of the stage."""
    return (
        f"{_THERE_AND_BACK}; share = {share}; depth = share * hops; f_s = share * {part}there_s; "
        f"b_s = share * {part}back_s; w_s = depth * {part}backward_weight_s; "
        f"max(2 * f_s + max(b_s - w_s, 0), f_s + 2 * b_s - w_s - {part}forward_s)"
    )


_GPIPE = "Huang et al., arXiv:1811.06965, section 2.3"
_MEGATRON = "Narayanan et al., arXiv:2104.04473, section 2.2"
_ZERO_BUBBLE = "Qi et al., arXiv:2401.10241, tables 1, 2, 5, section 6 and appendix H"
_CONTROLLABLE = "Qi et al., arXiv:2405.15362, and its building blocks"
_DEEPSEEK = "DeepSeek-AI, arXiv:2412.19437, table 2; deepseek-ai/DualPipe"

_RECORDS = (
    Schedule(
        name="none",
        order=orders.one_f_one_b,
        fold=Fold.OWN,
        chunks="1",
        weight_copies=1.0,
        splits_backward=False,
        needs=(Rule("stages == 1", "pp = 1; several stages need a schedule such as 1f1b"), _ONE_CHUNK),
        bubble="0",
        held="1",
        messages="0",
        late="0",
        messages_stopping="0",
        # A forward of the next micro-batch beside each backward (Megatron-Core, combined_1f1b).
        unpaired="1",
        # What the forward keeps, layer by layer, the backward beside it has just freed, but for one layer.
        pair_held="1 / layers",
        exact=Exactness(0.0, 0.0, 0.0, True, 1),
        source="no pipeline",
    ),
    Schedule(
        name="naive",
        order=orders.naive,
        fold=Fold.OWN,
        chunks="1",
        weight_copies=1.0,
        splits_backward=False,
        needs=(_ONE_CHUNK,),
        bubble=f"{_OTHERS}; micro_batches * others_s",
        held="1",
        messages="2 * (stages - 1) * micro_batches",
        late="0",
        messages_stopping="2 * (stages - 1) * micro_batches",
        unpaired="micro_batches",
        pair_held="0",
        exact=Exactness(0.0, 0.0, 0.0, True, 2),
        source=_GPIPE,
    ),
    Schedule(
        name="gpipe",
        order=orders.gpipe,
        fold=Fold.OWN,
        chunks="1",
        weight_copies=1.0,
        splits_backward=False,
        needs=(_ONE_CHUNK,),
        bubble=f"{_OTHERS}; others_s",
        held="micro_batches",
        # The first micro-batch's way there and back.
        messages="2 * (stages - 1)",
        late="0",
        messages_stopping=f"2 * micro_batches + {_FILL}",
        unpaired="micro_batches",
        pair_held="0",
        exact=Exactness(0.0, 0.0, 0.0, True, 2),
        source=_GPIPE,
    ),
    Schedule(
        name="1f1b",
        order=orders.one_f_one_b,
        fold=Fold.OWN,
        chunks="1",
        weight_copies=1.0,
        splits_backward=False,
        needs=(_ONE_CHUNK,),
        bubble=f"{_OTHERS}; others_s",
        held="stages - stage",
        # The way there and back.
        messages="2 * (stages - 1)",
        # A cycle of p micro-batches passes all stages and 2 (p - 1) messages, while the slowest stage works p times.
        late=f"{_BACKWARD_OF_OTHERS}; hides_s = stage_s - others_s / max(stages - 1, 1); "
        "(micro_batches - 1 - ceil((micro_batches - 1) / stages)) * max(2 * message_s - hides_s, 0)",
        messages_stopping=f"max({_INNER} * micro_batches + {_FILL}, "
        "2 * (micro_batches + stages - 2) - 2 * ceil((micro_batches - 1) / stages))",
        unpaired="micro_batches",
        pair_held="0",
        exact=Exactness(0.0, 0.0, 0.01, True, 2),
        source=_MEGATRON,
    ),
    Schedule(
        name="interleaved",
        order=orders.interleaved,
        fold=Fold.OWN,
        chunks="virtual_stages",
        weight_copies=1.0,
        splits_backward=False,
        needs=(
            Rule("virtual_stages >= 2", "vp >= 2"),
            Rule("micro_batches % stages == 0", "micro-batches that are a multiple of pp"),
        ),
        # Forward and backward passes of a group of p micro-batches meet on ranks that are in different chunks: where
        # these are unlike, each group but one waits p - 2 times for the difference, less a smallest chunk of slack;
        # a stage that is slower by more, as it has the head, does not wait for that.
        bubble=f"{_OTHERS}; unlike = max((stages - 2) * (largest_chunk - smallest_chunk) - smallest_chunk, 0); "
        "plain_s = plain_forward_s + plain_backward_s; "
        "slower_s = forward_s + backward_input_s + backward_weight_s - plain_s; "
        "waits_s = max((micro_batches / stages - 1) * unlike * plain_s - micro_batches * slower_s, 0); "
        "0.5 * (largest_chunk + smallest_chunk) * others_s + waits_s",
        # Megatron-core's number of warm-up micro-batches, pipeline_parallel/schedules.py: p of each chunk, and as
        # many more of the first, the largest, or less of the last as a rank is before or behind the middle.
        held="beyond = stages - 2 * stage - 1; "
        "stages + max(beyond, 0) * largest_chunk + min(beyond, 0) * smallest_chunk",
        # The way of the first micro-batch through the first chunk, and of the last one back.
        messages="2 * (stages - 1)",
        # Filling and draining, a group of p micro-batches goes round p messages for each further chunk, less what
        # the slowest stage takes longer than the others. Then, round the ranks a chunk of layers alone has p slots
        # for p messages and the passes of p stages, of which one has the head, and from its forward to its backward
        # 2 v p - 1 slots for 2 (v p - 1) messages and all stages.
        late=f"{_BACKWARD_OF_OTHERS}; slot_s = stage_s / virtual_stages; "
        "fill_s = max(stages * message_s - (stages * forward_s - sum_forward_s) / virtual_stages, 0); "
        "drain_s = max(stages * message_s - (stages * backward_s - sum_backward_s) / virtual_stages, 0); "
        "plain_s = plain_forward_s + plain_backward_s; "
        "around_s = (plain_s + (stage_s - plain_s) / stages - max(plain_forward_s, plain_backward_s)) / virtual_stages; "
        "chunks = virtual_stages * stages; "
        "back_s = ((2 * chunks - 1) * slot_s - stage_s - others_s) / (2 * max(chunks - 1, 1)); "
        "(virtual_stages - 1) * (fill_s + drain_s) "
        "+ (virtual_stages - 1) * max(micro_batches - stages, 0) * max(message_s - around_s, 0) "
        "+ (stages - 1) * micro_batches / stages * max(message_s - back_s, 0)",
        messages_stopping=f"2 * virtual_stages * micro_batches + {_FILL}",
        unpaired="1 + (stages - 1) / virtual_stages",
        # One more chunk warms up (get_pp_rank_microbatches).
        pair_held="1 / virtual_stages",
        exact=Exactness(0.0, 0.0, 0.01, True, 2),
        source=_MEGATRON,
    ),
    Schedule(
        name="zb-h1",
        order=orders.zb_h1,
        fold=Fold.OWN,
        chunks="1",
        weight_copies=1.0,
        splits_backward=True,
        needs=(_ONE_CHUNK,),
        # A rank fills with weight gradients what it would wait, one for each that it may put off.
        bubble=f"{_THERE_AND_BACK}; filled_s = min(hops, micro_batches - 1) * min(backward_weight_s, forward_s); "
        f"max(there_s + back_s - filled_s, {_SYNCHRONIZED})",
        held="stages",
        messages="4 * (stages - 1)",
        late="0",
        messages_stopping=f"{_INNER} * micro_batches + {_FILL}",
        unpaired="micro_batches",
        pair_held="0",
        exact=Exactness(0.0, 0.0, 0.01, True, 2),
        source=f"{_ZERO_BUBBLE}: searched for the memory of 1F1B (ZB-1p)",
    ),
    Schedule(
        name="zb-2p",
        order=orders.zb_2p,
        fold=Fold.OWN,
        chunks="1",
        weight_copies=1.0,
        splits_backward=True,
        needs=(_ONE_CHUNK,),
        bubble=f"{_THERE_AND_BACK}; filled = min(2 * hops / pending_weight_fraction, micro_batches - 1); "
        "filled_s = filled * min(backward_weight_s, forward_s); "
        f"max(there_s + back_s - filled_s, {_SYNCHRONIZED})",
        held="2 * stages - 1",
        messages="2 * (stages - 1)",
        late="0",
        messages_stopping=f"{_INNER} * micro_batches + {_FILL}",
        unpaired="micro_batches",
        pair_held="0",
        exact=Exactness(0.0, 0.0, 0.01, True, 2),
        source=f"{_ZERO_BUBBLE}: searched for twice the memory of 1F1B (ZB-2p)",
    ),
    Schedule(
        name="zb-v",
        order=orders.zb_v,
        fold=Fold.VEE,
        chunks="2",
        weight_copies=1.0,
        splits_backward=True,
        needs=(_TWO_CHUNKS,),
        bubble=f"{_THERE_AND_BACK}; {_HIGH_LOW}; "
        # Fewer micro-batches than stages do not fill the way there, fewer than two a stage not that of both chunks.
        "few = max(stages - micro_batches, 0) / max(hops, 1); put_off = min(micro_batches, stages) - 0.5; "
        "way_s = max(there_s, back_s) + few * min(there_s, back_s) - put_off * backward_weight_s; "
        "fill_s = 0.5 * max(2 * stages - micro_batches - 1, 0) / max(hops, 1) * there_s; "
        "late_s = 0.5 * min(hops, 2 * micro_batches - 1) * (backward_weight_s - low_s); "
        "ends_s = few * there_s + 0.5 * max(there_s, back_s, hops * backward_weight_s); "
        "max(way_s, fill_s, late_s, synchronized * ends_s)",
        held="stages",
        messages="6 * (stages - 1)",
        late="0",
        messages_stopping=f"2 * {_INNER} * micro_batches + {_FILL}",
        unpaired="micro_batches",
        pair_held="0",
        exact=Exactness(0.025, 0.01, 0.01, True, 2),
        source=f"{_ZERO_BUBBLE}; bubble read off the simulation",
    ),
    Schedule(
        name="dualpipe",
        order=orders.dualpipe,
        fold=Fold.BOTH_WAYS,
        chunks="1",
        weight_copies=2.0,
        splits_backward=True,
        needs=(
            Rule("stages % 2 == 0", "an even pp"),
            Rule("micro_batches % 2 == 0", "an even number of micro-batches"),
            _TWICE_THE_STAGES,
            _ONE_CHUNK,
        ),
        # A forward and backward in a pair are taken to last their sum; overlap inside a pair belongs
        # into F, B and W.
        bubble=_dual("(0.5 * stages - 1) / max(hops, 1)", ""),
        held="stages + 1",
        messages="micro_batches * (stages - 1) / stages + 3 * (0.5 * stages - 1)",
        late="0",
        messages_stopping=f"{_INNER} * micro_batches + {_FILL}",
        unpaired="0.5 * stages",
        pair_held="0",
        exact=Exactness(0.025, 0.0, 0.01, True, 2),
        source=f"{_DEEPSEEK}; bubble read off the simulation",
    ),
    Schedule(
        name="dualpipe-v",
        order=orders.dualpipe_v,
        fold=Fold.VEE,
        chunks="2",
        weight_copies=1.0,
        splits_backward=True,
        needs=(_TWO_CHUNKS, _TWICE_THE_STAGES),
        bubble=_dual("1", "0.5 * "),
        held="stages + 0.5",
        messages="2 * micro_batches * (stages - 1) / stages + 2.5 * (stages - 1)",
        late="0",
        messages_stopping=f"2 * {_INNER} * micro_batches + {_FILL}",
        unpaired="1 + 0.5 * (stages - 1)",
        pair_held="0",
        exact=Exactness(0.025, 0.01, 0.01, True, 2),
        source=f"{_DEEPSEEK}; bubble read off the simulation",
    ),
    Schedule(
        name="v-half",
        order=orders.v_half,
        fold=Fold.VEE,
        chunks="2",
        weight_copies=1.0,
        splits_backward=True,
        needs=(_TWO_CHUNKS, _FOUR_STAGES),
        # The block repeats every six units of one chunk's pass, F, I and W alike; where they differ it repeats with
        # its slowest cycle: one of F, I and W each, two F and a W, or two I and half a W.
        bubble=f"{_THERE_AND_BACK}; f_s = there_s / max(hops, 1); b_s = back_s / max(hops, 1); half = floor(0.5 * stages); "
        "even = stages % 2 == 0; put_off = min(half + 0.5, micro_batches - 0.5); "
        "block_s = half * f_s + floor(1.5 * hops) * b_s - put_off * min(backward_weight_s, backward_input_s); "
        "more_f_s = micro_batches * (forward_s - backward_input_s) + (stages - 2 - 2 * even) * f_s "
        "+ (stages + 2 * even) * b_s - put_off * backward_weight_s; "
        "put_w = min(0.5 * micro_batches + 0.25 * (stages + 1 - even), micro_batches - 0.5); "
        "more_b_s = micro_batches * (backward_input_s - forward_s) + (stages + even) * f_s "
        "+ (stages - 2 - even) * b_s - put_w * backward_weight_s; "
        "max(block_s, more_f_s, more_b_s)",
        held="floor((stages + 2) / 2)",
        messages="2 * micro_batches + 4 * (stages - 1)",
        late="0",
        messages_stopping=f"2 * {_INNER} * micro_batches + {_FILL}",
        unpaired="micro_batches",
        pair_held="0",
        exact=Exactness(0.005, 0.02, 0.01, False, 4),
        source=f"{_CONTROLLABLE}; bubble read off the simulation",
    ),
    Schedule(
        name="v-min",
        order=orders.v_min,
        fold=Fold.VEE,
        chunks="2",
        weight_copies=1.0,
        splits_backward=True,
        needs=(_TWO_CHUNKS, _FOUR_STAGES),
        # The same with three F, or three I, in the slowest cycle.
        bubble=f"{_THERE_AND_BACK}; f_s = there_s / max(hops, 1); b_s = back_s / max(hops, 1); "
        "third = 1.5 * (stages % 3 == 0); put_w = micro_batches - 0.5; "
        "block_s = there_s + back_s - 0.5 * backward_weight_s; "
        "more_f_s = micro_batches * (2 * forward_s - backward_input_s) + (stages - 3 - third) * f_s "
        "+ (stages + third) * b_s - put_w * backward_weight_s; "
        "more_b_s = micro_batches * (2 * backward_input_s - forward_s) + (stages + third) * f_s "
        "+ (stages - 3 - third) * b_s - put_w * backward_weight_s; "
        "max(block_s, more_f_s, more_b_s)",
        held="floor((stages + 4) / 3)",
        messages="6 * micro_batches * (stages - 1) / stages + 3 * (stages - 2)",
        late="0",
        messages_stopping=f"where(stages > 2, 6, 3) * micro_batches + {_FILL}",
        unpaired="micro_batches",
        pair_held="0",
        exact=Exactness(0.005, 0.15, 0.01, False, 4),
        source=f"{_CONTROLLABLE}; bubble read off the simulation",
    ),
)

SCHEDULES: dict[str, Schedule] = {record.name: record for record in _RECORDS}
"""Every schedule by its name; its place here is its code."""


def schedule_code(name: str) -> int:
    """Return the integer code of a schedule's name.

    Raises
    ------
    LayoutError
        If there is no schedule of this name; the message lists the nearest ones.

    Examples
    --------
    >>> schedule_code("1f1b")
    3
    """
    key = name.strip().lower().replace("_", "-")
    if key not in SCHEDULES:
        raise LayoutError(f"schedule: no schedule is called {name!r}; {choices_hint(key, SCHEDULES)}")
    return list(SCHEDULES).index(key)


def schedule_at(code: ArrayLike) -> Schedule:
    """Return the record that one code stands for.

    Raises
    ------
    LayoutError
        If it stands for none.

    >>> schedule_at(3.0).name
    '1f1b'
    """
    number = int(np.asarray(code).item())
    if not 0 <= number < len(SCHEDULES):
        raise LayoutError(f"schedule: expected a code from 0 to {len(SCHEDULES) - 1}, got {number}")
    return list(SCHEDULES.values())[number]


def task_orders(schedule: str, stages: int, micro_batches: int, virtual_stages: int = 1) -> orders.Orders:
    """Return what every rank does under `schedule`, without times: what `engine.simulate` runs.

    Raises
    ------
    LayoutError
        If there is no such schedule, or it cannot run with these numbers.
    """
    record = schedule_at(schedule_code(schedule))
    broken = record.broken_rules(stages=stages, micro_batches=micro_batches, virtual_stages=virtual_stages)
    if broken:
        raise LayoutError(
            f"schedule: {record.name} needs {broken[0].text}, got {stages} stages, "
            f"{micro_batches} micro-batches and vp = {virtual_stages}"
        )
    return record.order(stages, micro_batches, virtual_stages)


def _occurring(schedule: ArrayLike) -> tuple[Schedule, ...]:
    """Return the schedules whose codes occur, in the order of the registry."""
    return tuple(schedule_at(code) for code in np.unique(np.asarray(schedule)))


def bubble_formula(schedule: ArrayLike) -> str:
    """Return the bubble of the schedules that occur as one formula; see `bubble_time_s` for its names.

    With several, `schedule` is their code.
    """
    form = _one_formula(schedule, "bubble")
    return f"{named_result(form, 'idle_s')}; where(stages > 1, max(idle_s, 0), 0)"


def bubble_time_s(
    schedule: ArrayLike,
    *,
    stages: ArrayLike,
    micro_batches: ArrayLike,
    virtual_stages: ArrayLike = 1.0,
    forward_s: ArrayLike,
    backward_input_s: ArrayLike,
    backward_weight_s: ArrayLike,
    sum_forward_s: ArrayLike | None = None,
    sum_backward_s: ArrayLike | None = None,
    sum_backward_weight_s: ArrayLike | None = None,
    pending_weight_fraction: ArrayLike = 1.0,
    synchronized: ArrayLike = False,
    largest_chunk: ArrayLike | None = None,
    smallest_chunk: ArrayLike | None = None,
    plain_forward_s: ArrayLike | None = None,
    plain_backward_s: ArrayLike | None = None,
) -> Array:
    r"""Time per step that the busiest rank is idle because of the pipeline, messages not counted.

    The forms stand in the records (`Schedule.bubble`). With :math:`S` the sum of F + B + W over all
    other stages it is :math:`S` for 1F1B and, with even chunks, :math:`S / v` for the interleaved schedule.

    Parameters
    ----------
    schedule : array_like of int
        Codes from `schedule_code`. [-]
    stages : array_like
        Pipeline ranks, p. With one there is no bubble. [-]
    micro_batches : array_like
        Micro-batches per step, m. [-]
    virtual_stages : array_like
        Chunks per rank, v; only the interleaved schedule reads it. [-]
    forward_s, backward_input_s, backward_weight_s : array_like
        F, B and W: times of one micro-batch on the busiest stage, all its chunks together. [s]
    sum_forward_s, sum_backward_s, sum_backward_weight_s : array_like, optional
        F, B + W, and W, summed over all stages; by default p times that of the busiest. [s]
    pending_weight_fraction : array_like
        Share of a micro-batch's activations that W still needs when B is done, kappa: 32/34 with
        flash attention, 32 / (34 + 5 a s / h) where the scores are kept (arXiv:2401.10241). [-]
    synchronized : array_like of bool
        Whether all ranks wait for each other at the optimizer (a gradient norm, a check for
        overflow). ZB-2p and ZB-V reach their bubble only where they do not. [-]
    largest_chunk, smallest_chunk : array_like, optional
        Shares of a rank's layers in its largest and its smallest chunk; by default 1 / v. [-]
    plain_forward_s, plain_backward_s : array_like, optional
        F, and B + W, of layers alone on the stage that has most of them; by default those of the busiest. [s]

    Returns
    -------
    bubble_s : ndarray
        Idle time of the busiest rank; the step takes m (F + B + W) plus this. [s]

    Notes
    -----
    Uneven stages: exact for gpipe where one stage is slowest in both passes, and for 1f1b and
    interleaved where it is the last one (the head and the loss). A slow stage k ranks before the
    end works off part of its wait, so that 1f1b is overestimated by k times its excess, at most 3 %
    of the step with 30 % of excess (`one_f_one_b_time_s` is exact). Others: within 5 %.

    Examples
    --------
    >>> float(bubble_time_s(schedule_code("zb-h1"), stages=4, micro_batches=16, forward_s=1.0,
    ...                     backward_input_s=1.0, backward_weight_s=1.0))
    3.0
    """
    p, backward_s = as_array(stages), as_array(backward_input_s) + as_array(backward_weight_s)
    return evaluate(
        bubble_formula(schedule),
        {
            **_layout_terms(schedule, p, micro_batches, virtual_stages),
            "forward_s": forward_s,
            "backward_input_s": backward_input_s,
            "backward_weight_s": backward_weight_s,
            "sum_forward_s": p * as_array(forward_s) if sum_forward_s is None else sum_forward_s,
            "sum_backward_s": p * backward_s if sum_backward_s is None else sum_backward_s,
            "sum_backward_weight_s": p * as_array(backward_weight_s)
            if sum_backward_weight_s is None
            else sum_backward_weight_s,
            "pending_weight_fraction": pending_weight_fraction,
            "synchronized": as_array(synchronized),
            "largest_chunk": 1.0 / as_array(virtual_stages) if largest_chunk is None else largest_chunk,
            "smallest_chunk": 1.0 / as_array(virtual_stages) if smallest_chunk is None else smallest_chunk,
            "plain_forward_s": forward_s if plain_forward_s is None else plain_forward_s,
            "plain_backward_s": backward_s if plain_backward_s is None else plain_backward_s,
        },
    )


def one_f_one_b_time_s(stage_times_s: ArrayLike, micro_batches: ArrayLike) -> Array:
    r"""Time of one 1F1B step over stages of any lengths, messages not counted.

    A stage i that limits the step is busy m times, waits for the stages before it once, and for
    those after it twice (the first and the last backward), less what it does meanwhile:

    .. math:: t = \max_i \left[ m t_i + \sum_{j<i} t_j + \sum_{j>i} (2 t_j - t_i) \right]

    Parameters
    ----------
    stage_times_s : array_like
        F + B + W of one micro-batch, by stage in the last dimension. [s]
    micro_batches : array_like
        m, at least the number of stages; without the stage dimension. [-]

    Returns
    -------
    step_s : ndarray
        Without the stage dimension. [s]

    Notes
    -----
    Read off the simulation; exact where stages differ by no more than about 30 % and forward and
    backward differ in proportion. A stage can start no earlier than its input allows, so that
    terms in which :math:`2 t_j < t_i` on average are too small, never too large.

    Examples
    --------
    >>> float(one_f_one_b_time_s([3.0, 3.0, 3.0, 3.0], 8))
    33.0
    """
    times = as_array(stage_times_s)
    before = np.cumsum(times, axis=-1) - times
    after = np.sum(times, axis=-1, keepdims=True) - before - times
    left = np.arange(times.shape[-1] - 1, -1, -1, dtype=np.float64)
    limits = (as_array(micro_batches)[..., None] - left) * times + before + 2.0 * after
    return np.asarray(limits.max(axis=-1))


def in_flight(
    schedule: ArrayLike,
    *,
    stages: ArrayLike,
    micro_batches: ArrayLike,
    virtual_stages: ArrayLike = 1.0,
    stage: ArrayLike = 0.0,
    paired: ArrayLike = 0.0,
    layers: ArrayLike = np.inf,
    largest_chunk: ArrayLike | None = None,
    smallest_chunk: ArrayLike | None = None,
) -> Array:
    """Peak number of micro-batches whose activations a rank holds, in units of its whole stage.

    Parameters
    ----------
    schedule : array_like of int
        Codes from `schedule_code`. [-]
    stages, micro_batches, virtual_stages : array_like
        p, m and v. [-]
    stage : array_like
        Which rank, counted from 0. [-]
    paired : array_like
        1 where passes of two micro-batches run together, to hide what experts exchange. [-]
    layers : array_like
        Layers of the model. [-]
    largest_chunk, smallest_chunk : array_like, optional
        Shares of a rank's layers in its largest and its smallest chunk; by default 1 / v. [-]

    Returns
    -------
    held : ndarray
        Micro-batches; fractions are chunks. [-]

    Notes
    -----
    An activation counts in full from the start of F to the end of the backward; between B and W
    the share that W does not need is free again, so that where W is put off these are upper
    bounds, reached by the stages on which nothing is put off. The input that a stage has received
    ahead of its turn is not counted.

    Examples
    --------
    >>> float(in_flight(schedule_code("interleaved"), stages=8, micro_batches=32, virtual_stages=2))
    11.5
    """
    form = f"{named_result(_one_formula(schedule, 'held'), 'held')}; alone = where(stages > 1, min(held, micro_batches), 1)"
    even = 1.0 / as_array(virtual_stages)
    terms = {
        **_layout_terms(schedule, stages, micro_batches, virtual_stages),
        "stage": stage,
        "largest_chunk": even if largest_chunk is None else largest_chunk,
        "smallest_chunk": even if smallest_chunk is None else smallest_chunk,
    }
    if not np.any(paired):
        return evaluate(f"{form}; alone", terms)
    pair = named_result(_one_formula(schedule, "pair_held"), "pair_held")
    formula = f"{form}; {pair}; min(alone + paired * pair_held, max(micro_batches, 1))"
    return evaluate(formula, {**terms, "paired": paired, "layers": layers})


def unpaired_share(
    schedule: ArrayLike, *, stages: ArrayLike, micro_batches: ArrayLike, virtual_stages: ArrayLike = 1.0
) -> Array:
    """Return the share of passes on the critical path that run with no pass of another micro-batch beside them.

    Parameters
    ----------
    schedule : array_like of int
        Codes from `schedule_code`. [-]
    stages, micro_batches, virtual_stages : array_like
        p, m and v. [-]

    Returns
    -------
    share : ndarray
        1 with one micro-batch, and under every schedule that never pairs passes. [-]

    Notes
    -----
    While the pipeline fills, stages run forwards only, and while it drains backwards only; the critical
    path goes through one such pass a hop.

    >>> float(unpaired_share(schedule_code("dualpipe"), stages=16, micro_batches=120))
    0.06666666666666667
    """
    formula = f"{named_result(_one_formula(schedule, 'unpaired'), 'alone')}; min(alone / micro_batches, 1)"
    return evaluate(formula, _layout_terms(schedule, stages, micro_batches, virtual_stages))


def messages_formula(schedule: ArrayLike, *, overlapped: bool) -> str:
    """Return the messages per step whose time the critical path pays, as one formula.

    Its names are `stages`, `micro_batches` and `virtual_stages`; with several schedules also `schedule`,
    their code.
    """
    beside = f"{named_result(_one_formula(schedule, 'messages'), 'beside')}"
    if overlapped:
        return f"{beside}; where(stages > 1, beside, 0)"
    stopping = named_result(_one_formula(schedule, "messages_stopping"), "stopping")
    return f"{beside}; {stopping}; where(stages > 1, max(stopping, beside), 0)"


def exposed_p2p_messages(
    schedule: ArrayLike,
    *,
    stages: ArrayLike,
    micro_batches: ArrayLike,
    virtual_stages: ArrayLike = 1.0,
    overlapped: bool = False,
) -> Array:
    """Messages per step whose time the critical path pays.

    The simulation was run with a delay per message, and the number of delays by which the step grew
    was read off: most hide behind the waits that the schedule has anyway.

    Parameters
    ----------
    schedule : array_like of int
        Codes from `schedule_code`. [-]
    stages, micro_batches, virtual_stages : array_like
        p, m and v. [-]
    overlapped : bool
        Whether ranks compute while they send (Megatron's ``overlap_p2p_comm``, which it has for
        the interleaved schedule only; the zero-bubble runtimes). [-]

    Returns
    -------
    messages : ndarray
        To be multiplied with the time of one message between neighbours; 0 with one stage. [-]

    Notes
    -----
    That 1F1B's form is also what the zero-bubble paper's own simulation (arXiv:2401.10241, Table 5)
    charges follows from its printed bubble rates.
    """
    formula = messages_formula(schedule, overlapped=overlapped)
    return evaluate(formula, _layout_terms(schedule, stages, micro_batches, virtual_stages))


def late_formula(schedule: ArrayLike, *, overlapped: bool) -> str:
    """Return the wait for messages beyond `messages_formula` of them, as one formula; see `exposed_p2p_time_s`."""
    late = named_result(_one_formula(schedule, "late"), "late_s") if overlapped else "late_s = 0"
    return f"{late}; where(stages > 1, max(late_s, 0), 0)"


def exposed_p2p_time_s(
    schedule: ArrayLike,
    *,
    stages: ArrayLike,
    micro_batches: ArrayLike,
    virtual_stages: ArrayLike = 1.0,
    message_s: ArrayLike,
    forward_s: ArrayLike,
    backward_s: ArrayLike,
    sum_forward_s: ArrayLike | None = None,
    sum_backward_s: ArrayLike | None = None,
    plain_forward_s: ArrayLike | None = None,
    plain_backward_s: ArrayLike | None = None,
    overlapped: bool = False,
) -> Array:
    """Time per step that the critical path waits for messages between stages.

    Parameters
    ----------
    schedule : array_like of int
        Codes from `schedule_code`. [-]
    stages, micro_batches, virtual_stages : array_like
        p, m and v. [-]
    message_s : array_like
        Time of one message between neighbours. [s]
    forward_s, backward_s : array_like
        F and B + W of one micro-batch on the busiest stage, all its chunks together. [s]
    sum_forward_s, sum_backward_s : array_like, optional
        The same of all stages together; by default p times that of the busiest. [s]
    plain_forward_s, plain_backward_s : array_like, optional
        The same of layers alone on the stage that has most of them; by default those of the busiest. [s]
    overlapped : bool
        Whether ranks compute while they send. [-]

    Returns
    -------
    exposed_s : ndarray
        0 with one stage. [s]

    Notes
    -----
    Read off the simulation. With overlap and equal stages exact for 1F1B and interleaved whatever the message
    takes, as long as F <= B + W; where the last stage is slower than the others it hides some of it.
    """
    p = as_array(stages)
    terms = {
        **_layout_terms(schedule, p, micro_batches, virtual_stages),
        "message_s": message_s,
        "forward_s": forward_s,
        "backward_s": backward_s,
        "sum_forward_s": p * as_array(forward_s) if sum_forward_s is None else sum_forward_s,
        "sum_backward_s": p * as_array(backward_s) if sum_backward_s is None else sum_backward_s,
        "plain_forward_s": forward_s if plain_forward_s is None else plain_forward_s,
        "plain_backward_s": backward_s if plain_backward_s is None else plain_backward_s,
    }
    count = evaluate(messages_formula(schedule, overlapped=overlapped), terms)
    return np.asarray(
        count * as_array(message_s) + evaluate(late_formula(schedule, overlapped=overlapped), terms)
    )


def p2p_messages(schedule: ArrayLike, *, stages: ArrayLike, virtual_stages: ArrayLike = 1.0) -> Array:
    """Messages that an inner stage sends per micro-batch, forward and backward together.

    Two per chunk; the turn of a V-shaped schedule stays on its rank, so that its end ranks send
    one less in each direction.

    Parameters
    ----------
    schedule : array_like of int
        Codes from `schedule_code`. [-]
    stages, virtual_stages : array_like
        p and v. [-]

    Returns
    -------
    messages : ndarray
        0 with one stage. [-]
    """
    chunks = chunks_passed(schedule, virtual_stages)
    return evaluate("where(stages > 1, 2 * chunks, 0)", {"stages": stages, "chunks": chunks})


def weight_copies(schedule: ArrayLike) -> Array:
    """Return how many copies of a stage's parameters one rank holds [-]."""
    return np.asarray([record.weight_copies for record in SCHEDULES.values()])[_codes(schedule)]


def splits_backward(schedule: ArrayLike) -> BoolArray:
    """Return where the passes towards inputs and towards weights run apart."""
    return np.asarray([record.splits_backward for record in SCHEDULES.values()])[_codes(schedule)]


def fold(schedule: ArrayLike) -> Array:
    """Return which stages share a rank, as `physics.stages.Fold` numbers them [-]."""
    return np.asarray([float(record.fold) for record in SCHEDULES.values()])[_codes(schedule)]


def chunks_passed(schedule: ArrayLike, virtual_stages: ArrayLike) -> Array:
    """Return how many chunks of a rank a micro-batch passes [-]."""
    formula = _one_formula(schedule, "chunks")
    found = evaluate(formula, {"schedule": schedule, "virtual_stages": virtual_stages})
    return found + np.zeros(np.shape(schedule))


def valid(
    schedule: ArrayLike,
    stages: ArrayLike,
    micro_batches: ArrayLike,
    virtual_stages: ArrayLike = 1.0,
) -> BoolArray:
    """Return where a schedule can run with so many stages, micro-batches and chunks per rank.

    Parameters
    ----------
    schedule : array_like of int
        Codes from `schedule_code`. [-]
    stages, micro_batches, virtual_stages : array_like
        p, m and v. [-]

    Returns
    -------
    fits : ndarray of bool
    """
    terms = _layout_terms(schedule, stages, micro_batches, virtual_stages)
    codes = np.asarray(schedule)
    fits = np.ones(np.broadcast_shapes(*(np.shape(term) for term in terms.values())), dtype=np.bool_)
    for record in _occurring(schedule):
        here = codes == schedule_code(record.name)
        for rule in record.needs:
            fits &= ~here | (evaluate(rule.holds, terms) > 0)
    return fits


def as_array(value: ArrayLike) -> Array:
    """Return `value` as a float64 array."""
    return np.asarray(value, dtype=np.float64)


def _codes(schedule: ArrayLike) -> NDArray[np.int64]:
    """Return codes as indices."""
    return np.asarray(schedule).astype(np.int64)


def _layout_terms(
    schedule: ArrayLike, stages: ArrayLike, micro_batches: ArrayLike, virtual_stages: ArrayLike
) -> dict[str, ArrayLike]:
    """Return the numbers of a layout by the names that formulas use."""
    return {
        "schedule": schedule,
        "stages": stages,
        "micro_batches": micro_batches,
        "virtual_stages": virtual_stages,
    }


def _one_formula(schedule: ArrayLike, form: str) -> str:
    """Return a closed form of the schedules that occur as one formula."""
    found = _occurring(schedule)
    texts = tuple((schedule_code(record.name), getattr(record, form)) for record in found)
    return texts[0][1] if len(texts) == 1 else _either(texts)


@lru_cache(maxsize=1024)
def _either(forms: tuple[tuple[int, str], ...]) -> str:
    """Join formulas into one that takes, by the number `schedule`, the result of one of them.

    Steps that are the same in several are computed once; others of the same name are numbered.

    >>> _either(((0, "a = 2 * x; a + 1"), (1, "a = 2 * x; a"), (2, "a = x; a")))
    'a = 2 * x; a_2 = x; where(schedule == 0, a + 1, where(schedule == 1, a, a_2))'
    """
    steps: dict[str, str] = {}
    results: list[tuple[int, str]] = []
    for code, text in forms:
        renamed: dict[str, str] = {}
        for statement in ast.parse(text).body:
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                    node.id = renamed.get(node.id, node.id)
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                name, value = statement.targets[0].id, ast.unparse(statement.value)
                key = name if steps.get(name, value) == value else f"{name}_{code}"
                steps[key], renamed[name] = value, key
            else:
                results.append((code, ast.unparse(statement)))
    chosen = results[-1][1]
    for code, result in reversed(results[:-1]):
        chosen = f"where(schedule == {code}, {result}, {chosen})"
    return "; ".join([*(f"{name} = {value}" for name, value in steps.items()), chosen])
