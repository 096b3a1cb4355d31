"""HuggingFace configs of every supported family against presets and published counts."""

import json
from pathlib import Path

import pytest
from small_configs import CARDS, PUBLISHED, TINY

from costmodel.base.errors import ModelConfigError
from costmodel.describe.models.huggingface import model_from_hf_config, read_hf_config, supported_types
from costmodel.describe.models.huggingface_wrappers import language_model
from costmodel.describe.models.model import same_shape
from costmodel.describe.models.model_files import load_model
from costmodel.step.anatomy.params import num_params

DATA = Path(__file__).parents[1] / "data"
# Real shapes, cut to the keys that matter and a few that must not. `null` is None.
CONFIGS = {
    "llama3-8b": {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "initializer_range": 0.02,
        "intermediate_size": 14336,
        "max_position_embeddings": 8192,
        "model_type": "llama",
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": 128256,
    },
    "llama-7b": {  # before grouped attention: no num_key_value_heads
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "vocab_size": 32000,
        "max_sequence_length": 2048,
    },
    "mixtral-8x7b": {
        "model_type": "mixtral",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": None,
        "head_dim": None,
        "tie_word_embeddings": False,
        "vocab_size": 32000,
        "router_aux_loss_coef": 0.02,
        "output_router_logits": False,
    },
    "qwen2.5-7b": {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_attention_heads": 28,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "max_window_layers": 28,
        "sliding_window": 131072,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
        "vocab_size": 152064,
        "use_mrope": False,
    },
    "qwen3-32b": {
        "model_type": "qwen3",
        "attention_bias": False,
        "head_dim": 128,
        "hidden_size": 5120,
        "intermediate_size": 25600,
        "max_window_layers": 64,
        "num_attention_heads": 64,
        "num_hidden_layers": 64,
        "num_key_value_heads": 8,
        "sliding_window": None,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
        "vocab_size": 151936,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe",
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "head_dim": 128,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "max_window_layers": 48,
        "mlp_only_layers": [],
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "vocab_size": 151936,
    },
    "deepseek-v2-236b": {
        "model_type": "deepseek_v2",
        "attention_bias": False,
        "first_k_dense_replace": 1,
        "hidden_size": 5120,
        "intermediate_size": 12288,
        "kv_lora_rank": 512,
        "moe_intermediate_size": 1536,
        "moe_layer_freq": 1,
        "n_group": 8,
        "n_routed_experts": 160,
        "n_shared_experts": 2,
        "num_attention_heads": 128,
        "num_experts_per_tok": 6,
        "num_hidden_layers": 60,
        "num_key_value_heads": 128,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "topk_group": 3,
        "topk_method": "group_limited_greedy",
        "routed_scaling_factor": 16.0,
        "tie_word_embeddings": False,
        "vocab_size": 102400,
    },
    "deepseek-v3-671b": json.loads((DATA / "config-deepseek-v3-671b.json").read_text()),
    "gpt-oss-120b": json.loads((DATA / "config-gpt-oss-120b.json").read_text()),
    "gpt2-xl": {
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "n_ctx": 1024,
        "n_embd": 1600,
        "n_head": 25,
        "n_layer": 48,
        "n_positions": 1024,
        "vocab_size": 50257,
        "resid_pdrop": 0.1,
    },
    "bloom-176b": {
        "model_type": "bloom",
        "hidden_size": 14336,
        "n_layer": 70,
        "num_attention_heads": 112,
        "offset_alibi": 100,
        "pretraining_tp": 4,
        "seq_length": 2048,
        "vocab_size": 250880,
        "n_inner": None,
    },
}

# Models without a preset, with the count of their released weights (Hub metadata).
OTHERS = {
    "mistral-7b-v0.1": (
        7_241_732_096,
        {
            "model_type": "mistral",
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "sliding_window": 4096,
            "vocab_size": 32000,
        },
    ),
    "falcon-180b": (
        179_522_565_120,
        {
            "model_type": "falcon",
            "alibi": False,
            "bias": False,
            "hidden_size": 14848,
            "multi_query": True,
            "new_decoder_architecture": True,
            "num_attention_heads": 232,
            "num_hidden_layers": 80,
            "num_kv_heads": 8,
            "parallel_attn": True,
            "vocab_size": 65024,
            "tie_word_embeddings": False,
        },
    ),
    "glm-4.5-air": (
        106_852_251_264,
        {
            "model_type": "glm4_moe",
            "attention_bias": True,
            "first_k_dense_replace": 1,
            "head_dim": 128,
            "hidden_size": 4096,
            "intermediate_size": 10944,
            "moe_intermediate_size": 1408,
            "n_group": 1,
            "n_routed_experts": 128,
            "n_shared_experts": 1,
            "num_attention_heads": 96,
            "num_experts_per_tok": 8,
            "num_hidden_layers": 46,
            "num_key_value_heads": 8,
            "num_nextn_predict_layers": 1,
            "partial_rotary_factor": 0.5,
            "tie_word_embeddings": False,
            "use_qk_norm": False,
            "vocab_size": 151552,
        },
    ),
    "gemma-2-9b": (
        9_241_705_984,
        {
            "model_type": "gemma2",
            "attention_bias": False,
            "attn_logit_softcapping": 50.0,
            "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "hidden_size": 3584,
            "intermediate_size": 14336,
            "num_attention_heads": 16,
            "num_hidden_layers": 42,
            "num_key_value_heads": 8,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "vocab_size": 256000,
        },
    ),
    "qwen1.5-moe-a2.7b": (
        14_315_784_192,
        {
            "model_type": "qwen2_moe",
            "decoder_sparse_step": 1,
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "max_window_layers": 21,
            "moe_intermediate_size": 1408,
            "num_attention_heads": 16,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "num_hidden_layers": 24,
            "num_key_value_heads": 16,
            "shared_expert_intermediate_size": 5632,
            "sliding_window": 32768,
            "tie_word_embeddings": False,
            "use_sliding_window": False,
            "vocab_size": 151936,
        },
    ),
    "pythia-6.9b": (
        6_857_302_016,
        {
            "model_type": "gpt_neox",
            "hidden_size": 4096,
            "intermediate_size": 16384,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "rotary_pct": 0.25,
            "use_parallel_residual": True,
            "vocab_size": 50432,
            "tie_word_embeddings": False,
        },
    ),
    "opt-6.7b": (
        6_658_473_984,
        {
            "model_type": "opt",
            "ffn_dim": 16384,
            "hidden_size": 4096,
            "max_position_embeddings": 2048,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "vocab_size": 50272,
            "word_embed_proj_dim": 4096,
        },
    ),
    "phi-3-mini": (
        3_821_079_552,
        {
            "model_type": "phi3",
            "attention_bias": False,
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_attention_heads": 32,
            "num_hidden_layers": 32,
            "num_key_value_heads": 32,
            "sliding_window": 2047,
            "tie_word_embeddings": False,
            "vocab_size": 32064,
        },
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_config_is_the_preset(name):
    read = read_hf_config(CONFIGS[name], name)
    preset = load_model(name)

    # A config of a MoE model names a dense width that no layer uses.
    unused = {} if any(not kind.is_moe for kind in preset.layer_kinds()) else {"ffn_size": 0}
    assert same_shape(read.model.model_copy(update=unused), preset)


@pytest.mark.parametrize("name", OTHERS)
def test_config_of_other_models_gives_the_released_count(name):
    count, config = OTHERS[name]

    assert num_params(model_from_hf_config(config)) == count


def test_every_family_is_tested():
    tested = {config["model_type"] for config in CONFIGS.values()}
    tested |= {config["model_type"] for _, config in OTHERS.values()}

    # Wrappers, and types that are read by the function of another one.
    elsewhere = {"gemma3", "kimi_k2", "llama4", "emu3_text_model", "mimo", "minimax_m1", "minimax_text_01"}
    elsewhere |= {"glm4v_moe_text", "glm4v_text", "qwen2_5_vl_text", "qwen2_vl_text"}
    elsewhere |= {"qwen3_vl_moe_text", "qwen3_vl_text", "qwen2_5_omni_text", "qwen3_omni_moe_text"}
    elsewhere |= {*CARDS, "yi"}
    assert set(supported_types()) - tested - set(TINY | PUBLISHED) == elsewhere


def test_resaved_keys_mean_the_same():
    old = {**CONFIGS["qwen3-30b-a3b"], "rope_theta": 1e6}
    new = {key: value for key, value in old.items() if key not in ("num_experts", "rope_theta")}
    new |= {"num_local_experts": 128, "rope_parameters": {"rope_theta": 1e6}, "dtype": "bfloat16"}

    assert model_from_hf_config(new, "x") == model_from_hf_config(old, "x")

    deepseek = CONFIGS["deepseek-v3-671b"]
    resaved = {**deepseek, "head_dim": 64, "num_key_value_heads": 1}
    assert model_from_hf_config(resaved, "x") == model_from_hf_config(deepseek, "x")


def test_prediction_layers_and_missing_query_rank():
    config = CONFIGS["deepseek-v3-671b"]

    assert model_from_hf_config(config).mtp_layers == 1
    assert model_from_hf_config({**config, "q_lora_rank": None}).q_lora_rank == 0
    without = {key: value for key, value in config.items() if key != "q_lora_rank"}
    with pytest.raises(ModelConfigError, match="missing 'q_lora_rank', which model_type 'deepseek_v3' needs"):
        model_from_hf_config(without)


def test_windows():
    mistral = OTHERS["mistral-7b-v0.1"][1]
    absent = {key: value for key, value in mistral.items() if key != "sliding_window"}
    assert model_from_hf_config(mistral).sliding_window == 4096
    assert model_from_hf_config(absent).sliding_window == 4096  # the class default
    assert model_from_hf_config({**mistral, "sliding_window": None}).sliding_window == 0

    gemma = model_from_hf_config(OTHERS["gemma-2-9b"][1])
    assert gemma.kind_of_layer[:4] == (0, 1, 0, 1)
    assert [kind.window for kind in gemma.layer_kinds()] == [4096, 0]

    windows = {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 0}
    qwen = {**CONFIGS["qwen3-32b"], **windows}
    assert model_from_hf_config(qwen).sliding_window == 4096
    assert model_from_hf_config({**qwen, "max_window_layers": 64}).sliding_window == 0
    late = model_from_hf_config({**qwen, "max_window_layers": 32})
    assert late.attention_pattern == "f" * 32 + "w" * 32


def test_multimodal_config_is_read_from_its_text_part():
    scout = {
        "model_type": "llama4",
        "tie_word_embeddings": False,
        "vision_config": {"hidden_size": 1408},
        "text_config": {
            "model_type": "llama4_text",
            "attention_bias": False,
            "attention_chunk_size": 8192,
            "head_dim": 128,
            "hidden_size": 5120,
            "interleave_moe_layer_step": 1,
            "intermediate_size": 8192,
            "intermediate_size_mlp": 16384,
            "no_rope_layers": [],
            "num_attention_heads": 40,
            "num_experts_per_tok": 1,
            "num_hidden_layers": 48,
            "num_key_value_heads": 8,
            "num_local_experts": 16,
            "use_qk_norm": True,
            "vocab_size": 202048,
            "for_llm_compressor": False,
        },
    }

    read = read_hf_config(scout, "scout")

    assert num_params(read.model) / 1e9 == pytest.approx(107.77, abs=0.005)  # 109B with the vision part
    assert read.model.kind_of_layer[:5] == (0, 0, 0, 1, 0)
    assert read.ignored == ()
    assert read.notes[0].startswith("vision_config: the vision model is left out")
    every_second = {**scout["text_config"], "interleave_moe_layer_step": 2}
    model = model_from_hf_config(every_second)
    first_kinds = [model.layer_kinds()[index].is_moe for index in model.kind_of_layer[:3]]
    assert first_kinds == [False, True, False]


def test_gemma3_windows_five_of_six_layers_and_is_tied():
    text = {
        "model_type": "gemma3_text",
        "head_dim": 256,
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "num_attention_heads": 4,
        "num_hidden_layers": 26,
        "num_key_value_heads": 1,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "vocab_size": 262144,
    }
    model = model_from_hf_config(text)

    assert num_params(model) == 999_885_952  # Hub google/gemma-3-1b-pt
    assert model.kind_of_layer[:7] == (0, 0, 0, 0, 0, 1, 0)
    types = (["sliding_attention"] * 5 + ["full_attention"]) * 4 + ["sliding_attention"] * 2
    assert model_from_hf_config({**text, "layer_types": types}, "x") == model_from_hf_config(text, "x")


def test_leading_dense_layers_of_qwen_moe():
    config = {**CONFIGS["qwen3-30b-a3b"], "mlp_only_layers": [0, 1]}

    assert model_from_hf_config(config).first_dense_layers == 2
    one = model_from_hf_config({**config, "mlp_only_layers": [5]})
    assert one.mlp_pattern == "e" * 5 + "d" + "e" * 42


def test_ignored_keys_are_reported_and_harmless_ones_are_not():
    read = read_hf_config({**CONFIGS["llama3-8b"], "residual_scale": 0.5, "use_something": False})

    assert read.ignored == ("residual_scale",)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (
            {"model_type": "lama"},
            "hidden size 4,096, vocabulary 128,256) is not supported; did you mean 'llama'",
        ),
        ({"model_type": "rwkv"}, "linear attention or state space"),
        ({"model_type": "deepseek_v4"}, "sparse attention"),
        ({"model_type": None, "architectures": None}, "missing 'model_type'"),
        ({"num_hidden_layers": None}, "missing 'num_hidden_layers' or 'n_layer' or 'n_layers', which"),
        ({"intermediate_size": None}, "missing 'intermediate_size'"),
        (
            {"num_attention_heads": "32"},
            "num_attention_heads: expected a whole number from 0 to 1,000,000,000, got '32'",
        ),
        ({"num_key_value_heads": 7}, "num_heads 32 does not divide by num_kv_heads 7"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(tmp_path, change, part):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**CONFIGS["llama3-8b"], **change}))

    with pytest.raises(ModelConfigError) as caught:
        load_model(str(file))

    assert part in str(caught.value)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


def test_files_and_folders(tmp_path):
    folder = tmp_path / "My-Model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGS["llama3-8b"]))

    assert load_model(str(folder)).name == "My-Model"
    assert load_model(str(folder / "config.json")) == load_model(str(folder))
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelConfigError, match="not JSON"):
        load_model(str(folder))
    (folder / "config.json").write_text("[]")
    with pytest.raises(ModelConfigError, match="expected a JSON object"):
        load_model(str(folder))
    with pytest.raises(ModelConfigError, match="cannot be read"):
        model_from_hf_config(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("deepseek_v3", {"moe_layer_freq": "abc"}),
        ("deepseek_v3", {"topk_group": "abc", "n_group": 8}),
        ("gemma4_unified_text", {"per_layer_config": "abc"}),
        ("glm_moe_dsa", {"indexer_types": "abc"}),
        ("lfm2", {"block_ffn_dim_multiplier": "abc"}),
    ],
)
def test_values_of_another_kind_are_one_line(kind, changes):
    _, config = TINY[kind]
    with pytest.raises(ModelConfigError):
        read_hf_config({**config, **changes, "model_type": kind}, "x")


def test_towers_are_left_out_at_every_depth():
    inner = {"model_type": "llama", "hidden_size": 64}
    speaks = {"model_type": "qwen2_5_omni_thinker", "audio_config": {"d_model": 4}, "text_config": inner}
    found = language_model(
        {"model_type": "llava", "vision_config": {"hidden_size": 8}, "text_config": speaks}, "x"
    )
    assert found.raw == inner
    assert [said.split(":")[0] for said in found.left_out] == ["vision_config", "audio_config"]
