"""What is written for each framework, as it was last accepted: a net under `test_frameworks.py`.

`recorded_configurations.jsonl` holds a line a job and framework: the text, or the sentence that refuses. Nothing of it
is fitted. A change that is meant is recorded by ``python tests/interop/test_recorded_configurations.py``.
"""

import json
from functools import cache
from pathlib import Path

import pytest

import costmodel as cm
from costmodel.describe.frameworks import FRAMEWORKS

RECORDED = Path(__file__).with_name("recorded_configurations.jsonl")
JOB = {"model": "llama3-8b", "cluster": "dgx-h100-ndr", "gpus": 32, "global_batch": 64, "seq_len": 4096}
MOE = {**JOB, "model": "qwen3-30b-a3b"}
SHARDED = {**JOB, "zero_stage": 3, "recipe": "torchtitan"}
BLACKWELL = {**JOB, "cluster": "hgx-b200-ndr"}
JOBS = {
    "plain": {**JOB, "layout": "tp2"},
    "pipeline": {**JOB, "layout": "tp2 pp4", "tokens": 1e9},
    "interleaved": {**JOB, "layout": "pp4 vp4", "schedule": "interleaved", "sequence_parallel": False},
    "context": {**JOB, "layout": "cp4", "zero_stage": 2, "recompute": "full"},
    "ulysses": {**JOB, "layout": "cp2 tp2", "switches": {"cp_method": "ulysses"}},
    "sharded": {**JOB, "layout": "tp1", "zero_stage": 3, "shard_group": 8, "recompute": "selective"},
    "dealt": {**JOB, "layout": "pp2", "pipeline_layout": "Et*15|t*17L"},
    "titan": {**SHARDED, "layout": "tp2"},
    "titan pipeline": {**SHARDED, "layout": "tp2 pp2 vp2", "schedule": "interleaved", "tokens": 1e9},
    "titan zero bubble": {**SHARDED, "layout": "pp4 vp2", "schedule": "zb-v", "recompute": "none"},
    "titan context": {**SHARDED, "layout": "cp4 tp2", "recompute": "full", "micro_batch": 2},
    "titan experts": {**SHARDED, "model": "qwen3-30b-a3b", "layout": "ep8 tp1"},
    "titan fp8": {**SHARDED, "layout": "tp1", "precision": "fp8-current", "switches": {"compiled": True}},
    "trainer": {**SHARDED, "layout": "tp1", "recompute": "full", "tokens": 1e8},
    "trainer shards": {**SHARDED, "layout": "tp1", "shard_group": 8, "recompute": "none"},
    "trainer whole": {**JOB, "model": "llama3.2-1b", "layout": "tp1", "zero_stage": 0, "recompute": "none"},
    "full": {**JOB, "layout": "tp4 pp2", "recompute": "full", "micro_batch": 2, "zero_stage": 1},
    "fp8": {**JOB, "layout": "tp2", "precision": "fp8-current"},
    "delayed": {**JOB, "layout": "tp2", "precision": "fp8-delayed", "optimizer": "adamw-bf16"},
    "fp16": {**JOB, "layout": "tp2", "precision": "fp16", "zero_stage": 0},
    "mxfp8": {**BLACKWELL, "layout": "tp2", "precision": "mxfp8"},
    "experts": {**MOE, "layout": "pp2 ep8"},
    "expert slices": {**MOE, "layout": "tp2 ep4 etp2", "switches": {"moe_capacity_factor": 1.25}},
    "offload": {**JOB, "layout": "tp2", "switches": {"offload_optimizer": True}},
    "muon": {**JOB, "layout": "tp2", "optimizer": "muon"},
    "adapters": {**JOB, "layout": "tp1", "lora_rank": 16, "zero_stage": 3},
    "quantised": {**JOB, "layout": "tp1", "lora_rank": 8, "base_dtype": "nf4"},
    "learned positions": {
        **JOB,
        "model": "gpt3-175b",
        "seq_len": 2048,
        "layout": "tp8 pp4",
        "recompute": "full",
    },
    "windows": {**JOB, "model": "gpt-oss-20b", "layout": "ep8"},
    "latent": {**MOE, "model": "deepseek-v2-236b", "gpus": 64, "layout": "pp4 ep16", "tokens": "2T"},
    "hybrid": {**JOB, "model": "nemotron-h-56b", "layout": "tp8"},
    "order": {**JOB, "layout": "tp2 pp2", "axis_order": "tp cp pp dp"},
}


@cache
def estimate(name):
    return cm.estimate(**JOBS[name])


def written(name, framework):
    """Return the lines of a configuration, or the sentence that refuses it."""
    try:
        return cm.emit(estimate(name), framework).splitlines()
    except cm.CostModelError as error:
        return str(error)


KNOWN = {}
if __name__ != "__main__":
    for line in RECORDED.read_text().splitlines():
        job, framework, text = json.loads(line)
        KNOWN[job, framework] = text


@pytest.mark.parametrize(("name", "framework"), KNOWN)
def test_a_configuration_is_what_it_was(name, framework):
    assert written(name, framework) == KNOWN[name, framework]


if __name__ == "__main__":
    lines = [json.dumps([name, one, written(name, one)]) for name in JOBS for one in FRAMEWORKS]
    RECORDED.write_text("\n".join(lines) + "\n")
