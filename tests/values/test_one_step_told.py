"""One step told in many ways: every cell of a record, a table, a tree and an explanation against its line of the bill."""

import math

import numpy as np
import pytest

import costmodel as cm
from costmodel.estimates.explain import headline
from costmodel.physics.network.fabric import NCCL_ALGORITHMS

JOB = {
    "model": "qwen3-30b-a3b",
    "cluster": "dgx-h100-ndr",
    "gpus": 64,
    "layout": "tp2 pp4 ep8",
    "global_batch": 128,
    "seq_len": 4096,
    "zero_stage": 1,
    "tokens": 3e11,
    "price_usd_per_gpu_hour": 2.5,
}


@pytest.fixture(scope="module")
def est():
    return cm.estimate(**JOB)


@pytest.fixture(scope="module")
def time_lines(est):
    return {line.name: line for line in est.bill.time_lines}


def tier_of(est, line):
    return est.bill.tier_names[int(line.tier)] if int(line.tier) >= 0 else None


def test_an_explained_line_says_what_its_line_of_the_bill_says(est, time_lines):
    step = float(est.step_time_s)
    told = [line for line in est.explain() if line.bill == "time"]
    assert [line.name for line in told] == list(time_lines)
    for line in told:
        of_bill = time_lines[line.name]
        assert (line.axis, line.category, line.phase) == (of_bill.axis, of_bill.category, of_bill.phase)
        assert (line.tier or None) == tier_of(est, of_bill)
        assert (line.formula, line.source) == (of_bill.formula, of_bill.source)
        assert line.algorithm == (NCCL_ALGORITHMS[int(of_bill.algorithm)] if of_bill.algorithm else "")
        assert line.times == float(of_bill.count)
        assert line.each == float(of_bill.exposed_each_s)
        assert line.total == pytest.approx(line.times * line.each)
        assert line.share == pytest.approx(line.total / step)
        assert {term.name: term.value for term in line.terms}.items() <= of_bill.terms.items()
        assert line.steps[-1].name == ""
        assert line.steps[-1].unit == "s"
        assert headline(line).endswith(f"{100 * line.total / step:.2f}% of the step")
    assert {(line.algorithm, line.protocol) for line in told} == {
        ("ring", "Simple"),
        ("direct", "Simple"),
        ("", ""),
    }


def test_an_explained_line_of_memory_is_that_of_the_worst_stage(est):
    held = est.bill.memory_per_stage_bytes()
    worst = int(np.argmax(held))
    assert held[worst] == float(est.memory_bytes_per_gpu) > np.min(held)
    lines = {line.name: line for line in est.bill.memory_lines}
    told = [line for line in est.explain() if line.bill == "memory"]
    assert [line.name for line in told] == list(lines)
    for line in told:
        of_bill = lines[line.name]
        assert (line.axis, line.category, line.phase, line.tier) == (of_bill.axis, of_bill.category, "", "")
        assert line.total == line.each == float(np.broadcast_to(of_bill.bytes, held.shape)[worst])
        assert line.times == 1
        assert line.share == pytest.approx(line.total / held[worst])
        assert line.steps[-1].unit == "B"
        assert headline(line).endswith(f"{100 * line.total / held[worst]:.2f}% of the worst stage")


def test_numbers_are_put_in_with_the_steps_before_them(est):
    """What a step computed stands as a number in the next; a formula of one name is that name's number."""
    for line in est.explain():
        known = {term.name: term.value for term in line.terms}
        for step in line.steps:
            for name in known:
                assert not [word for word in step.with_numbers.replace("(", " ").split() if word == name]
            if step.name:
                known[step.name] = step.value


def test_the_record_has_each_line_as_the_bill_has_it(est, time_lines):
    record = est.to_dict()
    assert [line["name"] for line in record["lines"]] == list(time_lines)
    for line in record["lines"]:
        of_bill = time_lines[line["name"]]
        assert line == {
            "name": of_bill.name,
            "axis": of_bill.axis,
            "category": of_bill.category,
            "phase": of_bill.phase,
            "count": float(of_bill.count),
            "bytes": float(of_bill.bytes),
            "seconds": float(of_bill.seconds),
            "exposed_seconds": float(of_bill.exposed_seconds),
            "tier": tier_of(est, of_bill),
            "formula": of_bill.formula,
            "terms": {key: float(value) for key, value in of_bill.terms.items()},
            "source": of_bill.source,
        }
    worst = est.worst_stage
    assert worst == int(np.argmax(est.bill.memory_per_stage_bytes()))
    for line, of_bill in zip(record["memory_lines"], est.bill.memory_lines, strict=True):
        assert (line["name"], line["axis"], line["category"]) == (
            of_bill.name,
            of_bill.axis,
            of_bill.category,
        )
        assert line["bytes"] == np.broadcast_to(of_bill.bytes, (4,))[worst]
        assert line["terms"] == {
            key: np.broadcast_to(value, (4,))[worst] for key, value in of_bill.terms.items()
        }
        assert (line["formula"], line["source"]) == (of_bill.formula, of_bill.source)
    assert [line["name"] for line in record["host_lines"]] == [line.name for line in est.bill.host_lines]


def test_heads_of_the_record_follow_from_the_step_time(est):
    """The days, GPU-hours and dollars of 3e11 tokens at 128 x 4,096 a step, 64 GPUs at $2.50."""
    record = est.to_dict()
    step = record["step_time_s"]
    days = 3e11 / (128 * 4096) * step / 86400
    assert record["days"] == pytest.approx(days)
    assert record["gpu_hours"] == pytest.approx(days * 24 * 64)
    assert record["dollars"] == pytest.approx(days * 24 * 64 * 2.5)
    assert record["tokens_per_s_per_gpu"] == pytest.approx(128 * 4096 / step / 64)
    assert record["peak_flops_per_s"] == 989.4e12
    assert record["model_tflops_per_gpu"] * 1e12 == pytest.approx(record["mfu"] * record["peak_flops_per_s"])
    assert record["mfu_causal"] < record["mfu"] <= record["hfu"]
    assert record["fits"] == (record["memory_bytes_per_gpu"] <= record["memory_capacity_bytes"])
    assert (record["fits_probability"] > 0.5) == record["fits"]
    printed = record["mfu_printed"]
    assert (printed["recipe"], printed["counts"], printed["value"]) == (
        "megatron-core",
        "full",
        record["mfu"],
    )
    nobody = cm.estimate(**{key: value for key, value in JOB.items() if key not in ("tokens",)}).to_dict()
    assert (nobody["days"], nobody["gpu_hours"], nobody["dollars"]) == (None, None, None)
    unpriced = {key: value for key, value in JOB.items() if key != "price_usd_per_gpu_hour"}
    of_profile = cm.estimate(**unpriced)
    price = of_profile.job.cluster.price_usd_per_gpu_hour
    assert price != 2.5
    assert of_profile.to_dict()["dollars"] == pytest.approx(price * days * 24 * 64)
    assert of_profile.to_dict()["inputs"]["price_usd_per_gpu_hour"] is None


def test_what_runs_again_counts_in_hfu_alone():
    """Llama 2 7B wholly recomputed: another forward pass of its 32 layers, attention's products among it, not its head."""
    asked = {
        "model": "llama2-7b",
        "cluster": "dgx-h100-ndr",
        "gpus": 16,
        "layout": "tp2 pp2",
        "global_batch": 64,
    }
    est = cm.estimate(**asked, seq_len=2048, recompute="full")
    layers, attention = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008), 32 * 2048 * 4096
    a_token = 6 * (layers + 4096 * 32000) + 12 * attention
    assert float(est.model_flops()) == pytest.approx(64 * 2048 * a_token)
    assert float(est.model_flops(causal=True)) == pytest.approx(64 * 2048 * (a_token - 6 * attention))
    assert float(est.hfu / est.mfu) == pytest.approx(1 + (2 * layers + 4 * attention) / a_token)
    kept = cm.estimate(**asked, seq_len=2048, recompute="none")
    assert float(kept.hfu) == float(kept.mfu)


def test_the_long_table_is_the_record_line_by_line(est):
    record, rows = est.to_dict(), est.to_frame("long").to_dict("records")
    lines = [*record["lines"], *record["memory_lines"], *record["host_lines"]]
    assert [row["name"] for row in rows] == [line["name"] for line in lines]
    for row, line in zip(rows, lines, strict=True):
        for key in line.keys() - {"terms", "tier"}:
            assert row[key] == line[key]
        assert row["tier"] == (line.get("tier") or "none")
        if row["bill"] != "time":
            assert row["phase"] == "none"
            assert all(math.isnan(row[key]) for key in ("count", "seconds", "exposed_seconds"))


def test_the_wide_table_sums_the_bill(est):
    (row,) = est.to_frame("wide").to_dict("records")
    lines = est.bill.time_lines
    for axis in ("compute", "tp", "ep", "pp", "dp", "cp"):
        assert row[f"{axis}_exposed_s"] == pytest.approx(
            sum(float(line.exposed_seconds) for line in lines if line.axis == axis), abs=1e-15
        )
    for category in ("math", "hbm", "communication", "bubble", "overhead"):
        assert row[f"category_{category}_s"] == pytest.approx(
            sum(float(line.exposed_seconds) for line in lines if line.category == category), abs=1e-15
        )
    for part in ("parameters", "gradients", "optimizer", "activation", "buffer", "reserve"):
        held = [line.bytes for line in est.bill.memory_lines if line.part == part]
        assert row[f"memory_{part}_bytes"] == pytest.approx(
            sum(float(np.broadcast_to(one, (4,))[est.worst_stage]) for one in held), abs=1.0
        )
    assert (row["tp"], row["pp"], row["ep"], row["micro_batches"]) == (2, 4, 8, 128 // 8)
    assert (row["accelerator"], row["cluster"], row["model"]) == (
        "h100-sxm-80gb",
        "dgx-h100-ndr",
        "qwen3-30b-a3b",
    )
    record = est.to_dict()
    for key in ("step_time_s", "mfu", "mfu_causal", "hfu", "days", "gpu_hours", "host_memory_bytes", "fits"):
        assert row[key] == record[key]
