"""Possible jobs of 512 GPUs, drawn by hypothesis: what the tests of the bill's invariants run over."""

from dataclasses import replace
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from costmodel.describe.hardware.cluster import Cluster
from costmodel.describe.jobs.job import Job, make_job
from costmodel.describe.jobs.layout import layout_problems
from costmodel.describe.recipe import list_recipes
from costmodel.estimates.estimate import Estimate, estimate_job
from costmodel.physics.pipeline.schedule_table import SCHEDULES
from costmodel.physics.pipeline.schedules import schedule_code, valid

DENSE = ("llama3-8b", "gpt3-175b", "llama-7b")
MOE = ("mixtral-8x7b", "deepseek-v3-671b", "gpt-oss-20b", "qwen3-30b-a3b")
CLUSTERS = ("dgx-h100-ndr", "dgx-a100-hdr", "gb200-nvl72-ndr", "cloud-h100-100gbe", "llama3-roce")
TWO_CHUNKS = ("interleaved", "zb-v", "dualpipe-v", "v-half", "v-min")
GPUS = 512


@st.composite
def questions(draw: st.DrawFn) -> dict[str, Any]:
    """What a set of layouts has in common: model, cluster, recipe, precision."""
    switches = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "cp_method": st.sampled_from(["ring", "all-gather", "ulysses"]),
                "moe_dispatcher": st.sampled_from(["all-to-all", "all-gather", "deep-ep"]),
                "tp_overlap": st.sampled_from(["none", "weight-grad", "pipelined"]),
                "dp_overlap": st.sampled_from(["none", "last-micro-batch", "every-layer"]),
                "grouped_gemm": st.booleans(),
                "ep_overlap": st.booleans(),
                "fsdp_reshard_after_forward": st.booleans(),
                "offload_optimizer": st.booleans(),
            },
        )
    )
    return {
        "model": draw(st.sampled_from(DENSE + MOE)),
        "cluster": draw(st.sampled_from(CLUSTERS)),
        "recipe": draw(st.sampled_from(list_recipes())),
        "switches": switches,
    }


@st.composite
def layouts(draw: st.DrawFn, moe: bool) -> dict[str, Any]:
    """Degrees and choices of one possible layout, codes as numbers."""
    pp = draw(st.sampled_from([1, 1, 2, 4]))
    name = draw(st.sampled_from(list(SCHEDULES)[1:])) if pp > 1 else "none"
    layout = {
        "tp": draw(st.sampled_from([1, 1, 2, 4, 8])),
        "cp": draw(st.sampled_from([1, 1, 2])),
        "pp": pp,
        "vp": 2 if name in TWO_CHUNKS else 1,
        "schedule": schedule_code(name),
        "ep": draw(st.sampled_from([1, 2, 8])) if moe else 1,
        "etp": draw(st.sampled_from([1, 1, 2])) if moe else 1,
        "micro_batch": draw(st.sampled_from([1, 2])),
        "zero_stage": draw(st.integers(0, 3)),
        "shard_group": draw(st.sampled_from([0, 0, 2, 8])),
        "recompute": draw(st.integers(0, 2)),
        "sequence_parallel": draw(st.booleans()),
        "global_batch": draw(st.sampled_from([1024, 4096])),
        "seq_len": draw(st.sampled_from([1024, 4096])),
    }
    dp = GPUS / (layout["tp"] * layout["cp"] * pp)
    assume(valid(layout["schedule"], pp, layout["global_batch"] / (dp * layout["micro_batch"]), layout["vp"]))
    return layout


@st.composite
def jobs(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw a question and one layout."""
    question = draw(questions())
    return question, draw(layouts(question["model"] in MOE))


def job_of(question: dict[str, Any], layout: dict[str, Any], **changes: Any) -> Job:
    """Make the job, unchecked, so that arrays and layouts next to it can be priced too."""
    return make_job(**{"gpus": GPUS, **question, **layout, **changes}, check=False)


def price_of(question: dict[str, Any], layout: dict[str, Any], **changes: Any) -> Estimate:
    """Price a layout by its first, a middle and its last stage, as a search does."""
    return estimate_job(job_of(question, layout, **changes), every_stage=False)


def is_possible(job: Job) -> bool:
    """Say whether no rule is broken."""
    problems = layout_problems(job.layout, job.model, job.global_batch, job.seq_len)
    return not any(problem.bad.any() for problem in problems)


def with_fabric(
    cluster: Cluster, *, bandwidth: float = 1.0, latency: float = 1.0, only: int | None = None
) -> Cluster:
    """Scale what a tier of the cluster (or each of them) can do."""
    tiers = list(cluster.tiers)
    for index, tier in enumerate(tiers):
        if only in (None, index):
            tiers[index] = replace(
                tier,
                bandwidth_bytes_per_s=tier.bandwidth_bytes_per_s * bandwidth,
                reduction_bandwidth_bytes_per_s=tier.reduction_bandwidth_bytes_per_s * bandwidth,
                latency_s=tier.latency_s * latency,
                base_latency_s=tier.base_latency_s * latency,
            )
    return replace(cluster, tiers=tuple(tiers))
