"""Machines of several vendors side by side: time, money, dates, and the words that each vendor uses."""

import json
from datetime import date

import pytest

import costmodel as cm
from costmodel.cli import main
from costmodel.planning.machines import machine_columns
from costmodel.reporting.plans import plan_summary

JOB = {"model": "llama3-8b", "gpus": 64, "global_batch": 128, "seq_len": 8192}


@pytest.fixture(scope="module")
def found():
    return cm.plan(
        **JOB,
        cluster=["dgx-h100-ndr", "tpu-v6e", "a800-roce"],
        tokens=1e12,
        price={"tpu-v6e": 2.0},
        fix={"tp": 1},
    )


def rows_of(grid):
    return {cells[0]: list(cells[1:]) for cells in grid.rows}


def test_every_cluster_of_a_plan_has_its_best_with_time_and_money(found):
    one = {machine.job.cluster.name: machine for machine in found.machines}
    assert set(one) == {"dgx-h100-ndr", "tpu-v6e", "a800-roce"}
    times = [float(machine.est.step_time_s) for machine in found.machines]
    assert times == sorted(times)
    assert found.machines[0].est is found.best
    for machine in one.values():
        alone = cm.plan(**JOB, cluster=machine.job.cluster, tokens=1e12, fix={"tp": 1})
        assert float(machine.est.step_time_s) == pytest.approx(float(alone.best.step_time_s))
        assert machine.run.days == pytest.approx(cm.run(**_asked(machine)).days)
    assert machine_columns(found.machines[:1])["cluster"] == [found.machines[0].job.cluster.name]
    tpu = one["tpu-v6e"]
    # 2 USD an hour on 64 chips for a trillion tokens.
    hours = 1e12 / float(tpu.est.tokens_per_s_per_gpu) / 3600
    assert tpu.usd_per_trillion_tokens == pytest.approx(2.0 * hours)
    assert one["a800-roce"].usd_per_trillion_tokens is None


def _asked(machine):
    from costmodel.describe.jobs.short_form import short_form

    return {
        **short_form(machine.est.job),
        "cluster": machine.est.job.cluster,
        "recipe": machine.est.job.recipe,
    }


def test_the_table_and_the_record_have_them_side_by_side(found):
    grid = found.grids(start="2026-12-01")[0]
    assert grid.title == "The best on each"
    assert {column.title for column in grid.columns[1:]} == {
        "64 GPUs of dgx-h100-ndr",
        "64 chips of tpu-v6e",
        "64 GPUs of a800-roce",
    }
    rows, at = rows_of(grid), [column.title for column in grid.columns[1:]].index("64 chips of tpu-v6e")
    assert rows["price of an hour"][at] == "$2.00 (given)"
    assert rows["recipe"][at] == "maxtext-tpu, bf16"
    # The price of an hour at which a trillion tokens cost as much as on the first machine.
    one, first = found.machines[at], found.machines[0]
    if at and first.usd_per_trillion_tokens is not None:
        equal = 2.0 * first.usd_per_trillion_tokens / one.usd_per_trillion_tokens
        assert rows["break-even price"][at] == f"${equal:,.2f}"
    assert rows["break-even price"][0] == ""
    p10, p50, p90 = (date.fromisoformat(day) for day in rows["done by, p10 p50 p90"][at].split(", "))
    assert date(2026, 12, 1) < p10 <= p50 <= p90
    record = {row["cluster"]: row for row in found.to_dict(count=1)["machines"]}
    tpu = record["tpu-v6e"]
    assert tpu["dollars_p10"] < tpu["dollars"] < tpu["dollars_p90"]
    assert tpu["days_p10"] < tpu["days_p90"]
    assert tpu["energy_kwh"] > 0
    assert (record["a800-roce"]["dollars"], record["a800-roce"]["price_usd_per_gpu_hour"]) == (None, None)


def test_a_trillion_tokens_at_the_prices_of_lists_are_so_many_hours_of_all_gpus(found):
    rows = found.grids()[0].rows
    below = rows[[row[0] for row in rows].index("a trillion tokens") + 1]
    assert below[0] == "  at the lowest / highest list price"
    for cell, one in zip(below[1:], found.machines, strict=True):
        prices = one.job.cluster.price_range_usd_per_gpu_hour or ()
        hours = 64 * float(one.est.step_time_s) * 1e12 / (128 * 8192) / 3600
        assert cell == " / ".join(f"${hours * price:,.0f}" for price in prices)
    assert any(below[1:])


def test_a_summary_names_the_price_that_its_rows_have(found):
    cheapest = min((one for one in found.machines if one.run.dollars), key=lambda one: one.run.dollars)
    (table,) = plan_summary(found).grids
    assert cheapest.run.dollars > 1.001 * cheapest.usd_per_trillion_tokens
    assert (
        f"cheapest: {cheapest.job.cluster.name} (64, bf16), ${cheapest.run.dollars:,.0f} for 1.00 T tokens"
        in table.title
    )
    assert f"${cheapest.run.dollars:,.0f}" in {cells[-1] for cells in table.rows}


def test_a_cluster_flag_may_be_repeated(capsys):
    words = "plan -m llama3-8b -c dgx-h100-ndr -c tpu-v6e -n 64 --global-batch 128 --seq-len 8k --fix tp=1"
    assert main([*words.split(), "--top", "1", "--format", "json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert {row["cluster"] for row in record["machines"]} == {"dgx-h100-ndr", "tpu-v6e"}
    assert main([*words.split(), "--start", "2026-12-01"]) == 2
    assert capsys.readouterr().err == "Error: start: needs --tokens, for a run that ends\n"
    assert main([*words.split(), "--tokens", "1T", "--start", "soon"]) == 2
    assert "start: expected a date such as 2026-12-01, got 'soon'" in capsys.readouterr().err


def test_a_budget_beside_tokens_is_a_limit_with_its_margin_and_probability():
    job = {**JOB, "layout": "tp2", "tokens": 1e12, "price": 2.0}
    plain = cm.run(**job)
    assert plain.within() == {}
    limit = float(plain.spread(50)["dollars"][0])
    run = cm.run(**job, budget=limit, days=1e4)
    kept = run.within()
    # Of the same runs drawn half cost less than their median.
    assert kept["dollars"].probability == pytest.approx(0.5, abs=1e-3)
    assert kept["dollars"].margin == pytest.approx(limit - plain.dollars)
    assert kept["days"].probability == 1.0
    assert run.dollars == plain.dollars
    assert cm.run(**job, budget=0.5 * plain.dollars).within()["dollars"].probability == 0.0
    assert run.to_dict()["within"]["dollars"]["limit"] == limit
    said = dict(run.grids()[0].rows)
    assert said["budget"].endswith("kept in 50% of the runs drawn")
    assert "left; kept in 100%" in said["time allowed"]
    with pytest.raises(cm.CostModelError, match="budget: cluster a800-roce has no price"):
        cm.run(**{**job, "price": None}, cluster="a800-roce", budget=1e6)


def test_a_sweep_over_vendors_has_days_energy_and_dollars():
    done = cm.sweep(
        model="llama3-8b",
        cluster=["dgx-h100-ndr", "tpu-v6e", "a800-roce", "nowhere"],
        gpus=64,
        global_batch=128,
        seq_len=8192,
        tokens=1e12,
        tp=2,
        price={"tpu-v6e": 2.0, "dgx-h100-ndr": 1.0},
    )
    gpu, tpu, bare, wrong = done.rows
    assert (gpu["recipe"], tpu["recipe"], wrong["recipe"]) == ("megatron-core", "maxtext-tpu", None)
    assert tpu["dollars"] == pytest.approx(2.0 * tpu["gpu_hours"])
    assert gpu["dollars"] == pytest.approx(gpu["gpu_hours"])
    assert tpu["gpu_hours"] == pytest.approx(64 * 24 * tpu["days"])
    assert tpu["gpu_hours"] == pytest.approx(1e12 / tpu["tokens_per_s_per_gpu"] / 3600)
    assert 0 < tpu["energy_kwh"] < tpu["gpu_hours"]
    assert bare["dollars"] is None
    assert bare["days"] > 0
    assert wrong["status"] == "wrong input"
    (grid,) = done.grids()
    assert [column.title for column in grid.columns[-3:]] == ["Days", "kWh", "Dollars"]
    assert grid.rows[2][-1] == "no price"
    assert all(len(row) == len(grid.columns) for row in grid.rows)
    plain = cm.sweep(model="llama3-8b", gpus=8, global_batch=8, seq_len=2048, tp=2)
    assert plain.rows[0]["days"] is None
    assert plain.grids()[0].columns[-1].title == "Memory"
