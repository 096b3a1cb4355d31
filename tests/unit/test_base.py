"""The ground floor: texts, tables and files, each by hand at its edges."""

import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

from costmodel.base import files
from costmodel.base.answer import Answer, Listing, Renderers, Views
from costmodel.base.csv_text import read_records, to_csv
from costmodel.base.errors import (
    CostModelError,
    DataError,
    LayoutError,
    choices_hint,
    listed_names,
    near_hint,
    one_line,
    shown,
)
from costmodel.base.files import refuse_endless, write_whole
from costmodel.base.grid import Column, Grid, columns, grid_called, html_table
from costmodel.base.numbers import distinct, divisors
from costmodel.base.words import called, common_device, errors_called
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
    assert called("A GPU and 2 GPUs of GPUDirect", "GPU") == "A GPU and 2 GPUs of GPUDirect"
    assert called("a GPU, A GPU", "HPU") == "an HPU, An HPU"
    # TPU is read "tee": no vowel.
    assert called("a GPU", "TPU") == "a TPU"
    assert common_device(["chip", "chip"]) == "chip"
    assert common_device([]) == "GPU"
    with pytest.raises(LayoutError) as caught, errors_called("core"):
        raise LayoutError("8 GPUs")
    assert caught.value.args == ("8 cores",)
    with pytest.raises(KeyError, match="GPU"), errors_called("core"):
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
