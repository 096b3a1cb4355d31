"""A sweep's own rate is learned, whatever limits the profile that the fit starts from."""

from types import SimpleNamespace

import numpy as np
import pytest

from costmodel.base.errors import DataError
from costmodel.describe.hardware.hardware import load_cluster
from costmodel.estimates.collective import bus_bytes
from costmodel.interop.nccl_tests import LogSweep
from costmodel.physics.network.mesh import Group
from costmodel.reporting.other_pictures import fit_chart
from costmodel.trust.calibration.cluster_fit import fit_cluster, price_run, sweep_run
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
def test_the_rate_of_large_messages_is_learned():
    for primitive, ranks, rate, latency_s, step in (
        ("all_gather", 128.0, 200e9, 200e-6, False),
        ("all_to_all", 16.0, 30e9, 60e-6, False),
        ("all_gather", 8.0, 250e9, 30e-6, False),
    ):
        fit = fit_cluster([sweep(primitive, ranks, rate, latency_s, step)], H100)
        large = fit.points[fit.points["size"] >= 2**28]
        assert large["error"].mean() < 0.05, (primitive, ranks, rate)
        assert fit.warnings == ()


def test_where_the_ranks_of_a_log_lie():
    """Nodes are as few as hold the ranks, the last one not full: 12 ranks are 6 on each of two; 4 are inside one."""
    one = np.ones(3)
    log = LogSweep("x.log", 3, "all_reduce", "tree", 12, 0, "NVIDIA H100 80GB HBM3", "2.20", one, one, one)
    run = sweep_run(log, H100)
    assert ([float(members) for members in run.group.members], run.network) == ([6, 12], "network")
    assert run.algorithm == "tree"
    inside = sweep_run(log._replace(ranks=4), H100)
    # A node has no tree to take.
    assert (float(inside.group.members[0]), inside.network, inside.algorithm) == (4, None, "auto")
    for changed, said in (
        ({"gpu": "NVIDIA GB200"}, "the log is of 'NVIDIA GB200', dgx-h100-ndr has h100"),
        ({"gpu": "AMD Instinct MI300X"}, "the log is of"),
        ({"ranks": 13}, "13 ranks on 2 nodes: expected as many on each"),
        ({"nodes": 1}, "12 ranks a node, but dgx-h100-ndr joins 8 GPUs"),
        ({"time_s": np.nan * one}, "no in-place times"),
    ):
        with pytest.raises(DataError, match=f"x.log:3: {said}"):
            sweep_run(log._replace(**changed), H100)


def test_what_no_constants_give_is_said():
    """Large messages that get slower again, as where another job takes the network."""
    run = sweep("all_gather", 16.0, 300e9, 40e-6)
    run = run._replace(time_s=np.where(SIZE >= 2**31, 2.5, 1.0) * run.time_s)
    fit = fit_cluster([run], H100)
    assert len(fit.warnings) == 1
    assert "large messages are" in fit.warnings[0]
    assert "measured up to 119.8 GB/s of bus bandwidth" in fit.warnings[0]


def test_too_few_and_too_similar_sizes_are_said_of_their_tier():
    """Two points inside the node, and eleven across it that double within a factor of eight."""
    inside = sweep("all_gather", 8.0, 250e9, 30e-6)
    inside = inside._replace(size_bytes=inside.size_bytes[10:12], time_s=inside.time_s[10:12])
    size = np.geomspace(2.0**24, 2.0**26, 11)
    across = sweep("all_gather", 16.0, 250e9, 30e-6)._replace(size_bytes=size, time_s=3e-5 + size / 250e9)
    said = fit_cluster([inside, across], H100).problems
    assert any(one.startswith(f"{H100.tiers[0].name}: 2 points; expected at least") for one in said)
    assert any(one.startswith(f"{H100.tiers[1].name}: sizes from 16777216 to 67108864 B") for one in said)


def test_the_chart_of_a_fit_shows_bus_bandwidths():
    """An all-gather of 16 ranks moves 15/16 of its bytes: dots as measured, the line as the fit has it."""
    run = sweep("all_gather", 16.0, 250e9, 30e-6)
    fit = fit_cluster([run], H100)
    dots, line = fit_chart(SimpleNamespace(fit=fit, cluster=H100)).panels[0].marks
    assert dots.y == pytest.approx(SIZE * 15 / 16 / run.time_s / 1e9, rel=1e-12)
    fitted_s = fit.points["predicted"] if "predicted" in fit.points else price_run(run, H100.tiers, fit.tiers)
    assert line.y == pytest.approx(SIZE * 15 / 16 / np.asarray(fitted_s) / 1e9, rel=1e-9)
    assert line.y[-1] == pytest.approx(250.0, rel=0.05)
