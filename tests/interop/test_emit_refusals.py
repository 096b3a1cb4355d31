"""What each framework's writer refuses, in its own sentence: nothing that a framework has no word for is dropped."""

import re

import pytest

import costmodel as cm
from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.interop.emit import emit
from costmodel.interop.framework import FrameworkConfigError, left_of, steps_of, tokens_of

JOB = {"model": "llama3-8b", "cluster": "dgx-h100-ndr", "gpus": 32, "global_batch": 64, "seq_len": 4096}


@pytest.mark.parametrize(
    ("framework", "changed", "said"),
    [
        (
            "megatron",
            {"layout": "pp2", "schedule": "dualpipe"},
            "Megatron-LM has no schedule dualpipe; plan with 1f1b, interleaved",
        ),
        ("accelerate", {"layout": "pp2"}, "Accelerate has no schedule 1f1b; plan with pp 1"),
        (
            "torchtitan",
            {"precision": "fp16"},
            "torchtitan has no precision fp16; plan with fp32, bf16, fp8-current, mxfp8",
        ),
        ("torchtitan", {"optimizer": "lion"}, "torchtitan has no optimizer lion; plan with adamw"),
        (
            "megatron",
            {"layout": "cp2", "switches": {"cp_slices": "contiguous"}},
            "Megatron-LM splits sequences over context ranks in zig-zag, not contiguous; leave out cp_slices",
        ),
        (
            "torchtitan",
            {"frozen": "embedding"},
            "torchtitan freezes parts in a training script, not in its configuration; leave out frozen",
        ),
        (
            "megatron",
            {"lora_rank": 8},
            "Megatron-LM: adapters on a base in bf16 are not written; they are for nemo, accelerate, axolotl",
        ),
        (
            "torchtitan",
            {"lora_rank": 8, "base_dtype": "nf4"},
            "torchtitan: adapters on a base in nf4 are not written; they are for accelerate, axolotl",
        ),
        (
            "nemo",
            {"lora_rank": 8, "base_dtype": "nf4"},
            "Megatron-Bridge: adapters on a base in nf4 are not written; they are for accelerate, axolotl",
        ),
        (
            "axolotl",
            {"lora_rank": 8, "lora_targets": "qkv", "zero_stage": 3, "recipe": "torchtitan"},
            "Axolotl has no layer for the lora target 'qkv'; it has those of q, k, v, o, gate, up, down",
        ),
        (
            "megatron",
            {"model": "nemotron-h-56b", "layout": "tp4 pp2", "pipeline_layout": "Et*59|t*59L"},
            "Megatron-LM's models with state spaces take no pipeline layout; leave out pipeline_layout",
        ),
        (
            "megatron",
            {"model": "bloom-176b", "gpus": 64, "layout": "tp4 pp2"},
            "Megatron-LM has no position embedding 'alibi'",
        ),
        ("megatron", {"axis_order": "dp tp cp pp"}, "Megatron-LM cannot place the axes as dp tp cp pp"),
        (
            "megatron",
            {"model": "bloom-176b", "layout": "tp4 pp8"},
            "Megatron-LM: pipeline_model_parallel_size = 8 does not divide num_layers = 70; a pipeline layout deals them "
            "out (megatron/core/transformer/transformer_block.py:155, megatron-core 0.16.1)",
        ),
    ],
)
def test_what_has_no_word_is_refused(framework, changed, said):
    with pytest.raises(FrameworkConfigError, match="^" + re.escape(f"emit: {said}") + "$"):
        emit(cm.estimate(**{**JOB, **changed}), framework)


def test_an_unknown_framework():
    with pytest.raises(
        FrameworkConfigError, match="framework: 'megatrom' is unknown; did you mean 'megatron'"
    ):
        emit(cm.estimate(**JOB), "megatrom")


def left(framework, **changed):
    return [
        said.partition(": ")[0]
        for said in left_of(FRAMEWORKS[framework], cm.estimate(**{**JOB, **changed}).job)
    ]


def test_what_is_left_to_the_user_follows_the_job():
    """Positions are said of rotary models, routing of experts, a pipeline of stages, recomputation where there is any."""
    always = ["data", "tokenizer", "training"]
    assert left("megatron") == [*always, "positions", "nodes", "checkpoints"]
    assert left("megatron", model="mixtral-8x7b") == [*always, "routing", "positions", "nodes", "checkpoints"]
    assert left("megatron", model="bloom-176b") == [*always, "nodes", "checkpoints"]
    assert left("megatron", model="bloom-176b", layout="pp2") == [*always, "nodes", "checkpoints"]
    assert left("megatron", gpus=8) == [*always, "positions", "checkpoints"]
    scripted = ["model, data and tokenizer", "training"]
    assert left("deepspeed") == scripted
    assert left("deepspeed", layout="pp2") == [*scripted, "pipeline"]
    assert left("deepspeed", recompute="full") == [*scripted, "recomputation"]
    assert left("deepspeed", layout="pp2", recompute="full") == [*scripted, "pipeline", "recomputation"]
    assert left("axolotl") == ["model", "data", "training", "sharding"]


def test_the_length_of_a_run_is_left_only_where_the_job_has_none():
    """64 sequences of 4,096 tokens a step: a million tokens are 3.8 steps, the last one whole."""
    bridge, long = FRAMEWORKS["nemo"], cm.estimate(**JOB, tokens=1e6).job
    assert "training: optimizer.lr, scheduler.*, train.train_iters" in left_of(bridge, cm.estimate(**JOB).job)
    assert "training: optimizer.lr, scheduler.*" in left_of(bridge, long)
    assert (steps_of(long), steps_of(cm.estimate(**JOB).job)) == (4, None)
    job = {"global_batch": 64, "seq_len": 4096}
    assert tokens_of(4, job) == {"tokens": 4 * 64 * 4096}
    assert tokens_of(1, job) == {"tokens": 64 * 4096}
    for steps, other in (
        (None, job),
        (0, job),
        (4, {**job, "tokens": 5}),
        (4, {**job, "dataset_samples": 5}),
        (4, {"global_batch": 64}),
        (4, {"seq_len": 64}),
        (10**13, job),
    ):
        assert tokens_of(steps, other) == {}
    assert tokens_of(10**18, {"global_batch": 1, "seq_len": 1}) == {"tokens": 1e18}
    assert tokens_of(10**18 + 1, {"global_batch": 1, "seq_len": 1}) == {}
