"""Where each framework's assertion refuses, over a few hundred made-up arguments: a net under `test_assertions.py`.

Arguments take small numbers, the numbers of the condition and their neighbours, and the words that it names, in an
order that only their names decide. `recorded_assertions.csv` holds which were refused, as hexadecimal digits. A change
that is meant is recorded by ``python tests/interop/test_recorded_assertions.py``.
"""

import csv
import hashlib
import re
from pathlib import Path

import numpy as np
import pytest

from costmodel.bill.formula import inputs_of
from costmodel.interop.assertions.record import WORDS
from costmodel.interop.assertions.tables import TABLES

RECORDED = Path(__file__).with_name("recorded_assertions.csv")
POINTS = 384
SMALL = (0, 1, 2, 3, 4, 8)


def made_up(condition, name):
    """Return values of an argument: the same for the same condition's numbers and name."""
    numbers = {float(word) for word in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])", condition)}
    words = {WORDS[word] for word in inputs_of(condition) if word in WORDS}
    near = {max(number + step, 0.0) for number in numbers for step in (-1, 0, 1)}
    pool = sorted({*map(float, SMALL), *near, *words})
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    # A generator of our own: numpy's streams may change between releases.
    state, found = seed, []
    for _ in range(POINTS):
        state = (1664525 * state + 1013904223) % 2**32
        found.append(pool[(state >> 8) % len(pool)])
    return np.array(found)


def refused(assertion):
    """Return which points an assertion refuses, four to a digit."""
    arguments = {name: made_up(assertion.refused, name) for name in assertion.needs}
    with np.errstate(all="ignore"):
        bad = np.broadcast_to(assertion.bad(arguments), (POINTS,))
    return np.packbits(bad).tobytes().hex()


def found():
    """Return what every framework's assertions refuse, by framework, place and number there."""
    counted, made = {}, {}
    for framework, table in TABLES.items():
        for one in table.assertions:
            number = counted[framework, one.place] = counted.get((framework, one.place), -1) + 1
            made[framework, one.place, str(number)] = [refused(one), str(one.raises), " ".join(one.needs)]
    return made


KNOWN = {}
if __name__ != "__main__":
    with RECORDED.open(newline="") as file:
        for framework, place, number, *told in csv.reader(file):
            KNOWN.setdefault(framework, {})[framework, place, number] = told


@pytest.mark.parametrize("framework", KNOWN)
def test_assertions_refuse_what_they_refused(framework):
    now = found()
    assert {key: now.get(key) for key in KNOWN[framework]} == KNOWN[framework]


def test_most_conditions_are_true_somewhere_and_false_elsewhere():
    told = [bits for known in KNOWN.values() for bits, *_ in known.values()]
    idle = [bits for bits in told if set(bits) in ({"0"}, {"f"})]
    assert len(idle) < 0.1 * len(told)


if __name__ == "__main__":
    with RECORDED.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([*key, *told] for key, told in found().items())
