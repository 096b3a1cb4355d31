"""Attention that chooses its keys, by hand: hidden 1,024, one sequence of 1,024 tokens, round machine."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from round_jobs import (
    CLUSTER,
    LATENT,
    QUIET,
    SMALL,
    attention_us,
    each_us,
    memory,
    moved_us,
    near,
    product_us,
    sent_bytes,
    weight_us,
)

import costmodel as cm
from costmodel.base.errors import ModelConfigError
from costmodel.describe.models.model import make_model
from costmodel.step.anatomy.kv_cache import kv_cache_bytes
from costmodel.step.anatomy.params import layer_param_blocks, model_flops_per_token

T = 1024
INDEXED = {"kind": "indexed", "heads": 4, "head_dim": 64, "top_k": 256}
BLOCKS = {"kind": "block-sparse", "block": 64, "top_k": 4}
NATIVE = {
    "kind": "native-sparse",
    "compress_block": 32,
    "compress_stride": 16,
    "select_block": 64,
    "select_blocks": 4,
    "window": 128,
}
# Of 1,024 tokens, the mean that a query meets where at most 256, or 128, before it are left.
CHOSEN, NEAR = 256 * (1 - 128 / 1024), 128 * (1 - 64 / 1024)


def of(sizes, base=SMALL, pattern="xxxx", **more):
    """Return the small model with that attention in every layer."""
    return make_model({"name": "small", **base, "attention_pattern": pattern, "mixers": {"x": sizes}, **more})


def priced(sizes, base=SMALL, **job):
    """Price a step of it."""
    asked = {"cluster": str(CLUSTER), "gpus": 1, "global_batch": 1, "seq_len": T, "recipe": "megatron-core"}
    return cm.estimate(model=of(sizes, base), switches=QUIET, **{**asked, **job})


def scan_us(moved, flops, kernels, share, tflops=100.0):
    """Microseconds of kernels that move bytes and multiply at a share of the sheet's 2 TB/s and TFLOP/s."""
    return kernels + (moved / 2e6 + flops / (tflops * 1e6)) / share


def test_parameters_of_an_indexer():
    """Queries of 4 x 64 from the query's latent of 256, a key of 64 with a norm, 4 weights."""
    model = of(INDEXED, LATENT)
    blocks = layer_param_blocks(model, model.layer_kinds()[0])
    own = {b.name: b.count for b in blocks if b.name.startswith("mixer")}
    assert own == {
        "mixer.index_q": 256 * 256,
        "mixer.index_k": 1024 * 64,
        "mixer.index_weights": 1024 * 4,
        "mixer.index_norm": 128,
    }
    assert sum(b.count for b in blocks if b.name == "norm") == 2048
    # A layer that takes the choice of the one before has none.
    shared = of({**INDEXED, "shared": True}, LATENT)
    assert not [b for b in layer_param_blocks(shared, shared.layer_kinds()[0]) if b.name.startswith("mixer")]


def test_latent_attention_of_chosen_keys_stays_in_its_latents():
    """One key of 128 + 32 for all heads and a value of 128: 224 keys a query instead of 512."""
    each = each_us(priced(INDEXED, LATENT), "compute.attention.core")
    for name, products, passes in (("forward", 160 + 128, 1), ("backward", 3 * 160 + 2 * 128, 2)):
        math = 2.0 * 8 * T * CHOSEN * products / 50e6
        hbm = passes * 2.0 * (160 + 128) * (T * 8 + T) / 1e6
        assert each[f"compute.attention.core.{name}"] == near(4 + float(np.cbrt(math**3 + hbm**3)))


def test_attention_of_chosen_keys_without_latents():
    each = each_us(priced(INDEXED), "compute.attention.core")
    assert each == near(
        {
            "compute.attention.core.forward": attention_us(8, 4, T, T, CHOSEN, 128),
            "compute.attention.core.backward": attention_us(8, 4, T, T, CHOSEN, 128, backward=True),
        }
    )


def test_what_an_indexer_computes():
    """Scores of 512 keys on average in fp8, the best of them; what it learns from, once more over 224."""
    each = each_us(priced(INDEXED, LATENT), "compute.mixer")
    scores = T * (4 * 512 + 4 * 64) + 512 * 2 * 64
    target = T * (2 * 8 * 160 + 2 * CHOSEN * 160 + 4 * CHOSEN)
    assert each == near(
        {
            "compute.mixer.index_q.forward": product_us(T, 256, 256),
            "compute.mixer.index_q.backward_input": product_us(T, 256, 256),
            "compute.mixer.index_q.backward_weight": weight_us(T, 256, 256),
            "compute.mixer.index_k.forward": product_us(T, 64, 1024),
            "compute.mixer.index_k.backward_input": product_us(T, 1024, 64),
            "compute.mixer.index_k.backward_weight": weight_us(T, 64, 1024),
            "compute.mixer.index_weights.forward": product_us(T, 4, 1024),
            "compute.mixer.index_weights.backward_input": product_us(T, 1024, 4),
            "compute.mixer.index_weights.backward_weight": weight_us(T, 4, 1024),
            "compute.mixer.index_rotate.forward": moved_us(11 * T * 5 * 64, 4),
            "compute.mixer.index_rotate.backward": moved_us(12 * T * 5 * 64, 4),
            "compute.mixer.index_scores.forward": scan_us(scores, 2 * T * 512 * 256, 1, 0.7, 200.0),
            "compute.mixer.index_scores.backward": scan_us(
                T * CHOSEN * (4 + 128), 4 * T * CHOSEN * 256, 2, 0.36, 200.0
            ),
            "compute.mixer.index_choice.forward": moved_us(8 * T * 512),
            "compute.mixer.index_target.forward": scan_us(target, 2 * T * CHOSEN * 8 * 160, 2, 0.7),
            "compute.mixer.index_target.backward": scan_us(T * 8 * CHOSEN, 0, 1, 0.36),
        }
    )


def test_what_context_parallelism_gathers():
    """Latents of both ranks once, gradients scattered; keys of the indexer in fp8."""
    sent = sent_bytes(priced(INDEXED, LATENT, gpus=2, layout="cp2"), "cp.")
    assert sent == near(
        {
            **{f"cp.mixer.index_scores.keys.{way}": 512 * 64 for way in ("forward", "backward")},
            "cp.attention.all_gather.forward": 2 * 512 * 160,
            "cp.attention.all_gather.backward": 2 * 512 * 160,
            "cp.attention.reduce_scatter.backward": 2 * 512 * 160,
        }
    )


def test_tensor_ranks_add_up_what_an_indexer_learns_from():
    sent = sent_bytes(priced(INDEXED, LATENT, gpus=2, layout="tp2"), "tp.mixer")
    assert sent == near(
        {f"tp.mixer.index_target.all_reduce.{way}": 4 * T * CHOSEN for way in ("forward", "backward")}
    )


def test_blocks_are_chosen_by_their_mean_keys():
    """16 blocks of 64, 8 before a query on average; attention over four of them."""
    est = priced(BLOCKS)
    assert each_us(est, "compute.mixer") == near(
        {
            "compute.mixer.block_means.forward": moved_us(2 * T * 4 * 128),
            "compute.mixer.block_scores.forward": scan_us(
                T * (2 * 8 * 128 + 8 * 8 * 8), 2 * T * 8 * 128 * 8, 4, 0.7
            ),
        }
    )
    core = each_us(est, "compute.attention.core.forward")["compute.attention.core.forward"]
    assert core == near(attention_us(8, 4, T, T, CHOSEN, 128))
    # Four layers keep the places of four blocks for each of eight heads, in four bytes.
    assert memory(est, "activation.mixer") == {"activation.mixer": 4 * 4 * T * 8 * 4}


def test_three_branches():
    """Compressed keys, a stride of 16 apart, selected ones, and the last 128, each with projections of its own."""
    est = priced(NATIVE)
    each = each_us(est, "compute.")
    assert each["compute.attention.core.forward"] == near(attention_us(8, 4, T, T, CHOSEN, 128))
    assert each["compute.mixer.compressed.forward"] == near(attention_us(8, 4, T, 64, 32, 128))
    assert each["compute.mixer.sliding.forward"] == near(attention_us(8, 4, T, T, NEAR, 128))
    assert each["compute.mixer.branches.forward"] == near(product_us(T, 2 * 4 * 256, 1024))
    # 64 blocks of 32 tokens for each of four heads become a key each.
    assert each["compute.mixer.compress_k.forward"] == near(product_us(64 * 4, 128, 32 * 128))
    model = of(NATIVE)
    own = sum(
        b.count for b in layer_param_blocks(model, model.layer_kinds()[0]) if b.name.startswith("mixer")
    )
    assert own == 1024 * 2048 + 2 * 32 * 128 * 128 + 32 * 256 + 3 * 8 * 1024


def test_model_flops_and_cache():
    """Two products with 256 keys instead of 1,024, and scores of all keys for 4 heads of 64."""
    sparse, plain = (
        float(model_flops_per_token(model, T))
        for model in (of(INDEXED, LATENT), make_model({"name": "s", **LATENT}))
    )
    own = 256 * 256 + 1024 * 64 + 1024 * 4
    scores = 2 * 8 * (96 + 64) * (T - 256)
    assert plain - sparse == near(4 * 3 * (scores - 2 * own - 2 * 4 * 64 * T))
    # Keys of the indexer beside the latents.
    assert float(kv_cache_bytes(of(INDEXED, LATENT), 100)) == near(4 * 2 * 100 * (128 + 32 + 64))


@settings(max_examples=25, deadline=None)
@given(seq=st.sampled_from([512, 1024, 4096, 16384, 65536]), top_k=st.sampled_from([64, 256, 2048]))
def test_chosen_attention_is_bounded_by_what_is_chosen(seq, top_k):
    """However long the sequence, a token's core costs no more than that of its top-k keys."""
    est = priced({**INDEXED, "top_k": top_k}, LATENT, seq_len=seq)
    core = est.priced.step.blocks[0].by_operator["attention.core"]
    bound = 2.0 * 8 * seq * min(seq, top_k) * (160 + 128) / 50e12
    hbm = 2.0 * (160 + 128) * seq * 9 / 1e12
    assert float(core.forward_s) <= 4e-6 + float(np.cbrt(bound**3 + hbm**3)) * (1 + 1e-12)
    full = cm.estimate(
        model=make_model({"name": "s", **LATENT}),
        cluster=str(CLUSTER),
        gpus=1,
        global_batch=1,
        seq_len=seq,
        recipe="megatron-core",
        switches=QUIET,
    )
    if seq >= 8 * top_k:
        assert float(core.forward_s) < float(
            full.priced.step.blocks[0].by_operator["attention.core"].forward_s
        )


def test_what_chooses_stands_beside_attention():
    with pytest.raises(ModelConfigError, match="beside_attention"):
        of({**INDEXED, "beside_attention": False})
    assert memory(priced(INDEXED, LATENT), "activation.mixer")["activation.mixer"] > 0


def test_tokens_that_are_chosen():
    """So many keys a query: the indexer's choice, or blocks of 64, four of them."""
    for sizes, base, chosen in [(INDEXED, LATENT, 256), (BLOCKS, SMALL, 4 * 64), (NATIVE, SMALL, 4 * 64)]:
        kind = of(sizes, base).layer_kinds()[0]
        assert (kind.selects, kind.reach) == (chosen, chosen)
