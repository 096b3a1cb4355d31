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
        ('decoder_block: "gemma4"', "decoder_block: 'gemma4' is not supported"),
        ('decoder_block: "gpt3"', "trainable_position_size: missing, or no whole number"),
        ("global_parameter_scale: 2", "global_parameter_scale: only 1"),
    ):
        with pytest.raises(CostModelError, match=part):
            read_file(written(tmp_path, SIZES.replace('decoder_block: "llama2"', change)))


def sizes(layers, emb, heads, kv_heads, mlp, vocab, block, **more):
    text = f"base_num_decoder_layers: {layers}\nbase_emb_dim: {emb}\nbase_num_query_heads: {heads}\n"
    text += (
        f"base_num_kv_heads: {kv_heads}\nbase_mlp_dim: {mlp}\nvocab_size: {vocab}\ndecoder_block: {block}\n"
    )
    return text + "".join(f"{key}: {value}\n" for key, value in more.items())


MLA = {"q_lora_rank": 1536, "kv_lora_rank": 512, "attention_type": "mla", "shared_experts": 1}
ROUTED = {"base_moe_mlp_dim": 2048, "num_experts": 256, "num_experts_per_tok": 8, "first_num_dense_layers": 3}
INDEXER = {"use_indexer": True, "indexer_n_heads": 64, "indexer_head_dim": 128, "indexer_topk": 2048}
V3 = {**MLA, **ROUTED, "routed_bias": True}
TIED = {"logits_via_embedding": True}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        # The counts of the hub's checkpoints.
        (sizes(61, 7168, 128, 128, 18432, 129280, "deepseek", **V3), 671_026_419_200),
        (sizes(61, 7168, 128, 128, 18432, 129280, "deepseek", **V3, **INDEXER), 671_877_944_064),
        (sizes(62, 5376, 32, 16, 21504, 262208, "gemma3", **TIED, sliding_window_size=1024), 27_009_346_304),
        # Half of Gemma 2's layers: a windowed and a full one are one there.
        (sizes(23, 4608, 32, 16, 36864, 256000, "gemma2", **TIED), 27_227_128_320),
        (
            sizes(
                36, 2880, 64, 8, 2880, 201088, "gpt_oss", head_dim=64, num_experts=128, num_experts_per_tok=4
            ),
            116_829_156_672,
        ),
        (
            sizes(48, 5120, 40, 8, 16384, 202048, "llama4", base_moe_mlp_dim=8192, num_experts=128)
            + "interleave_moe_layer_step: 2\nshared_experts: 1\n",
            400_711_848_960,
        ),
        (sizes(64, 5120, 40, 8, 27648, 100278, "olmo3"), 32_233_522_176),
        (
            sizes(
                48,
                2048,
                16,
                2,
                512,
                151936,
                "qwen3_next",
                head_dim=256,
                num_experts=512,
                num_experts_per_tok=10,
            ),
            79_674_391_296,
        ),
    ],
)
def test_blocks_have_the_parameters_of_their_models(tmp_path, text, count):
    assert round(num_params(read_file(written(tmp_path, text)).job["model"])) == count


def test_every_last_layer_of_a_cycle_has_attention(tmp_path):
    shape = {"head_dim": 16, "num_experts": 4, "num_experts_per_tok": 1}
    text = sizes(6, 64, 4, 2, 96, 100, "qwen3_next", **shape)
    assert read_file(written(tmp_path, text)).job["model"].attention_pattern == "dddfdd"
    text += "inhomogeneous_layer_cycle_interval: 3\n"
    assert read_file(written(tmp_path, text)).job["model"].attention_pattern == "ddfddf"


def test_gpt3_of_maxtext_by_hand(tmp_path):
    text = sizes(2, 8, 2, 2, 32, 10, "gpt3", head_dim=4, trainable_position_size=6, **TIED)
    model = read_file(written(tmp_path, text + "mlp_activations: [gelu]\n")).job["model"]
    # Tables 80 + 48; layer: four projections 4·(64 + 8), MLP 2·256 + 32 + 8, norms 32; last norm 16.
    assert round(num_params(model)) == 128 + 2 * (288 + 552 + 32) + 16


def test_windows_and_experts_of_blocks(tmp_path):
    def model(text):
        return read_file(written(tmp_path, text)).job["model"]

    gemma = model(sizes(3, 64, 4, 2, 96, 100, "gemma2", head_dim=16))
    assert (gemma.num_layers, gemma.full_attention_every, gemma.norms_per_layer) == (6, 2, 4)
    llama = model(sizes(8, 64, 4, 2, 96, 100, "llama4", head_dim=16, num_experts=4, num_experts_per_tok=1))
    assert (llama.full_attention_every, llama.moe_layer_freq, llama.ffn_size) == (4, 1, 0)
    groups = {"n_routing_groups": 8, "topk_routing_group": 4}
    deep = model(sizes(4, 64, 4, 4, 96, 100, "deepseek", **{**V3, **groups}))
    assert (deep.expert_groups, deep.groups_per_token, deep.first_dense_layers) == (8, 4, 3)


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


def test_states_are_sharded_where_either_axis_of_fsdp_is_more_than_one(tmp_path):
    for fsdp, transpose, stage in ((1, 1, 0), (1, 2, 3), (2, 1, 3), (2, 2, 3)):
        axes = f"ici_fsdp_parallelism: {fsdp}\nici_fsdp_transpose_parallelism: {transpose}"
        found = read_file(written(tmp_path, JOB.replace("ici_fsdp_parallelism: -1", axes)))
        assert (found.job["zero_stage"], found.job["gpus"]) == (stage, 4 * fsdp * transpose)


def test_int8_is_the_precision_of_aqt(tmp_path):
    read = read_file(written(tmp_path, JOB + "quantization: int8\n"), gpus=8)
    assert (read.job["precision"], read.warnings) == ("int8", ())
    other = read_file(written(tmp_path, JOB + "quantization: int4\n"), gpus=8)
    assert other.job["precision"] == "bf16"
    assert other.warnings == ("quantization int4: has no price; priced as bfloat16",)


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


@pytest.mark.parametrize(
    ("said", "recipe"), [("", "maxtext"), ("hardware: tpu\n", "maxtext-tpu"), ("hardware: gpu\n", "maxtext")]
)
def test_a_file_that_says_tpu_runs_as_on_tpus(tmp_path, said, recipe):
    assert read_file(written(tmp_path, JOB + said)).job["recipe"] == recipe
