"""What frees memory, by hand: every stage of ZeRO above the job's own, halves of micro-batches, the most first."""

from round_jobs import SMALL, near, price

import costmodel as cm
from costmodel.estimates.savings import memory_savings


def savings(**job):
    est = price(SMALL, **{"gpus": 8, "global_batch": 48, "layout": "tp2", **job})
    return est, memory_savings(est.job)


def changed(found, name):
    return {one.change.after: one for one in found if one.change.name == name}


def test_every_stage_of_zero_above_the_jobs_own():
    _, found = savings(zero_stage=0)
    assert set(changed(found, "zero")) == {"1", "2", "3"}
    _, found = savings(zero_stage=3)
    assert changed(found, "zero") == {}


def test_half_a_micro_batch_is_rounded_up():
    """Of 48 sequences on four replicas: 12 a replica, three at a time become two."""
    est, found = savings(micro_batch=3)
    (half,) = changed(found, "micro-batch").values()
    assert half.change.after == "2"
    other = price(SMALL, gpus=8, global_batch=48, layout="tp2", micro_batch=2)
    assert half.memory_bytes == near(float(other.memory_bytes_per_gpu))
    assert half.freed_bytes == near(float(est.memory_bytes_per_gpu - other.memory_bytes_per_gpu))


def test_the_most_is_told_first_and_only_what_frees_any():
    _, found = savings(micro_batch=2)
    freed = [one.freed_bytes for one in found]
    assert freed == sorted(freed, reverse=True)
    assert freed[-1] > 0


def test_a_switch_without_a_price_is_left_out():
    """No 8-bit kernel of fused attention is known on MI300X: to fuse attention cannot be priced there."""
    switches = {"attention_kernel": "unfused", "fp8_attention": "true"}
    est = cm.estimate(
        "llama3-8b",
        cluster="mi300x-roce400",
        gpus=8,
        tp=2,
        global_batch=16,
        seq_len=4096,
        precision="fp8",
        switches=switches,
    )
    names = {saving.change.name for saving in memory_savings(est.job)}
    assert names
    assert "attention_kernel" not in names


def test_tensor_parallelism_is_quoted_with_the_sequence_parallelism_that_it_is_priced_with():
    """A layout that has it off keeps it off; without tensor parallelism the quote says what it takes."""
    whole = {"gpus": 8, "global_batch": 48, "seq_len": 4096, "layout": "tp2", "recipe": "megatron-core"}
    for job, after, is_on in (
        ({"sequence_parallel": False}, "4", False),
        ({"sequence_parallel": True}, "4", True),
        ({"layout": "tp1", "sequence_parallel": False}, "2 (with sequence parallelism)", True),
        ({"layout": "tp1", "recipe": "deepspeed"}, "2 (without sequence parallelism)", False),
    ):
        est = cm.estimate("llama3-8b", "h100", **{**whole, **job})
        one = changed(memory_savings(est.job), "tp")[after]
        doubled = {**whole, **job, "layout": f"tp{after[0]}", "sequence_parallel": is_on}
        other = cm.estimate("llama3-8b", "h100", **doubled)
        assert one.memory_bytes == near(float(other.memory_bytes_per_gpu)), after
        assert one.step_time_s == near(float(other.step_time_s)), after


def test_what_fits_is_what_a_plan_takes():
    """It fits with at least 90%; what fits less surely is said with its chance, and is no single change that is enough."""
    whole = {"layout": "tp2 pp2", "micro_batch": 4, "zero_stage": 1, "gpus": 8}
    tight = 0
    for batch, length in ((16, size) for size in range(8192, 65536, 2048)):
        est = cm.estimate("llama3-8b", "h100", **whole, global_batch=batch, seq_len=length)
        if est.fits:
            continue
        (said,) = [warning for warning in est.warnings if warning.startswith("does not fit")]
        for one in memory_savings(est.job):
            surely = one.fits_probability
            assert one.fits is (surely >= 0.9)
            assert (surely > 0) is (one.memory_bytes <= est.memory_capacity_bytes)
            fits = f"{one.change} is the cheapest that fits" in said
            assert not fits or one.fits, said
            doubtful = 0 < surely < 0.9
            tight += doubtful
            assert (
                not (doubtful and f"{one.change} frees most" in said)
                or f"fits with {surely:.0%}, a plan" in said
            )
    assert tight
