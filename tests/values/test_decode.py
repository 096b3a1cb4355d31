"""Caches and FLOPs of decoding small models, by hand; norms around mixers."""

import pytest
from round_jobs import LATENT, QUIET, SMALL, each_us, price

from costmodel.describe.models.model import make_model
from costmodel.step.anatomy.kv_cache import attention_flops, kv_cache_bytes

pytestmark = pytest.mark.usefixtures("memory_alone_limits_norms")

MAMBA = {"kind": "mamba", "inner": 2048, "state": 16, "dt_rank": 64, "conv_kernel": 4}


def small(**more):
    return make_model({"name": "small", **SMALL, **more})


def test_a_cache_is_keys_and_values_of_every_layer():
    """4 layers of 4 heads with keys and values of 128: 4,096 elements a token."""
    assert kv_cache_bytes(small(), [1, 100]).tolist() == [8192, 819200]
    # A window keeps what it sees and no more; every second layer has none.
    assert float(kv_cache_bytes(small(sliding_window=64), 100)) == 8192 * 64
    assert float(kv_cache_bytes(small(sliding_window=64), 10)) == 8192 * 10
    half = small(sliding_window=64, full_attention_every=2)
    assert float(kv_cache_bytes(half, 100)) == 4096 * 64 + 4096 * 100
    # The latent of 128 and a rotary key of 32.
    assert float(kv_cache_bytes(make_model({"name": "small", **LATENT}), 100)) == 2 * 4 * 160 * 100


def test_an_indexer_looks_at_every_key():
    """4 heads of 64, two FLOPs each, a key of 64 beside the latent; attention meets the 16 keys that it chose."""
    indexed = {"kind": "indexed", "heads": 4, "head_dim": 64, "top_k": 16}
    model = make_model({"name": "small", **LATENT, "attention_pattern": "xxxx", "mixers": {"x": indexed}})
    assert float(kv_cache_bytes(model, 100)) == 2 * 4 * (160 + 64) * 100
    assert float(attention_flops(model, 100)) == 4 * (2 * 8 * (256 + 32) * 16 + 2 * 4 * 64 * 100)


def test_the_norm_before_a_mixer():
    """A LayerNorm is one kernel whatever is fused; an RMSNorm in pieces moves nine times the bytes in 7 kernels."""
    for norm, fused, bytes_ in [("rmsnorm", True, 4), ("layernorm", False, 4), ("rmsnorm", False, 36)]:
        model = {**SMALL, "norm": norm, "attention_pattern": "xxxx", "mixers": {"x": MAMBA}}
        est = price(model, switches={**QUIET, "fused_norm": fused, "compiled": False})
        kernels = 1 if bytes_ == 4 else 7
        found = each_us(est, "compute.mixer.norm.forward")
        assert found["compute.mixer.norm.forward"] == pytest.approx(
            kernels + bytes_ * 1024 * 1024 / 1e6, rel=1e-9
        )


def test_a_model_says_what_a_token_adds_to_its_cache() -> None:
    """80 layers of 8 heads of 128 keys and 128 values in 16 bits; MLA's 512 + 64 over 61 layers."""
    import costmodel as cm

    assert cm.model_facts("llama3-70b").kv_cache_bytes_per_token == 80 * 8 * (128 + 128) * 2
    assert cm.model_facts("deepseek-v3").to_dict()["kv_cache_bytes_per_token"] == 61 * (512 + 64) * 2
