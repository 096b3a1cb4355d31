"""DeepSpeed's configurations read: old and new keys, "auto", what has no price, and what is another program's."""

import json

import pytest
from texts import read_as

from costmodel.base.errors import CostModelError
from costmodel.interop.reading import read as read_file


def read(tmp_path, raw, **given):
    file = tmp_path / "ds_config.json"
    file.write_text(raw if isinstance(raw, str) else json.dumps(raw))
    return read_file(file, **given)


AUTO = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "zero_optimization": {"stage": 3, "overlap_comm": True, "reduce_bucket_size": "auto"},
    "fp16": {"enabled": "auto"},
    "bf16": {"enabled": "auto"},
}


def test_auto_is_missing_until_it_is_given(tmp_path):
    alone = read(tmp_path, AUTO, gpus=8)

    assert {"precision", "train_micro_batch_size_per_gpu", "train_batch_size"} <= set(alone.missing)
    assert "precision" not in alone.job
    given = read(tmp_path, AUTO, gpus=8, micro_batch=2, global_batch=64, precision="bf16")
    wanted = {"gpus": 8, "micro_batch": 2, "global_batch": 64, "precision": "bf16", "zero_stage": 3}
    assert {key: given.job[key] for key in wanted} == wanted
    assert given.missing == ("cluster", "model", "seq_len")


def test_the_batch_follows_from_two_of_three(tmp_path):
    two = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "fp16": {"enabled": True}}
    # 2 · 4 · (64 / (tp 2 · Ulysses 2)) = 128
    wide = {**two, "tensor_parallel": {"autotp_size": 2}, "sequence_parallel_size": 2}

    assert read(tmp_path, two, gpus=8).job["global_batch"] == 64
    assert read(tmp_path, wide, gpus=64).job["global_batch"] == 128
    assert read(tmp_path, {**two, "train_batch_size": 32}).job["gpus"] == 4
    with pytest.raises(CostModelError, match="train_batch_size = 100"):
        read_as("deepspeed", json.dumps({**two, "train_batch_size": 100}), gpus=8)


@pytest.mark.parametrize(
    ("zero", "wanted"),
    [
        ({"stage": 2, "cpu_offload": True}, {"offload_optimizer": True, "dp_overlap": "none"}),
        (
            {"stage": 2, "offload_optimizer": {"device": "cpu"}},
            {"offload_optimizer": True, "dp_overlap": "none"},
        ),
        ({"stage": 2, "offload_optimizer": {"device": "none"}, "overlap_comm": True}, {}),
        ({"stage": 3}, {}),  # overlaps from stage 3 on
    ],
)
def test_switches(tmp_path, zero, wanted):
    switches = read(tmp_path, {"zero_optimization": zero}, gpus=8).job["switches"]
    if switches.get("dp_overlap") == "none" and "dp_overlap" not in wanted:
        switches = {key: value for key, value in switches.items() if key != "dp_overlap"}

    assert {key: switches.get(key, wanted[key]) for key in wanted} == wanted
    assert ("offload_optimizer" in switches) == ("offload_optimizer" in wanted)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}, "offload_param"),
        ({"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}, "second copy of parameters"),
        ({"zero_optimization": {"stage": 3, "zero_quantized_gradients": True}}, "gradient_compression=int4"),
        ({"train_batch_size": 8, "optimizer": {"type": "OneBitAdam"}}, "OneBitAdam: priced as Adam"),
        ({"train_batch_size": 8, "curriculum_learning": {"enabled": True}}, "full length"),
        (
            {"train_batch_size": 8, "activation_checkpointing": {"partition_activations": True}},
            "--recompute none",
        ),
        ({"train_batch_size": 8, "zero_optimization": {"new_key": 1}}, "zero_optimization.new_key"),
        ({"train_batch_size": 8, "newer": {}}, "may matter: newer"),
    ],
)
def test_what_has_no_price_is_said(tmp_path, raw, words):
    assert any(words in remark for remark in read(tmp_path, raw, gpus=8).remarks)


def test_adam_and_disabled_blocks_say_nothing(tmp_path):
    raw = {"train_batch_size": 8, "optimizer": {"type": "AdamW"}, "curriculum_learning": {"enabled": False}}

    assert read(tmp_path, raw, gpus=8).remarks == ()
    assert read(tmp_path, raw, gpus=8).facts == {}


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ('{"train_batch_size": CONFIG_BATCH}', "not JSON"),
        ('{"train_batch_size": 8, # note\n}', "not JSON"),
        ('{"the": 1, "of": 2}', "no file of a known kind"),
        ("[1, 2]", "no file of a known kind"),
        ({"zero_optimization": 3}, "zero_optimization: expected a table, got 3"),
        (
            {"zero_optimization": {"stage": 5}},
            "zero_optimization.stage: expected a whole number from 0 to 3, got 5",
        ),
        ({"train_batch_size": 8, "bf16": True}, "bf16: expected a table, got True"),
        ({"train_batch_size": 8, "fp16": {"enabled": "yes"}}, "fp16.enabled: expected true or false"),
        ({"train_batch_size": 8, "tensor_parallel": 2}, "tensor_parallel: expected a table, got 2"),
        ({"train_batch_size": 8, "optimizer": "Adam"}, "optimizer: expected a table, got 'Adam'"),
        (
            {"zero_optimization": {"offload_optimizer": "cpu"}},
            "offload_optimizer: expected a table, got 'cpu'",
        ),
        (
            {"zero_optimization": {"offload_param": {"device": "gpu"}}},
            "offload_param.device: expected one of none, cpu, nvme, got 'gpu'",
        ),
        (
            {"zero_optimization": {"zero_hpz_partition_size": "x"}},
            "zero_optimization.zero_hpz_partition_size: expected a whole number",
        ),
        (
            {"train_batch_size": 8, "comment": {"pp": "x"}},
            "comment.pp: expected a whole number above 0, got 'x'",
        ),
        (
            {"train_batch_size": 8, "communication_data_type": []},
            "communication_data_type: expected a text, got []",
        ),
        ({"train_batch_size": 0}, "train_batch_size: expected a whole number above 0, got 0"),
        (
            {"train_batch_size": 8, "communication_data_type": "int3"},
            "expected one of fp32, fp16, bf16, bfp16, bfloat16, float32, got 'int3'",
        ),
    ],
)
def test_wrong_files_are_one_line(tmp_path, raw, words):
    with pytest.raises(CostModelError) as caught:
        read(tmp_path, raw)
    assert words in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_apex_mixed_precision_is_fp16():
    assert (
        read_as("deepspeed", '{"train_batch_size": 8, "amp": {"enabled": true}}').job["precision"] == "fp16"
    )
