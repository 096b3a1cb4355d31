"""The registry of pipeline schedules: a new one is a new record here, with the order of its tasks.

Time of one micro-batch on one stage is split in three, as zero-bubble schedules need it: forward
(F), backward towards the input (B) and backward towards the weights (W). Schedules that do not
split the backward run B and W together. A stage is everything one rank holds, so the chunk of an
interleaved schedule takes 1/v of these times.

The closed forms of a record are text in the language of `costmodel.bill.formula`, over `NAMES` and the steps of
`STEPS`; the text is the code. The oracle runs every record's order step by step (`engine`) and holds the forms to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from costmodel.base.csv_text import read_rows
from costmodel.bill.formula import evaluate, inputs_of, with_steps
from costmodel.physics.pipeline import orders
from costmodel.physics.pipeline.stages import Fold

UNLIKE: Mapping[str, str] = {
    row["name"]: row["alike"] for row in read_rows(Path(__file__).with_name("schedule_terms.csv"))
}
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

STEPS: tuple[tuple[str, str], ...] = (
    ("hops", "stages - 1"),
    ("backward_s", "backward_input_s + backward_weight_s"),
    ("stage_s", "forward_s + backward_s"),
    # What a micro-batch runs on the other stages: in all, on its way there, and on its way back.
    ("others_s", "sum_forward_s + sum_backward_s - stage_s"),
    ("there_s", "sum_forward_s - forward_s"),
    ("back_s", "sum_backward_s - sum_backward_weight_s - backward_input_s"),
    # Without weight gradients, which wait for no message.
    ("of_others_s", "others_s - sum_backward_weight_s + backward_weight_s"),
    # Passes of layers alone, on a mean rank: what a rank meets on others, of which few hold the embedding or the head.
    ("mean_input_s", "mean_backward_s - mean_backward_weight_s"),
    ("mean_s", "mean_forward_s + mean_backward_s"),
    ("more_s", "max(stage_s - mean_s, 0)"),
    # Messages of one micro-batch that hide behind what a rank takes longer than others.
    ("hidden", "more_s / max(message_s, 1e-12)"),
    # What the ranks behind take for a micro-batch: each the mean of all but this one, and the last has the head.
    ("ends_s", "min(behind, 1) * max(sum_forward_s + sum_backward_s - stages * mean_s, 0)"),
    ("each_s", "max(others_s - ends_s, 0) / max(hops, 1)"),
    ("behind_s", "others_s - (hops - behind) * each_s"),
    ("before", "hops - behind"),
    # A rank of a V that holds both ends never waits for the way there; on the way back it works off what it has put off.
    ("first_back_s", "back_s - 0.5 * hops * mean_input_s"),
    # Of two neighbours of V-Half: between the forward passes of each a weight gradient of one chunk, between those towards
    # inputs one on one of them.
    ("pair_s", "max(pair_forward_s + 0.5 * pair_weight_s, pair_input_s + 0.25 * pair_weight_s)"),
    ("held_up_s", "max(pair_s + 2 * message_s, stage_s)"),
)
"""What several closed forms build on."""


class Exactness(NamedTuple):
    """How far closed forms may be from the simulation, as a share of the step. [-]"""

    bubble: float
    """With equal stages, W <= F and F <= B <= 1.25 F."""
    messages: float
    """With messages of 2 % of F beside the passes."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Everything that is known of a schedule; a field that is left out is a `TypeError` at import."""

    name: str
    """As users write it."""
    order: Callable[[int, int, int], orders.Orders]
    """What every rank does, from stages, micro-batches and virtual stages: the engine's task order."""
    fold: Fold
    """Which stages are placed on one rank."""
    splits_backward: bool
    """Whether input and weight gradients are separate passes. If not, the stage with the most compute sets the pace;
    if so, the one with the most compute and bubble."""
    needs: Mapping[str, str]
    """Conditions on `LAYOUT` under which it can run, by their text for messages."""
    bubble: str
    """Time per step that the busiest rank is idle, messages not counted. [s]"""
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
    exact: Exactness
    """What the oracle holds the forms to."""
    source: str
    """Where the order, and the forms that were not read off the simulation, come from."""

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


_ONE_CHUNK = {"vp = 1": "virtual_stages == 1"}
_TWO_CHUNKS = {"vp = 2": "virtual_stages == 2"}
_FOUR_STAGES = {"pp >= 4, as its block is all turn with fewer": "stages >= 4"}
_TWICE_THE_STAGES = {"at least 2·pp micro-batches": "micro_batches >= 2 * stages"}

# Of a rank that runs `ahead` forward passes first and at the end still holds `kept` weight gradients: it waits for the ranks
# behind it, less a forward pass for each while the pipeline fills and the rest while it drains, and for those before it;
# meanwhile it runs weight gradients, as many as its memory held.
_ZERO_BUBBLE = (
    "there_each_s = there_s / max(hops, 1); way_s = there_each_s + back_s / max(hops, 1); "
    "fill_s = max(behind * way_s - ahead * forward_s, 0); "
    "drain_s = max(min(behind * way_s - ahead * backward_s, ahead * (way_s - backward_s)), 0); "
    "kept_s = min(kept, micro_batches - 1) * backward_weight_s; "
    "fill_s + drain_s + max(before * way_s - kept_s, synchronized * before * there_each_s)"
)
# DualPipe's, on ranks of which some are slower than the mean: `depth` chunks, each `part` of a rank, lie between this one and
# the turn. A slower rank keeps the mean ones waiting in all micro-batches but `alone`, while the pipeline fills and drains;
# or it waits only for what its `own_s` last gradients meet on the others.
_DUALPIPE = (
    "f_s = depth * mean_forward_s; b_s = depth * mean_input_s; w_s = depth * mean_backward_weight_s; "
    "turn_s = max(2 * f_s + max(b_s - w_s, 0), f_s + 2 * b_s - w_s - part * mean_forward_s); "
    "slow_s = max(micro_batches - alone, 0) * more_s; "
    "max(own_s, micro_batches * (mean_s - stage_s) + turn_s + slow_s, 0)"
)

_GPIPE = "Huang et al., arXiv:1811.06965, section 2.3"
_MEGATRON = "Narayanan et al., arXiv:2104.04473, section 2.2"
_QI = "Qi et al., arXiv:2401.10241, tables 1, 2, 5, section 6 and appendix H"
_CONTROLLABLE = "Qi et al., arXiv:2405.15362, and its building blocks; bubble read off the simulation"
_DEEPSEEK = "DeepSeek-AI, arXiv:2412.19437, table 2; deepseek-ai/DualPipe; bubble read off the simulation"

_RECORDS = (
    Schedule(
        name="none",
        order=orders.one_f_one_b,
        fold=Fold.LINEAR,
        splits_backward=False,
        needs={"pp = 1; several stages need a schedule such as 1f1b": "stages == 1", **_ONE_CHUNK},
        bubble="0",
        held="1",
        messages="0",
        late="0",
        # A forward of the next micro-batch beside each backward (Megatron-Core, combined_1f1b).
        unpaired="1",
        # What the forward keeps, layer by layer, the backward beside it has just freed, but for one layer.
        pair_held="1 / layers",
        exact=Exactness(0.0, 0.0),
        source="no pipeline",
    ),
    Schedule(
        name="naive",
        order=orders.naive,
        fold=Fold.LINEAR,
        splits_backward=False,
        needs=_ONE_CHUNK,
        bubble="micro_batches * others_s",
        held="1",
        messages="2 * hops * micro_batches",
        late="0",
        unpaired="micro_batches",
        pair_held="0",
        exact=Exactness(0.0, 0.0),
        source=_GPIPE,
    ),
    Schedule(
        name="gpipe",
        order=orders.gpipe,
        fold=Fold.LINEAR,
        splits_backward=False,
        needs=_ONE_CHUNK,
        # All forward passes go at the pace of the slowest stage, then all backward passes of the one slowest in them.
        bubble="others_s + (micro_batches - 1) * (most_forward_s + most_backward_s - stage_s)",
        held="micro_batches",
        # The first micro-batch's way there and back.
        messages="2 * hops",
        late="0",
        unpaired="micro_batches",
        pair_held="0",
        exact=Exactness(0.0, 0.0),
        source=_GPIPE,
    ),
    Schedule(
        name="1f1b",
        order=orders.one_f_one_b,
        fold=Fold.LINEAR,
        splits_backward=False,
        needs=_ONE_CHUNK,
        # It waits for those before it once, and for those behind it when their first backward pass is due, and again for
        # their last, less the pass of another micro-batch that it runs meanwhile for each rank behind.
        bubble="ahead = min(behind, max(micro_batches - 1, 0)); fill_s = max(behind_s - ahead * forward_s, 0); "
        "drain_s = ahead * max(behind_s / max(behind, 1) - backward_s, 0); others_s - behind_s + fill_s + drain_s",
        held="stages - stage",
        messages="2 * hops",
        # A cycle of p micro-batches passes all stages and 2 (p - 1) messages, while the slowest stage works p times.
        late="hides_s = stage_s - others_s / max(hops, 1); "
        "(micro_batches - 1 - ceil((micro_batches - 1) / stages)) * max(2 * message_s - hides_s, 0)",
        unpaired="micro_batches",
        pair_held="0",
        exact=Exactness(0.0, 0.0),
        source=_MEGATRON,
    ),
    Schedule(
        name="interleaved",
        order=orders.interleaved,
        fold=Fold.LINEAR,
        splits_backward=False,
        needs={
            "vp >= 2": "virtual_stages >= 2",
            "micro-batches that are a multiple of pp": "micro_batches % stages == 0",
        },
        # While the ranks behind have the first micro-batch of the last chunk, or the last one of the first, it runs two
        # chunks for each of them. A single group of p goes round chunk after chunk at the slowest rank's pace.
        # Where chunks are unlike, ranks wait for each other's larger ones: p micro-batches take what the last rank takes
        # that waits for another, less a chunk that they may be apart; or, if all ranks have the same unlike chunks,
        # p - 2 differences of them more, less a smallest one.
        bubble="groups = micro_batches / stages; "
        "fill_s = max(behind_s - 2 * behind * forward_s, 0) + max(behind_s - 2 * behind * backward_s, 0); "
        "waits_s = (hops - behind) * first_chunk_s + fill_s / virtual_stages; "
        "round_s = (2 * others_s - hops * stage_s) / virtual_stages; "
        "apart_s = where(stages > 2, mean_s, 2 * mean_forward_s) / virtual_stages; "
        "meet_s = micro_batches * last_by_chunk_s - (groups - 1) * apart_s; "
        "unlike = max((stages - 2) * (largest_chunk - smallest_chunk) - smallest_chunk, 0); "
        "alike_s = micro_batches * mean_s + (groups - 1) * unlike * (plain_forward_s + plain_backward_s); "
        "by_chunk_s = max(meet_s, alike_s) + hops * first_chunk_s - micro_batches * stage_s; "
        "max(waits_s, where(groups > 1, 0, round_s), by_chunk_s)",
        # Megatron-core's number of warm-up micro-batches, pipeline_parallel/schedules.py: p of each chunk, and as
        # many more of the first, the largest, or less of the last as a rank is before or behind the middle.
        held="beyond = stages - 2 * stage - 1; "
        "stages + max(beyond, 0) * largest_chunk + min(beyond, 0) * smallest_chunk",
        # The way of the first micro-batch through the first chunk, and of the last one back.
        messages="2 * hops",
        # Filling and draining, a group of p micro-batches goes round p messages for each further chunk, less what
        # the slowest stage takes longer than the others. Then, round the ranks a chunk of layers alone has p slots
        # for p messages and the passes of p stages, of which one has the head, and from its forward to its backward
        # 2 v p - 1 slots for 2 (v p - 1) messages and all stages.
        late="slot_s = stage_s / virtual_stages; chunks = virtual_stages * stages; "
        "fill_s = max(stages * message_s - (stages * forward_s - sum_forward_s) / virtual_stages, 0); "
        "drain_s = max(stages * message_s - (stages * backward_s - sum_backward_s) / virtual_stages, 0); "
        "plain_s = plain_forward_s + plain_backward_s; "
        "around_s = (plain_s + (stage_s - plain_s) / stages - max(plain_forward_s, plain_backward_s)) / virtual_stages; "
        "return_s = ((2 * chunks - 1) * slot_s - stage_s - others_s) / (2 * max(chunks - 1, 1)); "
        "(virtual_stages - 1) * (fill_s + drain_s) "
        "+ (virtual_stages - 1) * max(micro_batches - stages, 0) * max(message_s - around_s, 0) "
        "+ hops * micro_batches / stages * max(message_s - return_s, 0)",
        unpaired="1 + hops / virtual_stages",
        # One more chunk warms up (get_pp_rank_microbatches).
        pair_held="1 / virtual_stages",
        exact=Exactness(0.0, 0.0),
        source=_MEGATRON,
    ),
    Schedule(
        name="zb-h1",
        order=orders.zb_h1,
        fold=Fold.LINEAR,
        splits_backward=True,
        needs=_ONE_CHUNK,
        bubble="ahead = min(behind, micro_batches - 1); kept = floor(before / pending_weight_fraction); "
        + _ZERO_BUBBLE,
        held="stages",
        # Half of them in turn with passes that a slower rank has ready.
        messages="4 * hops - min(2 * hops, micro_batches * hidden)",
        # As with 1F1B, but for the weight gradients, which wait for no one: of p micro-batches in flight one runs.
        late="hides_s = stage_s - of_others_s / max(hops, 1); "
        "rounds = micro_batches - stages - ceil((micro_batches - 1) / stages); "
        "max(rounds, 0) * max(2 * message_s - hides_s, 0)",
        unpaired="micro_batches",
        pair_held="0",
        exact=Exactness(0.0, 0.0),
        source=f"{_QI}: searched for the memory of 1F1B (ZB-1p)",
    ),
    Schedule(
        name="zb-2p",
        order=orders.zb_2p,
        fold=Fold.LINEAR,
        splits_backward=True,
        needs=_ONE_CHUNK,
        bubble="ahead = min(2 * behind, micro_batches - 1); kept = 2 * before / pending_weight_fraction; "
        + _ZERO_BUBBLE,
        held="2 * stages - 1",
        messages="2 * hops",
        late="0",
        unpaired="micro_batches",
        pair_held="0",
        exact=Exactness(0.0, 0.0),
        source=f"{_QI}: searched for twice the memory of 1F1B (ZB-2p)",
    ),
    Schedule(
        name="zb-v",
        order=orders.zb_v,
        fold=Fold.V_SHAPED,
        splits_backward=True,
        needs=_TWO_CHUNKS,
        # Fewer micro-batches than stages do not fill the way there, fewer than two a stage not that of both chunks.
        bubble="few = max(stages - micro_batches, 0) / max(hops, 1); put_off = min(micro_batches, stages) - 0.5; "
        "way_s = max(there_s, back_s) + few * min(there_s, back_s) - put_off * backward_weight_s; "
        "fill_s = 0.5 * max(2 * stages - micro_batches - 1, 0) / max(hops, 1) * there_s; "
        "late_s = 0.5 * min(hops, 2 * micro_batches - 1) * (backward_weight_s - min(forward_s, backward_input_s)); "
        "end_s = few * there_s + 0.5 * max(there_s, back_s, hops * backward_weight_s); "
        "first_s = first_back_s - put_off * backward_weight_s; "
        "where(first, where(fill_s > 0, max(first_s, fill_s), first_s), max(way_s, fill_s, late_s, synchronized * end_s))",
        held="stages",
        # The first rank, where it is slower, makes up for all but a round trip.
        messages="6 * hops - first * min(2 * hops, micro_batches * hidden)",
        late="0",
        unpaired="micro_batches",
        pair_held="0",
        exact=Exactness(0.025, 0.01),
        source=f"{_QI}; bubble read off the simulation",
    ),
    Schedule(
        name="dualpipe",
        order=orders.dualpipe,
        fold=Fold.BIDIRECTIONAL,
        splits_backward=True,
        needs={
            "an even pp": "stages % 2 == 0",
            "an even number of micro-batches": "micro_batches % 2 == 0",
            **_TWICE_THE_STAGES,
            **_ONE_CHUNK,
        },
        # A forward and backward in a pair are taken to last their sum; overlap inside a pair belongs
        # into F, B and W.
        bubble="depth = 0.5 * stages - 1; part = 1; alone = stages; own_s = depth * max(where(max(first, last), "
        "mean_input_s - mean_backward_weight_s, 2 * mean_input_s - backward_weight_s), 0); " + _DUALPIPE,
        held="stages + 1",
        messages="sent = hops / stages; "
        "micro_batches * sent + 3 * (0.5 * stages - 1) - max(micro_batches - stages, 0) * min(sent, hidden)",
        late="0",
        unpaired="0.5 * stages",
        pair_held="0",
        exact=Exactness(0.025, 0.0),
        source=_DEEPSEEK,
    ),
    Schedule(
        name="dualpipe-v",
        order=orders.dualpipe_v,
        fold=Fold.V_SHAPED,
        splits_backward=True,
        needs=_TWO_CHUNKS | _TWICE_THE_STAGES,
        bubble="depth = 0.5 * hops; part = 0.5; alone = 2 * hops; "
        "own_s = where(first, first_back_s - depth * mean_backward_weight_s, depth * (2 * mean_input_s - backward_weight_s)); "
        + _DUALPIPE,
        held="stages + 0.5",
        messages="sent = 2 * hops / stages; "
        "micro_batches * sent + 2.5 * hops - max(micro_batches - 2 * hops, 0) * min(sent, hidden)",
        late="0",
        unpaired="1 + 0.5 * hops",
        pair_held="0",
        exact=Exactness(0.025, 0.01),
        source=_DEEPSEEK,
    ),
    Schedule(
        name="v-half",
        order=orders.v_half,
        fold=Fold.V_SHAPED,
        splits_backward=True,
        needs=_TWO_CHUNKS | _FOUR_STAGES,
        # The block repeats every six units of one chunk's pass, F, I and W alike; where they differ it repeats with
        # its slowest cycle: one of F, I and W each on the slowest rank, or on two neighbours two F and a W, or two I
        # and half a W, of which some are put off. The first rank, if it sets the pace, waits for no forward pass: of
        # three ways through the others the longest.
        bubble="f_s = there_s / max(hops, 1); b_s = back_s / max(hops, 1); "
        "half = floor(0.5 * stages); even = stages % 2 == 0; put_off = min(half + 0.5, micro_batches - 0.5); "
        "block_s = half * f_s + floor(1.5 * hops) * b_s - put_off * min(backward_weight_s, backward_input_s); "
        "short = 0.75 * stages - 1; "
        "first_s = max(short * f_s + hops * b_s - 0.5 * (stages + 1) * backward_weight_s, "
        "short * (f_s + b_s) - (0.25 * stages + 0.5) * backward_weight_s, "
        "hops * (f_s + b_s) - (0.75 * stages + 0.5) * backward_weight_s); "
        "trip_s = there_s + forward_s + back_s + backward_input_s - micro_batches * stage_s; "
        "cycle_f_s = micro_batches * pair_forward_s + (micro_batches - put_off) * "
        "0.5 * pair_weight_s - (2 + 2 * even) * mean_forward_s + 2 * even * mean_input_s; "
        "put_w = min(0.5 * micro_batches + 0.25 * (stages + 1 - even), micro_batches - 0.5); "
        "cycle_b_s = micro_batches * pair_input_s "
        "+ (micro_batches - put_w) * 0.5 * pair_weight_s + even * mean_forward_s - (2 + even) * mean_input_s; "
        "max(where(first, first_s, block_s), trip_s + cycle_f_s, trip_s + cycle_b_s)",
        held="floor((stages + 2) / 2)",
        # Two neighbours send each other two of a micro-batch, which a rank that is slower than they are does not see.
        messages="hidden_s = 2 * message_s - held_up_s + max(pair_s, stage_s); "
        "2 * micro_batches + 4 * hops - max(micro_batches - 0.5 * stages - 1, 0) * hidden_s / max(message_s, 1e-12)",
        # p micro-batches on their round of F and I of all and 4 (p - 1) messages take longer than the slowest cycle.
        late="round_s = of_others_s / max(hops, 1) + (4 - 4 / stages) * message_s; "
        "max(micro_batches - 0.5 * stages - 1, 0) * max(round_s - held_up_s, 0)",
        unpaired="micro_batches",
        pair_held="0",
        exact=Exactness(0.005, 0.02),
        source=_CONTROLLABLE,
    ),
    Schedule(
        name="v-min",
        order=orders.v_min,
        fold=Fold.V_SHAPED,
        splits_backward=True,
        needs=_TWO_CHUNKS | _FOUR_STAGES,
        # The same with three F, or three I, on three neighbours in the slowest cycle; or F and I of the last chunks of the
        # first three ranks, of which one has the head.
        bubble="third = 1.5 * (stages % 3 == 0); trip_s = there_s + forward_s + back_s + backward_input_s; "
        "own_s = trip_s - stage_s + 0.5 * backward_weight_s; "
        "end_s = trip_s + 0.5 * plain_backward_weight_s - micro_batches * stage_s; "
        "ring_f_s = micro_batches * three_forward_s - (3 + third) * mean_forward_s + third * mean_input_s; "
        "ring_b_s = micro_batches * three_input_s + third * mean_forward_s - (3 + third) * mean_input_s; "
        "max(own_s, end_s + ring_f_s, end_s + ring_b_s, end_s + (micro_batches - 1) * vee_turn_s)",
        held="floor((stages + 4) / 3)",
        # Three neighbours send each other four of a micro-batch, all ranks in a round six less 6 / p; a rank or neighbours
        # that are slower than a round does not see them.
        messages="sent = 6 * hops / stages; three_s = max(three_forward_s, three_input_s, vee_turn_s); "
        "even_s = 3 * max(mean_forward_s, mean_input_s); "
        "slowest_s = max(three_s + 4 * message_s, even_s + sent * message_s, stage_s); "
        "hidden_s = sent * message_s - slowest_s + max(three_s, even_s, stage_s); "
        "sent * micro_batches + 3 * (stages - 2) "
        "- max(micro_batches - 0.5 * stages, 0) * hidden_s / max(message_s, 1e-12)",
        late="0",
        unpaired="micro_batches",
        pair_held="0",
        exact=Exactness(0.005, 0.15),
        source=_CONTROLLABLE,
    ),
)

SCHEDULES: dict[str, Schedule] = {record.name: record for record in _RECORDS}
"""Every schedule by its name; its place here is its code."""
