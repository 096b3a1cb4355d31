"""A sweep's own rate is learned, whatever limits the profile that the fit starts from."""

import numpy as np
import pytest

from costmodel.describe.hardware.hardware import load_cluster
from costmodel.estimates.collective import bus_bytes
from costmodel.physics.network.mesh import Group
from costmodel.trust.calibration.cluster_fit import fit_cluster
from costmodel.trust.calibration.fabric_fit import FabricRun

H100 = load_cluster("dgx-h100-ndr")
SIZE = 2.0 ** np.arange(10, 34)


def sweep(primitive, ranks, rate, latency_s, step=False):
    """Time = latency + bus bytes / rate; a change of protocol makes small messages slower per byte but sooner."""
    group = Group(np.asarray(ranks), (np.asarray(8.0), np.asarray(ranks)))
    bus = bus_bytes(primitive, SIZE, ranks)
    time = latency_s + bus / rate
    if step:
        small = 0.6 * latency_s + bus / (0.15 * rate)
        time = np.where(SIZE < 2**18, small, time + (SIZE < 2**24) * 0.5 * latency_s)
    network = None if ranks == 8 else "network"
    return FabricRun("made", primitive, group, H100.tiers[0].link, network, "auto", SIZE, time)


# On two nodes the profile's ring is bound inside the node, its tree by the chain: steps of the network's rate do nothing.
@pytest.mark.parametrize("step", [False, True])
@pytest.mark.parametrize(
    ("primitive", "ranks", "rate", "latency_s"),
    [
        ("all_reduce", 16.0, 330e9, 40e-6),
        ("all_reduce", 16.0, 400e9, 200e-6),
        ("all_reduce", 16.0, 60e9, 40e-6),
        ("all_gather", 16.0, 330e9, 40e-6),
        ("all_gather", 16.0, 200e9, 40e-6),
        ("all_gather", 128.0, 200e9, 200e-6),
        ("reduce_scatter", 16.0, 20e9, 60e-6),
        ("all_to_all", 16.0, 30e9, 60e-6),
        ("all_reduce", 8.0, 330e9, 30e-6),
        ("all_gather", 8.0, 250e9, 30e-6),
    ],
)
def test_the_rate_of_large_messages_is_learned(primitive, ranks, rate, latency_s, step):
    run = sweep(primitive, ranks, rate, latency_s, step)
    fit = fit_cluster([run], H100)
    large = fit.points[fit.points["size"] >= 2**28]
    assert large["error"].mean() < 0.05
    assert fit.warnings == ()


def test_what_no_constants_give_is_said():
    """Large messages that get slower again, as where another job takes the network."""
    run = sweep("all_gather", 16.0, 300e9, 40e-6)
    run = run._replace(time_s=np.where(SIZE >= 2**31, 2.5, 1.0) * run.time_s)
    fit = fit_cluster([run], H100)
    assert len(fit.warnings) == 1
    assert "large messages are" in fit.warnings[0]
    assert "measured up to 119.8 GB/s of bus bandwidth" in fit.warnings[0]
