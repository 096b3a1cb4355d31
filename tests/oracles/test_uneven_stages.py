"""Closed forms against the simulation where ranks are unlike: the head on one, more layers on some."""

import numpy as np
import pytest
from test_schedules_simulation import waited_s

from costmodel.physics.pipeline import schedules
from costmodel.physics.pipeline.engine import simulate
from costmodel.physics.pipeline.schedule_table import SCHEDULES
from costmodel.physics.pipeline.schedules import task_orders
from costmodel.physics.pipeline.stages import Fold, plan_wait_cycles

KEPT = 32 / 34
PASSES = ("forward_s", "backward_input_s", "backward_weight_s")


def sums_of(forward, inputs, weights):
    """What all ranks take together, from what each takes."""
    backward = inputs + weights
    sums = (("forward", forward), ("backward", backward), ("backward_weight", weights))
    return {f"sum_{name}_s": each.sum() for name, each in sums}


def layers_of(kind, forward, inputs, weights):
    """What layers alone take on the mean stage, or on the one that has most (`plain`)."""
    return {
        f"{kind}_forward_s": forward,
        f"{kind}_backward_s": inputs + weights,
        f"{kind}_backward_weight_s": weights,
    }


def priced_s(name, p, m, of_rank, *, v=1, **unlike):
    """Price the step that each rank would set the pace of; the longest is paid."""
    places = np.arange(p)
    bubble_s = schedules.bubble_time_s(
        schedules.schedule_code(name),
        stages=p,
        micro_batches=m,
        virtual_stages=v,
        **dict(zip(PASSES, of_rank, strict=True)),
        **sums_of(*of_rank),
        **{"behind": p - 1 - places, "first": places == 0, "last": places == p - 1, **unlike},
    )
    return m * sum(of_rank) + bubble_s


def took_s(name, p, m, passes, *, v=1, **how):
    """Simulate the step of ranks that wait for each other at its end."""
    given = dict(zip(PASSES, passes, strict=True))
    return simulate(task_orders(name, p, m, v), **given, synchronized=True, **how).makespan_s()


@pytest.mark.parametrize("name", ["gpipe", "zb-h1", "zb-v", "dualpipe", "dualpipe-v", "v-half", "v-min"])
def test_a_rank_with_the_head_is_slower_than_the_others(name):
    # The head lies at the end of the way: on the last rank, and where a V turns back on the first. Its forward pass is
    # a third of all; a little of the embedding on the first stage.
    fold = SCHEDULES[name].fold
    chunks = 2 if fold is Fold.V_SHAPED else 1
    for p, m in [(4, 16), (8, 16), (8, 64)]:
        for head in [0.15, 0.5, 1.0]:
            for times in [(1.0, 1.8, 0.6), (1.0, 1.1, 0.9)]:
                by_chunk = [np.full((p, chunks), each / chunks) for each in times]
                for each, time in zip(by_chunk, times, strict=True):
                    each[(0, 1) if fold is Fold.V_SHAPED else (p - 1, 0)] += head * time
                    each[0, 0] += 0.02 * time
                given, of_rank = by_chunk, [each.sum(axis=1) for each in by_chunk]
                if fold is Fold.BIDIRECTIONAL:
                    given, of_rank = of_rank, [0.5 * (each + each[::-1]) for each in of_rank]
                step_s = took_s(name, p, m, given, v=chunks, pending_weight_fraction=KEPT)

                forward, inputs, weights = of_rank
                paid_s = priced_s(
                    name,
                    p,
                    m,
                    of_rank,
                    v=chunks,
                    **layers_of("plain", *times),
                    **layers_of("mean", *times),
                    most_forward_s=forward.max(),
                    most_backward_s=(inputs + weights).max(),
                    pending_weight_fraction=KEPT,
                    synchronized=True,
                )
                assert float(paid_s.max()) == pytest.approx(step_s, rel=0.03)


def test_gpipe_waits_for_the_slowest_of_each_pass():
    # 2 + 1 + 1 and three times 2 forward; 1 + 1 + 3 and three times 3 backward.
    passes = [np.array([2.0, 1.0, 1.0]), np.array([1.0, 1.0, 3.0]), np.zeros(3)]
    assert priced_s("gpipe", 3, 4, passes, most_forward_s=2.0, most_backward_s=3.0).tolist() == [24.0] * 3
    assert took_s("gpipe", 3, 4, passes) == 24.0


def test_zb_h1_puts_off_what_its_last_rank_can_hold():
    # Seven others of 1 forward and 1.8 backward; the last rank, which keeps a tenth of the activations for each weight
    # gradient that it puts off, does so with 15 of 0.6 while the others run backwards: 7 + 7 * 1.8 - 15 * 0.6.
    passes = [np.ones(8) * each for each in (1.0, 1.8, 0.6)]
    for each, more in zip(passes, (0.2, 0.3, 0.0), strict=True):
        each[-1] += more
    paid_s = priced_s("zb-h1", 8, 16, passes, pending_weight_fraction=0.1)[-1]
    assert paid_s - 16 * 3.9 == pytest.approx(7 + 7 * 1.8 - 15 * 0.6)
    assert paid_s == pytest.approx(took_s("zb-h1", 8, 16, passes, pending_weight_fraction=0.1), rel=0.03)


def test_zb_h1_puts_off_whole_weight_gradients_of_a_rank_with_the_head():
    for m, passes, more, fraction in [
        # Weight gradients that are longer than forward passes are put off whole: 3 (1 + 2.5) - 3 * 1.8 of bubble.
        (8, (1.0, 2.5, 1.6), (0.2, 0.2, 0.2), KEPT),
        # Gaps of two thirds of a weight gradient, which memory would let wait, take one all the same.
        (32, (1.0, 1.75, 0.53), (0.17, 0.12, 0.1), 0.05),
    ]:
        of_rank = [np.ones(4) * each for each in passes]
        for each, extra in zip(of_rank, more, strict=True):
            each[-1] += extra
        how = {"pending_weight_fraction": fraction}
        paid_s = priced_s("zb-h1", 4, m, of_rank, **how, synchronized=True)
        assert float(paid_s.max()) == pytest.approx(took_s("zb-h1", 4, m, of_rank, **how), rel=0.01)


def one_slow(name, p, m, at, times, *, message_s=0.0):
    """Price and simulate a pipeline whose rank `at` takes 0.3 longer than each of the others; None for none."""
    share = np.ones(p)
    if at is not None:
        share[at] += 0.3
    passes = [share * each for each in times]
    paid_s = priced_s(name, p, m, passes, pending_weight_fraction=KEPT, synchronized=True)
    run_s = took_s(name, p, m, passes, message_s=message_s, pending_weight_fraction=KEPT)
    return float(paid_s.max()), run_s


@pytest.mark.parametrize("name", ["zb-h1", "zb-2p"])
def test_a_slow_rank_works_while_it_waits_for_those_behind(name):
    # Before it was priced as if it were the last: up to 16 % too long.
    for p, m in [(4, 16), (8, 16), (8, 32)]:
        for times in [(1.0, 1.0, 1.0), (1.0, 1.6, 0.4)]:
            for at in [None, 0, 1, -3, -1]:
                paid_s, run_s = one_slow(name, p, m, at, times)
                assert paid_s == pytest.approx(run_s, rel=0.031)


def test_zb_h1_waits_for_late_messages():
    """Of p micro-batches on their round one weight gradient runs: beyond half of it a message is waited for twice."""
    w = 0.4
    for p, m in [(2, 17), (4, 16), (8, 32)]:
        for message_s in [0.1, 0.9, 2.0]:
            times = (1.0, 1.6, w)
            waits_s = waited_s("zb-h1", p, m, 1, times, message_s)
            rounds = m - p - -(-(m - 1) // p)
            assert waits_s == pytest.approx(4 * (p - 1) * message_s + rounds * max(2 * message_s - w, 0.0))
            paid_s, run_s = one_slow("zb-h1", p, m, None, times, message_s=message_s)
            assert paid_s + waits_s == pytest.approx(run_s, rel=1e-9)


def sent(name, **terms):
    return float(schedules.exposed_p2p_messages(schedules.schedule_code(name), **terms))


def test_a_slower_rank_hides_messages():
    layout = {"stages": 8, "message_s": 0.5, "backward_input_s": 1.0, "backward_weight_s": 1.0}
    # ZB-H1: 4 * 7 with equal ranks; 16 times 0.3 more on the last hide 9.6 of the 14 that can hide.
    equal = {**layout, "micro_batches": 16, "mean_forward_s": 1.0, "mean_backward_s": 2.0}
    for forward_s, messages in ((1.0, 28.0), (1.3, 28.0 - 9.6), (3.0, 14.0)):
        assert sent("zb-h1", **equal, forward_s=forward_s) == pytest.approx(messages)
    # ZB-V: 4 of 6 a hop; the other two hide behind what the first rank takes longer, all micro-batches together.
    rank = {**layout, "forward_s": 1.0, "mean_forward_s": 0.9, "mean_backward_s": 2.0, "first": 1.0}
    for m, messages in ((16, 42 - 16 * 0.1 / 0.5), (128, 28)):
        assert sent("zb-v", **rank, virtual_stages=2, micro_batches=m) == pytest.approx(messages)
    assert sent("zb-v", stages=8, virtual_stages=2, micro_batches=16) == 42


def slower_by_a_quarter(name, p, m, v, at, f, b):
    """Price and simulate ranks of `f` and `b`, of which rank `at` takes 0.25 longer."""
    share = np.ones(p)
    share[at] += 0.25
    passes = [f * share, b * share, np.zeros(p)]
    plain, mean = layers_of("plain", 1.25 * f, 1.25 * b, 0.0), layers_of("mean", *(x.mean() for x in passes))
    paid_s = priced_s(name, p, m, passes, v=v, **plain, **mean)
    return float(paid_s.max()), took_s(name, p, m, passes, v=v)


def test_a_slow_rank_of_1f1b_works_while_it_waits_for_those_behind():
    # m passes of 1.25, the others once, and each rank behind again, less a pass of the slow one meanwhile.
    for p, m in [(4, 4), (8, 8), (8, 24)]:
        for b in [1.0, 2.0, 3.0]:
            for behind in [0, 1, 2, -1]:
                k = behind % p
                t = 1.0 + b
                by_hand_s = m * 1.25 * t + (p - 1 - k) * t + k * (2.0 - 1.25) * t
                paid_s, run_s = slower_by_a_quarter("1f1b", p, m, 1, p - 1 - k, 1.0, b)

                assert run_s == pytest.approx(by_hand_s, rel=1e-9)
                # Others count what the first takes longer as if it were spread over those behind them too.
                assert paid_s == pytest.approx(by_hand_s, rel=0.03 if k == p - 1 else 1e-9)


def test_a_slow_rank_that_interleaves_works_while_it_waits_for_those_behind():
    # Two chunks for each rank behind, on the way there and on the way back.
    p, m = 8, 24
    for v in [2, 4]:
        for b in [1.0, 2.0, 3.0]:
            for behind in [0, 1, 3, 6]:
                t = 1.0 + b
                free_s = max(t - 2.5, 0.0) + max(t - 2.5 * b, 0.0)
                by_hand_s = m * 1.25 * t + ((p - 1 - behind) * t + behind * free_s) / v
                paid_s, run_s = slower_by_a_quarter("interleaved", p, m, v, p - 1 - behind, 1.0, b)

                assert paid_s == pytest.approx(by_hand_s, rel=1e-9)
                assert run_s == pytest.approx(by_hand_s, rel=0.02)


def test_a_single_group_goes_round_at_the_pace_of_its_slowest_rank():
    # v - 1 times 8 passes forward, all but the first behind each other, the way of one micro-batch there and back through
    # every chunk, and the same backward: 1.25 + 7 is the way through all ranks.
    p, b = 8, 2.0
    for v in [2, 4]:
        for behind in [3, 5, 7]:
            by_hand_s = (2.0 * 8.25 + (p * (v - 1) - 1) * 1.25) * (1.0 + b) / v
            for seconds in slower_by_a_quarter("interleaved", p, p, v, p - 1 - behind, 1.0, b):
                assert seconds == pytest.approx(by_hand_s, rel=1e-9)


def test_neighbours_of_a_v_by_layers():
    # Eight chunks of 2, 1, 1, 1 and again: ranks of 3, 2, 2 and 3 layers.
    rings = plan_wait_cycles([0] * 10, 1, 4)
    assert (rings.pairs[0].tolist(), rings.pair_turns.tolist()) == ([4.0], [0.0])
    assert (rings.threes[0].tolist(), rings.three_turns.tolist()) == ([7.0], [1.0])
    assert float(rings.turn[0]) == 3.0
    # Six ranks of 3, 2, 2, 3, 3 and 2: of pairs (1, 2) and (3, 4), of threes the block of V-Min turns at rank 3.
    rings = plan_wait_cycles([0] * 15, 1, 6)
    assert rings.pairs[0].tolist() == [4.0, 6.0]
    assert (rings.threes[0].tolist(), rings.three_turns.tolist()) == ([7.0], [0.0])
    # Of many layouts each as alone, with two makes of pairs or one; three ranks are no V.
    many = plan_wait_cycles([0] * 10, 1, np.array([3, 4, 8]))
    assert many.pairs[0].max(axis=-1).tolist() == [0.0, 4.0, 4.0]


@pytest.mark.parametrize(
    ("name", "p", "m"), [("v-half", 8, 64), ("v-half", 9, 40), ("v-min", 8, 64), ("v-min", 7, 40)]
)
@pytest.mark.parametrize("message_s", [0.0, 0.1])
def test_neighbours_of_a_v_with_more_layers_wait_for_each_other(name, p, m, message_s):
    # Half of the ranks hold three layers where the others hold two, side by side.
    share = np.ones(p)
    share[1 : p // 2 + 1] += 0.5
    for times in [(1.0, 1.0, 0.3), (1.0, 1.9, 0.4), (1.0, 0.9, 0.9)]:
        passes = forward, inputs, weights = [share * each for each in times]
        step_s = took_s(name, p, m, passes, v=2, message_s=message_s)
        pairs, threes = range(1, p - 1, 2), range(p - 1, 1, -3)
        rings = {
            "pair_forward_s": max(forward[i] + forward[i + 1] for i in pairs),
            "pair_input_s": max(inputs[i] + inputs[i + 1] for i in pairs),
            "pair_weight_s": max(weights[i] + weights[i + 1] for i in pairs),
            "three_forward_s": max(forward[i - 2 : i + 1].sum() for i in threes),
            "three_input_s": max(inputs[i - 2 : i + 1].sum() for i in threes),
            "vee_turn_s": 0.5 * (forward[:3].sum() + inputs[:3].sum()),
        }
        means = layers_of("mean", *(each.mean() for each in passes))
        own_s = priced_s(name, p, m, passes, v=2, **means, **rings, synchronized=True)
        at = int(own_s.argmax())
        pace = {key: each[at] for key, each in zip(PASSES, passes, strict=True)}
        ends = {"first": at == 0, "last": at == p - 1}
        layout = {"stages": p, "micro_batches": m, "virtual_stages": 2}
        messages = sent(name, **layout, **pace, **ends, **rings, **means, message_s=message_s)
        assert own_s[at] + messages * message_s == pytest.approx(step_s, rel=0.03)
