"""Sweeps: the same rows on any executor, nothing lost to a dead worker or a killed run."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial

import pytest

import costmodel as cm
from costmodel.base.errors import CostModelError
from costmodel.cli import main
from costmodel.planning import sweep as sweeps
from costmodel.planning.sweep import (
    COLUMNS,
    KeptPoints,
    KeptPointsError,
    points_of,
    scaled_cluster,
    sweep,
)

ASKED = {
    "model": "llama3-8b",
    "cluster": "dgx-h100-ndr",
    "gpus": [8, 16, 24],
    "global_batch": 48,
    "seq_len": 4096,
    "bandwidth_scale": [1.0, 0.25],
    "fix": {"cp": 1, "recompute": "none", "shard_group": 0},
    "schedule": "none,1f1b",
}


@pytest.fixture(scope="module")
def serial():
    return sweep(**ASKED)


def test_rows_are_those_of_plan(serial):
    assert [row["gpus"] for row in serial.rows] == [8, 8, 16, 16, 24, 24]
    found = cm.plan(**{**{k: v for k, v in ASKED.items() if k != "bandwidth_scale"}, "gpus": 16})
    assert serial.rows[2]["step_time_s"] == pytest.approx(float(found.best.step_time_s), rel=1e-12)
    assert serial.rows[3]["step_time_s"] > serial.rows[2]["step_time_s"]
    assert all(set(row) == set(COLUMNS) for row in serial.rows)
    assert list(serial.to_frame().columns) == list(COLUMNS)


def test_process_pool_and_threads_give_identical_rows(serial):
    with ProcessPoolExecutor(2) as pool:
        assert sweep(**ASKED, executor=pool).rows == serial.rows
    assert sweep(**ASKED, executor=partial(ThreadPoolExecutor, 2)).rows == serial.rows


def die_once(marker, pid, real, point, *sampled):
    """Kill the worker the first time that a certain point comes by."""
    if point["gpus"] == 16 and os.getpid() != pid and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return real(point, *sampled)


@pytest.mark.parametrize("make", [partial(ProcessPoolExecutor, 2), None], ids=["factory", "instance"])
def test_a_killed_worker_loses_nothing(serial, tmp_path, monkeypatch, make):
    import multiprocessing

    fork = multiprocessing.get_context("fork")
    marker = tmp_path / "died"
    monkeypatch.setattr(sweeps, "_planned", partial(die_once, marker, os.getpid(), sweeps._planned))
    executor = (
        partial(ProcessPoolExecutor, 2, mp_context=fork) if make else ProcessPoolExecutor(2, mp_context=fork)
    )
    kept = tmp_path / "kept.jsonl"
    assert sweep(**ASKED, executor=executor, resume=kept).rows == serial.rows
    assert marker.exists()


def always_fails(real, point, *sampled):
    if point["gpus"] == 16:
        raise MemoryError("no room")
    return real(point, *sampled)


def test_a_point_that_always_fails_is_reported_with_its_inputs(serial, tmp_path, monkeypatch):
    real = sweeps._planned
    monkeypatch.setattr(sweeps, "_planned", partial(always_fails, real))
    kept = tmp_path / "kept.jsonl"
    found = sweep(**ASKED, executor=partial(ThreadPoolExecutor, 2), retries=1, resume=kept)
    assert [row["gpus"] for row in found.failed] == [16, 16]
    assert "worker failed 2 times: MemoryError: no room" in found.failed[0]["problem"]
    assert found.rows[0] == serial.rows[0]
    monkeypatch.setattr(sweeps, "_planned", real)
    assert sweep(**ASKED, resume=kept).rows == serial.rows


def test_a_killed_sweep_resumes(serial, tmp_path, monkeypatch):
    kept = tmp_path / "kept.sqlite"

    def stop(done, total):
        assert total == 6
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(**ASKED, resume=kept, progress=stop)
    calls, real = [], sweeps._planned
    monkeypatch.setattr(sweeps, "_planned", lambda *point: calls.append(point) or real(*point))
    assert sweep(**ASKED, resume=kept).rows == serial.rows
    assert len(calls) == 3
    assert sweep(**ASKED, resume=kept).rows == serial.rows
    assert len(calls) == 3


def test_a_process_that_is_killed_loses_no_finished_point(tmp_path):
    kept = tmp_path / "kept.sqlite"
    line = (
        "import os, costmodel as cm; cm.sweep(model='llama3-8b', gpus=[8, 16, 32], global_batch=32, seq_len=1024, "
        f"layout='tp2', resume={str(kept)!r}, progress=lambda done, total: done < 2 or os.kill(os.getpid(), 9))"
    )
    assert subprocess.run([sys.executable, "-c", line], check=False).returncode == -signal.SIGKILL
    points = points_of(dict(model="llama3-8b", gpus=[8, 16, 32], global_batch=32, seq_len=1024, layout="tp2"))
    assert {*KeptPoints(kept).done} == {sweeps._key(point, 0, 0) for point in points[:2]}


def test_a_file_of_something_else_is_refused_as_it_is(tmp_path):
    kept = tmp_path / "kept.sqlite"
    points = points_of(dict(model="llama3-8b", gpus=[8], global_batch=8, seq_len=1024, layout="tp2"))
    kept.write_text("hello, this is a text that somebody wrote " * 30)
    before = kept.read_text()
    with pytest.raises(KeptPointsError, match="is not the file of a sweep"):
        sweep(points, resume=kept)
    assert kept.read_text() == before
    with pytest.raises(KeptPointsError, match="cannot be used"):
        sweep(points, resume=tmp_path / "no" / "kept.sqlite")


def test_a_point_is_that_of_another_sweep_only_if_it_is_the_same(tmp_path):
    kept = tmp_path / "kept.sqlite"
    asked = {"model": "llama3-8b", "global_batch": 16, "seq_len": 1024, "layout": "tp2"}
    for count, more in ((1, {}), (2, {"seq_len": 2048}), (3, {"gpus": [8, 16]}), (4, {"samples": 20})):
        row = sweep(**{**asked, "gpus": 8, **more}, resume=kept).rows[-1]
        assert len(KeptPoints(kept).done) == count
        alone = sweep(**{**asked, "gpus": 8, **more}).rows[-1]
        assert {**row} == {**alone}


def test_problems_are_rows():
    rows = sweep(
        [
            {"model": "llama3-8b", "gpus": 8, "global_batch": 8, "seq_len": 1024, "layout": "tp3"},
            {"model": "megatron-1t", "gpus": 8, "global_batch": 8, "seq_len": 2048},
            {"model": "llama3-8b", "gpus": 8, "global_batch": 8, "seq_len": 1024, "layout": "tp8"},
        ]
    ).rows
    assert [row["status"] for row in rows] == ["wrong input", "no layout", "ok"]
    assert "tp" in rows[0]["problem"]
    assert rows[2]["tp"] == 8


def test_wrong_input():
    with pytest.raises(CostModelError, match="gpus has no value"):
        points_of(dict(gpus=[]))
    with pytest.raises(CostModelError, match="sweep: gpus, global_batch, seq_len missing"):
        sweep(model="llama3-8b")
    with pytest.raises(CostModelError, match="sweep: 'gpu' is not a field; did you mean 'gpus'"):
        points_of(dict(model="llama3-8b", gpu=8))
    with pytest.raises(CostModelError, match="points or a grid"):
        sweep([{}], gpus=8)
    with pytest.raises(CostModelError, match="bandwidth_scale: expected a number from 1e-06 to"):
        scaled_cluster("dgx-h100-ndr", -1.0)


def test_points_of_wrong_input_are_told_and_a_grid_of_them_is_refused(tmp_path, capsys):
    grid = {"cluster": "dgx-h100-ndr", "gpus": [8], "global_batch": 64, "seq_len": 4096, "tp": 1, "pp": 1}
    for models, code, counted in ((["llama3-8b", "llama9"], 0, "1 of 2"), (["llama9"], 2, "1 of 1")):
        file = tmp_path / "grid.yaml"
        file.write_text(json.dumps({**grid, "model": models}))
        assert main(["sweep", str(file)]) == code
        said = capsys.readouterr()
        assert f"{counted} points are wrong input, the first: model: 'llama9' is unknown" in said.err
        assert ("wrong input" in said.out) == (code == 0)
        assert main(["sweep", str(file), "--quiet"]) == code
        assert ("points are wrong input" in capsys.readouterr().err) == (code == 2)
