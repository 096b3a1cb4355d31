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
    count = shards or n
    ranks = Ranks(n, [n / count] * count)
    for r in range(n):
        ranks.held[r] = {s: {r} for s in range(count)}
    return ranks


def pairs(n):
    """Each rank holds one block for every rank."""
    ranks = Ranks(n, {(a, b): 1.0 for a in range(n) for b in range(n)})
    for r in range(n):
        ranks.held[r] = {(r, b): {r} for b in range(n)}
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


def check(ranks, primitive, algorithm):
    """Hold what the ranks hold at the end, and when that is, to what the collective does and what it is said to take."""
    n, held = ranks.n, ranks.held
    whole = {s: everyone(n) for s in range(n)}
    done = {
        "all_reduce": lambda: all(each and all(who == everyone(n) for who in each.values()) for each in held),
        "all_gather": lambda: all(each == {s: {s} for s in range(n)} for each in held),
        "reduce_scatter": lambda: all(any(who == everyone(n) for who in each.values()) for each in held),
        "reduce": lambda: held[0] in (whole, {0: everyone(n)}),
        "broadcast": lambda: all(each.keys() == held[0].keys() for each in held),
        "scatter": lambda: all(r in held[r] for r in range(n)),
        "gather": lambda: held[0] == {s: {s} for s in range(n)},
        "all_to_all": lambda: all((a, b) in held[b] for a in range(n) for b in range(n)),
    }
    assert done[primitive](), f"{primitive} {algorithm} leaves somebody without"
    assert ranks.time == exact(formula(primitive, algorithm, n)), f"{primitive} {algorithm}"


@for_each(SIZES)
def test_rings(n):
    ranks = all_hold_own(n)
    ring_reduce_scatter(ranks)
    assert all(ranks.held[r][(r + 1) % n] == everyone(n) for r in range(n))
    check(ranks, "reduce_scatter", "ring")
    ring_all_gather(ranks, first=1)
    check(ranks, "all_reduce", "ring")
    ranks = sharded(n)
    ring_all_gather(ranks)
    check(ranks, "all_gather", "ring")


@for_each(SIZES)
def test_pairwise_reduce_scatter(n):
    ranks = all_hold_own(n)
    own = [{s: {r} for s in range(n)} for r in range(n)]
    for k in range(1, n):
        for r in range(n):  # each sends its own, unreduced shard
            ranks.held[r] |= {(r + k) % n: own[r][(r + k) % n]}
        ranks.step([(r, (r + k) % n, [(r + k) % n]) for r in range(n)], add=True)
    assert all(ranks.held[r][r] == everyone(n) for r in range(n))
    check(ranks, "reduce_scatter", "pairwise")


@for_each(POWERS)
def test_recursive_halving_and_doubling_of_powers_of_two(n):
    ranks = all_hold_own(n)
    recursive_halving(ranks, n)
    assert all(ranks.held[r] == {r: everyone(n)} for r in range(n))
    check(ranks, "reduce_scatter", "recursive-halving")
    binomial_gather(ranks)
    check(ranks, "reduce", "reduce-scatter-gather")
    ranks = sharded(n)
    recursive_doubling_gather(ranks, n)
    check(ranks, "all_gather", "recursive-doubling")


@for_each(SIZES)
def test_bruck_all_gather(n):
    ranks = sharded(n)
    d = 1
    while d < n:
        count = min(d, n - d)
        ranks.step([(r, (r - d) % n, [(r + i) % n for i in range(count)]) for r in range(n)])
        d *= 2
    check(ranks, "all_gather", "bruck")


@for_each(SIZES)
def test_halving_and_doubling_of_any_number(n):
    core = 2 ** (n.bit_length() - 1)
    ranks = all_hold_own(n, shards=core)
    assert fold(ranks) == core
    recursive_halving(ranks, core)
    recursive_doubling_gather(ranks, core)
    unfold(ranks, core)
    check(ranks, "all_reduce", "halving-doubling")

    ranks = all_hold_own(n, shards=1)
    core = fold(ranks)
    d = 1
    while d < core:
        ranks.step([(r, r ^ d, [0]) for r in range(core)], add=True)
        d *= 2
    unfold(ranks, core)
    check(ranks, "all_reduce", "recursive-doubling")


@for_each(SIZES)
def test_binomial_trees(n):
    ranks = all_hold_own(n, shards=1)
    binomial_reduce(ranks)
    check(ranks, "reduce", "binomial")
    binomial_broadcast(ranks)
    check(ranks, "all_reduce", "tree")
    ranks = at_root(n, 1)
    binomial_broadcast(ranks)
    check(ranks, "broadcast", "binomial")
    ranks = at_root(n, n)
    binomial_scatter(ranks)
    check(ranks, "scatter", "binomial")
    ring_all_gather(ranks)
    check(ranks, "broadcast", "scatter-all-gather")
    ranks = sharded(n)
    binomial_gather(ranks)
    check(ranks, "gather", "binomial")


@for_each(SIZES)
def test_one_after_the_other(n):
    ranks = all_hold_own(n, shards=1)
    for r in range(1, n):
        ranks.step([(r, 0, [0])], add=True)
    check(ranks, "reduce", "linear")
    for r in range(1, n):
        ranks.step([(0, r, [0])])
    check(ranks, "all_reduce", "naive")
    ranks = at_root(n, 1)
    for r in range(1, n):
        ranks.step([(0, r, [0])])
    check(ranks, "broadcast", "linear")
    ranks = at_root(n, n)
    for r in range(1, n):
        ranks.step([(0, r, [r])])
    check(ranks, "scatter", "linear")
    ranks = sharded(n)
    for r in range(1, n):
        ranks.step([(r, 0, [r])])
    check(ranks, "gather", "linear")


@for_each(SIZES)
def test_one_shot_and_two_shot_all_reduce(n):
    others = [(a, b) for a in range(n) for b in range(n) if a != b]
    ranks = all_hold_own(n, shards=1)
    ranks.step([(a, b, [0]) for a, b in others], add=True, grouped=True)
    check(ranks, "all_reduce", "one-shot")
    ranks = all_hold_own(n)
    ranks.step([(a, b, [b]) for a, b in others], add=True, grouped=True)
    check(ranks, "reduce_scatter", "direct")
    ranks.step([(a, b, [a]) for a, b in others], grouped=True)
    check(ranks, "all_reduce", "two-shot")
    ranks = sharded(n)
    ranks.step([(a, b, [a]) for a, b in others], grouped=True)
    check(ranks, "all_gather", "direct")


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
def test_all_to_alls(n):
    rounds = [[(r, (r + k) % n, [(r, (r + k) % n)]) for r in range(n)] for k in range(1, n)]
    ranks = pairs(n)
    for messages in rounds:
        ranks.step(messages)
    check(ranks, "all_to_all", "pairwise")
    ranks = pairs(n)
    ranks.step([message for messages in rounds for message in messages], grouped=True)
    check(ranks, "all_to_all", "direct")

    ranks = pairs(n)
    d = 1
    while d < n:
        # a block travels the set bits of its whole distance, lowest first
        moved = {r: [s for s in ranks.held[r] if ((s[1] - s[0]) % n) & d] for r in range(n)}
        ranks.step([(r, (r + d) % n, moved[r]) for r in range(n)])
        for r, blocks in moved.items():
            for block in blocks:
                del ranks.held[r][block]
        d *= 2
    check(ranks, "all_to_all", "bruck")


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
