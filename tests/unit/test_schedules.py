"""Pipeline schedules: names, limits, arrays, what can run."""

from dataclasses import MISSING, fields

import numpy as np
import pytest

from costmodel.base.errors import LayoutError
from costmodel.bill.formula import inputs_of, with_steps
from costmodel.physics.pipeline import schedules
from costmodel.physics.pipeline.engine import simulate
from costmodel.physics.pipeline.schedule_table import LAYOUT, NAMES, SCHEDULES, STEPS, Schedule
from costmodel.physics.pipeline.schedules import task_orders

CODES = np.arange(len(SCHEDULES))
TIMES = {"forward_s": 1.0, "backward_input_s": 1.0, "backward_weight_s": 1.0}


def code(name: str) -> int:
    return schedules.schedule_code(name)


def test_codes_are_positions_and_names_are_forgiving():
    assert [code(name) for name in SCHEDULES] == CODES.tolist()
    assert code(" ZB_H1 ") == code("zb-h1")


def test_forms_use_names_that_they_get_and_no_field_has_a_default():
    for record in SCHEDULES.values():
        forms = ("bubble", "held", "messages", "late", "unpaired", "pair_held")
        for text in (getattr(record, form) for form in forms):
            assert set(inputs_of(with_steps(STEPS, text))) <= set(NAMES), record.name
        assert all(set(inputs_of(rule)) <= set(LAYOUT) for rule in record.needs.values())
    assert all(field.default is MISSING and field.kw_only for field in fields(Schedule))


def test_wrong_name_gets_the_nearest():
    with pytest.raises(LayoutError, match=r"'interleave'.*did you mean 'interleaved'"):
        schedules.schedule_code("interleave")
    for given, said in (
        (("1f1", 4, 8), "did you mean '1f1b'"),
        (("interleaved", 4, 10, 2), "a multiple of pp, got 4 stages, 10 micro-batches"),
        (("dualpipe", 3, 8), "dualpipe needs an even pp, got 3 stages, 8"),
        (("dualpipe-v", 4, 7, 2), "at least 2·pp micro-batches, got 4 stages, 7"),
    ):
        with pytest.raises(LayoutError, match=said):
            task_orders(*given)


def test_one_stage_costs_nothing_and_holds_one_micro_batch():
    layout = {"stages": 1, "micro_batches": 8, "virtual_stages": 1}

    assert (schedules.bubble_time_s(CODES, **layout, **TIMES) == 0.0).all()
    assert (schedules.in_flight(CODES, **layout) == 1.0).all()
    assert (schedules.exposed_p2p_messages(CODES, **layout) == 0.0).all()


def test_a_synchronized_optimizer_takes_the_zero_bubble_away():
    # arXiv:2401.10241, appendix E: with an all-reduce before the optimizer ZB-2p loses about 8 %.
    times = {"forward_s": 11.347, "backward_input_s": 11.248, "backward_weight_s": 8.132}
    free, joint = (
        48 * 30.727
        + float(
            schedules.bubble_time_s(
                code("zb-2p"),
                stages=16,
                micro_batches=48,
                pending_weight_fraction=0.43,
                synchronized=wait,
                **times,
            )
        )
        for wait in (False, True)
    )

    assert joint / free == pytest.approx(1.81 / 1.68, abs=0.04)


def test_dualpipe_is_the_published_form_where_forward_and_backward_are_alike():
    # DeepSeek-V3, Table 2: (PP/2 - 1)(F&B + B - 3W) with F&B = F + B and the full backward B.
    bubble = schedules.bubble_time_s(
        code("dualpipe"),
        stages=16,
        micro_batches=64,
        forward_s=1.0,
        backward_input_s=1.0,
        backward_weight_s=0.8,
    )

    assert float(bubble) == pytest.approx(7 * ((1.0 + 1.8) + 1.8 - 3 * 0.8))


def test_what_can_run():
    def ok(name: str, p: int, m: int, v: int) -> bool:
        return bool(schedules.valid(code(name), p, m, v))

    assert ok("none", 1, 8, 1)
    assert not ok("none", 2, 8, 1)
    assert ok("interleaved", 4, 8, 3)
    assert not ok("interleaved", 4, 10, 3)
    assert not ok("interleaved", 4, 8, 1)
    assert not ok("1f1b", 4, 8, 2)
    assert ok("zb-v", 4, 8, 2)
    assert not ok("zb-v", 4, 8, 3)
    assert ok("dualpipe", 4, 8, 1)
    assert not ok("dualpipe", 3, 8, 1)
    assert not ok("dualpipe", 4, 6, 1)
    assert not ok("dualpipe-v", 4, 7, 2)


def test_simulation_of_one_micro_batch_on_two_stages_by_hand():
    timeline = simulate(
        task_orders("1f1b", 2, 1),
        forward_s=[1.0, 2.0],
        backward_input_s=[1.0, 2.0],
        backward_weight_s=[0.5, 1.0],
        message_s=0.25,
    )

    assert [(t.rank, t.kind, t.start_s, t.end_s) for t in timeline.tasks] == [
        (0, "F", 0.0, 1.0),
        (1, "F", 1.25, 3.25),
        (1, "B", 3.25, 6.25),
        (0, "B", 6.5, 8.0),
    ]
    assert timeline.makespan_s() == 8.0
    assert timeline.busy_s().tolist() == [2.5, 5.0]
    assert timeline.span_s().tolist() == [8.0, 5.0]


def test_end_ranks_send_less():
    for name, v, inner, first, last in [
        # Forward and backward messages of a micro-batch.
        ("1f1b", 1, (1, 1), (1, 0), (0, 1)),
        ("interleaved", 3, (3, 3), (3, 2), (2, 3)),
        ("zb-v", 2, (2, 2), (1, 1), (1, 1)),
        ("dualpipe", 1, (1, 1), (0.5, 0.5), (0.5, 0.5)),
    ]:
        for ends, sent in (((0, 0), inner), ((1, 0), first), ((0, 1), last)):
            found = schedules.sent_by_rank(code(name), virtual_stages=v, first=ends[0], last=ends[1])
            assert tuple(float(one) for one in found) == sent


# Held by the first rank and the last, messages that are waited for, passes alone, held more in pairs, copies, chunks.
COUNTS = {
    "none": (1, 1, 0, 1, 1 / 4, 1, 1),
    "naive": (1, 1, 48, 8, 0, 1, 1),  # there and back for each
    "gpipe": (8, 8, 6, 8, 0, 1, 1),
    "1f1b": (4, 1, 6, 8, 0, 1, 1),
    # Of 2 · 3 + 4 passes ahead and one more, and of 4 and one, each a half.
    "interleaved": (5.5, 2.5, 6, 2.5, 1 / 2, 1, 2),
    "zb-h1": (4, 4, 12, 8, 0, 1, 1),
    "zb-2p": (7, 7, 6, 8, 0, 1, 1),
    "zb-v": (4, 4, 18, 8, 0, 1, 2),
    "dualpipe": (5, 5, 9, 2, 0, 2, 1),  # 8 · 3/4 and three round trips of a half less the turn
    "dualpipe-v": (4.5, 4.5, 19.5, 2.5, 0, 1, 2),  # 2 · 8 · 3/4 + 2.5 · 3
    "v-half": (3, 3, 28, 8, 0, 1, 2),
    "v-min": (2, 2, 42, 8, 0, 1, 2),  # a third of 4 + 4, rounded down; 6 · 8 · 3/4 + 3 · 2
}


def test_counts_of_a_schedule():
    for name in COUNTS:
        first, last, messages, alone, pair, copies, chunks = COUNTS[name]
        code, stages = schedules.schedule_code(name), 1 if name == "none" else 4
        shape = {"stages": stages, "micro_batches": 8, "virtual_stages": chunks}
        assert float(schedules.in_flight(code, **shape)) == first
        assert float(schedules.in_flight(code, stage=stages - 1, **shape)) == last
        more = schedules.in_flight(code, paired=1.0, layers=4.0, **shape) - schedules.in_flight(code, **shape)
        assert float(more) == pytest.approx(min(pair, 8 - first))
        assert float(schedules.exposed_p2p_messages(code, **shape)) == messages
        assert float(8 * schedules.unpaired_share(code, **shape)) == pytest.approx(alone)
        assert float(schedules.fact("weight_copies", code)) == copies


def test_every_schedule_is_counted():
    assert COUNTS.keys() == SCHEDULES.keys()
