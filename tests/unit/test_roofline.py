"""Kernel times: limits, monotone behaviour, and arrays that price as their elements do."""

import numpy as np
import pytest

import costmodel as cm
from costmodel.physics.kernels.roofline import (
    AttentionConstants,
    AttentionPassConstants,
    MatmulConstants,
    attention_time,
    matmul_time,
)

PEAK, BANDWIDTH = 1e15, 3e12
FULL = MatmulConstants(
    num_sms=132,
    fixed_s=2e-6,
    peak_fraction=0.8,
    memory_fraction=0.9,
    tile_m=128,
    tile_n=256,
    wave_fraction=0.3,
    split_k=3000,
    small_tile_fraction=0.7,
    epilogue_fraction=0.3,
    ramp_k=100,
    sustained_loss=0.15,
    sustained_flops=1e11,
    cast_bytes_per_element=5,
    cast_fixed_s=4e-6,
    fixed_per_group_s=1e-6,
)
ONE_PASS = AttentionPassConstants(
    num_sms=132,
    fixed_s=3e-6,
    memory_fraction=0.8,
    head_dims=(64.0, 128.0),
    peak_fractions=(0.5, 0.7),
    causal_fraction=0.9,
    ramp_seq=100.0,
    tile_rows=128.0,
    wave_fraction=0.5,
    side_bytes_per_element=8.0,
)
ATTENTION = AttentionConstants(ONE_PASS, ONE_PASS)
DEVICE = {"peak_flops_per_s": PEAK, "memory_bandwidth_bytes_per_s": BANDWIDTH}


def matmul(m, n, k, constants=FULL, **options):
    return matmul_time(m, n, k, constants=constants, **DEVICE, **options).value


def attention(batch=2, seq=2048, heads=16, *, causal=True, backward=False, constants=ATTENTION, **options):
    return attention_time(
        batch,
        seq,
        seq,
        heads,
        kv_heads=heads,
        qk_head_dim=128,
        v_head_dim=128,
        causal=causal,
        backward=backward,
        constants=constants,
        **DEVICE,
        **options,
    ).value


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_more_work_is_never_faster(axis):
    sizes = np.arange(64, 8192, 61.0)
    shape = [1024.0, 2048.0, 4096.0]
    for fixed in (shape, [128.0, 512.0, 512.0]):
        dims = [sizes if i == axis else np.asarray(fixed[i]) for i in range(3)]
        # Splitting the depth may fill the last wave, so the depth is checked without it.
        constants = FULL._replace(split_k=0.0) if axis == 2 else FULL
        assert (np.diff(matmul(*dims, constants)) >= -1e-15).all()


def test_a_benchmark_reaches_the_power_limit_only_with_large_kernels():
    ratio = matmul(16384, 16384, 16384, alone=True) / matmul(16384, 16384, 16384, sustained=False)
    assert ratio == pytest.approx(1 / (1 - 0.15), rel=0.02)
    small = matmul(512, 512, 512, alone=True) / matmul(512, 512, 512, sustained=False)
    assert small < 1.01


def test_attention_arrays_price_as_their_elements_do():
    seqs, heads = np.array([512.0, 4096, 32768])[:, None], np.array([2.0, 8, 64])
    grid = attention(seq=seqs, heads=heads, backward=True)
    alone = [[attention(seq=s, heads=h, backward=True) for h in heads] for s in seqs[:, 0]]
    np.testing.assert_allclose(grid, alone, rtol=1e-13)


def test_no_heads_cost_no_more_than_the_fixed_time():
    assert attention(heads=0.0) == pytest.approx(ONE_PASS.fixed_s)


def test_a_ring_over_the_network_hides_from_a_longer_context_than_inside_a_large_domain():
    """A step of the ring sends K and V of a chunk, S; attention of the chunk grows by S squared."""
    job = {"model": "llama3-70b", "gpus": 64, "tp": 8, "cp": 8, "seq_len": 32768, "global_batch": 8}
    over, inside = (
        cm.roofline(cm.estimate(**job, cluster=name, switches={"cp_method": "ring"}))
        for name in ("dgx-h100-ndr", "gb200-nvl72-ndr")
    )
    assert 32768 <= over.ring_hides_from <= 65536
    assert inside.ring_hides_from <= 8192
    # Four times the network, a shorter context.
    twice = cm.estimate(**job, cluster="dgx-h100-ndr", switches={"cp_method": "ring"}, hw={"nic": "400%"})
    assert cm.roofline(twice).ring_hides_from < over.ring_hides_from
    assert cm.roofline(cm.estimate(**{**job, "cp": 1}, cluster="dgx-h100-ndr")).ring_hides_from is None
