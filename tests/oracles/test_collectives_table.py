"""The textbook's algorithms message by message, for 8 ranks and 5: messages one after the other, shards sent, shards added.

A shard is an n-th of the tensor. Eight ranks have three rounds of doubling; of five, one folds its vector into a partner
first where an algorithm wants a power of two, and trees have a third round for the last.
"""

import pytest

from costmodel.physics.network.collectives import ALGORITHMS

MESSAGES = {
    ("send_recv", "direct"): ((1, 8, 0), (1, 5, 0)),
    ("broadcast", "linear"): ((7, 7 * 8, 0), (4, 4 * 5, 0)),
    ("broadcast", "binomial"): ((3, 3 * 8, 0), (3, 3 * 5, 0)),
    # Scatter by halves, then a ring.
    ("broadcast", "scatter-all-gather"): ((3 + 7, 7 + 7, 0), (3 + 4, 4 + 4, 0)),
    # Chunks as small as wanted: hops of latency, and the tensor once.
    ("broadcast", "chain"): ((7, 8, 0), (4, 5, 0)),
    ("broadcast", "two-tree"): ((2 * 3 + 1, 8, 0), (2 * 3 + 1, 5, 0)),
    ("reduce", "linear"): ((7, 7 * 8, 7 * 8), (4, 4 * 5, 4 * 5)),
    ("reduce", "binomial"): ((3, 3 * 8, 3 * 8), (3, 3 * 5, 3 * 5)),
    ("reduce", "reduce-scatter-gather"): ((3 + 3, 7 + 7, 7), None),
    ("scatter", "linear"): ((7, 7, 0), (4, 4, 0)),
    ("scatter", "binomial"): ((3, 4 + 2 + 1, 0), (3, 1 + 2 + 1, 0)),
    ("gather", "linear"): ((7, 7, 0), (4, 4, 0)),
    ("gather", "binomial"): ((3, 1 + 2 + 4, 0), (3, 1 + 2 + 1, 0)),
    ("all_reduce", "naive"): ((7 + 7, 14 * 8, 7 * 8), (4 + 4, 8 * 5, 4 * 5)),
    ("all_reduce", "tree"): ((3 + 3, 6 * 8, 3 * 8), (3 + 3, 6 * 5, 3 * 5)),
    ("all_reduce", "ring"): ((7 + 7, 7 + 7, 7), (4 + 4, 4 + 4, 4)),
    # Of five: fold, two rounds among four, unfold.
    ("all_reduce", "recursive-doubling"): ((3, 3 * 8, 3 * 8), (1 + 2 + 1, 4 * 5, 3 * 5)),
    ("all_reduce", "halving-doubling"): ((3 + 3, 7 + 7, 7), (1 + 2 + 2 + 1, 5 + 2 * 3.75 + 5, 5 + 3.75)),
    ("all_reduce", "double-tree"): ((2 * 3 + 1, 2 * 8, 8), (2 * 3 + 1, 2 * 5, 5)),
    ("all_reduce", "one-shot"): ((1, 7 * 8, 7 * 8), (1, 4 * 5, 4 * 5)),
    ("all_reduce", "two-shot"): ((1 + 1, 7 + 7, 7), (1 + 1, 4 + 4, 4)),
    # Each shard once up to the switch and once down, one of them again.
    ("all_reduce", "in-network"): ((2, 9, 0), (2, 6, 0)),
    ("all_gather", "ring"): ((7, 7, 0), (4, 4, 0)),
    ("all_gather", "recursive-doubling"): ((3, 1 + 2 + 4, 0), None),
    ("all_gather", "bruck"): ((3, 1 + 2 + 4, 0), (3, 1 + 2 + 1, 0)),
    ("all_gather", "direct"): ((1, 7, 0), (1, 4, 0)),
    ("reduce_scatter", "ring"): ((7, 7, 7), (4, 4, 4)),
    ("reduce_scatter", "pairwise"): ((7, 7, 7), (4, 4, 4)),
    ("reduce_scatter", "recursive-halving"): ((3, 4 + 2 + 1, 4 + 2 + 1), None),
    ("reduce_scatter", "direct"): ((1, 7, 7), (1, 4, 4)),
    ("all_to_all", "pairwise"): ((7, 7, 0), (4, 4, 0)),
    # Every round half of the blocks; of five 1 and 3, 2 and 3, then 4.
    ("all_to_all", "bruck"): ((3, 3 * 4, 0), (3, 2 + 2 + 1, 0)),
    ("all_to_all", "direct"): ((1, 7, 0), (1, 4, 0)),
}


def parts(row, ranks, start_s, gamma):
    """Latency and transfer where a shard is one byte and a second."""
    link = {"latency_s": start_s, "bandwidth_bytes_per_s": 1.0, "gamma_s_per_byte": gamma}
    found = row.time(float(ranks), ranks, **link)
    return float(found.latency_s), float(found.transfer_s)


def test_messages_of_every_algorithm():
    assert MESSAGES.keys() == {(primitive, name) for primitive, rows in ALGORITHMS.items() for name in rows}
    for (primitive, name), by_ranks in MESSAGES.items():
        row = ALGORITHMS[primitive][name]
        for ranks, expected in zip((8, 5), by_ranks, strict=True):
            assert row.applies(ranks) == (expected is not None), (primitive, name, ranks)
            if expected is not None:
                messages, sent, added = expected
                # So long a start that nothing is cut into chunks, then so short a one that a cut costs nothing.
                bare, summed = (parts(row, ranks, 1e-12, gamma)[1] for gamma in (0.0, 1.0))
                assert (bare, summed - bare) == pytest.approx((sent, added), abs=1e-4), (primitive, name)
                assert parts(row, ranks, 1e9, 0.0)[0] == pytest.approx(messages * 1e9), (primitive, name)


def test_a_chain_takes_as_long_as_its_best_number_of_chunks():
    """(p - 2 + k) hops of a start and a k-th of the tensor: whole chunks here, any number in the closed form."""
    for ranks in (3, 5, 8, 17, 64):
        times = [(ranks - 2 + k) * (3.0 + ranks * 0.5 / k) for k in range(1, 65)]
        link = {"latency_s": 3.0, "bandwidth_bytes_per_s": 2.0}
        closed = float(ALGORITHMS["broadcast"]["chain"].time(float(ranks), ranks, **link).time_s)
        assert closed <= min(times) * (1 + 1e-12)
        assert closed == pytest.approx(min(times), rel=0.02)
