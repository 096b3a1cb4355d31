"""Layers whose mixer is no attention: context parallelism sends what their operators need, and no K and V."""

import numpy as np
import pytest

import costmodel as cm
from costmodel.step.anatomy.operators import layer_operators

JOB = {"model": "llama3-8b", "cluster": "dgx-h100-ndr", "gpus": 8, "global_batch": 32, "seq_len": 8192}


def priced(monkeypatch, *, core, neighbour_bytes, **job):
    """Price a job whose layers have attention or not, and a norm that needs so much of its neighbours."""

    def operators(*arguments):
        made = [op for op in layer_operators(*arguments) if core or op.role != "core"]
        return [made[0]._replace(neighbour_bytes=np.asarray(neighbour_bytes)), *made[1:]]

    monkeypatch.setattr("costmodel.step.compute.layer_operators", operators)
    bill = cm.estimate(**JOB, **job).bill
    return {
        line.name.removeprefix("cp.").split(".", 1)[1]: line for line in bill.time_lines if line.axis == "cp"
    }


def test_only_what_operators_need_is_sent(monkeypatch):
    # 8 GPUs, cp 2, dp 4: 8 micro-batches of one sequence through 32 layers, 1 MB each way.
    lines = priced(monkeypatch, core=False, neighbour_bytes=1e6, layout="cp2")
    assert {name.rpartition("neighbour")[2] for name in lines} == {".forward", ".backward"}
    for line in lines.values():
        assert float(line.count) == 8 * 32
        assert float(line.bytes) == pytest.approx(8 * 32 * 1e6)
        # NVLink moves a megabyte in some 3 us and starts in some 10; nothing hides it.
        assert 3e-6 < float(line.each_s) < 60e-6
        assert float(line.exposed_seconds) == pytest.approx(float(line.seconds))


def test_recomputed_layers_send_it_again(monkeypatch):
    lines = priced(monkeypatch, core=False, neighbour_bytes=1e6, layout="cp2", recompute="full")
    assert {name.rpartition("neighbour")[2] for name in lines} == {".forward", ".recompute", ".backward"}


def test_attention_and_neighbours_are_both_paid(monkeypatch):
    lines = priced(monkeypatch, core=True, neighbour_bytes=1e6, layout="cp2")
    without = priced(monkeypatch, core=True, neighbour_bytes=0.0, layout="cp2")
    assert len(lines) == len(without) + 2
    assert not any("neighbour" in name for name in without)
    assert all(lines[name].seconds == without[name].seconds for name in without)


def test_a_sequence_in_one_piece_sends_nothing(monkeypatch):
    assert priced(monkeypatch, core=False, neighbour_bytes=1e6, layout="tp2") == {}
