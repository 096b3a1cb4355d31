"""Closed forms of pipeline schedules against the step-by-step simulation of real task orders."""

from itertools import pairwise

import numpy as np
import pytest

from costmodel.bill.formula import evaluate
from costmodel.physics.pipeline import schedules
from costmodel.physics.pipeline.engine import Timeline, simulate
from costmodel.physics.pipeline.orders import KINDS, Orders
from costmodel.physics.pipeline.schedule_table import SCHEDULES, Schedule
from costmodel.physics.pipeline.schedules import task_orders
from costmodel.physics.pipeline.stages import Fold

GRID = [(2, 4), (2, 9), (3, 6), (3, 11), (4, 8), (4, 16), (5, 15), (6, 12), (7, 21), (8, 32), (12, 24)]
# Times of F, I and W of one micro-batch on one stage: equal; a transformer of the zero-bubble
# paper's Table 6 (6.2B); a cheap W, as with long sequences.
TIMES = [(1.0, 1.0, 1.0), (29.718, 29.444, 19.927), (1.0, 1.25, 0.7)]
# How far closed forms may be from the simulation, as a share of the step: bubbles of equal stages with these times, and
# messages of 2 % of F beside the passes. All others are exact.
INEXACT = {
    "zb-v": (0.025, 0.01),
    "dualpipe": (0.025, 0.0),
    "dualpipe-v": (0.025, 0.01),
    "v-half": (0.005, 0.02),
    "v-min": (0.005, 0.15),
}


def cases(schedule: Schedule, grid: list[tuple[int, int]] = GRID) -> list[tuple[int, int, int]]:
    """Stages, micro-batches and chunks with which a schedule can run and is held to the simulation."""
    return [
        (p, m, v)
        for p, m in grid
        for v in (1, 2, 4)
        if not schedule.broken_rules(stages=p, micro_batches=m, virtual_stages=v)
    ]


def every(grid: list[tuple[int, int]] = GRID) -> list[tuple[str, int, int, int]]:
    return [(name, *case) for name, schedule in SCHEDULES.items() for case in cases(schedule, grid)]


def run(name: str, p: int, m: int, v: int, times: tuple[float, float, float], **how: object) -> Timeline:
    f, b, w = times
    return simulate(task_orders(name, p, m, v), forward_s=f, backward_input_s=b, backward_weight_s=w, **how)


def closed_bubble(
    name: str, p: int, m: int, v: int, times: tuple[float, float, float], **more: object
) -> float:
    f, b, w = times
    return float(
        schedules.bubble_time_s(
            schedules.schedule_code(name),
            stages=p,
            micro_batches=m,
            virtual_stages=v,
            forward_s=f,
            backward_input_s=b,
            backward_weight_s=w,
            **more,
        )
    )


def waited_s(name: str, p: int, m: int, v: int, times: tuple[float, float, float], message_s: float) -> float:
    """Price what equal stages wait for overlapped messages: those of the critical path, and what comes too late."""
    f, b, w = times
    terms = {"stages": p, "micro_batches": m, "virtual_stages": v}
    code = schedules.schedule_code(name)
    count = float(schedules.exposed_p2p_messages(code, **terms))
    of_stage = {"forward_s": f, "backward_s": b + w, "backward_weight_s": w}
    terms |= {"message_s": message_s, "backward_input_s": b, **of_stage}
    for key, value in of_stage.items():
        terms |= {f"sum_{key}": p * value, f"plain_{key}": value, f"mean_{key}": value}
    terms |= {"pair_forward_s": 2 * f, "pair_input_s": 2 * b, "pair_weight_s": 2 * w}
    return count * message_s + float(evaluate(schedules.closed_form("late", code), terms))


def check_bubble(name: str, p: int, m: int, v: int) -> None:
    """Hold the bubble of a schedule to the simulation of its order, within what is known of it."""
    for times in TIMES:
        step_s = run(name, p, m, v, times).step_s()
        closed_s = m * sum(times) + closed_bubble(name, p, m, v, times)

        assert closed_s == pytest.approx(step_s, rel=max(INEXACT.get(name, (0.0,))[0], 1e-9))


def most_held(timeline) -> np.ndarray:
    """Return the peak of activations of each rank, in micro-batches on a whole stage."""
    changes = [[] for _ in timeline.orders.ranks]
    share = {"F": 1.0, "B": -1.0, "I": 0.0, "W": -1.0}
    for task in timeline.tasks:
        # What ends at the time something starts has freed its memory.
        time = task.start_s if task.kind == "F" else task.end_s
        changes[task.rank].append((round(time, 9), share[task.kind]))
    peaks = [np.cumsum([change for _, change in sorted(of_rank)]).max() for of_rank in changes]
    return np.asarray(peaks) / timeline.orders.tasks_per_stage


def check_held(name: str, p: int, m: int, v: int) -> None:
    """Hold what every rank keeps in flight to the simulation."""
    held = most_held(run(name, p, m, v, TIMES[0]))
    closed = schedules.in_flight(
        schedules.schedule_code(name), stages=p, micro_batches=m, virtual_stages=v, stage=np.arange(p)
    )

    if not task_orders(name, p, m, v).in_unit_time:
        np.testing.assert_allclose(held, np.broadcast_to(closed, held.shape))
    else:
        # Ranks differ by one chunk or two; the closed form is what the fullest one holds.
        assert held.max() == pytest.approx(closed.max())
        assert (held <= closed + 1e-9).all()


def stopping_s(
    name: str, p: int, m: int, v: int, times: tuple[float, float, float], message_s: float
) -> float:
    """Price a step whose ranks stand still for every message: the messages are part of the passes before them."""
    f, b, w = times
    code = schedules.schedule_code(name)
    ends = {"first": np.arange(p) == 0, "last": np.arange(p) == p - 1}
    sent = schedules.sent_by_rank(code, virtual_stages=v, **ends)
    forward, backward = f + message_s * sent.forward, b + message_s * sent.backward
    inner = schedules.sent_by_rank(code, virtual_stages=v, first=0.0, last=0.0)
    bubble_s = schedules.bubble_time_s(
        code,
        stages=p,
        micro_batches=m,
        virtual_stages=v,
        forward_s=forward,
        backward_input_s=backward,
        backward_weight_s=w,
        sum_forward_s=forward.sum(),
        sum_backward_s=backward.sum() + p * w,
        sum_backward_weight_s=p * w,
        plain_forward_s=f + message_s * inner.forward,
        plain_backward_s=b + w + message_s * inner.backward,
        mean_forward_s=f + message_s * inner.forward,
        mean_backward_s=b + w + message_s * inner.backward,
        most_forward_s=forward.max(),
        most_backward_s=backward.max() + w,
        **ends,
        behind=p - 1 - np.arange(p),
    )
    return float((m * (forward + backward + w) + bubble_s).max())


def check_messages(name: str, p: int, m: int, v: int, *, stopping: bool) -> None:
    """Hold the messages that the step waits for to the seconds by which a delay lengthens the simulation."""
    message_s, (_, inexact) = 0.02, INEXACT.get(name, (0.0, 0.0))
    free_s = run(name, p, m, v, TIMES[0]).step_s()
    step_s = run(name, p, m, v, TIMES[0], message_s=message_s, blocking=stopping).step_s()
    if stopping:
        paid_s = stopping_s(name, p, m, v, TIMES[0], message_s)
        assert paid_s == pytest.approx(step_s, rel=1e-9 if name in ("none", "naive", "gpipe") else 0.01)
        return
    waits_s = waited_s(name, p, m, v, TIMES[0], message_s)
    assert free_s + waits_s == pytest.approx(step_s, rel=max(inexact, 1e-9))


@pytest.mark.parametrize("name", SCHEDULES)
def test_closed_forms_are_those_of_the_simulation(name):
    """The bubble, what every rank keeps in flight, and what messages add; fewer micro-batches where that is exact."""
    for p, m, v in cases(SCHEDULES[name]):
        check_bubble(name, p, m, v)
        check_held(name, p, m, v)
    for p, m, v in cases(SCHEDULES[name], [(4, 8), (4, 16), (8, 32)]):
        check_messages(name, p, m, v, stopping=False)
        check_messages(name, p, m, v, stopping=True)
    if name not in INEXACT:
        for p, m, v in cases(SCHEDULES[name], [(8, 1), (8, 3), (16, 9)]):
            if v == 1:
                check_bubble(name, p, m, v)


def test_every_schedule_is_held_to_its_order():
    assert {name for name, *_ in every([(1, 4), *GRID])} == set(SCHEDULES)


@pytest.mark.parametrize("name", SCHEDULES)
def test_simulated_order_runs_each_task_once_after_its_input(name):
    for p, m, v in cases(SCHEDULES[name]):
        check_order(name, p, m, v)


def check_order(name: str, p: int, m: int, v: int) -> None:
    """Hold a simulated order to one place and one time for each task, after what it needs."""
    message_s = 0.03
    timeline = run(name, p, m, v, (1.0, 1.3, 0.8), message_s=message_s)
    ends: dict[tuple[str, int, int, int], float] = {}
    for task in timeline.tasks:
        kind = "I" if task.kind == "B" else task.kind
        assert (kind, task.rank, task.chunk, task.micro_batch) not in ends
        ends[kind, task.rank, task.chunk, task.micro_batch] = task.end_s
    for rank in range(p):
        mine = sorted((t.start_s, t.end_s) for t in timeline.tasks if t.rank == rank)
        assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(mine))

    # The ways are written down here again, from the papers' figures, not taken from the engine.
    down = [(rank, 0) for rank in range(p)]
    fold = SCHEDULES[name].fold
    if fold is Fold.V_SHAPED:
        paths = [down + [(rank, 1) for rank in reversed(range(p))]]
    elif fold is Fold.BIDIRECTIONAL:
        paths = [down, [(rank, 1) for rank in reversed(range(p))]]
    else:
        paths = [[(rank, chunk) for chunk in range(v) for rank in range(p)]]
    starts = {
        ("I" if t.kind == "B" else t.kind, t.rank, t.chunk, t.micro_batch): t.start_s for t in timeline.tasks
    }
    for i in range(m):
        path = paths[i % len(paths)]
        forward, backward = [("F", *at, i) for at in path], [("I", *at, i) for at in reversed(path)]
        chain = forward + backward
        for before, after in pairwise(chain):
            wait = message_s if before[1] != after[1] else 0.0
            assert starts[after] >= ends[before] + wait - 1e-9
    assert all(start >= ends["I", *key[1:]] - 1e-9 for key, start in starts.items() if key[0] == "W")
    assert sum(key[0] == "F" for key in starts) == m * sum(map(len, paths)) / len(paths)
    assert sum(key[0] == "I" for key in starts) == m * sum(map(len, paths)) / len(paths)


def test_what_two_passes_that_run_as_one_make_is_there_when_both_have_ended():
    # Rank 0 runs its two forwards as one, from when rank 1 has sent what the second needs; rank 1 waits for both.
    both = np.array([(0, 0, 0, 1), (0, 1, 1, 0)])
    other = np.array([(0, 1, 1, 0), (0, 0, 0, 0)])
    orders = Orders((both, other), (((0, 0), (1, 0)), ((1, 1), (0, 1))), 1)
    timeline = simulate(orders, forward_s=1.0, backward_input_s=1.0, backward_weight_s=1.0)
    assert [starts.tolist() for starts in timeline.starts] == [[1.0, 2.0], [0.0, 3.0]]


def test_1f1b_order_of_four_stages_is_the_published_one():
    # Narayanan et al. (SC21), figure 4, second and fourth device.
    orders = task_orders("1f1b", 4, 8).ranks

    assert "".join(f"{KINDS[kind]}{i}" for kind, _, i, _ in orders[1]) == "F0F1F2B0F3B1F4B2F5B3F6B4F7B5B6B7"
    assert "".join(f"{KINDS[kind]}{i}" for kind, _, i, _ in orders[3]) == "".join(
        f"F{i}B{i}" for i in range(8)
    )


def test_interleaved_order_loops_through_the_chunks_as_megatron_does():
    # Narayanan et al. (SC21), figure 4 bottom: device 1 runs micro-batches 1-4 in both chunks first.
    order = task_orders("interleaved", 4, 8, 2).ranks[0]
    kinds = "".join(KINDS[kind] for kind in order[:, 0])
    forwards = [tuple(task) for task in order[order[:, 0] == KINDS.index("F"), 1:3]]

    assert forwards[:8] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)]
    assert kinds.index("B") == 11
    assert tuple(order[11, 1:3]) == (1, 0)


@pytest.mark.parametrize("name", ["1f1b", "interleaved", "zb-h1", "zb-2p"])
def test_a_slow_last_stage_with_the_head(name):
    for p, m in [(4, 16), (8, 24)]:
        v = 2 if name == "interleaved" else 1
        stage_s = np.ones(p)
        stage_s[0], stage_s[-1] = 1.03, 1.25
        f, b, w = stage_s, 1.05 * stage_s, 0.85 * stage_s
        step_s = run(name, p, m, v, (f, b, w)).step_s()

        bubble_s = closed_bubble(
            name, p, m, v, (f[-1], b[-1], w[-1]), sum_forward_s=f.sum(), sum_backward_s=(b + w).sum()
        )

        assert m * (f + b + w)[-1] + bubble_s == pytest.approx(step_s, rel=0.015)


# Qi et al., "Zero bubble pipeline parallelism," ICLR 2024, arXiv:2401.10241: profiled times in ms
# (Table 6 of the ICLR version) and bubble rates computed from them (Table 5).
PROFILED = [
    # p, m, T_F, T_B, T_W, T_comm, 1F1B, ZB-H1 (= ZB-1p), ZB-H2, ZB-2p
    (8, 24, 18.522, 18.086, 9.337, 0.601, 0.2431, 0.1585, 0.1083, 0.0433),
    (8, 64, 18.546, 18.097, 9.321, 0.762, 0.1240, 0.0674, 0.0444, 0.0026),
    (8, 24, 29.718, 29.444, 19.927, 0.527, 0.2347, 0.1323, 0.0698, 0.0029),
    (8, 64, 29.935, 29.621, 19.388, 0.535, 0.1091, 0.0554, 0.0294, 0.0010),
    (16, 48, 11.347, 11.248, 8.132, 0.377, 0.2552, 0.1397, 0.0672, 0.0066),
]


@pytest.mark.parametrize("row", PROFILED)
def test_simulated_bubble_rates_are_the_published_ones(row):
    p, m, f, b, w, message_s, *published = row
    # Their ZB-2p counts what W keeps as about 0.4 of the activations; ZB-H2 as all of them.
    settings = [("1f1b", 1.0), ("zb-h1", 1.0), ("zb-2p", 1.0), ("zb-2p", 0.4)]
    for (name, kept), rate in zip(settings, published, strict=True):
        step_s = run(name, p, m, 1, (f, b, w), message_s=message_s, pending_weight_fraction=kept).step_s()

        assert 1.0 - m * (f + b + w) / step_s == pytest.approx(rate, abs=0.00006)


@pytest.mark.parametrize("row", PROFILED)
def test_closed_bubble_rates_are_the_published_ones(row):
    p, m, f, b, w, message_s, *published = row
    settings = [("1f1b", 1.0), ("zb-h1", 1.0), ("zb-2p", 1.0), ("zb-2p", 0.4)]
    for (name, kept), rate in zip(settings, published, strict=True):
        waits_s = waited_s(name, p, m, 1, (f, b, w), message_s)
        idle = closed_bubble(name, p, m, 1, (f, b, w), pending_weight_fraction=kept) + waits_s

        assert float(idle / (m * (f + b + w) + idle)) == pytest.approx(rate, abs=0.002)


def test_published_throughput_ratios_of_schedules():
    # Same paper, Table 4, measured on A100s: samples per GPU and second of 14.6B and 28.3B,
    # relative to 1F1B. Rank-to-rank sends of their 1F1B and 1F1B-I are not overlapped.
    measured = {
        (16, 48): {"1f1b": 1.40, "interleaved": 1.54, "zb-h1": 1.61, "zb-2p": 1.81},
        (16, 128): {"1f1b": 1.64, "interleaved": 1.66, "zb-h1": 1.76, "zb-2p": 1.85},
        (32, 96): {"1f1b": 0.76, "interleaved": 0.82, "zb-h1": 0.87, "zb-2p": 0.99},
        (32, 256): {"1f1b": 0.88, "interleaved": 0.90, "zb-h1": 0.96, "zb-2p": 1.00},
    }
    profiled = {16: (11.347, 11.248, 8.132, 0.377, 3), 32: (10.419, 10.207, 7.715, 0.408, 2)}
    for (p, m), rates in measured.items():
        f, b, w, message_s, layers = profiled[p]
        step_s = {}
        for name in rates:
            v = layers if name == "interleaved" else 1
            if not name.startswith("zb"):
                step_s[name] = stopping_s(name, p, m, v, (f, b, w), message_s)
                continue
            messages = schedules.exposed_p2p_messages(
                schedules.schedule_code(name), stages=p, micro_batches=m, virtual_stages=v
            )
            idle = closed_bubble(name, p, m, v, (f, b, w), pending_weight_fraction=0.43)
            step_s[name] = m * (f + b + w) + idle + float(messages) * message_s
        for name, rate in rates.items():
            assert step_s["1f1b"] / step_s[name] == pytest.approx(rate / rates["1f1b"], rel=0.04)


@pytest.mark.parametrize("name", ["1f1b", "interleaved"])
def test_long_messages_come_as_late_as_in_the_simulation(name):
    # From a tenth of a chunk's forward pass to more than two, as on 100 Gbit/s Ethernet.
    for p, m, v in cases(SCHEDULES[name]):
        for times in TIMES:
            free_s = run(name, p, m, v, times).step_s()
            for length in (0.1, 0.6, 1.0, 1.4, 2.5):
                message_s = length * times[0] / v
                step_s = run(name, p, m, v, times, message_s=message_s).step_s()
                assert free_s + waited_s(name, p, m, v, times, message_s) == pytest.approx(step_s, rel=1e-9)


# Four equal stages of F = 3, I = 2 and W = 2, eight micro-batches and messages of 2 s: six each, or twelve, and what a
# cycle waits for.
WAITS = {
    # A cycle of four micro-batches hides nothing of 2 · 2 s: five of seven wait.
    "1f1b": 6 * 2 + 5 * 4.0,
    # The first group goes round four messages once more there, and back. Then each of four micro-batches has 2 s for a
    # message and (7 - 4) / 2 = 1.5 to hide it in; and from a forward to its backward there are 14 messages and 15 slots
    # of 3.5, of which passes take 28: 1.75 a message, six times.
    "interleaved": 6 * 2 + 2 * 8.0 + 4 * 0.5 + 6 * 0.25,
    # No wait for weight gradients: a cycle hides 7 - 15 / 3 = 2 of 4; of 8 - 4 - 2 rounds.
    "zb-h1": 12 * 2 + 2 * 2.0,
    "gpipe": 6 * 2.0,
    "zb-2p": 6 * 2.0,
}


def test_waits_for_messages_by_hand():
    for name, by_hand_s in WAITS.items():
        found = waited_s(name, 4, 8, 2 if name == "interleaved" else 1, (3.0, 2.0, 2.0), 2.0)
        assert found == pytest.approx(by_hand_s), name


@pytest.mark.parametrize("name", ["zb-h1", "zb-2p"])
def test_zero_bubble_with_long_weight_gradients_and_light_ends(name):
    # Context parallelism makes W longer than F; the stages of embedding and head hold fewer layers.
    for p, m in [(8, 16), (16, 48)]:
        for ends in [1.0, 0.75]:
            for weight in [0.8, 1.06, 1.2]:
                stage_s = np.ones(p)
                stage_s[0] = stage_s[-1] = ends
                f, b, w = stage_s, 1.1 * stage_s, weight * stage_s
                step_s = run(name, p, m, 1, (f, b, w), pending_weight_fraction=32 / 34).step_s()

                bubble_s = closed_bubble(
                    name,
                    p,
                    m,
                    1,
                    (1.0, 1.1, weight),
                    sum_forward_s=f.sum(),
                    sum_backward_s=(b + w).sum(),
                    pending_weight_fraction=32 / 34,
                )

                assert m * (2.1 + weight) + bubble_s == pytest.approx(step_s, rel=0.03)


def test_zb_v_with_few_micro_batches_is_not_free():
    # One micro-batch goes down and up and back: its closed form for many would be a tenth of that.
    for p, m in [(p, m) for p in (4, 8) for m in (1, 2, 4, 6, 8, 12, 16, 24)] + [(16, 6), (16, 24)]:
        for times in TIMES:
            step_s = run("zb-v", p, m, 2, times).step_s()

            assert m * sum(times) + closed_bubble("zb-v", p, m, 2, times) == pytest.approx(step_s, rel=0.1)
