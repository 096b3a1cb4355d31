"""What each framework's writer refuses, in its own sentence: nothing that a framework has no word for is dropped."""

import re

import pytest

import costmodel as cm
from costmodel.interop.emit import emit
from costmodel.interop.framework import FrameworkConfigError

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
            "Megatron-LM deals sequences to context ranks in zig-zag, not contiguous; leave out cp_slices",
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
