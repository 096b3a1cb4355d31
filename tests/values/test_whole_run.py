"""A whole run and a budget in round numbers, each figure by hand: checkpoints, losses, power, money, tokens."""

from dataclasses import replace

import numpy as np
import pytest
from round_jobs import LAYER_PARAMS, QUIET, SMALL, TABLE_PARAMS, cluster_file, model_file, near, price

import costmodel as cm
from costmodel.base.errors import CostModelError
from costmodel.describe.hardware.cluster import Storage
from costmodel.describe.models.model_files import load_model
from costmodel.describe.reliability import Reliability
from costmodel.estimates.estimate import estimate_job
from costmodel.physics.run.goodput import mean_power_w
from costmodel.physics.run.scaling_laws import kaplan_optimal
from costmodel.whole_run.budget import budget, serving
from costmodel.whole_run.checkpoints import describe_checkpoint
from costmodel.whole_run.run import run_of, step_power_w
from costmodel.whole_run.solve import gpus_needed

DAY = 86400.0
N = 4 * LAYER_PARAMS + 2 * TABLE_PARAMS + 1024
STORE = 1e10
# Eight GPUs are a node of the rates: one failure in ten days, two nodes of four in repair for a day each time.
HEALTH = {
    "failures_per_node_day": 0.1,
    "hardware_fraction": 0.5,
    "planned_stops_per_day": 10.0,
    "detection_s": 100.0,
    "restart_s": 200.0,
    "repair_s": 4 * DAY,
    "checkpointing": "blocking",
    "checkpoint_interval_s": 3600.0,
    "spare_nodes": 1,
}
TWO_NODES = {"gpus": 8, "global_batch": 8}


def run(tokens=1e12, *, options=None, job=None, **health):
    """Price a run of the round machine with that health, or other fields of it."""
    est = price(**{**TWO_NODES, **(job or {})})
    given = Reliability(**{**HEALTH, **health})
    return run_of(est, tokens, **{"reliability": given, "storage_bytes_per_s": STORE, **(options or {})})


def test_failures_by_nodes_of_eight_or_by_gpus():
    assert Reliability(failures_per_node_day=0.1).failures_per_second(16) == near(0.2 / DAY)
    assert Reliability(failures_per_gpu_day=0.1).failures_per_second(16) == near(1.6 / DAY)


def test_a_run_of_failures_stops_and_spares():
    """16 N bytes less the moments' and with main weights: 14 N written at 10 GB/s, read at the same."""
    found = run()
    write = 14 * N / STORE
    assert found.checkpoint.size_bytes == near(14 * N)
    assert (found.checkpoint.pause_s, found.checkpoint.load_s) == (near(write), near(write))
    assert found.failures_per_s == near(0.1 / DAY)
    assert found.downtime_s == near(300 + write)
    assert found.planned_fraction == near(10 * (write + 200 + write) / DAY)
    # A fifth of a node is in repair on average: more than one with a probability of 1 - 1.2 exp(-0.2).
    assert found.shortage_fraction == near(1 - 1.2 * np.exp(-0.2))
    calendar = found.calendar_s
    left = (1 - found.planned_fraction) * (1 - found.shortage_fraction)
    assert found.interruptions == near(0.1 / DAY * calendar * left)
    assert found.planned_stops == near(10 * calendar / DAY)
    assert found.gpu_hours == near(8 * calendar / 3600)
    assert calendar == near(found.steps * found.step_time_s * float(found.losses.total.value) / left)
    assert sum(found.lost_gpu_hours().values()) == near(
        found.gpu_hours * (1 - found.effective_training_time_ratio)
    )
    assert found.spare_gpu_hours == near(4 * calendar / 3600)
    assert found.dollars == near(2 * 12 * calendar / 3600)


def test_lines_of_what_is_lost():
    """Stops take a share of the calendar: p / (1 - p) of the rest; so do missing nodes, of what is left."""
    found = run()
    lines = {
        line.name.removeprefix("resilience."): float(line.exposed_each_s) / found.step_time_s
        for line in found.bill.time_lines
        if line.axis == "resilience"
    }
    total, planned, short = (float(found.losses.total.value), found.planned_fraction, found.shortage_fraction)
    down = float(found.losses.downtime.value)
    assert lines["checkpoint_pause"] == near(found.checkpoint.pause_s / 3600)
    assert lines["detection"] == near(down * 100 / found.downtime_s)
    assert lines["restart"] == near(down * 200 / found.downtime_s)
    assert lines["checkpoint_load"] == near(down * found.checkpoint.load_s / found.downtime_s)
    assert lines["planned_stops"] == near(total * planned / (1 - planned))
    assert lines["waiting_for_nodes"] == near(total / (1 - planned) * short / (1 - short))


def test_spares_that_are_not_given():
    """As many as make the job wait for repairs 1 % of the time: of a fifth of a node on average two, of a tenth one."""
    assert run(spare_nodes=None).spare_nodes == 2
    assert run(spare_nodes=None, hardware_fraction=0.25).spare_nodes == 1
    # Who asks for them pays for them; a price changes nothing but the price.
    assert not run(spare_nodes=None, options={"price_usd_per_gpu_hour": 2.0}).pays_spares
    assert run(spare_nodes=2, options={"price_usd_per_gpu_hour": 2.0}).pays_spares


def test_energy():
    """Busy is what computes or streams memory, optimizer and all; 500 W, hosts on top, 1.2 times for the building."""
    found = run(options={"pue": 1.2})
    est = found.est
    by_category = {category: float(s) for category, s in est.exposed_by("category").items()}
    waiting = sum(by_category.get(category, 0.0) for category in ("communication", "bubble", "overhead"))
    assert by_category["state"] > 0
    busy = 1 - waiting / found.step_time_s
    power = float(mean_power_w(500.0, busy_fraction=busy, running_fraction=1.0))
    assert step_power_w(est) == near(power)
    assert found.energy_at_tdp_kwh == near(found.gpu_hours * 0.5 * 1.2)
    share = found.effective_training_time_ratio
    power = float(mean_power_w(500.0, busy_fraction=busy, running_fraction=share))
    assert found.energy_kwh == near(found.gpu_hours * power * 1.2 / 1e3)


def test_what_is_left_of_a_budget():
    found = replace(run(options={"samples": 100}), budget_usd=1e9, limit_days=1.0)
    kept = found.within()
    assert kept["dollars"].margin == near(1e9 - found.dollars)
    assert kept["dollars"].probability == 1.0
    assert kept["days"].margin == near(1.0 - found.days)
    assert kept["days"].probability == 0.0


def test_a_checkpoint_lies_between_two_steps():
    """No interval is shorter than a step; without failures it is an hour."""
    step_s = run().step_time_s
    assert run(checkpoint_interval_s=step_s / 2, checkpointing="async").interval_s == near(step_s)
    assert run(failures_per_node_day=0.0, checkpoint_interval_s=None).interval_s == near(3600)
    assert run().interval_s == near(3600)


def test_intervals_that_cannot_be():
    with pytest.raises(CostModelError, match="longer than the mean time between failures"):
        run(failures_per_node_day=10.0, checkpoint_interval_s=9000.0)
    with pytest.raises(CostModelError, match="writing one takes"):
        run(failures_per_node_day=10.0, options={"storage_bytes_per_s": 14 * N / 9000})


@pytest.mark.parametrize(
    ("layout", "stage", "holders"),
    [("tp2 pp2", 0, 4), ("tp2 pp2", 1, 8), ("tp2 cp2", 0, 2), ("tp2 cp2", 1, 8)],
)
def test_checkpoints_of_each_sort(layout, stage, holders):
    """On 8 GPUs: states of all replicas (of dp and cp), or sharded; 50 GB/s to the host, 10 to the next node.

    Between racks of 4,096 GPUs the links are faster again: a copy does not go there.
    """
    tiers = [
        {"name": name, "link": link, "size": {"value": size, "source": "assumed"}}
        for name, link, size in (
            ("inner", "round-inner", 4),
            ("outer", "round-outer", 4096),
            ("racks", "round-inner", 8192),
        )
    ]
    cluster = cluster_file(cluster={"tiers": tiers})
    est = price(gpus=8, global_batch=8, layout=layout, zero_stage=stage, cluster=cluster)
    size, each = 14 * N, 14 * N / holders
    copy = each / 5e10 + 0.5
    blocking, beside, replica = (
        describe_checkpoint(est, how, STORE) for how in ("blocking", "async", "replica")
    )
    assert (blocking.pause_s, blocking.persist_s, blocking.load_s) == near((size / STORE, 0.0, size / STORE))
    assert (beside.pause_s, beside.persist_s, beside.load_s) == near((copy, size / STORE, size / STORE))
    assert (replica.pause_s, replica.persist_s, replica.load_s) == near(
        (copy, each / 1e10, each / 1e10 + copy)
    )


def test_copies_in_the_memory_of_a_host():
    """A quarter of the states on each of 4 GPUs is one copy of all; a replica is two, which do not fit 20 N bytes."""
    host = {"memory": f"{20 * N} B", "memory_bandwidth": "400 GB/s", "gpus_per_link": 1}
    sourced = {key: {"value": value, "source": "assumed"} for key, value in host.items()}
    est = price(gpus=4, global_batch=4, cluster=cluster_file(cluster={"host": sourced}))
    assert describe_checkpoint(est, "async", STORE).size_bytes == near(14 * N)
    with pytest.raises(
        CostModelError,
        match=r"replica keeps copies in the hosts, but the memory of a host .* has no room for",
    ):
        describe_checkpoint(est, "replica", STORE)


def test_copies_of_gradients_are_not_saved():
    """Eight bytes of main weights and gradients: four of them are weights."""
    est = price(switches={"master_weights_bytes": 8.0})
    assert describe_checkpoint(est, "blocking", STORE).size_bytes == near(14 * N)


def test_adapters_are_saved_and_their_base_is_read_again():
    """Rank 16 beside q alone: 16 x (1,024 + 1,024) in each of 4 layers, 14 bytes each; 2 bytes a weight of the base."""
    est = price(lora_rank=16, lora_targets="q")
    size = 14 * 4 * 16 * 2048
    blocking, beside, replica = (
        describe_checkpoint(est, how, STORE) for how in ("blocking", "async", "replica")
    )
    assert {found.size_bytes for found in (blocking, beside, replica)} == {size}
    assert blocking.pause_s == near(size / STORE)
    assert (blocking.load_s, beside.load_s) == near((size / STORE + 2 * N / STORE,) * 2)
    assert replica.load_s == near(replica.persist_s + replica.pause_s + 2 * N / STORE)


def test_frozen_parts_are_saved_without_states():
    """The token table at 2 bytes, all else at 14; nothing is read beside it."""
    found = describe_checkpoint(price(frozen="embedding"), "blocking", STORE)
    assert found.size_bytes == near(14 * (N - TABLE_PARAMS) + 2 * TABLE_PARAMS)
    assert found.load_s == near(found.size_bytes / STORE)


@pytest.mark.parametrize(("gpus", "write", "read"), [(4, 3e9, 4e9), (16, 10e9, 11e9)])
def test_storage_by_nodes_and_in_all(gpus, write, read):
    """One node writes 3 GB/s and reads 4; of four the store takes 10 and gives 11."""
    store = Storage(
        name="store",
        write_bandwidth_per_node_bytes_per_s=3e9,
        read_bandwidth_per_node_bytes_per_s=4e9,
        write_bandwidth_shared_bytes_per_s=10e9,
        read_bandwidth_shared_bytes_per_s=11e9,
    )
    job = price(gpus=gpus, global_batch=gpus).job
    est = estimate_job(replace(job, cluster=replace(job.cluster, storage=store)))
    found = describe_checkpoint(est, "blocking")
    assert (found.write_s, found.load_s) == near((14 * N / write, 14 * N / read))


def asked(**more):
    """Keywords of the round job for `cm.run` and its solvers."""
    model = model_file(SMALL)
    job = {"model": model, "cluster": cluster_file(), "seq_len": 1024, "recipe": "megatron-core"}
    return {**job, "switches": QUIET, "global_batch": 16, **more}


CALM = {"reliability": "none", "storage_bytes_per_s": STORE}


def test_the_tighter_of_two_limits():
    """Money for half of what the days reach, and the other way round."""
    job = asked(gpus=8, reliability="none", storage_bandwidth=STORE)
    one = cm.run(**job, tokens=1e12)
    found = cm.run(**job, dollars=0.5 * one.dollars, days=one.days)
    assert found.tokens == near(0.5e12)
    found = cm.run(**job, dollars=one.dollars, days=0.25 * one.days)
    assert found.tokens == near(0.25e12)


def test_the_fewest_gpus():
    """Replicas of two context ranks, as many as divide 16 sequences in micro-batches of two: 1, 2, 4 or 8."""
    job = asked(cp=2, micro_batch=2)
    days = {gpus: run_of(cm.estimate(**job, gpus=gpus), 1e12, **CALM).days for gpus in (2, 4, 8, 16)}
    for gpus in (2, 4, 8, 16):
        assert gpus_needed(job, 1e12, 1.001 * days[gpus], **CALM).gpus == gpus
    with pytest.raises(CostModelError, match=f"the fastest takes {days[16]:,.1f}"):
        gpus_needed(job, 1e12, 0.99 * days[16], **CALM)


def test_a_budget_by_hand():
    """$1,000 at $2 are 500 hours: 100 TFLOP/s, half of it, of nine tenths of the time; 10 GPUs for 50 hours."""
    found = budget(cluster=cluster_file(), dollars=1000.0, mfu=0.5, effective_time=0.9, gpus=10)
    flops = 500 * 3600 * 1e14 * 0.45
    assert (found.gpu_hours, found.days, found.training_flops) == near((500.0, 50 / 24, flops))
    by_days = budget(cluster=cluster_file(), dollars=1000.0, mfu=0.5, effective_time=0.9, days=50 / 24)
    assert by_days.gpus == near(10.0)
    assert budget(cluster=cluster_file(), gpus=10, days=50 / 24).dollars == near(1000.0)
    rules = {choice.rule: choice for choice in found.choices}
    plain = rules["20 tokens a parameter"]
    assert (plain.num_params, plain.tokens) == near(((flops / 120) ** 0.5, 20 * (flops / 120) ** 0.5))
    n, d = kaplan_optimal(flops)
    assert (rules["kaplan, compute-optimal"].num_params, 6 * float(n * d)) == near((float(n), flops))


def test_how_surely_a_budget_is_kept():
    """A tenth of the samples lie below p10, a tenth above p90; only products are as uncertain as products."""
    found = budget(cluster=cluster_file(), dollars=1000.0, mfu=0.4, gpus=10, samples=1001)
    over = np.sort(found.step_over_expected)
    (row,) = [row for row in found.to_dict()["choices"] if row["rule"] == "20 tokens a parameter"]
    assert (row["train_usd_p10"], row["train_usd_p90"]) == near((1000 * over[100], 1000 * over[900]))
    assert (row["days_p10"], row["days_p90"]) == near((found.days * over[100], found.days * over[900]))
    assert np.median(over) == pytest.approx(1.0, abs=0.1)


def test_serving_fits_the_memory():
    """The largest batch that a GPU holds, not the largest that is fast enough."""
    model, cluster = load_model("llama3-8b"), cm.load_cluster("h100")
    found = serving(model, cluster, price_usd_per_gpu_hour=2.0, context=32768, step_limit_s=10.0)
    room = 0.9 * 80e9 * found.gpus * 1.08 - 2 * 8.03e9
    assert found.batch <= room / (32768 * 131072)
    assert found.usd_per_token == near(2.0 / 3600 * found.gpus * found.step_s / found.batch)
    with pytest.raises(CostModelError, match="serving: "):
        serving(model, cluster, price_usd_per_gpu_hour=2.0, context=32768, step_limit_s=1e-6)


# --- why it is interrupted, what goes on without a node, and what it emits ---


def test_causes_share_what_interruptions_take():
    """Two causes 3 : 1, the rarer known after 500 s in place of 100: 200 s in the mean."""
    causes = {"card": {"count": 3}, "hang": {"count": 1, "detection_s": 500.0}}
    found = run(causes=causes)
    assert found.reliability.mean_detection_s == near(200)
    assert found.downtime_s == near(200 + 200 + 14 * N / STORE)
    card, hang = sorted(found.by_cause(), key=lambda row: row.cause)
    (table,) = (grid for grid in found.grids() if grid.note.startswith("work done again"))
    # Rates are off by a factor of e to their spread of a half.
    assert any("failure rate ×/÷1.6, " in grid.note for grid in found.grids())
    shares = {f"{one.gpu_hours / found.gpu_hours:.2%}" for one in (card, hang)}
    assert {row[[column.title for column in table.columns].index("Share")] for row in table.rows} == shares
    assert card.interruptions == near(3 * hang.interruptions)
    assert (card.detection_s, hang.detection_s) == (100, 500)
    lost = found.lost_gpu_hours()
    alike = lost["rework"] + lost["restart"] + lost["checkpoint_load"]
    assert card.gpu_hours == near(0.75 * (alike + lost["detection"] * 100 / 200))
    assert hang.gpu_hours == near(0.25 * (alike + lost["detection"] * 500 / 200))
    assert card.gpu_hours + hang.gpu_hours == near(alike + lost["detection"])
    assert run().by_cause() == []


def test_a_job_that_shrinks_misses_the_replicas_of_broken_nodes():
    """A fifth of a node is in repair: of eight replicas a fortieth; of two nodes a tenth where peers do its part."""
    waits = run(on_failure="wait", spare_nodes=None)
    assert (waits.spare_nodes, waits.missing_fraction) == (0, 0)
    assert waits.shortage_fraction == near(1 - np.exp(-0.2))
    shrinks = run(on_failure="shrink", spare_nodes=None)
    assert (shrinks.spare_nodes, shrinks.shortage_fraction) == (0, 0)
    assert shrinks.missing_fraction == near(0.2 / 8)
    rerouted = run(on_failure="reroute", spare_nodes=None)
    assert rerouted.missing_fraction == near(0.2 / 2)
    assert rerouted.downtime_s == near(300)
    for found in (shrinks, rerouted):
        without = (
            found.steps * found.step_time_s * float(found.losses.total.value) / (1 - found.planned_fraction)
        )
        assert found.calendar_s == near(without / (1 - found.missing_fraction))
        assert found.spread()["days"][1] == pytest.approx(found.days, rel=0.15)


def test_rerouted_work_is_lost_by_the_step_and_pays_the_checkpoints_of_before():
    found, stopped = run(on_failure="reroute", spare_nodes=None), run()
    rate, step = found.failures_per_s, found.step_time_s
    lost = {
        name: hours / found.gpus * 3600 / found.steps / step for name, hours in found.lost_gpu_hours().items()
    }
    # Half a step is lost a failure; a pause an hour.
    assert lost["rework"] == pytest.approx(rate * step / 2, rel=0.01)
    assert lost["checkpoint_pause"] == near(stopped.checkpoint.pause_s / 3600)
    assert "checkpoint_load" not in lost


def test_ways_that_need_replicas_refuse_one():
    with pytest.raises(CostModelError, match=r"^on_failure: shrink takes other replicas, and dp is 1"):
        run(job={"tp": 8, "gpus": 8}, on_failure="shrink", spare_nodes=None)


def test_emissions_are_the_energy_times_the_grid():
    found = run(options={"carbon_intensity": 0.5})
    assert found.tonnes_co2 == near(found.energy_kwh * 0.5 / 1e3)
    assert found.tonnes_co2_at_tdp == near(found.energy_at_tdp_kwh * 0.5 / 1e3)
    assert run().carbon_intensity == 0.385
