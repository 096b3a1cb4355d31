"""What people see at 40, 80, 100 and 160 columns: no number cut, no column missing, on a real pseudo-terminal too."""

import fcntl
import os
import pty
import re
import shlex
import struct
import sys
import termios

import pytest
from rich.cells import cell_len

import costmodel as cm
from costmodel.base.answer import rows_of
from costmodel.base.grid import Grid, columns
from costmodel.base.screen import drawn, drawn_short
from costmodel.cli import main

WIDTHS = (40, 80, 100, 160)
JOB = {"model": "llama3-70b", "gpus": 512, "layout": "tp4 pp4 vp5", "global_batch": 1024, "seq_len": 8192}
SMALL = {"model": "llama3-8b", "gpus": 8, "layout": "tp2", "global_batch": 8, "seq_len": 2048}


def answers():
    est = cm.estimate(**JOB)
    yield "estimate", est
    yield "plan", cm.plan(model="llama3-8b", gpus=8, global_batch=8, seq_len=2048, tokens=1e12)
    yield "run", cm.run(**JOB, tokens=5e12)
    yield "budget", cm.budget(dollars=1e6, served_tokens=1e13)
    yield "roofline", cm.roofline(est)
    yield "models", cm.models_table()
    yield "sensitivity", cm.sensitivity(cm.estimate(**SMALL))
    yield "collective", cm.collective("all-reduce", ["1KB", "4GB"], ranks=64)
    yield "compare", cm.compare(est, cm.estimate(**{**JOB, "layout": "tp8 pp4 vp5"}))
    yield "hardware", cm.hardware_profile("dgx-h100-ndr")
    yield "explain", est.explain("pp.bubble")
    yield "mesh", cm.mesh(gpus=512, layout="tp8 pp4")
    yield "recipe", cm.recipe("megatron-core")
    yield "trace", cm.trace(cm.estimate(**{**SMALL, "layout": "pp2"}))


@pytest.fixture(scope="module")
def known():
    return dict(answers())


def test_nothing_is_cut_or_missing():
    for name, answer in answers():
        for width in WIDTHS:
            shown = plain(drawn(answer.grids(), answer.remarks(), width=width))
            assert max(map(cell_len, shown.splitlines())) <= width, (name, width)
            texts = [*answer.remarks()]
            squeezed = "".join(shown.split())
            for grid in answer.grids():
                texts += [grid.title, grid.note, *(cell for row in grid.rows for cell in row)]
                for index, column in enumerate(grid.columns):
                    cells = [row[index] for row in grid.rows]
                    assert not any(cells) or all(word in squeezed for word in column.title.split())
                    if column.number:
                        assert all(cell in shown for cell in cells), (name, width, column.title)
            assert shown.count("…") <= "".join(texts).count("…")


def plain(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_a_table_that_does_not_fit_goes_on_below_and_one_row_is_a_record():
    grid = Grid(
        "T", columns("Name", "Bytes >", "What"), [["a", "1,234", "some words here"], ["b", "5", "more"]]
    )
    assert drawn([grid], [], width=60).count("\n") == 5
    rows = [["a", *(["1,234,567"] * 4)], ["b", *"1234"]]
    wide = Grid("T", columns("Name", *(f"N{i} >" for i in range(4))), rows)
    lines = [line.split() for line in plain(drawn([wide], [], width=30)).splitlines()]
    assert [lines[at] for at in (1, 3, 4)] == [
        ["Name", "N0", "N1"],
        ["a", "1,234,567", "1,234,567"],
        ["b", "1", "2"],
    ]
    assert [lines[at] for at in (6, 9)] == [["Name", "N2", "N3"], ["b", "3", "4"]]
    assert plain(drawn([wide._replace(rows=rows[:1])], [], width=30)).splitlines()[1] == "Name a"


def test_a_table_of_texts_in_a_pipe_is_wrapped_and_one_of_numbers_is_not():
    texts = Grid("", columns("", "A", "B"), [["a", *["a text of several words " * 10] * 2]])
    numbers = Grid("", columns("", *(f"N{i} >" for i in range(30))), [["a", *["1,234,567"] * 30]])
    widths = [max(map(cell_len, drawn([grid], []).splitlines())) for grid in (texts, numbers)]
    assert widths == [200, 1 + 30 * (3 + 9)]


def test_what_is_the_same_in_every_row_is_said_once_where_that_makes_a_table():
    rows = [[f"row {i}", "a value that is long and the same", f"{i}"] for i in range(3)]
    grid = Grid("", columns("Name", "Held >", "N >"), rows)
    assert "In every row" not in drawn([grid], [], width=80)
    shown = plain(drawn([grid], [], width=30))
    assert "In every row: Held a value" in " ".join(shown.split())
    assert "row 2   2" in shown


def test_a_table_is_one_from_the_width_on_in_which_its_texts_can_be_read():
    """A name of 3, a number of 11 and 18 cells of a text, with 1 between them: 34."""
    grid = Grid("", columns("Key", "N >", "Text"), [["key", "123,456,789", "a text of several words " * 3]])
    for width in range(20, 70):
        shown = plain(drawn([grid], [], width=width))
        assert ("─" in shown) == (width >= 34), width
        assert max(map(cell_len, shown.splitlines())) <= width
        assert "123,456,789" in shown


def test_numbers_and_names_of_rows_are_whole_and_texts_are_wrapped_at_blanks():
    text = Grid("", columns("", ""), [["memory used", "does not fit, 2.44 GiB too much of it"]])
    lines = plain(drawn([text], [], width=34)).splitlines()
    assert [line.strip() for line in lines if line.strip()] == [
        "memory used   does not fit, 2.44",
        "GiB too much of it",
    ]
    named = Grid("", columns("", "What"), [["memory of all the stages", "a text of several words " * 3]])
    assert "memory of all the stages" in plain(drawn([named], [], width=46))


def test_what_does_not_fit_stands_out():
    shown = drawn([Grid("", columns("", ""), [["memory", "81 GiB: does not fit"]])], ["Warning: x"], width=80)
    assert re.search(r"\x1b\[1;31mdoes not fit\x1b\[0m", shown)
    assert re.search(r"\x1b\[1;33mWarning:\x1b\[0m", shown)
    assert "\x1b" not in drawn([Grid("", columns("", ""), [["memory", "does not fit"]])], ["Warning: x"])


def on_a_terminal(arguments, width, **environment):
    """Run the program on a pseudo-terminal of that width; return what it shows, and its exit code."""
    pid, terminal = pty.fork()
    if not pid:
        known = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
        line = [sys.executable, "-m", "costmodel", *arguments]
        os.execve(sys.executable, line, {**known, "TERM": "xterm-256color", **environment})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    shown = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        shown += part
    return shown.decode().replace("\r\n", "\n"), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


FLAGS = ["-m", "llama3-70b", "-n", "512", "-l", "tp4 pp4 vp5", "--global-batch", "1024", "--seq-len", "8192"]


@pytest.mark.parametrize(
    ("command", "width"),
    [(["estimate", *FLAGS], 80), (["budget", "--budget", "1e6", "--serve-tokens", "1e13"], 40)],
)
def test_a_real_terminal_shows_what_a_pipe_has(command, width):
    shown, code = on_a_terminal(command, width)
    assert code == 0
    assert "\x1b[1" in shown
    # A command to copy is one line, which the terminal breaks without cutting it.
    lines = [line for line in plain(shown).splitlines() if not line.startswith("  costmodel ")]
    assert max(map(cell_len, lines)) <= width
    assert command[0] == "estimate" or "$1,000,000" in plain(shown)


def test_a_pipe_is_as_wide_as_its_columns_say(capsys, monkeypatch):
    for cells, least, most in (("70", 50, 70), ("", 81, 1000), ("wide", 81, 1000)):
        monkeypatch.setenv("COLUMNS", cells)
        assert main(["estimate", *FLAGS, "--details"]) == 0
        shown = capsys.readouterr().out
        assert "\x1b" not in shown
        lines = [line for line in shown.splitlines() if not line.startswith("  costmodel ")]
        assert least < max(map(cell_len, lines)) <= most


SEVENTY = "-m llama3-70b -c h100 -n 256 -l 'tp4 cp2 pp4 vp5' --global-batch 512 --seq-len 8192"
SHORT = (
    f"estimate {SEVENTY}",
    "estimate llama3-8b 8xH100",
    f"estimate {SEVENTY} --roofline",
    "plan llama3-70b 256xH100 --tokens 1T",
    "plan llama3-70b -n 256 -c h100 -c a100 -c gb200-nvl72 --tokens 1T",
    f"run {SEVENTY} --tokens 1T",
    f"explain {SEVENTY}",
    f"sensitivity {SEVENTY}",
    f"compare {SEVENTY} --vary tp=2,4,8",
    "generate llama3-70b 8xH100",
    "estimate deepseek-v3-671b 2048xh800",
    "estimate deepseek-v3-671b 2048xh800 --roofline",
    "plan mixtral-8x7b 64xH100",
    "collective all-reduce --size 1GB --ranks 64 --cluster h100-ndr",
    "model show deepseek-v3-671b",
    "recipe show megatron-core",
    "hardware show h100-sxm-80gb",
)


def test_an_answer_is_twenty_five_lines_at_most(capsys, monkeypatch):
    """A command to copy counts as one, however it is broken."""
    monkeypatch.setattr("costmodel.cli.output._terminal_width", lambda: 80)
    for line in SHORT:
        assert main(shlex.split(line)) == 0
        shown = plain(capsys.readouterr().out).splitlines()
        assert 5 < sum(not one.startswith("    -") for one in shown) <= 25, line
        assert max(cell_len(one) for one in shown if not one.startswith("  costmodel ")) <= 80, line


def test_a_long_answer_in_short_keeps_its_head_and_says_what_is_left_out():
    head = Grid("Head", columns("", ""), [["name", str(n)] for n in range(8)])
    rows = [[f"row {n}", str(n)] for n in range(100)]
    tables = [Grid(f"T{n}", columns("Name", "N >"), rows, note="A note.") for n in range(4)]
    shown = plain(drawn_short([head, *tables], ["Last."], width=80, most=25))
    assert shown.count("\n") == 25  # rows come back while there is room
    for text in (
        "name   7",
        "row 0",
        "A note. 8 of 100 rows: --details has all",
        "3 more tables: --details",
        "Last.",
    ):
        assert text in shown, text
    assert drawn_short([head], [], width=80, most=5) == drawn([head], [], width=80)
    three = Grid("T", columns("Name", "N >"), rows[:3])
    assert "row 2" in drawn_short([head, three], [], width=80, most=5)
    assert "row 99" in drawn_short(tables, [], most=25)  # a pipe has all


def test_the_best_is_beaten_on_both_axes_by_no_row_of_the_same_screen():
    """Neither by a layout to try nor by one of the best or of the front; what is shown as the fastest is."""
    for job in ({"model": "llama3-70b", "gpus": 256}, {"model": "mixtral-8x7b", "gpus": 64}):
        found = cm.plan(**job, global_batch=512, seq_len=8192)
        tables = (found.columns_of([trial.row for _, trial in found.trials()]), found.columns(20))
        rows = [row for table in (*tables, found.pareto_columns()) for row in rows_of(table)]
        best = rows[0]
        assert best["rank"] == 1
        for row in rows:
            beaten = [row[name] < best[name] * (1 - 1e-9) for name in ("step_time_s", "memory_bytes_per_gpu")]
            assert not all(beaten), row
        assert [row["rank"] for row in rows_of(tables[1]) if "fastest" in row["mark"]] != []


def test_names_that_do_not_fit_go_on_behind_a_dot():
    """At 80 cells a name of the bill is cut at no other place, and no other column is."""
    est = cm.estimate("llama3-8b", "8xH100", tp=2)
    names = {line.name.partition(".")[2] for line in est.bill.time_lines if line.axis == "compute"}
    parts = {part for name in names for part in name.split(".")}
    text = drawn(est.grids(), [], width=80, styled=False)
    (bill,) = re.findall(r"^Time bill$.*?\n\n", text, re.M | re.S)
    head, _, *rows = bill.splitlines()[1:]
    assert head.endswith("Tier")
    folded = [row for row in rows if row.startswith("  backward_")]
    assert folded
    assert {row.strip() for row in folded} <= parts
    assert max(map(len, bill.splitlines())) <= 80
