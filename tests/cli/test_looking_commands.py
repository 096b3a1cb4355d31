"""The commands that look into an estimate: explain, compare and sensitivity."""

import csv
import io
import json

import pytest

import costmodel as cm
from costmodel.what_if.changes import choice_changes

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


def test_a_line_that_is_not_there_is_refused(run):
    code, out, err = run("explain", *SMALL, "--line", "pp.sendrecv")
    assert (code, out) == (2, "")
    assert "did you mean 'pp.send_recv" in err


def test_a_model_that_is_not_known_is_named_with_the_reason(run, tmp_path):
    job = tmp_path / "sft.yaml"
    job.write_text(
        "model_name_or_path: Qwen/Qwen9-14B\nfinetuning_type: full\nper_device_train_batch_size: 1\n"
    )
    for command in ("estimate", "plan", "explain"):
        code, out, err = run(command, job, "-n", "8")
        assert (code, out) == (2, "")
        assert "model missing" in err
        assert "Qwen/Qwen9-14B: its shape is not known offline" in err


def test_compare_takes_several_files_and_flags_on_top(run, tmp_path):
    first, second = tmp_path / "narrow.yaml", tmp_path / "wide.yaml"
    for file, tp in ((first, 2), (second, 4)):
        file.write_text(f"model: llama3-8b\ngpus: 16\ntp: {tp}\nglobal_batch: 64\nseq_len: 8192\n")
    code, out, _ = run("compare", first, second, "--seq-len", "4096")
    assert code == 0
    assert out.startswith("wide is ")
    assert "a step than narrow: " in out.splitlines()[0]
    assert "4,096 tokens" in run("compare", first, second, "--seq-len", "4096", "--details")[1]
    record = json.loads(run("compare", first, second, "--vary", "micro_batch=1,2", "--format", "json")[1])
    labels = [job["label"] for job in record["jobs"]]
    assert labels == [
        "narrow micro_batch=1",
        "narrow micro_batch=2",
        "wide micro_batch=1",
        "wide micro_batch=2",
    ]
    rows = [
        line
        for line in run("compare", first, "--vary", "zero=0,1,2,3")[1].splitlines()
        if line.startswith("zero_stage=")
    ]
    assert [row.split()[0] for row in rows][-4:] == [f"zero_stage={stage}" for stage in range(4)]
    code, _, err = run("compare", first)
    assert code == 2
    assert "two or more" in err


def test_several_machines_are_laid_side_by_side(run):
    machines, job = ("8xH100", "16xA100"), ("--tp", "8", "--global-batch", "64", "--seq-len", "4096")
    jobs = json.loads(run("compare", "llama3-8b", *machines, *job, "--format", "json")[1])["jobs"]
    assert [each["label"] for each in jobs] == list(machines)
    runs = json.loads(run("run", "llama3-8b", *machines, *job, "--tokens", "1B", "--format", "json")[1])
    alone = [
        json.loads(run("run", "llama3-8b", one, *job, "--tokens", "1B", "--format", "json")[1])
        for one in machines
    ]
    found = runs["runs"]
    assert [each["days"] for each in found] == [each["days"] for each in alone]
    assert found[0]["days"] < found[1]["days"]


def test_a_varied_mapping_is_labelled_as_it_is_typed(run):
    job = ("llama3-8b", "1,024xH100", "--tp", "8", "--global-batch", "128", "--seq-len", "4096")
    record = json.loads(run("compare", *job, "--vary", "hw=nic=400Gbps,nic=50GB/s", "--format", "json")[1])
    assert [each["label"] for each in record["jobs"]] == ["hw=nic=400Gbps", "hw=nic=50GB/s"]
    first, second = (each["step_time_s"] for each in record["jobs"])
    assert first == second  # 400 Gbit are 50 GB
    assert " on 1,024 H100: " in run("estimate", *job)[1]


def test_what_the_model_says_of_its_routing_is_no_switch_to_turn():
    est = cm.estimate("deepseek-v3-671b", "64xH800", layout="pp4 ep16", global_batch=64, seq_len=4096)
    names = {change.name for change in choice_changes(est.job)}
    assert "node_limited_routing" not in names
    assert "moe_dispatcher" in names
