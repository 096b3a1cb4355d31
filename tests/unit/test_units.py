"""The unit parser: every prefix, a round trip, and everything with two readings refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from costmodel.base.errors import UnitError
from costmodel.base.units import format_bytes, format_seconds, format_si, parse_quantity
from costmodel.describe.hardware.strict import Bytes, BytesPerSecond, FlopsPerSecond, Seconds, Watts

DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
SECONDS = {"": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}

GOOD = [
    *[(f"3 {p}B", "B", 3 * f) for p, f in {**DECIMAL, **BINARY}.items()],
    *[(f"3 {p}B/s", "B/s", 3 * f) for p, f in {**DECIMAL, **BINARY}.items()],
    *[(f"3 {p}bit/s", "B/s", 3 * f / 8) for p, f in DECIMAL.items()],
    *[(f"3 {p}FLOP/s", "FLOP/s", 3 * f) for p, f in DECIMAL.items()],
    *[(f"3 {p}FLOP", "FLOP", 3 * f) for p, f in DECIMAL.items()],
    *[(f"3 {p}W", "W", 3 * f) for p, f in DECIMAL.items()],
    *[(f"3 {p}s", "s", 3 * f) for p, f in SECONDS.items()],
]


def test_every_prefix_of_every_dimension():
    for text, unit, expected in GOOD:
        assert parse_quantity(text, unit) == pytest.approx(expected, rel=1e-15)


# What pydantic.ByteSize reads wrongly or accepts in silence; spellings that mean two things; units that are none of ours.
REFUSED = {
    "B": """80,000 MB; 3.35 TB/s; 80 G; 80 Gi; 80; 80GB; 80 gib; 80 GIB; 80 KB; 80 kiB; 80 K; 80  GiB; 80 Gi B; 80 Gbyte;
    1 mB; 1_000 B; 1 000 B; 0x10 B; 1e999 B; inf B; GiB""",
    "B/s": "400Gb; 400 Gb/s; 400 Gbps; 400 GBps; 400 gbit/s; 400 Gbit; 400 Gibit/s; 1 uB/s",
    "FLOP/s": "989.4 TFLOPS; 989.4 TFLOPs; 989.4 TFLOP; 1 PF; 1 TiFLOP/s",
    "W": "700 mW; 700 watts",
    "s": "1 ks; 1 Ms; 1 sec; 1 min; 1 µs; 1 us/hop; -1 s; +1 s; .5 s; 1. s; 1,3 us; nan s",
}


def test_everything_ambiguous_is_refused():
    texts = [(text.strip(), unit) for unit, listed in REFUSED.items() for text in listed.split(";")]
    at_the_edges = [(text, "B") for text in (" 80 GiB", "80 GiB ", "80 GiB\n", "")]
    no_texts = [(value, "B") for value in (80, 80.7, None, True, b"80 GiB", ["80 GiB"])]
    for text, unit in [*texts, *at_the_edges, *no_texts]:
        with pytest.raises(UnitError):
            parse_quantity(text, unit)


def test_the_message_is_one_line_with_what_was_given_and_an_example():
    for unit in ["B", "B/s", "FLOP/s", "FLOP", "s", "W"]:
        with pytest.raises(UnitError, match="'80 parsecs'") as error:
            parse_quantity("80 parsecs", unit)
        example = str(error.value).split("'")[1]
        assert "\n" not in str(error.value)
        assert parse_quantity(example, unit) > 0


def test_a_quantity_of_another_dimension_is_refused():
    for wanted in ["B", "B/s", "FLOP/s", "FLOP", "s", "W"]:
        for given_unit in ["B", "B/s", "bit/s", "FLOP/s", "FLOP", "s", "W"]:
            if given_unit == wanted or (given_unit, wanted) == ("bit/s", "B/s"):
                assert parse_quantity(f"8 {given_unit}", wanted) in (8.0, 1.0)
            else:
                with pytest.raises(UnitError):
                    parse_quantity(f"8 {given_unit}", wanted)


SIZES = st.floats(min_value=1e-3, max_value=1e21, allow_nan=False)


@given(SIZES, st.sampled_from(["B", "B/s", "FLOP/s", "FLOP", "W"]))
def test_si_text_round_trips(value, unit):
    assert parse_quantity(format_si(value, unit, digits=17), unit) == pytest.approx(value, rel=1e-14)


@given(st.floats(min_value=1e-10, max_value=1e7, allow_nan=False))
def test_seconds_round_trip(value):
    assert parse_quantity(format_seconds(value, digits=17), "s") == pytest.approx(value, rel=1e-14)


@given(st.integers(min_value=0, max_value=2**60))
def test_bytes_round_trip_to_the_digits_printed(value):
    text = format_bytes(value, digits=6)
    assert parse_quantity(text, "B") == pytest.approx(value, rel=1e-5, abs=0.5)


def test_zero_and_infinity_print():
    assert format_seconds(0) == "0 s"
    assert format_si(0, "B/s") == "0 B/s"
    assert format_bytes(0) == "0 B"
    assert "inf" in format_si(math.inf, "B/s")


def test_a_field_reads_a_text_and_no_bare_number():
    for sort, text, value in [
        (Bytes, "80 GiB", 80 * 2**30),
        (BytesPerSecond, "3.35 TB/s", 3.35e12),
        (FlopsPerSecond, "989 TFLOP/s", 989e12),
        (Seconds, "2 us", 2e-6),
        (Watts, "700 W", 700.0),
    ]:
        field = TypeAdapter(sort)
        assert field.validate_python(text) == pytest.approx(value)
        assert field.json_schema()["type"] == "string"
        for other in (5, 5.0, "5", "5 parsecs"):
            with pytest.raises(ValidationError):
                field.validate_python(other)
