"""A few hundred malformed inputs of every kind; `tests/fuzz.py` makes as many more as wanted."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
import fuzz


@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_what_is_malformed_is_one_line(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    codes, found = fuzz.fuzz(1, range(40), kind)
    assert not found, "\n".join(
        f"{one.where}: {one.what} (inputs {numbers})" for one, numbers in found.items()
    )
    assert sum(codes.values()) == 40
    assert Path.cwd() == tmp_path or os.getcwd() == str(tmp_path)


def test_inputs_of_a_seed_are_the_same_again():
    assert [fuzz.make_input(3, number) for number in range(50)] == [
        fuzz.make_input(3, number) for number in range(50)
    ]


def test_findings_are_found(tmp_path, monkeypatch):
    """The net itself: a crash, a second line, a long line, no number."""
    monkeypatch.chdir(tmp_path)

    def answers(code, out="", err=""):
        def main(arguments):
            print(out, end="")
            print(err, end="", file=sys.stderr)
            return code() if callable(code) else code

        monkeypatch.setattr(fuzz, "main", main)
        return fuzz.findings(fuzz.Input("x", ["estimate"], {}))[1]

    assert not answers(0, "fine 1.5\n")
    assert not answers(2, err="Error: x\n")
    assert answers(0, "nan\n")
    assert answers(1)
    assert answers(2, err="Error: x\ny\n")
    assert answers(2, err="Error: " + "x" * 400)
    assert answers(2)
    assert answers(0, "\x1b[31m")
    assert answers(lambda: 1 / 0)
