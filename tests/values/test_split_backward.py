"""Schedules that run the two halves of a backward pass apart: bubbles by hand, and who sets the pace."""

import numpy as np
import pytest
from round_jobs import SMALL, line, near, price, step_us
from test_pipeline import EMBEDDING, HEAD, LAYER, times

import costmodel as cm
from costmodel.estimates.pipeline_run import billed_pipeline_s, run_pipeline
from costmodel.physics.pipeline.engine import simulate
from costmodel.physics.pipeline.schedules import bubble_time_s, schedule_code, task_orders
from costmodel.step.price import price as price_by_closed_forms


def bubble(name, p, m, f, b, w, **more):
    times = {"forward_s": f, "backward_input_s": b, "backward_weight_s": w}
    return float(bubble_time_s(schedule_code(name), stages=p, micro_batches=m, **times, **more))


def pipeline_times(est):
    """What closed forms charge for a pipeline, and what its simulation takes. [s]"""
    run = run_pipeline(est)
    assert run.is_whole
    by_closed_forms = price_by_closed_forms(est.job, every_stage=True)
    return billed_pipeline_s(by_closed_forms.bill), run.timeline.makespan_s()


def simulated(name, p, m, f, b, w, *, synchronized=False):
    v = 1 if name.startswith("zb-") and name != "zb-v" else 2
    run = simulate(
        task_orders(name, p, m, v),
        forward_s=f,
        backward_input_s=b,
        backward_weight_s=w,
        synchronized=synchronized,
    )
    return (run.makespan_s() if synchronized else run.step_s()) - m * (f + b + w)


def test_bubbles_of_four_stages_and_sixteen_micro_batches():
    for name, passes, expected in [
        # Three hops of F + B, less a W, or at most an F, for each.
        ("zb-h1", (1.0, 1.1, 0.8), 3 * (1 + 1.1 - 0.8)),
        ("zb-h1", (1.0, 1.1, 1.3), 3 * 1.1),
        ("zb-2p", (1.0, 2.3, 0.8), 3 * (1 + 2.3 - 2 * 0.8)),
        ("zb-2p", (1.0, 2.3, 1.3), 3 * (2.3 - 1)),
        ("zb-v", (1.0, 2.1, 0.8), 3 * 2.1 - 3.5 * 0.8),
        # The slowest cycle of V-Half: F, I and W; two F and a W; two I and half a W.
        ("v-half", (1.0, 1.25, 0.7), 2 * 1 + 4 * 1.25 - 2.5 * 0.7),
        ("v-half", (1.0, 0.9, 0.7), 16 * 0.1 + 0 * 1 + 6 * 0.9 - 2.5 * 0.7),
        ("v-half", (1.0, 2.6, 0.4), 16 * 1.6 + 5 * 1 + 1 * 2.6 - (8 + 1) * 0.4),
        # Of V-Min: F, I and W; three I.
        ("v-min", (1.0, 1.0, 1.0), 5.5),
        ("v-min", (1.0, 2.6, 0.4), 16 * (2 * 2.6 - 1) + 4 * 1 + 1 * 2.6 - 15.5 * 0.4),
    ]:
        assert bubble(name, 4, 16, *passes) == pytest.approx(expected, rel=1e-12)
        assert simulated(name, 4, 16, *passes) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", ["zb-h1", "zb-2p"])
def test_of_two_orders_the_one_that_ends_first_counts_where_ranks_wait(name):
    """A rule that fills whatever it can ends later with W > F, though no rank is idle for longer."""
    times = (1.0, 1.1, 1.23)
    assert simulated(name, 8, 16, *times, synchronized=True) == pytest.approx(
        bubble(name, 8, 16, *times, synchronized=True), rel=1e-9
    )


@pytest.mark.parametrize("name", ["zb-h1", "zb-2p", "zb-v", "v-half", "v-min", "dualpipe", "dualpipe-v"])
def test_no_pass_that_takes_longer_makes_a_step_shorter(name):
    rng = np.random.default_rng(7)
    for _ in range(300):
        p = int(rng.choice([4, 8, 16]))
        m = 2 * p + 2 * int(rng.integers(20)) if name.startswith("dual") else int(rng.integers(1, 40))
        stages = rng.uniform(0.2, 3.0, (p, 3))
        longer = stages.copy()
        longer[rng.integers(p), rng.integers(3)] *= rng.uniform(1.0, 2.0)
        before, after = (_slowest(name, p, m, each) for each in (stages, longer))
        assert after >= before * (1 - 1e-12)


def _slowest(name, p, m, stages):
    """Step of the stage that takes longest with its bubble."""
    sums = {
        "sum_forward_s": stages[:, 0].sum(),
        "sum_backward_s": stages[:, 1:].sum(),
        "sum_backward_weight_s": stages[:, 2].sum(),
    }
    sums["synchronized"] = True
    return max(
        m * sum(each) + bubble(name, p, m, *each, **sums, behind=p - 1 - rank)
        for rank, each in enumerate(stages)
    )


def test_stages_wait_for_the_one_that_takes_longest_with_its_bubble():
    """ZB-H1 on four stages, the first with the embedding and the last with the head; three W fill a stage's waits."""
    m = 8
    est = price(SMALL, gpus=4, layout="pp4", schedule="zb-h1", global_batch=m)
    message = 1e6 * float(line(est, "pp.send_recv").each_s)
    one = [times(est, *part) for part in (LAYER, HEAD, EMBEDDING)]
    layer, head, embedding = (np.array(part) for part in one)
    stages = [layer + embedding, layer, layer, layer + head]
    there, back = (4 * layer + head + embedding)[:2]
    paths = []
    for t, behind in zip(stages, (3, 2, 1, 0), strict=True):
        each, way = (there - t[0]) / 3, (there - t[0] + back - t[1]) / 3
        waits = max(behind * (way - t[0]), 0.0) + max(behind * (way - t[1] - t[2]), 0.0)
        # Ranks wait for each other at the optimizer: the forward passes of those before show at least.
        before = 3 - behind
        waits += max(before * (way - t[2]), before * each)
        # Of twelve messages what a stage takes longer than one of layers alone hides up to six.
        hidden = min(6 * message, m * (sum(t) - sum(layer)))
        paths.append(m * sum(t) + waits + 12 * message - hidden)
    waits_us = [1e6 * float(wait) for wait in np.unique(est.priced.step.stage.waits_s)]
    assert sorted(waits_us) == pytest.approx(sorted(max(paths) - path for path in paths), rel=1e-9, abs=1e-6)


def test_of_two_ranks_of_a_v_both_are_ends():
    """Neither sends where the V turns or ends: with twice the messages a rank would wait for what nobody sends."""
    job = {"cluster": "cloud-h100-100gbe", "gpus": 16, "layout": "tp8 pp2 vp2", "schedule": "dualpipe-v"}
    stops = {"pp_overlap": False, "tp_overlap": "none"}
    est = cm.estimate(model="llama3-8b", **job, global_batch=8, seq_len=1024, switches=stops)
    paid_s, took_s = pipeline_times(est)
    assert paid_s == pytest.approx(took_s, rel=0.02)


@pytest.mark.parametrize("chunks", [(1, 1, 0), (2, 1), (3, 2), (2, 2, 1), (3, 3, 2, 2, 2), (4, 4)])
@pytest.mark.parametrize("p", [4, 8, 16])
def test_chunks_that_are_unlike_are_waited_for(chunks, p):
    """A group of p micro-batches waits p - 2 times for the difference of largest and smallest, less a smallest."""
    times = (1.0, 1.1, 0.9)
    held = np.tile(np.array(chunks, dtype=float), (p, 1))
    steps = []
    for m in (4 * p, 8 * p):
        passes = dict(
            zip(
                ("forward_s", "backward_input_s", "backward_weight_s"), (t * held for t in times), strict=True
            )
        )
        steps.append(simulate(task_orders("interleaved", p, m, len(chunks)), **passes).step_s())
    layer_s, all_ = sum(times), sum(chunks)
    wait = max((p - 2) * (max(chunks) - min(chunks)) - min(chunks), 0) * layer_s
    assert steps[1] - steps[0] == pytest.approx(4 * (p * all_ * layer_s + wait), rel=0.004)

    shares = {"largest_chunk": max(chunks) / all_, "smallest_chunk": min(chunks) / all_}
    idle = bubble("interleaved", p, 8 * p, *(t * all_ for t in times), virtual_stages=len(chunks), **shares)
    assert 8 * p * all_ * layer_s + idle == pytest.approx(steps[1], rel=0.035)


@pytest.mark.parametrize("cluster", ["dgx-h100-ndr", "cloud-h100-100gbe"])
@pytest.mark.parametrize(
    ("model", "pp", "vp", "layout"),
    [
        ("llama3-8b", 4, 4, ""),
        ("llama3-8b", 8, 4, ""),
        ("llama3-8b", 4, 3, "balanced"),
        ("llama3-70b", 8, 3, ""),
        ("llama3-70b", 8, 4, ""),
        ("llama3-70b", 8, 4, "balanced"),
        ("gpt3-175b", 16, 3, ""),
        ("llama3-405b", 14, 2, ""),
        ("llama3-405b", 16, 3, "balanced"),
    ],
)
def test_the_bill_of_chunks_is_their_simulation(model, pp, vp, layout, cluster):
    job = {"model": model, "cluster": cluster, "gpus": 8 * pp, "tp": 8, "pp": pp, "vp": vp, "seq_len": 4096}
    job |= {"pipeline_layout": layout} if layout else {}
    est = cm.estimate(**job, global_batch=8 * pp, switches={"pp_overlap": True})
    charged_s, took_s = pipeline_times(est)
    assert charged_s == pytest.approx(took_s, rel=0.032)


def test_the_host_issues_halves_that_run_apart_for_themselves():
    """Slow launches: each half waits for its own kernels, and together no less than as one."""
    job = {"gpus": 4, "layout": "pp4", "global_batch": 8, "switches": {"launch_s": 4e-4}}
    whole = price(SMALL, schedule="1f1b", **job)
    apart = price(SMALL, schedule="zb-h1", **job)
    name = "compute.layer.host.backward"
    launches = {each: float(line(apart, each).terms["launches"]) for each in (name, f"{name}_weight")}
    assert sum(launches.values()) == float(line(whole, name).terms["launches"])
    # One of the two kernels of each of a layer's four products.
    assert launches[f"{name}_weight"] == 4.0
    spent = float(line(apart, f"{name}_weight").terms["gpu_s"]) + float(line(apart, name).terms["gpu_s"])
    assert spent == pytest.approx(float(line(whole, name).terms["gpu_s"]), rel=1e-12)
    paid = 1e6 * float(line(apart, f"{name}_weight").exposed_each_s)
    issue_us = 1e6 * launches[f"{name}_weight"] * float(line(apart, name).terms["launch_s"])
    assert paid == near(issue_us - 1e6 * float(line(apart, f"{name}_weight").terms["gpu_s"]))
    back = ("backward", "backward_weight", "recompute")
    assert step_us(apart, *back) >= step_us(whole, *back)


@pytest.mark.parametrize(("kernel", "share"), [("flash2", 32 / 34), ("unfused", 32 / 74)])
def test_what_a_postponed_weight_gradient_needs(kernel, share):
    """32 of 34 bytes a token and element; scores of 8 heads are 5 · 8 · 1,024 / 1,024 more, which it does not need."""
    est = price(gpus=2, layout="pp2", schedule="zb-h1", global_batch=4, switches={"attention_kernel": kernel})
    assert float(est.priced.placed.pending_weight_fraction) == near(share)
