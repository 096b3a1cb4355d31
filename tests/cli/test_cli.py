"""The command line: exit codes, what goes where, files, wrong input, help and start-up."""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import costmodel as cm
from costmodel.cli import main, root
from costmodel.cli.group import COMMANDS, LISTED

ROOT = Path(__file__).parents[2]
SMALL = ["--model", "llama3-8b", "--gpus", "8", "--global-batch", "64", "--seq-len", "8192", "--tp", "2"]
HUGE = ["--model", "llama3-405b", "--gpus", "8", "--global-batch", "64", "--seq-len", "8192"]

JOB = """\
model: llama3-8b
cluster: dgx-h100-ndr
gpus: 16
layout: tp2 pp2
global_batch: 64
seq_len: 8192
recompute: selective
switches: {dp_overlap: none}
"""


@pytest.fixture
def job_file(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def test_check_exits_with_3_only_if_it_does_not_fit(run):
    assert run("estimate", *HUGE, "--check")[0] == 3
    fits = run("estimate", *SMALL, "--recompute", "full", "--check", "--format", "json")
    assert json.loads(fits[1])["fits"]
    assert fits[0] == 0


def test_warnings_go_to_stderr_beside_csv(run):
    _, out, err = run("estimate", *HUGE, "--format", "csv")
    assert "Warning: does not fit" in err
    assert "Warning" not in out
    assert run("estimate", *HUGE, "--format", "csv", "--quiet")[2] == ""


def test_flags_win_over_the_file_one_by_one(run, job_file):
    more = "--tp 4 --recompute full --set fused_norm=false --format json"
    _, out, _ = run("estimate", job_file, *more.split())
    inputs = json.loads(out)["inputs"]
    assert (inputs["tp"], inputs["pp"], inputs["dp"], inputs["recompute"]) == (4, 2, 2, "full")
    assert inputs["switches"]["dp_overlap"] == "none"
    assert inputs["switches"]["fused_norm"] is False


def test_inputs_of_a_record_are_a_job_file(run, job_file, tmp_path):
    record = json.loads(run("estimate", job_file, "--format", "json")[1])
    again = tmp_path / "again.yaml"
    again.write_text(json.dumps({key: value for key, value in record["inputs"].items() if value is not None}))
    code, out, err = run("estimate", again, "--format", "json")
    assert code == 0, err
    assert {**json.loads(out), "assumed": record["assumed"]} == record


def test_every_switch_of_a_recipe_can_be_set(run):
    _, out, _ = run("recipe", "show", "megatron-core", "--format", "csv")
    pairs = [f"--set={row['switch']}={row['value']}" for row in csv.DictReader(io.StringIO(out))]
    assert len(pairs) > 30
    code, given, err = run("estimate", *SMALL, *pairs, "--format", "json")
    assert (code, err) == (0, "")
    assert json.loads(given) == json.loads(run("estimate", *SMALL, "--format", "json")[1])


def test_model_beside_the_job_file_is_found(run, tmp_path, monkeypatch):
    (tmp_path / "tiny.yaml").write_text(
        "num_layers: 4\nhidden_size: 256\nvocab_size: 1000\nnum_heads: 4\nffn_size: 1024\ngated_mlp: false\n"
    )
    (tmp_path / "job.yaml").write_text("model: tiny.yaml\ngpus: 1\nglobal_batch: 8\nseq_len: 128\n")
    monkeypatch.chdir("/")
    assert run("estimate", tmp_path / "job.yaml")[0] == 0


def test_out_takes_the_format_from_its_ending(run, tmp_path):
    for ending, first in ((".csv", "layout,bill"), (".json", "{"), (".txt", "llama3-8b on")):
        path = tmp_path / f"result{ending}"
        code, out, err = run("estimate", *SMALL, "--out", path)
        assert (code, out, err.splitlines()[0]) == (0, "", f"wrote {path}")
        assert path.read_text().startswith(first)


def test_csv_is_written_beside_the_table(run, tmp_path):
    path = tmp_path / "lines.csv"
    code, out, err = run("estimate", *SMALL, "--csv", path)
    assert (code, err) == (0, f"wrote {path}\n")
    assert "Largest lines of time" in out
    assert path.read_text() == run("estimate", *SMALL, "--format", "csv")[1]


@pytest.mark.parametrize("option", ["--out", "--csv"])
def test_files_are_replaced_only_by_force(run, tmp_path, option):
    path = tmp_path / "result.csv"
    path.write_text("mine")
    code, out, err = run("estimate", *SMALL, option, path)
    assert (code, out) == (2, "")
    assert err == f"Error: {path}: exists; --force replaces it\n"
    assert path.read_text() == "mine"
    assert run("estimate", *SMALL, option, path, "--force")[0] == 0
    assert path.read_text().startswith("layout,bill")


@pytest.mark.parametrize("kind", ["accelerator", "link", "cluster", "storage"])
def test_every_profile_listed_can_be_shown(run, kind):
    _, out, _ = run("hardware", "list", "--kind", kind, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["name"] for row in rows] == cm.list_profiles(kind)
    assert all(row["title"] for row in rows)
    code, shown, _ = run("hardware", "show", rows[0]["name"], "--format", "json")
    assert code == 0
    assert all(number["source"] for number in json.loads(shown)["numbers"])


WRONG_JOBS = {
    "not YAML": ("model: [", "expected valid YAML"),
    "not a mapping": ("- model", "expected keys with values"),
    "unknown key": ("modell: llama3-8b", "model"),
    "key twice": ("gpus: 8\ngpus: 16", "line 2: expected valid YAML"),
    "text for a number": ("gpus: eight", "gpus: expected a whole number from 1 to 10,000,000, got 'eight'"),
    "number for a text": ("model: 8", "model: expected a text"),
    "list of degrees": ("tp: [1, 2]", "lists are for the Python API"),
    "truth for a number": ("tp: true", "tp: expected a whole number from 1 to 1,000,000, got True"),
    "text for truth": ("sequence_parallel: maybe", "true or false"),
    "switches are not a mapping": ("switches: dp_overlap", "switches: expected switch=value"),
    "switch does not exist": ("switches: {dp_overlaps: none}", "dp_overlap"),
    "axis order": ("axis_order: 4", "innermost first"),
    "layout contradicts": ("layout: tp4\ntp: 8", "tp: given as 8"),
    "half a GPU": ("gpus: 8.5", "8.5"),
}


@pytest.mark.parametrize(("text", "expected"), WRONG_JOBS.values(), ids=WRONG_JOBS)
def test_wrong_job_file_gets_one_line_and_exit_code_2(run, tmp_path, text, expected):
    path = tmp_path / "job.yaml"
    known = {"model": "llama3-8b", "gpus": "8", "global_batch": "64", "seq_len": "8192"}
    rest = "\n".join(f"{key}: {value}" for key, value in known.items() if f"{key}:" not in text)
    path.write_text(text if text[0] == "-" else f"{text}\n{rest}\n")
    code, out, err = run("estimate", path)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert expected in err


def test_a_bug_keeps_its_traceback(monkeypatch):
    def broken(**_):
        raise ZeroDivisionError

    monkeypatch.setattr("costmodel.estimate", broken, raising=False)
    with pytest.raises(ZeroDivisionError):
        main(["estimate", *SMALL])


def test_help_shows_ten_flags_and_help_all_the_others(run):
    for command in ("estimate", "plan", "run", "explain", "compare"):
        short, whole = run(command, "--help")[1], run(command, "--help-all")[1]
        flags = [line for line in short.partition("Options:")[2].splitlines() if line.startswith("  -")]
        assert len(flags) == 12, command
        assert {"-h, --help", "--help-all"} <= {line.strip().split("  ")[0] for line in flags}
        assert all(line.split("  ")[1] in whole for line in flags)
        assert len(whole.splitlines()) > 2 * len(short.splitlines())


def test_the_help_says_of_every_command_what_its_own_help_says():
    group = typer.main.get_command(root)
    readme = (ROOT / "README.md").read_text()
    assert group.list_commands(None) == list(LISTED)
    for name, entry in LISTED.items():
        command = group.get_command(None, name)
        assert command.name == name
        assert " ".join(command.help.split()).startswith(entry.summary), name
        assert f"costmodel {name}" in readme, name


def test_old_names_of_commands_go_on_and_no_help_lists_them(run):
    listed = run("--help")[1]
    old = [name for name in COMMANDS if name not in LISTED]
    assert len(old) == 10
    for name in old:
        assert f"\n  {name} " not in listed
        code, out, err = run(name, "--help")
        assert (code, err) == (0, ""), name
        if not COMMANDS[name].module:
            assert out == run(*COMMANDS[name].summary.split(), "--help")[1]
    for before, now in (
        (("schema", "job"), ("read", "--schema", "job")),
        (("roofline", *SMALL), ("estimate", *SMALL, "--roofline")),
        (("trace", *SMALL, "--format", "json"), ("estimate", *SMALL, "--trace", "-", "--format", "json")),
        (("calibrate", "runs", "no.yaml=5s"), ("observed", "calibrate", "runs", "no.yaml=5s")),
        (("schema", "nonsense"), ("read", "--schema", "nonsense")),
    ):
        assert run(*before)[:2] == run(*now)[:2]


def test_views_of_an_estimate_are_files_of_their_own(run, tmp_path):
    page, trace, before = (tmp_path / name for name in ("page.html", "step.json", "before.json"))
    least = ("--no-plan", "--no-sensitivity", "--samples", "20")
    code, out, err = run("estimate", *SMALL, *least, "--html", page, "--trace", trace)
    assert (code, err) == (0, f"wrote {page}\nwrote {trace}\n")
    assert out.startswith("llama3-8b on 8 H100: ")
    assert "<html" in page.read_text()
    assert run("trace", *SMALL, "--out", before)[0] == 0
    assert trace.read_text() == before.read_text()
    assert run("estimate", *SMALL, *least, "--html", "-", "-q")[1].lstrip().lower().startswith("<!doctype")
    for flag, file in (("--html", page), ("--trace", trace)):
        assert run("estimate", *SMALL, flag, file) == (2, "", f"Error: {file}: exists; --force replaces it\n")


def python(*arguments, cwd):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True
    )


def test_the_command_line_starts_without_numpy_pandas_or_pydantic(tmp_path):
    heavy = ["numpy", "pandas", "pydantic", "rich", "ruamel", "scipy", "tomli_w"]
    bare = "import sys, typer; print('rich' in sys.modules)"
    if python("-c", bare, cwd=tmp_path).stdout == "True\n":  # typer below 0.16
        heavy.remove("rich")
    code = f"import sys, costmodel.cli; print([m for m in {heavy} if m in sys.modules])"
    assert python("-c", code, cwd=tmp_path).stdout == "[]\n"


def test_estimate_as_a_process_loads_no_pandas(tmp_path):
    code = f"""
import sys
from costmodel.cli import main
code = main(["estimate", *{SMALL!r}, "--format", "csv"])
print(code, [m for m in ("pandas", "matplotlib", "scipy") if m in sys.modules], file=sys.stderr)
"""
    assert python("-c", code, cwd=tmp_path).stderr.splitlines()[-1] == "0 []"
