"""What people write and what is made of it, as it was last accepted: a net under `test_fields.py` and `test_units.py`.

Every way to read a value is given words of every sort; `recorded_words.jsonl` holds what came out, or the error. A
change that is meant is recorded by ``python tests/unit/test_recorded_words.py``.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from costmodel.base.errors import CostModelError, shown
from costmodel.base.units import (
    format_bytes,
    format_seconds,
    format_si,
    parse_number,
    parse_quantity,
    read_quantity,
)
from costmodel.describe.jobs.fields import FIELD, FIELDS
from costmodel.describe.jobs.reading import (
    keywords,
    read,
    read_array,
    read_codes,
    read_several,
    require_complete,
)

RECORDED = Path(__file__).with_name("recorded_words.jsonl")

TEXTS = (
    *(
        "",
        " ",
        "0",
        "1",
        "-1",
        "8",
        " 8 ",
        "1.5",
        "1e3",
        "1e-3",
        "-2.5e2",
        "1_000",
        "+3",
        "3.0",
        "1.e3",
        "x8",
    ),
    *(
        "32k",
        "32K",
        "2Ki",
        "3M",
        "2Mi",
        "1G",
        "300B",
        "15T",
        "1Ti",
        "2.5k",
        "0.3Ki",
        "0.1234567T",
        "8 k",
        "k",
    ),
    *("80GB", "80 GB", "80 GiB", "1.5KB", "80G", "0B", "3.35 TB/s", "400Gbit/s", "1 Mbit/s", "5 EB/s"),
    *("1us", "1.5 ms", "90s", "15min", "3h", "2d", "0 s", "1 ks", "1 Tis", "5 mB", "700 W", "1 GW", "7 GiW"),
    *("2 PFLOP", "3 TFLOP/s", "1 KiFLOP", "10%", "0.1", "100%", "99.9 %", "%", "$2.10", "$", "$3M"),
    *("true", "False", "on", "OFF", "yes", "no", "none", "Full", "1f1b", "fulll", "adamw", "p90"),
    *("tp8", "tp2 pp4", "tp cp dp pp", "tp-cp,pp-dp", "tp cp dp", "tp tp dp pp", "8,2,8", "1, x", ",", "a,b"),
    *(
        "dp_overlap=none",
        "selective_modules=mlp,moe",
        "selective_modules=",
        "dp_overlap=",
        "=x",
        "dp_overlp=x",
    ),
    *("pp=1", "z-ero=2", "zero=2", "h100-ndr=2.5,tpu-v6e=1.8", "h100-ndr=", "h100-ndr=2,h100-ndr=3", "=2"),
    "9" * 41,
    "a" * 5000,
)
OTHERS = (
    *(None, True, False, 0, 1, 2, 3, 8, -1, 10**7, 10**7 + 1, 10**18, 10**19, 10**400),
    *(0.0, 0.5, 0.999, 1.0, 1.5, 2.0, -0.5, 1e9, 1e10, 1e301, float("nan"), float("inf"), b"8"),
    *([], [8], [2, 4], ["tp", "cp", "pp", "dp"], ["tp", 1], ["pp=1", "pp=2"], ["full", 0], (1, "2"), {}, {8}),
    *({"pp": 1}, {"pp": 1, "zero": 2}, {1: 2}, {"a": 2.5}, {"a": "x"}, {"": 1}, range(1, 3)),
    *(
        np.int64(8),
        np.float64(0.5),
        np.bool_(True),
        np.asarray([1, 2]),
        np.asarray([0.5]),
        np.asarray([True]),
    ),
    *(np.asarray([]), np.asarray(3.0), np.asarray([1.0, 2.0]), np.asarray(["full"])),
)
OF_KIND = {field.name: field for field in {(f.kind, f.thousand): f for f in FIELDS}.values()}
NUMBERS = (
    0,
    1,
    -1,
    0.5,
    -0.25,
    9.994,
    9.995,
    99.95,
    999.5,
    1023,
    1024,
    -2048,
    1e-12,
    1e-9,
    1e-6,
    1.5e-3,
    59.9,
)
NUMBERS += (
    1e3,
    12345,
    1e6,
    2.0**20,
    1e9,
    2.0**30,
    1e12,
    2.0**40,
    9.99 * 2**40,
    10 * 2.0**40,
    -1e15,
    1e18,
    1e22,
)
NUMBERS += (float("inf"), float("nan"))


def outcome(call, *given):
    """Return what a call gives in words, or its error; numbers keep all digits."""
    try:
        value = call(*given)
    except CostModelError as error:
        return f"{type(error).__name__}: {error}"
    except (TypeError, AttributeError, OverflowError) as error:
        return type(error).__name__
    if isinstance(value, np.ndarray):
        return f"array {value.dtype} {value.tolist()!r}"
    return repr(value)


def said(value):
    """Return a value as a key."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:50]} … {len(text)}"


def grouped(call, values, *before):
    """Return what a call gives for each value, the values by what they give."""
    found = {}
    for value in values:
        given = outcome(call, *before, value).replace(shown(value), "·")
        found.setdefault(given, []).append(said(value))
    return found


def cases():
    """Yield a name and what calls of that name give."""
    every = (*TEXTS, *OTHERS)
    for name in OF_KIND:
        for call in (read, read_several):
            yield f"{call.__name__} {name}", grouped(call, every, name)
    for name in ("tp", "zero_stage", "recompute", "schedule", "sequence_parallel", "micro_batch"):
        for call in (read_codes, read_array):
            yield f"{call.__name__} {name}", grouped(call, every, name)
    for thousand in (1000.0, 1024.0, 0.0):
        yield f"parse_number {thousand}", grouped(lambda text, k=thousand: parse_number(text, k), TEXTS)
    for unit in ("B", "B/s", "FLOP/s", "FLOP", "s", "W"):
        yield f"parse_quantity {unit}", grouped(lambda text, u=unit: parse_quantity(text, u), (*TEXTS, 8))
        yield f"read_quantity {unit}", grouped(lambda text, u=unit: read_quantity("x", text, u), (*TEXTS, 8))
    for digits in (2, 3, 5):
        for call in (format_bytes, format_seconds):
            yield f"{call.__name__} {digits}", {said(v): outcome(call, v, digits) for v in NUMBERS}
        yield f"format_si {digits}", {said(v): outcome(format_si, v, "B/s", digits) for v in NUMBERS}
    given = (
        {"tp": 8, "zero": 2},
        {"zero": 1, "zero_stage": 2},
        {"zero": None, "zero_stage": 2},
        {"tpp": 8},
        {8: 1},
        {"Global-Batch": 1},
    )
    yield (
        "keywords",
        {said(v): outcome(lambda v=v: keywords(v, FIELDS, who="me", thing="key")) for v in given},
    )
    jobs = ({}, {"model": "x"}, {"model": "x", "gpus": 8, "global_batch": None}, {f.name: 1 for f in FIELDS})
    yield "require_complete", {said(v): outcome(require_complete, v) for v in jobs}
    yield (
        "fields",
        {
            name: [
                field.flags,
                field.words,
                field.default_said,
                outcome(lambda f=field: f.allowed),
                field.help,
            ]
            for name, field in FIELD.items()
        },
    )


KNOWN = {} if __name__ == "__main__" else dict(map(json.loads, RECORDED.read_text().splitlines()))
FOUND = dict(cases()) if __name__ != "__main__" else {}


@pytest.mark.parametrize("name", KNOWN)
def test_words_mean_what_they_meant(name):
    assert json.loads(json.dumps(FOUND[name])) == KNOWN[name]


if __name__ == "__main__":
    RECORDED.write_text("".join(json.dumps(case, ensure_ascii=False) + "\n" for case in cases()))
