"""What each command hands to the function behind it, and what it shows of the answer: a call a line.

The functions of `costmodel` are stood in for by ones that write down what they are given, so nothing is priced.
`commands_by_hand.yaml` holds the command lines and their calls.
"""

import shlex
import sys
from functools import partial
from importlib import import_module
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from ruamel.yaml import YAML

import costmodel as cm
from costmodel import cli
from costmodel.base.version import __version__
from costmodel.cli import main, output, pictures, plan_input, read_input, streams, texts

JOB = "-m llama3-8b -n 8 --global-batch 64 --seq-len 8k"


def shown(value):
    """Return a value as text; of a function that is made up for this call, that it is one."""
    if isinstance(value, partial):
        return f"{value.func.__name__}{value.args}"
    if isinstance(value, BytesIO):
        return "bytes"
    return "a function" if callable(value) and not isinstance(value, Told) else repr(value)


# What is no object with answers of its own.
SAID = {
    "remarks": ["remark"],
    "finishing_dates": {"p10": "2027-01-01", "p90": "2027-02-01"},
    "finished": ["done in 2027"],
    "in_time": ["in time"],
    "commands": ["costmodel estimate"],
    "check_profile": ["a", "b"],
    "expect": [SimpleNamespace(holds=holds, sentence=f"it is {holds}") for holds in (True, False)],
    "to_dict": {"an": "answer"},
    "beside": SimpleNamespace(sentences=["The planner's is better."], record=lambda: "planner's"),
}
# Asked of every answer that is shown.
FACES = (".remarks()", ".to_dict()", ".columns()", ".grids()")


class Told(str):
    """An answer, or the text of one, that writes down whatever it is asked."""

    truths: ClassVar = {}

    def __new__(cls, name, log):
        made = super().__new__(cls, name)
        made._name, made._log = name, log
        return made

    def __repr__(self):
        return str(self)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self.truths[name] if name in self.truths else Told(f"{self._name}.{name}", self._log)

    def __call__(self, *given, **named):
        said = [shown(one) for one in given] + [f"{key}={shown(named[key])}" for key in sorted(named)]
        self._log.append(f"{self._name}({', '.join(said)})")
        name = self._name.rsplit(".", 1)[-1]
        return SAID[name] if name in SAID else Told(f"{name}()", self._log)


@pytest.fixture
def calls(monkeypatch):
    """Return a function that runs a command line and tells the calls it makes."""
    log = []

    class Stands:
        def __getattr__(self, name):
            return Told(name, log) if name in cm.__all__ and not name.endswith("Error") else getattr(cm, name)

    def show(result, target):
        result.grids(), result.table()
        if (record := result.record()) != SAID["to_dict"]:
            log.append(f"record {record}")
        if result.json_text is not None:
            result.json_text()
        log.append(f"show {list(result.remarks)} {target.format} {target.out} {target.csv} {target.quiet}")

    class Waits:
        def __init__(self, what, *, quiet):
            log.append(f"waiting {what!r} {quiet}")

        def __enter__(self):
            return "progress"

        def __exit__(self, *_):
            log.append("waited")

    def planned(kind, plot, figure, *, force):
        log.append(f"figure {kind} {plot!r} {figure!r} {force}")
        return lambda plots, target: log.append(f"draw {plots}")

    def run(line, **truths):
        monkeypatch.setattr(
            Told, "truths", {"fits": True, "estimates": [], "refused": (), "rows": (), **truths}
        )
        SAID["vary"] = {"": Told("first", log), "tp=4": Told("second", log)}
        SAID["named_or_planned"] = (Told("est", log), True)
        log.clear()
        code = main(shlex.split(line))
        return [*(one for one in log if not one.endswith(FACES)), f"exit {code}"]

    monkeypatch.setitem(sys.modules, "costmodel", Stands())
    monkeypatch.setattr(output, "show", show)
    monkeypatch.setattr(output, "write_file", lambda path, text, target: log.append(f"write {path} {text!r}"))
    monkeypatch.setattr(plan_input, "waiting", Waits)
    monkeypatch.setattr(pictures, "planned_figure", planned)
    return run


CASES = YAML(typ="safe", pure=True).load(Path(__file__).with_name("commands_by_hand.yaml").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["line"])
def test_a_command_asks_and_shows(case, calls, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert calls(case["line"].replace("JOB", JOB), **case.get("answers", {})) == case["calls"]
    said = capsys.readouterr()
    assert (said.out.splitlines(), said.err.splitlines()) == (case.get("out", []), case.get("err", []))


# --- the program itself --------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["-h"], ["--help"], ["plan", "-h"], ["hardware", "list", "-h"]])
def test_help_has_a_short_flag_everywhere(words, capsys):
    assert main(words) == 0
    assert "-h, --help" in capsys.readouterr().out


def test_the_program_says_its_version_and_installs_its_completion(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"costmodel {__version__}\n"
    assert main([]) == 2
    assert "--install-completion" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (cm.CostModelError("dollars: expected more"), 2, "Error: --budget: expected more\n"),
        (cm.CostModelError("a\nb"), 2, "Error: a b\n"),
        (BrokenPipeError(), 141, ""),
        (SystemExit(3), 141, ""),
        (UnicodeDecodeError("utf-8", b"x", 7, 8, "bad"), 2, "not text in UTF-8 (bad at byte 7)"),
        (OSError(28, "No space left"), 2, "Error: cannot write the output: No space left\n"),
        (OSError(13, "Permission denied", "a.yaml"), 2, "Error: a.yaml: Permission denied\n"),
    ],
)
def test_what_stops_a_command_is_one_line_and_a_code(error, code, said, capsys, monkeypatch):
    dropped = []

    def stop(**_):
        raise error

    monkeypatch.setattr(cli, "root", stop)
    monkeypatch.setattr(streams, "drop_output", lambda: dropped.append(True))
    assert main(["run", "--budget", "5"]) == code
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.err.count("\n") == (1 if said else 0)
    lost = isinstance(error, (BrokenPipeError, SystemExit)) or getattr(error, "errno", 0) == 28
    assert bool(dropped) is lost


def test_a_bug_is_not_taken_for_wrong_input(monkeypatch):
    def stop(**_):
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "root", stop)
    with pytest.raises(ZeroDivisionError):
        main([])
    monkeypatch.setattr(cli, "root", lambda **_: "no code")
    assert main([]) == 0


# --- plans ---------------------------------------------------------------------------------------


def test_a_plan_takes_no_replicas_from_a_job_file_and_what_is_emitted_has_to_run(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "model: llama3-8b\ngpus: 8\ntp: 2\ndp: 4\nglobal_batch: 64\nseq_len: 8192\n"
    )
    given = {"job": str(tmp_path / "a.yaml")}
    asked = plan_input.asked_of(given)
    assert asked == {"model": "llama3-8b", "gpus": 8, "tp": 2, "global_batch": 64, "seq_len": 8192}
    assert plan_input.asked_of(given, "job") == asked
    assert plan_input.asked_of(given, "nemo") == {**asked, "framework": "nemo"}
    assert plan_input.asked_of({**given, "framework": "megatron"}, "nemo")["framework"] == "megatron"
    assert plan_input.asked_of({**given, "gpus": ["8", "16"], "tp": ["1,2"]})["gpus"] != 8


# --- files of other programs ---------------------------------------------------------------------


@pytest.fixture
def foreign(monkeypatch):
    """Return what a reader is asked, and a function that says what it answers."""
    asked, answer = (
        [],
        SimpleNamespace(unpriced="", sweeps=(), remarks=("is odd",), job={"gpus": 8, "tp": 2, "env": 1}),
    )
    reading = SimpleNamespace(
        kind_of=lambda path: "megatron",
        read=lambda path, kind, **given: asked.append((kind, given)) or answer,
    )
    merge = import_module("costmodel.describe.jobs.merge")
    monkeypatch.setitem(sys.modules, "costmodel.interop.reading", reading)
    monkeypatch.setattr(merge, "read_job", lambda path: {"of": path})
    return asked, answer


def test_a_file_is_read_as_its_kind(foreign, tmp_path, capsys):
    """As it is called, else as it looks; what is not there is a job file, whose reader says so."""
    asked, _ = foreign
    file = tmp_path / "train.sh"
    file.write_text("x")
    nothing = {"env": None, "vocab_size": None}
    assert read_input.job_of_file(str(file), {}) == {"gpus": 8, "tp": 2}
    assert asked.pop() == ("megatron", nothing)
    assert capsys.readouterr().err == "Warning: is odd\n"
    assert read_input.job_of_file(str(file), {"kind": "nemo"}) == {"gpus": 8, "tp": 2}
    assert asked.pop()[0] == "nemo"
    assert read_input.job_of_file(str(file), {"kind": "job"}) == {"of": str(file)}
    assert read_input.job_of_file("no.yaml", {}) == {"of": "no.yaml"}
    assert asked == []
    # Flags come on top again; those with several values are no business of the reader's.
    given = {"gpus": "16", "tp": "1,2", "env": ["A=1", "B=x=y"], "vocab_size": 9, "cluster": None}
    assert read_input.job_of_file(str(file), given) == {"tp": 2}
    assert asked.pop() == ("megatron", {"gpus": 16, "env": {"A": "1", "B": "x=y"}, "vocab_size": 9})


def test_what_is_no_job_is_refused(foreign, tmp_path):
    _, answer = foreign
    file = tmp_path / "train.sh"
    file.write_text("x")
    answer.unpriced = "is a diffusion"
    with pytest.raises(cm.CostModelError, match=r"train\.sh: the model cannot be priced: is a diffusion"):
        read_input.job_of_file(str(file), {})
    assert read_input.job_of_file(str(file), {"model": "llama3-8b"})["gpus"] == 8
    answer.unpriced, answer.sweeps = "", ("sweep",)
    assert read_input.job_of_file(str(file), {})["gpus"] == 8
    answer.job = {}
    with pytest.raises(cm.CostModelError, match="holds measurements, not a job"):
        read_input.job_of_file(str(file), {})
    for pair in ("A", "=1"):
        with pytest.raises(cm.CostModelError, match=f"--env: expected NAME=VALUE, got '{pair}'"):
            read_input.surroundings({"env": [pair]})


@pytest.mark.parametrize(
    ("text", "one"), [("8", True), ("4,8", False), ("1:8", False), ("tp cp", False), (8, True), (["8"], True)]
)
def test_one_value_has_no_marks_of_several(text, one):
    assert read_input._is_one(text) is one


def test_a_model_is_written_beside_its_job(tmp_path, capsys):
    model, found = cm.load_model("llama3-8b"), SimpleNamespace(job={})
    target = output.Target("yaml", tmp_path / "job.yaml", None, False)
    assert read_input.write_model(found, target) == ""
    found.job["model"] = "llama3-8b"
    assert read_input.write_model(found, target) == ""
    found.job["model"] = model
    assert read_input.write_model(found, target._replace(out=None)) == ""
    assert read_input.write_model(found, target) == "job.model.yaml"
    beside = tmp_path / "job.model.yaml"
    assert "num_layers: 32" in beside.read_text()
    assert capsys.readouterr().err == f"wrote {beside}\n"
    with pytest.raises(cm.CostModelError, match=r"job\.model\.yaml: exists; --force replaces it"):
        read_input.write_model(found, target)
    (tmp_path / "job.yaml").write_text("")  # which --force was given for
    assert read_input.write_model(found, target) == "job.model.yaml"


def test_a_job_file_is_printed_as_it_is(tmp_path, capsys, monkeypatch):
    """Without a line more at its end; told once, and not where quiet was asked for."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text("model: llama3-8b\ngpus: 8\nglobal_batch: 64\nseq_len: 8192\n")
    assert main(["read", "a.yaml", "--format", "yaml"]) == 0
    printed = capsys.readouterr()
    assert printed.out.endswith("\n")
    assert not printed.out.endswith("\n\n")
    assert main(["read", "a.yaml", "--out", "b.yaml"]) == 0
    assert (tmp_path / "b.yaml").read_text() == printed.out
    assert main(["read", "a.yaml", "--out", "c.json"]) == 0
    assert (tmp_path / "c.json").read_text().startswith("{")


# --- examples in help ----------------------------------------------------------------------------


def test_commands_among_examples_are_broken_where_a_shell_goes_on():
    """At 30 columns: what is no command stays, with a backslash at its end too; a command and its next line are broken."""
    plain = "a line of words that is longer than thirty columns, and ends \\"
    after = "  --flags that no command stands before, longer than thirty"
    command = "  costmodel plan -m llama3-70b --tp 1,2 \\"
    goes_on = "      --fix schedule=1f1b --gpus 64"
    assert texts.fitted("\n".join((plain, after)), 30) == f"{plain}\n{after}"
    assert texts.fitted("\n".join((command, goes_on, after)), 30).splitlines() == [
        "  costmodel plan \\",
        "      -m llama3-70b --tp 1,2 \\",
        "      --fix schedule=1f1b \\",
        "      --gpus 64",
        after,
    ]
    short = "  costmodel plan -m llama3-70b"
    assert len(short) == 30
    assert texts.fitted(short, 30) == short
    assert texts.fitted(short, 29) == "  costmodel plan \\\n      -m llama3-70b"


def test_flags_keep_their_values_and_pipes_do_not_belong_to_them():
    line = 'costmodel run --all | jq -r .x > "a b" --out "c d" -q'
    assert texts._broken(line, 20) == [
        "costmodel run \\",
        "    --all | jq \\",
        '    -r .x > "a b" \\',
        '    --out "c d" -q',
    ]
    assert texts._broken("  --one 1 --two 2 \\", 12) == ["  --one 1 \\", "  --two 2 \\"]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_help_is_fitted_to_the_terminal_alone(monkeypatch, is_terminal):
    line = "costmodel plan -m llama3-70b"  # 28 columns
    stdout = SimpleNamespace(isatty=lambda: is_terminal)
    monkeypatch.setattr(texts.sys, "stdout", stdout)
    for columns, broken in ((30, False), (29, is_terminal)):
        monkeypatch.setattr(texts.shutil, "get_terminal_size", lambda c=columns: SimpleNamespace(columns=c))
        assert ("\n" in texts.fitted(line)) is broken
        # A command without examples has a help too.
        assert not texts._built("measure").commands["attention"].epilog
    assert texts._built("mcp").epilog
    monkeypatch.setattr(texts.sys, "stdout", None)
    assert texts.fitted(line) == line


def test_summaries_are_shortened_where_there_is_room_for_a_line():
    text = "word " * 12 + "word"
    assert len(text) == 64
    assert texts._shortened(text, 64) == text
    assert texts._shortened(text, 63) == "word " * 11 + "word..."
    assert texts._shortened(text, 40) == "word " * 6 + "word..."
    assert texts._shortened(text, 39) == text


def test_flags_that_are_not_given_stay_as_they_are():
    def flag(**changes):
        said = {
            "required": False,
            "default": None,
            "multiple": False,
            "process_value": lambda ctx, value: f"read {value}",
        }
        made = SimpleNamespace(**{**said, **changes})
        texts._leave_absent(made)
        return [made.process_value(None, value) for value in (None, "", "x")]

    left = [None, "", "read x"]
    read = ["read None", "read ", "read x"]
    assert flag() == flag(default="") == left
    assert flag(required=True) == flag(default=0) == flag(multiple=True) == read
