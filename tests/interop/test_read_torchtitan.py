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


@pytest.mark.parametrize(
    ("converters", "precision"),
    [
        ("", "bf16"),  # the table alone enables nothing
        ('# converters = ["quantize.linear.float8"]', "bf16"),
        ('converters = ["quantize.linear.float8"]', "fp8-current"),
        ('converters = ["float8"]', "fp8-current"),
        ('converters = ["quantize.linear.mx"]', "mxfp8"),
    ],
)
def test_converters_decide_the_precision(tmp_path, converters, precision):
    found = read(tmp_path, OF_2025.format(converters=converters), gpus=16)

    assert found.job["precision"] == precision
    assert (found.job["model"], found.job["ep"], found.job["global_batch"]) == ("qwen3-30b-a3b", 8, 64)


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


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('[optimizer]\nname = "Prodigy"', "optimizer Prodigy: priced as Adam"),
        ("[optimizer]\nearly_step_in_backward = true", "steps inside the backward pass"),
        ("[strange_table]\na = 1", "may matter: strange_table"),
        ("[compile]\nnew_switch = true", "may matter: compile.new_switch"),
    ],
)
def test_what_has_no_price_is_said(tmp_path, more, words):
    found = read(tmp_path, OF_2025.format(converters="") + more, gpus=8)

    assert any(words in remark for remark in found.remarks)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[training]\nseq_len = 'long'", "training.seq_len: expected a whole number, got 'long'"),
        ("training = 3\n[parallelism]\n", "training: expected a table, got 3"),
        (
            "[training]\n[activation_checkpoint]\nmode = 'some'",
            "expected one of none, selective, full, got 'some'",
        ),
        ("[training\n", "not TOML"),
    ],
)
def test_wrong_files_are_one_line(tmp_path, text, words):
    with pytest.raises(CostModelError) as caught:
        read(tmp_path, text, gpus=8)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_recipe_that_reshards_in_pipelines_is_told_otherwise():
    """torchtitan's default keeps layers gathered in a pipeline, and reshards without one."""
    head = "[parallelism]\ndata_parallel_shard_degree = 8\n"
    piped = read_as("torchtitan", head + "pipeline_parallel_degree = 2\n", recipe="composer-fsdp")
    assert piped.job["switches"]["fsdp_reshard_after_forward"] is False
    assert (
        "fsdp_reshard_after_forward"
        not in read_as("torchtitan", head, recipe="composer-fsdp").job["switches"]
    )


def test_json_may_begin_with_lines_of_nothing(tmp_path):
    path = tmp_path / "job.json"
    path.write_text(
        '\n  {"model": {"name": "llama3", "flavor": "8B"}, "training": {"seq_len": 2048}, "parallelism": {}}\n'
    )
    assert read_file(path, gpus=8).job["seq_len"] == 2048


@pytest.mark.parametrize(
    ("optimizer", "ours"),
    [
        ({"_type": "OptimizersContainer"}, None),
        (
            {
                "_type": "OptimizersContainer",
                "param_groups": [{"optimizer_name": "AdamW"}, {"optimizer_name": "Lion"}],
            },
            "lion",
        ),
        ({"name": "_dist_muon_optimizer"}, "muon"),
    ],
)
def test_the_optimizer_of_the_matrices_counts(optimizer, ours):
    text = json.dumps({"training": {"seq_len": 128}, "parallelism": {}, "optimizer": optimizer})
    assert read_as("torchtitan", text, gpus=8).job.get("optimizer") == ours


def test_a_module_of_anybody_else_is_not_guessed_at():
    text = (
        "# settings of torchtitan 0.3.0\ndef job():\n    config.training = TrainingConfig(seq_len=length())\n"
    )
    with pytest.raises(CostModelError, match="not as costmodel writes it"):
        read_as("torchtitan", text, gpus=8)
