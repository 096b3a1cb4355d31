"""What tables and pictures show is what the answer's record has: each number in its unit, with its sign, in its row."""

import re
from math import exp

import numpy as np
import pytest

import costmodel as cm
from costmodel.reporting.charts import page_record

STEP = {"model": "llama3-8b", "cluster": "dgx-h100-ndr", "gpus": 64, "global_batch": 256, "seq_len": 8192}
RL = {"model": "llama3-8b", "gpus": 16, "layout": "pp2", "recompute": "full", "generation_layout": "tp1"}
RL |= {"prompts": 64, "samples_per_prompt": 32, "prompt_len": 130, "response_len": 1000}
RL |= {"max_response_len": 4000, "optimizer_steps": 4, "price": 2.0}
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "%": 0.01, "MiB": 2**20, "GiB": 2**30}
UNITS |= {"days": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def numbers(text):
    """Numbers of a text with their signs, each times its unit, and by how much rounding may move it."""
    found = []
    for sign, whole, unit in re.findall(r"([-+]?)\$?(\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?)\s?([a-zA-Z%]*)", text):
        digits = whole.replace(",", "")
        last = 0.5 * 10.0 ** -len(digits.partition("e")[0].partition(".")[2])
        exponent = float(f"1e{digits.partition('e')[2] or 0}")
        scale = UNITS.get(unit, 1.0)
        found.append((float(sign + digits) * scale, 1.01 * last * exponent * scale))
    return found


def shows(text, *values):
    """Hold the first numbers of a text to values."""
    found = numbers(text)
    assert len(found) >= len(values), text
    for (number, rounding), value in zip(found, values, strict=False):
        assert abs(number - value) <= max(rounding, 6e-3 * abs(value)), (text, value)


def rows_of(grid):
    return {str(cells[0]).strip(): [str(cell) for cell in cells[1:]] for cells in grid.rows}


@pytest.fixture(scope="module")
def runs():
    whole = {"tokens": 1e12, "samples": 200}
    return {
        "long": cm.run(**STEP, layout="tp2", **whole, budget=1e5, days=50, price=2.0, spare_nodes=1),
        "short": cm.run(**{**STEP, "gpus": 8}, layout="tp2", tokens=1e9, samples=100),
        "calm": cm.run(**STEP, layout="tp2", **whole, reliability="none"),
    }


def test_a_runs_headline_and_what_its_hours_go_into(runs):
    for name, run in runs.items():
        head, hours, spread, *causes = run.grids()
        said = {row: cells[0] for row, cells in rows_of(head).items()}
        share = run.effective_training_time_ratio
        shows(said["calendar time"], run.days if run.days >= 1 else run.days * 86400)
        shows(said["effective training time"], share, float(run.est.mfu), float(run.est.mfu) * share)
        shows(said["GPU-hours"], run.gpu_hours, *([8 * 24 * run.days, 1] if name == "long" else []))
        shows(said["cost"], run.dollars, run.price_usd_per_gpu_hour)
        shows(said["energy"], run.energy_kwh / 1e3)
        # Steps and losses are the whole, each the sum of its parts, largest first.
        assert [row[0] for i, row in enumerate(hours.rows) if i in hours.strong] == [
            "in steps that count",
            "lost to failures and checkpoints",
            "the whole run",
        ]
        lost = {key: h for key, h in run.lost_gpu_hours().items() if not key.startswith(("stragg", "jitter"))}
        table = rows_of(hours)
        shows(table["the whole run"][0], run.gpu_hours)
        shows(table["in steps that count"][0], run.gpu_hours - sum(lost.values()))
        shows(table["in steps that count"][1], share)
        shows(table["lost to failures and checkpoints"][0], sum(lost.values()))
        for key, each in lost.items():
            shows(table[key.replace("_", " ")][0], each)
            shows(table[key.replace("_", " ")][1], each / run.gpu_hours)
        step = {key: float(value) for key, value in run.est.exposed_by("category").items()}
        busy = step["math"] / float(run.est.step_time_s) * run.steps * run.est.step_time_s * run.gpus / 3600
        shows(table["GEMM+attention"][0], float(busy))
        # Days become hours below one, and kWh are MWh.
        drawn = run.spread()
        short = run.days < 1
        shows(
            " ".join(rows_of(spread)["hours" if short else "days"]), *(drawn["days"] * (24 if short else 1))
        )
        shows(" ".join(rows_of(spread)["energy, MWh"]), *(drawn["energy_kwh"] / 1e3))
        shows(" ".join(rows_of(spread)["dollars"]), *drawn["dollars"])
        assert bool(causes) == (name != "calm")
        for row, cost in zip(causes[0].rows if causes else [], run.by_cause(), strict=False):
            assert row[0] == cost.cause
            shows(row[1], cost.interruptions)
            shows(row[3], cost.gpu_hours)
            shows(row[4], cost.gpu_hours / run.gpu_hours)
    assert rows_of(runs["calm"].grids()[0])["interruptions"][0].startswith("none")


def test_limits_of_a_run_say_what_is_left_and_how_surely(runs):
    run = runs["long"]
    said = {row: cells[0] for row, cells in rows_of(run.grids()[0]).items()}
    left = 1e5 - run.dollars
    shows(said["budget"], 1e5, left, left / 1e5, 1.0)
    assert "left; kept in 100%" in said["budget"]
    shows(said["time allowed"], 50, 50 - run.days, 1 - run.days / 50)
    short = cm.run(**STEP, layout="tp2", tokens=1e12, samples=50, price=2.0, budget=0.8 * run.dollars)
    over = rows_of(short.grids()[0])["budget"][0]
    shows(over, 0.8 * run.dollars, short.dollars - 0.8 * run.dollars)
    chance = short.within()["dollars"].probability
    assert chance < 0.2
    assert f"too little; kept in {chance:.0%}" in over
    brief = run.brief().grids[0]
    text = rows_of(brief)["lost"][0]
    largest = sorted(run.lost_gpu_hours().items(), key=lambda item: -item[1])[:3]
    assert [part.rpartition(" ")[0].replace(" ", "_") for part in text.split(", ")] == [n for n, _ in largest]
    shows(text, *(hours / run.gpu_hours for _, hours in largest))


def test_compared_jobs_have_their_differences_with_their_signs_and_their_money():
    jobs = [cm.estimate(**STEP, tokens=1e12, layout=layout) for layout in ("tp2", "tp4 pp2")]
    both = cm.compare(*jobs)
    head, *tables = both.grids()
    table = rows_of(head)
    for name, figure in (("step time", "step_time_s"), ("memory", "memory_bytes_per_gpu"), ("MFU", "mfu")):
        for cell, est in zip(table[name], jobs, strict=True):
            shows(cell, float(getattr(est, figure)))
    ends = [row for row in head.rows if row[0] == "  p10 / p50 / p90"]
    for at, spent in enumerate(both.spent, start=1):
        places = (spent.low, spent.middle, spent.high)
        shows(ends[0][at], *(spent.days * end for end in places))
        shows(ends[1][at], *(spent.dollars * end for end in places))
    for grid, figure in zip(tables, ("step_time_s", "memory_bytes_per_gpu"), strict=True):
        before, after = (float(getattr(est, figure)) for est in jobs)
        shows(" ".join(grid.rows[-1][1:4]), before, after, after - before)
        for name, *cells, _ in grid.rows:
            values = [value for value, _ in numbers(" ".join(cells))]
            (first, by), (second, more), (moved, last) = numbers(" ".join(cells))
            assert abs(second - first - moved) <= by + more + last, (name, values)
    faster = cm.compare(*jobs[::-1]).remarks()[0]
    gain = float(jobs[1].step_time_s - jobs[0].step_time_s)
    shows(faster.partition("B is ")[2], gain, gain / float(jobs[1].step_time_s))
    assert " faster a step than A" in faster
    # Of the parts that moved, the largest first, each with its sign.
    parts = numbers(faster.partition("than A: ")[2].partition(". ")[0])
    sizes = [abs(value) for value, _ in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert all(value < 0 for value, _ in parts)
    rows = both.brief().grids[0].rows
    assert rows[0][3] == ""
    shows(rows[1][3], float(jobs[1].step_time_s / jobs[0].step_time_s) - 1)


def test_tables_of_a_plan_show_its_columns():
    few = {
        "micro_batch": 1,
        "pp": 1,
        "cp": 1,
        "recompute": "none",
        "zero_stage": [1, 3],
        "shard_group": [0, 8],
    }
    job = {**STEP, "gpus": [32, 64], "framework": "any", "choose": False, "objective": "gpu-hours"}
    plan = cm.plan(**job, **few, tokens=1e12)
    grids = {grid.title.partition(" by ")[0].partition(":")[0]: grid for grid in plan.grids(count=20)}
    best, table = grids["Best"], plan.columns(20)
    titles = [column.title for column in best.columns]
    ests = plan.top(20)
    for at, row in enumerate(best.rows):
        cells = dict(zip(titles, row, strict=True))
        shards = f" / {table['shard_group'][at]}" if table["shard_group"][at] else ""
        assert cells["ZeRO"] == f"{table['zero_stage'][at]}{shards}"
        assert ("no-sp" in cells["Layout"]) == (table["tp"][at] > 1 and not table["sequence_parallel"][at])
        shows(cells["Step"], table["step_time_s"][at])
        shows(cells["Memory"], table["memory_bytes_per_gpu"][at])
        shows(cells["Days"], table["days"][at])
        shows(cells["Dollars"], table["dollars"][at])
        sent = float(ests[at].exposed_by("category")["communication"])
        shows(cells["Comm"], sent / table["step_time_s"][at])
    assert any(" / 8" in row[titles.index("ZeRO")] for row in best.rows)
    out = grids["18,432 combinations considered"]
    counts = {row[0]: int(row[1].replace(",", "")) for row in out.rows}
    assert sum(count for name, count in counts.items() if name not in ("priced", "fit")) == (
        plan.num_considered - plan.num_priced + counts["priced"] - counts["fit"]
    )
    machine = rows_of(grids["The best on each"])
    usd = [one.usd_per_trillion_tokens for one in plan.machines]
    shows(" ".join(machine["a trillion tokens"]), *usd)
    price = plan.machines[1].job.cluster.price_usd_per_gpu_hour
    assert machine["break-even price"][0] == ""
    shows(machine["break-even price"][1], price * usd[0] / usd[1])


def test_memory_that_is_left_or_too_much_and_lines_too_small_to_show():
    for layout, fits in (("tp2", True), ("tp1 pp1", False)):
        est = cm.estimate(**{**STEP, "gpus": 8}, layout=layout, switches={"offload_activations": 0.01})
        grids = {grid.title.partition(" of stage")[0]: grid for grid in est.grids()}
        memory, host = grids["Memory bill"], grids["Memory of a host"]
        need, have = float(est.memory_bytes_per_gpu), est.memory_capacity_bytes
        assert fits == bool(est.fits_gpu)
        label, size, share = memory.rows[-1]
        assert label == ("left" if fits else "too much")
        shows(f"{size} {share}", abs(have - need), abs(have - need) / have)
        lines = [numbers(row[1])[0] for row in memory.rows[:-3]]
        assert abs(sum(value for value, _ in lines) - need) <= 6e-3 * need
        count = int(memory.rows[-4][0].split(" ")[0])
        assert count == sum(0 < float(line.bytes.max()) < 0.005 * need for line in est.bill.memory_lines)
        shows(host.rows[-1][1], est.host_memory_capacity_bytes - float(est.host_memory_bytes))


def test_the_answer_says_what_a_device_lacks_and_only_so_much_where_it_is_unlikely_to_fit():
    est = cm.estimate(**STEP, layout="tp2")
    need = float(est.memory_bytes_per_gpu)
    for share, said in ((0.9, None), (1.005, "only "), (2.0, "")):
        held = cm.estimate(**STEP, layout="tp2", hw={"memory": share * need})
        title = held.brief().grids[0].title
        if said is None:
            assert title.startswith("DOES NOT FIT: ")
            shows(re.search(r"([\d.]+ \w+) too much", title)[1], need - held.memory_capacity_bytes)
        else:
            assert re.search(r"; (only )?[^;]* likely to fit$", title)[1] == (said or None)


def test_a_replica_has_the_answers_that_are_generated_beyond_those_that_train():
    """64 x 32 answers and half as many again on 16 replicas of one GPU."""
    (text,) = rows_of(cm.estimate_rl(**RL, rollout_factor=1.5).grids()[0])["generating half"]
    assert "answers a replica, which has 192;" in text


def test_steps_of_reinforcement_learning_and_of_decoding():
    apart = {**RL, "generation_gpus": 8, "lag": 2}
    for job in (RL, apart):
        found = cm.estimate_rl(**job)
        head, phases = (rows_of(grid) for grid in found.grids())
        # 64 prompts of 32 answers.
        usd = found.step_time_s * 16 * 2.0 / 3600
        shows(head["step time"][0], found.step_time_s, usd, usd / 2048 * 1e3)
        shows(head["range"][0], *found.range_s)
        for phase in found.phases:
            _, took, share, mostly = phases[phase.name]
            shows(f"{took} {share}", phase.seconds, phase.seconds / found.step_time_s)
            parts = [value for value, _ in numbers(mostly) if value <= 1]
            assert parts == sorted(parts, reverse=True)
            assert sum(parts) <= 1.01
        assert "trainer waits" in head if job is apart else "trainer waits" not in head
    # Phases of each half follow one another; the half that trains waits first.
    bars = [mark for panel in found.plot.chart("phases").panels for mark in panel.marks]
    ends = {0: 0.0, 1: found.waiting_s}
    for bar in bars:
        (pool,), (start,), (length,) = bar.at, bar.starts, bar.lengths
        assert start == pytest.approx(ends[pool], abs=1e-9)
        ends[pool] = start + length
    took = sorted(phase.seconds for phase in found.phases if phase.seconds)
    assert sorted(bar.lengths[0] for bar in bars) == pytest.approx(took)
    campaign = rows_of(cm.run_rl(1000, **apart).grids()[0])
    days = 1000 * found.step_time_s / 86400
    shows(campaign["days"][0], days)
    shows(campaign["GPU-hours"][0], days * 24 * 16)
    shows(campaign["range"][0], *(1000 * end / 86400 for end in found.range_s))
    job = {"layout": "tp4", "batch": 64, "price_usd_per_gpu_hour": 3.6}
    found = cm.generate("llama3-8b", "8xH100", **job)
    head, lines = found.grids()
    text = rows_of(head)
    assert "the best of" not in str(head.rows)
    open_ = cm.generate("llama3-8b", "8xH100", batch=64)
    assert f", the best of {open_.considered:,}" in str(open_.grids()[0].rows)
    side = exp(1.2815515655446004 * found.served.engine.spread)
    each = 3.6 * 8 / 3600 * found.itl_s / 64 * 1e6
    shows(text["latency"][0], found.itl_s, found.first_token_s)
    shows(text["range"][0], found.itl_s / side, found.itl_s * side, each / side, each * side)
    shows(text["price"][0], each)
    shown = [float(line.exposed_seconds) for line in found.bill.time_lines]
    for row, seconds in zip(lines.rows, sorted(shown, reverse=True), strict=False):
        shows(f"{row[2]} {row[3]}", seconds, seconds / found.itl_s)


def test_every_picture_lies_within_its_axes():
    """A mark outside of its axes would be cut off without a word."""
    est = cm.estimate(**STEP, layout="tp2 pp2")
    answers = {
        "estimate": est,
        "compare": cm.compare(est, cm.estimate(**STEP, layout="tp4")),
        "collective": cm.collective("all-reduce", ["1KB", "1MB", "4GB"], ranks=64),
        "plan": cm.plan(**{**STEP, "gpus": [32, 64]}, pp=1, micro_batch=1, choose=False),
        "sensitivity": cm.sensitivity(est),
        "rl": cm.estimate_rl(**RL),
    }
    drawn = 0
    for name, answer in answers.items():
        for figure in answer.plot.names():
            chart = answer.plot.chart(figure)
            for panel in page_record(chart)["panels"]:
                (left, right), (bottom, top) = (sorted(panel[axis]["ends"]) for axis in "xy")
                assert panel["marks"], (name, figure)
                for mark in panel["marks"]:
                    if mark["kind"] == "dots":
                        assert all(left <= x <= right for x in mark["x"]), (name, figure)
                        beyond = "are slower" in panel["y"]["title"]  # which says how many
                        assert beyond or all(bottom <= y <= top for y in mark["y"]), (name, figure)
                    if mark["kind"] == "bars" and not mark.get("texts_inside"):
                        starts = mark.get("starts", [0] * len(mark["at"]))
                        ends = [*np.add(starts, mark["lengths"]), *starts]
                        assert left <= min(ends) <= max(ends) <= right * 1.001, (name, figure)
                    if mark["kind"] == "cells":
                        assert [bottom, top] == [0, len(mark["numbers"])]
            drawn += 1
    assert drawn >= 11
