"""MaxText's configurations: sizes, a mesh of two tiers, a batch of each device."""

import pytest

from costmodel.base.errors import CostModelError
from costmodel.interop.reading import read as read_file
from costmodel.step.anatomy.params import num_params

SIZES = """
base_emb_dim: 4096
base_num_query_heads: 32
base_num_kv_heads: 32
base_mlp_dim: 11008
base_num_decoder_layers: 32
head_dim: 128
mlp_activations: ["silu", "linear"]
vocab_size: 32000
decoder_block: "llama2"
"""
JOB = """
base_config: "base.yml"
model_name: "llama3-8b"
per_device_batch_size: 4
max_target_length: 8192
remat_policy: "full"
ici_fsdp_parallelism: -1
ici_tensor_parallelism: 2
dcn_data_parallelism: 2
dtype: "bfloat16"
"""


def written(tmp_path, text):
    path = tmp_path / "7b.yml"
    path.write_text(text)
    return path


def test_a_model_by_its_sizes(tmp_path):
    found = read_file(written(tmp_path, SIZES))

    assert (found.kind, found.job["model"].name) == ("maxtext", "7b")
    assert round(num_params(found.job["model"])) == 6738415616  # Llama 2 7B
    for change, part in (
        ('decoder_block: "gpt3"', "decoder_block: 'gpt3' is not supported"),
        ("global_parameter_scale: 2", "global_parameter_scale: only 1"),
    ):
        with pytest.raises(CostModelError, match=part):
            read_file(written(tmp_path, SIZES.replace('decoder_block: "llama2"', change)))


def test_a_job_on_two_tiers(tmp_path):
    found = read_file(written(tmp_path, JOB), gpus=32)
    job = found.job

    # 4 sequences on each of 32 devices; a replica of two devices has 8.
    assert (job["global_batch"], job["micro_batch"], job["tp"], job["zero_stage"]) == (128, 8, 2, 3)
    assert (job["seq_len"], job["precision"], job["recompute"]) == (8192, "bf16", "full")
    assert (job["model"].name, found.missing) == ("llama3-8b", ("cluster",))


def test_the_mesh_says_the_gpus_where_it_is_whole(tmp_path):
    whole = JOB.replace("ici_fsdp_parallelism: -1", "ici_fsdp_parallelism: 4")
    assert read_file(written(tmp_path, whole)).job["gpus"] == 16
    assert read_file(written(tmp_path, JOB)).missing == ("cluster", "gpus", "global_batch")
    with pytest.raises(CostModelError, match="gpus: 6 is not divided by the axes, 4"):
        read_file(written(tmp_path, JOB), gpus=6)
    with pytest.raises(CostModelError, match="ici_sequence_parallelism: this axis cannot be priced"):
        read_file(written(tmp_path, JOB + "ici_sequence_parallelism: 2\n"))
    minimal = read_file(written(tmp_path, JOB.replace('"full"', "minimal")), gpus=8)
    assert minimal.job["recompute"] == "selective"
    assert minimal.warnings == ("remat_policy minimal: priced as selective recomputation of attention",)


def test_experts(tmp_path):
    moe = SIZES + "num_experts: 8\nnum_experts_per_tok: 2\n"
    model = read_file(written(tmp_path, moe.replace("llama2", "mixtral"))).job["model"]

    assert (model.num_experts, model.top_k, model.expert_ffn_size) == (8, 2, 11008)
    # Seven more experts of three matrices, and a router, in each layer.
    assert round(num_params(model)) == 6738415616 + 32 * (7 * 3 * 4096 * 11008 + 8 * 4096)


def test_what_is_left_is_on_top_of_the_other_tier(tmp_path):
    """Tensors over two slices and over the rest of each: 32 chips over 4 that shard and 2 slices leave 4 more."""
    both = JOB.replace("ici_fsdp_parallelism: -1", "ici_fsdp_parallelism: 4")
    both = both.replace("ici_tensor_parallelism: 2", "ici_tensor_parallelism: -1\ndcn_tensor_parallelism: 2")
    both = both.replace("dcn_data_parallelism: 2", "dcn_data_parallelism: 1")
    assert read_file(written(tmp_path, both), gpus=32).job["tp"] == 8
