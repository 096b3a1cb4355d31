"""Explanations: what is printed, recomputed with nothing of this package, gives every line of the bill."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from famous_jobs import JOBS, famous

import costmodel as cm
from costmodel.base.errors import CostModelError
from costmodel.base.units import format_seconds
from costmodel.bill.formula import evaluate
from costmodel.estimates.explain import unit_of
from costmodel.physics.network.mesh import Group, build_mesh
from costmodel.physics.network.nccl import PRIMITIVES, collective_time

# What a reader with a calculator has: no evaluator of ours.
CALCULATOR = {
    "__builtins__": {},
    "max": max,
    "min": min,
    "ceil": math.ceil,
    "sqrt": math.sqrt,
    "cbrt": np.cbrt,
    "floor": math.floor,
    "log2": math.log2,
    "where": lambda test, a, b: a if test else b,
}


def by_hand(text):
    """Evaluate a printed expression."""
    return float(eval(text, dict(CALCULATOR)))


def largest_number(text):
    """Return the largest number in a printed sum: what its rounding is relative to."""
    return max((abs(float(number)) for number in re.findall(r"\d+\.?\d*(?:e[+-]?\d+)?", text)), default=0.0)


@pytest.mark.parametrize("name", list(JOBS))
def test_every_printed_formula_recomputed_by_hand_gives_its_line(name):
    est = famous(name)
    lines = est.explain()
    assert len(lines) == len(est.bill.time_lines) + len(est.bill.memory_lines)
    for line in lines:
        (grid,) = type(lines)([line]).grids()
        for (label, _, printed, shown), step in zip(grid.rows, line.steps, strict=True):
            value = float(shown.split()[0])
            # A difference of rounded numbers is as exact as these are.
            slack = 1e-6 * largest_number(printed) if "-" in printed.replace("e-", "") else 0.0
            assert by_hand(printed) == pytest.approx(value, rel=2e-6, abs=slack), (line.name, label)
            assert value == pytest.approx(step.value, rel=1e-6, abs=0.0), (line.name, label)
        assert value == pytest.approx(line.each, rel=1e-6, abs=0.0), line.name


@pytest.mark.parametrize("name", list(JOBS))
def test_explained_lines_add_up_to_the_bill(name):
    est = famous(name)
    lines = est.explain()
    step = sum(line.total for line in lines if line.bill == "time")
    assert step == pytest.approx(float(est.step_time_s), rel=1e-12)
    held = sum(line.total for line in lines if line.bill == "memory")
    assert held == pytest.approx(float(est.memory_bytes_per_gpu), rel=1e-12)


@pytest.mark.parametrize("name", list(JOBS))
def test_compute_lines_start_from_shapes_and_hardware_not_from_seconds(name):
    """No line of operators takes a time for given; what it starts from is on a data sheet or in the job."""
    fitted = {"fixed_s", "add_fixed_s", "fixed_per_group_s"}
    for line in famous(name).explain("compute."):
        if ".host." in line.name:
            continue
        given = {term.name for term in line.terms if term.unit == "s"}
        assert given <= fitted, line.name
        assert {"m", "moved_bytes", "heads"} & {term.name for term in line.terms}, line.name


def test_tiles_waves_and_the_power_limit_of_one_product():
    """Llama 3 405B's first MLP product, by its paper: 8,192 tokens, 2 x 53,248 / 8 columns."""
    (line,) = famous("llama3-405b").explain("compute.mlp.fc1.forward")
    steps = {step.name: step.value for step in line.steps}
    assert steps["flops"] == 2 * 8192 * 16384 * (2 * 53248 / 8)
    assert steps["tiles"] == 64 * 104
    assert steps["moved_bytes"] == 2 * (8192 * 16384 + 16384 * 13312 + 8192 * 13312)
    assert steps["math_s"] > steps["flops"] / 989.4e12


def test_units_follow_the_names():
    given = {
        "hbm_bytes_per_s": "B/s",
        "peak_flops_per_s": "FLOP/s",
        "window_s": "s",
        "flops": "FLOP",
        "num_sms": "",
        "size_bytes": "B",
        "bytes_per_param": "B",
        "host_params_per_s": "1/s",
        "contention": "",
    }
    assert {name: unit_of(name) for name in given} == given


def test_one_line_several_lines_or_none():
    est = famous("llama3-405b")
    assert [line.name for line in est.explain("pp.send_recv")] == ["pp.send_recv"]
    assert est.explain("mlp.fc1") == est.explain("compute.mlp.fc1")  # without the axis too
    several = est.explain("tp.")
    assert len(several) > 3
    assert {line.axis for line in several} == {"tp"}
    assert {line.tier for line in several if line.each} == {"nvlink"}
    with pytest.raises(CostModelError, match=r"fc3\.forward' is not on this bill.*fc1\.forward"):
        est.explain("compute.mlp.fc3.forward")


def test_a_formula_with_its_numbers_stands_once_under_all_lines_that_it_is_of():
    """Dispatch and combine, there and back, send the same."""
    found = famous("deepseek-v3").explain("ep.")
    alike = found.alike()
    assert sorted(line.name for of in alike for line in of) == sorted(line.name for line in found)
    assert max(map(len, alike)) == 2
    assert len(found.grids()) == len(alike) < len(found)
    for of in alike:
        assert len({(line.steps, line.terms) for line in of}) == 1
        assert all(repr(found).count(f"{line.name} (") == 1 for line in of)


def test_many_layouts_cannot_be_explained_as_one():
    est = cm.estimate(model="llama3-8b", gpus=64, tp=[1, 2], global_batch=64, seq_len=8192)
    with pytest.raises(CostModelError, match="2"):
        est.explain()


@pytest.mark.parametrize(
    "cluster", ["dgx-h100-ndr", "gb200-nvl72-ndr", "llama3-roce", "dgx-v100-edr", "p5-efa"]
)
@pytest.mark.parametrize("primitive", PRIMITIVES)
def test_the_text_of_a_collective_is_what_ran(primitive, cluster):
    """Over groups in a node, across nodes and of one, and sizes through every switch of algorithm."""
    tiers = cm.load_cluster(cluster).tiers
    mesh = build_mesh(
        tp=np.asarray([1.0, 2.0, 4.0, 8.0, 8.0, 16.0]),
        dp=np.asarray([1.0, 8.0, 2.0, 2.0, 16.0, 8.0]),
        tier_sizes=[float(tier.size) for tier in tiers],
        cp=1.0,
        pp=1.0,
        ep=1.0,
        etp=1.0,
    )
    sizes = np.geomspace(64.0, 1e10, 12)[:, None]
    seen = set()
    for group in (mesh.tp, mesh.dp):
        cost = collective_time(primitive, sizes, group, tiers)
        assert all(np.isfinite(value).all() for value in cost.made.terms.values())
        np.testing.assert_array_equal(evaluate(cost.made.formula, cost.made.terms), cost.time_s)
        np.testing.assert_array_equal(cost.latency_s + cost.transfer_s, cost.time_s)
        seen |= set(np.unique(cost.algorithm).tolist())
    assert len(seen) > 1


def test_one_collective_is_the_text_of_the_way_that_ran():
    """A ring over two nodes of eight: the NICs are slower than NVLink's seven hops in eight."""
    tiers = cm.load_cluster("dgx-h100-ndr").tiers
    ranks = np.asarray(16.0)
    group = Group(ranks, (np.asarray(8.0), *[ranks] * (len(tiers) - 1)))
    made = collective_time("all_gather", 1e9, group, tiers).made
    assert "where" not in made.formula
    assert "tree" not in made.formula
    assert {"nvlink_bytes_per_s", "leaf_bytes_per_s", "leaf_hop_s", "ranks"} <= set(made.terms)
    assert "nvlink_hops = ranks - ranks / nvlink_members" in made.formula
    assert "leaf_hops = ranks / nvlink_members - ranks / leaf_members" in made.formula
    rate = 8 * tiers[1].achieved_bandwidth_bytes_per_s * tiers[1].fabric.rate_factor
    assert float(made.steps["wire_s"]) == pytest.approx(15 / 16 * 1e9 / rate, rel=1e-12)


def test_collectives_open_up_to_bytes_ranks_and_rate():
    """Llama 3 405B's tensor-parallel gather: 8,192 tokens of 16,384 in bf16, seven eighths of it received."""
    (line,) = famous("llama3-405b").explain("tp.attention.all_gather.forward")
    steps = {step.name: step.value for step in line.steps}
    terms = {term.name: term.value for term in line.terms}
    assert steps["wire_bytes"] == 7 / 8 * 8192 * 16384 * 2
    assert terms["ranks"] == 8
    assert terms["nvlink_bytes_per_s"] == 0.8 * 450e9
    assert steps["ring_s_per_byte"] == 1 / (0.8 * 450e9 * terms["nvlink_rate_factor"])
    assert (line.tier, line.algorithm, line.protocol) == ("nvlink", "ring", "Simple")
    (dispatch,) = famous("deepseek-v3").explain("ep.moe.moe.dispatch.forward")
    numbers = {term.name: term.value for term in dispatch.terms}
    assert numbers["tokens"] == 4096
    crossed = {step.name: step.value for step in dispatch.steps}
    assert 1 < crossed["spine_copies"] < 4
    assert "by direct" in repr(type(famous("deepseek-v3").explain())([dispatch]))


def test_a_name_is_whole_parts_and_several_lines_end_with_their_sum():
    """`all_gather` is no `all_gather_input`, and its two passes come to what the summary's line has."""
    est = cm.estimate("llama3-8b", "8xH100", tp=8, global_batch=8, seq_len=4096)
    lines = est.explain("tp.attention.all_gather")
    assert [line.name.rpartition(".")[2] for line in lines] == ["forward", "backward"]
    assert [line.name for line in est.explain("attention.all_gather")] == [line.name for line in lines]
    total = sum(line.total for line in lines)
    (text,) = lines.sums()
    assert f"2 lines: {format_seconds(total, 4)}, {total / float(est.step_time_s):.2%} of the step" in text
    assert repr(lines).endswith(text)
    assert est.explain("tp.attention.all_gather.forward").sums() == []
    assert len(est.explain("tp.")) == len(est.explain("tp"))
    with pytest.raises(CostModelError, match=r"tp\.attention\.all_gat"):
        est.explain("tp.attention.all_gat")


def test_memory_shows_what_its_bytes_are_of():
    """The head keeps the norm's output and so many bytes a logit; a layer what each of its operators saves."""
    est = cm.estimate(
        "llama3-8b", "8xH100", tp=2, micro_batch=2, global_batch=8, seq_len=4096, recompute="none"
    )
    (head,) = est.explain("activation.head")
    terms = {term.name: term.value for term in head.terms}
    assert (terms["tokens"], terms["logits_per_token"]) == (2 * 4096, 128256 / 2)
    each = terms["loss_bytes_per_logit"]
    assert each == pytest.approx(est.job.recipe.kernels.loss_bytes_per_logit)
    assert head.total == pytest.approx(2 * 4096 * (128256 / 2 * each + 4096 / 2 * 2))
    (mlp,) = est.explain("activation.mlp")
    terms = {term.name: term.value for term in mlp.terms}
    assert terms["fc1_bytes"] == 2 * 4096 * 14336 * 2 / 2 * 2
    assert terms["activation_bytes"] == 2 * 4096 * 14336 / 2 * 2


def test_files_that_sources_name_exist():
    """Of our own: a path in a source of any line starts at the root of the repository."""
    root = Path(__file__).parents[2]
    bills = [famous(name).bill for name in JOBS]
    sources = {line.source for bill in bills for line in (*bill.time_lines, *bill.memory_lines)}
    named = {
        path
        for source in sources
        for path in re.findall(r"\b[a-z_]+(?:/[a-z_]+)+\.(?:py|csv|yaml)\b", source)
    }
    ours = {
        path
        for path in named
        if path.split("/")[0] in ("costmodel", "physics", "step", "describe", "hardware_profiles")
    }
    assert ours
    assert [path for path in sorted(ours) if not (root / path).exists()] == []
