"""The registry of frameworks: complete records, known members, one place for what a framework starts."""

from importlib import import_module

import pytest

import costmodel as cm
from costmodel.base.errors import LayoutError, RecipeError
from costmodel.describe.frameworks import FRAMEWORKS
from costmodel.describe.jobs.fields import KNOBS
from costmodel.describe.jobs.reading import read_codes
from costmodel.describe.precision import PRECISIONS
from costmodel.describe.recipe import list_recipes, load_recipe, make_recipe, resolved_for
from costmodel.interop.framework import FrameworkConfigError
from costmodel.physics.pipeline.schedule_table import SCHEDULES

SMALL = {"model": "llama3-8b", "gpus": 16, "global_batch": 64, "seq_len": 8192}


def test_members_of_a_record_exist():
    for framework in FRAMEWORKS.values():
        module, function = framework.exporter.split(":")
        assert callable(getattr(import_module(module), function))
        assert framework.recipe in list_recipes()
        assert framework.schedules.keys() <= SCHEDULES.keys()
        assert framework.precisions.keys() <= PRECISIONS.keys()
        assert {*framework.zero_stage} <= {0, 1, 2, 3}
        assert framework.keeps.keys() <= set(KNOBS)
        assert FRAMEWORKS[framework.name] is framework
        for knob, value in framework.values.items():
            assert read_codes(knob, value)
        assert {*read_codes("zero_stage", framework.values["zero_stage"])} <= {*framework.zero_stage}


def test_a_recipe_starts_what_its_framework_does_unless_it_says_less():
    assert load_recipe("megatron-core").launches == FRAMEWORKS["megatron"].launches
    assert load_recipe("deepspeed").launches == FRAMEWORKS["deepspeed"].launches
    old = load_recipe("megatron-2021").launches
    assert (old.framework, old.zero_stage, old.schedule) == (
        "megatron",
        (0,),
        ("none", "1f1b", "interleaved"),
    )
    assert not old.pipeline_layouts
    assert old.chooses == ()
    for name in list_recipes():
        launches = load_recipe(name).launches
        if launches.framework in FRAMEWORKS:
            whole = FRAMEWORKS[launches.framework].launches
            assert set(launches.schedule) <= set(whole.schedule)
            assert set(launches.zero_stage) <= set(whole.zero_stage)
            assert set(launches.chooses) <= set(whole.chooses)


def test_a_plan_for_an_old_release_has_nothing_that_came_later():
    """Megatron-LM of 2021: layers recomputed whole or not at all, no sequence or context parallelism, no switches."""
    old, new = (
        cm.plan(
            model="gpt3-175b", cluster="dgx-a100-hdr", gpus=512, global_batch=512, seq_len=2048, recipe=recipe
        )
        for recipe in ("megatron-2021", "megatron-core")
    )
    assert set(old.by_value["recompute"]) == {0.0, 2.0}
    assert set(new.by_value["recompute"]) == {0.0, 1.0, 2.0}
    best = old.best.job
    assert float(best.layout.sequence_parallel) == 0.0
    assert float(best.layout.cp) == 1.0
    assert best.recipe == resolved_for(
        load_recipe("megatron-2021"), best.cluster.accelerator, best.precision.name
    )


ALL = {
    "framework": "none",
    "zero_stage": [0, 1],
    "schedule": ["none", "1f1b"],
    "pipeline_layouts": False,
    "keeps": {},
    "chooses": [],
    "source": "here",
}


def test_an_unknown_member_of_launches_is_an_error():
    assert make_recipe({"name": "own", "launches": ALL}).launches.source == "here"
    for changes, words in (
        ({"schedule": ["none", "1f1bb"]}, "schedule '1f1bb' is unknown; did you mean '1f1b'"),
        ({"zero_stage": [4]}, "zero_stage 4 is unknown; known: 0, 1, 2, 3"),
        ({"zero_stage": [7]}, "zero_stage 7 is unknown"),
        ({"framework": "megatrom"}, "framework 'megatrom' is unknown; did you mean 'megatron'"),
        ({"exporter": "megatron"}, "launches.exporter"),
        ({"source": None}, "launches.source"),
    ):
        with pytest.raises(RecipeError) as caught:
            make_recipe({"name": "own", "launches": {**ALL, **changes}})
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


def test_an_unknown_framework_is_one_line():
    with pytest.raises(LayoutError, match="framework: 'megatrom' is unknown; did you mean 'megatron'"):
        cm.plan(**SMALL, framework="megatrom")
    with pytest.raises(
        FrameworkConfigError, match="framework: 'megatrom' is unknown; did you mean 'megatron'"
    ):
        cm.emit(cm.estimate(**SMALL, layout="tp2"), "megatrom")


def test_what_the_record_does_not_name_is_not_written():
    for framework in FRAMEWORKS.values():
        lacking = next(name for name in SCHEDULES if name not in framework.schedules and name != "none")
        chunks = "vp2" if lacking in ("interleaved", "zb-v", "v-half", "v-min", "dualpipe-v") else ""
        est = cm.estimate(**SMALL, layout=f"pp4 {chunks}", schedule=lacking)
        with pytest.raises(
            FrameworkConfigError, match=f"{framework.title} has no schedule {lacking}; plan with"
        ):
            cm.emit(est, framework.name)
        est = cm.estimate(**SMALL, cluster="gb300-nvl72-xdr", precision="mxfp4", layout="tp1")
        with pytest.raises(
            FrameworkConfigError, match=f"{framework.title} has no precision mxfp4; plan with"
        ):
            cm.emit(est, framework.name)


def test_deepspeed_shards_gradients_without_a_pipeline_only_whatever_the_recipe():
    """The named framework launches, not the recipe's: ZeRO-2 and 3 stand alone in DeepSpeed."""
    frame = cm.plan(**SMALL, framework="deepspeed", num_candidates=100_000).to_frame()
    assert frame[frame.pp > 1].zero_stage.max() == 1
    assert frame[frame.pp == 1].zero_stage.max() == 3


def test_a_framework_is_planned_as_it_runs():
    """Its own recipe where none is named, and the one that is named where one is."""
    for name in FRAMEWORKS:
        asked = {**SMALL, "framework": name, "pp": 1, "num_candidates": 1}
        assert cm.plan(**asked).best.job.recipe.name == FRAMEWORKS[name].recipe
        assert cm.plan(**asked, recipe="nanotron").best.job.recipe.name == "nanotron"
