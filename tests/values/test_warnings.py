"""What an estimate warns of: whole sentences, their numbers computed here from the bill, and where each begins."""

import costmodel as cm
from costmodel.base.units import format_seconds

LLAMA = {"model": "llama3-70b", "cluster": "dgx-h100-ndr", "gpus": 64, "global_batch": 64, "seq_len": 4096}
SMALL = {**LLAMA, "model": "llama2-7b"}
EXPERTS = {**LLAMA, "model": "qwen3-30b-a3b", "layout": "ep8 tp1 pp1"}


def told(beginning, **job):
    est = cm.estimate(**job)
    return est, [said for said in est.warnings if said.startswith(beginning)]


def waited(est, **of):
    """Exposed seconds of the lines with these attributes."""
    lines = [line for line in est.bill.time_lines if all(getattr(line, key) == of[key] for key in of)]
    return sum(float(line.exposed_seconds) for line in lines)


def test_a_bubble():
    """Eight stages, tp 2: dp 4, 64 / 4 = 16 micro-batches."""
    est, said = told("the pipeline bubble", **LLAMA, layout="pp8 tp2", recompute="full")
    share = waited(est, category="bubble") / float(est.step_time_s)
    assert said == [
        f"the pipeline bubble is {share:.0%} of the step (1f1b, pp 8, vp 1, 16 micro-batches): more micro-batches, "
        "a smaller pp or more virtual stages shrink it"
    ]


def test_changes_of_the_pipeline_that_save_time():
    est, said = told("--vp 10", **LLAMA, layout="pp8 tp2", recompute="full")
    after = cm.estimate(**LLAMA, layout="pp8 tp2", recompute="full", vp=10, schedule="interleaved")
    saved = 1 - float(after.step_time_s / est.step_time_s)
    assert said == [
        f"--vp 10 --schedule interleaved saves {saved:.1%} ({format_seconds(after.step_time_s, 3)} a step, "
        f"{float(after.memory_bytes_per_gpu) / 2**30:.3g} GiB)"
    ]


def test_communication_that_nothing_hides():
    for axis, job in [("tp", {**LLAMA, "layout": "tp16 pp2"}), ("dp", {**EXPERTS, "seq_len": 2048})]:
        est, said = told(f"{axis.upper()} communication", **job)
        seconds = waited(est, axis=axis, category="communication")
        step = float(est.step_time_s)
        assert seconds > 0.2 * step
        assert said == [
            f"{axis.upper()} communication that nothing hides is {seconds / step:.0%} of the step ({format_seconds(seconds)})"
        ]
        others = {
            one
            for one in ("tp", "cp", "ep", "pp", "dp")
            if waited(est, axis=one, category="communication") > 0.2 * step
        }
        assert others == {word.split()[0].lower() for word in est.warnings if "that nothing hides" in word}


def test_tensor_parallelism_over_nodes():
    """8 of 16 in a node; InfiniBand has 50 GB/s a GPU, NVLink 450."""
    _, said = told("TP leaves", **LLAMA, layout="tp16 pp2")
    assert said == [
        "TP leaves the nvlink domain: of 16 ranks only 8 share one, the rest is reached over leaf "
        "(50.0 GB/s a GPU instead of 450 GB/s)"
    ]


def test_little_memory_left():
    """A share of what is there, not of what is used: 9.0 % and not 9.9 % at a half of the sequence."""
    est, said = told("tight", **{**LLAMA, "seq_len": 2048}, layout="tp8", zero_stage=2)
    need, have = float(est.memory_bytes_per_gpu), est.memory_capacity_bytes
    left = (have - need) / have
    assert 0.05 < left < 0.12
    assert said == [
        f"tight: {(have - need) / 2**30:.2f} GiB of {have / 2**30:.1f} GiB are left on the worst stage, "
        f"{left:.1%}; runs predicted so full fit with {float(est.fits_probability):.0%}, a plan asks for 90%"
    ]
    assert not told("tight", **LLAMA, layout="tp8", zero_stage=3, recompute="full")[1]


def test_what_is_ignored():
    ignored = {
        "shard_group 8 is ignored: zero_stage 0 shards nothing": {"shard_group": 8, "zero_stage": 0},
        "sequence_parallel is ignored: tp is 1": {"sequence_parallel": True, "tp": 1},
        "offload_parameters is ignored: zero_stage 1 keeps whole parameters on the GPU": {
            "zero_stage": 1,
            "switches": {"offload_parameters": True},
        },
    }
    for sentence, given in ignored.items():
        est = cm.estimate(**SMALL, recompute="full", **given)
        assert [said for said in est.warnings if "is ignored" in said] == [sentence]
    whole = {"zero_stage": 3, "switches": {"offload_parameters": True}}
    assert not told("offload_parameters", **SMALL, recompute="full", **whole)[1]
    _, said = told("seq_len", **{**LLAMA, "model": "gpt3-175b"}, layout="tp8 pp8")
    assert said == [
        "seq_len 4096 is longer than the model's table of 2048 learned positions; the table is priced as it is"
    ]
    assert not told("seq_len", **{**LLAMA, "model": "gpt3-175b", "seq_len": 2048}, layout="tp8 pp8")[1]


def test_buckets_that_are_too_small():
    """A million elements of 4 bytes; of sizes up to 32 times as large the largest is best, but none above the bound."""
    est, said = told("buckets of", **SMALL, switches={"bucket_elements": 1e6})
    larger = cm.estimate(**SMALL, switches={"bucket_elements": 32e6})
    saved = 1 - float(larger.step_time_s / est.step_time_s)
    assert said == [
        "buckets of 3.81 MiB are too small for this network: --set bucket_elements=32000000 (122 MiB) "
        f"saves {saved:.1%} of the step"
    ]
    assert not told("buckets of", **SMALL, switches={"bucket_elements": 1e15})[1]


def test_kernels_that_the_host_cannot_start_fast_enough():
    est, said = told("host overhead", **{**SMALL, "seq_len": 128}, layout="tp8")
    share = sum(float(line.exposed_seconds) for line in est.bill.time_lines if line.cause == "host")
    assert share > 0.1 * float(est.step_time_s)
    assert said[0].startswith(
        f"host overhead is {share / float(est.step_time_s):.0%} of the step: kernels are so short"
    )
    assert not told("host overhead", **SMALL, layout="tp8")[1]


def test_routing_that_is_assumed_even():
    est, said = told("routing", **EXPERTS)
    uneven = cm.estimate(**EXPERTS, switches={"moe_imbalance": 1.2})
    more = float(uneven.step_time_s / est.step_time_s) - 1
    assert said == [
        "routing of tokens to experts is assumed random, even over time: "
        f"--set moe_imbalance=1.2 (the busiest rank gets 20% more) adds {more:.1%} to the step"
    ]
    assert (
        "assumed perfectly balanced" in told("routing", **EXPERTS, switches={"moe_balance": "balanced"})[1][0]
    )
    assert not told("routing", **{**EXPERTS, "layout": "tp1 pp1"}, zero_stage=3, recompute="full")[1]


def test_routing_that_is_uneven():
    est, said = told("random routing", **EXPERTS, switches={"moe_imbalance": 1.5})
    even = cm.estimate(**EXPERTS, switches={"moe_balance": "balanced"})
    lost = float(est.step_time_s - even.step_time_s)
    load = float(est.priced.placed.imbalance) - 1
    assert load > 0.5
    assert said == [
        f"random routing gives the busiest of 8 expert ranks {load:.0%} more tokens than the mean, which costs "
        f"{format_seconds(lost)} ({lost / float(est.step_time_s):.1%} of the step); --set moe_balance=balanced is "
        "what benchmarks force"
    ]


def test_compressed_gradients():
    job = {**SMALL, "layout": "tp8", "zero_stage": 0, "recompute": "full"}
    est, said = told("gradient_compression", **job, switches={"gradient_compression": "int4"})
    gain = float(cm.estimate(**job).step_time_s / est.step_time_s) - 1
    sentence = (
        "gradient_compression int4 changes what is learned: it pays while the same loss takes less than "
    )
    assert said == [
        f"{sentence}{gain:.1%} more steps; none more are counted in days (--set compression_steps=1.05 for others)"
    ]
    more = {"gradient_compression": "int4", "compression_steps": 1.02}
    assert "; 2.0% more are counted in days" in told("gradient_compression", **job, switches=more)[1][0]
    fast = {"model": "gpt2-xl", "cluster": "dgx-h100-ndr", "gpus": 8, "layout": "tp1", "zero_stage": 0}
    slower = told("gradient_compression", **fast, switches={"gradient_compression": "top-k"})[1]
    assert slower[0].startswith("gradient_compression top-k saves no time: a step takes ")


def test_layers_that_do_not_divide():
    """80 layers over 32 stages: three on every other, 2.5 in the mean; over 12 the fullest has 7 of 6.7, which is little."""
    job = {**LLAMA, "recompute": "full"}
    assert told("layers divide", **job, layout="tp2 pp32")[1] == [
        "layers divide unevenly: the fullest of 32 pipeline stages holds 3 layers, the mean is 2.5, and the step "
        "waits for the fullest"
    ]
    assert not told("layers divide", **{**job, "gpus": 96, "global_batch": 48}, layout="tp8 pp12")[1]
    assert not told("layers divide", **job, layout="tp2 pp32", pipeline_layout="balanced")[1]


def test_jitter_that_no_time_has():
    switches = {"stragglers": "normal", "straggler_jitter": 0.5}
    _, said = told("straggler_jitter", **LLAMA, layout="tp8 pp4", switches=switches)
    assert said[0].startswith("straggler_jitter 0.5 means pieces of a step that vary by ")
    switches["straggler_jitter"] = 0.001
    assert not told("straggler_jitter", **LLAMA, layout="tp8 pp4", switches=switches)[1]
