"""Ports: every fabric tier carries one message at a time, whatever hides behind what."""

import numpy as np
import pytest

import costmodel as cm
from costmodel.bill.formula import evaluate
from costmodel.bill.lines import Bill, time_line
from costmodel.step.communication import Ports, hidden_behind, port_lines


def message(name, each_s, tier, count=1.0, exposed_s=0.0):
    return time_line(
        name,
        axis="dp",
        category="communication",
        phase="backward",
        count=count,
        formula="busy_s = each_s; exposed_s",
        terms={"each_s": each_s, "exposed_s": exposed_s},
        tier=tier,
        source="test",
    )


def work(seconds):
    return time_line(
        "compute",
        axis="compute",
        category="math",
        phase="forward",
        count=1.0,
        formula="seconds",
        terms={"seconds": seconds},
        source="test",
    )


def remainder(lines):
    return port_lines(None, Bill(tuple(lines), (), ("nvlink", "leaf")))


def test_messages_share_the_port_of_their_tier():
    ports = Ports([message("a", 2.0, 1), message("b", 3.0, 1), message("c", 7.0, 0), work(100.0)])
    assert float(ports.busy_s(np.asarray(1.0))) == 5.0
    assert float(ports.busy_s(np.asarray(0.0))) == 7.0
    assert float(ports.busy_s(np.asarray(2.0))) == 0.0
    ports.take(message("d", 1.0, 1), times=4.0)
    assert float(ports.busy_s(np.asarray(1.0))) == 9.0
    assert float(ports.in_pieces(3.0).busy_s(np.asarray(1.0))) == 3.0


def test_messages_of_one_group_add_up():
    """Lines of a group have one array of tiers; some are the same for all layouts."""
    tier = np.array([1.0, 0.0])
    ports = Ports(
        message(str(each), each, tier) for each in (2.0, 3.0, np.array([5.0, 7.0]), np.array([1.0, 2.0]))
    )
    assert ports.busy_s(np.array([1.0, 1.0])).tolist() == [11.0, 0.0]
    assert ports.busy_s(np.array([0.0, 0.0])).tolist() == [0.0, 14.0]


def test_ports_of_several_layouts():
    ports = Ports([message("a", np.array([2.0, 3.0]), np.array([1.0, 0.0]))], times=0.5)
    assert ports.busy_s(np.array([1.0, 1.0])).tolist() == [1.0, 0.0]
    assert ports.busy_s(np.array([1.0, 0.0])).tolist() == [1.0, 1.5]


def test_what_hides_beside_messages_on_its_port():
    """4 s beside 5 s of compute and 2 s of another message on the leaf: 1 s shows, none where the pass waited 1 s."""
    ports = Ports([message("a", 2.0, 1)])
    for tier, waited_s, exposed_s in ((1.0, None, 1.0), (1.0, np.asarray(1.0), 0.0), (0.0, None, 0.0)):
        formula, taken = hidden_behind(ports, np.asarray(tier), waited_s)
        given = {"busy_s": 4.0, "window_s": 5.0, "least_share": 0.0, "contention": 0.0, **taken}
        assert float(evaluate(formula, given)) == exposed_s


def test_what_does_not_fit_beside_the_step_is_paid():
    """10 s of compute; 12 s on the NIC and 11 s on the leaf, all said to be hidden: the step takes 12 s."""
    lines = [work(10.0), message("a", 3.0, 1, count=4.0), message("b", 11.0, 0)]
    made = remainder(lines)
    assert [(line.name, float(line.exposed_seconds)) for line in made] == [
        ("overhead.port.nvlink", 1.0),
        ("overhead.port.leaf", 1.0),
    ]
    assert remainder([work(12.0), *lines[1:]]) == []


def test_tiers_are_asked_one_by_one_where_all_together_are_busy_for_longer():
    """6 s of each of two groups on the leaf beside 10 s: 2 s too many; one of them on each tier: none."""
    on_leaf = [work(10.0), message("a", 1.0, 0), message("b", 6.0, 1), message("c", 2.0, 1, count=3.0)]
    assert [(line.name, float(line.each_s)) for line in remainder(on_leaf)] == [("overhead.port.leaf", 2.0)]
    assert remainder([work(10.0), message("a", 6.0, 0), message("b", 6.0, 1)]) == []
    assert remainder([work(10.0)]) == []


def test_what_is_exposed_already_counts():
    lines = [work(10.0), message("a", 12.0, 1, exposed_s=5.0)]
    assert remainder(lines) == []


SLOW = {"cluster": "cloud-h100-100gbe", "gpus": 64, "seq_len": 8192}


def test_a_pipeline_on_a_slow_network_takes_as_long_as_its_messages():
    """Interleaving over 100GbE sends more than a step of compute lasts: it was called hidden."""
    est = cm.estimate(model="llama3-8b", layout="pp8 vp4", global_batch=512, **SLOW)
    sent = sum(float(line.seconds) for line in est.bill.time_lines if line.axis == "pp" and line.tier >= 0)
    assert sent > 0
    assert float(est.step_time_s) >= sent


def test_replicas_of_shards_hide_behind_the_backward_pass():
    """HSDP exists because its sum over replicas is hidden and rings stay in the node."""
    job = {"model": "llama3-8b", "cluster": "dgx-h100-ndr", "seq_len": 8192, "recipe": "torchtitan"}
    job |= {"zero_stage": 3, "recompute": "full"}
    for gpus, least in ((256, 1.03), (1024, 1.0)):
        flat, grouped = (
            float(cm.estimate(**job, gpus=gpus, global_batch=gpus, shard_group=group).step_time_s)
            for group in (0, 8)
        )
        assert grouped <= least * flat


@pytest.mark.parametrize("group", [0, 8])
def test_arrays_equal_scalars(group):
    job = {"model": "llama3-8b", "cluster": "cloud-h100-100gbe", "gpus": 64, "seq_len": 4096}
    job |= {"global_batch": 256, "recipe": "torchtitan", "zero_stage": 3, "shard_group": group}
    many = cm.estimate(**job, tp=np.array([1, 2, 8]))
    for at, tp in enumerate((1, 2, 8)):
        one = float(cm.estimate(**job, tp=tp).step_time_s)
        assert float(many.step_time_s[at]) == pytest.approx(one, rel=1e-12)
