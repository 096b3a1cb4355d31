"""The fit finds the constants that made the times, and writes what the loader reads."""

from dataclasses import replace
from pathlib import Path
from shutil import copy

import numpy as np
import pytest

from costmodel.base.errors import DataError
from costmodel.describe.hardware.hardware import load_link
from costmodel.physics.network.fabric import Fabric
from costmodel.physics.network.mesh import Group
from costmodel.trust.calibration import fabric_fit
from costmodel.trust.calibration import ship_fabric as calibrate_fabric
from costmodel.trust.calibration.fitting import PulledFit

LINKS = Path(__file__).parents[2] / "hardware_profiles" / "links"
TRUE = Fabric(rate_factor=1.05, copy_bandwidth_bytes_per_s=900e9, pipeline_s=5e-6, pipeline_step_s=0.2e-6)


def synthetic_runs():
    """Sweeps on NVLink 3, which has no switch that adds, with 2 % of noise."""
    tier = replace(
        load_link("nvlink3", size=8), base_latency_s=9e-6, latency_s=1.1e-6, fabric=fabric_fit.Constants(TRUE)
    )
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


def test_large_messages_weigh_three_times(monkeypatch):
    """From 64 MB on: training sends those."""
    weights = []

    def pulled(model, start, measured, *, pull, weight, begin):
        weights.append(weight)
        return PulledFit(start, 0.0 * start, 0.0 * start, 0.0)

    monkeypatch.setattr(fabric_fit, "fit_pulled", pulled)
    (run, *_) = synthetic_runs()
    sizes = np.array([1e3, 63.9e6, 64e6, 1e9])
    run = run._replace(size_bytes=sizes, time_s=np.ones(4))
    calibrate_fabric.fit_link("nvlink3", [run], {})
    assert [weight.tolist() for weight in weights] == [[1.0, 1.0, 3.0, 3.0]]


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
    assert read.fabric.points == 99
    np.testing.assert_allclose(read.fabric.constants, TRUE, rtol=1e-3)


def test_no_ring_is_fitted_faster_than_the_wire():
    tier = load_link("nvlink3", size=8)
    fast = fabric_fit.with_constants(tier, {"rate_factor": 9.0}, Fabric())
    rate = fast.achieved_bandwidth_bytes_per_s * fast.fabric.constants.rate_factor
    assert rate == pytest.approx(tier.bandwidth_bytes_per_s)


def test_a_table_without_times_is_refused(tmp_path):
    path = tmp_path / "sweeps.csv"
    path.write_text("id,gpu\na,b\n")
    with pytest.raises(DataError, match=r"sweeps\.csv: columns .*time_us"):
        calibrate_fabric.read_runs(path)
