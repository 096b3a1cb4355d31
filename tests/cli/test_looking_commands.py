"""The commands that look into an estimate: explain, compare and sensitivity."""

import csv
import io
import json

import pytest

COMMANDS = ["explain", "compare", "sensitivity"]
JOB = "--model llama3-8b --gpus 16 --global-batch 64 --seq-len 8192 --tp 2 --pp 2"
SMALL = JOB.split()


def arguments_of(command):
    return [command, *(["--vary", "micro_batch=2"] if command == "compare" else []), *SMALL]


@pytest.mark.parametrize("command", COMMANDS)
def test_each_prints_a_table_json_and_csv(run, command):
    code, out, _ = run(*arguments_of(command))
    assert code == 0
    assert "──" in out
    record = json.loads(run(*arguments_of(command), "--format", "json")[1])
    assert record.keys() & {"schema_version", "traceEvents"}
    rows = list(csv.DictReader(io.StringIO(run(*arguments_of(command), "--format", "csv")[1])))
    assert len(rows) > 3
    assert all(None not in row.values() for row in rows)


def test_explain_shows_a_line_with_its_numbers(run):
    code, out, _ = run("explain", *SMALL, "--line", "pp.send_recv")
    assert code == 0
    assert "latency_s" in out
    assert "source: " in out
    code, out, err = run("explain", *SMALL, "--line", "pp.sendrecv")
    assert (code, out) == (2, "")
    assert "did you mean 'pp.send_recv" in err
    assert run("explain", *SMALL, "--line", "tp.", "--tree")[0] == 2


def test_the_tree_shows_step_to_operator(run):
    out = run("explain", *SMALL, "--tree")[1]
    parts = [line.partition("  ")[0].strip() or line.strip().split("  ")[0] for line in out.splitlines()]
    at = [
        next(i for i, part in enumerate(parts) if part.startswith(word))
        for word in ("step", "stage", "micro-batch")
    ]
    assert at == sorted(at)
    assert parts.index("layer") < parts.index("attention.core") < parts.index("head")
    # The note is folded to the width of the screen.
    assert "are left out;" in " ".join(out.split())
    assert "are left out;" not in " ".join(run("explain", *SMALL, "--tree", "--all-lines")[1].split())


def test_compare_takes_several_files_and_flags_on_top(run, tmp_path):
    first, second = tmp_path / "narrow.yaml", tmp_path / "wide.yaml"
    for file, tp in ((first, 2), (second, 4)):
        file.write_text(f"model: llama3-8b\ngpus: 16\ntp: {tp}\nglobal_batch: 64\nseq_len: 8192\n")
    code, out, _ = run("compare", first, second, "--seq-len", "4096")
    assert code == 0
    assert out.startswith("wide is ")
    assert "a step than narrow: " in out.splitlines()[0]
    assert (
        "64 sequences of 4,096 tokens" in run("compare", first, second, "--seq-len", "4096", "--details")[1]
    )
    record = json.loads(run("compare", first, second, "--vary", "micro_batch=1,2", "--format", "json")[1])
    labels = [job["label"] for job in record["jobs"]]
    assert labels == [
        "narrow micro_batch=1",
        "narrow micro_batch=2",
        "wide micro_batch=1",
        "wide micro_batch=2",
    ]
    code, _, err = run("compare", first)
    assert code == 2
    assert "two or more" in err
