"""Examples of collectives from a widely read guide to distributed training.

Where it is wrong the printed value stands beside the right one, which follows the papers that
`costmodel.physics.network.collectives` cites.
"""

import numpy as np
import pytest

from costmodel.physics.network.collectives import (
    ALGORITHMS,
    crossover_size_bytes,
    textbook_time,
    two_level_time,
)

# (name, alpha us, GB/s, n* bytes by the code of the guide, n* that its figure claims)
INTERCONNECTS = [
    ("NVLink 4.0", 1.0, 450.0, 450e3, (2e3, 5e3)),
    ("InfiniBand HDR", 1.5, 200.0, 300e3, (200e3, 500e3)),
    ("100GbE RoCE", 5.0, 12.5, 62.5e3, (5e6, 10e6)),
    ("TCP/IP Ethernet", 50.0, 12.5, 625e3, None),
]


@pytest.mark.parametrize(("name", "alpha_us", "gbps", "printed", "figure"), INTERCONNECTS)
def test_crossover_is_what_the_code_prints_and_not_the_figure(name, alpha_us, gbps, printed, figure):
    size = float(crossover_size_bytes(alpha_us * 1e-6, gbps * 1e9))
    assert size == pytest.approx(printed, rel=1e-12)
    if figure and name != "InfiniBand HDR":
        assert not figure[0] <= size <= figure[1]  # the figure contradicts the code below it


def test_hdr_is_25_gbytes_per_s_per_port():
    # HDR is 200 Gbit/s, 25 GB/s a port; the guide's 200 GB/s is a node of eight.
    assert float(crossover_size_bytes(1.5e-6, 25e9)) == pytest.approx(37.5e3)


def test_point_to_point_of_section_5_1():
    t = textbook_time("send_recv", "direct", 1e9, 2, latency_s=1e-6, bandwidth_bytes_per_s=450e9)
    assert float(t.transfer_s) == pytest.approx(2.22e-3, rel=2e-3)
    assert float(t.latency_s) == 1e-6


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


def test_pipelined_trees_reach_two_n_beta():
    # pipelined trees reach 2 n beta: Sanders et al., Parallel Computing 35(12), 2009
    t = textbook_time("all_reduce", "double-tree", 16e9, 64, latency_s=2e-6, bandwidth_bytes_per_s=50e9)
    assert float(t.time_s) == pytest.approx(2 * 16e9 / 50e9, rel=0.02)


def test_all_gather_and_reduce_scatter_move_the_same_bytes_of_the_full_tensor():
    # n is the full tensor here, so both are (P-1)/P n beta (Thakur et al., 2005); per rank n' the guide's
    # all-gather (P-1) n' beta is the same number.
    link = {"latency_s": 1e-6, "bandwidth_bytes_per_s": 50e9}
    gather = textbook_time("all_gather", "ring", 8e6, 8, **link)
    scatter = textbook_time("reduce_scatter", "ring", 8e6, 8, **link)
    assert float(gather.transfer_s) == float(scatter.transfer_s) == pytest.approx(7 * 1e6 / 50e9)


def test_ring_has_p_minus_one_steps_and_recursive_doubling_log_p():
    # log2(P) steps are recursive doubling's; a ring has P-1: Thakur et al., 2005, section 4
    link = {"latency_s": 1e-6, "bandwidth_bytes_per_s": 50e9}
    assert float(textbook_time("all_gather", "ring", 1.0, 64, **link).latency_s) == pytest.approx(63e-6)
    doubling = textbook_time("all_gather", "recursive-doubling", 1.0, 64, **link)
    assert float(doubling.latency_s) == pytest.approx(6e-6)


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


def test_measuring_alpha_and_beta_gives_them_back():
    """Section 5.6: a straight line through all-reduce times gives the collective's two parts."""
    sizes = 1024 * 2.0 ** np.arange(20)
    t = ALGORITHMS["all_reduce"]["ring"].time(sizes, 8, latency_s=2e-6, bandwidth_bytes_per_s=450e9)
    slope, intercept = np.polyfit(sizes, t.time_s, 1)
    # what the guide calls beta and alpha are 2(P-1)/P beta and 2(P-1) alpha
    assert slope * 8 / 14 == pytest.approx(1 / 450e9, rel=1e-9)
    assert intercept / 14 == pytest.approx(2e-6, rel=1e-6)
