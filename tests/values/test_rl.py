"""Steps of reinforcement learning: lengths, rollouts, refits and the graph of phases, by hand and against a simulation."""

import heapq
import json
import re
import shlex
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import costmodel as cm
from costmodel.base.errors import CostModelError
from costmodel.base.units import format_seconds
from costmodel.base.yaml_files import document_text
from costmodel.cli import main
from costmodel.generation.decode import decode_step
from costmodel.generation.deployment import Split
from costmodel.generation.memory import largest_batch
from costmodel.generation.phases import (
    forward_lines,
    num_tensors,
    packed_sequences,
    refit_line,
    trainer_bytes,
    training_batch,
)
from costmodel.generation.rollout import (
    exponential_lengths,
    measured_lengths,
    quantile_lengths,
    rollout_spans,
)

SMALL = {
    "model": "llama3-8b",
    "gpus": 16,
    "layout": "pp2",
    "recompute": "full",
    "prompts": 64,
    "samples_per_prompt": 32,
    "prompt_len": 130,
    "response_len": 1000,
    "max_response_len": 4000,
    "optimizer_steps": 4,
    "generation_layout": "tp1",
}
OPEN = {name: value for name, value in SMALL.items() if name != "generation_layout"}
APART = {**SMALL, "generation_gpus": 8, "lag": 1}


def seconds(found):
    return {phase.name: phase.seconds for phase in found.phases}


# --- lengths ---------------------------------------------------------------------------------


def test_exponential_lengths_have_their_mean_and_end_at_the_limit():
    # Scale 1000 cut at 2000: the mean is 1000 (1 - e^-2) = 864.66, and e^-2 = 13.5 % end at the limit.
    found = exponential_lengths(864.66, 2000.0)
    assert found.mean == pytest.approx(864.66, rel=2e-3)
    assert float(found.quantile(1 - np.exp(-2.0))) == pytest.approx(2000.0, rel=2e-3)
    assert float(found.quantile(0.5)) == pytest.approx(1000 * np.log(2), rel=5e-3)
    assert exponential_lengths(3200.0, 4000.0).mean == pytest.approx(3200.0, rel=2e-3)
    # Without a limit that matters, the residual life of an exponential length is the length itself.
    free = exponential_lengths(1000.0, 30000.0)
    assert free.mean_age == pytest.approx(1000.0, rel=0.01)
    assert free.remaining.mean == pytest.approx(1000.0, rel=0.02)
    assert free.spread == pytest.approx(1.0, abs=0.01)


def test_measured_lengths_and_quantiles_keep_what_they_were_given():
    found = measured_lengths([10.0, 20.0, 30.0])
    assert (float(found.quantile(0.5)), found.longest, found.mean) == (20.0, 30.0, pytest.approx(20.0))
    # Equal lengths are half done at a random moment.
    assert measured_lengths([100.0, 100.0]).mean_age == pytest.approx(50.0)
    known = quantile_lengths({0.5: 800.0, 0.9: 3000.0}, 8000.0)
    assert [float(known.quantile(level)) for level in (0.5, 0.9, 1.0)] == [800.0, 3000.0, 8000.0]
    # From the shortest on a straight line through the origin: 800 x 0.5 / 0.9; the mean is that of three trapezes.
    shortest = 800 * 0.5 / 0.9
    assert float(known.quantile(0.0)) == pytest.approx(shortest)
    by_hand = 0.5 * (shortest + 800) / 2 + 0.4 * (800 + 3000) / 2 + 0.1 * (3000 + 8000) / 2
    assert known.mean == pytest.approx(by_hand, rel=1e-3)


# --- rollout ---------------------------------------------------------------------------------


def simulated(lengths, places, step_s, prompt):
    """Decode token by token: as many run as there are places, the next one begins when one ends.

    Returns the seconds, and the tokens in the caches times steps, of all steps and of those after the queue is empty.
    """
    waiting, running, clock, done = list(lengths), [], 0.0, 0
    held, left = np.zeros(2), np.zeros(2)
    while waiting or running:
        while waiting and len(running) < places:
            heapq.heappush(running, (done + waiting.pop(), done))
        steps = running[0][0] - done
        clock += steps * step_s(len(running))
        tokens = sum(prompt + done - begun + steps / 2 for _, begun in running)
        held += steps * np.array([tokens, len(running)])
        left += steps * np.array([tokens, len(running)]) * (not waiting)
        done = running[0][0]
        while running and running[0][0] <= done:
            heapq.heappop(running)
    return clock, held[0] / held[1], left[0] / left[1]


@pytest.mark.parametrize(("mean", "longest"), [(1000, 4000), (3200, 4000), (1500, 8000)])
def test_the_closed_form_drains_as_the_simulation_does(mean, longest):
    lengths = exponential_lengths(mean, longest)
    rng = np.random.default_rng(7)

    def step_s(batch):
        return 0.006 + 9e-5 * batch

    for samples, places in ((64, 999), (1024, 9999), (1024, 256), (1024, 700), (300, 128), (2000, 100)):
        spans = rollout_spans(lengths, samples, places, 100.0)
        mine = float((spans.steps * step_s(spans.batch)).sum())
        runs = [
            simulated(np.ceil(lengths.quantile(rng.random(samples))), places, step_s, 100.0)
            for _ in range(12 if samples > 100 else 60)
        ]
        seconds, context, drained = np.mean(runs, axis=0)
        assert mine == pytest.approx(seconds, rel=0.06), (samples, places)
        weights = spans.steps * spans.batch
        assert np.average(spans.context, weights=weights) == pytest.approx(context, rel=0.05), places
        if places < samples:
            last = np.average(spans.context[1:], weights=weights[1:])
            assert last == pytest.approx(drained, rel=0.05), (samples, places)


def test_a_rollout_by_hand():
    # Equal answers of 100 tokens: 8 of them in 100 steps of 8, or, with 4 places, 200 steps of about 4.
    equal = measured_lengths([100.0, 100.0])
    together = rollout_spans(equal, 8.0, 8.0, 20.0)
    assert (float(together.steps.sum()), together.mean_batch) == (pytest.approx(100.0), pytest.approx(8.0))
    assert float(np.average(together.context, weights=together.steps)) == pytest.approx(70.0, abs=1.0)
    two_rounds = rollout_spans(equal, 8.0, 4.0, 20.0)
    assert two_rounds.tokens == pytest.approx(800.0, rel=0.01)
    assert float(two_rounds.steps.sum()) == pytest.approx(200.0, rel=0.2)
    # Where the last ones begin, those under way have half of their tokens, behind the prompt; half way on, three quarters.
    assert two_rounds.context[1] == pytest.approx(20 + 50 + two_rounds.steps[1] / 4, abs=1.0)
    # With k of n answers twice as long, the rest of the step runs k of them.
    two = measured_lengths([100.0] * 500 + [200.0] * 500)
    spans = rollout_spans(two, 64.0, 64.0, 0.0)
    assert float(spans.steps.sum()) == pytest.approx(200.0)
    assert float(spans.batch[spans.context > 101].mean()) == pytest.approx(32.0, rel=0.05)


@settings(deadline=None, max_examples=40)
@given(
    samples=st.integers(1, 5000),
    places=st.integers(1, 5000),
    limit=st.floats(1.05, 40.0),
    mean=st.floats(10.0, 5000.0),
)
def test_a_rollout_decodes_every_token_and_never_more_answers_than_fit(samples, places, limit, mean):
    lengths = exponential_lengths(mean, limit * mean)
    spans = rollout_spans(lengths, samples, places, 50.0)
    assert spans.tokens == pytest.approx(samples * lengths.mean, rel=0.35 if samples < 8 else 0.02)
    assert np.all(spans.steps > 0)
    assert spans.batch.max() <= min(samples, places) * (1 + 1e-9)
    assert spans.steps.sum() >= lengths.mean * 0.99 * samples / min(samples, places) * 0.5


def test_tokens_are_decoded_where_they_stand_in_their_answers():
    """All together or in turns, a token meets its prompt and what came before it: E[l^2] / 2 E[l] on average."""
    for lengths in (exponential_lengths(1000.0, 8000.0), measured_lengths(np.arange(100.0, 1100.0))):
        levels = (np.arange(100_000) + 0.5) / 100_000
        drawn = lengths.quantile(levels)
        before = float((drawn**2).mean() / (2 * drawn.mean()))
        for samples, places in ((2000, 2000), (2000, 500)):
            spans = rollout_spans(lengths, samples, places, 130.0)
            context = np.average(spans.context, weights=spans.steps * spans.batch)
            assert context == pytest.approx(130 + before, rel=0.02), (samples, places)


# --- refit, packing --------------------------------------------------------------------------


def test_a_refit_by_hand():
    # 2.7 s, 400 tensors of 1 ms, and 16 GB at 5.5 GB/s; held bytes do not matter where all pass one path.
    line = refit_line("broadcast", tensors=400.0, all_bytes=16e9, held_bytes=2e9)
    assert float(line.exposed_seconds) == pytest.approx(2.7 + 0.4 + 16 / 5.5)
    line = refit_line("bucketed", tensors=400.0, all_bytes=16e9, held_bytes=2e9)
    assert float(line.exposed_seconds) == pytest.approx(0.3 + 0.08 + 0.08)


def test_tensors_of_a_checkpoint():
    """32 layers of 9 and three; 48 of 8 and the router beside 128 experts of three matrices."""
    dense, experts = (num_tensors(cm.load_model(name)) for name in ("llama3-8b", "qwen3-30b-a3b"))
    assert 32 * 5 < dense < 32 * 9 + 4
    assert 48 * 128 * 3 < experts < 48 * (128 * 3 + 12)


def test_weights_are_sent_in_16_bits_whatever_the_engine_keeps_them_in():
    """8.03e9 elements of 2 bytes are 16.06 GB, in 163 tensors."""
    for precision in ("bf16", "fp8", "nvfp4"):
        found = cm.estimate_rl(**APART, generation_precision=precision, refit="bucketed")
        assert seconds(found)["refit"] == pytest.approx(0.3 + 163 * 2e-4 + 16.06 / 25, rel=0.002)


REFITS = (
    ("broadcast", "qwen2.5-7b", "tp1", 5.75),
    ("broadcast", "qwen2.5-32b", "tp1", 14.2),
    ("broadcast", "qwen3-30b-a3b", "tp1", 32.2),
    ("delta", "qwen2.5-32b", "tp1", 6.2),
    ("delta", "qwen3-30b-a3b", "tp1", 7.1),
    ("bucketed", "qwen3-30b-a3b", "tp4", 3.56),
    ("bucketed", "deepseek-v3", "tp32", 9.25),
    ("reshard", "qwen3-235b-a22b", "tp8", 4.7),
    ("reshard", "deepseek-v3", "tp32", 8.8),
    ("ipc", "qwen3-235b-a22b", "tp8", 18.4),
    ("cpu", "llama3-8b", "tp1", 25.0),
    ("naive", "deepseek-v3", "tp32", 420.0),
)


def test_refits_lie_within_a_factor_of_two_of_published_ones():
    job = {**SMALL, "gpus": 64, "layout": "tp4", "generation_gpus": 32}
    for method, model, layout, measured_s in REFITS:
        found = cm.estimate_rl(**{**job, "model": model, "generation_layout": layout, "refit": method})
        assert 0.5 < seconds(found)["refit"] / measured_s < 2.0, (method, model)


def test_packing_fills_sequences_and_padding_does_not():
    # Halves of 60 % and 40 % of the capacity pair up; 60 % alone do not.
    assert packed_sequences(measured_lengths([400.0] * 50 + [600.0] * 50), 1000.0) == pytest.approx(
        0.5, abs=0.01
    )
    assert packed_sequences(measured_lengths([600.0, 600.0]), 1000.0) == 1.0
    packed, padded = cm.estimate_rl(**SMALL), cm.estimate_rl(**SMALL, batching="padding")
    # A mean of 1,130 tokens padded to 4,130: 3.65 times the work of training, or more for its attention.
    assert 3.2 < seconds(padded)["train"] / seconds(packed)["train"] < 4.5
    assert any("padded to 4,130 tokens" in said for said in padded.warnings)
    # Eight ranks of five sequences at a time.
    assert float(cm.estimate_rl(**SMALL, micro_batch=5).training.job.global_batch) % 40 == 0
    assert not any("padded" in said for said in packed.warnings)
    # Interleaved, micro-batches come in twos over pp2: 128 answers take 40 sequences of eight ranks, or 48.
    few = {**SMALL, "optimizer_steps": 16}
    even, interleaved = cm.estimate_rl(**few), cm.estimate_rl(**few, vp=4)
    assert [float(one.training.job.global_batch) for one in (even, interleaved)] == [40, 48]
    # Several answers of 1,130 tokens attend within themselves; one that fills its sequence is not packed.
    full = cm.estimate_rl(**{**SMALL, "response_len": 4000})
    assert [training_batch(one.job, 8, 2).get("packed_len") for one in (packed, full)] == [1130, None]


# --- phases ----------------------------------------------------------------------------------


def test_a_step_is_the_sum_of_its_lines_and_training_is_the_training_bill():
    found = cm.estimate_rl(**SMALL)
    record = found.to_dict()
    assert sum(line["exposed_s"] for line in record["lines"]) == pytest.approx(found.step_time_s)
    assert sum(phase["share"] for phase in record["phases"]) == pytest.approx(1.0)
    assert seconds(found)["train"] == pytest.approx(4 * float(found.training.step_time_s))
    # Tokens are conserved: 2,048 answers of 1,130 tokens over four optimizer steps.
    trained = float(found.training.job.global_batch * found.training.job.seq_len)
    assert trained == pytest.approx(512 * 1130, rel=0.03)


def test_the_engine_that_nobody_names_is_the_fastest_and_the_range_is_a_factor():
    found = cm.estimate_rl(**OPEN)
    times = {tp: cm.estimate_rl(**OPEN, generation_layout=f"tp{tp}").step_time_s for tp in (1, 2, 4, 8, 16)}
    assert found.step_time_s == min(times.values()) == times[int(found.job.split.tp)]
    # One GPU does not hold 70B, so that its shortest step is not to be had.
    large = cm.estimate_rl(**{**OPEN, "model": "llama3-70b", "gpus": 64, "layout": "tp8"})
    assert large.places >= 1.0 < large.job.split.tp
    # Heads of 28 are cut by 4 at most, and half of the 16 GPUs generate.
    apart = cm.estimate_rl(**{**OPEN, "model": "qwen2.5-7b", "generation_gpus": 8})
    assert [split.tp for split in apart.job.engine_layouts] == [1, 2, 4]
    apart = cm.estimate_rl(**{**OPEN, "generation_gpus": 4})
    assert [split.tp for split in apart.job.engine_layouts] == [1, 2, 4]
    assert np.array(found.range_s) * [1.19, 1 / 1.19] == pytest.approx(found.step_time_s)
    long = {**SMALL, "response_len": 9000, "max_response_len": 131_000}
    assert any(
        "131,130 tokens are longer than the 131,072" in said for said in cm.estimate_rl(**long).warnings
    )


def test_a_forward_pass_is_a_third_of_a_step_without_recomputation():
    est = cm.estimate(model="llama3-8b", gpus=8, global_batch=64, seq_len=4096, layout="tp2 pp2")
    forward = sum(float(line.exposed_seconds) for line in forward_lines(est))
    assert 0.27 < forward / float(est.step_time_s) < 0.40
    assert not any(line.phase in ("backward", "grad_sync", "optimizer") for line in forward_lines(est))


def test_algorithms_pay_for_their_passes():
    grpo = seconds(cm.estimate_rl(**SMALL))
    for changed, more, fewer in (
        ({"algorithm": "dapo"}, set(), {"ref log-probs"}),
        ({"algorithm": "ppo"}, {"values", "train critic"}, set()),
        (
            {"algorithm": "ssd", "samples_per_prompt": 1},
            set(),
            {"old log-probs", "ref log-probs", "refit", "sleep and wake"},
        ),
        ({"algorithm": "dpo"}, set(), {"generate", "old log-probs", "refit", "sleep and wake"}),
        (
            {"algorithm": "distill", "teacher": "llama3-70b"},
            {"teacher log-probs"},
            {"old log-probs", "ref log-probs"},
        ),
        ({"old_logprobs": False}, set(), {"old log-probs"}),
        ({"reward_s": 7}, {"reward"}, set()),
        ({"reward_model": "qwen2.5-1.5b"}, {"reward"}, set()),
    ):
        assert set(seconds(cm.estimate_rl(**{**SMALL, **changed}))) == (set(grpo) | more) - fewer, changed
    assert seconds(cm.estimate_rl(**SMALL, reward_s=7))["reward"] == 7.0
    # A model of the policy's shape scores in the time of its own log-probs; seconds come on top.
    alike = seconds(cm.estimate_rl(**SMALL, reward_model="llama3-8b", reward_s=2))["reward"]
    assert alike == pytest.approx(grpo["old log-probs"] + 2.0)
    teacher = seconds(cm.estimate_rl(**{**SMALL, "algorithm": "distill", "teacher": "llama3-70b"}))
    assert 6 < teacher["teacher log-probs"] / grpo["old log-probs"] < 11


def test_each_pass_over_the_answers_trains_with_all_optimizer_steps_again():
    """Three passes: the policy and the critic train three times as long on the same batches; all else is as it was."""
    ppo = {**SMALL, "algorithm": "ppo"}
    one, three = cm.estimate_rl(**ppo), cm.estimate_rl(**ppo, ppo_epochs=3)
    trained = {name: 3.0 if name.startswith("train") else 1.0 for name in seconds(one)}
    assert list(trained.values()).count(3.0) == 2
    assert seconds(three) == pytest.approx({name: trained[name] * s for name, s in seconds(one).items()})
    assert three.training.job.global_batch == one.training.job.global_batch
    assert any(text.startswith("Training, one of 12 optimizer steps (") for text in three.warnings)
    critic = seconds(cm.estimate_rl(**ppo, ppo_epochs=3, critic_epochs=2))
    assert critic == pytest.approx({**seconds(three), "train critic": 2 / 3 * seconds(three)["train critic"]})


def test_halves_apart_overlap_and_a_longer_lag_is_never_slower():
    steps = [cm.estimate_rl(**{**APART, "lag": lag}) for lag in (0, 0.25, 1, 2, 4, 8)]
    times = [found.step_time_s for found in steps]
    assert times == sorted(times, reverse=True)
    assert times[0] == pytest.approx(sum(seconds(steps[0]).values()))
    for found in steps[1:]:
        trainer = found.seconds_of("training")
        assert found.step_time_s >= trainer * (1 - 1e-12)
        assert found.waiting_s == pytest.approx(found.step_time_s - trainer)
        terms = {name: float(value) for name, value in found.period.terms.items()}
        by_hand = max(
            terms["training_s"],
            terms["throughput_s"],
            (terms["latency_s"] + max(1 - terms["lag"], 0) * trainer) / max(terms["lag"], 1),
        )
        assert found.step_time_s == pytest.approx(by_hand)
    # What the framework takes beside the phases lengthens decoding too.
    slower = cm.estimate_rl(**{**APART, "rl_framework": "nemo-rl"}).period.terms
    assert float(slower["throughput_s"]) == pytest.approx(
        1.371 * float(steps[2].period.terms["throughput_s"])
    )
    nemo = cm.estimate_rl(**{**APART, "rl_framework": "nemo-rl"})
    framework = seconds(nemo)["framework"]
    assert framework == pytest.approx(0.371 * (nemo.seconds_of("training") - framework))
    # With eight steps of lag the tail is gone: the step is what training or decoding takes at full batches.
    last = {name: float(value) for name, value in steps[-1].period.terms.items()}
    assert times[-1] == pytest.approx(max(last["training_s"], last["throughput_s"]))


@pytest.mark.parametrize(
    "changed",
    [
        {"lag": 0.5},
        {"lag": 2, "gpus": 12, "layout": "tp4"},
        {"lag": 1, "rl_framework": "nemo-rl"},
        {"lag": 1, "rollout_factor": 1.5},
    ],
)
def test_the_running_batch_of_halves_apart_meets_littles_law(changed):
    """Bisection on n = answers' tokens times t(n) over the step, each answer under way for at most its own length."""
    found = cm.estimate_rl(**{**APART, **changed})
    framework = 1.371 if "rl_framework" in changed else 1.0
    job, terms = found.job, {name: float(value) for name, value in found.period.terms.items()}
    tokens = job.answers * job.rollout_factor * job.lengths.mean / job.replicas
    context = job.prompt_len + job.lengths.mean_age
    longest = found.spans.steps.sum() if found.spans.batch[0] < found.places else job.lengths.longest

    def step_s(batch):
        return float(np.max(decode_step(job.served, job.split, np.asarray([batch]), context).step_time_s()))

    def beyond(batch):
        lag, latency_s = terms["lag"], longest * step_s(batch)
        late = (framework * latency_s + max(1 - lag, 0) * terms["training_s"]) / max(lag, 1)
        period = max(late, terms["training_s"], terms["throughput_s"])
        return batch * min(period, latency_s) - tokens * step_s(batch)

    low, high = 1.0, min(found.places, max(job.lag, 1.0) * tokens / job.lengths.mean)
    assert terms["throughput_s"] == pytest.approx(framework * tokens * step_s(high) / high)
    assert beyond(low) < 0 < beyond(high)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if beyond(middle) >= 0 else (middle, high)
    assert terms["latency_s"] == pytest.approx(framework * longest * step_s(high), rel=1e-4)


def test_a_rollout_of_replicas():
    """All replicas wait for the longest of all 2,048 answers: ln 2048 + 0.577 scales of 1,000 tokens (Gumbel)."""
    free = cm.estimate_rl(**{**SMALL, "max_response_len": 30_000})
    assert float(free.spans.steps.sum()) == pytest.approx(1000 * (np.log(2048) + 0.577), rel=0.05)
    # Answers that all take 4,000 tokens hold 2,000 of them on average, behind a prompt of 130.
    equal = cm.estimate_rl(**{**SMALL, "response_len": 4000, "samples_per_prompt": 512})
    assert equal.places == pytest.approx(
        min(float(largest_batch(equal.job.served, Split(), 2130)), 1024), rel=1e-3
    )
    # Each GPU attends to as many prompts with two groups a replica as alone.
    alone, apart = (
        sum(line.exposed_seconds for line in found.phases[0].lines if "prefill.attention_core" in line.name)
        for found in (
            cm.estimate_rl(
                **{**SMALL, "model": "qwen3-30b-a3b", "layout": "ep8", "generation_layout": layout}
            )
            for layout in ("tp1", "tp1 ep2 dp2")
        )
    )
    assert float(apart) == pytest.approx(float(alone), abs=0.0)


def test_an_environment_delays_the_longest_answer():
    """Halves that take turns wait for it once a step; with a lag the answer is later, its decoding no longer."""
    plain, slow = cm.estimate_rl(**SMALL), cm.estimate_rl(**SMALL, environment_s=60)
    assert slow.step_time_s == pytest.approx(plain.step_time_s + 60)
    late = cm.estimate_rl(**APART, environment_s=6000)
    assert late.step_time_s == late.answer_latency_s > 6000
    # So late that a handful of answers decode at once: a token takes less than at full batches.
    assert late.answer_latency_s - 6000 < cm.estimate_rl(**APART).answer_latency_s


def test_more_of_everything_costs_more():
    base = cm.estimate_rl(**SMALL).step_time_s
    for changed in (
        {"prompts": 128},
        {"samples_per_prompt": 64},
        {"response_len": 2000},
        {"max_response_len": 8000},
        {"rollout_factor": 1.5},
        {"memory_fraction": 0.32},
        {"refit": "naive"},
    ):
        assert cm.estimate_rl(**{**SMALL, **changed}).step_time_s > base, changed
    assert cm.estimate_rl(**{**SMALL, "gpus": 32}).step_time_s < base
    assert cm.estimate_rl(**SMALL, generation_precision="fp8").step_time_s < base


def test_what_is_sick_is_said():
    for changed, said in (
        (
            {"refit": "naive", "model": "qwen3-30b-a3b", "layout": "ep8", "generation_layout": "tp2"},
            "Refit by naive takes",
        ),
        ({"memory_fraction": 0.1}, "does not fit"),
        ({"cuda_graphs": False}, "no CUDA graphs"),
        ({"response_len": 300, "max_response_len": 16000}, "waits for the longest"),
    ):
        found = cm.estimate_rl(**{**SMALL, **changed})
        assert any(said in warning for warning in found.warnings), changed
    assert not cm.estimate_rl(**SMALL, memory_fraction=0.1).fits
    # A prompt of 130 and an answer of 600 that half of them exceed, on average 1,050 of 4,000.
    cut = {**SMALL, "response_len": None, "response_quantiles": "p50=600 p90=2000"}
    for capacity, said in ((2130, "training cuts the longest 10.0% off"), (4130, "")):
        told = [text for text in cm.estimate_rl(**cut, seq_len=capacity).warnings if "seq_len" in text]
        assert bool(told) is bool(said)
        assert said in " ".join(told)
    # Of a training step's warnings it is said of which seconds they are a share.
    balanced = next(text for text in cm.estimate_rl(**SMALL).warnings if "pipeline-layout" in text)
    assert balanced.startswith("Training, one of 4 optimizer steps (")
    assert "of the step's " in balanced.partition(":")[0]
    slow = cm.estimate_rl(**{**APART, "gpus": 40, "generation_gpus": 8, "layout": "pp2"})
    assert any("wait" in warning for warning in slow.warnings)


def test_warnings_are_of_what_costs_much_and_say_how_much():
    """From padding to half as long again on, refits of a fifth of the step, and trainers that wait for a quarter of it."""
    large = {"model": "qwen3-30b-a3b", "layout": "ep8", "generation_layout": "tp2"}
    seen = set()
    for more in (
        {},
        {"batching": "padding"},
        {"batching": "padding", "response_len": 2700},
        {"batching": "padding", "response_len": 2500},
        {"refit": "naive"},
        {"refit": "broadcast", **large},
        {"generation_gpus": 4, "lag": 1},
        {"generation_gpus": 8, "lag": 0},
    ):
        found = cm.estimate_rl(**{**SMALL, **more})
        lengths = found.job.lengths.after(130)
        refit = sum(phase.seconds for phase in found.phases if phase.name == "refit") / found.step_time_s
        waits, padding = found.waiting_s / found.step_time_s, lengths.longest / lengths.mean
        for text, is_much, shown in (
            (
                "Answers are padded",
                more.get("batching") == "padding" and padding > 1.5,
                f" {padding:.1f} times",
            ),
            ("Refit by", refit > 0.2, f", {refit:.0%} of the step"),
            ("GPUs that train wait", waits > 0.25, f" ({waits:.0%})"),
        ):
            said = [warning for warning in found.warnings if text in warning]
            assert bool(said) == is_much, (text, more)
            assert all(shown in warning for warning in said), said
            seen.add((text, is_much))
    assert len(seen) == 6


def test_wrong_input_is_one_line_that_names_the_field():
    for changed, said in (
        ({"global_batch": 8}, "global_batch: follows from prompts"),
        ({"prompts": None}, "prompts missing"),
        ({"samples_per_prompt": None}, "samples_per_prompt missing"),
        ({"generation_gpus": 16}, "generation_gpus: expected fewer than the 16 gpus"),
        ({"algorithm": "dpo", "generation_gpus": 8}, "generation_gpus: dpo trains on answers that are there"),
        ({"lag": 1}, "lag: GPUs that train and generate in turn have none"),
        ({"generation_layout": "tp3"}, "replicas of 3 GPUs do not fill"),
        ({"generation_layout": "cp2"}, "cp is no degree of an engine"),
        ({"generation_layout": "tp2 ep2"}, "does not divide the heads, layers or experts of llama3-8b"),
        ({"teacher": "llama3-8b"}, "teacher: goes with algorithm distill"),
        ({"algorithm": "distill"}, "teacher: goes with algorithm distill"),
        ({"algorithm": "reinforce"}, "algorithm: 'reinforce' is unknown"),
        ({"refit": "fax"}, "refit: 'fax' is unknown"),
        (
            {"optimizer_steps": 4000},
            "optimizer_steps: expected a divisor of the 2,048 answers of a step, got 4,000",
        ),
        ({"optimizer_steps": 7}, "optimizer_steps: expected a divisor of the 2,048 answers of a step, got 7"),
        ({"algorithm": "dpo", "samples_per_prompt": 1}, "samples_per_prompt: dpo compares pairs"),
        ({"algorithm": "dpo", "samples_per_prompt": 3, "optimizer_steps": 3}, "expected an even number"),
        ({"seq_len": 1129}, "seq_len: expected at least a prompt and a mean answer, 1,130 tokens, got 1,129"),
        ({"tokens": 1e12}, "tokens: is of a training run"),
        ({"dataset_samples": 1000, "epochs": 2}, "dataset_samples: is of a training run"),
        ({"sample_per_prompt": 2}, "is not a field; did you mean 'samples_per_prompt'"),
        ({"response_len": 5000}, "response_len: 5,000 tokens on average, but max_response_len is 4,000"),
        ({"response_len": None, "response_quantiles": "p50=800 p90=300"}, "tokens must rise"),
        ({"response_len": None, "response_quantiles": "half=3"}, "expected quantiles such as"),
        ({"response_quantiles": "p50=800"}, "give one of them"),
        ({"response_len": None, "response_file": "/nowhere"}, "cannot be read"),
        ({"ppo_epochs": 0}, "ppo_epochs: expected"),
        ({"critic_epochs": 2}, "critic_epochs: only ppo has a critic"),
        ({"acceptance_length": 1.5}, "acceptance_length: is of speculative decoding"),
        ({"draft_model": "llama3-8b"}, "draft_model: is of speculative decoding"),
        (
            {"num_speculative_tokens": 1, "draft_model": "bert-large"},
            "draft_model: bert-large-uncased is an encoder",
        ),
        (
            {"num_speculative_tokens": 1, "acceptance_length": 1.8},
            "has no layer of multi-token prediction",
        ),
        ({"num_speculative_tokens": 2}, "acceptance_length: expected the tokens .* from 1 to 3"),
        ({"num_speculative_tokens": 2, "acceptance_length": 3.1}, "with 2 draft tokens, got 3.1"),
        ({"num_speculative_tokens": 2, "acceptance_length": 0.9}, "acceptance_length: expected"),
    ):
        with pytest.raises(cm.CostModelError, match=said) as caught:
            cm.estimate_rl(**{**SMALL, **changed})
        assert "\n" not in str(caught.value)


# --- the split, the campaign -----------------------------------------------------------------


def test_what_sets_the_step_of_halves_apart_is_shown_with_its_seconds():
    """By hand from the terms: the printed seconds give the printed step, of the estimate and of the plan."""
    from costmodel.reporting.generation import plan_grids, plan_remarks, rl_grids

    waits = cm.plan_rl(**{**OPEN, "generation_gpus": 4, "lag": 2})
    assert waits.columns()["latency_s"] == [float(one.period.terms["latency_s"]) for one in waits.found]
    note, remarks = rl_grids(waits.best)[1].note, " ".join(plan_remarks(waits))
    terms = {name: format_seconds(float(np.max(value))) for name, value in waits.best.period.terms.items()}
    for text in (note, remarks):
        for name in ("training_s", "throughput_s", "latency_s"):
            assert f"{name} {terms[name]}" in text
        assert "lag 2" in text
    for together in (cm.plan_rl(**OPEN, generation_gpus=0), cm.plan_rl(**{**APART, "lag": 0})):
        assert "latency_s" not in f"{plan_remarks(together)}{rl_grids(together.best)[1].note}"
    # Where nothing is generated, nothing is said of splits, rollouts or engines.
    pairs = cm.plan_rl(**OPEN, algorithm="dpo")
    (grid,) = plan_grids(pairs)
    row = dict(zip([column.title for column in grid.columns], grid.rows[0], strict=True))
    assert (row["Generate"], row["Rollout"], row["Engine"]) == ("none", "", "")
    assert "split" not in f"{grid.title}{plan_remarks(pairs)}"
    assert "engine" not in f"{grid.title}{plan_remarks(pairs)}"


def test_the_plan_is_the_fastest_of_all_splits_priced_alone():
    found = cm.plan_rl(**OPEN)
    times = [one.step_time_s for one in found.found]
    assert times == sorted(times)
    assert {one.job.generation_gpus for one in found.found} == {0, 4, 8, 12}
    for gpus, tp in ((0, 1), (4, 1), (8, 2), (12, 2)):
        alone = cm.estimate_rl(**OPEN, generation_gpus=gpus, generation_layout=f"tp{tp}")
        assert found.best.step_time_s <= alone.step_time_s * (1 + 1e-12)
    # What nobody named is decided alike: the estimate of a split is its row.
    for one in found.found:
        again = cm.estimate_rl(**OPEN, generation_gpus=one.job.generation_gpus)
        assert (again.step_time_s, again.job.split) == (one.step_time_s, one.job.split)
    held = cm.plan_rl(**OPEN, generation_gpus=8, lag=4, generation_layout="tp2")
    assert [(one.job.generation_gpus, one.job.lag) for one in held.found] == [(8, 4.0)]
    assert (
        held.best.step_time_s == cm.estimate_rl(**{**APART, "lag": 4, "generation_layout": "tp2"}).step_time_s
    )
    # Answers of DPO are there: nobody generates, and there is nothing to split.
    assert [one.job.generation_gpus for one in cm.plan_rl(**OPEN, algorithm="dpo").found] == [0]
    with pytest.raises(cm.NoLayoutError, match="no split of 16 GPUs works"):
        cm.plan_rl(**{**OPEN, "model": "llama3-405b"})


def test_a_campaign_is_steps_times_the_step():
    step, run = cm.estimate_rl(**SMALL), cm.run_rl(8640, **SMALL)
    assert run.days == pytest.approx(step.step_time_s / 10)
    assert run.gpu_hours == pytest.approx(run.days * 24 * 16)
    hourly = step.job.cluster.price_usd_per_gpu_hour
    assert step.usd_per_step == pytest.approx(16 * step.step_time_s / 3600 * hourly)
    assert run.dollars == pytest.approx(8640 * step.usd_per_step)
    assert run.days_range == pytest.approx([seconds / 10 for seconds in step.range_s])
    assert run.dollars_range == pytest.approx([run.dollars / 1.19, run.dollars * 1.19])
    record = run.to_dict()
    assert (record["days_low"], record["days_high"]) == run.days_range
    assert (record["dollars_low"], record["dollars_high"]) == run.dollars_range
    with pytest.raises(cm.CostModelError, match="steps: expected a whole number"):
        cm.run_rl(0, **SMALL)


def test_the_commands_take_a_job_file_with_a_section(tmp_path, capsys):
    rl = [name for name in OPEN if name not in ("model", "gpus", "layout", "recompute")]
    lines = [f"{key}: {value}" for key, value in OPEN.items() if key not in rl]
    text = "\n".join([*lines, "rl:", *(f"  {key}: {OPEN[key]}" for key in rl)])
    path = tmp_path / "rl.yaml"
    path.write_text(text)
    for command, said in (
        (["estimate", str(path)], "old log-probs"),
        (["estimate", str(path), "--format", "csv"], "phase,pool,line"),
        (["plan", str(path)], "splits between training and generation"),
        (["run", str(path), "--steps", "100"], "The campaign"),
    ):
        assert main(command) == 0
        out = capsys.readouterr().out
        assert said in out
        assert command[0] != "estimate" or "--format" in command or len(out.splitlines()) <= 25
        if command == ["estimate", str(path)]:
            # What nobody named is said; the plan's best on the same split is this one.
            assert "Assumed layouts: generation tp2. No other is 0.5% faster" in out
            step = cm.estimate_rl(str(path))
            each = step.job.answers / step.job.replicas
            shown = " ".join(out.split())
            assert f"for {step.places:,.0f} answers a replica, which has {each:,.0f};" in shown
            assert " and room for " in shown
    for command, said in (
        (["run", str(path)], "--steps"),
        (["run", str(path), "--steps", "9", "--tokens", "1T"], "--tokens: is of a training run"),
        (["run", str(path), "--steps", "9", "--start", "2026-12-01"], "--start: is of a training run"),
        (["run", str(path), "--steps", "9", "--expect", "days < 9"], "--expect: is of a training run"),
        (["estimate", str(path), "--seed", "9"], "--seed: is of a training step"),
        (["estimate", str(path), "--samples", "9"], "--samples: is of a training step"),
        (["plan", str(path), "--emit", "megatron"], "--emit: a plan of reinforcement learning"),
        (["estimate", str(path), "--details"], "--details: is of a training step"),
        (["estimate", str(path), "--tokens", "1T"], "--tokens: is of a training step"),
        (["plan", str(path), "--details"], "--details: a plan"),
        (["plan", str(path), "--tokens", "5"], "--tokens: a plan"),
        (["plan", str(path), "--why-not", "tp2"], "--why-not: a plan"),
        (["plan", str(path), "--check"], "--check: a plan"),
    ):
        assert main(command) == 2
        assert said in capsys.readouterr().err
    # Calls take the file as commands do, and the best of a plan is a file of the same step, its switches in it.
    free = tmp_path / "free.yaml"
    half = "gpus: 64\ncluster: dgx-h100-ndr\nzero: 3\nmicro_batch: 4"
    free.write_text(text.replace("layout:", "#").replace("gpus: 16", half))
    assert cm.estimate_rl(path).step_time_s == cm.estimate_rl(**OPEN).step_time_s
    assert cm.run_rl(str(path), steps=1000).days == cm.run_rl(1000, **OPEN).days
    with pytest.raises(cm.CostModelError, match="steps: expected a whole number"):
        cm.run_rl(path)
    for number, name in enumerate((path, free)):
        best, planned = tmp_path / f"best{number}.yaml", cm.plan_rl(name)
        assert main(["plan", str(name), "--emit", "job", "--out", str(best)]) == 0
        assert cm.estimate_rl(best).step_time_s == planned.best.step_time_s
        assert main(["plan", str(name)]) == 0
        out = capsys.readouterr().out
        assert "costmodel estimate best.yaml" in out
        assert planned.to_dict()["splits"][0]["training_switches"] == planned.switches
    assert "tp_overlap=pipelined" in planned.switches
    assert planned.switches in out
    # A best that is slower is not said, but where the estimate does not fit.
    large = {**cm.read(free).job, "model": "llama3-70b", "generation_gpus": 32}
    large |= {"seq_len": 4096, "prompt_len": 132, "max_response_len": 3964, "recipe": "megatron-bridge"}
    for recompute, fits, said in (
        ("full", True, "No other is 0.5% faster"),
        ("none", False, "Best that fits"),
    ):
        found = cm.estimate_rl(**{**large, "recompute": recompute})
        assert found.fits is fits
        assert said in cm.better_rl(found, {**large, "recompute": recompute})
    # What does not fit stands first.
    path.write_text(text.replace("layout: pp2", "layout: tp1").replace("llama3-8b", "llama3-70b"))
    for command in (["estimate", str(path)], ["run", str(path), "--steps", "100"]):
        assert main([*command, "--check"]) == 3
        assert capsys.readouterr().out.startswith("DOES NOT FIT: ")
        assert main(command) == 0
        assert capsys.readouterr().out.startswith("DOES NOT FIT: ")
    path.write_text(text.replace("  prompts: 64", "  promts: 64"))
    assert main(["estimate", str(path)]) == 2
    assert "did you mean 'prompts'" in capsys.readouterr().err


def test_the_best_of_a_job_without_layouts_is_quoted_with_the_flags_that_make_it(tmp_path, capsys):
    """Layouts alone do not: switches, the order of the axes and the split of layers are the plan's too."""
    path = tmp_path / "rl.yaml"
    section = {"prompts": 64, "samples_per_prompt": 16, "prompt_len": 132, "response_len": 1060}
    section |= {"max_response_len": 3964, "rl_framework": "verl"}
    for more, half in (
        ({}, {}),
        ({"recompute": "full", "switches": {"launch_s": 9e-6}}, {"generation_gpus": 8, "lag": 2}),
    ):
        job = {"model": "llama3-8b", "cluster": "dgx-h100-ndr", "gpus": 16, **more, **section, **half}
        said = cm.better_rl(cm.estimate_rl(**job), job)
        seconds, flags = re.search(r"on these GPUs: ([\d.]+) s a step \(.*%\), .*: (.*)", said).groups()
        rl = {**section, **half}
        path.write_text(document_text({**{name: job[name] for name in job if name not in rl}, "rl": rl}))
        assert main(["estimate", str(path), *shlex.split(flags), "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["step_time_s"] == pytest.approx(
            float(seconds), rel=2e-4
        ), said


# --- answers ---------------------------------------------------------------------------------


def test_pass_at_k_by_hand_and_against_draws():
    from costmodel.physics.run.answers import beta_of_points, pass_at_k, pass_at_k_beta

    assert np.allclose(pass_at_k([1, 2, 3], 0.5), [0.5, 0.75, 0.875])
    # Rates spread evenly over 0 to 1: the mean of 1 - (1 - p)^k is k / (k + 1).
    assert np.allclose(pass_at_k_beta([1, 4, 99], 1.0, 1.0), [0.5, 0.8, 0.99])
    rates = np.random.default_rng(3).beta(0.4, 2.0, 400_000)
    for k in (1, 8, 64):
        assert float(pass_at_k_beta(k, 0.4, 2.0)) == pytest.approx(
            float((1 - (1 - rates) ** k).mean()), abs=3e-3
        )
    for a, b in ((0.3, 2.0), (1.5, 4.0), (0.8, 0.5)):
        points = [float(pass_at_k_beta(k, a, b)) for k in (1, 16)]
        assert beta_of_points(1, points[0], 16, points[1]) == pytest.approx((a, b), rel=1e-3)
    for wrong in ((1, 0.5, 4, 0.4), (1, 0.5, 2, 0.9), (4, 0.5, 1, 0.6)):
        with pytest.raises(cm.CostModelError, match="no Beta distribution"):
            beta_of_points(*wrong)


def test_an_optimizer_that_stays_costs_room_in_place_of_seconds():
    """Llama 3 8B over pp2 dp8: 12 bytes a parameter in main weights and moments, over 16 GPUs, there and back at 5 GB/s."""
    swaps, stays = (cm.estimate_rl(**SMALL, optimizer_swap=swap) for swap in (True, False))
    held = 12 * 8.03e9 / 16  # pp2 dp8
    assert stays.memory["resident_optimizer"] == pytest.approx(held, rel=0.1)
    assert seconds(swaps)["sleep and wake"] == pytest.approx(2 * stays.memory["resident_optimizer"] / 5e9)
    assert "sleep and wake" not in seconds(stays)
    # Reference and policy change places: 16 bits of half of the parameters, out and in.
    swapped = seconds(swaps)["ref log-probs"] - seconds(swaps)["old log-probs"]
    assert swapped == pytest.approx(2 * 2 * 8.03e9 / 2 / 5e9, rel=0.1)
    assert stays.fits
    crowded = cm.estimate_rl(**SMALL, optimizer_swap=False, memory_fraction=0.95)
    assert not crowded.fits
    assert any("optimizer_swap" in warning for warning in crowded.warnings)
    with pytest.raises(CostModelError, match=r"^optimizer_swap: GPUs that only train"):
        cm.estimate_rl(**APART, optimizer_swap=True)


def test_a_critic_is_held_beside_the_policy():
    """As many parameters and gradients as the policy's; its optimizer too where that does not leave the GPU."""
    policy = cm.estimate_rl(**SMALL)
    for swap in (True, False):
        found = cm.estimate_rl(**{**SMALL, "algorithm": "ppo", "samples_per_prompt": 32}, optimizer_swap=swap)
        kept = ("parameters", "gradients") if swap else ("parameters", "gradients", "optimizer")
        critic = trainer_bytes(policy.training, *kept)
        assert found.memory["critic"] == pytest.approx(critic)
        if swap:
            assert seconds(found)["sleep and wake"] == pytest.approx(2 * seconds(policy)["sleep and wake"])
        assert found.memory["training"] == pytest.approx(policy.memory["training"] + critic)


def test_no_named_layout_that_trains_makes_a_shorter_step_than_the_plan():
    """The layout with the shortest optimizer step leaves others room for the engine, or none; the whole step decides."""
    job = {
        "model": "llama3-8b",
        "gpus": 16,
        "prompts": 64,
        "samples_per_prompt": 16,
        "prompt_len": 512,
        "response_len": 2048,
        "max_response_len": 8192,
        "optimizer_steps": 4,
    }
    for generating in (0, 8):
        best_s = cm.plan_rl(**job, generation_gpus=generating).best.step_time_s
        named_s = []
        for tp, pp, recompute in product((1, 2, 4), (1, 2), ("none", "full")):
            lag = {"lag": 1} if generating else {}
            layout = {"tp": tp, "pp": pp, "recompute": recompute, "generation_gpus": generating, **lag}
            try:
                found = cm.estimate_rl(**job, **layout, switches={"cuda_graphs": True})
            except CostModelError:
                continue
            named_s += [found.step_time_s] if found.fits else []
        assert len(named_s) >= 3
        assert best_s <= 1.005 * min(named_s)
