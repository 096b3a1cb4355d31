"""A schedule that is one record: without a field it cannot be made, with all it is priced, planned and simulated."""

from dataclasses import fields

import pytest
from test_schedules_simulation import cases, check_bubble, check_held, check_messages

import costmodel as cm
from costmodel.physics.pipeline.orders import Orders, Step
from costmodel.physics.pipeline.schedule_table import SCHEDULES, Exactness, Schedule
from costmodel.physics.pipeline.stages import Fold

NAME = "breadth-first"


def breadth_first(p: int, m: int, v: int) -> Orders:
    """All micro-batches through a chunk before the next chunk, forward and then backward."""
    forwards = [Step("F", chunk, i) for chunk in range(v) for i in range(m)]
    backwards = [Step("B", chunk, i) for chunk in reversed(range(v)) for i in range(m)]
    path = tuple((rank, chunk) for chunk in range(v) for rank in range(p))
    return Orders((tuple(forwards + backwards),) * p, (path,), v)


FIELDS = {
    "name": NAME,
    "order": breadth_first,
    "fold": Fold.LINEAR,
    "splits_backward": False,
    "needs": {
        "vp >= 2": "virtual_stages >= 2",
        "at least pp micro-batches": "micro_batches >= stages",
    },
    "bubble": "others_s / virtual_stages",
    "held": "micro_batches",
    # With as many micro-batches as stages each chunk waits for the last message of the one before it.
    "messages": "where(micro_batches > stages, 2 * (stages - 1), 2 * (virtual_stages * stages - 1))",
    "late": "0",
    "unpaired": "micro_batches",
    "pair_held": "0",
    "exact": Exactness(0.0, 0.0),
    "source": "Lamy-Poirier, arXiv:2211.05953, section 4",
}
JOB = {"model": "llama2-7b", "cluster": "dgx-a100-hdr", "gpus": 64, "global_batch": 128, "seq_len": 4096}


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(SCHEDULES, NAME, Schedule(**FIELDS))


def test_every_field_is_required():
    assert {field.name for field in fields(Schedule)} == set(FIELDS)
    for name in FIELDS:
        with pytest.raises(TypeError, match=f"missing 1 required keyword-only argument: '{name}'"):
            Schedule(**{key: value for key, value in FIELDS.items() if key != name})


@pytest.mark.parametrize("form", ["bubble", "held", "messages"])
def test_a_form_with_a_wrong_name_is_refused(form):
    with pytest.raises(ValueError, match=r"schedule breadth-first: 'stagse' in 'stagse \+ 1' is none of"):
        Schedule(**{**FIELDS, form: "stagse + 1"}).require_known_names()


def test_it_meets_the_oracle(registered):
    held_to = cases(SCHEDULES[NAME])
    assert len(held_to) > 15
    for p, m, v in held_to:
        check_bubble(NAME, p, m, v)
        check_held(NAME, p, m, v)
        check_messages(NAME, p, m, v, stopping=False)


def test_it_is_priced(registered):
    # 16 micro-batches of one sequence; all of them are held, as with GPipe, and half of 1F1B's bubble is left.
    kind = {**JOB, "pp": 8, "recompute": "full"}
    new = cm.estimate(**kind, schedule=NAME, vp=2)
    plain = cm.estimate(**kind, schedule="1f1b")
    line = {line.name: line for line in new.bill.time_lines}["pp.bubble"]
    other = {line.name: line for line in plain.bill.time_lines}["pp.bubble"]
    held = {
        line.name: line.terms["in_flight"].max()
        for line in new.bill.memory_lines
        if "in_flight" in line.terms
    }

    assert float(line.exposed_seconds) == pytest.approx(float(other.exposed_seconds) / 2, rel=0.02)
    assert "others_s / virtual_stages" in line.formula
    assert max(held.values()) == 16.0
    with pytest.raises(cm.CostModelError, match=r"breadth-first cannot run.*it needs vp >= 2"):
        cm.estimate(**kind, schedule=NAME)


def test_it_is_planned_beside_the_others(registered):
    found = cm.plan(**JOB, pp="4,8", schedule=f"1f1b,{NAME},interleaved").to_frame()

    assert NAME in set(found["schedule"])
    # The fastest of those that leave switches and order of the axes as the recipe has them.
    best = found[found["choices"] == ""].iloc[0]
    knobs = {
        key: best[key]
        for key in ("tp", "cp", "pp", "vp", "micro_batch", "zero_stage", "schedule", "recompute")
    }
    alone = cm.estimate(**JOB, **knobs, sequence_parallel=best["sequence_parallel"])
    assert float(alone.step_time_s) == pytest.approx(best["step_time_s"], rel=1e-9)
