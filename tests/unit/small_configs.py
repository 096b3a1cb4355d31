"""Small HuggingFace configs of every family, with the parameters that transformers counts in them.

The counts of `TINY` are the sums of ``named_parameters`` of transformers 5.23.0's ``AutoModelForCausalLM``
on the meta device for these very configs; `tests/oracles/count_with_transformers.py` takes them again. Types whose
code lives on the hub are in `PUBLISHED` in a published size, with the count of their repository.
"""

BASE = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 1000}
GROUPED = {**BASE, "intermediate_size": 96, "num_key_value_heads": 2}
WIDE = {**GROUPED, "head_dim": 24}
ROUTED = {"num_experts_per_tok": 2, "moe_intermediate_size": 40}
LATENT = {
    **BASE,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
}

LATENT_ROUTED = {
    **LATENT,
    **ROUTED,
    "intermediate_size": 96,
    "n_routed_experts": 6,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
}
INDEXER = {"index_head_dim": 16, "index_n_heads": 2, "index_topk": 4}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 20,
    "linear_conv_kernel_dim": 3,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
}
MAMBA1 = {
    "mamba_d_state": 6,
    "mamba_d_conv": 3,
    "mamba_dt_rank": 5,
    "mamba_expand": 2,
    "use_mamba_kernels": False,
}
MAMBA2 = {
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_n_groups": 2,
    "mamba_d_state": 6,
    "mamba_d_conv": 3,
    "mamba_expand": 2,
}
MIXED = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]

TINY: dict[str, tuple[int, dict[str, object]]] = {
    "afmoe": (388108, {**WIDE, **ROUTED, "num_experts": 6, "num_shared_experts": 2, "num_dense_layers": 2}),
    "apertus": (227016, {**GROUPED}),
    "arcee": (228288, {**GROUPED, "mlp_bias": True, "attention_bias": True}),
    "aria_text": (
        842816,
        {**GROUPED, "moe_num_experts": 6, "moe_topk": 2, "moe_num_shared_experts": 3, "head_dim": 16},
    ),
    "biogpt": (184832, {**BASE, "intermediate_size": 96, "max_position_embeddings": 50}),
    "bloom": (264192, {**BASE, "n_layer": 4, "n_head": 4}),
    "codegen": (327528, {"n_embd": 64, "n_layer": 4, "n_head": 4, "vocab_size": 1000, "rotary_dim": 8}),
    "cohere": (187584, {**GROUPED, "use_qk_norm": True}),
    "cohere2": (187200, {**GROUPED, "sliding_window": 16}),
    "cohere2_moe": (
        540096,
        {
            **WIDE,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "num_shared_experts": 1,
            "sliding_window": 16,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
            "prefix_dense_intermediate_size": 72,
        },
    ),
    "cwm": (276032, {**WIDE, "sliding_window": 16}),
    "deepseek_v3": (
        404728,
        {
            **LATENT,
            **ROUTED,
            "intermediate_size": 96,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
    ),
    "dots1": (
        381760,
        {**GROUPED, **ROUTED, "n_routed_experts": 6, "n_shared_experts": 2, "first_k_dense_replace": 1},
    ),
    "ernie4_5": (278080, {**WIDE, "use_bias": True, "tie_word_embeddings": False}),
    "ernie4_5_moe": (
        258892,
        {
            **GROUPED,
            "moe_intermediate_size": 40,
            "moe_k": 2,
            "moe_num_experts": 6,
            "moe_num_shared_experts": 1,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": 2,
            "tie_word_embeddings": True,
        },
    ),
    "exaone4": (251584, {**GROUPED, "sliding_window": 16, "sliding_window_pattern": 4}),
    "exaone_moe": (
        381760,
        {
            **GROUPED,
            **ROUTED,
            "num_experts": 6,
            "num_shared_experts": 2,
            "first_k_dense_replace": 1,
            "sliding_window": 16,
        },
    ),
    "falcon": (245376, {**BASE, "num_kv_heads": 2, "new_decoder_architecture": True}),
    "flex_olmo": (622016, {**GROUPED, "num_experts": 6, "num_experts_per_tok": 2}),
    "flint": (
        353808,
        {
            **WIDE,
            **ROUTED,
            "num_experts": 6,
            "shared_expert_intermediate_size": 56,
            "mlp_only_layers": [0, 3],
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
            "sliding_window": 16,
        },
    ),
    "gemma": (212032, {**WIDE}),
    "gemma2": (212544, {**WIDE, "sliding_window": 16}),
    "gemma3_text": (212736, {**WIDE, "sliding_window": 16}),
    "glm": (276800, {**WIDE}),
    "glm4": (276544, {**WIDE, "attention_bias": False}),
    "glm4_moe": (
        384146,
        {
            **WIDE,
            **ROUTED,
            "n_routed_experts": 6,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "use_qk_norm": True,
            "attention_bias": True,
        },
    ),
    "glm4_moe_lite": (
        358240,
        {
            **LATENT,
            **ROUTED,
            "intermediate_size": 96,
            "n_routed_experts": 6,
            "n_shared_experts": 1,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        },
    ),
    "gpt2": (267264, {"n_embd": 64, "n_layer": 4, "n_head": 4, "vocab_size": 1000, "n_positions": 50}),
    "gpt_bigcode": (
        159744,
        {"n_embd": 64, "n_layer": 4, "n_head": 4, "vocab_size": 1000, "n_positions": 50, "n_inner": 96},
    ),
    "gpt_neo": (
        266496,
        {
            "hidden_size": 64,
            "num_layers": 4,
            "num_heads": 4,
            "vocab_size": 1000,
            "max_position_embeddings": 50,
            "attention_types": [[["global", "local"], 2]],
            "window_size": 16,
        },
    ),
    "gpt_neox": (245504, {**BASE, "intermediate_size": 96}),
    "gpt_oss": (653416, {**WIDE, "num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 16}),
    "gptj": (327528, {"n_embd": 64, "n_layer": 4, "n_head": 4, "vocab_size": 1000, "rotary_dim": 8}),
    "granite": (252224, {**GROUPED, "attention_bias": True}),
    "granite_swa": (187472, {**GROUPED, "sliding_window": 16}),
    "granitemoe": (621632, {**GROUPED, "num_local_experts": 6, "num_experts_per_tok": 2}),
    "granitemoe_swa": (
        658512,
        {
            **GROUPED,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 48,
            "sliding_window": 16,
        },
    ),
    "granitemoeshared": (
        664640,
        {**GROUPED, "num_local_experts": 6, "num_experts_per_tok": 2, "shared_intermediate_size": 56},
    ),
    "helium": (251968, {**GROUPED, "head_dim": 16, "attention_bias": True}),
    "hunyuan_v1_dense": (276224, {**WIDE}),
    "hunyuan_v1_moe": (720128, {**WIDE, "num_experts": 6, "moe_topk": [2, 2, 2, 2]}),
    "hy_v3": (
        363008,
        {
            **WIDE,
            **ROUTED,
            "num_experts": 6,
            "num_shared_experts": 2,
            "mlp_layer_types": ["dense", "dense", "sparse", "sparse"],
        },
    ),
    "hyperclovax": (276544, {**WIDE, "use_post_norm": True}),
    "internlm3": (278080, {**WIDE, "attention_bias": True, "mlp_bias": True}),
    "iquestcoder": (276032, {**WIDE}),
    "jais2": (228864, {**GROUPED}),
    "kolibri1": (
        431872,
        {
            **BASE,
            **ROUTED,
            "num_key_value_heads": 2,
            "head_dim": 24,
            "num_local_experts": 6,
            "shared_expert_intermediate_size": 56,
            "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
            "sliding_window": 16,
        },
    ),
    "llama": (278080, {**WIDE, "attention_bias": True, "mlp_bias": True}),
    "llama4_text": (
        504128,
        {
            **WIDE,
            "intermediate_size_mlp": 112,
            "num_local_experts": 6,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 2,
        },
    ),
    "mellum": (
        332288,
        {
            **WIDE,
            **ROUTED,
            "num_local_experts": 6,
            "mlp_layer_types": ["dense", "sparse", "dense", "sparse"],
            "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
            "sliding_window": 16,
        },
    ),
    "minicpm3": (187104, {**LATENT, "intermediate_size": 96}),
    "minimax_m2": (646784, {**WIDE, "num_local_experts": 6, "num_experts_per_tok": 2}),
    "ministral": (276032, {**WIDE, "sliding_window": 16}),
    "ministral3": (276032, {**WIDE, "sliding_window": None}),
    "mistral": (276032, {**WIDE, "sliding_window": None}),
    "mixtral": (621632, {**GROUPED, "num_local_experts": 6, "num_experts_per_tok": 2}),
    "mpt": (261184, {"d_model": 64, "n_layers": 4, "n_heads": 4, "vocab_size": 1000}),
    "nemotron": (252032, {**WIDE}),
    "olmo": (250880, {**GROUPED}),
    "olmo2": (251840, {**GROUPED}),
    "olmo3": (251840, {**GROUPED, "sliding_window": 16}),
    "olmoe": (622016, {**GROUPED, "num_experts": 6, "num_experts_per_tok": 2}),
    "opt": (184832, {**BASE, "ffn_dim": 96, "max_position_embeddings": 50, "word_embed_proj_dim": 64}),
    "persimmon": (245760, {**BASE, "intermediate_size": 96}),
    "phi": (229352, {**GROUPED}),
    "phi3": (251456, {**GROUPED}),
    "phimoe": (
        623976,
        {
            **GROUPED,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "attention_bias": True,
            "lm_head_bias": True,
        },
    ),
    "qwen2": (251968, {**GROUPED}),
    "qwen2_moe": (
        326592,
        {
            **GROUPED,
            **ROUTED,
            "num_experts": 6,
            "shared_expert_intermediate_size": 48,
            "decoder_sparse_step": 2,
        },
    ),
    "qwen3": (276224, {**WIDE}),
    "qwen3_moe": (360320, {**WIDE, **ROUTED, "num_experts": 6, "mlp_only_layers": [0]}),
    "seed_oss": (277056, {**WIDE, "attention_out_bias": True}),
    "smollm3": (187456, {**GROUPED}),
    "solar_open": (
        418880,
        {
            **BASE,
            **ROUTED,
            "num_key_value_heads": 2,
            "head_dim": 24,
            "n_routed_experts": 6,
            "n_shared_experts": 1,
        },
    ),
    "stablelm": (252544, {**GROUPED, "use_qkv_bias": True}),
    "starcoder2": (164864, {**GROUPED}),
    "vaultgemma": (212032, {**WIDE}),
    "youtu": (251104, {**LATENT, "intermediate_size": 96, "tie_word_embeddings": False}),
    "bamba": (295940, {**GROUPED, **MAMBA2, "attn_layer_indices": [1]}),
    "deepseek_v2": (358240, {**LATENT_ROUTED}),
    "deepseek_v32": (366048, {**LATENT_ROUTED, **INDEXER}),
    "falcon_h1": (384496, {**WIDE, **MAMBA2, "mamba_d_ssm": 128, "mamba_rms_norm": True}),
    "gemma4_text": (
        458236,
        {
            **WIDE,
            "layer_types": MIXED,
            "global_head_dim": 40,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "hidden_size_per_layer_input": 12,
            "vocab_size_per_layer_input": 500,
            "enable_moe_block": True,
            "num_experts": 6,
            "top_k_experts": 2,
            "moe_intermediate_size": 40,
            "num_kv_shared_layers": 1,
            "use_double_wide_mlp": True,
        },
    ),
    "gemma4_unified_text": (964256, {**WIDE, "layer_types": MIXED, "sliding_window": 16}),
    "glm_moe_dsa": (
        362144,
        {
            **LATENT_ROUTED,
            **INDEXER,
            "indexer_types": ["full", "shared", "full", "shared"],
        },
    ),
    "granitemoehybrid": (
        709124,
        {
            **GROUPED,
            **MAMBA2,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "shared_intermediate_size": 56,
            "layer_types": ["mamba", "attention", "mamba", "mamba"],
        },
    ),
    "jamba": (
        377314,
        {
            **GROUPED,
            **MAMBA1,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 3,
            "expert_layer_offset": 1,
            "num_experts": 6,
            "num_experts_per_tok": 2,
        },
    ),
    "kimi_linear": (
        393504,
        {
            **{**LATENT_ROUTED, "q_lora_rank": None},
            "num_experts": 6,
            "num_experts_per_token": 2,
            "num_shared_experts": 2,
            "linear_num_heads": 4,
            "linear_head_dim": 12,
            "linear_conv_kernel_dim": 3,
            "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
        },
    ),
    "lfm2": (
        201312,
        {
            **GROUPED,
            "block_multiple_of": 16,
            "block_ffn_dim_multiplier": 1.3,
            "block_auto_adjust_ff_dim": True,
            "conv_L_cache": 3,
            "conv_bias": True,
            "layer_types": ["conv", "full_attention", "conv", "conv"],
        },
    ),
    "mimo_v2_flash": (
        358088,
        {
            **WIDE,
            **ROUTED,
            "v_head_dim": 16,
            "n_routed_experts": 6,
            "layer_types": MIXED,
            "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        },
    ),
    "minimax": (
        670976,
        {
            **WIDE,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "layer_types": ["linear_attention", "full_attention"] * 2,
        },
    ),
    "nemotron_h": (
        226392,
        {
            **{key: value for key, value in WIDE.items() if key != "num_hidden_layers"},
            "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe", "linear_attention"],
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "ssm_state_size": 6,
            "conv_kernel": 3,
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
            "moe_shared_expert_intermediate_size": 56,
            "n_shared_experts": 1,
        },
    ),
    "olmo_hybrid": (254768, {**WIDE, **DELTA, "linear_num_value_heads": 2}),
    "qwen3_5_moe_text": (
        440388,
        {**WIDE, **DELTA, **ROUTED, "num_experts": 6, "shared_expert_intermediate_size": 56},
    ),
    "qwen3_5_text": (220996, {**WIDE, **DELTA, "tie_word_embeddings": True}),
    "qwen3_next": (
        401540,
        {
            **WIDE,
            **DELTA,
            **ROUTED,
            "num_experts": 6,
            "shared_expert_intermediate_size": 56,
            "mlp_only_layers": [1],
        },
    ),
}

PUBLISHED: dict[str, tuple[int, dict[str, object]]] = {
    # LiquidAI/LFM2-8B-A1B
    "lfm2_moe": (
        8_339_929_856,
        {
            "conv_L_cache": 3,
            "full_attn_idxs": [2, 6, 10, 14, 18, 21],
            "hidden_size": 2048,
            "intermediate_size": 7168,
            "moe_intermediate_size": 1792,
            "num_attention_heads": 32,
            "num_dense_layers": 2,
            "num_experts": 32,
            "num_experts_per_tok": 4,
            "num_hidden_layers": 24,
            "num_key_value_heads": 8,
            "use_expert_bias": True,
            "vocab_size": 65536,
        },
    ),
    # THUDM/chatglm3-6b
    "chatglm": (
        6_243_584_000,
        {
            "add_bias_linear": False,
            "add_qkv_bias": True,
            "ffn_hidden_size": 13696,
            "hidden_size": 4096,
            "kv_channels": 128,
            "multi_query_attention": True,
            "multi_query_group_num": 2,
            "num_attention_heads": 32,
            "num_layers": 28,
            "padded_vocab_size": 65024,
            "rmsnorm": True,
        },
    ),
    # Qwen/Qwen-7B
    "qwen": (
        7_721_324_544,
        {**BASE, "hidden_size": 4096, "intermediate_size": 22016, "num_attention_heads": 32}
        | {"num_hidden_layers": 32, "vocab_size": 151936, "kv_channels": 128, "no_bias": True},
    ),
    # openbmb/MiniCPM-2B
    "minicpm": (
        2_724_880_896,
        {"hidden_size": 2304, "intermediate_size": 5760, "num_attention_heads": 36}
        | {"num_key_value_heads": 36, "num_hidden_layers": 40, "vocab_size": 122753, "scale_depth": 1.4},
    ),
    # baichuan-inc/Baichuan2-7B
    "baichuan": (
        7_505_973_248,
        {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32}
        | {"num_hidden_layers": 32, "vocab_size": 125696},
    ),
    # internlm/internlm2-7b
    "internlm2": (
        7_737_708_544,
        {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32}
        | {"num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 92544, "bias": False},
    ),
    # deepseek-ai/deepseek-moe-16b-base
    "deepseek": (
        16_375_728_128,
        {"hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408}
        | {"n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6}
        | {"first_k_dense_replace": 1, "moe_layer_freq": 1, "num_attention_heads": 16}
        | {"num_key_value_heads": 16, "num_hidden_layers": 28, "vocab_size": 102400},
    ),
    # databricks/dbrx-base
    "dbrx": (
        131_596_523_520,
        {"d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100352}
        | {"attn_config": {"kv_n_heads": 8, "clip_qkv": 8}}
        | {"ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}},
    ),
}

SEVEN = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_hidden_layers": 32}
LING = {
    "num_experts_per_tok": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "hidden_size": 2048,
}
# Remote code: the config's keys, and parameters in all and active, in billions, as the model's card rounds them.
CARDS = {
    "Yi": (
        {
            **SEVEN,
            "hidden_size": 7168,
            "intermediate_size": 20480,
            "num_attention_heads": 56,
            "num_key_value_heads": 8,
            "num_hidden_layers": 60,
            "vocab_size": 64000,
        },
        34.4,
        34.4,
    ),
    "aquila": ({**SEVEN, "vocab_size": 100008}, 7.3, 7.3),
    "bailing_moe": (
        {
            **LING,
            "intermediate_size": 5632,
            "moe_intermediate_size": 1408,
            "num_hidden_layers": 28,
            "num_experts": 64,
            "num_shared_experts": 2,
            "vocab_size": 126464,
            "first_k_dense_replace": 0,
        },
        16.8,
        2.75,
    ),
    "bailing_moe_v2": (
        {
            **LING,
            "num_experts_per_tok": 8,
            "intermediate_size": 5120,
            "moe_intermediate_size": 512,
            "num_hidden_layers": 20,
            "num_experts": 256,
            "num_shared_experts": 1,
            "vocab_size": 157184,
            "first_k_dense_replace": 1,
        },
        16.26,
        1.43,
    ),
    "code_llama": ({**SEVEN, "vocab_size": 32016}, 6.74, 6.74),
    "exaone": (
        {
            **SEVEN,
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "num_layers": 32,
            "vocab_size": 102400,
        },
        7.82,
        7.82,
    ),
    "internlm": ({**SEVEN, "vocab_size": 103168, "bias": True}, 7.32, 7.32),
    "orion": (
        {
            **SEVEN,
            "hidden_size": 5120,
            "intermediate_size": 15360,
            "num_attention_heads": 40,
            "num_hidden_layers": 40,
            "vocab_size": 84608,
        },
        14.5,
        14.5,
    ),
    "skywork": (
        {
            **SEVEN,
            "hidden_size": 4608,
            "intermediate_size": 12288,
            "num_attention_heads": 36,
            "num_hidden_layers": 52,
            "vocab_size": 65519,
        },
        13.85,
        13.85,
    ),
    "xverse": ({**SEVEN, "vocab_size": 100534}, 7.3, 7.3),
}
