"""The fit finds the constants that made the times, and writes what the loader reads."""

from dataclasses import replace
from pathlib import Path
from shutil import copy
from types import SimpleNamespace

import fit_fabric as calibrate_fabric
import numpy as np
import pytest

from costmodel.base.errors import DataError
from costmodel.describe.hardware.hardware import load_cluster, load_link
from costmodel.describe.hardware.profile_files import read_yaml
from costmodel.estimates.collective import bus_bytes
from costmodel.interop.nccl_tests import LogSweep
from costmodel.physics.network.fabric import Fabric
from costmodel.physics.network.mesh import Group
from costmodel.reporting.other_pictures import fit_chart
from costmodel.trust.calibration import fabric_fit
from costmodel.trust.calibration.cluster_fit import fit_cluster, price_run, sweep_run
from costmodel.trust.calibration.fabric_fit import FabricRun

LINKS = Path(__file__).parents[2] / "hardware_profiles" / "links"
TRUE = Fabric(rate_factor=1.05, copy_bandwidth_bytes_per_s=900e9, pipeline_s=5e-6, pipeline_step_s=0.2e-6)


def synthetic_runs():
    """Sweeps on NVLink 3, which has no switch that adds, with 2 % of noise."""
    tier = replace(load_link("nvlink3", size=8), base_latency_s=9e-6, latency_s=1.1e-6, fabric=TRUE)
    rng = np.random.default_rng(7)
    size = 1024.0 * 4.0 ** np.arange(11)
    runs = []
    for ranks in (2.0, 4.0, 8.0):
        group = Group(np.asarray(ranks), (np.asarray(ranks), np.asarray(ranks)))
        for primitive in ("all_reduce", "all_gather", "reduce_scatter"):
            run = fabric_fit.FabricRun(
                f"{primitive}-{ranks}", primitive, group, "nvlink3", None, "auto", size, size
            )
            noise = np.exp(0.02 * rng.standard_normal(len(size)))
            runs.append(run._replace(time_s=fabric_fit.predict(run, tier, tier) * noise))
    return runs


def test_known_constants_are_found_again():
    fitted = calibrate_fabric.fit_all(synthetic_runs())["nvlink3"]
    assert fitted.tier.base_latency_s == pytest.approx(9e-6, rel=0.05)
    assert fitted.tier.latency_s == pytest.approx(1.1e-6, rel=0.05)
    assert fitted.fabric.rate_factor == pytest.approx(TRUE.rate_factor, rel=0.03)
    assert fitted.fabric.pipeline_s == pytest.approx(TRUE.pipeline_s, rel=0.3)
    assert fitted.residual < 0.025


def test_a_written_block_is_what_the_loader_reads(tmp_path):
    folder = tmp_path / "links"
    folder.mkdir()
    path = Path(copy(LINKS / "nvlink3.yaml", folder))
    tier = replace(load_link("nvlink3", size=8), base_latency_s=9.5e-6, latency_s=1.25e-6)
    for _ in range(2):  # writing again replaces
        block = fabric_fit.fabric_block(TRUE, basis="measured", source="a test", points=99, residual=0.02)
        calibrate_fabric.write_block(path, tier, block)

    read = load_link(path, size=8)

    assert path.read_text().count("fabric:") == 1
    assert (read.base_latency_s, read.latency_s) == pytest.approx((9.5e-6, 1.25e-6))
    assert read_yaml(path)["fabric"]["points"] == 99
    np.testing.assert_allclose(read.fabric, TRUE, rtol=1e-3)


def test_no_ring_is_fitted_faster_than_the_wire():
    tier = load_link("nvlink3", size=8)
    fast = fabric_fit.with_constants(tier, {"rate_factor": 9.0}, Fabric())
    rate = fast.achieved_bandwidth_bytes_per_s * fast.fabric.rate_factor
    assert rate == pytest.approx(tier.bandwidth_bytes_per_s)


ROWS = (
    # id, gpu, gpus, nodes, interconnect, collective, notes; what is made of it: inner link, network, algorithm, sizes
    ("a", "h100-sxm", 8, 1, "NVLink4", "all_reduce", "", ("nvlink4", None, "auto", 2)),
    ("b", "h100-sxm", 16, 2, "IB NDR 8x400", "alltoall", "", ("nvlink4", "ib-ndr", "auto", 2)),
    ("c-ring", "a100-sxm", 16, 2, "RoCE 8x200", "sendrecv", "nvlstree", ("nvlink3", "roce-400", "ring", 2)),
    ("d", "h200-sxm", 16, 2, "IB NDR", "all_reduce", "nvlstree", ("nvlink4", "ib-ndr", "nvls-tree", 2)),
    ("e", "b200", 16, 2, "EFA v3", "all_reduce", "NCCL_NVLS_ENABLE=0", ("nvlink5", "efa-v3", "ring", 2)),
    ("f", "gb200", 72, 18, "NVL72", "all_gather", "", ("nvlink5-nvl72", None, "auto", 2)),
    ("g", "gb200", 1440, 360, "NVL72 x20, IB NDR", "all_gather", "", ("nvlink5-nvl72", "ib-ndr", "auto", 2)),
    ("h", "mi300x", 8, 1, "xGMI", "all_reduce", "", None),  # no link of ours
    ("i", "h100-sxm", 16, 2, "SHARP over IB NDR", "all_reduce", "", None),  # a network that has no constants
    ("j", "h100-sxm", 8, 1, "NVLink4", "moe_dispatch", "", None),
    ("k", "h100-sxm", 64, 8, "IB NDR, contended", "all_reduce", "", None),
    ("l", "h100-sxm", 32, 4, "IB NDR, contended", "all_reduce", "", ("nvlink4", "ib-ndr", "auto", 2)),
    ("m", "h100-sxm", 16, 2, "IB NDR", "all_reduce", "SKU baseline", None),
    ("mle-n", "h100-sxm", 16, 2, "IB NDR", "all_reduce", "", ("nvlink4", "ib-ndr", "auto", 1)),
)


def test_which_sweeps_are_fitted_and_as_what(tmp_path):
    """Of those that the host slows down only the large message is; trays of a rack are one node."""
    table = tmp_path / "sweeps.csv"
    lines = ["id,gpu,gpus,nodes,interconnect,collective,size_bytes,time_us,notes"]
    for row in ROWS:
        *told, _ = row
        start = ",".join(f'"{one}"' for one in told[:-1])
        lines += [f'{start},{size:.0f},{time},"{told[-1]}"' for size, time in ((1e6, 40), (1e9, 5000))]
    table.write_text("\n".join(lines) + "\n")
    runs = {run.name: run for run in calibrate_fabric.read_runs(table)}
    assert set(runs) == {row[0] for row in ROWS if row[-1]}
    for name, _, gpus, nodes, _, collective, _, wanted in ROWS:
        if wanted is None:
            continue
        run, (inner, network, algorithm, sizes) = runs[name], wanted
        assert (run.inner, run.network, run.algorithm, len(run.size_bytes)) == (
            inner,
            network,
            algorithm,
            sizes,
        )
        assert run.primitive == {"alltoall": "all_to_all", "sendrecv": "send_recv"}.get(
            collective, collective
        )
        joined = 1 if name == "f" else nodes
        assert float(run.group.ranks) == gpus
        assert [float(members) for members in run.group.members] == [gpus / joined, gpus]
        assert run.time_s[-1] == pytest.approx(5e-3)
        assert run.size_bytes[-1] == 1e9
    table.write_text("id,gpu,gpus,nodes,interconnect,collective,size_bytes\n")
    with pytest.raises(DataError, match=r"sweeps\.csv: columns time_us are missing"):
        calibrate_fabric.read_runs(table)


def test_a_sweep_left_out_is_priced_by_the_others_of_its_link():
    """Two sources agree, a third says twice the times: without it the others are priced well, and it by half."""
    runs = [run._replace(name=f"one-{i}-{run.name}") for i, run in enumerate(synthetic_runs())]
    odd = runs[4]._replace(name="odd-4-all_gather", time_s=2.0 * runs[4].time_s)
    alone = runs[0]._replace(name="lone-8-all_reduce", inner="nvlink4")

    points, unscored = calibrate_fabric.score_left_out([*runs, odd, alone], "source")

    assert unscored == ["lone"]
    # The only fit without "odd" sees no time that is twice too long; that without "one" sees nothing else.
    assert points[points.run == odd.name].signed.mean() == pytest.approx(-0.5, abs=0.02)
    assert points[points.run == runs[4].name].signed.mean() > 0.5
    by_sweep, _ = calibrate_fabric.score_left_out([*runs, odd, alone], "sweep")
    assert len(by_sweep) == len(points) == 11 * 10
    assert by_sweep[by_sweep.run.str.startswith("one-8")].error.mean() < 0.1


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
        ({"time_s": np.nan * one}, "no out-of-place times"),
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
