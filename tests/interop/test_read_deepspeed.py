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
    ("raw", "words"),
    [
        ('{"train_batch_size": CONFIG_BATCH}', "not JSON"),
        ('{"train_batch_size": 8, # note\n}', "not JSON"),
        ('{"the": 1, "of": 2}', "no file of a known kind"),
        ("[1, 2]", "no file of a known kind"),
    ],
)
def test_wrong_files_are_one_line(tmp_path, raw, words):
    with pytest.raises(CostModelError) as caught:
        read(tmp_path, raw)
    assert words in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
