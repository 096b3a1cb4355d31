"""Flags reach the answer: what a flag of a command's own changes, files of other programs as jobs, and how it ends."""

import json

import pytest

import costmodel as cm
from costmodel import cli
from costmodel.cli import main

JOB = "-m llama3-8b -n 8 --tp 2 --global-batch 64 --seq-len 8k"
PIPED = "-m llama3-8b -n 16 --tp 2 --pp 2 --global-batch 64 --seq-len 8k"
LAUNCH = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 8 \
--seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 64 --bf16 \
--vocab-size 32000 --tensor-model-parallel-size ${TP:-2}\n"
)


@pytest.fixture
def call(capsys):
    """Run a command line in this process: exit code, stdout, stderr."""

    def run(line, *more):
        code = main([*line.split(), *more])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_a_flag_of_its_own_reaches_the_answer(call):
    """Each changes what is printed, and what it prints is there."""
    for line, flag, text in [
        (f"estimate {JOB}", "--all-lines", "  attention.rope.forward "),
        (f"estimate {JOB}", "--samples 20", "p10 to p90 of 20 samples"),
        (f"explain {PIPED}", "--line pp.send_recv", "latency_s"),
        (f"sensitivity {JOB}", "--by 0.5", "+50%"),
        (f"estimate {JOB} --roofline", "--all-lines", "embedding.lookup.backward"),
        (f"run {JOB} --tokens 1T", "--start 2026-12-01", "started on 2026-12-01, done by p10 202"),
        ("collective moe-dispatch --size 28MiB --ranks 32 -c h800-cx7", "--node-limit 2", "once-per-node"),
        ("hardware list", "--kind storage", "storage"),
        ("model show llama3-8b", "--seq-len 8192", "8,192"),
        ("recipe show torchtitan", "--set dp_overlap=none", "none"),
    ]:
        (plain, before, _), (code, after, _) = call(line), call(f"{line} {flag}")
        assert (plain, code) == (0, 0)
        assert before != after
        assert text in after


def test_what_is_expected_and_what_has_to_fit_end_with_code_3(call):
    for command in (f"estimate {JOB}", f"run {JOB} --tokens 1T"):
        assert call(command, "--expect", "mfu > 1%")[0] == 0
        code, _, err = call(command, "--expect", "mfu > 99%")
        assert code == 3
        assert err.startswith("Not met: expected mfu > 99%: it is ")
        assert call(f"{command.replace('--tp 2', '--tp 1')} --check")[0] == 3


def test_a_plan_takes_no_replicas_from_a_job_file_and_what_is_emitted_has_to_run(call, tmp_path):
    """dp 4 of the file would leave tp 2 as the one layout; kept alone, tp stays and gpus may vary."""
    file = tmp_path / "a.yaml"
    file.write_text("model: llama3-8b\ngpus: 8\ntp: 2\ndp: 4\nglobal_batch: 64\nseq_len: 8192\n")
    top = json.loads(call(f"plan {file} --gpus 16 --keep tp --format json")[1])["top"]
    assert {(plan["tp"], plan["gpus"]) for plan in top} == {(2, 16)}
    code, out, err = call(f"plan {file} --emit torchtitan")
    assert (code, "tensor_parallel_degree" in out) == (0, True)
    assert "Reproduce:\n  costmodel estimate" in err
    code, out, _ = call(f"plan {file} --keep tp --emit job --quiet")
    assert code == 0
    assert "layout: tp2\n" in out


def test_a_file_of_another_program_is_a_job(call, tmp_path):
    """Read as it looks or as it is called, its variables from --env; flags come on top, several values too."""
    file = tmp_path / "train.sh"
    file.write_text(LAUNCH)
    layouts = [
        json.loads(call(f"estimate {file} {flags} --format json")[1])["inputs"]
        for flags in ("", "--env TP=4", "--tp 8", "--from megatron --gpus 16")
    ]
    assert [(held["gpus"], held["tp"], held["dp"]) for held in layouts] == [
        (8, 2, 4),
        (8, 4, 2),
        (8, 8, 1),
        (16, 2, 8),
    ]
    top = json.loads(call(f"plan {file} --tp 4,8 --gpus 16 --format json")[1])["top"]
    assert {plan["tp"] for plan in top if plan["rank"]} <= {4, 8}
    assert [(plan["tp"], plan["rank"]) for plan in top if plan["mark"] == "yours, not as asked"] == [
        (2, None)
    ]
    for pair in ("A", "=1"):
        assert f"--env: expected NAME=VALUE, got '{pair}'" in call(f"estimate {file} --env {pair}")[2]


def test_a_file_is_read_into_a_job_file_with_its_model_beside(call, tmp_path):
    """Told once, without a line more at its end; neither file is replaced without --force."""
    (tmp_path / "train.sh").write_text(LAUNCH)
    out, model = tmp_path / "job.yaml", tmp_path / "job.model.yaml"
    printed = call(f"read {tmp_path}/train.sh --format yaml")[1]
    assert printed.endswith("\n")
    assert not printed.endswith("\n\n")
    assert call(f"read {tmp_path}/train.sh --out {out}")[0] == 0
    assert "num_layers: 4" in model.read_text()
    est = json.loads(call(f"estimate {out} --format json")[1])
    assert (
        est["step_time_s"]
        == json.loads(call(f"estimate {tmp_path}/train.sh --format json")[1])["step_time_s"]
    )
    assert "exists; --force replaces it" in call(f"read {tmp_path}/train.sh --out {out}")[2]
    out.unlink()
    assert "job.model.yaml: exists; --force replaces it" in call(f"read {tmp_path}/train.sh --out {out}")[2]
    assert call(f"read {tmp_path}/train.sh --out {tmp_path}/r.json")[0] == 0
    assert json.loads((tmp_path / "r.json").read_text())["job"]["tp"] == 2


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (cm.CostModelError("dollars: expected more"), 2, "Error: --budget: expected more\n"),
        (cm.CostModelError("a\nb"), 2, "Error: a b\n"),
        (BrokenPipeError(), 141, ""),
        (UnicodeDecodeError("utf-8", b"x", 7, 8, "bad"), 2, "not text in UTF-8 (bad at byte 7)"),
        (OSError(28, "No space left"), 2, "Error: cannot write the output: No space left\n"),
        (OSError(13, "Permission denied", "a.yaml"), 2, "Error: a.yaml: Permission denied\n"),
    ],
)
def test_what_stops_a_command_is_one_line_and_a_code(capsys, monkeypatch, error, code, text):
    def stop(**_):
        raise error

    monkeypatch.setattr(cli, "root", stop)
    monkeypatch.setattr("costmodel.cli.streams.drop_output", lambda: None)
    assert main(["run", "--budget", "5"]) == code
    err = capsys.readouterr().err
    assert text in err
    assert err.count("\n") == bool(text)
