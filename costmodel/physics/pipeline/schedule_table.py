"""The registry of pipeline schedules: a new one is a new record here, with the order of its tasks.

The oracle runs every record's order step by step (`engine`) and holds the closed forms to it, within what
`Exactness` states.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodel.physics.pipeline import orders
from costmodel.physics.pipeline.schedule_record import Exactness, Rule, Schedule
from costmodel.physics.pipeline.stages import Fold

Array = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

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
# What the ranks before this one and those behind it take for a micro-batch. Of all but this one each takes the mean,
# but for the last, which has the head.
_BEFORE_AND_BEHIND = (
    f"{_HOPS}; {_OTHERS}; ends_s = min(behind, 1) * "
    "max(sum_forward_s + sum_backward_s - stages * (mean_forward_s + mean_backward_s), 0); "
    "each_s = max(others_s - ends_s, 0) / max(hops, 1); behind_s = others_s - (hops - behind) * each_s; "
    "backward_s = backward_input_s + backward_weight_s"
)
_BACKWARD_OF_OTHERS = "stage_s = forward_s + backward_s; others_s = sum_forward_s + sum_backward_s - stage_s"
# Of the others without weight gradients, which wait for no message.
_INPUTS_OF_OTHERS = (
    f"{_BACKWARD_OF_OTHERS}; of_others_s = others_s - sum_backward_weight_s + backward_weight_s"
)

# Passes of layers alone, on a mean rank: what a rank meets on others, of which few hold the embedding or the head.
_MEAN = "mean_input_s = mean_backward_s - mean_backward_weight_s; mean_s = mean_forward_s + mean_backward_s"
_STAGE = "stage_s = forward_s + backward_input_s + backward_weight_s"
# Of two neighbours of V-Half: between the forward passes of each a weight gradient of one chunk, between those towards
# inputs one on one of them.
_PAIR = (
    f"{_STAGE}; pair_s = max(pair_forward_s + 0.5 * pair_weight_s, pair_input_s + 0.25 * pair_weight_s); "
    "held_up_s = max(pair_s + 2 * message_s, stage_s)"
)
# A rank of a V that holds both ends never waits for the way there; on the way back it works off what it has put off.
_FIRST_BACK = "back_s - 0.5 * hops * mean_input_s"


# Messages of a round of all ranks that a slower rank does not see, but for those of `alone` micro-batches.
_HIDDEN = (
    f"{_STAGE}; more_s = max(stage_s - mean_forward_s - mean_backward_s, 0); "
    "hidden = max(micro_batches - alone, 0) * min(sent, more_s / max(message_s, 1e-12))"
)


def _dual(depth: str, part: str, alone: str, own: str) -> str:
    """Return DualPipe's bubble on ranks of which some are slower than the mean.

    `depth` ranks lie between this one and the turn, and a chunk takes `part` of a rank's time. A slower rank keeps
    the mean ones waiting in all micro-batches but `alone`, while the pipeline fills and drains; or it waits only for
    what its `own` last gradients meet on the others.
    """
    return (
        f"{_THERE_AND_BACK}; {_MEAN}; {_STAGE}; depth = {part}{depth}; "
        "f_s = depth * mean_forward_s; b_s = depth * mean_input_s; w_s = depth * mean_backward_weight_s; "
        f"turn_s = max(2 * f_s + max(b_s - w_s, 0), f_s + 2 * b_s - w_s - {part}mean_forward_s); "
        f"behind_s = max(micro_batches - {alone}, 0) * max(stage_s - mean_s, 0); "
        f"max({own}, micro_batches * (mean_s - stage_s) + turn_s + behind_s, 0)"
    )


def _zero_bubble(kept: str, ahead: str) -> str:
    """Return the bubble of a rank that runs `ahead` forward passes first and at the end still holds `kept` weight gradients."""
    return (
        f"{_THERE_AND_BACK}; before = hops - behind; there_each_s = there_s / max(hops, 1); "
        f"way_s = there_each_s + back_s / max(hops, 1); ahead = min({ahead}, micro_batches - 1); "
        "fill_s = max(behind * way_s - ahead * forward_s, 0); "
        "after_s = backward_input_s + backward_weight_s; "
        "drain_s = max(min(behind * way_s - ahead * after_s, ahead * (way_s - after_s)), 0); "
        f"kept_s = min({kept}, micro_batches - 1) * backward_weight_s; "
        "fill_s + drain_s + max(before * way_s - kept_s, synchronized * before * there_each_s)"
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
        # All forward passes go at the pace of the slowest stage, then all backward passes of the one slowest in them.
        bubble=f"{_OTHERS}; {_STAGE}; others_s + (micro_batches - 1) * (most_forward_s + most_backward_s - stage_s)",
        held="micro_batches",
        # The first micro-batch's way there and back.
        messages="2 * (stages - 1)",
        late="0",
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
        # It waits for those before it once, and for those behind it when their first backward pass is due, and again for
        # their last, less the pass of another micro-batch that it runs meanwhile for each rank behind.
        bubble=f"{_BEFORE_AND_BEHIND}; ahead = min(behind, max(micro_batches - 1, 0)); "
        "fill_s = max(behind_s - ahead * forward_s, 0); "
        "drain_s = ahead * max(behind_s / max(behind, 1) - backward_s, 0); others_s - behind_s + fill_s + drain_s",
        held="stages - stage",
        # The way there and back.
        messages="2 * (stages - 1)",
        # A cycle of p micro-batches passes all stages and 2 (p - 1) messages, while the slowest stage works p times.
        late=f"{_BACKWARD_OF_OTHERS}; hides_s = stage_s - others_s / max(stages - 1, 1); "
        "(micro_batches - 1 - ceil((micro_batches - 1) / stages)) * max(2 * message_s - hides_s, 0)",
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
        # While the ranks behind have the first micro-batch of the last chunk, or the last one of the first, it runs two
        # chunks for each of them. A single group of p goes round chunk after chunk at the slowest rank's pace.
        # Where chunks are unlike, ranks wait for each other's larger ones: p micro-batches take what the last rank takes
        # that waits for another, less a chunk that they may be apart; or, if all ranks have the same unlike chunks,
        # p - 2 differences of them more, less a smallest one.
        bubble=f"{_BEFORE_AND_BEHIND}; groups = micro_batches / stages; own_s = micro_batches * (forward_s + backward_s); "
        "fill_s = max(behind_s - 2 * behind * forward_s, 0) + max(behind_s - 2 * behind * backward_s, 0); "
        "waits_s = (hops - behind) * first_chunk_s + fill_s / virtual_stages; "
        "round_s = (2 * others_s - hops * (forward_s + backward_s)) / virtual_stages; "
        "mean_s = mean_forward_s + mean_backward_s; "
        "apart_s = where(stages > 2, mean_s, 2 * mean_forward_s) / virtual_stages; "
        "meet_s = micro_batches * last_by_chunk_s - (groups - 1) * apart_s; "
        "unlike = max((stages - 2) * (largest_chunk - smallest_chunk) - smallest_chunk, 0); "
        "alike_s = micro_batches * mean_s + (groups - 1) * unlike * (plain_forward_s + plain_backward_s); "
        "max(waits_s, where(groups > 1, 0, round_s), max(meet_s, alike_s) + hops * first_chunk_s - own_s)",
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
        # It waits for the ranks behind it, less a forward pass for each while the pipeline fills and the rest while it
        # drains, and for those before it; meanwhile it runs weight gradients, as many as its memory held.
        bubble=_zero_bubble("floor(before / pending_weight_fraction)", "behind"),
        held="stages",
        # Half of them in turn with passes that a slower rank has ready.
        messages=f"{_STAGE}; more_s = micro_batches * max(stage_s - mean_forward_s - mean_backward_s, 0); "
        "4 * (stages - 1) - min(2 * (stages - 1), more_s / max(message_s, 1e-12))",
        # As with 1F1B, but for the weight gradients, which wait for no one: of p micro-batches in flight one runs.
        late=f"{_INPUTS_OF_OTHERS}; "
        "hides_s = stage_s - of_others_s / max(stages - 1, 1); "
        "rounds = micro_batches - stages - ceil((micro_batches - 1) / stages); "
        "max(rounds, 0) * max(2 * message_s - hides_s, 0)",
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
        bubble=_zero_bubble("2 * before / pending_weight_fraction", "2 * behind"),
        held="2 * stages - 1",
        messages="2 * (stages - 1)",
        late="0",
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
        f"{_MEAN}; first_s = {_FIRST_BACK} - put_off * backward_weight_s; "
        "where(first, where(fill_s > 0, max(first_s, fill_s), first_s), max(way_s, fill_s, late_s, synchronized * ends_s))",
        held="stages",
        # The first rank, where it is slower, makes up for all but a round trip.
        messages="hops = stages - 1; stage_s = forward_s + backward_input_s + backward_weight_s; "
        "more_s = micro_batches * max(stage_s - mean_forward_s - mean_backward_s, 0); "
        "6 * hops - first * min(2 * hops, more_s / max(message_s, 1e-12))",
        late="0",
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
        bubble=_dual(
            "(0.5 * stages - 1)",
            "",
            "stages",
            "depth * max(where(max(first, last), mean_input_s - mean_backward_weight_s, "
            "2 * mean_input_s - backward_weight_s), 0)",
        ),
        held="stages + 1",
        messages=f"sent = (stages - 1) / stages; alone = stages; {_HIDDEN}; "
        "micro_batches * sent + 3 * (0.5 * stages - 1) - hidden",
        late="0",
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
        bubble=_dual(
            "hops",
            "0.5 * ",
            "2 * hops",
            f"where(first, {_FIRST_BACK} - w_s, 2 * b_s - depth * backward_weight_s)",
        ),
        held="stages + 0.5",
        messages=f"sent = 2 * (stages - 1) / stages; alone = 2 * (stages - 1); {_HIDDEN}; "
        "micro_batches * sent + 2.5 * (stages - 1) - hidden",
        late="0",
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
        # its slowest cycle: one of F, I and W each on the slowest rank, or on two neighbours two F and a W, or two I
        # and half a W, of which some are put off. The first rank, if it sets the pace, waits for no forward pass: of
        # three ways through the others the longest.
        bubble=f"{_THERE_AND_BACK}; {_MEAN}; {_STAGE}; f_s = there_s / max(hops, 1); b_s = back_s / max(hops, 1); "
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
        messages=f"{_PAIR}; hidden_s = 2 * message_s - held_up_s + max(pair_s, stage_s); "
        "2 * micro_batches + 4 * (stages - 1) "
        "- max(micro_batches - 0.5 * stages - 1, 0) * hidden_s / max(message_s, 1e-12)",
        # p micro-batches on their round of F and I of all and 4 (p - 1) messages take longer than the slowest cycle.
        late=f"{_INPUTS_OF_OTHERS}; "
        "pair_s = max(pair_forward_s + 0.5 * pair_weight_s, pair_input_s + 0.25 * pair_weight_s); "
        "held_up_s = max(pair_s + 2 * message_s, stage_s); "
        "round_s = of_others_s / max(stages - 1, 1) + (4 - 4 / stages) * message_s; "
        "max(micro_batches - 0.5 * stages - 1, 0) * max(round_s - held_up_s, 0)",
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
        # The same with three F, or three I, on three neighbours in the slowest cycle; or F and I of the last chunks of the
        # first three ranks, of which one has the head.
        bubble=f"{_THERE_AND_BACK}; {_MEAN}; {_STAGE}; third = 1.5 * (stages % 3 == 0); "
        "trip_s = there_s + forward_s + back_s + backward_input_s; "
        "own_s = trip_s - stage_s + 0.5 * backward_weight_s; "
        "end_s = trip_s + 0.5 * plain_backward_weight_s - micro_batches * stage_s; "
        "ring_f_s = micro_batches * three_forward_s - (3 + third) * mean_forward_s "
        "+ third * mean_input_s; "
        "ring_b_s = micro_batches * three_input_s "
        "+ third * mean_forward_s - (3 + third) * mean_input_s; "
        "max(own_s, end_s + ring_f_s, end_s + ring_b_s, end_s + (micro_batches - 1) * vee_turn_s)",
        held="floor((stages + 4) / 3)",
        # Three neighbours send each other four of a micro-batch, all ranks in a round six less 6 / p; a rank or neighbours
        # that are slower than a round does not see them.
        messages=f"{_STAGE}; sent = 6 * (stages - 1) / stages; three_s = max(three_forward_s, three_input_s, vee_turn_s); "
        "mean_s = 3 * max(mean_forward_s, mean_backward_s - mean_backward_weight_s); "
        "held_up_s = max(three_s + 4 * message_s, mean_s + sent * message_s, stage_s); "
        "hidden_s = sent * message_s - held_up_s + max(three_s, mean_s, stage_s); "
        "sent * micro_batches + 3 * (stages - 2) "
        "- max(micro_batches - 0.5 * stages, 0) * hidden_s / max(message_s, 1e-12)",
        late="0",
        unpaired="micro_batches",
        pair_held="0",
        exact=Exactness(0.005, 0.15, 0.01, False, 4),
        source=f"{_CONTROLLABLE}; bubble read off the simulation",
    ),
)

SCHEDULES: dict[str, Schedule] = {record.name: record for record in _RECORDS}
"""Every schedule by its name; its place here is its code."""
