"""Frameworks' own assertions: each bites, holds for what a plan proposes, and on arrays as on one layout."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ruamel.yaml import YAML

import costmodel as cm
from costmodel.bill.formula import inputs_of
from costmodel.describe.frameworks import FRAMEWORKS, MEGATRON_2026
from costmodel.describe.models.model import make_model
from costmodel.describe.recipe import load_recipe
from costmodel.interop.assertions.facts import connections, facts
from costmodel.interop.assertions.tables import TABLES, broken
from costmodel.interop.emit import emit
from costmodel.interop.keys import Flags
from costmodel.interop.megatron_job import read_flags
from costmodel.planning.request import make_question
from costmodel.planning.search import PricedSlab, layout_of, rows_of, space_of
from costmodel.planning.space import asserted_of

EXPERTS = make_model(
    {
        "name": "eight-experts",
        "num_layers": 16,
        "hidden_size": 2048,
        "vocab_size": 32000,
        "num_heads": 32,
        "num_kv_heads": 8,
        "gated_mlp": True,
        "norm": "rmsnorm",
        "num_experts": 8,
        "top_k": 2,
        "expert_ffn_size": 4096,
    },
    "test",
)
JOB = {"model": EXPERTS, "cluster": "dgx-h100-ndr", "gpus": 32, "global_batch": 64, "seq_len": 4096}
GOOD = {
    "megatron": {"layout": "tp2 pp2 ep4", "recipe": "megatron-core"},
    "nemo": {"layout": "tp2 pp2 ep4", "recipe": "megatron-bridge"},
    "deepspeed": {"layout": "ep4", "recipe": "deepspeed", "zero_stage": 2, "sequence_parallel": False},
    "torchtitan": {"layout": "tp2 ep4", "recipe": "torchtitan", "zero_stage": 3},
    "accelerate": {"layout": "tp2", "recipe": "torchtitan", "zero_stage": 3, "sequence_parallel": False},
    "axolotl": {
        "layout": "tp2",
        "recipe": "torchtitan",
        "zero_stage": 3,
        "sequence_parallel": False,
        "micro_batch": 2,
    },
    "neuronx": {"layout": "tp2 pp2", "recipe": "neuronx-distributed"},
    "none": {"layout": "tp2 pp2 ep4", "recipe": "hai-llm", "schedule": "dualpipe"},
}
YAML_READER = YAML(typ="safe", pure=True)
BREAKS = YAML_READER.load(Path(__file__).with_name("assertion_breaks.yaml").read_text())
ROWS = [(name, row) for name, table in TABLES.items() for row in table]


EP = {"layout": "tp2 ep4"}


def good(framework):
    return cm.estimate(**JOB, **GOOD[framework]).job


# What assertions look at that is no field of a job; computed by hand.
OF_JOBS = [
    (
        {
            "layout": "tp2 cp2 pp2 vp2",
            "recipe": "torchtitan",
            "zero_stage": 3,
            "shard_group": 2,
            "micro_batch": 2,
        },
        {
            "schedule": "interleaved",
            "model": "llama3-8b",
            "switches": {"cp_method": "ring", "compiled": False},
        },
        # 32 GPUs are four replicas: two ranks of a shard group are those of a context; 8 micro-batches of 2 sequences.
        {"dp": 4, "replicas": 4, "shard": 1, "whole_groups": 1, "micro_batches": 8, "local_batch": 16},
        {
            "virtual_stages": 2,
            "stages_per_rank": 2,
            "looped": 1,
            "layers_per_stage": 0,
            "rotary_table": 131072,
        },
        {"cp_by_ring": 1, "cp_by_all_gather": 0, "compiled": 0, "ep": 1, "num_kv_heads": 8},
    ),
    (
        {
            "layout": "tp2",
            "recipe": "torchtitan",
            "zero_stage": 3,
            "shard_group": 8,
            "recompute": "selective",
        },
        {"model": "llama3-8b"},
        {"replicas": 2, "shard": 8, "whole_groups": 1, "selective": 1, "full": 0, "local_batch": 1},
        {"virtual_stages": 0, "stages_per_rank": 1, "cp_by_all_gather": 1, "expert_dp": 32},
        {},
    ),
    (
        {
            "layout": "tp2 pp4 vp2 ep8 etp1",
            "schedule": "interleaved",
            "precision": "mxfp8",
            "optimizer": "muon",
        },
        {"model": "deepseek-v3-671b", "recompute": "selective", "cluster": "dgx-b200-ndr", "zero_stage": 1},
        {"dp": 4, "expert_dp": 1, "num_kv_heads": 128, "mla": 1, "mtp_layers": 1, "max_positions": 163840},
        {"grouped_gemm": 1, "muon": 1, "bf16": 1, "fp8_delayed": 0, "gathers_tokens": 0, "ep_overlap": 0},
        {"recompute_other": 0, "recompute_moe": 0, "shard": 4},
    ),
    (
        {
            "layout": "tp8",
            "recipe": "megatron-core",
            "zero_stage": 3,
            "precision": "fp8-delayed",
            "model": "gpt3-175b",
        },
        {"switches": {"cuda_graphs": True, "cp_method": "all-gather", "tp_overlap": "pipelined"}},
        {
            "biases": 1,
            "rotary": 0,
            "max_positions": 2048,
            "graph_of_all": 1,
            "graph_by_te": 0,
            "cuda_graphs": 1,
        },
        {"fp8_delayed": 1, "bf16": 1, "tp_pipelined": 1, "placed": 0, "pp_before_dp": 0, "shard": 4},
        {},
    ),
    (
        {
            "model": "qwen3-30b-a3b",
            "layout": "tp2 pp2 ep4",
            "recipe": "megatron-core",
            "axis_order": "tp cp pp dp",
        },
        {"switches": {"ep_overlap": True, "cuda_graphs": True, "cuda_graph_scope": "static"}},
        {"ep_overlap": 1, "expert_dp": 4, "etp": 1, "pp_before_dp": 1, "graph_by_te": 1, "graph_of_mlp": 0},
        {"placed": 0, "num_experts": 128, "micro_batches": 8, "local_batch": 8, "key_heads": 1},
        {"graph_of_all": 0, "virtual_stages": 0},
    ),
    (  # Two chunks a rank without an interleaved schedule; one rank has all experts.
        {"layout": "tp2 pp4 vp2", "schedule": "zb-v", "recipe": "zero-bubble", "zero_stage": 1},
        {"switches": {"ep_overlap": True}},
        {"virtual_stages": 0, "looped": 1, "stages_per_rank": 2, "ep_overlap": 0},
        {},
        {},
    ),
]


def test_facts_of_whole_jobs():
    for *given, first, second, third in OF_JOBS:
        job = {
            key: value for part in (JOB, {"pipeline_layout": "even"}, *given) for key, value in part.items()
        }
        known = facts(cm.estimate(**job).job)
        expected = {**first, **second, **third}
        assert {name: float(np.max(known[name])) for name in expected} == expected, given


def test_kernels_are_ordered_where_nothing_overlaps_them():
    """Nothing is overlapped where one rank has all experts."""
    overlapping = {"layout": "tp2", "switches": {"ep_overlap": True}}
    counts = [float(connections(cm.estimate(**JOB, **{**overlapping, **more}).job)) for more in ({}, EP)]
    assert counts == [1, 0]


def test_a_good_job_breaks_nothing():
    assert {framework: broken(framework, good(framework)) for framework in TABLES} == {
        name: [] for name in TABLES
    }


def test_each_assertion_bites():
    """A row without its breaking example fails here; the example breaks the row, and the good job does not."""
    given = {framework: facts(good(framework)) for framework in TABLES}
    for framework, row in ROWS:
        change, known = BREAKS[row.place], given[framework]
        assert {*change, *inputs_of(row.refused)} <= set(known), row.code
        assert not row.bad(known).any(), row.code
        assert row.bad({**known, **change}).all(), row.code
        assert row.place in row.sentence(known)
    assert set(BREAKS) == {row.place for _, row in ROWS}


def test_rows_say_where_they_are_from():
    for _, row in ROWS:
        assert row.stops in ("yes", "no")
        assert re.search(r"(\.py:(\d+$|\w+, [\w-]+$))|^arXiv:\d{4}\.\d{5}, section", row.place), row.code
        assert re.search(r"\d+\.\d+\.\d+$|[0-9a-f]{12}$|^as published$", row.release), row.code
        assert "{" not in row.in_words


def test_arrays_are_many_jobs():
    """Every row on an array of layouts says what it says of each layout alone."""
    rng = np.random.default_rng(7)
    knobs = {"tp": (1, 2, 4, 16), "cp": (1, 2, 3), "pp": (1, 2, 4), "vp": (1, 2, 3), "ep": (1, 2, 4, 16)}
    knobs |= {
        "micro_batch": (1, 2, 3),
        "zero_stage": (0, 1, 2, 3),
        "shard_group": (0, 4),
        "recompute": (0, 1, 2),
    }
    knobs |= {"schedule": (0, 2, 3), "sequence_parallel": (0, 1), "etp": (1, 2)}
    for framework, table in TABLES.items():
        job = good(framework)
        drawn = {knob: rng.choice(values, 60).astype(float) for knob, values in knobs.items()}
        whole = facts(replace(job, layout=replace(job.layout, **drawn)))
        for at in range(60):
            one = {knob: np.asarray(values[at]) for knob, values in drawn.items()}
            alone = facts(replace(job, layout=replace(job.layout, **one)))
            for row in table:
                assert np.broadcast_to(row.bad(whole), (60,))[at] == bool(row.bad(alone)), row.code


SEARCHED = [
    {
        "recipe": "megatron-bridge",
        "switches": {"ep_overlap": True},
    },  # the exchange refuses full recomputation
    {"recipe": "megatron-core", "model": "llama3-8b"},
    *({"recipe": FRAMEWORKS[name].recipe} for name in ("deepspeed", "torchtitan")),
]


@pytest.mark.parametrize("changed", SEARCHED, ids=lambda job: job["recipe"])
def test_what_a_plan_looks_at_breaks_nothing(changed):
    """Random layouts of every slab of a search pass all assertions; counts of the others add up."""
    question = make_question(**{**JOB, "gpus": 64, **changed})
    rng, seen = np.random.default_rng(11), 0
    for job in question.jobs:
        space = space_of(question, job)
        assert space.considered == sum(space.rejected.values()) + space.num_possible
        for slab in space.slabs:
            places = np.flatnonzero(slab.possible)
            picked = rng.choice(places, min(2000, places.size), replace=False)
            part = PricedSlab(0, slab, np.zeros(slab.shape), np.zeros(slab.shape), np.zeros(slab.shape))
            layouts = layout_of(rows_of(part, picked, np.zeros(picked.size)))
            known = facts(replace(job, layout=layouts))
            for row in asserted_of(job):
                assert not row.bad(known).any(), row.in_words
            seen += picked.size
    assert seen


def test_rules_are_those_of_the_release_that_the_recipe_names():
    """Graphs of a whole iteration beside the overlapped exchange: 0.16.1 stops, the release of containers 26.06 does not."""
    both = {"ep_overlap": True, "cuda_graphs": True, "cuda_graph_scope": "all", "moe_dispatcher": "hybrid-ep"}
    job = {**JOB, "layout": "pp2 vp2 ep4", "switches": both}
    older = cm.estimate(**job, recipe="megatron-bridge").job
    newer = cm.estimate(**job, recipe="megatron-bridge-2606").job
    assert {row.place.rsplit("/", 1)[-1] for row, _ in broken("megatron", older)} == {
        "transformer_config.py:1899",
        "fused_a2a.py:365",
    }
    assert broken("megatron", newer) == broken("nemo", newer) == []
    text = emit(cm.estimate(**job, recipe="megatron-bridge-2606"), "megatron")
    assert "--cuda-graph-impl full_iteration" in text
    assert "--cuda-graph-scope" not in text
    assert "--moe-paged-stash" in text
    assert f"# flags of {MEGATRON_2026}" in text
    switches = read_flags(Flags(text), {"recipe": "megatron-core"}).job["switches"]
    back = load_recipe("megatron-core").switched(switches)
    assert {name: back.switches[name] for name in both} == both
    with pytest.raises(cm.CostModelError, match=r"transformer_config.py:1899.*and 1 more"):
        emit(cm.estimate(**job, recipe="megatron-bridge"), "megatron")


def test_adapters_are_searched_only_for_frameworks_that_train_them():
    asked = {"model": "llama3-8b", "cluster": "dgx-h100-ndr", "gpus": 8, "global_batch": 16, "seq_len": 4096}
    for framework, base in (("deepspeed", "bf16"), ("megatron", "bf16"), ("nemo", "nf4")):
        with pytest.raises(cm.CostModelError, match=r"lora_rank: .* trains no adapters on a base in " + base):
            make_question(**asked, lora_rank=16, base_dtype=base, framework=framework)
    assert make_question(**asked, lora_rank=16).jobs[0].recipe.name == "megatron-bridge"
    assert (
        make_question(**asked, lora_rank=16, base_dtype="nf4").jobs[0].recipe.launches.framework
        == "accelerate"
    )
