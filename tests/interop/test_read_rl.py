"""Configurations of NeMo-RL and verl, read as a step of reinforcement learning; the files here are our own."""

import itertools
from pathlib import Path

import pytest

import costmodel as cm
from costmodel.base.yaml_files import document_text, read_mapping
from costmodel.cli import main
from costmodel.interop.reading import kind_of, read

BASES = read_mapping(Path(__file__).with_name("reader_cases.yaml"), example="read:")["bases"]
NEMO, VERL = document_text(BASES["nemo-rl"]["content"]), BASES["verl-megatron"]["text"]
APART = """
defaults: ./base.yaml
grpo: {async_grpo: {enabled: true, max_trajectory_age_steps: 2}}
policy:
  generation:
    colocated: {enabled: false, resources: {num_nodes: 1, gpus_per_node: 8}}
    vllm_cfg: {gpu_memory_utilization: 0.8, enforce_eager: true, precision: fp8}
cluster: {num_nodes: 3}
"""
GIVEN = {"prompt_len": 130, "response_len": 900}


def job_of(tmp_path, text, name="grpo.yaml", **given):
    path = tmp_path / name
    path.write_text(text)
    return read(path, **{**GIVEN, **given})


def holds(job, **expected):
    assert {key: job.get(key) for key in expected} == expected


def test_a_file_of_each_program_has_a_price(tmp_path):
    for name in ("dpo", "distillation"):
        assert cm.estimate_rl(**job_of(tmp_path, document_text(BASES[name]["content"])).job).step_time_s > 0
    step = cm.estimate_rl(**job_of(tmp_path, NEMO).job)
    # The same step as the published row, whose keywords were written by hand.
    by_hand = cm.estimate_rl(
        model="llama3-8b", gpus=16, pp=2, recompute="full", recipe="megatron-bridge", seq_len=4096, prompts=64,
        samples_per_prompt=32, optimizer_steps=4, max_response_len=3966, rl_framework="nemo-rl", micro_batch=1,
        zero_stage=1, memory_fraction=0.6, generation_layout="tp1", **GIVEN,
    )  # fmt: skip
    assert step.step_time_s == pytest.approx(by_hand.step_time_s, rel=0.03)


def test_defaults_are_followed_and_halves_stand_apart(tmp_path):
    (tmp_path / "base.yaml").write_text(NEMO)
    # Of answers a file has the limit alone: half of it is assumed.
    alone = read(tmp_path / "base.yaml").job
    assert alone["response_len"] == pytest.approx(alone["max_response_len"] / 2)
    found = job_of(tmp_path, APART)
    holds(
        found.job,
        gpus=24, generation_gpus=8, lag=2.0, memory_fraction=0.8, cuda_graphs=False, generation_precision="fp8", pp=2,
        prompts=64,
    )  # fmt: skip
    for named in ("base", "[base]"):
        assert job_of(tmp_path, APART.replace("./base.yaml", named)).job == found.job
    synchronous = job_of(
        tmp_path, APART.replace("enabled: true, max_trajectory_age_steps: 2", "enabled: false")
    )
    assert synchronous.job["lag"] == 0.0
    (tmp_path / "base.yaml").write_text(NEMO.replace("../../../grpo_math_1B.yaml", "grpo.yaml"))
    with pytest.raises(cm.CostModelError, match="name each other"):
        job_of(tmp_path, APART)


def test_the_commands_price_such_a_file_and_say_what_they_assume(tmp_path, capsys):
    path, script, ours = tmp_path / "grpo.yaml", tmp_path / "run.sh", tmp_path / "rl.yaml"
    path.write_text(NEMO)
    script.write_text(VERL)
    assert main(["read", str(path), "--response-len", "900", "--prompt-len", "130", "--out", str(ours)]) == 0
    assert kind_of(ours) == "job"
    of_prompts = ("--prompt-len", "130")
    for file, lengths in itertools.product(
        (path, script, ours),
        (
            (),
            ("--response-len", "900", *of_prompts),
            ("--response-quantiles", "p50=800 p90=1900", *of_prompts),
        ),
    ):
        assert main(["estimate", str(file), "-c", "dgx-h100-ndr", *lengths]) == 0
        out, err = capsys.readouterr()
        assert "old log-probs" in out
        assert ("tokens are assumed" in err) == (not lengths and file != ours)
    assert main(["run", str(path), "--steps", "10", "--response-len", "900", "--prompt-len", "130"]) == 0
