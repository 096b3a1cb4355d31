"""torchtitan's files of three ages read."""

import json

import pytest
from texts import read_as

from costmodel.base.errors import CostModelError
from costmodel.interop.reading import read as read_file

OF_2024 = """
[model]
name = "llama3"
flavor = "8B"
[training]
batch_size = 2
seq_len = 4096
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 4
tensor_parallel_degree = 2
compile = true
[experimental]
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "GPipe"
enable_async_tensor_parallel = true
[float8]
enable_float8_linear = true
[activation_checkpoint]
mode = "full"
"""
OF_2025 = """
[model]
name = "qwen3"
flavor = "30B-A3B"
{converters}
[training]
local_batch_size = 4
seq_len = 2048
[parallelism]
data_parallel_shard_degree = -1
expert_parallel_degree = 8
[quantize.linear.float8]
filter_fqns = ["output"]
"""
OF_2026 = {
    "model_spec": {"name": "llama3"},
    "hf_assets_path": "./assets/hf/Llama-3.1-8B",
    "training": {
        "num_tokens_per_microbatch_per_dp_rank": 32768,
        "num_tokens_per_train_step": 1048576,
        "max_context_length": 8192,
    },
    "parallelism": {"tensor_parallel_degree": 2, "pipeline_parallel_degree": 2, "num_pp_microbatches": 4},
    "compile": {"enable": True, "enable_async_tensor_parallel": True},
    "activation_checkpoint": {"_type": "torchtitan.FullAC"},
}


def read(tmp_path, text, name="job.toml", **given):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return read_file(file, **given)


def part(found, *keys):
    everything = {**found.job.get("switches", {}), **found.job, **found.facts}
    return {key: everything[key] for key in keys}


def test_names_of_2024(tmp_path):
    expected = {
        "model": "llama3-8b",
        "gpus": 2 * 4 * 2 * 4,
        "tp": 2,
        "pp": 4,
        "schedule": "gpipe",
        "shard_group": 4,
        "precision": "fp8-current",
        "compiled": True,
        "tp_overlap": "pipelined",
        "recompute": "full",
        "global_batch": 16,
        "local_batch": 2,
    }
    found = read(tmp_path, OF_2024)

    assert part(found, *expected) == expected
    assert found.remarks == ()


def test_the_rest_is_missing_until_gpus_are_given(tmp_path):
    found = read(tmp_path, OF_2025.format(converters=""))

    assert found.missing == ("cluster", "gpus", "global_batch")
    assert found.job["micro_batch"] == 4


def test_names_of_2026(tmp_path):
    # 32,768 tokens a rank are 4 sequences, cut into 4 micro-batches; 1,048,576 a step are 128.
    expected = {
        "model": "Llama-3.1-8B",
        "tp": 2,
        "pp": 2,
        "seq_len": 8192,
        "micro_batch": 1,
        "global_batch": 128,
        "recompute": "full",
        "tp_overlap": "pipelined",
    }
    assert part(read(tmp_path, json.dumps(OF_2026), "config.json", gpus=64), *expected) == expected
    # A step that names no tokens is one micro-batch's of every data-parallel rank: 64 / (2 x 2) ranks of 4 sequences.
    unsaid = {key: value for key, value in OF_2026["training"].items() if key != "num_tokens_per_train_step"}
    text = json.dumps({**OF_2026, "training": unsaid})
    assert read(tmp_path, text, "config.json", gpus=64).job["global_batch"] == 16 * 4


def test_json_may_begin_with_lines_of_nothing(tmp_path):
    path = tmp_path / "job.json"
    path.write_text(
        '\n  {"model": {"name": "llama3", "flavor": "8B"}, "training": {"seq_len": 2048}, "parallelism": {}}\n'
    )
    assert read_file(path, gpus=8).job["seq_len"] == 2048


def test_a_module_of_anybody_else_is_not_guessed_at():
    text = (
        "# settings of torchtitan 0.3.0\ndef job():\n    config.training = TrainingConfig(seq_len=length())\n"
    )
    with pytest.raises(CostModelError, match="not as costmodel writes it"):
        read_as("torchtitan", text, gpus=8)
