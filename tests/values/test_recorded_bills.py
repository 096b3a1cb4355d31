"""Jobs of every sort, their bills as they were last accepted: a net under the values that are written by hand.

`recorded_bills.jsonl` holds a job a line with the sums of its lines by axis and phase, and its memory by line. A
change that is meant is recorded by ``python tests/values/test_recorded_bills.py``, which says what moved by how much;
the commit says why. The jobs were drawn at random and kept where they ran code, or made lines, that none before them
did; a job of something new is added to the file as ``{"job": {...}}``.

`recorded_lines.csv` holds the words of each line of these bills: who causes it, where and when it is paid, what it is
part of, how long it is held. The same script records them.
"""

import csv
import json
from collections import defaultdict
from pathlib import Path

import pytest

import costmodel as cm
from costmodel.describe.models.model import make_model

RECORDED = Path(__file__).with_name("recorded_bills.jsonl")
NUMBERS = ("count", "bytes", "seconds", "exposed_seconds")
LABELS = RECORDED.with_name("recorded_lines.csv")
# Texts for people; numbers follow from the formula.
NO_LABELS = ("name", "formula", "source")


def priced(job):
    """Return the estimate of a job of the file."""
    model = job["model"]
    return cm.estimate(**{**job, "model": make_model(model) if isinstance(model, dict) else model})


def labels_of(est):
    """Return the words of each line of a bill, by where it stands and its name."""
    bill = est.bill
    for kind, lines in (("time", bill.time_lines), ("memory", bill.memory_lines), ("host", bill.host_lines)):
        for line in lines:
            words = {key: value for key, value in line._asdict().items() if isinstance(value, str)}
            said = " ".join(
                f"{key}={value}" for key, value in words.items() if value and key not in NO_LABELS
            )
            yield kind, line.name, said


def bill_of(est):
    """Return the sums of the lines of time by axis and phase, and each line of memory."""
    lines = est.columns("long")
    sums = defaultdict(lambda: [0.0] * len(NUMBERS))
    for at, bill in enumerate(lines["bill"]):
        name = f"{lines['axis'][at]} {lines['phase'][at]}" if bill == "time" else lines["name"][at]
        for place, number in enumerate(NUMBERS):
            value = lines[number][at]
            # A line of bytes alone has no seconds; what is hidden and what is sent counts as much as what shows.
            sums[f"{bill} {name}"][place] += float(value) if value is not None and value == value else 0.0
    return {name: [float(f"{value:.10g}") for value in values] for name, values in sorted(sums.items())}


def record(text):
    """Return a line of the file, of the bill as it is now."""
    job = json.loads(text)["job"]
    est = priced(job)
    SEEN.update(labels_of(est))
    return {"job": job, "bill": bill_of(est)}


SEEN = set()
with LABELS.open(newline="") as opened:
    KNOWN_LABELS = {tuple(row) for row in csv.reader(opened)}
LINES = [] if __name__ == "__main__" else [json.loads(text) for text in RECORDED.read_text().splitlines()]


@pytest.mark.parametrize("at", range(len(LINES)))
def test_a_bill_is_as_it_was_accepted(at):
    job, known = LINES[at]["job"], LINES[at]["bill"]
    est = priced(job)
    found = bill_of(est)
    assert found.keys() == known.keys()
    for name, values in known.items():
        assert found[name] == pytest.approx(values, rel=1e-8, abs=1e-15), name
    assert set(labels_of(est)) <= KNOWN_LABELS


def test_every_recipe_schedule_and_mixer_has_a_bill():
    from costmodel.physics.pipeline.schedule_table import SCHEDULES
    from costmodel.step.anatomy.mixers import MIXERS

    jobs = [line["job"] for line in LINES]
    assert {job["recipe"] for job in jobs} >= set(cm.list_recipes())
    assert {job.get("schedule", "none") for job in jobs} >= set(SCHEDULES)
    sizes = [job["model"].get("mixers", {}) for job in jobs if isinstance(job["model"], dict)]
    assert {one["kind"] for mixers in sizes for one in mixers.values()} == {*MIXERS, "other-heads"}


def _rewrite():
    moved = []
    lines = RECORDED.read_text().splitlines()
    new = [record(text) for text in lines]
    for old, now in zip(map(json.loads, lines), new, strict=True):
        for name in sorted({*old.get("bill", {}), *now["bill"]}):
            was, become = old.get("bill", {}).get(name), now["bill"].get(name)
            if was != become:
                moved.append(f"{json.dumps(old['job'])}: {name}: {was} -> {become}")
    RECORDED.write_text("".join(json.dumps(line) + "\n" for line in new))
    with LABELS.open("w", newline="") as opened:
        csv.writer(opened, lineterminator="\n").writerows(sorted(SEEN))
    print("\n".join(moved[:40]), f"\n{len(moved)} sums moved, {len(new)} jobs")


if __name__ == "__main__":
    _rewrite()
