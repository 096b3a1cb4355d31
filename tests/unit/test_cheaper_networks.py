"""Compressed and rare gradient exchange, buckets, slow data loaders and offload: bytes by hand, and limits."""

import pytest

import costmodel as cm
from costmodel.bill.formula import evaluate
from costmodel.physics.network.gradient_compression import (
    compression_traffic,
)
from costmodel.step.anatomy.params import num_params

JOB = {
    "model": "llama3-8b",
    "cluster": "cloud-h100-100gbe",
    "gpus": 64,
    "tp": 8,
    "global_batch": 512,
    "seq_len": 4096,
    "zero_stage": 0,
}
HELD = 8.03e9 / 8


def price(switches=None, **changes):
    return cm.estimate(**{**JOB, **changes}, switches=switches)


def sent(est, word="dp.dense.grad"):
    return sum(float(line.bytes) for line in est.bill.time_lines if line.name.startswith(word))


def exposed(est, word):
    return sum(float(line.exposed_seconds) for line in est.bill.time_lines if line.name.startswith(word))


def test_bytes_of_each_method_on_the_bill():
    """Of 1/8 of Llama 3 8B over 8 replicas: 2 (P-1)/P n for what adds up, the same in two parts where it does not."""
    full = sent(price())
    assert full == pytest.approx(2 * 7 / 8 * 4 * HELD, rel=0.01)
    assert sent(price({"gradient_compression": "fp16"})) == pytest.approx(full / 2)
    scale = 4 / 256
    assert sent(price({"gradient_compression": "int8"})) == pytest.approx(full / 4 * (1 + scale), rel=1e-6)
    assert sent(price({"gradient_compression": "int4"})) == pytest.approx(
        full / 8 * (1 + 2 * scale), rel=1e-6
    )
    top = sent(price({"gradient_compression": "top-k", "compression_density": 0.001}))
    assert top == pytest.approx(7 * 0.001 * 8 * HELD, rel=0.01)
    low = sent(price({"gradient_compression": "powersgd", "compression_rank": 4}))
    assert low < full / 100
    assert sent(price({"gradient_compression": "powersgd", "compression_rank": 64})) > 10 * low


def test_bf16_gradients_gain_nothing_from_fp16():
    narrow = {"grad_reduce_dtype": "bf16"}
    assert float(price({**narrow, "gradient_compression": "fp16"}).step_time_s) == float(
        price(narrow).step_time_s
    )


def test_each_method_pays_for_its_kernels_and_its_residual():
    plain = price()
    for method in ("fp16", "int8", "int4", "top-k", "random-k", "threshold", "powersgd"):
        est = price({"gradient_compression": method})
        assert exposed(est, "dp.dense.compress") > 0
        assert float(est.step_time_s) < float(plain.step_time_s)
        residual = 4 * HELD if method in ("top-k", "random-k", "threshold", "powersgd") else 0.0
        added = float(est.memory_bytes_per_gpu - plain.memory_bytes_per_gpu)
        assert added == pytest.approx(residual * 1.04, rel=0.02)  # and the allocator's slack of it
    fast = {"cluster": "dgx-h100-ndr", "gpus": 8, "tp": 1, "model": "gpt2-xl"}
    assert float(price({"gradient_compression": "top-k"}, **fast).step_time_s) > float(
        price(**fast).step_time_s
    )
    alone = {"gpus": 8}
    assert exposed(price({"gradient_compression": "int8"}, **alone), "dp.dense.compress") == 0


def test_top_k_loses_to_dense_from_one_over_density_ranks_on():
    topk = {"gradient_compression": "top-k", "compression_density": 0.01}
    few, many = ({"tp": 1, "model": "gpt2-xl", "gpus": gpus, "global_batch": 1024} for gpus in (64, 1024))
    assert sent(price(topk, **few)) < sent(price(**few))
    assert sent(price(topk, **many)) > sent(price(**many))


def test_quantised_pieces_meet_inside_the_node_first():
    """ZeRO++ (arXiv:2306.10209): a quarter of the bytes of fp32, and an eighth of those cross the network."""
    est = price({"gradient_compression": "int8"}, tp=1, zero_stage=1)
    lines = {line.name: float(line.bytes) for line in est.bill.time_lines}
    params = num_params(cm.load_model("llama3-8b"))
    assert lines["dp.dense.grad_all_to_all.inside"] == pytest.approx(7 / 8 * params * (1 + 4 / 256), rel=1e-3)
    assert lines["dp.dense.grad_all_to_all.across"] == pytest.approx(
        7 / 8 * params / 8 * (1 + 4 / 256), rel=1e-3
    )
    assert float(est.step_time_s) < float(price(tp=1, zero_stage=1).step_time_s)
    sharded = price({"gradient_compression": "int8", "dp_overlap": "every-layer"}, tp=1, zero_stage=3)
    assert float(sharded.step_time_s) < float(
        price({"dp_overlap": "every-layer"}, tp=1, zero_stage=3).step_time_s
    )


def test_factors_of_a_rank_beside_the_matrix():
    """Factors of rank 4 send 4 (m + n) elements in fp32 of each m x n matrix, and vectors whole."""
    low = sent(price({"gradient_compression": "powersgd", "compression_rank": 4}))
    h, kv, ffn, layers, vocab = 4096, 1024, 14336, 32, 128256
    matrices = ((h + 2 * kv) * h, h * h, 2 * ffn * h, ffn * h)
    elements = layers * (sum(4 * (h + m / 8 / h) for m in matrices) + 2 * h)
    elements += 2 * 4 * (h + vocab / 8) + h
    assert low == pytest.approx(2 * 7 / 8 * 4 * elements, rel=1e-6)


@pytest.mark.parametrize(
    ("method", "element_bytes", "expected"),
    [
        ("none", 4.0, 0),
        ("fp16", 4.0, 2 * (4 + 2) * 1000),
        ("fp16", 2.0, 0),
        # Quantise 4 to 1 1/64, read the pieces, sum an eighth, restore.
        ("int8", 4.0, 1000 * (5 + 1 / 64 + 1 + 1 / 64 + (5 + 1 / 64) / 8 + 5 + 1 / 64)),
        ("int4", 4.0, 1000 * (4.5 + 1 / 64 + 0.5 + 1 / 64 + (4.5 + 1 / 64) / 8 + 4.5 + 1 / 64)),
        # Nine passes, and 1 % of eight ranks' elements: 8 bytes read, 4 read and 4 written.
        ("top-k", 4.0, 9 * 4 * 1000 + 16 * 10 * 8),
        # Four passes; of 1 %, taken out, put back, and cleared from the residual.
        ("random-k", 4.0, 4 * 4 * 1000 + 5 * 4 * 10),
        # No rounds of selection: five passes.
        ("threshold", 4.0, 5 * 4 * 1000 + 16 * 10 * 8),
        ("powersgd", 4.0, 8 * 4 * 1000),
    ],
)
def test_traffic_of_each_method_by_hand(method, element_bytes, expected):
    made = compression_traffic(method, 1000.0, element_bytes=element_bytes, num_ranks=8.0)
    assert float(made.value) == pytest.approx(expected, rel=1e-12)
    assert float(evaluate(made.formula, made.terms)) == float(made.value)


def test_rare_averages_send_an_nth_and_keep_two_copies():
    """DiLoCo, arXiv:2311.08105: 500 inner steps, so 500 times less communication."""
    plain, rare = price(), price({"sync_every": 500})
    assert sent(rare) == pytest.approx(sent(plain) / 500)
    added = {line.name: float(line.bytes.max()) for line in rare.bill.memory_lines}["state.optimizer.outer"]
    assert added == pytest.approx(8 * HELD, rel=0.01)
    assert exposed(rare, "optimizer.outer") > 0
    mean = price({"sync_every": 500, "outer_momentum": "false"})
    assert float(mean.memory_bytes_per_gpu) < float(rare.memory_bytes_per_gpu)
    both = price({"sync_every": 500, "gradient_compression": "int4"})
    assert sent(both) < sent(rare) / 6


def test_rare_averages_between_shard_groups():
    job = {"tp": 1, "zero_stage": 1, "shard_group": 8}
    plain, rare = price(**job), price({"sync_every": 100}, **job)

    def replicas(est):
        return sent(est, "dp.dense.grad_replica")

    assert replicas(rare) == pytest.approx(replicas(plain) / 100)
    assert sent(rare, "dp.dense.grad_reduce_scatter") == sent(plain, "dp.dense.grad_reduce_scatter")
    job = {**job, "zero_stage": 3}
    assert float(price({"sync_every": 100}, **job).step_time_s) < float(price(**job).step_time_s)


def test_bucket_sizes_have_a_best():
    """Large ones wait at the end, small ones pay their latency again and again."""
    fast = {"cluster": "dgx-h100-ndr"}
    times = [float(price({"bucket_elements": n}, **fast).step_time_s) for n in (1e5, 6.5e6, 1e9)]
    assert times[1] < times[0]
    assert times[1] < times[2]
    assert sent(price({"bucket_elements": 6.5e6})) == pytest.approx(sent(price()))


def test_a_slow_data_loader_sets_the_pace():
    plain = price()
    # 512 x 4096 tokens over 8 hosts, one replica each
    need = 512 * 4096 / 8 / float(plain.step_time_s)
    assert exposed(price({"input_tokens_per_s": 2 * need}), "overhead.input") == 0
    slow = price({"input_tokens_per_s": need / 2})
    assert float(slow.step_time_s) == pytest.approx(2 * float(plain.step_time_s))


@pytest.mark.parametrize(
    ("switches", "changes", "words"),
    [
        (
            {"gradient_compression": "powersgd"},
            {"zero_stage": 1},
            "powersgd needs whole gradients on every replica",
        ),
        ({"gradient_compression": "top-k"}, {"zero_stage": 3}, "top-k needs whole gradients"),
        ({"gradient_compression": "random-k"}, {"zero_stage": 1}, "random-k needs whole gradients"),
        ({"gradient_compression": "threshold"}, {"zero_stage": 2}, "threshold needs whole gradients"),
        ({"compression_steps": -1}, {}, "compression_steps"),
        ({"sync_every": 100}, {"zero_stage": 1}, "sync_every: 100 needs replicas that hold everything"),
        ({"compression_density": 0}, {}, "compression_density"),
        ({"offload_activations": 2}, {}, "offload_activations"),
        ({"gradient_compression": "int2"}, {}, "gradient_compression"),
    ],
)
def test_wrong_input_is_one_clear_line(switches, changes, words):
    with pytest.raises(cm.CostModelError, match=words) as caught:
        price(switches, **changes)
    assert "\n" not in str(caught.value)


def test_random_elements_are_summed_and_those_above_a_threshold_gathered():
    """1 % at the same places of all ranks is a hundredth of an all-reduce; at others it comes with its places."""
    full = sent(price())
    assert sent(price({"gradient_compression": "random-k"})) == pytest.approx(full / 100)
    above = price({"gradient_compression": "threshold"})
    assert sent(above) == pytest.approx(7 * 0.01 * 8 * HELD + 7 * 8, rel=0.01)
    counts = next(line for line in above.bill.time_lines if line.name == "dp.dense.grad_counts_all_gather")
    assert float(counts.bytes) == pytest.approx(7 * 8)
    assert float(counts.each_s) > 0
    assert not any("counts" in line.name for line in price({"gradient_compression": "top-k"}).bill.time_lines)


@pytest.mark.parametrize(
    ("method", "given", "steps"),
    [
        ("none", 0, 1.0),
        ("fp16", 0, 1.0),
        ("powersgd", 0, 1.0),
        ("top-k", 0, 1.075),
        ("random-k", 0, 1.0),
        ("threshold", 0, 1.0),
        ("top-k", 1, 1.0),
        ("powersgd", 1.2, 1.2),
    ],
)
def test_steps_to_the_same_loss_count_in_days_and_money(method, given, steps):
    """The guide, section 7.5: 5 to 10 % more iterations for the largest 1 %."""
    est = price({"gradient_compression": method, "compression_steps": given}, tokens=1e12)
    plain = 1e12 / float(est.tokens_per_s_per_gpu) / 3600.0
    assert float(est.gpu_hours(1e12)) == pytest.approx(steps * plain)
    assert float(est.days(1e12)) == pytest.approx(steps * plain / 64 / 24)
    assert est.to_dict()["gpu_hours"] == pytest.approx(steps * plain)


def test_compression_pays_up_to_a_number_of_steps():
    whole, low = price(), price({"gradient_compression": "powersgd"})
    gain = float(whole.step_time_s) / float(low.step_time_s) - 1
    [said] = [warning for warning in low.warnings if "gradient_compression" in warning]
    assert f"less than {gain:.1%} more steps; none more are counted" in said
    [counted] = [each for each in price({"gradient_compression": "top-k"}).warnings if "compression" in each]
    assert "7.5% more are counted in days" in counted
    fast = {"cluster": "dgx-h100-ndr", "gpus": 8, "tp": 1, "model": "gpt2-xl"}
    slow = price({"gradient_compression": "top-k"}, **fast)
    assert any("top-k saves no time" in warning for warning in slow.warnings)
    assert not any("compression" in warning for warning in whole.warnings)
