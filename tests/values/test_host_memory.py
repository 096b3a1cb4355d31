"""What the GPUs of a host share: its memory, the links to it, its channels."""

import pytest
from round_jobs import (
    LAYER_PARAMS,
    MIB,
    QUIET,
    SMALL,
    TABLE_PARAMS,
    cluster_file,
    counts,
    each_us,
    exposed_us,
    line,
    model_file,
    near,
    price,
)

import costmodel as cm
from costmodel.base.errors import CostModelError, NoLayoutError
from costmodel.describe.hardware.hardware import compose_cluster, load_cluster
from costmodel.estimates.savings import memory_savings
from costmodel.whole_run.checkpoints import describe_checkpoint
from costmodel.whole_run.run import run_of

N = 4 * LAYER_PARAMS + 2 * TABLE_PARAMS + 1024
LAYER = 38 * MIB + 32_768
HEAD = 2 * MIB + 10 * 32_768_000
AWAY = (4 * LAYER + HEAD) / 2  # two of four layers stay
OFFLOAD = {"offload_activations": 1.0}
ON_HOST = {"offload_optimizer": True}
HALF = {"gpus": 2, "global_batch": 2, "layout": "pp2"}


def host(memory="1 TB", bandwidth="400 GB/s", gpus_per_link=1, link="50 GB/s"):
    """Write the round machine with another host, and return its cluster's path."""
    block = {"memory": memory, "memory_bandwidth": bandwidth, "gpus_per_link": gpus_per_link}
    sourced = {key: {"value": value, "source": "assumed"} for key, value in block.items()}
    return cluster_file(cluster={"host": sourced}, gpu={"host_link": link})


def held(est):
    return {one.name: float(one.bytes.max()) for one in est.bill.host_lines}


@pytest.mark.parametrize(("gpus", "on_a_host"), [(1, 1), (2, 2), (4, 4), (8, 4)])
def test_activations_of_all_gpus_of_a_host(gpus, on_a_host):
    est = price(gpus=gpus, global_batch=gpus, switches=OFFLOAD)
    assert held(est) == near({"host.activations": on_a_host * AWAY})
    assert float(est.host_memory_bytes) == near(on_a_host * AWAY)


@pytest.mark.parametrize(("stage", "shards"), [(0, 1), (1, 8), (3, 8)])
def test_states_of_an_optimizer_on_the_host(stage, shards):
    """Sixteen bytes a parameter, four of them gradients in fp32, of four GPUs."""
    est = price(gpus=8, global_batch=8, zero_stage=stage, switches=ON_HOST)
    each = 4 * N / shards
    assert held(est) == near(
        {
            "host.optimizer.main_weights": 4 * each,
            "host.optimizer.moments": 8 * each,
            "host.optimizer.gradients": 4 * each,
        }
    )
    drive = price(gpus=8, global_batch=8, zero_stage=stage, switches={**ON_HOST, "nvme_bytes_per_s": 1e10})
    assert held(drive) == near({"host.optimizer.gradients": 4 * each})


@pytest.mark.parametrize(("stage", "away"), [(1, False), (2, False), (3, True)])
def test_parameters_on_the_host(stage, away):
    """A quarter of them each, 2 bytes, of four GPUs; fetched before the gathers of both passes of two micro-batches."""
    job = {"gpus": 4, "global_batch": 8, "zero_stage": stage}
    est = price(switches={"offload_parameters": True}, **job)
    share = 2 * N / 4
    assert held(est) == near({"host.parameters": 4 * share} if away else {})
    on_gpu = {
        line.name for line in est.bill.memory_lines if "parameters" in line.name and line.bytes.max() > 0
    }
    assert on_gpu == (set() if away else {"state.dense.parameters"})
    sent = {name: share / 5e4 for name in ("offload.parameters.forward", "offload.parameters.backward")}
    assert each_us(est, "offload.") == near(sent if away else {})
    assert counts(est, "offload.") == (dict.fromkeys(sent, 2.0) if away else {})
    assert any("offload_parameters is ignored" in said for said in est.warnings) is not away
    if away:
        kept = price(switches={"offload_parameters": True, "fsdp_reshard_after_forward": False}, **job)
        assert counts(kept, "offload.") == {"offload.parameters.forward": 2.0}
        piped = {**job, "gpus": 8, "layout": "pp2", "switches": {"offload_parameters": True}}
        piped["switches"] |= {"fsdp_pp_keeps_gathered": True}
        # Gathered once for both micro-batches and both passes.
        assert counts(price(**piped), "offload.") == {"offload.parameters.forward": 1.0}
        slow = price(cluster=host(link="1 GB/s"), switches={"offload_parameters": True}, **job)
        one = line(slow, "offload.parameters.forward")
        assert 1e6 * float(one.exposed_each_s) == near(share / 1e3 - 1e6 * float(one.terms["window_s"]))


def test_nothing_lies_on_the_host_unasked():
    est = price()
    assert est.bill.host_lines == ()
    assert float(est.host_memory_bytes) == 0.0
    assert est.fits_host
    assert est.to_dict()["host_lines"] == []


def test_a_stage_counts_for_all_gpus_of_its_host():
    """Of two stages of two layers the first sends nothing, the second nothing either: two layers stay."""
    est = price({**SMALL, "num_layers": 8}, switches=OFFLOAD, **{**HALF, "global_batch": 8})
    first, last = 4 * LAYER / 2, (4 * LAYER + HEAD) / 2
    assert est.bill.host_lines[0].bytes.tolist() == near([2 * 2 * first, 2 * last])
    assert float(est.host_memory_bytes) == near(max(4 * first, 2 * last))


def test_gpus_share_links_and_channels():
    for machine, gpus, rate in [
        ({}, 1, 50e9),
        ({}, 4, 50e9),
        ({"gpus_per_link": 2}, 1, 50e9),
        ({"gpus_per_link": 2}, 4, 25e9),
        ({"gpus_per_link": 2}, 8, 25e9),
        ({"bandwidth": "80 GB/s"}, 1, 50e9),
        ({"bandwidth": "80 GB/s"}, 2, 40e9),
        ({"bandwidth": "80 GB/s"}, 8, 20e9),
        ({"bandwidth": "80 GB/s", "gpus_per_link": 4}, 4, 12.5e9),
    ]:
        job = {"gpus": gpus, "global_batch": gpus, "cluster": host(**machine)}
        est = price(switches=OFFLOAD, **job)
        assert each_us(est, "offload.")["offload.activations.forward"] == near(1e6 * AWAY / rate)
        adam = price(switches=ON_HOST, **job)
        here = min(gpus, 4)
        step = N / gpus * (here * 2.57e-4 + 2e6 / rate)
        assert each_us(adam, "optimizer.adam") == near({"optimizer.adam": step})


@pytest.mark.parametrize(
    ("stage", "each", "times", "shards"),
    [(0, False, 1, 1), (1, False, 1, 2), (2, True, 4, 2), (2, False, 1, 2), (3, False, 4, 2)],
)
def test_gradients_travel_beside_the_backward_pass(stage, each, times, shards):
    job = {"gpus": 2, "global_batch": 8, "zero_stage": stage}
    est = price(switches={**ON_HOST, "reduce_each_micro_batch": each}, **job)
    name = "offload.gradients.grad_sync"
    assert each_us(est, name) == near({name: 4 * N / shards / 5e4})
    assert counts(est, name) == {name: times}
    slow = price(cluster=host(link="1 GB/s"), switches={**ON_HOST, "reduce_each_micro_batch": each}, **job)
    one = line(slow, name)
    assert exposed_us(slow, name)[name] == near(4 * N / shards / 1e3 - 1e6 * float(one.terms["window_s"]))


def test_both_ways_share_the_step():
    """What is sent and what is fetched go at once, and neither way is busy for longer than the step."""
    slow = host(link="0.1 GB/s")
    switches = {**OFFLOAD, **ON_HOST, "overhead_fraction": 0.0}
    est = price(cluster=slow, global_batch=2, switches=switches)
    sent = 2 * AWAY / 1e8 + 4 * N / 1e8
    assert float(est.step_time_s) >= sent
    one = line(est, "overhead.port.host") if "overhead.port.host" in each_us(est) else None
    known = sum(float(each.exposed_seconds) for each in est.bill.time_lines) - (
        0.0 if one is None else float(one.exposed_seconds)
    )
    assert float(est.step_time_s) == near(max(known, sent))


@pytest.mark.parametrize(("through", "busy"), [(True, True), (False, False)])
def test_messages_by_way_of_the_host(through, busy):
    """Eight ranks reduce over a network of 10 GB/s; their host's link of 1 GB/s carries what they send."""
    outer = {"through_host": {"value": through, "source": "assumed"}}
    machine = cluster_file(outer=outer, gpu={"host_link": "1 GB/s"})
    est = price(gpus=8, global_batch=8, cluster=machine)
    names = each_us(est, "overhead.port.host")
    assert bool(names) is busy
    if busy:
        over = [one for one in est.bill.time_lines if one.category == "communication" and one.tier == 1]
        sent = sum(min(float(one.bytes), 1e10 * float(one.seconds)) for one in over)
        assert float(est.step_time_s) == near(sent / 1e9)


def test_what_is_offloaded_shares_the_link_with_messages():
    """Messages in both directions, and the longer of what goes out and what comes back."""
    outer = {"through_host": {"value": True, "source": "assumed"}}
    machine = cluster_file(outer=outer, gpu={"host_link": "1.5 GB/s"})
    est = price(gpus=8, global_batch=8, cluster=machine, switches={"offload_activations": 0.1})
    over = [one for one in est.bill.time_lines if one.category == "communication" and one.tier == 1]
    sent = sum(min(float(one.bytes), 1e10 * float(one.seconds)) for one in over)
    assert float(line(est, "overhead.port.host").exposed_seconds) > 0
    assert float(est.step_time_s) == near((sent + 0.1 * AWAY) / 1.5e9)
    # Gradients of an eighth of the parameters only go out: that way is longer then.
    both = {"offload_activations": 0.1, "offload_optimizer": True}
    slower = cluster_file(outer=outer, gpu={"host_link": "0.5 GB/s"})
    est = price(gpus=8, global_batch=8, cluster=slower, switches=both)
    assert float(line(est, "overhead.port.host").exposed_seconds) > 0
    assert float(est.step_time_s) == near((sent + 0.1 * AWAY + 4 * N / 8) / 0.5e9)


def test_too_much_for_the_host_does_not_fit():
    room = 2 * AWAY - 1
    est = price(gpus=2, dp=2, global_batch=2, cluster=host(memory=f"{room:.0f} B"), switches=OFFLOAD)
    assert est.fits_gpu
    assert not est.fits_host
    assert not est.fits
    assert any("does not fit the host: its 2 GPUs" in said for said in est.warnings)
    record = est.to_dict()
    assert record["fits"] is False
    assert record["host_memory_capacity_bytes"] == near(room)
    assert [row["name"] for row in record["host_lines"]] == ["host.activations"]
    table = est.to_frame()
    assert table[table.bill == "host"].bytes.tolist() == near([2 * AWAY])
    assert "Memory of a host" in est._repr_html_()
    enough = price(gpus=2, dp=2, global_batch=2, cluster=host(memory=f"{room + 2:.0f} B"), switches=OFFLOAD)
    assert enough.fits


def plan(memory, **asked):
    return cm.plan(
        model=model_file(SMALL),
        cluster=host(memory=memory),
        recipe="megatron-core",
        seq_len=1024,
        gpus=2,
        global_batch=2,
        framework="any",
        switches={**QUIET, **OFFLOAD},
        **asked,
    )


def test_plan_leaves_out_what_no_host_holds():
    """Those that keep all of two replicas' activations are out, others stay."""
    every, few = plan("1 TB"), plan("400 MB")
    assert 0 < len(few.to_frame()) < len(every.to_frame())
    assert all(est.fits for est in few.top(50))
    with pytest.raises(NoLayoutError, match="never fits"):
        plan("1 MB")


def test_savings_that_move_too_much_are_not_offered():
    def offered(memory):
        return [str(one.change) for one in memory_savings(price(cluster=host(memory=memory)).job)]

    assert any("offload_optimizer" in change for change in offered("1 TB"))
    assert not any("offload_optimizer" in change for change in offered("1 GB"))


def test_a_snapshot_needs_room_and_shares_the_link():
    """Parameters and states of 14 bytes; two GPUs share a link of 50 GB/s."""
    est = price(gpus=2, global_batch=2, cluster=host(gpus_per_link=2))
    save = describe_checkpoint(est, "async", 1e12)
    assert save.pause_s == pytest.approx(0.5 + save.size_bytes / 2 / 25e9, rel=1e-9)
    small = price(gpus=2, global_batch=2, cluster=host(memory=f"{1.5 * save.size_bytes:.0f} B"))
    assert describe_checkpoint(small, "async", 1e12).size_bytes == save.size_bytes
    with pytest.raises(CostModelError, match="replica keeps copies in the hosts, but the memory of a host"):
        describe_checkpoint(small, "replica", 1e12)
    assert describe_checkpoint(small, "blocking", 1e12).size_bytes == save.size_bytes


def test_a_run_whose_hosts_hold_no_copy_waits_for_its_checkpoints_unless_told_otherwise():
    """The rates' own way is a default; a way that was named is refused."""
    est = price(gpus=2, global_batch=2, cluster=host())
    size = describe_checkpoint(est, "async", 1e12).size_bytes
    small = price(gpus=2, global_batch=2, cluster=host(memory=f"{0.5 * size:.0f} B"))
    run = run_of(small, 1e9, storage_bytes_per_s=1e12)
    assert (run.reliability.checkpointing, run.checkpoint.pause_s) == ("blocking", run.checkpoint.write_s)
    assert "(blocking): the memory of a host" in run.to_dict()["warnings"][0]
    assert run_of(est, 1e9, storage_bytes_per_s=1e12).notes == ()
    with pytest.raises(CostModelError, match="use blocking, or more GPUs"):
        run_of(small, 1e9, storage_bytes_per_s=1e12, changes={"checkpointing": "async"})


def test_a_composed_cluster_has_the_host_of_its_like():
    """The least of shipped clusters of the same GPU, a share for each GPU; a guess where there is none."""
    alone = compose_cluster("h100-pcie-80gb", 8, 1, 25e9, "ib", 64)
    assert alone.host.memory_bytes == pytest.approx(8 * 128e9)
    h100 = compose_cluster("h100", 4, 4, 50e9, "ib", 64)
    shipped = [load_cluster(name) for name in ("dgx-h100-ndr", "llama3-roce", "p5-efa", "cloud-h100-100gbe")]
    assert h100.host.memory_bytes == pytest.approx(min(one.host.memory_bytes / 8 for one in shipped) * 4)


def test_the_largest_part_of_a_host_that_is_full_is_named():
    """Sixteen bytes a parameter of four GPUs: moments take eight of them, more than main weights and gradients."""
    est = price(gpus=4, global_batch=4, zero_stage=0, cluster=host(memory="1 GB"), switches=ON_HOST)
    need = 4 * 16 * N
    assert [said for said in est.warnings if said.startswith("does not fit the host")] == [
        f"does not fit the host: its 4 GPUs send {need / 2**30:.2f} GiB to a memory of {1e9 / 2**20:.0f} MiB, "
        f"{(need - 1e9) / 2**30:.2f} GiB too much, most of it optimizer.moments"
    ]
    both = price(
        gpus=4, global_batch=4, zero_stage=0, cluster=host(memory="1 GB"), switches={**ON_HOST, **OFFLOAD}
    )
    assert both.warnings[0].endswith("most of it optimizer.moments")
