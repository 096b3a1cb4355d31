"""What each framework's writer refuses, in its own sentence: nothing that a framework has no word for is dropped."""

from pathlib import Path

import pytest

import costmodel as cm
from costmodel.base.yaml_files import read_mapping
from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.interop.emit import emit
from costmodel.interop.framework import (
    FrameworkConfigError,
    left_of,
    require_same_model,
    steps_of,
    tokens_of,
)

CASES = read_mapping(Path(__file__).with_name("reader_cases.yaml"), example="read:")["emit_refused"]
JOB = {"model": "llama3-8b", "cluster": "dgx-h100-ndr", "gpus": 32, "global_batch": 64, "seq_len": 4096}


def test_what_has_no_word_is_refused():
    for framework, changed, said in CASES:
        with pytest.raises(FrameworkConfigError) as caught:
            emit(cm.estimate(**{**JOB, **changed}), framework)
        assert str(caught.value) == f"emit: {said}", (framework, changed)


def test_a_model_is_the_same_but_for_what_nothing_depends_on():
    """The width of a dense MLP is nobody's where every layer has experts; DeepSeek-V2-Lite has one dense layer."""
    jobs = {
        name: cm.estimate(**{**JOB, "model": name}).job
        for name in ("llama3-8b", "mixtral-8x7b", "deepseek-v2-lite")
    }
    for name, changed, said in (
        ("llama3-8b", {"name": "other", "context_length": 7}, ""),
        ("llama3-8b", {"ffn_size": 64}, "ffn_size = 14336"),
        ("llama3-8b", {"num_kv_heads": 4}, "num_kv_heads = 8"),
        ("mixtral-8x7b", {"ffn_size": 64}, ""),
        ("mixtral-8x7b", {"num_kv_heads": 4}, "num_kv_heads = 8"),
        ("deepseek-v2-lite", {"ffn_size": 64}, "ffn_size = 10944"),
    ):
        model = jobs[name].model.model_copy(update=changed)
        if not said:
            require_same_model(jobs[name], model, "X")
            continue
        with pytest.raises(FrameworkConfigError, match=f"^emit: X has no setting for {said} of {name}$"):
            require_same_model(jobs[name], model, "X")


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
