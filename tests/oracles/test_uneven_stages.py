"""Closed forms against the simulation where the rank with the head is slower than the others."""

import numpy as np
import pytest
from test_schedules_simulation import waited_s

from costmodel.physics.pipeline import schedules
from costmodel.physics.pipeline.engine import simulate
from costmodel.physics.pipeline.schedule_table import SCHEDULES
from costmodel.physics.pipeline.schedules import task_orders
from costmodel.physics.pipeline.stages import Fold, plan_rings


@pytest.mark.parametrize("name", ["gpipe", "zb-h1", "zb-v", "dualpipe", "dualpipe-v", "v-half", "v-min"])
def test_a_rank_with_the_head_is_slower_than_the_others(name):
    # The head lies at the end of the way: on the last rank, and where a V turns back on the first. Its forward pass is
    # a third of all; a little of the embedding on the first stage.
    for p, m in [(4, 16), (8, 16), (8, 64)]:
        for head in [0.15, 0.5, 1.0]:
            for times in [(1.0, 1.8, 0.6), (1.0, 1.1, 0.9)]:
                fold = SCHEDULES[name].fold
                each = {"forward": 0, "backward_input": 1, "backward_weight": 2}
                chunks = 2 if fold is Fold.VEE else 1
                layer = {pass_: np.full((p, chunks), times[at] / chunks) for pass_, at in each.items()}
                passes = {pass_: values.copy() for pass_, values in layer.items()}
                end = (0, 1) if fold is Fold.VEE else (p - 1, 0)
                for pass_, at in each.items():
                    passes[pass_][end] += head * times[at]
                    passes[pass_][0, 0] += 0.02 * times[at]
                fraction = 32 / 34
                if fold is Fold.BOTH_WAYS:
                    given = {pass_: values[:, 0] for pass_, values in passes.items()}
                    of_rank = {pass_: 0.5 * (values + values[::-1]) for pass_, values in given.items()}
                else:
                    given, of_rank = passes, {pass_: values.sum(axis=1) for pass_, values in passes.items()}
                step_s = simulate(
                    task_orders(name, p, m, chunks),
                    **{f"{pass_}_s": values for pass_, values in given.items()},
                    pending_weight_fraction=fraction,
                    synchronized=True,
                ).makespan_s()

                forward, inputs, weights = of_rank.values()
                bubble_s = schedules.bubble_time_s(
                    schedules.schedule_code(name),
                    stages=p,
                    micro_batches=m,
                    virtual_stages=chunks,
                    **{f"{pass_}_s": values for pass_, values in of_rank.items()},
                    sum_forward_s=forward.sum(),
                    sum_backward_s=inputs.sum() + weights.sum(),
                    sum_backward_weight_s=weights.sum(),
                    plain_forward_s=times[0],
                    plain_backward_s=times[1] + times[2],
                    plain_backward_weight_s=times[2],
                    mean_forward_s=times[0],
                    mean_backward_s=times[1] + times[2],
                    mean_backward_weight_s=times[2],
                    most_forward_s=forward.max(),
                    most_backward_s=(inputs + weights).max(),
                    pending_weight_fraction=fraction,
                    synchronized=True,
                    first=np.arange(p) == 0,
                    last=np.arange(p) == p - 1,
                    behind=p - 1 - np.arange(p),
                )
                paid_s = float((m * (forward + inputs + weights) + bubble_s).max())

                assert paid_s == pytest.approx(step_s, rel=0.03)


def test_gpipe_waits_for_the_slowest_of_each_pass():
    # 2 + 1 + 1 and three times 2 forward; 1 + 1 + 3 and three times 3 backward.
    forward, backward = np.array([2.0, 1.0, 1.0]), np.array([1.0, 1.0, 3.0])
    bubble_s = schedules.bubble_time_s(
        schedules.schedule_code("gpipe"),
        stages=3,
        micro_batches=4,
        forward_s=forward,
        backward_input_s=backward,
        backward_weight_s=0.0,
        sum_forward_s=forward.sum(),
        sum_backward_s=backward.sum(),
        most_forward_s=2.0,
        most_backward_s=3.0,
    )

    assert (4 * (forward + backward) + bubble_s).tolist() == [24.0, 24.0, 24.0]
    step = simulate(
        task_orders("gpipe", 3, 4), forward_s=forward, backward_input_s=backward, backward_weight_s=0.0
    )
    assert step.makespan_s() == 24.0


def test_zb_h1_puts_off_what_its_last_rank_can_hold():
    # Seven others of 1 forward and 1.8 backward; the last rank, which keeps a tenth of the activations for each weight
    # gradient that it puts off, does so with 15 of 0.6 while the others run backwards: 7 + 7 * 1.8 - 15 * 0.6.
    p, m = 8, 16
    passes = [np.ones(p) * each for each in (1.0, 1.8, 0.6)]
    for each, more in zip(passes, (0.2, 0.3, 0.0), strict=True):
        each[-1] += more
    forward, inputs, weights = passes
    bubble_s = schedules.bubble_time_s(
        schedules.schedule_code("zb-h1"),
        stages=p,
        micro_batches=m,
        forward_s=1.2,
        backward_input_s=2.1,
        backward_weight_s=0.6,
        sum_forward_s=forward.sum(),
        sum_backward_s=inputs.sum() + weights.sum(),
        sum_backward_weight_s=weights.sum(),
        pending_weight_fraction=0.1,
        behind=0.0,
    )

    assert float(bubble_s) == pytest.approx(7 + 7 * 1.8 - 15 * 0.6)
    step = simulate(
        task_orders("zb-h1", p, m),
        forward_s=forward,
        backward_input_s=inputs,
        backward_weight_s=weights,
        pending_weight_fraction=0.1,
        synchronized=True,
    )
    assert m * 3.9 + float(bubble_s) == pytest.approx(step.makespan_s(), rel=0.03)


def one_slow(name, p, m, at, times, *, message_s=0.0):
    """Price and simulate a pipeline whose rank `at` takes 0.3 longer than each of the others; None for none."""
    share = np.ones(p)
    if at is not None:
        share[at] += 0.3
    names = ("forward_s", "backward_input_s", "backward_weight_s")
    passes = {key: share * each for key, each in zip(names, times, strict=True)}
    forward, inputs, weights = passes.values()
    sums = {
        "sum_forward_s": forward.sum(),
        "sum_backward_s": inputs.sum() + weights.sum(),
        "sum_backward_weight_s": weights.sum(),
    }
    layout = {"stages": p, "micro_batches": m}
    fraction = 32 / 34
    bubble_s = schedules.bubble_time_s(
        schedules.schedule_code(name),
        **layout,
        **passes,
        **sums,
        pending_weight_fraction=fraction,
        synchronized=True,
        behind=p - 1 - np.arange(p),
    )
    paid_s = float((m * share * sum(times) + bubble_s).max())
    run = simulate(
        task_orders(name, p, m),
        **passes,
        message_s=message_s,
        pending_weight_fraction=fraction,
        synchronized=True,
    )
    return paid_s, run.makespan_s()


@pytest.mark.parametrize("name", ["zb-h1", "zb-2p"])
def test_a_slow_rank_works_while_it_waits_for_those_behind(name):
    # Before it was priced as if it were the last: up to 16 % too long.
    for p, m in [(4, 16), (8, 16), (8, 32)]:
        for times in [(1.0, 1.0, 1.0), (1.0, 1.6, 0.4)]:
            for at in [None, 0, 1, -3, -1]:
                paid_s, took_s = one_slow(name, p, m, at, times)
                assert paid_s == pytest.approx(took_s, rel=0.031)


def test_zb_h1_waits_for_late_messages():
    """Of p micro-batches on their round one weight gradient runs: beyond half of it a message is waited for twice."""
    for p, m in [(2, 17), (4, 16), (8, 32)]:
        for message_s in [0.1, 0.9, 2.0]:
            w = 0.4
            times = (1.0, 1.6, w)
            waits_s = waited_s("zb-h1", p, m, 1, times, message_s)
            rounds = m - p - -(-(m - 1) // p)

            assert waits_s == pytest.approx(4 * (p - 1) * message_s + rounds * max(2 * message_s - w, 0.0))
            paid_s, took_s = one_slow("zb-h1", p, m, None, times, message_s=message_s)
            assert paid_s + waits_s == pytest.approx(took_s, rel=1e-9)


def test_zb_v_waits_for_a_round_trip_where_its_first_rank_is_slower():
    # 4 of 6 messages a hop; the other two hide behind what the first rank takes longer, all micro-batches together.
    code = schedules.schedule_code("zb-v")
    own = {"forward_s": 1.0, "backward_input_s": 1.0, "backward_weight_s": 1.0}
    rank = {**own, "mean_forward_s": 0.9, "mean_backward_s": 2.0, "first": 1.0, "message_s": 0.5}
    layout = {"stages": 8, "virtual_stages": 2}
    for m, messages in ((16, 42 - 16 * 0.1 / 0.5), (128, 28)):
        found = schedules.exposed_p2p_messages(code, **layout, micro_batches=m, **rank)
        assert float(found) == pytest.approx(messages)
    assert float(schedules.exposed_p2p_messages(code, **layout, micro_batches=16)) == 42


def with_one_slow(name, p, m, v, at, f, b):
    """Price and simulate ranks of `f` and `b`, of which rank `at` takes 0.25 longer."""
    share = np.ones(p)
    share[at] += 0.25
    bubble_s = schedules.bubble_time_s(
        schedules.schedule_code(name),
        stages=p,
        micro_batches=m,
        virtual_stages=v,
        forward_s=f * share,
        backward_input_s=b * share,
        backward_weight_s=0.0,
        sum_forward_s=f * share.sum(),
        sum_backward_s=b * share.sum(),
        plain_forward_s=f * 1.25,
        plain_backward_s=b * 1.25,
        mean_forward_s=f * share.mean(),
        mean_backward_s=b * share.mean(),
        behind=p - 1 - np.arange(p),
    )
    run = simulate(
        task_orders(name, p, m, v), forward_s=f * share, backward_input_s=b * share, backward_weight_s=0.0
    )
    return float((m * (f + b) * share + bubble_s).max()), run.makespan_s()


def test_a_slow_rank_of_1f1b_works_while_it_waits_for_those_behind():
    # m passes of 1.25, the others once, and each rank behind again, less a pass of the slow one meanwhile.
    for p, m in [(4, 4), (8, 8), (8, 24)]:
        for b in [1.0, 2.0, 3.0]:
            for behind in [0, 1, 2, -1]:
                k = behind % p
                t = 1.0 + b
                by_hand_s = m * 1.25 * t + (p - 1 - k) * t + k * (2.0 - 1.25) * t
                paid_s, took_s = with_one_slow("1f1b", p, m, 1, p - 1 - k, 1.0, b)

                assert took_s == pytest.approx(by_hand_s, rel=1e-9)
                # Others count what the first takes longer as if it were spread over those behind them too.
                assert paid_s == pytest.approx(by_hand_s, rel=0.03 if k == p - 1 else 1e-9)


def test_a_slow_rank_that_interleaves_works_while_it_waits_for_those_behind():
    # Two chunks for each rank behind, on the way there and on the way back.
    for v in [2, 4]:
        for b in [1.0, 2.0, 3.0]:
            for behind in [0, 1, 3, 6]:
                p, m = 8, 24
                t = 1.0 + b
                free_s = max(t - 2.5, 0.0) + max(t - 2.5 * b, 0.0)
                by_hand_s = m * 1.25 * t + ((p - 1 - behind) * t + behind * free_s) / v
                paid_s, took_s = with_one_slow("interleaved", p, m, v, p - 1 - behind, 1.0, b)

                assert paid_s == pytest.approx(by_hand_s, rel=1e-9)
                assert took_s == pytest.approx(by_hand_s, rel=0.02)


def test_a_single_group_goes_round_at_the_pace_of_its_slowest_rank():
    # v - 1 times 8 passes forward, all but the first behind each other, the way of one micro-batch there and back through
    # every chunk, and the same backward: 1.25 + 7 is the way through all ranks.
    for v in [2, 4]:
        for behind in [3, 5, 7]:
            p, b = 8, 2.0
            by_hand_s = (2.0 * 8.25 + (p * (v - 1) - 1) * 1.25) * (1.0 + b) / v
            paid_s, took_s = with_one_slow("interleaved", p, p, v, p - 1 - behind, 1.0, b)

            assert took_s == pytest.approx(by_hand_s, rel=1e-9)
            assert paid_s == pytest.approx(by_hand_s, rel=1e-9)


def test_neighbours_of_a_v_by_layers():
    # Eight chunks of 2, 1, 1, 1 and again: ranks of 3, 2, 2 and 3 layers.
    rings = plan_rings([0] * 10, 1, 4)
    assert (rings.pairs[0].tolist(), rings.pair_turns.tolist()) == ([4.0], [0.0])
    assert (rings.threes[0].tolist(), rings.three_turns.tolist()) == ([7.0], [1.0])
    assert float(rings.turn[0]) == 3.0
    # Six ranks of 3, 2, 2, 3, 3 and 2: of pairs (1, 2) and (3, 4), of threes the block of V-Min turns at rank 3.
    rings = plan_rings([0] * 15, 1, 6)
    assert rings.pairs[0].tolist() == [4.0, 6.0]
    assert (rings.threes[0].tolist(), rings.three_turns.tolist()) == ([7.0], [0.0])
    # Of many layouts each as alone, with two makes of pairs or one; three ranks are no V.
    many = plan_rings([0] * 10, 1, np.array([3, 4, 8]))
    assert many.pairs[0].max(axis=-1).tolist() == [0.0, 4.0, 4.0]


@pytest.mark.parametrize(
    ("name", "p", "m"), [("v-half", 8, 64), ("v-half", 9, 40), ("v-min", 8, 64), ("v-min", 7, 40)]
)
@pytest.mark.parametrize("times", [(1.0, 1.0, 0.3), (1.0, 1.9, 0.4), (1.0, 0.9, 0.9)])
@pytest.mark.parametrize("message_s", [0.0, 0.1])
def test_neighbours_of_a_v_with_more_layers_wait_for_each_other(name, p, m, times, message_s):
    # Half of the ranks hold three layers where the others hold two, side by side.
    share = np.ones(p)
    share[1 : p // 2 + 1] += 0.5
    forward, inputs, weights = (share * each for each in times)
    step_s = simulate(
        task_orders(name, p, m, 2),
        forward_s=forward,
        backward_input_s=inputs,
        backward_weight_s=weights,
        message_s=message_s,
        synchronized=True,
    ).makespan_s()

    rings = {
        "pair_forward_s": max(forward[i] + forward[i + 1] for i in range(1, p - 1, 2)),
        "pair_input_s": max(inputs[i] + inputs[i + 1] for i in range(1, p - 1, 2)),
        "pair_weight_s": max(weights[i] + weights[i + 1] for i in range(1, p - 1, 2)),
        "three_forward_s": max(forward[i - 2 : i + 1].sum() for i in range(p - 1, 1, -3)),
        "three_input_s": max(inputs[i - 2 : i + 1].sum() for i in range(p - 1, 1, -3)),
        "vee_turn_s": 0.5 * (forward[:3].sum() + inputs[:3].sum()),
    }
    means = {
        "mean_forward_s": forward.mean(),
        "mean_backward_s": inputs.mean() + weights.mean(),
        "mean_backward_weight_s": weights.mean(),
    }
    shared = {
        "sum_forward_s": forward.sum(),
        "sum_backward_s": inputs.sum() + weights.sum(),
        "sum_backward_weight_s": weights.sum(),
        **means,
        **rings,
    }
    ends = {"first": np.arange(p) == 0, "last": np.arange(p) == p - 1}
    layout = {"stages": p, "micro_batches": m, "virtual_stages": 2}
    code = schedules.schedule_code(name)
    passes = {"forward_s": forward, "backward_input_s": inputs, "backward_weight_s": weights}
    bubble_s = schedules.bubble_time_s(code, **layout, **passes, **shared, **ends, synchronized=True)
    own_s = m * (forward + inputs + weights) + bubble_s
    at = int(own_s.argmax())
    one = {key: value[at] for key, value in {**passes, **ends}.items()}
    sent = schedules.exposed_p2p_messages(code, **layout, **one, **rings, **means, message_s=message_s)

    assert float(own_s[at] + sent * message_s) == pytest.approx(step_s, rel=0.03)


@pytest.mark.parametrize(
    ("p", "m", "passes", "more", "fraction"),
    [
        # Weight gradients that are longer than forward passes are put off whole: 3 (1 + 2.5) - 3 * 1.8 of bubble.
        (4, 8, (1.0, 2.5, 1.6), (0.2, 0.2, 0.2), 32 / 34),
        # Gaps of two thirds of a weight gradient, which memory would let wait, take one all the same.
        (4, 32, (1.0, 1.75, 0.53), (0.17, 0.12, 0.1), 0.05),
    ],
)
def test_zb_h1_puts_off_whole_weight_gradients_of_a_rank_with_the_head(p, m, passes, more, fraction):
    forward, inputs, weights = (np.ones(p) * each for each in passes)
    for each, extra in zip((forward, inputs, weights), more, strict=True):
        each[-1] += extra
    step_s = simulate(
        task_orders("zb-h1", p, m),
        forward_s=forward,
        backward_input_s=inputs,
        backward_weight_s=weights,
        pending_weight_fraction=fraction,
        synchronized=True,
    ).makespan_s()
    bubble_s = schedules.bubble_time_s(
        schedules.schedule_code("zb-h1"),
        stages=p,
        micro_batches=m,
        forward_s=forward,
        backward_input_s=inputs,
        backward_weight_s=weights,
        sum_forward_s=forward.sum(),
        sum_backward_s=inputs.sum() + weights.sum(),
        sum_backward_weight_s=weights.sum(),
        pending_weight_fraction=fraction,
        synchronized=True,
        behind=p - 1 - np.arange(p),
    )

    assert float((m * (forward + inputs + weights) + bubble_s).max()) == pytest.approx(step_s, rel=0.01)


def test_zb_h1_hides_half_of_its_messages_behind_a_rank_with_the_head():
    # 4 * 7 messages of 0.5 with equal ranks; 16 times 0.3 more on the last hide 9.6 of the 14 that can hide.
    equal = {"mean_forward_s": 1.0, "mean_backward_s": 2.0, "backward_input_s": 1.0, "backward_weight_s": 1.0}
    layout = {"stages": 8, "micro_batches": 16, "message_s": 0.5}
    code = schedules.schedule_code("zb-h1")
    sent = [
        float(schedules.exposed_p2p_messages(code, **layout, **equal, forward_s=f)) for f in (1.0, 1.3, 3.0)
    ]

    assert sent == pytest.approx([28.0, 28.0 - 9.6, 14.0])
