"""`costmodel observed calibrate fabric` on five logs assembled from published tables, and its profile in use."""

import json
from pathlib import Path

import pytest

from costmodel.cli import main
from costmodel.describe.hardware.hardware import check_file

LOGS = sorted((Path(__file__).parents[1] / "data" / "nccl_logs").glob("*.log"))


def test_five_logs_make_a_profile_that_an_estimate_takes(tmp_path, capsys):
    assert len(LOGS) == 5
    profile = tmp_path / "ours.yaml"
    command = [
        "observed",
        "calibrate",
        "fabric",
        *map(str, LOGS),
        "--cluster",
        "h100-ndr",
        "--write",
        str(profile),
    ]

    assert main([*command, "--format", "json"]) == 0

    record = json.loads(capsys.readouterr().out)
    assert record["sound"]
    assert {tier["tier"]: tier["points"] for tier in record["tiers"]} == {"nvlink": 42, "leaf": 71}
    for point in record["points"]:
        off = point["fitted_time_s"] / point["measured_time_s"] - 1
        assert point["relative_error"] == pytest.approx(off, abs=1e-12)
    assert {(point["ranks"], point["nodes"]) for point in record["points"]} >= {(8, 1)}
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "ours-leaf.yaml",
        "ours-nvlink.yaml",
        "ours.yaml",
    ]
    for path in tmp_path.iterdir():
        assert check_file(path) == []
    job = ["-m", "llama3-8b", "-n", "64", "-l", "tp2", "--global-batch", "512", "--seq-len", "8192"]
    assert main(["estimate", *job, "-c", str(profile), "--format", "json"]) == 0
    ours = json.loads(capsys.readouterr().out)
    assert main(["estimate", *job, "-c", "h100-ndr", "--format", "json"]) == 0
    shipped = json.loads(capsys.readouterr().out)
    # the shipped profile was fitted to more sweeps of the same machines
    assert ours["step_time_s"] == pytest.approx(shipped["step_time_s"], rel=0.02)
    assert ours["step_time_s"] != shipped["step_time_s"]


def test_a_wrong_network_is_refused(tmp_path, capsys):
    # 400 Gbit/s of ring all-gather cannot come over 100 Gbit/s adapters
    rows = []
    for power in range(10, 31, 2):
        size, time_us = 2**power, 60 + 2**power / 330e3
        rows.append(
            f"{size} {size // 4} float none -1 {time_us:.2f} {size / time_us / 1e3:.2f} "
            f"{size / time_us / 1e3 * 15 / 16:.2f} 0\n"
        )
    path = tmp_path / "all_gather.log"
    path.write_text("".join(rows))
    command = ["observed", "calibrate", "fabric", str(path), "--ranks", "16", "--nodes", "2"]
    assert main([*command, "-c", "cloud-h100-100gbe", "--write", str(tmp_path / "x.yaml")]) == 2
    assert "start from a cluster with the right network" in capsys.readouterr().err
    assert not (tmp_path / "x.yaml").exists()
    assert main([*command, "-c", "h100-ndr"]) == 0
