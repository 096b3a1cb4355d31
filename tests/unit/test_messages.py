"""A message of many layouts is priced once for each kind of them, and costs each what it costs alone."""

import numpy as np
import pytest

from costmodel.bill.formula import evaluate, where
from costmodel.bill.quantity import quantity
from costmodel.describe.hardware.hardware import load_cluster
from costmodel.physics.network.mesh import Group
from costmodel.physics.network.messages import Messages, kinds_of
from costmodel.physics.network.nccl import collective_time

TIERS = load_cluster("dgx-h100-ndr").tiers
RNG = np.random.default_rng(0)


def group(layouts=120):
    """Groups of 2 to 64 ranks that shard by 2 or by all, over nodes of eight."""
    ranks = 2.0 ** RNG.integers(1, 7, layouts) / np.asarray([[2.0], [1.0]])
    inside = (np.minimum(ranks, 8.0), ranks, ranks)
    return Group(ranks, inside[: len(TIERS)])


def test_kinds_are_told_apart_by_every_number():
    one, other = RNG.integers(0, 3, 200).astype(float), RNG.integers(0, 3, (2, 200)).astype(float)
    kinds = kinds_of(one, other, np.asarray(7.0), np.asarray([[8.0]]))
    rows = np.concatenate([one[None], other]).T
    assert [tuple(rows[at]) for at in kinds.first] == list(dict.fromkeys(map(tuple, rows)))
    np.testing.assert_array_equal(rows[kinds.first][kinds.of], rows)


def test_few_layouts_or_all_different_are_not_told_apart():
    assert kinds_of(np.ones(10)) is None
    assert kinds_of(np.arange(100.0)) is None
    assert kinds_of(np.asarray(1.0)) is None
    assert kinds_of(np.arange(100.0) // 2).first.tolist() == list(range(0, 100, 2))


@pytest.mark.parametrize("primitive", ["all_reduce", "all_gather", "all_to_all", "send_recv"])
def test_a_message_costs_every_layout_what_it_costs_alone(primitive):
    senders, messages = group(), Messages(TIERS, without=("pat",))
    size = 2.0 ** RNG.integers(10, 16, 120)
    cost = messages.collective(primitive, size, senders)
    plain = collective_time(primitive, size, senders, TIERS, without=("pat",))
    for ours, theirs in (
        (cost.time_s, plain.time_s),
        (cost.wire_bytes, plain.wire_bytes),
        (cost.tier, plain.tier),
        (cost.algorithm, plain.algorithm),
        (cost.latency_s, plain.latency_s),
    ):
        np.testing.assert_allclose(np.broadcast_to(ours, (2, 120)), np.broadcast_to(theirs, (2, 120)), rtol=0)
    assert cost.made.formula == plain.made.formula
    assert set(cost.made.terms) == set(plain.made.terms)
    assert len(cost.made.terms) == len(plain.made.terms)
    np.testing.assert_allclose(evaluate(cost.made.formula, cost.made.terms), plain.time_s, rtol=1e-14)
    paid = cost.made.then("sent_s", "2 * sent_s + base_s", base_s=1.0)
    np.testing.assert_allclose(paid.value, 2.0 * plain.time_s + 1.0, rtol=1e-14)
    again = paid.then("paid_s", "paid_s + more_s", more_s=1.0)
    assert list(again.terms) == [*plain.made.terms, "base_s", "more_s"]
    np.testing.assert_allclose(evaluate(again.formula, again.terms), 2.0 * plain.time_s + 2.0, rtol=1e-14)


def test_a_message_is_priced_once_and_its_lines_share_a_tier():
    senders, messages = group(), Messages(TIERS)
    size = np.repeat([1e6, 2e6], 60)
    first = messages.collective("all_gather", size, senders)
    assert messages.collective("all_gather", size.copy(), senders) is first
    other = messages.collective("all_gather", 2.0 * size, senders)
    np.testing.assert_allclose(other.wire_bytes, 2.0 * first.wire_bytes)
    # Lines of a group are found by their array of tiers.
    assert other.tier is first.tier
    assert messages.collective("all_gather", size, senders._replace(ranks=senders.ranks * 2.0)) is not first


def test_another_bill_remembers_the_same_layouts_on_the_same_fabric():
    senders, size, plain = group(), np.repeat([1e6, 2e6], 60), ("nvls-sharp", "collnet-chain")
    first = Messages(TIERS, plain).collective("all_reduce", size, senders)
    copied = senders._replace(ranks=senders.ranks.copy(), members=tuple(m.copy() for m in senders.members))
    assert Messages(TIERS, plain).collective("all_reduce", size.copy(), copied) is first
    slower = load_cluster("dgx-a100-hdr").tiers
    for tiers, without, ranks in (
        (slower, plain, 1.0),
        (TIERS, (*plain, "nvls", "tree"), 1.0),
        (TIERS, plain, 2.0),
    ):
        other = senders._replace(ranks=senders.ranks * ranks)
        alone = collective_time("all_reduce", size, other, tiers, without=without)
        assert not np.array_equal(alone.time_s, first.time_s)
        ours = Messages(tiers, without).collective("all_reduce", size, other)
        np.testing.assert_array_equal(ours.time_s, alone.time_s)


def test_one_condition_for_all_layouts_takes_a_side_as_it_is():
    assert where(np.asarray(True), 1.0, np.zeros(9)).shape == ()
    assert where(np.asarray(False), 1.0, np.zeros(9)).shape == (9,)
    assert where(np.asarray([True, False]), 1.0, 0.0).tolist() == [1.0, 0.0]
    taken = quantity("where(ranks > 1, size_bytes, 0)", ranks=2.0, size_bytes=np.arange(3.0))
    assert taken.value.tolist() == [0.0, 1.0, 2.0]
    assert quantity("where(ranks > 1, size_bytes, 0)", ranks=1.0, size_bytes=np.arange(3.0)).value == 0.0
