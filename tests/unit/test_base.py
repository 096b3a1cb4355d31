"""The ground floor: texts, tables and files, each by hand at its edges."""

import math
import os
import sys
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from costmodel.base import files
from costmodel.base.answer import Answer, Listing, Renderers, Views
from costmodel.base.csv_text import read_records, to_csv
from costmodel.base.errors import (
    CostModelError,
    DataError,
    LayoutError,
    ProfileError,
    UnitError,
    choices_hint,
    listed_names,
    near_hint,
    one_line,
    shown,
)
from costmodel.base.files import refuse_endless, write_whole
from costmodel.base.grid import Column, Grid, columns, grid_called, html_table
from costmodel.base.numbers import distinct, divisors
from costmodel.base.units import format_bytes, format_seconds, format_si, parse_quantity
from costmodel.base.words import common_device, errors_with_device_name, with_device_name
from costmodel.base.yaml_files import (
    MOST_CHARACTERS,
    document,
    document_text,
    parse_mapping,
    read_mapping,
    top_level_lines,
)
from costmodel.describe.hardware.strict import Bytes, BytesPerSecond, FlopsPerSecond, Seconds, Watts
from costmodel.reporting import renderers


def test_cells_of_a_csv():
    table = {"a": [None, 1, "x,y"], "b": [float("nan"), True, 0.1], "c": [False, 1e30, math.inf]}
    assert to_csv(table) == 'a,b,c\n,,false\n1,true,1e+30\n"x,y",0.1,inf\n'
    with pytest.raises(ValueError, match="shorter"):
        to_csv({"a": [1, 2], "b": [1]})


class Shape(NamedTuple):
    name: str
    size: "float"
    flat: "bool"
    most: "float | None"
    parts: "tuple[str, ...]"
    twice: "float"


def test_rows_of_a_shipped_table_are_records(tmp_path):
    table = tmp_path / "shapes.csv"
    table.write_text("name,size,flat,most,parts,note\na,1e3,yes,,x y,why\nb,2,,0.5,,\n")
    found = read_records(table, Shape, twice=lambda row: 2 * float(row["size"]))
    assert found == {
        "a": ("a", 1000.0, True, None, ("x", "y"), 2000.0),
        "b": ("b", 2.0, False, 0.5, (), 4.0),
    }
    for wrong in ("name,size,flat,most,parts\na,1,ye,,\n", "name,size,flat,most\na,1,yes,\n"):
        table.write_text(wrong)
        with pytest.raises((KeyError, TypeError), match=r"ye|parts"):
            read_records(table, Shape, twice=lambda row: 0.0)


def test_names_that_were_meant():
    assert near_hint("tp", ["pp", "layout"]) == ""
    assert near_hint("lama3", ["llama3", "llama2", "gpt3"]) == "did you mean 'llama3' or 'llama2'?"
    assert choices_hint("zzz", ["b", "a"]) == "known: a, b"
    assert choices_hint("lama3", ["llama3", "gpt3"]) == "did you mean 'llama3'? (known: gpt3, llama3)"
    # Only the first hundred characters of a name are looked at, so that the search ends.
    long = "a" * 100
    assert near_hint(long + "b" * 10_000, [long]) == f"did you mean '{long}'?"
    assert choices_hint(long + "b" * 10_000, [long]).startswith("did you mean")


def test_lists_end_where_a_line_gets_long():
    fits = ["x" * 39] * 3 + ["x" * 17]
    assert len(listed_names(fits)) == 140
    assert listed_names(fits) == ", ".join(fits)
    assert listed_names([*fits[:3], "x" * 18]) == ", ".join(fits[:3]) + ", …"


def test_what_was_given_is_shown_and_never_long():
    for value, text in [
        ("many", "'many'"),
        (0, "0"),
        (7, "7"),
        (-12, "-12"),
        (10**23, "1" + 23 * "0"),
        (10**24 - 1, 24 * "9"),
        (10**24, "a number of 25 digits"),
        (-(10**24), "a number of 25 digits"),
        (10**25 - 1, "a number of 25 digits"),
        (10**99 - 1, "a number of 99 digits"),
        (np.float64(2.5), "2.5"),
        (np.asarray(3), "3"),
        (np.asarray([3]), "array([3])"),
        ([[[1]]], "[[[...]]]"),
        ({"a": {"b": {"c": 1}}}, "{'a': {'b': {...}}}"),
        ("a\nb", r"'a\nb'"),
    ]:
        assert shown(value) == text


def test_one_line_of_300():
    assert one_line("x" * 300) == "x" * 300
    assert one_line("x" * 301) == "x" * 298 + " …"
    # Blanks count before they are joined: a long text is not read whole.
    assert one_line(" " * 1199 + "ab") == "a"
    assert one_line("\x1b[31mred\t\n") == "[31mred"


def test_different_numbers_and_divisors():
    assert distinct(np.array([[3, 1], [1, 2.5]])) == [1.0, 2.5, 3.0]
    assert divisors(36) == (1, 2, 3, 4, 6, 9, 12, 18, 36)
    assert divisors(36, 12) == (1, 2, 3, 4, 6, 9, 12)
    assert (divisors(7), divisors(1)) == ((1, 7), (1,))


def test_words_for_devices():
    assert with_device_name("A GPU and 2 GPUs of GPUDirect", "GPU") == "A GPU and 2 GPUs of GPUDirect"
    assert with_device_name("a GPU, A GPU", "HPU") == "an HPU, An HPU"
    # TPU is read "tee": no vowel.
    assert with_device_name("a GPU", "TPU") == "a TPU"
    assert common_device(["chip", "chip"]) == "chip"
    assert common_device([]) == "GPU"
    with pytest.raises(LayoutError) as caught, errors_with_device_name("core"):
        raise LayoutError("8 GPUs")
    assert caught.value.args == ("8 cores",)
    with pytest.raises(KeyError, match="GPU"), errors_with_device_name("core"):
        raise KeyError("GPU")


GRID = Grid(
    "Bill of a GPU <1>",
    columns("Line", "Time >"),
    (("a GPU & b", "1"), ("sum", "2")),
    strong=frozenset({1}),
    note="per GPU",
    keys=("a", ""),
)


def test_a_table_in_the_words_of_other_hardware():
    assert grid_called(GRID, "GPU") is GRID
    found = grid_called(GRID._replace(columns=columns("a GPU >")), "chip")
    assert (found.title, found.note, found.keys) == ("Bill of a chip <1>", "per chip", ("a", ""))
    assert found.columns == [Column("a chip", True)]
    assert (found.rows, found.strong) == ([["a chip & b", "1"], ["sum", "2"]], frozenset({1}))


def test_a_table_as_html():
    """Texts are escaped, numbers lie to the right, sums are bold; without titles and notes there is none of either."""
    page = html_table(GRID)
    assert "Bill of a GPU &lt;1&gt;</caption>" in page
    assert "a GPU &amp; b</td>" in page
    assert '<td style="text-align:right;font-weight:bold">2</td>' in page
    assert '<td style="text-align:right">1</td>' in page
    assert page.endswith("<p><small>per GPU</small></p>")
    bare = html_table(GRID._replace(columns=columns("", ""), note=""))
    assert "<thead>" not in bare
    assert "<small>" not in bare


class Small(Answer):
    device_word = "chip"

    def to_dict(self):
        return {"a": 1.5}

    def columns(self):
        return {"a": [1, 2]}


def test_what_every_answer_can(monkeypatch):
    drawn = SimpleNamespace(
        grids=lambda answer, **options: [GRID._replace(title=f"of GPUs, {sorted(options)}"), GRID],
        remarks=lambda answer: ["A GPU <b>."],
        line=lambda answer: ("drawn", answer),
    )
    monkeypatch.setitem(sys.modules, "costmodel.reporting.small", drawn)
    monkeypatch.setitem(
        renderers.RENDERERS, "Small", Renderers("small:grids", "small:remarks", {"time_line": "small:line"})
    )
    answer = Small()
    assert answer.plot.names() == ("time_line",)
    assert answer.plot.chart("time-line") == ("drawn", answer)
    assert answer.plot.time_line.args == ("time_line",)
    assert answer.grids(wide=1)[0].title == "of chips, ['wide']"
    assert answer.remarks() == ["A chip <b>."]
    page = answer._repr_html_()
    assert page.count("<table>") == 2
    assert "a chip &amp; b" in page
    assert page.index("</table>") < page.index("<li>A chip &lt;b&gt;.</li>")
    assert answer.to_frame()["a"].tolist() == [1, 2]
    assert Views("Small").require("time-line") == "time_line"
    for wrong in ("time_lin", "_hidden", "grids", "names"):
        with pytest.raises(CostModelError, match=f"figure: '{wrong}' is unknown; .*known: time_line"):
            answer.plot.named(wrong)
    with pytest.raises(AttributeError, match="no figure is called 'timeline'; did you mean 'time_line'"):
        answer.plot.timeline  # noqa: B018
    with pytest.raises(AttributeError, match=r"^_nothing$"):
        answer.plot._nothing  # noqa: B018
    assert Listing("models", {}).device_word == "GPU"


def test_what_may_never_end_is_refused(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "file").touch()
    for path in (pipe, str(pipe), "/dev/null", "/dev/zero"):
        with pytest.raises(DataError, match="is a pipe or a device, expected a file"):
            refuse_endless(path, DataError)
    for path in (tmp_path, tmp_path / "file", tmp_path / "none", "/dev/stdin", "/dev/fd/0", None, 3, "a\0b"):
        refuse_endless(path)


def test_a_file_is_written_whole(tmp_path):
    path = tmp_path / ("n" * 120)
    write_whole(path, "ü\r\n\udc80")
    assert path.read_bytes() == b"\xc3\xbc\r\n\x80"
    link = tmp_path / "link"
    link.symlink_to(path)
    write_whole(str(link), b"two")
    assert link.is_symlink()
    assert path.read_bytes() == b"two"
    assert oct(path.stat().st_mode & 0o777) == oct(0o666 & ~mask())
    assert len(list(tmp_path.iterdir())) == 2
    for wrong, said in (
        (tmp_path / "no" / "file", "No such file"),
        (tmp_path, "directory"),
        ("a\0b", "not a name"),
    ):
        with pytest.raises(CostModelError, match=f"cannot be written .*{said}"):
            write_whole(wrong, "x")
    assert len(list(tmp_path.iterdir())) == 2


def mask():
    """Return what new files are not."""
    found = os.umask(0)
    os.umask(found)
    return found


def test_files_are_closed_once_and_for_good(monkeypatch):
    monkeypatch.setattr(files, "_closed", False)
    assert not files.files_are_closed()
    files.refuse_path("/etc/passwd", "model")
    files.close_files()
    assert files.files_are_closed()
    with pytest.raises(DataError, match=r"^model: '/etc/passwd' would be a file of this machine"):
        files.refuse_path(Path("/etc/passwd"), "model", DataError)


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


SIZES = st.floats(min_value=1e-3, max_value=1e21, allow_nan=False)


@given(SIZES, st.sampled_from(["B", "B/s", "FLOP/s", "FLOP", "W"]))
def test_si_text_round_trips(value, unit):
    assert parse_quantity(format_si(value, unit, digits=17), unit) == pytest.approx(value, rel=1e-14)


@given(st.floats(min_value=1e-10, max_value=1e7, allow_nan=False))
def test_seconds_round_trip(value):
    assert parse_quantity(format_seconds(value, digits=17), "s") == pytest.approx(value, rel=1e-14)


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


PROFILES = sorted((Path(__file__).parents[2] / "hardware_profiles").glob("*/*.yaml"))

# Nine mappings that each merge the one before nine times: 9**9 keys for a reader that writes them out.
MERGES = "b0: &b0 {x: 1}\n" + "".join(
    f"b{i}: &b{i}\n  <<: [{', '.join([f'*b{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
ALIASES = "b0: &b0 [x]\n" + "".join(f"b{i}: &b{i} [{', '.join([f'*b{i - 1}'] * 9)}]\n" for i in range(1, 10))

WRONG = {
    "open list": ("a: 1\nb: [1, 2", "line 2: expected valid YAML"),
    "key twice": ("a: 1\na: 2", "line 2: expected valid YAML; found duplicate key"),
    "tag of another language": ("a: !!python/object:os.system {}", "expected valid YAML"),
    "day that does not exist": ("a: 2026-02-31", "expected valid YAML; day"),
    "number that is none": ("a: !!int eight", "expected valid YAML"),
    "key that is a list": ("? [1]\n: 2", "line 1: expected valid YAML; found unhashable key"),
    "key twice beside a merge": (
        "b: &b {x: 1}\nc: {<<: *b, y: 1, y: 2}",
        "line 2: expected valid YAML; found duplicate",
    ),
    "nested": ("[" * 200_000, "expected valid YAML; it is nested too deeply"),
    "nested in lines": ("- " * 100_000, "expected valid YAML; it is nested too deeply"),
    "nothing": ("", "expected keys with values such as 'gpus: 8'; got nothing"),
    "a list": ("- a", "got list"),
    "a word": ("word", "got str"),
    "numbers for keys": ("1: a", "got 1"),
    "control character": ("a: \x07", "expected valid YAML"),
    "merges that double": (MERGES, "values that do not hold themselves, or each other over and over"),
    "aliases that double": (ALIASES, "values that do not hold themselves, or each other over and over"),
    "deep by aliases": (
        "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 60)),
        "values that do not hold themselves, or each other over and over",
    ),
    "too long": ("# " + "x" * MOST_CHARACTERS, "expected at most 250,000 characters"),
}


@pytest.mark.parametrize(("text", "expected"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_read_is_one_line_of_the_error_asked_for(text, expected, tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(ProfileError) as caught:
        read_mapping(path, example="gpus: 8", error=ProfileError, name="x.yaml")
    message = str(caught.value)
    assert message.startswith("x.yaml: ")
    assert expected in message
    assert len(message.splitlines()) == 1
    assert len(message) < 300


def test_merges_and_aliases_of_people_are_read(tmp_path):
    text = "base: &base {tp: 2, pp: 4}\njob:\n  <<: *base\n  tp: 8\nother: *base\n"
    found = parse_mapping(text, "f", example="")
    assert found["job"] == {"tp": 8, "pp": 4}
    assert found["other"] == {"tp": 2, "pp": 4}
    found["other"]["tp"] = 1  # what one reader changes, the next does not see
    assert parse_mapping(text, "f", example="")["other"] == {"tp": 2, "pp": 4}


def test_the_mark_of_windows_is_no_part_of_the_first_key(tmp_path):
    (tmp_path / "f.yaml").write_bytes(b"\xef\xbb\xbfgpus: 8\r\n")
    assert read_mapping(tmp_path / "f.yaml", example="") == {"gpus": 8}


def test_a_file_that_is_not_there_or_not_text_is_one_line_too(tmp_path):
    with pytest.raises(ProfileError, match=r"gone\.yaml: cannot be read \(No such file"):
        read_mapping(tmp_path / "gone.yaml", example="", error=ProfileError)
    with pytest.raises(ProfileError, match=r"cannot be read \(Is a directory"):
        read_mapping(tmp_path, example="", error=ProfileError)
    (tmp_path / "latin.yaml").write_bytes("title: Köln".encode("latin-1"))
    with pytest.raises(ProfileError, match="expected text in UTF-8"):
        read_mapping(tmp_path / "latin.yaml", example="", error=ProfileError)


def test_numbers_are_those_of_yaml_1_2(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text(
        "a: [1e9, 010, 0o10, 0x1F, 1_000, -3]\nb: [on, No, y, 190:20:30, '1', =]\nc: [TRUE, ~, 2026-02-01]\n"
    )
    found = read_mapping(path, example="")
    assert repr(found["a"]) == "[1000000000.0, 10, 8, 31, 1000, -3]"
    assert found["b"] == ["on", "No", "y", "190:20:30", "1", "="]
    assert found["c"] == [True, None, date(2026, 2, 1)]


def test_lines_of_a_key_are_found_however_they_are_written():
    text = "name: x\n'aliases' : # others\n- a\n- b\n\n  # more\nnotes: >-\n  aliases: [c]\ntitle: 'it''s'\n"
    assert top_level_lines(text, ("aliases",)) == "'aliases' : # others\n- a\n- b\n\n  # more"
    assert top_level_lines(text, ("title",)) == "title: 'it''s'"
    assert top_level_lines(text, ("kind",)) == ""


def test_a_shipped_profile_is_written_as_it_was_read():
    for path in PROFILES[::6]:
        text = path.read_text(encoding="utf-8")
        assert document_text(document(text)) == text, path


def test_lines_before_the_first_key_are_of_none():
    assert top_level_lines("# head\n- x\na: 1\nb: 2\n", ("a",)) == "a: 1"
