"""Recipes: six groups of switches, each switch with one name and one place."""

from dataclasses import replace
from importlib.resources import files

import pytest

import costmodel as cm
from costmodel.base.errors import RecipeError
from costmodel.base.yaml_files import read_mapping
from costmodel.describe.frameworks import MEGATRON_2026
from costmodel.describe.hardware.hardware import load_accelerator
from costmodel.describe.jobs.job import make_job
from costmodel.describe.jobs.short_form import short_form
from costmodel.describe.recipe import (
    LABELS,
    Recipe,
    list_recipes,
    load_recipe,
    make_recipe,
    resolved_for,
    usual_overhead,
)
from costmodel.describe.switch_table import GROUP_OF, GROUPS, SWITCHES
from costmodel.estimates.estimate import estimate_job

JOB = {"model": "llama3-8b", "gpus": 16, "tp": 2, "global_batch": 16, "seq_len": 4096, "zero_stage": 0}


def test_a_switch_has_one_name_and_one_place():
    held = [name for group in GROUPS.values() for name in group.model_fields]
    assert held == list(SWITCHES)
    assert tuple(GROUPS) == ("kernels", "dtypes", "overlap", "moe", "host", "memory", "policy", "health")
    assert Recipe.model_fields.keys() == {*LABELS, *GROUPS}
    assert not set(held) & {*LABELS, *GROUPS}
    assert all(switch.meaning.strip().endswith(".") for switch in SWITCHES.values())


def test_a_default_and_the_ends_of_a_range_are_in_it_and_no_number_beyond():
    for name, switch in SWITCHES.items():
        home = GROUPS[switch.group]
        assert getattr(home.model_validate({name: switch.default}), name) == switch.default
        assert getattr(home(), name) == switch.default
        for side, end in zip((-1, 1), switch.bounds, strict=True):
            if abs(end) == float("inf") or switch.kind == "numbers":
                continue
            closed = switch.range[0 if side < 0 else -1] in "[]"
            for value, fits in ((end, closed), (end + side * max(abs(end), 1.0), False)):
                given = int(value) if switch.kind == "whole" else value
                if fits:
                    assert getattr(home.model_validate({name: given}), name) == value
                else:
                    with pytest.raises(ValueError, match=r"Input should be (less|greater) than"):
                        home.model_validate({name: given})
    for loads, said in (
        ((-1.0, 2.0), "greater than or equal to 0"),
        ((0.0,), "expected tokens of some expert"),
    ):
        with pytest.raises(RecipeError, match=said):
            make_recipe({"name": "mine", "moe_loads": loads})
    with pytest.raises(RecipeError, match="bucket_elements: expected 0, or 1 and more"):
        make_recipe({"name": "mine", "bucket_elements": 0.5})


def test_a_preset_names_only_what_differs():
    plain = Recipe(name="plain").switches
    for name in list_recipes():
        path = files("costmodel") / "describe" / "data" / "recipes" / f"{name}.yaml"
        raw = read_mapping(path, example="source: x")
        assert raw.keys() <= {*LABELS, *GROUP_OF, "base"}
        assert raw["source"]
        recipe = load_recipe(name)
        below = load_recipe(raw["base"]).switches if "base" in raw else plain
        for switch in raw.keys() & set(GROUP_OF):
            read = recipe.switches[switch]
            assert (list(read) if isinstance(read, tuple) else read) == raw[switch], (name, switch)
            assert read != below[switch], f"{name}: {switch} is what it would be"
        for switch in GROUP_OF.keys() - raw.keys() - {"overhead_fraction"}:
            assert recipe.switches[switch] == below[switch]


def test_a_base_lends_its_switches_and_launches_and_nothing_that_is_said_of_it():
    """Megatron-Bridge of 26.06 on Megatron-Bridge on NeMo on Megatron-Core; one share for both releases."""
    newest, bridge, nemo, core = map(
        load_recipe, ("megatron-bridge-2606", "megatron-bridge", "nemo", "megatron-core")
    )
    assert bridge.launches == nemo.launches != core.launches
    assert newest.launches == replace(nemo.launches, release=MEGATRON_2026)
    # A Transformer Engine Linear beside torch's on one host, and torch's on the host of an H100 (TransformerEngine issue 2053).
    assert newest.host.launch_s == core.host.launch_s == pytest.approx(99.7 / 37.1 * 13.5e-6, rel=0.015)
    assert (core.overlap.nccl_pat, nemo.overlap.nccl_pat, bridge.overlap.nccl_pat) == (True, False, True)
    b200 = load_accelerator("b200-sxm-180gb")
    shares = [usual_overhead(b200, one.name) for one in (newest, bridge, nemo)]
    assert shares[0] == shares[1] != shares[2]
    assert newest.host.overhead_fraction is None
    assert newest.description != bridge.description
    # AXLearn inherits of MaxText on TPUs, but nobody says how it counts the MFU that it prints, nor was it fitted.
    axlearn, maxtext = load_recipe("axlearn"), load_recipe("maxtext-tpu")
    assert maxtext.prints.mfu == "causal"
    assert axlearn.prints is None
    v5p = load_accelerator("tpu-v5p")
    assert usual_overhead(v5p, "axlearn") == usual_overhead(v5p)


def test_a_wrong_recipe_is_one_line():
    for values, message in (
        ({"kernels": {}}, "'kernels' is unknown"),
        ({"fused_nrm": True}, "switch 'fused_nrm' is unknown; did you mean 'fused_norm'"),
        ({"launch_s": 1.0}, r"recipe mine: launch_s: .*less than 0.001, got 1.0"),
        ({"selective_modules": ["core"]}, r"recipe mine: selective_modules\.0: .*got 'core'"),
    ):
        with pytest.raises(RecipeError, match=message) as raised:
            make_recipe({"name": "mine", **values})
        assert "\n" not in str(raised.value)


def test_switches_of_the_job_reach_the_job():
    job = make_job(**JOB, switches={"sync_every": 10, "stragglers": "normal", "fused_norm": False})
    assert job.policy == GROUPS["policy"](sync_every=10)
    assert job.health == GROUPS["health"](stragglers="normal")
    assert not job.recipe.kernels.fused_norm
    assert job.switches.keys() == SWITCHES.keys()
    again = make_job(**JOB).switched({"sync_every": 10, "stragglers": "normal", "fused_norm": False})
    assert (again.policy, again.health, again.recipe) == (job.policy, job.health, job.recipe)


def test_a_job_switched_is_the_job_made_so():
    plain = make_job(**JOB)
    for changes in (
        {"attention_kernel": "auto"},
        {"gradient_compression": "int8"},
        {"straggler_jitter": 0.1},
    ):
        made, switched = make_job(**JOB, switches=changes), plain.switched(changes)
        assert made.switches == switched.switches
        assert estimate_job(made).step_time_s == estimate_job(switched).step_time_s


def test_switches_are_written_as_fields_are():
    written = {"bucket_elements": "50M", "compression_rank": "1k", "allocator_slack": "5e-2"}
    switches = make_job(**JOB, switches=written).switches
    assert {name: switches[name] for name in written} == {
        "bucket_elements": 50e6,
        "compression_rank": 1000,
        "allocator_slack": 0.05,
    }


def test_the_record_gives_every_switch_back():
    est = cm.estimate(**JOB, switches={"sync_every": 7, "straggler_slowdown": 0.2, "moe_imbalance": 1.2})
    inputs = est.to_dict()["inputs"]
    assert inputs["switches"].keys() == SWITCHES.keys()
    assert cm.estimate(**inputs).job.switches == est.job.switches
    assert est.job.recipe.plain_switches == inputs["switches"]


def test_one_switch_is_replaced_and_no_other():
    recipe = load_recipe("megatron-core")
    for name in GROUP_OF:
        marked = recipe.replaced(name, "marked").switches
        assert {key for key, value in marked.items() if value != recipe.switches[key]} == {name}


def test_the_mfu_that_a_framework_prints_stands_beside_ours():
    for name, figure, said in (
        ("maxtext", "mfu_causal", "; maxtext prints "),
        ("megatron-2021", "hfu", "; megatron-2021 prints "),
        ("megatron-core", "mfu", ""),
    ):
        job = {"model": "llama3-8b", "gpus": 8, "global_batch": 8, "seq_len": 8192, "recompute": "full"}
        est = cm.estimate(**job, recipe=name, layout="tp2")
        # All three differ for this job: attention is counted twice over, and forward runs again.
        assert float(est.mfu_causal) < float(est.mfu) < float(est.hfu)
        assert float(est.mfu_printed) == float(getattr(est, figure))
        record = est.to_dict()["mfu_printed"]
        assert record["value"] == float(getattr(est, figure))
        assert record["source"]
        row = dict(est.grids()[0].rows)["MFU"]
        assert (f"{said}{float(est.mfu_printed):.1%}" in row) if said else ("prints" not in row)


def test_who_says_nothing_of_its_mfu_prints_none():
    est = cm.estimate(model="llama3-8b", gpus=8, global_batch=8, seq_len=2048, recipe="hai-llm", layout="tp2")
    assert est.mfu_printed is None
    assert est.to_dict()["mfu_printed"] is None
    assert "prints" not in dict(est.grids()[0].rows)["MFU"]


def test_what_a_recipe_leaves_to_the_device():
    """`auto` is the vendor's kernel, `torch` PyTorch's; what is named stays, as does a share that is given."""
    plain = load_recipe("megatron-core")
    for device in ("b200-sxm-180gb", "h100-sxm-80gb", "v100-sxm2-32gb", "mi300x", "tpu-v7x"):
        accelerator = load_accelerator(device)

        def found(name, said, accelerator=accelerator):
            return resolved_for(plain.replaced(name, said), accelerator, "bf16").switches[name]

        assert found("attention_kernel", "auto") == accelerator.software.attention
        assert found("attention_kernel", "torch") == accelerator.software.torch_attention
        assert found("attention_kernel", "flash3") == "flash3"
        assert found("collectives_on", "auto") == accelerator.software.collectives_on
        assert found("collectives_on", "sms") == "sms"
        assert found("overhead_fraction", None) == usual_overhead(accelerator, "megatron-core")
        assert found("overhead_fraction", 0.01) == 0.01


def test_a_recipe_resolved_twice_is_resolved_once():
    """A search, a sweep and a command line resolve what was resolved before."""
    for name in list_recipes():
        for device in ("h100-sxm-80gb", "tpu-v5p"):
            for precision in ("fp16", "bf16", "fp8-delayed"):
                accelerator = load_accelerator(device)
                once = resolved_for(load_recipe(name), accelerator, precision)
                assert resolved_for(once, accelerator, precision) == once, (name, device, precision)


def test_what_a_plan_resolves_again_is_what_its_command_says():
    """Megatron's gradients in fp16: the planned memory is that of an estimate of the same layout."""
    job = {"model": "llama3-8b", "gpus": 8, "global_batch": 8, "seq_len": 4096, "precision": "fp16"}
    best = cm.plan(**job, recipe="megatron-core", tp=2, pp=1, micro_batch=1).best
    assert "adam_temporary_bytes" not in short_form(best.job).get("switches", {})
    again = cm.estimate(**short_form(best.job))
    assert again.memory_bytes_per_gpu == pytest.approx(best.memory_bytes_per_gpu, rel=1e-12)
