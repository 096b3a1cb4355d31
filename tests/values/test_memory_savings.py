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
