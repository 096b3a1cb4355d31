"""Every schedule's counts at four stages, eight micro-batches and two chunks, by hand, and a few waits."""

import pytest

from costmodel.physics.pipeline.schedule_table import SCHEDULES
from costmodel.physics.pipeline.schedules import (
    bubble_time_s,
    exposed_p2p_messages,
    fact,
    in_flight,
    schedule_code,
    unpaired_share,
)

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
        code, stages = schedule_code(name), 1 if name == "none" else 4
        shape = {"stages": stages, "micro_batches": 8, "virtual_stages": chunks}
        assert float(in_flight(code, **shape)) == first
        assert float(in_flight(code, stage=stages - 1, **shape)) == last
        more = in_flight(code, paired=1.0, layers=4.0, **shape) - in_flight(code, **shape)
        assert float(more) == pytest.approx(min(pair, 8 - first))
        assert float(exposed_p2p_messages(code, **shape)) == messages
        assert float(8 * unpaired_share(code, **shape)) == pytest.approx(alone)
        assert float(fact("weight_copies", code)) == copies


def test_every_schedule_is_counted():
    assert COUNTS.keys() == SCHEDULES.keys()


# Four equal stages of F = 3, I = 2 and W = 2, eight micro-batches: three others, or the formulas of the papers.
BUBBLES = {
    "none": 0.0,
    "naive": 8 * 3 * 7.0,
    "gpipe": 3 * 7.0,
    "1f1b": 3 * 7.0,
    "interleaved": 3 * 7.0 / 2,
    "zb-h1": 3 * (3 + 2 - 2.0),
}


def test_bubbles_of_equal_stages():
    for name in BUBBLES:
        found = bubble_time_s(
            schedule_code(name),
            stages=1 if name == "none" else 4,
            micro_batches=8,
            virtual_stages=2 if name == "interleaved" else 1,
            forward_s=3.0,
            backward_input_s=2.0,
            backward_weight_s=2.0,
        )
        assert float(found) == pytest.approx(BUBBLES[name])
