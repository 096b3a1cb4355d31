"""Where each framework's assertion refuses, over thousands of made-up arguments: a net under `test_assertions.py`.

Arguments take small numbers, the numbers of the condition and their neighbours, and the words that it names, in an
order that only their names decide. `recorded_assertions.csv` holds how many were refused, and a digest of which. A change
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
POINTS = 20_000
SMALL = (0, 1, 2, 3, 4, 8)


def made_up(condition, name):
    """Return values of an argument: the same for the same condition's numbers and name."""
    numbers = {float(word) for word in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?![\w.])", condition)}
    words = {WORDS[word] for word in inputs_of(condition) if word in WORDS}
    near = {max(number + step, 0.0) for number in numbers for step in (-1, 0, 1)}
    pool = sorted({*map(float, SMALL), *near, *words})
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big")
    # A generator of our own (splitmix64): numpy's streams may change between releases.
    with np.errstate(over="ignore"):
        state = (np.arange(POINTS, dtype=np.uint64) + np.uint64(seed)) * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state ^= state >> np.uint64(27)
    return np.array(pool)[(state % np.uint64(len(pool))).astype(int)]


def refused(assertion):
    """Return how many points an assertion refuses, and a digest of which."""
    arguments = {name: made_up(assertion.refused, name) for name in assertion.needs}
    with np.errstate(all="ignore"):
        bad = np.broadcast_to(assertion.bad(arguments), (POINTS,))
    return f"{int(bad.sum())} {hashlib.sha256(np.packbits(bad).tobytes()).hexdigest()[:16]}"


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
    idle = [bits for bits in told if bits.split()[0] in ("0", str(POINTS))]
    assert len(idle) < 0.1 * len(told)


if __name__ == "__main__":
    with RECORDED.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([*key, *told] for key, told in found().items())
