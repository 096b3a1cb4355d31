"""Switches and axis orders that a plan turns beside the layout: what starts, what it needs, and that it is priced whole."""

import json
from dataclasses import replace

import numpy as np
import pytest

import costmodel as cm
from costmodel.cli import main
from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.describe.jobs.job import make_job
from costmodel.describe.jobs.layout import make_layout
from costmodel.describe.precision import precision
from costmodel.interop.assertions.tables import broken
from costmodel.planning.choices import _CONDITIONS, _FREE, Choice, choices_of, starts
from costmodel.planning.request import make_question
from costmodel.planning.search import JobVariant, space_of
from costmodel.planning.tuning import SwitchSearch, combinations
from costmodel.step.price import price

DENSE = {"model": "llama3-70b", "gpus": 512, "global_batch": 1024, "seq_len": 8192}
SPARSE = {"model": "qwen3-30b-a3b", "gpus": 64, "global_batch": 512, "seq_len": 4096}


def dense(**more):
    return make_job(**{**DENSE, **more}, check=False)


def sparse(**more):
    return make_job(**{**SPARSE, **more}, check=False)


def goes(job, choice, layout):
    """Say whether one layout of a job starts with a choice: what it needs, and what Megatron asserts."""
    placed = make_layout(gpus=job.layout.gpus, **layout)
    chosen = replace(choice.applied(job), layout=placed)
    asserts = [each for each, _ in broken("megatron", chosen) if each.stops]
    return bool(np.all(starts(chosen, (choice,), placed))) and not asserts


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_switch_that_a_framework_has_is_conditioned_or_free(name):
    """A table cannot forget: what is searched says what it is refused for."""
    family = "megatron" if name in ("megatron", "nemo") else "torchtitan"
    for switch, values in FRAMEWORKS[name].switches.items():
        for value in values:
            assert (family, switch, value) in _CONDITIONS or (switch, value) in _FREE
    for condition in _CONDITIONS.values():
        assert condition["source"]
    assert "tp cp dp pp" in FRAMEWORKS[name].axis_orders


def test_what_is_chosen_is_what_the_job_does_not_have():
    found = [str(choice) for choice in choices_of(dense())]
    assert found == [
        "tp_overlap=pipelined",
        "cp_method=all-gather",
        "cp_method=ulysses",
        "cuda_graphs=true",
        "axis order tp cp pp dp",
    ]
    experts = [str(choice) for choice in choices_of(sparse())]
    assert "moe_dispatcher=deep-ep" in experts
    assert "moe_dispatcher=hybrid-ep" not in experts
    # DeepEP's kernels join eight GPUs by NVLink; a rack of 72 has Hybrid-EP.
    rack = [str(choice) for choice in choices_of(sparse(cluster="gb200-nvl72-ndr"))]
    assert "moe_dispatcher=hybrid-ep" in rack
    assert "moe_dispatcher=deep-ep" not in rack
    assert "cuda_graphs=true, cuda_graph_scope=attention" in experts
    assert choices_of(dense(recipe="llama3")) == ()
    held = choices_of(dense(), frozenset({"tp_overlap", "axis_order", "cp_method"}))
    assert [str(choice) for choice in held] == ["cuda_graphs=true"]


def test_where_dense_choices_start():
    for choice, layout, fine in [
        ({"tp_overlap": "pipelined"}, {"tp": 8}, True),
        ({"tp_overlap": "pipelined"}, {"tp": 1}, False),
        ({"tp_overlap": "pipelined"}, {"tp": 16}, False),  # beyond NVLink
        ({"tp_overlap": "pipelined"}, {"tp": 8, "sequence_parallel": False}, False),
        ({"cuda_graphs": True}, {"recompute": "selective"}, True),
        ({"cp_method": "ulysses"}, {"tp": 4, "cp": 2}, True),
        ({"cp_method": "ulysses"}, {"tp": 4, "cp": 4}, False),  # eight KV heads
        ({"cp_method": "ulysses"}, {"tp": 4}, False),
        ({"cp_method": "all-gather"}, {"cp": 2}, True),
    ]:
        assert goes(dense(), Choice(choice), layout) is fine


def test_where_choices_of_experts_start():
    for choice, layout, fine in [
        ({"ep_overlap": True}, {"ep": 8}, True),
        ({"ep_overlap": True}, {"ep": 1}, False),
        ({"ep_overlap": True}, {"ep": 8, "pp": 2}, False),  # no virtual stages
        ({"ep_overlap": True}, {"ep": 8, "pp": 2, "vp": 2}, True),
        ({"ep_overlap": True}, {"ep": 8, "recompute": "full"}, False),
        # 512 sequences over 64 replicas are 8 each: two micro-batches of 4 hide one another, one of 8 has no partner.
        ({"ep_overlap": True}, {"ep": 8, "micro_batch": 4}, True),
        ({"ep_overlap": True}, {"ep": 8, "micro_batch": 8}, False),
        ({"moe_dispatcher": "deep-ep"}, {"ep": 16}, True),
        ({"moe_dispatcher": "deep-ep"}, {"ep": 1}, False),
        ({"moe_dispatcher": "all-to-all"}, {"ep": 8}, True),  # a whole NVLink domain
        ({"moe_dispatcher": "all-to-all"}, {"ep": 16}, False),
    ]:
        assert goes(sparse(), Choice(choice), layout) is fine


def test_stages_before_replicas_need_experts_to_divide_alike():
    """Data-parallel sizes of attention and experts are the same: ep·etp = tp·cp, or no pipeline, or no experts."""
    order = Choice(axis_order=("tp", "cp", "pp", "dp"))
    assert goes(sparse(), order, {"tp": 4, "ep": 4, "pp": 2})
    assert not goes(sparse(), order, {"tp": 4, "ep": 8, "pp": 2})
    assert goes(sparse(), order, {"tp": 4, "ep": 8})
    assert goes(dense(), order, {"tp": 4, "pp": 4})


def lines_of(job, *starts):
    return {
        line.name: line
        for line in price(job, every_stage=True).bill.memory_lines
        if line.name.startswith(starts)
    }


def test_choices_hold_lines_of_the_bill():
    """Ten buffers of 8,192 / 2 tokens x 8,192 x 2 B."""
    layout = make_layout(gpus=512, tp=4, cp=2, pp=4)
    job = replace(dense(), layout=layout)
    name = "reserve.tp.user_buffers"
    assert lines_of(job, name, "buffer.cuda_graphs") == {}
    pipelined = Choice({"tp_overlap": "pipelined"}).applied(job)
    assert float(np.max(lines_of(pipelined, name)[name].bytes)) == 10 * 2 * 4096 * 8192
    eight = replace(pipelined, precision=precision("fp8-delayed"))
    assert float(np.max(lines_of(eight, name)[name].bytes)) == (6 + 4 * 2) * 4096 * 8192
    one_by_one = replace(pipelined, layout=make_layout(gpus=512, tp=1, cp=2, pp=4))
    assert lines_of(one_by_one, name) == {}
    # Without buffers of communicators messages go from where they lie.
    assert lines_of(pipelined.switched({"communicator_bytes": 0.0}), name) == {}
    # One graph of a whole iteration has no seams.
    assert lines_of(Choice({"cuda_graphs": True}).applied(job), "buffer.cuda_graphs") == {}


def test_graphs_of_layers_keep_their_seams():
    """Input and gradient of 4,096 tokens x hidden x 2 B, for each layer; XLA assigns all buffers beforehand."""
    job = replace(sparse(), layout=make_layout(gpus=64, ep=8))
    graphs = job.switched({"cuda_graphs": True, "cuda_graph_scope": "attention"})
    pools = lines_of(graphs, "buffer.cuda_graphs").values()
    one = 2 * float(job.seq_len) * job.model.hidden_size * 2
    assert float(sum(np.max(pool.bytes) for pool in pools)) == job.model.num_layers * one
    assert lines_of(graphs.switched({"cuda_graph_pools": False}), "buffer.cuda_graphs") == {}


def test_what_choices_hold_counts_when_it_is_decided_what_fits():
    """The same layouts with the choice and without: all of its buffers are in what has to fit."""
    question = make_question(**DENSE, tp=4, cp=2, pp=4, vp=1, recompute="none", micro_batch=1, zero_stage=1)
    slabs = space_of(question, question.jobs[0]).slabs
    made = Choice({"tp_overlap": "pipelined"})
    (part,) = JobVariant(0, made.applied(question.jobs[0]), slabs, 0, (made,)).parts()
    (plain,) = JobVariant(0, question.jobs[0], slabs, 0).parts()
    assert part.memory_bytes - plain.memory_bytes == pytest.approx(10 * 2 * 4096 * 8192)


def test_a_plan_turns_what_helps_and_prices_it_as_estimate_does():
    plain = cm.plan(**DENSE, choose=False)
    found = cm.plan(**DENSE)
    assert float(found.best.step_time_s) < 0.97 * float(plain.best.step_time_s)
    assert found.best.job.recipe.overlap.tp_overlap == "pipelined"
    assert plain.best.job.recipe.overlap.tp_overlap == "weight-grad"
    row = found.to_dict(count=1)["top"][0]
    assert "tp_overlap=pipelined" in row["choices"]
    assert "tp_overlap=pipelined" in row["command"]
    again = cm.estimate(
        **DENSE,
        layout=" ".join(f"{axis}{row[axis]}" for axis in ("tp", "cp", "pp", "vp")),
        zero_stage=row["zero_stage"],
        micro_batch=row["micro_batch"],
        recompute=row["recompute"],
        axis_order=row["axis_order"],
        pipeline_layout="balanced",
        switches=dict(pair.split("=") for pair in row["choices"].split(", ") if "=" in pair),
    )
    assert float(again.step_time_s) == pytest.approx(row["step_time_s"], rel=1e-9)


def test_what_the_user_names_is_held():
    found = cm.plan(**DENSE, switches={"tp_overlap": "weight-grad"}, axis_order="tp cp dp pp")
    assert {est.job.recipe.overlap.tp_overlap for est in found.top(20)} == {"weight-grad"}
    assert {est.job.axis_order for est in found.top(20)} == {("tp", "cp", "dp", "pp")}
    assert "as given: axis_order, tp_overlap" in found.fixed
    anything = cm.plan(**DENSE, framework="any", pp=1, tp=8)
    assert set(anything.to_frame().choices) == {""}


@pytest.mark.parametrize("more", [{}, {"cluster": "gb200-nvl72-ndr", "recipe": "megatron-bridge"}])
def test_another_dispatcher_is_priced_where_it_can_win(more):
    """Of the placements that are best without it, some for lack of memory only, one is the best of all with it."""
    found = cm.plan(**{**SPARSE, **more})
    base, other = found.variants[:2]
    assert [choice.tuned for choice in other.choices] == ["moe_dispatcher"]
    every = SwitchSearch(replace(found.question, jobs=(other.job,), search_switches=False), 1)
    every.price_spaces()
    assert found.tally.best_score[1] == pytest.approx(every.tally.best_score[0], rel=1e-9)
    counts = [sum(slab.num_possible for slab in one.slabs) for one in (base, other)]
    assert 0 < counts[1] < 0.5 * counts[0]


def test_another_dispatcher_is_priced_everywhere_if_nothing_fits_without_it():
    question = make_question(model="deepseek-v3", gpus=64, global_batch=512, seq_len=4096)
    search = SwitchSearch(replace(question, search_switches=True), 1)
    search.price_spaces()
    base, other = search.variants
    assert not search.tally.placements
    assert {one.num_possible for one in other.slabs} == {one.num_possible for one in base.slabs}


@pytest.mark.parametrize("seq_len", [4096, 8192])
def test_choices_that_take_memory_are_tried_with_modules_that_free_it(seq_len):
    """Overlapped experts' exchange, for which layer norms have to be recomputed: naming it found plans 2.2 and 0.4 % faster."""
    job = {
        "model": "qwen3-30b-a3b",
        "cluster": "dgx-a100-hdr",
        "gpus": 16,
        "global_batch": 64,
        "seq_len": seq_len,
    }
    free, named = (cm.plan(**job, **more) for more in ({}, {"switches": {"ep_overlap": True}}))
    assert float(free.fastest.step_time_s) == pytest.approx(float(named.fastest.step_time_s), rel=1e-9)
    assert "layernorm" in free.fastest.job.recipe.memory.selective_modules
    choices = [frozenset(map(str, one.choices)) for one in free.variants]
    assert len(choices) == len({*choices})


def test_every_layout_of_every_pass_is_counted():
    found = cm.plan(**SPARSE)
    out = sum(count for reason, count in found.rejected.items() if reason != "does_not_fit")
    assert found.num_considered == found.num_priced + out
    assert found.num_priced == found.num_fit + found.rejected["does_not_fit"]
    assert found.num_better_than(found.pick_score) < 50
    # Nothing kept breaks what its choices need, or what the framework asserts.
    for row in range(0, len(found), 50):
        one = found.variants[int(found.candidates.top["job"][row])]
        est = found.estimate_of(found.candidates.top, row)
        assert bool(starts(est.job, one.choices, est.job.layout))
        assert not broken("megatron", est.job)


def test_plans_with_choices_are_emitted():
    found = cm.plan(**SPARSE, switches={"ep_overlap": True, "moe_dispatcher": "deep-ep"}, pp=1, tp=1, cp=1)
    text = cm.emit(found.best, "megatron")
    assert "--overlap-moe-expert-parallel-comm" in text
    assert "--moe-flex-dispatcher-backend deepep" in text
    nemo = cm.emit(found.best, "nemo")
    assert "model.moe_token_dispatcher_type=flex" in nemo
    assert "model.overlap_moe_expert_parallel_comm=true" in nemo
    ordered = cm.estimate(
        **DENSE,
        layout="tp4 cp2 pp4",
        axis_order="tp cp pp dp",
        switches={"cp_method": "all-gather", "cuda_graphs": True, "cuda_graph_scope": "attention"},
    )
    flags = cm.emit(ordered, "megatron")
    assert "--use-tp-pp-dp-mapping" in flags
    assert "--cp-comm-type all_gather" in flags
    assert "--cuda-graph-scope attn" in flags
    assert "no flag for the recipe's" not in flags
    bridge = cm.emit(ordered, "nemo")
    for one in (
        "dist.use_tp_pp_dp_mapping=true",
        "cp_comm_type=all_gather",
        "cuda_graph_impl=transformer_engine",
    ):
        assert one in bridge


def test_what_was_searched_and_held_is_said(capsys):
    flags = ["-m", "llama3-8b", "-n", "16", "--global-batch", "64", "--seq-len", "4096"]
    assert main(["plan", *flags, "--format", "json", "--top", "1"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["searched"]["tp_overlap"] == "weight-grad, pipelined"
    assert record["searched"]["axis_order"] == "tp cp dp pp, tp cp pp dp"
    assert record["searched"]["zero_stage"] == "0, 1"
    assert record["fixed"].startswith("All other settings: defaults of megatron-core")
    assert main(["plan", *flags, "--no-choose", "--format", "json", "--top", "1"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert "tp_overlap" not in record["searched"]
    assert "choose is off" in record["fixed"]
    assert main(["plan", *flags, "--top", "1", "--details"]) == 0
    out = capsys.readouterr().out
    assert "Searched" in out
    assert "All other settings: defaults of megatron-core" in out


def test_combinations_take_the_product_of_what_each_takes():
    """Of one thing one value; a pair of switches not with either of them."""
    overlap, graphs = Choice({"ep_overlap": True}), Choice({"cuda_graphs": True})
    both, ring = Choice({"ep_overlap": True, "cuda_graphs": True}), Choice({"cp_method": "ring"})
    shares = [np.asarray(each) for each in ([0.9, 1.0], [1.1, 0.8], [0.7, 0.5], [0.5, np.inf])]
    names = {str(overlap): "overlap", str(graphs): "graphs", str(both): "both", str(ring): "ring"}
    found = {
        " ".join(names[str(choice)] for choice in one.choices): one.share.tolist()
        for one in combinations((overlap, graphs, both, ring), shares)
    }
    assert found == {
        "": 1,
        "overlap": [0.9, 1.0],
        "graphs": [1.1, 0.8],
        "both": [0.7, 0.5],
        "ring": [0.5, np.inf],
        "overlap graphs": pytest.approx([0.99, 0.8]),
        "overlap ring": [0.45, np.inf],
        "graphs ring": pytest.approx([0.55, np.inf]),
        "both ring": [0.35, np.inf],
        "overlap graphs ring": pytest.approx([0.495, np.inf]),
    }


@pytest.mark.parametrize("asked", [DENSE, SPARSE], ids=["dense", "sparse"])
def test_the_tuned_are_as_fast_as_the_best_of_all_combinations(asked):
    """Every combination named, each with a plan of its own, against the one plan that prices few of them."""
    found = cm.plan(**asked, fix={"cp": 1, "zero_stage": 1, "recompute": "none"})
    job = found.question.jobs[0]
    choices = [choice for choice in choices_of(job) if choice.tuned != "cp_method"]
    best = np.inf
    for one in combinations(choices, [np.asarray(1.0)] * len(choices)):
        more = {
            "switches": {name: value for choice in one.choices for name, value in choice.switches.items()}
        }
        orders = [choice.axis_order for choice in one.choices if choice.axis_order]
        more |= {"axis_order": orders[0]} if orders else {}
        named = cm.plan(
            **asked,
            **more,
            choose=False,
            fix={"cp": 1, "zero_stage": 1, "recompute": "none"},
            num_candidates=10,
        )
        best = min(best, *named.tally.best_score.values())
    assert min(found.tally.best_score.values()) == pytest.approx(best, rel=1.001e-3)
    assert min(found.tally.best_score.values()) >= best * (1.0 - 1e-9)


def test_a_plan_looks_one_choice_away_from_its_best():
    """What helps only with what else was chosen is found: naming it finds nothing that is faster."""
    free, named = (
        cm.plan("qwen3-30b-a3b", "16xH100", global_batch=128, **given).best
        for given in ({}, {"switches": {"tp_overlap": "pipelined"}})
    )
    assert free.step_time_s <= named.step_time_s * 1.001
