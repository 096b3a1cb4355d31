"""Examples of collectives from a widely read guide to distributed training.

Where it is wrong the printed value stands beside the right one, which follows the papers that
`costmodel.physics.network.collectives` cites.
"""

import numpy as np
import pytest

from costmodel.physics.network.collectives import (
    textbook_time,
    two_level_time,
)


@pytest.mark.parametrize("ranks", [2, 4, 8, 64, 1024])
def test_table_of_section_3_5(ranks):
    alpha, beta, n = 2e-6, 1 / 50e9, 1e8
    log = np.log2(ranks)
    table = {
        "naive": (2 * (ranks - 1) * alpha, 2 * (ranks - 1) * n * beta),
        "tree": (2 * log * alpha, 2 * log * n * beta),  # unpipelined, not (P-1) n beta
        "ring": (2 * (ranks - 1) * alpha, 2 * (ranks - 1) / ranks * n * beta),
        "halving-doubling": (2 * log * alpha, 2 * (ranks - 1) / ranks * n * beta),
    }
    for algorithm, (latency_s, transfer_s) in table.items():
        t = textbook_time("all_reduce", algorithm, n, ranks, latency_s=alpha, bandwidth_bytes_per_s=1 / beta)
        assert float(t.latency_s) == pytest.approx(latency_s, rel=1e-12)
        assert float(t.transfer_s) == pytest.approx(transfer_s, rel=1e-12)


def test_hierarchical_64_gpus_of_section_3_6():
    """8 nodes x 8 GPUs, NVLink 450 and InfiniBand 50 GB/s per GPU and direction, 1 GB."""
    fabric = {
        "intra_latency_s": 1e-6,
        "intra_bandwidth_bytes_per_s": 450e9,
        "inter_latency_s": 1.5e-6,
        "inter_bandwidth_bytes_per_s": 50e9,
    }
    real = two_level_time("all_reduce", "two-level", 1e9, 8, 8, **fabric)
    guide = two_level_time("all_reduce", "node-leaders", 1e9, 8, 8, **fabric)

    # The guide: 2n beta_NVLink + 2(N-1)/N n beta_IB + log2(g) n beta_NVLink by one NIC of the node.
    assert float(guide.transfer_s) == pytest.approx((1.75 + 3) / 450 + 1.75 / 50)
    # Real ones reduce-scatter in the node, then all eight NICs carry an eighth each.
    assert float(real.transfer_s) == pytest.approx(1.75 / 450 + 1.75 / 8 / 50)
    assert float(real.latency_s) == pytest.approx(14 * 1e-6 + 14 * 1.5e-6)
    flat = textbook_time("all_reduce", "ring", 1e9, 64, latency_s=1.5e-6, bandwidth_bytes_per_s=50e9)
    assert float(real.time_s) < float(guide.time_s) < float(flat.time_s) * 1.3


def test_ring_beats_tree_above_the_crossover_and_not_below():
    # 2 (64 - 1 - 6) start-ups against the bytes of 2 (6 - 63/64) vectors.
    link = {"latency_s": 5e-6, "bandwidth_bytes_per_s": 12.5e9}
    size = 57 * 5e-6 * 12.5e9 / (6 - 63 / 64)
    for factor, winner in ((0.99, "tree"), (1.01, "ring")):
        times = {
            name: float(textbook_time("all_reduce", name, size * factor, 64, **link).time_s)
            for name in ("tree", "ring")
        }
        assert min(times, key=times.__getitem__) == winner
