"""Activations in the host's memory: what leaves the GPU, and what does not fit beside the passes."""

import pytest
from round_jobs import MIB, SMALL, cluster_file, counts, each_us, exposed_us, memory, near, price, step_us

import costmodel as cm
from costmodel.estimates.pipeline_run import durations

pytestmark = pytest.mark.usefixtures("memory_alone_limits_norms")

LAYER = 38 * MIB + 32_768  # what a layer keeps of a micro-batch
HEAD = 2 * MIB + 10 * 32_768_000
UP, DOWN = "offload.activations.forward", "offload.activations.backward"


def test_two_layers_stay_while_the_others_travel():
    """Four layers and the head keep 479 MiB: half of it stays, half goes and comes back at 50 GB/s."""
    est = price(global_batch=3, switches={"offload_activations": 1.0})
    away = (4 * LAYER + HEAD) / 2
    assert memory(est, "offloaded") == near({"offloaded.activations": -away})
    assert each_us(est, "offload.") == near({UP: away / 5e4, DOWN: away / 5e4})
    assert counts(est, "offload.") == {UP: 3.0, DOWN: 3.0}
    assert exposed_us(est, "offload.") == {UP: 0.0, DOWN: 0.0}


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_a_share_of_them(share):
    est = price(switches={"offload_activations": share})
    away = share * (4 * LAYER + HEAD) / 2
    assert memory(est, "offloaded") == near({"offloaded.activations": -away})
    assert each_us(est, "offload.")[UP] == near(away / 5e4)


def test_a_stage_sends_one_micro_batch_at_a_time():
    """Two stages of four layers: the first holds two micro-batches, the second one and the head.

    The gradients of the layer whose backward pass runs stay where they are made.
    """
    est = price(
        {**SMALL, "num_layers": 8},
        gpus=2,
        layout="pp2",
        global_batch=8,
        switches={"offload_activations": 1.0},
    )
    first, last = 4 * LAYER / 2, (4 * LAYER + HEAD) / 2
    assert memory(est, "offloaded") == near({"offloaded.activations": [-2 * first, -last]})
    assert each_us(est, "offload.")[UP] == near(last / 5e4)
    # Twice the layers' share counts for each of two micro-batches in flight, not for both at once.
    wide = price(
        {**SMALL, "num_layers": 8, "vocab_size": 64},
        gpus=2,
        layout="pp2",
        global_batch=8,
        switches={"offload_activations": 1.0},
    )
    head = 2 * MIB + 10 * 64 * 1024
    assert each_us(wide, "offload.")[UP] == near((4 * LAYER + head) / 2 / 5e4)


def test_what_goes_and_comes_back_hides_behind_its_pass():
    """At 20 GB/s the way out takes longer than the forward pass, and the way back than the backward pass."""
    slow = cluster_file(gpu={"host_link": "20 GB/s"})
    est = price(cluster=slow, switches={"offload_activations": 1.0})
    way = (4 * LAYER + HEAD) / 2 / 2e4
    forward, backward = step_us(est, "forward"), step_us(est, "backward", "backward_weight")
    assert way > backward > forward
    assert exposed_us(est, "offload.") == near({UP: way - forward, DOWN: way - backward})


def test_gradients_hide_behind_the_backward_pass_and_beside_what_nothing_hides_of_their_sum():
    """At 1 GB/s; of the sum over two ranks only what the backward pass leaves open is time for another port."""
    slow = cluster_file(gpu={"host_link": "1 GB/s"})
    est = price(gpus=2, layout="tp1", global_batch=2, cluster=slow, switches={"offload_optimizer": True})
    (way,) = each_us(est, "offload.gradients").values()
    reduced = exposed_us(est, "dp.dense.grad_reduce_scatter")["dp.dense.grad_reduce_scatter"]
    hides = step_us(est, "backward", "backward_weight") + reduced
    assert reduced > 0
    assert exposed_us(est, "offload.") == near({"offload.gradients.grad_sync": way - hides})


@pytest.mark.parametrize("times", [1, 3])
def test_gradients_of_sharded_parameters_travel_while_the_backward_pass_waits_for_gathers(times):
    """ZeRO-3 without overlap: gathers of the backward pass and reductions are waited for; the host's link is free.

    Each micro-batch has its own way, its own pass, and its part of what is waited for in a step.
    """
    slow = cluster_file(gpu={"host_link": "0.1 GB/s"})
    switches = {"offload_optimizer": True, "dp_overlap": "none"}
    est = price(gpus=2, layout="tp1", zero_stage=3, global_batch=2 * times, cluster=slow, switches=switches)
    way = sum(each_us(est, "offload.gradients").values())
    lines = [line for line in est.bill.time_lines if line.axis == "dp"]
    gathers = [line for line in lines if line.name.endswith("param_all_gather.backward")]
    sums = [line for line in lines if line.phase == "grad_sync"]
    waited = [1e6 * sum(float(line.exposed_seconds) for line in each) for each in (gathers, sums)]
    assert min(waited) > 0
    hides = (step_us(est, "backward", "backward_weight") + sum(waited)) / times
    assert exposed_us(est, "offload.gradients") == near({"offload.gradients.grad_sync": way - hides})
    assert counts(est, "offload.gradients") == {"offload.gradients.grad_sync": times}


def test_nothing_travels_unasked():
    est = price()
    assert each_us(est, "offload") == {}
    assert memory(est, "offloaded") == {}


@pytest.mark.parametrize("m", [3, 4])
def test_a_stage_with_fewer_layers_hides_behind_half_of_what_it_waits_as_well(m):
    """Seven layers on two stages, four and three, under 1F1B; the way to the host takes longer than any pass.

    The first stage sets the pace: m passes, and the second's while it fills, less its own forward pass meanwhile. The
    second would take m of its passes and one of the first's. Half of the difference, over m, is its window beside
    each forward pass and each backward pass.
    """
    model = {**SMALL, "num_layers": 7, "vocab_size": 64}
    est = price(
        model,
        gpus=2,
        layout="pp2",
        global_batch=m,
        cluster=cluster_file(gpu={"host_link": "2 GB/s"}),
        switches={"offload_activations": 1.0},
    )
    one, two = price({**model, "num_layers": 1}), price({**model, "num_layers": 2})
    back = ("backward", "backward_weight")
    layer = [step_us(two, *phases) - step_us(one, *phases) for phases in (("forward",), back)]
    head = [
        sum(
            1e6 * float(line.exposed_seconds)
            for line in one.bill.time_lines
            if line.phase in phases and line.name.startswith("compute.head")
        )
        for phases in (("forward",), back)
    ]
    embedding = [
        step_us(one, *phases) - of_layer - of_head
        for phases, of_layer, of_head in zip((("forward",), back), layer, head, strict=True)
    ]
    # Each sends a micro-batch once, and stands still meanwhile.
    message = each_us(est, "pp.send_recv")["pp.send_recv"]
    first = [4 * of_layer + of_embedding for of_layer, of_embedding in zip(layer, embedding, strict=True)]
    second = [3 * of_layer + of_head for of_layer, of_head in zip(layer, head, strict=True)]
    first_us, second_us = sum(first) + message, sum(second) + message
    fill = second_us - (first[0] + message)
    drain = max(second_us - first[1], 0.0)
    waits = m * first_us + fill + drain - (m * second_us + first_us)
    assert fill > 0 < waits
    busy, exposed = each_us(est, "offload."), exposed_us(est, "offload.")
    assert busy[UP] - exposed[UP] == near(second[0] + waits / 2 / m)
    assert busy[DOWN] - exposed[DOWN] == near(second[1] + waits / 2 / m)
    # Gradients for an optimizer on the host go once a step; those of sharded parameters after each micro-batch.
    name = "offload.gradients.grad_sync"
    for stage, often in ((1, 1), (3, m)):
        away = price(
            model,
            gpus=2,
            layout="pp2",
            global_batch=m,
            zero_stage=stage,
            cluster=cluster_file(gpu={"host_link": "0.5 GB/s"}),
            switches={"offload_optimizer": True},
        )
        assert counts(away, name) == {name: often}
        # What hides on every stage: the first waits for nobody, and has its pass alone.
        hides = min(first[1], second[1] + waits / 2 / often)
        assert each_us(away, name)[name] - exposed_us(away, name)[name] == near(hides)


@pytest.mark.parametrize("micro_batches", [2, 4])
def test_a_micro_batch_has_its_share_of_half_a_stages_wait_for_what_hides_each_time(micro_batches):
    """GPipe: the stage without the head waits (m - 1) (t - t_0) for that with it, half of it in backward passes."""
    est = cm.estimate(
        "llama3-8b", "2xH100", layout="pp2", schedule="gpipe", global_batch=micro_batches, seq_len=4096
    )
    (f_0, f), inputs, weights = durations(est.priced)
    b_0, b = inputs + weights
    wait_s = (micro_batches - 1) * (f + b - f_0 - b_0)
    assert wait_s > 0.0
    stage = est.priced.step.stage
    assert float(stage.waits_s[0]) == pytest.approx(wait_s, rel=1e-6)
    assert float(stage.backward_each_s) == pytest.approx(min(b_0 + 0.5 * wait_s / micro_batches, b), rel=1e-6)
    assert float(stage.backward_window_s) == pytest.approx(min(b_0 + 0.5 * wait_s, b), rel=1e-6)
    assert float(stage.forward_each_s) == pytest.approx(min(f_0 + 0.5 * wait_s / micro_batches, f), rel=1e-6)
