"""What a HuggingFace file means where it leaves a key out, and which layers a rule makes sparse."""

import pytest

from costmodel.describe.models.huggingface import model_from_hf_config

SMALL = {
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 512,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT = {
    **SMALL,
    "model_type": "deepseek_v3",
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
}
FALCON = {
    "model_type": "falcon",
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "vocab_size": 512,
}


def model(config, **more):
    return model_from_hf_config({**config, **more}, "small")


def sparse(found):
    """Return a letter a layer: experts or dense."""
    kinds = found.layer_kinds()
    return "".join("e" if kinds[index].is_moe else "d" for index in found.kind_of_layer)


@pytest.mark.parametrize(
    ("more", "layers"),
    [
        ({}, "eeeeee"),
        ({"decoder_sparse_step": 2}, "dedede"),
        ({"decoder_sparse_step": 3}, "ddedde"),
        ({"mlp_only_layers": [0, 5]}, "deeeed"),
    ],
)
def test_every_nth_layer_of_qwen_has_experts_the_last_of_each_n(more, layers):
    assert sparse(model({**SMALL, **EXPERTS, "model_type": "qwen3_moe"}, **more)) == layers


@pytest.mark.parametrize(
    ("more", "layers"),
    [
        ({}, "deeeee"),
        ({"first_k_dense_replace": 2, "moe_layer_freq": 2}, "ddeded"),
        ({"first_k_dense_replace": 1, "moe_layer_freq": 2}, "ddeded"),
        ({"first_k_dense_replace": 0, "moe_layer_freq": 2}, "ededed"),
        ({"moe_layer_freq": [0, 1, 0, 1, 1, 0]}, "dedeed"),
    ],
)
def test_layers_that_are_dense_at_first_and_by_frequency(more, layers):
    """From the first on, layers whose number the frequency divides, counted from nought."""
    assert sparse(model(LATENT, **more)) == layers


def test_groups_limit_routing_only_to_fewer_than_all():
    limited = model(LATENT, n_group=4, topk_group=2)
    assert (limited.expert_groups, limited.groups_per_token) == (4, 2)
    for more in ({"topk_group": 4}, {"topk_group": 2, "topk_method": "greedy"}, {}):
        free = model(LATENT, n_group=4, **more)
        assert (free.expert_groups, free.groups_per_token) == (0, 0), more


def test_trinity_begins_with_one_dense_layer():
    trinity = {
        **SMALL,
        **EXPERTS,
        "model_type": "afmoe",
        "num_shared_experts": 1,
        "layer_types": ["full_attention"] * 6,
    }
    assert sparse(model(trinity)) == "deeeee"
    assert sparse(model(trinity, num_dense_layers=3)) == "dddeee"


def test_norms_of_falcon():
    """One where both halves read the same input, two where they follow each other or each has its own."""
    assert model(FALCON).norms_per_layer == 1
    assert model(FALCON, parallel_attn=False).norms_per_layer == 2
    assert model(FALCON, new_decoder_architecture=True, num_kv_heads=2).norms_per_layer == 2
    one = model(FALCON, new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1)
    assert one.norms_per_layer == 1


def test_both_halves_of_neox_read_the_same_input_unless_it_says_otherwise():
    neox = {**SMALL, "model_type": "gpt_neox"}
    assert model(neox).parallel_block
    assert not model(neox, use_parallel_residual=False).parallel_block
    assert model(neox).norms_per_layer == 2
