"""Exchanges of experts against DeepEP's published tables."""

import numpy as np
import pytest

from costmodel.describe.hardware.hardware import load_link
from costmodel.physics.network.expert_dispatch import moe_exchange_time
from costmodel.physics.network.mesh import Group

# DeepEP README at 4,096 tokens of hidden 7168, top-8 in at most 4 nodes, fp8 out and bf16 back [GB/s], and its
# low-latency table at 128 tokens [us].
NORMAL = [(8, 153, 158), (16, 43, 43), (32, 58, 57), (64, 51, 50)]
LOW_LATENCY = [(8, 77, 114), (16, 118, 195), (32, 155, 273), (64, 173, 314), (128, 192, 369), (256, 194, 360)]


def exchange_s(tokens, token_bytes, ranks, **how):
    tiers = (load_link("nvlink4-h800", size=8), load_link("ib-ndr", size=4096))
    group = Group(np.asarray(float(ranks)), (np.asarray(8.0), np.asarray(float(ranks))))
    return float(moe_exchange_time(tokens, token_bytes, 8, group, tiers, **how).time_s)


def test_bandwidth_and_latency_within_fifteen_percent():
    for ranks, *rates in NORMAL:
        domains = 8 if ranks == 8 else min(ranks // 8, 4)
        counted = domains * (1 - (1 - 1 / domains) ** 8)  # its count includes the sender's own domain
        for element_bytes, gbps in zip((1, 2), rates, strict=True):
            took_s = exchange_s(4096, 7168 * element_bytes, ranks, node_limit=4)
            ours = 4096 * 7168 * element_bytes * counted / took_s / 1e9
            assert ours == pytest.approx(gbps, rel=0.15), ranks
    scales = 1 + 4 / 128  # an fp32 scale for 128 fp8 elements
    for ranks, *times in LOW_LATENCY:
        for element_bytes, published_us in zip((scales, 2), times, strict=True):
            took_s = exchange_s(128, 7168 * element_bytes, ranks, deduplicate=False)
            assert took_s * 1e6 == pytest.approx(published_us, rel=0.15), ranks
