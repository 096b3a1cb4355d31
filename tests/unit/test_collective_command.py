"""`costmodel collective`: every algorithm, sizes, groups that share ports, and crossovers."""

import json

import numpy as np
import pytest

from costmodel.base.errors import LayoutError
from costmodel.cli import main
from costmodel.describe.hardware.hardware import load_cluster
from costmodel.estimates.collective import SEARCHED_SIZES, _crossover, choices, place, price_collective
from costmodel.physics.network.collectives import two_level_time

CLUSTER = load_cluster("h100-ndr")


def run(capsys, *arguments):
    code = main(["collective", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_table_has_every_algorithm_and_one_is_taken(capsys):
    code, out, _ = run(capsys, "all-reduce", "--size", "1GB", "--ranks", "64", "--cluster", "h100-ndr")
    assert code == 0
    for name in (
        "nccl ring",
        "nccl tree",
        "nccl nvls-tree",
        "nccl ll",
        "textbook halving-doubling",
        "textbook double-tree",
        "textbook two-level",
    ):
        assert name in out
    assert out.count("   taken") == 1
    assert "8 in a nvlink of 8, 64 in a leaf of 256" in out
    assert "bandwidth (" in out


def test_rows_hold_together_and_the_choice_is_the_fastest_of_the_library():
    prices = price_collective("all_reduce", 2.0 ** np.arange(3, 35), place(CLUSTER, 64))
    library = [price for price in prices if price.family == "nccl"]
    assert np.all(sum(price.chosen.astype(int) for price in library) == 1)
    best = np.min([price.time_s for price in library], axis=0)
    taken = sum(np.where(price.chosen, price.time_s, 0.0) for price in library)
    np.testing.assert_allclose(taken, best, rtol=1e-12)
    for price in prices:
        np.testing.assert_allclose(price.algbw_bytes_per_s * price.time_s, price.size_bytes)
        np.testing.assert_allclose(price.busbw_bytes_per_s / price.algbw_bytes_per_s, 2 * 63 / 64)


def test_crossovers_are_where_both_parts_are_equal():
    placed = place(CLUSTER, 64)
    for price in price_collective("all_reduce", [1.0], placed):
        at = price_collective("all_reduce", [price.crossover_bytes], placed)
        (same,) = [one for one in at if (one.family, one.algorithm) == (price.family, price.algorithm)]
        assert float(same.latency_s[0]) == pytest.approx(float(same.transfer_s[0]), rel=0.02)


def test_choices_cover_all_sizes_in_turn():
    picks = choices("all-reduce", place(CLUSTER, 64))
    assert picks[0].from_bytes == 0.0
    assert picks[-1].to_bytes == np.inf
    assert [a.to_bytes for a in picks[:-1]] == [b.from_bytes for b in picks[1:]]
    assert picks[0].algorithm == "ll"
    assert picks[-1].algorithm == "ring"
    assert choices("all-reduce", place(CLUSTER, 2))
    assert not choices("all-reduce", place(CLUSTER, 1))


def busbw(capsys, *arguments):
    code, out, err = run(capsys, *arguments, "--format", "json")
    assert code == 0, err
    record = json.loads(out)
    (taken,) = [row for row in record["prices"] if row["chosen"]]
    return taken["busbw_bytes_per_s"]


def test_members_of_a_node_bring_their_ports_and_groups_share_them(capsys):
    base = ["all-gather", "--size", "16GiB", "--ranks", "64", "-c", "h100-ndr"]
    whole = busbw(capsys, *base)
    alone = busbw(capsys, *base, "--members-per-node", "1")
    shared = busbw(capsys, *base, "--members-per-node", "1", "--concurrent", "4")
    assert whole > 6 * alone
    assert alone == pytest.approx(50e9, rel=0.05)  # one 400 Gbit/s port
    assert shared == pytest.approx(alone / 4, rel=0.02)


def test_a_strided_group_reaches_outer_tiers_sooner():
    group = place(CLUSTER, 64, members_per_node=1).group
    assert [float(m) for m in group.members] == [1, 32, 64]  # a leaf of 256 GPUs holds 32 of stride 8


def test_token_exchanges_send_a_token_once_a_node(capsys):
    arguments = "moe-dispatch --size 28MiB --ranks 32 --top-k 8 -c h800-cx7 --format json"
    code, out, _ = run(capsys, *arguments.split())
    times = {row["algorithm"]: row["time_s"] for row in json.loads(out)["prices"]}
    assert code == 0
    assert times["once-per-node"] < 0.6 * times["once-per-expert"]


def test_a_rack_scale_domain_holds_what_divides():
    rack = load_cluster("gb200-nvl72-ndr")
    assert float(place(rack, 256).group.members[0]) == 64
    with pytest.raises(LayoutError, match="concurrent"):
        place(rack, 8, concurrent=0.5)


def test_crossovers_by_hand():
    """1 us against a byte a nanosecond is 1 kB; without a part in bytes or start-up there is none."""
    per_byte, one = SEARCHED_SIZES * 1e-9, np.ones_like(SEARCHED_SIZES)
    assert _crossover(one * 1e-6, per_byte) == pytest.approx(1000.0, rel=1e-9)
    assert np.isnan(_crossover(one, one * 0))
    assert np.isnan(_crossover(one * 0, per_byte))
    # Bytes lead from the first size on, though start-ups begin later.
    assert _crossover(np.where(SEARCHED_SIZES > 1e6, 1e-9, 0.0), per_byte) == SEARCHED_SIZES[0]


def test_two_levels_are_the_nodes_of_the_group_and_the_tier_that_it_crosses():
    """Eight groups of eight: NVLink inside, the leaf between, whose rate two groups at a time share."""
    placed = place(CLUSTER, 64, concurrent=2.0)
    inner, outer = placed.tiers[0], placed.tiers[1]
    (found,) = [one for one in price_collective("all_reduce", [1e9], placed) if one.algorithm == "two-level"]
    by_hand = two_level_time(
        "all_reduce",
        "two-level",
        1e9,
        8,
        8,
        intra_latency_s=inner.latency_s,
        intra_bandwidth_bytes_per_s=inner.achieved_bandwidth_bytes_per_s / 2,
        inter_latency_s=outer.latency_s,
        inter_bandwidth_bytes_per_s=outer.achieved_bandwidth_bytes_per_s / 2,
    )
    assert found.time_s == pytest.approx([float(by_hand.time_s)])
    assert found.latency_s == pytest.approx([float(by_hand.latency_s)])
