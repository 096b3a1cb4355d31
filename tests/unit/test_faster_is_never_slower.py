"""The step is the slowest stage's whole step: better hardware never lengthens it, more tokens never shorten it."""

from dataclasses import replace

import pytest

import costmodel as cm
from costmodel.describe.factors import Factors
from costmodel.describe.jobs.job import make_job
from costmodel.estimates.estimate import estimate_job
from costmodel.what_if.changes import hardware_changes


def step_s(job) -> float:
    return float(estimate_job(job, every_stage=False).step_time_s)


def test_faster_attention_never_lengthens_steps_that_wait_for_the_host():
    """Launches are stretched by the unexplained share and attention is not: the longer of both counts, pass by pass."""

    def job(share):
        return make_job(
            model="llama2-7b",
            cluster="dgx-h100-ndr",
            gpus=1,
            global_batch=1,
            seq_len=1024,
            recipe="megatron-core",
            switches={"overhead_fraction": share, "launch_s": 500e-6, "step_overhead_s": 0.0},
        )

    def times(share):
        return [
            step_s(replace(job(share), factors=Factors({"attention.hopper": by}))) for by in (0.25, 1, 4, 1e4)
        ]

    waiting = times(0.25)
    assert waiting[:3] == pytest.approx([waiting[0]] * 3, rel=1e-9)
    assert waiting[0] > 1.2 * times(0.0)[0]
    assert waiting == sorted(waiting)
    assert waiting[3] > 2.0 * waiting[0]


@pytest.mark.parametrize("cluster", ["dgx-h100-ndr", "dgx-a100-hdr", "cloud-h100-100gbe", "llama3-roce"])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_shards_in_groups_wait_for_two_ports_at_once(cluster, tp):
    """HSDP's gathers in the node and sums between nodes hide behind one pass: twice the sequence was 4 % faster."""
    job = {"model": "llama3-8b", "gpus": 512, "global_batch": 1024, "recipe": "hai-llm", "zero_stage": 3}
    short, long = (
        step_s(cm.estimate(**job, cluster=cluster, tp=tp, shard_group=8, seq_len=seq).job)
        for seq in (1024, 2048)
    )
    assert long >= short * (1 - 1e-12)


# Found by `many_jobs`: what neighbours of a V make a rank wait hid nothing; a rank with the head hid messages that the next
# one did not; the same wait hid gathers and sums; every micro-batch had all that a stage waits in a step.
FOUND = [
    (
        ("hbm bandwidth", 4.0),
        {
            "model": "gpt-oss-120b",
            "cluster": "llama3-roce",
            "recipe": "hai-llm",
            "gpus": 2048,
            "tp": 8,
            "pp": 4,
        }
        | {"vp": 2, "ep": 2, "schedule": "v-min", "zero_stage": 1, "recompute": "full", "global_batch": 2048}
        | {"seq_len": 4096, "sequence_parallel": True},
        {"cp_method": "ulysses", "moe_dispatcher": "deep-ep", "pp_overlap": False, "ep_overlap": True}
        | {"grouped_gemm": False},
    ),
    (
        ("matrix kernel start", 0.25),
        {"model": "gpt-oss-20b", "cluster": "mi300x-roce400", "recipe": "megatron-core", "gpus": 512, "tp": 4}
        | {"pp": 4, "vp": 2, "schedule": "zb-v", "micro_batch": 2, "zero_stage": 2, "shard_group": 2}
        | {"sequence_parallel": False, "global_batch": 512, "seq_len": 1024},
        {"cp_method": "ulysses", "moe_dispatcher": "deep-ep", "tp_overlap": "none", "ep_overlap": False}
        | {"dp_overlap": "last-micro-batch", "fsdp_reshard_after_forward": True, "offload_optimizer": False},
    ),
    (
        ("hbm bandwidth", 2.0),
        {"model": "qwen3-30b-a3b", "cluster": "mi300x-roce400", "recipe": "torchtitan-2024", "gpus": 2048}
        | {"pp": 16, "vp": 2, "schedule": "v-half", "micro_batch": 2, "zero_stage": 1, "shard_group": 2}
        | {"recompute": "selective", "sequence_parallel": True, "global_batch": 2048, "seq_len": 4096},
        {"pp_overlap": True, "post_validation": True, "grouped_gemm": False},
    ),
    (
        ("hbm bandwidth", 1.1),
        {"model": "gpt-oss-120b", "cluster": "cloud-h100-100gbe", "recipe": "megascale", "gpus": 64, "cp": 2}
        | {"pp": 16, "schedule": "1f1b", "zero_stage": 3, "recompute": "full", "sequence_parallel": False}
        | {"global_batch": 512, "seq_len": 4096},
        {"moe_dispatcher": "all-to-all", "post_validation": True, "offload_optimizer": True},
    ),
]


@pytest.mark.parametrize(("better", "asked", "switches"), FOUND)
def test_jobs_that_were_slower_on_better_hardware(better, asked, switches):
    job = make_job(**asked, switches=switches, check=False)
    changed = next(one for one in hardware_changes(job, better[1]) if one.name == better[0])

    assert step_s(changed.job) <= step_s(job) * (1 + 1e-9)
