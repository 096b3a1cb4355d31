"""Wrong command lines: a line each of ``refusals.csv``, with what has to be said of it; exit code 2, and nothing else."""

import csv
import shlex
from pathlib import Path

import pytest

from costmodel.cli import main

with Path(__file__).with_name("refusals.csv").open(encoding="utf-8", newline="") as table:
    REFUSALS = [(row["line"], row["sentence"]) for row in csv.DictReader(table)]
JOB = "estimate -m llama3-8b -n 8 --global-batch 8 --seq-len 2048"
REFUSALS += [
    (f"{JOB} --ep {'9' * 400}", "ep: expected a whole number"),
    (f"{JOB} --schedule {'x' * 5000}", "schedule: "),
    (f"{JOB} --cluster {'x' * 5000}", "cluster"),
    (f"{JOB.replace('estimate', 'compare')} --vary {'x' * 5000}", "vary: "),
    (f"{JOB} --layout tp8\x1b[31m", "layout: "),
    (f"{JOB} --set \x1b=3", "--set: "),
    *(
        (f"collective moe-dispatch --size 1MB {flags} {'9' * 400}", f"{name}: expected a whole number from")
        for flags, name in (
            ("--ranks", "ranks"),
            ("--ranks 16 --members-per-node", "members_per_node"),
            ("--ranks 16 --node-limit", "node_limit"),
            ("--ranks 16 --top-k", "top_k"),
        )
    ),
]


@pytest.mark.parametrize(("line", "sentence"), REFUSALS, ids=range(len(REFUSALS)))
def test_what_is_wrong_is_one_short_line_and_exit_code_2(line, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(line)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Error: ")
    assert err.endswith("\n")
    assert err.strip().isprintable()
    assert len(err) < 400
    assert sentence in err
    assert list(tmp_path.iterdir()) == []
