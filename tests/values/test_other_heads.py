"""Layers with heads of their own, embeddings of each layer, short convolutions: by hand, on the round machine."""

import pytest
from round_jobs import CLUSTER, MIB, QUIET, SMALL, each_us, memory, near, price, product_us, sent_bytes

import costmodel as cm
from costmodel.base.errors import CostModelError, LayoutError, ModelConfigError
from costmodel.describe.models.model import make_model
from costmodel.step.anatomy.kv_cache import kv_cache_bytes
from costmodel.step.anatomy.params import layer_param_blocks, model_flops_per_token, num_params

T = 1024
# Four query heads of 256 and two of keys, where the model has eight of 128 and four.
WIDE = {"kind": "other-heads", "num_heads": 4, "num_kv_heads": 2, "head_dim": 256, "v_head_dim": 256}
NARROW = {**WIDE, "head_dim": 64, "v_head_dim": 32}


def of(sizes=WIDE, pattern="xffx", **more):
    """Return the small model with such layers where a pattern says."""
    return make_model(
        {"name": "small", **SMALL, "attention_pattern": pattern, "mixers": {"x": sizes}, **more}
    )


def priced(model, **job):
    """Price a step of it."""
    asked = {"cluster": str(CLUSTER), "gpus": 1, "global_batch": 1, "seq_len": T, "switches": QUIET}
    return cm.estimate(model=model, **{**asked, "recipe": "megatron-core", **job})


def attention_params(model, kind):
    """Return the parameters of attention by block."""
    blocks = layer_param_blocks(model, model.layer_kinds()[kind])
    return {one.name: one.count for one in blocks if one.name.startswith("attention")}


def test_parameters_of_each_kind():
    model = of(NARROW)
    # 4 x 64 for queries, 2 x (64 + 32) for keys and values, 4 x 32 out.
    assert attention_params(model, 0) == {"attention.qkv": 1024 * (256 + 192), "attention.out": 128 * 1024}
    assert attention_params(model, 1) == {"attention.qkv": 1024 * 2048, "attention.out": 1024 * 1024}


def test_keys_and_values_of_one_projection_or_of_none():
    for projections, columns, norms in [(2, 1024 + 1024, 512), (1, 1024 + 512, 512), (0, 1024, 256)]:
        model = of({**WIDE, "kv_projections": projections}, qk_norm=True)
        found = attention_params(model, 0)
        assert found == {
            "attention.qkv": 1024 * columns,
            "attention.qk_norm": norms,
            "attention.out": 1024 * 1024,
        }
        each = each_us(priced(model), "compute.dense-other-heads.attention.qkv")
        assert each["compute.dense-other-heads.attention.qkv.forward"] == near(product_us(T, columns, 1024))


def test_each_kind_has_its_own_core_and_products():
    each = each_us(priced(of(NARROW)), "compute.")
    plain = each_us(price(), "compute.")
    assert each["compute.dense-other-heads.attention.qkv.forward"] == near(product_us(T, 448, 1024))
    assert each["compute.dense-other-heads.attention.out.forward"] == near(product_us(T, 1024, 128))
    for name in ("core", "qkv", "out"):
        now = each[f"compute.dense.attention.{name}.forward"]
        assert now == near(plain[f"compute.attention.{name}.forward"])


def test_model_flops_sum_each_kinds_scores():
    """Two layers of 4 heads of 64 + 32, two of 8 heads of 128 + 128; 1,024 keys, all of them."""
    model = of(NARROW)
    weights = 2 * (1024 * 448 + 128 * 1024) + 2 * 3 * MIB + 4 * 12 * MIB + 32000 * 1024
    scores = 2 * T * (2 * 4 * 96 + 2 * 8 * 256)
    assert float(model_flops_per_token(model, T)) == near(3 * (2 * weights + scores))


def test_a_window_of_its_own():
    model = of({**WIDE, "window": 128})
    assert [kind.name for kind in model.layer_kinds()] == ["dense-other-heads-window", "dense"]
    # A cache of 128 tokens in two layers, of all in the others: 2 heads x 512, 4 heads x 256, bf16.
    assert float(kv_cache_bytes(model, T)) == near(2 * (2 * 128 * 1024 + 2 * T * 1024))


def test_layers_that_reuse_keys_cache_none():
    assert float(kv_cache_bytes(of({**WIDE, "kv_projections": 0}), T)) == near(2 * 2 * T * 1024)


def test_an_mlp_of_its_own():
    model = of({**WIDE, "ffn_size": 8192})
    assert num_params(model) - num_params(of()) == 2 * 3 * 4096 * 1024
    each = each_us(priced(model), "compute.")
    assert each["compute.dense-other-heads.mlp.fc2.forward"] == near(product_us(T, 1024, 8192))
    assert each["compute.dense.mlp.fc2.forward"] == near(product_us(T, 1024, 4096))


def test_context_ranks_pass_each_kinds_keys():
    """512 tokens in bf16: 2 heads of 64 + 32, and 4 heads of 128 + 128; what is held is the larger."""
    few_logits = of(NARROW, vocab_size=2)  # many would take the keys' place at the peak
    est = priced(few_logits, gpus=2, layout="cp2")
    sent = sent_bytes(est, "cp.")
    assert sent["cp.dense-other-heads.attention.ring.forward"] == 2 * 512 * 2 * 96
    assert sent["cp.dense.attention.ring.forward"] == 2 * 512 * 4 * 256
    assert memory(est, "buffer.cp.keys_values") == {"buffer.cp.keys_values": 2 * 512 * 4 * 256}


def test_adapters_beside_the_projections_that_there_are():
    """Rank 16 beside queries, and beside keys and values only where they are projected."""
    tuned = {"lora_rank": 16, "lora_targets": "attention"}
    held = {
        projections: memory(
            priced(of({**WIDE, "kv_projections": projections}), **tuned), "state.dense.optimizer"
        )
        for projections in (2, 1)
    }
    two, one = (sum(found.values()) for found in (held[2], held[1]))
    # Two layers, one projection of 512 columns: 16 x (1,024 + 512) parameters with twelve bytes each.
    assert two - one == near(12 * 2 * 16 * 1536)


def test_what_tensor_ranks_must_divide():
    for layout, said in [("tp8", "tp = 8 does not divide the model's 4 attention heads of other layers")]:
        with pytest.raises(LayoutError, match=said):
            priced(of(), gpus=8, layout=layout)


def test_swapping_heads_divides_those_of_all_layers():
    with pytest.raises(CostModelError, match="does not divide the model's 4 heads"):
        priced(of(), gpus=8, layout="cp8", recipe="deepspeed")


def test_wrong_sizes_are_refused():
    for changes, said in [
        ({"mixers": {"x": {**WIDE, "num_kv_heads": 3}}}, "num_heads 4 does not divide by num_kv_heads 3"),
        ({"layer_embedding_size": 8}, "layer_embedding_size and layer_embedding_rows need each other"),
        ({"mixers": {"x": {**WIDE, "kv_projections": 3}}}, "kv_projections"),
    ]:
        with pytest.raises(ModelConfigError, match=said):
            of(**changes)


def test_embeddings_of_each_layer():
    """Four layers of 64: a table of 1,000 rows of 256, a projection 1,024 x 256, a norm; a layer's gate, way back, norm."""
    more = {"layer_embedding_size": 64, "layer_embedding_rows": 1000}
    model, plain = make_model({"name": "s", **SMALL, **more}), make_model({"name": "s", **SMALL})
    assert num_params(model) - num_params(plain) == 256_000 + 1024 * 256 + 64 + 4 * (2 * 64 * 1024 + 1024)
    each = each_us(priced(model), "compute.")
    assert each["compute.embedding.of_layers_projection.forward"] == near(product_us(T, 256, 1024))
    assert each["compute.mlp.layer_gate.forward"] == near(product_us(T, 64, 1024))
    assert each["compute.mlp.layer_projection.forward"] == near(product_us(T, 1024, 64))
    added = 6 * (1024 * 256 + 4 * 2 * 64 * 1024)
    assert float(model_flops_per_token(model, T) - model_flops_per_token(plain, T)) == near(added)
    with pytest.raises(LayoutError, match="needs tp = 1 and pp = 1, got 1 and 2"):
        priced(model, gpus=2, layout="pp2")
