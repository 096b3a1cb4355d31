"""What a plan hands out: equal rows merged, the simplest of those as fast, money, commands and job files that reprice."""

import json
import re
import shlex

import numpy as np
import pytest

import costmodel as cm
from costmodel.base.errors import CostModelError
from costmodel.cli import main
from costmodel.describe.hardware.hardware import load_cluster
from costmodel.describe.jobs.job import make_job
from costmodel.estimates.pipeline_run import (
    PIPELINE_TOLERANCE,
    billed_pipeline_s,
    port_floor_lines,
    simulated_pipeline_s,
)
from costmodel.planning.preference import (
    FINALISTS,
    TIE_SHARE,
    by_simplicity,
    listed,
    num_things,
    simplest_tie,
    unlike,
    unsimulated,
    with_simulation,
)
from costmodel.whole_run.run import run_of

ONE = {
    "gpus": 8.0,
    "tp": 1.0,
    "sequence_parallel": 0.0,
    "cp": 1.0,
    "ep": 1.0,
    "etp": 1.0,
    "micro_batch": 1.0,
    "pp": 1.0,
    "vp": 1.0,
    "schedule": 0.0,
    "recompute": 0.0,
    "zero_stage": 1.0,
    "shard_group": 0.0,
    "memory_bytes": 1.0,
    "job": 0.0,
}
JOB = {"model": "llama3-70b", "gpus": 512, "global_batch": 1024, "seq_len": 8192}


def rows(*changes):
    """Columns of layouts that differ from a plain one in what is named, and have a score."""
    held = [{**ONE, **change} for change in changes]
    return {name: np.asarray([row[name] for row in held]) for name in held[0]}


@pytest.fixture(scope="module")
def jobs():
    plain = make_job(model="llama3-8b", gpus=8, global_batch=8, seq_len=1024)
    narrow = make_job(
        model="llama3-8b", gpus=8, global_batch=8, seq_len=1024, precision="fp8", axis_order="tp cp pp dp"
    )
    return (plain, plain.switched({"cuda_graphs": True}), narrow)


def test_things_are_counted(jobs):
    """Three axes with virtual stages; a group; recomputation beside ZeRO-3; a switch; an order of axes and 8 bits."""
    table = rows(
        {"score": 1.0},
        {"score": 1.0, "tp": 2.0, "pp": 2.0, "vp": 3.0, "schedule": 4.0},
        {"score": 1.0, "shard_group": 4.0},
        {"score": 1.0, "recompute": 2.0, "zero_stage": 3.0},
        {"score": 1.0, "job": 1.0},
        {"score": 1.0, "zero_stage": 0.0},
        {"score": 1.0, "job": 2.0},
    )
    assert num_things(table, jobs).tolist() == [0, 3, 1, 2, 1, 0, 2]


def test_equal_rows_are_one(jobs):
    """The same score and memory: ZeRO-0 and 1 of one rank; 1e-6 apart they are two."""
    table = rows(
        {"score": 2.0, "zero_stage": 1.0},
        {"score": 2.0 * (1 + 1e-13), "zero_stage": 0.0},
        {"score": 2.0 * (1 + 1e-6), "zero_stage": 0.0},
        {"score": 2.0, "memory_bytes": 1.1},
        {"score": 2.0, "job": 1.0},
    )
    # Of rows 0 and 1 the unsharded one; row 4 is another job.
    assert sorted(unlike(table, by_simplicity(table, jobs)).tolist()) == [1, 2, 3, 4]


def test_the_simplest_of_a_tie(jobs):
    """0.4 % is a tie, 0.6 % is not; fewer GPUs first, then fewer things, then fewer ranks a replica."""
    every = np.arange(4)
    table = rows(
        {"score": 1.0, "pp": 2.0, "vp": 4.0, "schedule": 4.0},
        {"score": 1.004, "pp": 2.0, "schedule": 3.0},
        {"score": 1.006},
        {"score": 1.003, "tp": 4.0, "sequence_parallel": 1.0},
    )
    assert TIE_SHARE == 0.005
    assert simplest_tie(table["score"], by_simplicity(table, jobs), every) == 1
    fewer = rows({"score": 1.0, "gpus": 16.0}, {"score": 1.004, "tp": 8.0, "cp": 2.0})
    assert simplest_tie(fewer["score"], by_simplicity(fewer, jobs), np.arange(2)) == 1


def test_rows_that_are_listed(jobs):
    """Pick, fastest of all, then by score; of a family the simplest, which stands for those within a tie of its fastest."""
    piped = {"pp": 2.0, "schedule": 4.0}
    table = rows(
        {"score": 1.0, **piped, "vp": 8.0},
        {"score": 1.001, **piped, "vp": 4.0},
        {"score": 1.004, **piped, "vp": 2.0},
        {"score": 1.2, **piped, "vp": 5.0},
        {"score": 1.1, "tp": 2.0},
        {"score": 1.101, "tp": 2.0, "shard_group": 2.0},
        {"score": 1.102, "tp": 2.0, "micro_batch": 2.0},
    )
    shown, alike = listed(table, jobs, range(len(jobs)))
    assert shown.tolist() == [2, 0, 4, 6, 3]
    assert alike.tolist() == [2, 1, 2, 1, 1]


def test_the_pick_is_beaten_in_time_and_memory_by_none(jobs):
    """Of 1.000, 1.002 and 1.004 s the simplest is the slowest; with more memory than the fastest it is no pick."""
    piped = {"pp": 2.0, "schedule": 4.0}
    times = ({"score": 1.0, **piped, "vp": 8.0}, {"score": 1.002, "tp": 2.0}, {"score": 1.004})
    for memory, pick in (
        ((2.0, 2.0, 2.0), 2),
        ((2.0, 1.0, 2.0), 1),
        ((1.0, 2.0, 2.0), 0),
        ((3.0, 2.0, 1.0), 2),
        ((2.0, 1.0, 0.5), 2),
    ):
        table = rows(*({**row, "memory_bytes": size} for row, size in zip(times, memory, strict=True)))
        shown, _ = listed(table, jobs, range(len(jobs)))
        assert shown[0] == pick
        # The pick, then by score; the fastest is always there.
        assert shown[1:].tolist() == sorted({0, 1, 2} - {pick})


def test_the_layout_of_the_job_is_a_row_of_its_own(jobs):
    """Nobody stands for it, and it stands for nobody but itself; where it does not fit it is neither picked nor listed."""
    piped = {"pp": 2.0, "schedule": 4.0}
    table = rows(*({"score": 1.0 + 0.001 * n, **piped, "vp": 5.0 - n} for n in range(4)))
    assert [part.tolist() for part in listed(table, jobs, (0, 1))] == [[3, 0], [3, 1]]
    shown, alike = listed(table, jobs, (0, 1), own=1)
    assert (shown.tolist(), alike.tolist()) == ([3, 0, 1], [2, 1, 1])
    # Tenfold as fast, but it does not fit.
    table["score"][3] = 0.1
    assert listed(table, jobs, (0, 1), own=3, runs=False)[0].tolist() == [2, 0]


def test_a_switch_without_a_gain_is_no_row_of_its_own(jobs):
    """Job 1 is job 0 with a switch turned: 0.1 % faster it is no pick, 1 % faster it is, and so is another job."""
    slight = rows({"score": 1.0, "job": 1.0}, {"score": 1.001})
    assert [part.tolist() for part in listed(slight, jobs, (0, 0))] == [[1, 0], [1, 1]]
    clear = rows({"score": 1.0, "job": 1.0}, {"score": 1.01})
    assert [part.tolist() for part in listed(clear, jobs, (0, 0))] == [[0, 1], [1, 1]]
    # Two jobs that were both asked for are both shown, and the fastest is the second row.
    assert [part.tolist() for part in listed(slight, jobs, (0, 1))] == [[1, 0], [1, 1]]


def test_the_pick_is_the_simplest_and_what_is_faster_is_said():
    found = cm.plan(**JOB)
    frame = found.to_frame()
    assert frame["rank"].tolist() == list(range(1, len(frame) + 1))
    # The pick is first in every table, as it is on the screen; then by the simulated step.
    table, took = found.candidates.top, found.candidates.top["score"]
    assert took[0] <= took[found.pick] <= took[0] * (1 + TIE_SHARE)
    assert (np.diff(took) >= 0.0).all()
    assert took == pytest.approx(table["step_time_s"], rel=1e-9)
    best, fastest = float(found.best.step_time_s), float(found.fastest.step_time_s)
    assert frame.step_time_s[0] == pytest.approx(best, rel=1e-9)
    record = found.to_dict(count=5)
    sizes = [(row["step_time_s"], row["memory_bytes_per_gpu"]) for row in record["top"]]
    assert len(set(sizes)) == 5
    assert record["top"][0]["step_time_s"] == pytest.approx(best, rel=1e-9)
    assert record["fastest_step_time_s"] == pytest.approx(fastest, rel=1e-9)
    if found.pick:
        assert f"{took[found.pick] / took[0] - 1:.2%} slower than" in found.advice()[1]


@pytest.mark.parametrize(
    "job",
    [
        {"model": "llama3-8b", "gpus": 64, "global_batch": 1024, "seq_len": 8192},
        {"model": "qwen3-8b", "gpus": 64, "global_batch": 512, "seq_len": 4096, "fix": {"pp": 8}},
        {"model": "qwen3-30b-a3b", "gpus": 16, "global_batch": 512, "seq_len": 4096},
    ],
)
def test_the_first_rows_have_the_steps_of_their_estimates_which_their_simulations_take(job):
    found = cm.plan(**job, cluster="dgx-h100-ndr")
    table, ests = found.columns(FINALISTS), found.top(FINALISTS)
    took = [float(est.step_time_s) for est in ests]
    assert table["step_time_s"] == pytest.approx(took, rel=1e-9)
    assert took[2:] == sorted(took[2:])
    for est in ests:
        if est.job.layout.pp > 1:
            simulated_s = simulated_pipeline_s(est.priced)
            assert billed_pipeline_s(est.bill) == pytest.approx(simulated_s, rel=1.001 * PIPELINE_TOLERANCE)


def test_a_port_that_is_busy_for_longer_than_the_simulated_pipeline_bounds_the_step():
    """100GbE and 2,048 tokens: the messages of 32 micro-batches in five chunks are the step."""
    job = {
        "model": "qwen3-8b",
        "cluster": "cloud-h100-100gbe",
        "gpus": 32,
        "global_batch": 256,
        "seq_len": 2048,
    }
    est = cm.estimate(**job, layout="pp4 vp5", recompute="none")
    assert "overhead.port.spine" in {line.name for line in est.bill.time_lines}
    floor_s = max(float(line.terms["port_busy_s"]) for line in port_floor_lines(est.bill))
    on_top = ("overhead.slowest_gpu", "overhead.unexplained")
    on_top_s = sum(float(line.exposed_seconds) for line in est.bill.time_lines if line.name in on_top)
    assert simulated_pipeline_s(est.priced) < floor_s
    assert float(est.step_time_s) == pytest.approx(floor_s + on_top_s, rel=1e-9)


def test_what_has_the_pipeline_of_a_simulated_row_is_taken_to_be_as_much_longer():
    """Rows of 1.00, 1.01 … s by their bills, the first simulated: the second alone has its layout."""
    est = cm.estimate(model="llama3-8b", cluster="dgx-h100-ndr", gpus=8, global_batch=8, seq_len=8192, pp=2)
    steps = [1.0 + row / 100 for row in range(12)]
    table = rows(
        *(
            {"score": step, "pp": 2.0, "tp": 1.0 + (row > 1), "memory_bytes": 20.0 - row}
            for row, step in enumerate(steps)
        )
    )
    table["step_time_s"] = table["score"].copy()
    longer = with_simulation(unsimulated(table), [0], lambda rows, row: est)
    ratio = float(est.step_time_s)
    assert longer["score"][:2] == pytest.approx(
        [ratio, 1.01 * ratio], rel=1e-9
    )  # the second has its pipeline
    assert longer["score"][2:].tolist() == table["score"][2:].tolist()
    assert longer["longer"].tolist() == pytest.approx([ratio, ratio, *[1.0] * 10], rel=1e-9)
    assert longer["step_time_s"] == pytest.approx(longer["score"], rel=1e-12)
    both = with_simulation(unsimulated(table), [0, 1], lambda rows, row: est)
    assert both["step_time_s"][:2] == pytest.approx([ratio, ratio], rel=1e-9)


def test_a_plan_and_an_estimate_say_the_same_of_a_layout(capsys):
    """Field by field, of every row that a plan prints a command for."""
    for flags in [
        "-m llama3-8b -c dgx-h100-ndr -n 64 --global-batch 256 --seq-len 8192 --tokens 1e12",
        "-m llama3-8b -c workstation-rtx-4090 -n 4 --global-batch 32 --seq-len 2048 --lora-rank 16 --framework axolotl",
        "-m qwen3-30b-a3b -c hgx-b200-ndr -n 8 --global-batch 512 --seq-len 4096 -r megatron-bridge-2606 --precision mxfp8",
        "-m llama3-70b -c tpu-v5p -n 64 --global-batch 64 --seq-len 4096",
    ]:
        assert main(["plan", *shlex.split(flags), "--format", "json"]) == 0
        plan = json.loads(capsys.readouterr().out)
        for row in [*plan["top"][:4], *plan["try"]["layouts"]]:
            assert main([*shlex.split(row["command"])[1:], "--format", "json"]) == 0
            est = json.loads(capsys.readouterr().out)
            flat = {**est["inputs"], **est}
            both = {name for name in row if name in flat and name not in ("cluster", "slice", "axis_order")}
            assert {"mfu", "step_time_s", "dollars", "fits_probability", "memory_bytes_per_gpu"} <= both
            for name in sorted(both):
                if isinstance(row[name], float):
                    assert row[name] == pytest.approx(flat[name], rel=1e-9), name
                else:
                    assert row[name] == flat[name], name


def test_days_and_dollars():
    """512 GPUs, 15T tokens, 1024 x 8192 a step, at 3.50 an hour or whatever the profile says."""
    found = cm.plan(**JOB, tokens=15e12, pp=4, tp=4, micro_batch=1, recompute="none")
    price = load_cluster("dgx-h100-ndr").price_usd_per_gpu_hour
    row = found.to_dict(count=1)["top"][0]
    seconds = 15e12 / (1024 * 8192) * row["step_time_s"]
    assert row["days"] == pytest.approx(seconds / 86400, rel=1e-12)
    assert row["gpu_hours"] == pytest.approx(512 * seconds / 3600, rel=1e-12)
    assert row["dollars"] == pytest.approx(512 * seconds / 3600 * price, rel=1e-12)
    first = found.to_frame().iloc[0]
    seconds = 15e12 / (1024 * 8192) * first.step_time_s
    assert first.days == pytest.approx(seconds / 86400, rel=1e-12)
    assert first.gpu_hours == pytest.approx(512 * seconds / 3600, rel=1e-12)
    assert first.dollars == pytest.approx(512 * seconds / 3600 * price, rel=1e-12)
    without = cm.plan(**JOB, pp=4, tp=4, micro_batch=1, recompute="none").to_dict(count=1)["top"][0]
    assert (without["days"], without["gpu_hours"], without["dollars"]) == (None, None, None)


def test_the_job_file_is_read_by_estimate_and_run(tmp_path, capsys):
    file = tmp_path / "best.yaml"
    flags = ["-m", "llama3-8b", "-n", "16", "--global-batch", "64", "--seq-len", "4096", "--tokens", "1e12"]
    assert main(["plan", *flags, "--emit", "job", "--out", str(file), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    found = cm.plan(model="llama3-8b", gpus=16, global_batch=64, seq_len=4096, tokens=1e12)
    assert main(["estimate", str(file), "--format", "json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["step_time_s"] == pytest.approx(float(found.best.step_time_s), rel=1e-12)
    assert record["inputs"]["tokens"] == 1e12
    assert main(["run", str(file), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == 1e12


def test_a_job_file_names_the_files_it_was_planned_from(tmp_path, monkeypatch, capsys):
    model = cm.load_model("llama3-8b").model_copy(update={"num_layers": 30, "name": "thirty"})
    lines = [f"{key}: {json.dumps(value)}" for key, value in model.model_dump(exclude_defaults=True).items()]
    (tmp_path / "thirty.yaml").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    flags = ["-m", "thirty.yaml", "-n", "8", "--global-batch", "64", "--seq-len", "4096"]
    (tmp_path / "sub").mkdir()
    assert main(["plan", *flags, "--emit", "job", "--out", "sub/best.yaml", "--quiet"]) == 0
    assert main(["estimate", "sub/best.yaml", "--format", "json"]) == 0
    with pytest.raises(CostModelError, match="a job file cannot say this job"):
        cm.plan(model=model, gpus=8, global_batch=64, seq_len=4096).job_file()


def test_only_what_the_user_decided_is_relaxed():
    found = cm.plan(**JOB, pp=4, fix={"recompute": "none"})
    gains = dict(found.gains())
    assert list(gains) == ["pp = 4", "recompute = none", "risk 10%", "memory of the GPU"]
    assert min(gains.values()) >= 0.0
    # What runs everything again in the backward pass for nothing gains by not doing so.
    gains = dict(cm.plan(**JOB, pp=4, fix={"recompute": "full"}).gains())
    assert 0.05 < gains["recompute = full"] < 0.35


SMALL_PLAN = {"model": "llama3-8b", "gpus": 8, "global_batch": 64, "seq_len": 8192, "tp": 1, "pp": 1}


def test_a_plan_says_whether_a_run_is_done_in_time():
    """The days of the run of the pick, with failures; half of the runs drawn take less than their median."""
    found = cm.plan(**SMALL_PLAN, tokens=1e11)
    run = run_of(found.best, 1e11)
    [late] = found.in_time(0.5 * run.days)
    assert late.startswith(f"Deadline {0.5 * run.days:.1f} days on 8 of dgx-h100-ndr: expected")
    assert late.endswith("< 1% likely to meet it.")
    [early] = found.in_time(2.0 * run.days)
    assert f"expected {run.days:,.1f} days, > 99% likely" in early
    with pytest.raises(cm.CostModelError, match="days: needs tokens"):
        cm.plan(**SMALL_PLAN).in_time(30)


def test_a_job_file_says_the_cluster_and_the_recipe_that_were_assumed():
    found = cm.plan(**SMALL_PLAN)
    text = found.job_file()
    assert "cluster: dgx-h100-ndr\n" in text
    assert "recipe: megatron-core\n" in text
    assert "-c " not in found.commands(1)[0]


def test_a_switch_is_no_knob_to_fix_and_any_framework_says_that_switches_are_not_searched():
    with pytest.raises(cm.CostModelError, match="give it as -s ep_overlap=True"):
        cm.plan(**SMALL_PLAN, fix={"ep_overlap": True})
    assert "can find a faster one" in cm.plan(**SMALL_PLAN, framework="any").fixed
    assert "can find a faster one" not in cm.plan(**SMALL_PLAN).fixed


QWEN = {
    "model": "qwen3-235b-a22b",
    "cluster": "dgx-h100-ndr",
    "gpus": 256,
    "global_batch": 1024,
    "seq_len": 4096,
}
"""Experts on nodes: dispatchers, graphs and overlaps help only together, and other layouts than the best without them."""


def test_naming_values_that_are_searched_finds_nothing_faster():
    whole = cm.plan(**QWEN, framework="megatron")
    for named in ({"tp": 2}, {"tp": 1, "cp": 4}):
        part = cm.plan(**QWEN, framework="megatron", **named)
        assert float(part.fastest.step_time_s) >= 0.9995 * float(whole.fastest.step_time_s), named
    assert not re.search("[0-9]% faster", whole.why_not("tp1 cp4 pp8 vp6 ep16"))


def test_what_only_starts_with_other_switches_is_explained_with_them():
    """Experts over 16 GPUs of nodes of eight need a dispatcher that knows nodes, which the recipe does not have."""
    found = cm.plan(**QWEN, framework="megatron", fix={"tp": 4, "pp": 8, "vp": 4, "ep": 16})
    assert all(0 <= gain < 1 for _, gain in found.gains())
    assert 0 < found.memory_gain < 1
    assert any(line.startswith("With memory enough for any layout") for line in found.advice())
