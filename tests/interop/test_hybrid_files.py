"""Configurations of hybrids read: which layer is what, and the widths that files leave to a rule."""

import pytest

from costmodel.describe.models.huggingface import model_from_hf_config

SMALL = {
    "hidden_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "intermediate_size": 160,
    "vocab_size": 512,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
QWEN = {
    **SMALL,
    "model_type": "qwen3_next",
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
MAMBA = {
    "mamba_n_heads": 6,
    "mamba_d_head": 32,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
JAMBA = {
    **SMALL,
    "model_type": "jamba",
    "attn_layer_period": 4,
    "attn_layer_offset": 1,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "mamba_dt_rank": "auto",
    "mamba_expand": 2,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
}
GRANITE = {
    **SMALL,
    **MAMBA,
    "model_type": "granitemoehybrid",
    "shared_intermediate_size": 64,
    "layer_types": ["mamba"] * 7 + ["attention"],
}
LFM = {
    **SMALL,
    "model_type": "lfm2",
    "conv_L_cache": 3,
    "full_attn_idxs": [2, 5],
    "block_ff_dim": 300,
    "intermediate_size": 300,
    "block_multiple_of": 16,
    "block_ffn_dim_multiplier": 1.5,
}
NEMOTRON = {
    **SMALL,
    "model_type": "nemotron_h",
    "num_hidden_layers": 5,
    "hybrid_override_pattern": "ME*-M",
    "mamba_num_heads": 6,
    "mamba_head_dim": 32,
    "n_groups": 1,
    "ssm_state_size": 16,
    "conv_kernel": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "moe_shared_expert_intermediate_size": 80,
}
KIMI = {
    **SMALL,
    "model_type": "kimi_linear",
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "num_experts": 8,
    "num_experts_per_token": 2,
    "moe_intermediate_size": 48,
    "first_k_dense_replace": 1,
    "linear_attn_config": {
        "full_attn_layers": [4, 8],
        "kda_layers": [1, 2, 3, 5, 6, 7],
        "num_heads": 4,
        "head_dim": 24,
        "short_conv_kernel_size": 4,
    },
}


def model(config, **more):
    return model_from_hf_config({**config, **more}, "small")


def patterns(config, **more):
    """Return a letter a layer for what mixes, and one for the MLP: dense, experts or neither."""
    found = model(config, **more)
    kinds = found.layer_kinds()
    layers = [kinds[index] for index in found.kind_of_layer]
    mlps = ("e" if kind.is_moe else "d" if kind.has_mlp else "n" for kind in layers)
    return found.attention_pattern, "".join(mlps)


@pytest.mark.parametrize(
    ("config", "attention"),
    [
        # The last of every four, or of as many as the file says; counted from one in Kimi's files.
        (QWEN, "dddfdddf"),
        ({**QWEN, "full_attention_interval": 3}, "ddfddfdd"),
        ({**QWEN, "layer_types": ["full_attention"] + ["linear_attention"] * 7}, "fddddddd"),
        (KIMI, "kkkfkkkf"),
        # Those whose number, from nought, leaves the offset over.
        (JAMBA, "mfmmmfmm"),
        (GRANITE, "mmmmmmmf"),
        (LFM, "ccfccfcc"),
        (NEMOTRON, "mnfnm"),
    ],
    ids=["qwen", "qwen-3", "qwen-listed", "kimi", "jamba", "granite", "lfm", "nemotron"],
)
def test_which_layers_attend(config, attention):
    assert patterns(config)[0] == attention


def test_which_layers_have_experts():
    assert patterns(JAMBA)[1] == "dededede"
    assert patterns(JAMBA, expert_layer_offset=0)[1] == "edededed"
    assert patterns(NEMOTRON)[1] == "nendn"
    assert model(KIMI).first_dense_layers == 1


def test_a_rank_that_follows_from_the_width():
    """A sixteenth of the hidden size, rounded up: 96 / 16 = 6, 100 / 16 = 7."""
    assert model(JAMBA).mixers["m"].dt_rank == 6
    assert model(JAMBA, hidden_size=100, head_dim=25).mixers["m"].dt_rank == 7
    assert model(JAMBA, mamba_dt_rank=9).mixers["m"].dt_rank == 9


def test_an_mlp_that_follows_from_a_rule():
    """Two thirds of 300, half as much again, up to the next multiple of 16: 304; or as it is written."""
    assert model(LFM).ffn_size == 304
    assert model(LFM, block_auto_adjust_ff_dim=False).ffn_size == 300


def test_shared_experts_only_where_there_are_any():
    assert model(NEMOTRON).shared_expert_ffn_size == 0
    assert model(NEMOTRON, n_shared_experts=1).shared_expert_ffn_size == 80
    assert model(KIMI).shared_expert_ffn_size == 0
    assert model(KIMI, num_shared_experts=2).shared_expert_ffn_size == 96


def test_positions():
    """Granite 4 rotates nothing unless its file says so, Kimi where it does not say that it does not."""
    assert model(GRANITE).position == "none"
    assert model(GRANITE, position_embedding_type="rope").position == "rope"
    assert model(KIMI).position == "rope"
    assert model(KIMI, mla_use_nope=True).position == "none"
    assert model(JAMBA).position == "none"
    assert model(NEMOTRON).position == "none"


def test_widths_of_state_spaces():
    """Two times 96 over 6 heads; an own width where it is given."""
    mixer = model(GRANITE).mixers["m"]
    assert (mixer.heads, mixer.head_dim, mixer.groups, mixer.state, mixer.chunk) == (6, 32, 1, 16, 256)
    nemotron = model(NEMOTRON).mixers["m"]
    assert (nemotron.heads, nemotron.head_dim, nemotron.chunk, nemotron.conv_kernel) == (6, 32, 128, 4)
    assert model(JAMBA).mixers["m"].inner == 192
