"""Parameters and FLOPs of small models by hand, and parameters against operators for every shipped model."""

import pytest
from round_jobs import CLUSTER, LATENT, MOE, QUIET, SMALL, TABLE_PARAMS, memory, near, price

import costmodel as cm
from costmodel.step.anatomy.params import (
    layer_param_blocks,
)

HEAD = TABLE_PARAMS + 1024  # with the last norm
NORMS = 2 * 1024


def parameters(model, part="", **job):
    """Parameters that a GPU holds of a model: 2 bytes each."""
    held = memory(price(model, **job), f"state.{part}")
    return sum(size for name, size in held.items() if name.endswith("parameters")) / 2


# By layer: attention, MLP, and what is beside the matrices.
def test_parameters_of_a_layer():
    for model, layer in [
        (SMALL, 3 * 2**20 + 12 * 2**20 + NORMS),
        # Keys and values of different widths: 8 heads of 128, 4 of 128 and 4 of 64, and the output of 8 x 64.
        ({**SMALL, "v_head_dim": 64}, 1024 * (1024 + 512 + 256) + 512 * 1024 + 12 * 2**20 + NORMS),
        (
            {**SMALL, "gated_mlp": False, "linear_bias": True, "qkv_bias": True, "attention_out_bias": True},
            3 * 2**20 + 2048 + 1024 + 8 * 2**20 + 4096 + 1024 + NORMS,
        ),
        ({**SMALL, "qk_norm": True, "attention_sinks": True}, 15 * 2**20 + 2 * 128 + 8 + NORMS),
        ({**SMALL, "norm": "layernorm", "norms_per_layer": 4}, 15 * 2**20 + 4 * 2 * 1024),
        (
            LATENT,
            1024 * 256 + 256 * 8 * 96 + 1024 * 160 + 128 * 8 * 128 + 384 + 512 * 1024 + 12 * 2**20 + NORMS,
        ),
        (
            {**LATENT, "q_lora_rank": 0},
            1024 * 8 * 96 + 1024 * 160 + 128 * 8 * 128 + 128 + 512 * 1024 + 12 * 2**20 + NORMS,
        ),
        (MOE, 3 * 2**20 + 8 * 1024 + 8 * 1536 * 1024 + NORMS),
        (
            {**MOE, "shared_expert_ffn_size": 1024, "shared_expert_gate": True, "router_bias": True},
            3 * 2**20 + 8 * 1024 + 8 + 8 * 1536 * 1024 + 3 * 2**20 + 1024 + NORMS,
        ),
        (
            {**MOE, "linear_bias": True},
            3 * 2**20 + 8 * 1024 + 8 * (1536 * 1024 + 1024 + 1024) + NORMS,
        ),
    ]:
        last_norm = 2 * 1024 if model.get("norm") == "layernorm" else 1024
        assert parameters(model) == near(4 * layer + 2 * TABLE_PARAMS + last_norm)


def test_tables():
    assert parameters({**SMALL, "tied_embeddings": True}) == near(4 * (15 * 2**20 + NORMS) + HEAD)
    learned = {**SMALL, "position": "learned", "max_positions": 512, "embedding_norm": True}
    assert parameters(learned) == near(4 * (15 * 2**20 + NORMS) + HEAD + TABLE_PARAMS + 512 * 1024 + 1024)
    plain = parameters(SMALL)
    assert parameters({**SMALL, "head_bias": True}) == near(plain + 32000)
    assert parameters({**SMALL, "head_bias": True}, gpus=2, layout="tp2") == near(
        parameters(SMALL, gpus=2, layout="tp2") + 16000
    )


def test_what_tensor_ranks_hold_whole():
    """Norms, the router and the down-projections of latent attention; an expert's biases go with the expert."""
    job = {"gpus": 2, "layout": "tp2"}
    dense = 3 * 2**19 + 8 * 1024 + NORMS
    assert parameters(MOE, "dense", **job) == near(4 * dense + TABLE_PARAMS / 2 + TABLE_PARAMS / 2 + 1024)
    assert parameters(MOE, "expert", **job) == near(4 * 8 * 1536 * 1024)
    half = (256 * 8 * 96 + 128 * 8 * 128 + 512 * 1024 + 12 * 2**20) / 2
    latent = half + 1024 * 256 + 1024 * 160 + 384 + NORMS
    assert parameters(LATENT, "dense", **job) == near(4 * latent + TABLE_PARAMS + 1024)
    biased = {**SMALL, "gated_mlp": False, "linear_bias": True, "attention_out_bias": True}
    row = 11 * 2**19 + 4096 / 2 + 1024 + 1024 + NORMS
    assert parameters(biased, "dense", **job) == near(4 * row + TABLE_PARAMS + 1024)


def flops(model, **job):
    """Model FLOPs a token, and those of causal attention."""
    est = price(model, **job)
    tokens = 1024
    return float(est.model_flops()) / tokens, float(est.model_flops(causal=True)) / tokens


def test_flops_of_a_token():
    """Six a weight of a matrix; two products of 1,024 keys, 8 heads and 128 columns, three times."""
    weights, scores = 6 * (60 * 2**20 + TABLE_PARAMS), 4 * 3 * 2 * 1024 * 8 * 256
    assert flops(SMALL) == near((weights + scores, weights + scores / 2))
    # Of eight experts two; the router sees all.
    active = 4 * (3 * 2**20 + 8 * 1024 + 2 * 1536 * 1024) + TABLE_PARAMS
    assert flops(MOE) == near((6 * active + scores, 6 * active + scores / 2))
    # A window of 256 meets 256 keys, causal 224 on average; every other layer meets all.
    window = {**SMALL, "sliding_window": 256, "full_attention_every": 2}
    assert flops(window) == near(
        (weights + scores / 2 * (1 + 1 / 4), weights + scores / 2 * (1 / 2 + 224 / 1024))
    )


def test_flops_of_a_layer_that_predicts_one_token_more():
    """A layer, its projection and a pass through the output matrix."""
    plain, extra = flops(SMALL)[0], flops({**SMALL, "mtp_layers": 1})[0]
    weights, scores = 15 * 2**20 + 2 * 2**20 + TABLE_PARAMS, 3 * 2 * 1024 * 8 * 256
    assert extra - plain == near(6 * weights + scores)


@pytest.mark.parametrize("name", cm.list_models())
def test_products_have_the_parameters_of_the_model(name):
    """Two descriptions of a layer, what it stores and what it computes: n k groups of all its products, once."""
    model = cm.load_model(name)
    est = cm.estimate(
        model=model,
        cluster=str(CLUSTER),
        gpus=1,
        global_batch=1,
        seq_len=2048,
        switches=QUIET,
        recompute="none",
    )
    products = sum(
        float(one.count * one.terms["n"] * one.terms["k"] * one.terms["groups"])
        for one in est.bill.time_lines
        if one.phase == "forward"
        and "n" in one.terms
        and not one.name.endswith((".scores.forward", ".context.forward"))
    )
    kinds, pattern = model.layer_kinds(), model.kind_of_layer
    layers = [kinds[kind] for kind in pattern] + [kinds[pattern[-1]]] * model.mtp_layers
    matrices = sum(
        block.count for kind in layers for block in layer_param_blocks(model, kind) if block.is_matrix
    )
    head = float(model.vocab_size) * model.hidden_size * (1 + model.mtp_layers)
    joined = 2.0 * model.hidden_size**2 * model.mtp_layers
    assert products == near(matrices + joined + head)


def test_products_of_layers_that_no_shipped_model_has():
    est = price({**MOE, "shared_expert_ffn_size": 1024, "moe_layer_freq": 2, "ffn_size": 4096})
    products = sum(
        float(one.count * one.terms["n"] * one.terms["k"] * one.terms["groups"])
        for one in est.bill.time_lines
        if one.phase == "forward" and "n" in one.terms
    )
    dense, experts = 15 * 2**20, 3 * 2**20 + 8 * 1024 + 8 * 1536 * 1024 + 3 * 2**20
    assert products == near(2 * dense + 2 * experts + TABLE_PARAMS)
