"""What each command hands to the function behind it, and what it shows of the answer: a call a line.

The functions of `costmodel` are stood in for by ones that write down what they are given, so nothing is priced.
`commands_by_hand.yaml` holds the command lines and their calls. `recorded_flags.csv` holds the flags of every command
as they were last accepted; a change that is meant is recorded by ``python tests/cli/test_commands_by_hand.py``.
"""

import csv
import inspect
import shlex
import sys
from functools import partial
from importlib import import_module
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from ruamel.yaml import YAML

import costmodel as cm
from costmodel.cli import main, output, pictures, plan_input
from costmodel.cli.texts import GROUPS

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

    truths = {}

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
        monkeypatch.setattr(Told, "truths", {"fits": True, "estimates": [], **truths})
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


# --- flags ---------------------------------------------------------------------------------------

RECORDED = Path(__file__).with_name("recorded_flags.csv")


def commands():
    """Yield the name, the function and the examples of every command, those of groups too."""
    for names in GROUPS.values():
        for name in names:
            module = import_module(f"costmodel.cli.{name}")
            held = getattr(module, name, None) or module.app
            if inspect.isfunction(held):
                yield name, held, module.EPILOG
            else:
                for one in held.registered_commands:
                    yield f"{name} {one.name}", one.callback, one.epilog or ""


def facts(name, parameter):
    """Return what a flag or an argument takes, without its help."""
    kind, said = parameter.annotation.__origin__, parameter.annotation.__metadata__[0]
    return [
        name,
        f"{said.default} {said.param_decls} {said.metavar}",
        f"{kind} {said.min} {said.max}",
        f"{parameter.default!r} {said.show_default} {bool(said.help)} {said.hidden}",
    ]


def flags():
    """Yield a row a flag: those that many commands share are told once, under the first of them."""
    told = set()
    for name, function, examples in commands():
        lines = [line.strip() for line in examples.replace("\b", "").split("\n")]
        yield [name, "examples", *(line for line in lines if "costmodel" in line)]
        shared = []
        for flag, parameter in inspect.signature(function).parameters.items():
            row = facts(flag, parameter)
            if tuple(row) in told:
                shared.append(flag)
            else:
                yield [name, *row]
            told.add(tuple(row))
        yield [name, "shared", " ".join(shared)]


def test_every_command_takes_the_flags_that_it_took():
    with RECORDED.open(newline="") as opened:
        known = list(csv.reader(opened))
    found = list(flags())
    assert [row for row in found if row not in known] == []
    assert [row for row in known if row not in found] == []


if __name__ == "__main__":
    with RECORDED.open("w", newline="") as opened:
        csv.writer(opened, lineterminator="\n").writerows(flags())
