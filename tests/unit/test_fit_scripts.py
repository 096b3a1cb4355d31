"""The script that fits links, run on a copy of the shipped profiles with tables made from known constants."""

from pathlib import Path
from shutil import copy

import fit_fabric
import numpy as np
import pytest

from costmodel.describe.hardware.hardware import load_link
from costmodel.describe.hardware.profile_files import read_yaml
from costmodel.physics.network.mesh import Group
from costmodel.trust.calibration import fabric_fit

PROFILES = Path(__file__).parents[2] / "hardware_profiles"


def outside(text: str, block: str) -> str:
    """Return a profile's text without one of its blocks."""
    head, _, rest = text.partition(f"\n{block}:")
    return head + rest.partition("\nsources:")[2]


def sweeps_csv(path: Path) -> str:
    """Write what nccl-tests would print on links with the shipped constants."""
    inner, network = load_link("nvlink3", size=8), load_link("ib-hdr", size=1024)
    lines = ["id,gpu,gpus,nodes,interconnect,collective,size_bytes,time_us,notes"]
    sizes = 1024.0 * 8.0 ** np.arange(8)
    for ranks, nodes in ((4, 1), (8, 1), (16, 2), (32, 4)):
        group = Group(np.asarray(float(ranks)), (np.asarray(float(ranks / nodes)), np.asarray(float(ranks))))
        for primitive in ("all_reduce", "all_gather"):
            run = fabric_fit.FabricRun("x", primitive, group, "nvlink3", None, "auto", sizes, sizes)
            times = fabric_fit.predict(run, inner, network if nodes > 1 else inner)
            lines += [
                f"{primitive}-{ranks},a100-sxm,{ranks},{nodes},NVLink3 + RDMA,{primitive},{size:.0f},{time * 1e6:.4f},"
                for size, time in zip(sizes, times, strict=True)
            ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def test_links_are_fitted_and_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(fit_fabric, "CURVES", ())
    folder = tmp_path / "links"
    folder.mkdir()
    for path in (PROFILES / "links").glob("*.yaml"):
        copy(path, folder)
    before = {path.stem: path.read_text("utf-8") for path in folder.iterdir()}

    assert fit_fabric.main([sweeps_csv(tmp_path / "sweeps.csv"), "--write", str(folder)]) == 0

    printed = capsys.readouterr().out
    assert "roce-100: left as it is, because roce-200 has no rows" in printed
    for name in ("nvlink3", "ib-hdr"):
        was, now = load_link(name, size=8), load_link(folder / f"{name}.yaml", size=8)
        block = read_yaml(folder / f"{name}.yaml")["fabric"]
        assert block["residual"] < 0.05
        assert block["points"] == 32
        assert now.base_latency_s == pytest.approx(was.base_latency_s, rel=0.25)
        assert outside((folder / f"{name}.yaml").read_text("utf-8"), "fabric").count("\n") == outside(
            before[name], "fabric"
        ).count("\n")
    # NVLink 2 takes NVLink 3's constants; EDR takes HDR's; nothing else was touched.
    changed = {path.stem for path in folder.iterdir() if path.read_text("utf-8") != before[path.stem]}
    assert changed == {"nvlink3", "ib-hdr", "nvlink2", "nvlink3-a800", "ib-edr", "omnipath-100"}
    assert read_yaml(folder / "nvlink2.yaml")["fabric"]["basis"] == "similar-link"
    assert load_link(folder / "nvlink2.yaml").fabric.rate_factor == pytest.approx(
        load_link(folder / "nvlink3.yaml").fabric.rate_factor
    )
