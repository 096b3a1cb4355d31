"""The textbook formulas against messages sent one by one between ranks that hold real data.

The simulator knows ports, not collectives: a message takes alpha + bytes x beta, a rank sends one and
receives one at a time and each waits for both ends; data are sets of (shard, contributor), so a
wrong algorithm fails on what the ranks hold at the end, not only on its time.
"""

from math import ceil, log2

import pytest

from costmodel.physics.network.collectives import ALGORITHMS

ALPHA, BETA, GAMMA = 3.0, 0.5, 0.125
SIZES = [*range(2, 18), 31, 33, 48, 63, 64]
POWERS = [2, 4, 8, 16, 32, 64]


def for_each(sizes):
    """Run a test for every group size; what fails says its size."""

    def looped(test):
        def run():
            for n in sizes:
                try:
                    test(n)
                except AssertionError as error:
                    raise AssertionError(f"{n} ranks") from error

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        return run

    return looped


class Ranks:
    """n ranks; `held[r][shard]` is the set of contributors summed (or sent) into a shard at r."""

    def __init__(self, n, shards_bytes):
        self.n = n
        self.bytes = shards_bytes
        self.clock = [0.0] * n
        self.held = [{} for _ in range(n)]

    def step(self, messages, *, add=False, grouped=False):
        """Send `messages` = [(source, target, shards)], all from the state before this step.

        A rank's ports free at its clock; `grouped` lets a rank's messages share one alpha.
        """
        sent = [(a, b, {s: set(self.held[a][s]) for s in shards}) for a, b, shards in messages]
        start = list(self.clock)
        end = list(self.clock)
        out_bytes = [0.0] * self.n
        in_bytes = [0.0] * self.n
        assert grouped or len({a for a, _, _ in messages}) == len(messages), "one message per send port"
        assert grouped or len({b for _, b, _ in messages}) == len(messages), "one message per receive port"
        for a, b, payload in sent:
            size = sum(self.bytes[s] for s in payload)
            out_bytes[a] += size
            in_bytes[b] += size
            begin = max(start[a], start[b])
            arrive = begin + ALPHA + max(out_bytes[a], in_bytes[b]) * BETA
            end[a] = max(end[a], arrive)
            end[b] = max(end[b], arrive + (in_bytes[b] * GAMMA if add else 0.0))
            for shard, who in payload.items():
                if add:
                    assert not (who & self.held[b].get(shard, set())), "a contribution added twice"
                    self.held[b][shard] = self.held[b].get(shard, set()) | who
                else:
                    self.held[b][shard] = who
        self.clock = end

    @property
    def time(self):
        return max(self.clock)


def all_hold_own(n, shards=None):
    ranks = Ranks(n, [1.0] * (shards or n))
    for r in range(n):
        ranks.held[r] = {s: {r} for s in range(shards or n)}
    return ranks


def sharded(n):
    ranks = Ranks(n, [1.0] * n)
    for r in range(n):
        ranks.held[r] = {r: {r}}
    return ranks


def at_root(n, shards):
    ranks = Ranks(n, [float(n) / shards] * shards)
    ranks.held[0] = {s: {0} for s in range(shards)}
    return ranks


def everyone(n):
    return set(range(n))


def assert_all_reduced(ranks):
    want = everyone(ranks.n)
    for held in ranks.held:
        assert held
        assert all(who == want for who in held.values())


def assert_gathered(ranks):
    for held in ranks.held:
        assert held == {s: {s} for s in range(ranks.n)}


def formula(primitive, algorithm, n, gamma=GAMMA):
    """Price S = n bytes, so that a shard is one byte."""
    row = ALGORITHMS[primitive][algorithm]
    assert row.applies(n)
    t = row.time(float(n), n, latency_s=ALPHA, bandwidth_bytes_per_s=1 / BETA, gamma_s_per_byte=gamma)
    return float(t.time_s)


def exact(value):
    return pytest.approx(value, rel=1e-12)


def ring_reduce_scatter(ranks):
    n = ranks.n
    for k in range(n - 1):
        ranks.step([(r, (r + 1) % n, [(r - k) % n]) for r in range(n)], add=True)


def ring_all_gather(ranks, first=0):
    """Shard (r + first) is complete at rank r."""
    n = ranks.n
    for k in range(n - 1):
        ranks.step([(r, (r + 1) % n, [(r + first - k) % n]) for r in range(n)])


def binomial_scatter(ranks):
    n = ranks.n
    for k in reversed(range(ceil(log2(n)))):
        d = 2**k
        pairs = [(r, r + d) for r in range(0, n, 2 * d) if r + d < n]
        ranks.step([(a, b, list(range(b, min(b + d, n)))) for a, b in pairs])


def binomial_gather(ranks):
    n = ranks.n
    for k in range(ceil(log2(n))):
        d = 2**k
        pairs = [(r + d, r) for r in range(0, n, 2 * d) if r + d < n]
        ranks.step([(a, b, list(range(a, min(a + d, n)))) for a, b in pairs])


def binomial_reduce(ranks):
    n = ranks.n
    for k in range(ceil(log2(n))):
        pairs = [(r + 2**k, r) for r in range(0, n, 2 ** (k + 1)) if r + 2**k < n]
        ranks.step([(a, b, list(ranks.held[a])) for a, b in pairs], add=True)


def binomial_broadcast(ranks):
    n = ranks.n
    for k in range(ceil(log2(n))):
        ranks.step([(r, r + 2**k, list(ranks.held[0])) for r in range(min(2**k, n - 2**k))])


def recursive_halving(ranks, n):
    """The first n = 2^k ranks reduce-scatter; rank r ends with block r of n equal blocks."""
    block = len(ranks.bytes) // n
    low = [0] * n
    d = n // 2
    while d:
        messages = []
        for r in range(n):
            give = low[r] + (0 if r & d else d)
            messages.append((r, r ^ d, list(range(give * block, (give + d) * block))))
        ranks.step(messages, add=True)
        for r in range(n):
            low[r] += d if r & d else 0
            ranks.held[r] = {s: ranks.held[r][s] for s in range(low[r] * block, (low[r] + d) * block)}
        d //= 2


def recursive_doubling_gather(ranks, n):
    d = 1
    while d < n:
        ranks.step([(r, r ^ d, list(ranks.held[r])) for r in range(n)])
        d *= 2


def fold(ranks):
    """Ranks beyond the largest power of two add their vector into a partner; return that power."""
    core = 2 ** (ranks.n.bit_length() - 1)
    if core < ranks.n:
        ranks.step([(r, r - core, list(ranks.held[r])) for r in range(core, ranks.n)], add=True)
    return core


def unfold(ranks, core):
    if core < ranks.n:
        ranks.step([(r - core, r, list(ranks.held[r - core])) for r in range(core, ranks.n)])


@for_each(SIZES)
def test_ring_all_reduce(n):
    ranks = all_hold_own(n)
    ring_reduce_scatter(ranks)
    reduce_scatter_time = ranks.time
    assert all(ranks.held[r][(r + 1) % n] == everyone(n) for r in range(n))

    ring_all_gather(ranks, first=1)

    assert_all_reduced(ranks)
    assert reduce_scatter_time == exact(formula("reduce_scatter", "ring", n))
    assert ranks.time == exact(formula("all_reduce", "ring", n))


@for_each(SIZES)
def test_ring_all_gather(n):
    ranks = sharded(n)
    ring_all_gather(ranks)
    assert_gathered(ranks)
    assert ranks.time == exact(formula("all_gather", "ring", n))


@for_each(SIZES)
def test_pairwise_reduce_scatter(n):
    ranks = all_hold_own(n)
    own = [{s: {r} for s in range(n)} for r in range(n)]
    for k in range(1, n):
        for r in range(n):  # each sends its own, unreduced shard
            ranks.held[r] |= {(r + k) % n: own[r][(r + k) % n]}
        ranks.step([(r, (r + k) % n, [(r + k) % n]) for r in range(n)], add=True)
    assert all(ranks.held[r][r] == everyone(n) for r in range(n))
    assert ranks.time == exact(formula("reduce_scatter", "pairwise", n))


@for_each(POWERS)
def test_recursive_halving_reduce_scatter(n):
    ranks = all_hold_own(n)
    recursive_halving(ranks, n)
    assert all(ranks.held[r] == {r: everyone(n)} for r in range(n))
    assert ranks.time == exact(formula("reduce_scatter", "recursive-halving", n))


@for_each(POWERS)
def test_recursive_doubling_all_gather(n):
    ranks = sharded(n)
    recursive_doubling_gather(ranks, n)
    assert_gathered(ranks)
    assert ranks.time == exact(formula("all_gather", "recursive-doubling", n))


@for_each(SIZES)
def test_bruck_all_gather(n):
    ranks = sharded(n)
    d = 1
    while d < n:
        count = min(d, n - d)
        ranks.step([(r, (r - d) % n, [(r + i) % n for i in range(count)]) for r in range(n)])
        d *= 2
    assert_gathered(ranks)
    assert ranks.time == exact(formula("all_gather", "bruck", n))


@for_each(SIZES)
def test_halving_doubling_all_reduce(n):
    core = 2 ** (n.bit_length() - 1)
    ranks = all_hold_own(n, shards=core)
    ranks.bytes = [n / core] * core
    assert fold(ranks) == core
    recursive_halving(ranks, core)
    recursive_doubling_gather(ranks, core)
    unfold(ranks, core)
    assert_all_reduced(ranks)
    assert ranks.time == exact(formula("all_reduce", "halving-doubling", n))


@for_each(SIZES)
def test_recursive_doubling_all_reduce(n):
    ranks = all_hold_own(n, shards=1)
    ranks.bytes = [float(n)]
    core = fold(ranks)
    d = 1
    while d < core:
        ranks.step([(r, r ^ d, [0]) for r in range(core)], add=True)
        d *= 2
    unfold(ranks, core)
    assert_all_reduced(ranks)
    assert ranks.time == exact(formula("all_reduce", "recursive-doubling", n))


@for_each(SIZES)
def test_tree_all_reduce_is_binomial_reduce_and_broadcast(n):
    ranks = all_hold_own(n, shards=1)
    ranks.bytes = [float(n)]
    binomial_reduce(ranks)
    assert ranks.held[0][0] == everyone(n)
    assert ranks.time == exact(formula("reduce", "binomial", n))
    binomial_broadcast(ranks)
    assert_all_reduced(ranks)
    assert ranks.time == exact(formula("all_reduce", "tree", n))


@for_each(SIZES)
def test_naive_all_reduce_is_linear_reduce_and_broadcast(n):
    ranks = all_hold_own(n, shards=1)
    ranks.bytes = [float(n)]
    for r in range(1, n):
        ranks.step([(r, 0, [0])], add=True)
    assert ranks.time == exact(formula("reduce", "linear", n))
    reduced = ranks.time
    for r in range(1, n):
        ranks.step([(0, r, [0])])
    assert_all_reduced(ranks)
    assert ranks.time - reduced == exact(formula("broadcast", "linear", n))
    assert ranks.time == exact(formula("all_reduce", "naive", n))


@for_each(SIZES)
def test_one_shot_and_two_shot_all_reduce(n):
    ranks = all_hold_own(n, shards=1)
    ranks.bytes = [float(n)]
    ranks.step([(a, b, [0]) for a in range(n) for b in range(n) if a != b], add=True, grouped=True)
    assert_all_reduced(ranks)
    assert ranks.time == exact(formula("all_reduce", "one-shot", n))

    ranks = all_hold_own(n)
    ranks.step([(a, b, [b]) for a in range(n) for b in range(n) if a != b], add=True, grouped=True)
    assert ranks.time == exact(formula("reduce_scatter", "direct", n))
    ranks.step([(a, b, [a]) for a in range(n) for b in range(n) if a != b], grouped=True)
    assert_all_reduced(ranks)
    assert ranks.time == exact(formula("all_reduce", "two-shot", n))


@for_each(SIZES)
def test_binomial_scatter_and_gather(n):
    ranks = at_root(n, n)
    binomial_scatter(ranks)
    assert all(r in ranks.held[r] for r in range(n))
    assert ranks.time == exact(formula("scatter", "binomial", n))

    ranks = sharded(n)
    binomial_gather(ranks)
    assert ranks.held[0] == {s: {s} for s in range(n)}
    assert ranks.time == exact(formula("gather", "binomial", n))


@for_each(SIZES)
def test_linear_scatter_and_gather(n):
    ranks = at_root(n, n)
    for r in range(1, n):
        ranks.step([(0, r, [r])])
    assert ranks.time == exact(formula("scatter", "linear", n))

    ranks = sharded(n)
    for r in range(1, n):
        ranks.step([(r, 0, [r])])
    assert ranks.held[0] == {s: {s} for s in range(n)}
    assert ranks.time == exact(formula("gather", "linear", n))


@for_each(SIZES)
def test_binomial_broadcast(n):
    ranks = at_root(n, 1)
    binomial_broadcast(ranks)
    assert all(held == {0: {0}} for held in ranks.held)
    assert ranks.time == exact(formula("broadcast", "binomial", n))


@for_each(SIZES)
def test_scatter_all_gather_broadcast(n):
    ranks = at_root(n, n)
    binomial_scatter(ranks)
    ring_all_gather(ranks)
    assert all(len(held) == n for held in ranks.held)
    assert ranks.time == exact(formula("broadcast", "scatter-all-gather", n))


@for_each(POWERS)
def test_reduce_scatter_gather_reduce(n):
    ranks = all_hold_own(n)
    recursive_halving(ranks, n)
    binomial_gather(ranks)
    assert ranks.held[0] == {s: everyone(n) for s in range(n)}
    assert ranks.time == exact(formula("reduce", "reduce-scatter-gather", n))


@for_each([2, 3, 5, 8, 17, 64])
def test_chain_broadcast_is_the_best_of_all_chunk_counts(n):
    def simulated(chunks):
        ranks = at_root(n, chunks)
        for k in range(n - 2 + chunks):
            ranks.step([(r, r + 1, [k - r]) for r in range(n - 1) if 0 <= k - r < chunks])
        assert all(len(held) == chunks for held in ranks.held)
        return ranks.time

    times = {k: simulated(k) for k in range(1, 33)}
    for k, time in times.items():
        assert time == exact((n - 2 + k) * (ALPHA + n * BETA / k))
    closed = formula("broadcast", "chain", n)
    assert closed <= min(times.values()) * (1 + 1e-12)  # chunks are real in the formula, whole here
    assert closed == pytest.approx(min(times.values()), rel=0.02)


@for_each(SIZES)
def test_pairwise_and_direct_all_to_all(n):
    for grouped, name in ((False, "pairwise"), (True, "direct")):
        ranks = Ranks(n, {(a, b): 1.0 for a in range(n) for b in range(n)})
        for r in range(n):
            ranks.held[r] = {(r, b): {r} for b in range(n)}
        rounds = [[(r, (r + k) % n, [(r, (r + k) % n)]) for r in range(n)] for k in range(1, n)]
        if grouped:
            rounds = [[m for messages in rounds for m in messages]]
        for messages in rounds:
            ranks.step(messages, grouped=grouped)
        assert all((a, b) in ranks.held[b] for a in range(n) for b in range(n))
        assert ranks.time == exact(formula("all_to_all", name, n))


@for_each(SIZES)
def test_bruck_all_to_all(n):
    ranks = Ranks(n, {(a, b): 1.0 for a in range(n) for b in range(n)})
    for r in range(n):
        ranks.held[r] = {(r, b): {r} for b in range(n)}
    d = 1
    while d < n:
        messages = []
        for r in range(n):
            # a block travels the set bits of its whole distance, lowest first
            move = [s for s in ranks.held[r] if ((s[1] - s[0]) % n) & d]
            messages.append((r, (r + d) % n, move))
        ranks.step(messages)
        for a, _, moved in messages:
            for s in moved:
                del ranks.held[a][s]
        d *= 2
    assert all(ranks.held[b].keys() == {(a, b) for a in range(n)} for b in range(n))
    assert ranks.time == exact(formula("all_to_all", "bruck", n))


@for_each(SIZES)
def test_no_inner_rank_of_one_tree_is_inner_in_the_other(n):
    """The claim behind the double tree's 2S beta: every rank sends and receives at most 2S."""

    def children(low, high):  # in-order binary tree over low..high-1, inner ranks odd
        edges = {}

        def build(low, high):
            if high <= low:
                return None
            size = high - low
            step = 1 << (size.bit_length() - 1)
            root = low + step - 1
            edges[root] = [c for c in (build(low, root), build(root + 1, high)) if c is not None]
            return root

        build(low, high)
        return edges

    first = children(0, n)
    second = {(r + 1) % n: [(c + 1) % n for c in below] for r, below in first.items()}
    sends = [0.0] * n
    for edges in (first, second):
        for r, below in edges.items():
            for child in below:
                sends[child] += 0.5  # reduce: half a vector up
                sends[r] += 0.5  # broadcast: half a vector down
    assert max(sends) <= 2.0
    assert max(sum(r in edges and bool(edges[r]) for edges in (first, second)) for r in range(n)) <= 1
    bound = ALGORITHMS["all_reduce"]["double-tree"].time(1.0, n, latency_s=0, bandwidth_bytes_per_s=1.0)
    assert float(bound.time_s) == pytest.approx(2.0)
