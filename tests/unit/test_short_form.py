"""A job in as few words as say it, the changes of a job, and a layout in words: every word by hand."""

import pytest

from costmodel.base.errors import CostModelError, LayoutError, RecipeError
from costmodel.describe.jobs.job import Change, switch_change
from costmodel.describe.jobs.layout_text import (
    difference_text,
    layout_text,
)
from costmodel.describe.jobs.merge import (
    merge_jobs,
    placement,
    read_job,
    usual_batch,
    with_stragglers,
)
from costmodel.describe.jobs.short_form import command_text, job_file_text, short_form
from costmodel.describe.recipe import switch_text
from costmodel.estimates.estimate import estimate

PLAIN = {"model": "llama3-8b", "gpus": 8, "global_batch": 64, "seq_len": 4096}
TURNED = {
    **PLAIN,
    "gpus": 64,
    "cluster": "dgx-h100-ndr",
    "layout": "tp4 pp2 vp2",
    "zero": 3,
    "shard_group": 4,
    "micro_batch": 2,
    "recompute": "selective",
    "switches": {"fused_norm": False, "selective_modules": ("core_attn", "mlp"), "launch_s": 1e-05},
    "tokens": "1.5T",
    "price": 2.5,
    "precision": "fp8",
    "axis_order": "tp pp dp cp",
    "optimizer": "muon",
}
ADAPTED = {
    **PLAIN,
    "cluster": "mi300x-roce400",
    "recipe": "torchtitan",
    "layout": "tp2",
    "sequence_parallel": False,
    "lora_rank": 16,
    "lora_targets": "q,v",
    "base_dtype": "nf4",
    "packed_len": 1000,
    "packed_spread": 0.5,
}
SLICED = {
    **PLAIN,
    "cluster": "tpu-v5p",
    "gpus": 64,
    "pp": 2,
    "slice": "4x4x4",
    "frozen": "embedding,head",
    "pipeline_layout": "balanced",
}


def job(**asked):
    return estimate(**asked).job


def test_a_default_is_left_out():
    assert short_form(job(**PLAIN)) == {**PLAIN, "layout": "tp1"}
    # Whole numbers are written as such.
    assert {key: type(value) for key, value in short_form(job(**PLAIN)).items()} == {
        key: type(value) for key, value in {**PLAIN, "layout": "tp1"}.items()
    }
    assert command_text(job(**PLAIN)) == (
        "costmodel estimate -m llama3-8b -n 8 -l tp1 --global-batch 64 --seq-len 4096"
    )


def test_everything_else_is_said():
    said = short_form(job(**TURNED))
    assert said == {
        "model": "llama3-8b",
        "precision": "fp8-delayed",
        "optimizer": "muon",
        "gpus": 64,
        "layout": "tp4 pp2 vp2",
        "micro_batch": 2,
        "zero_stage": 3,
        "shard_group": 4,
        "recompute": "selective",
        "global_batch": 64,
        "seq_len": 4096,
        "switches": TURNED["switches"],
        "axis_order": "tp pp dp cp",
        "tokens": 1.5e12,
        "price_usd_per_gpu_hour": 2.5,
    }
    # What follows from the rest, or is the default of a cluster or a rank, is left out.
    assert {"zero_stage", "axis_order", "frozen"}.isdisjoint(short_form(job(**ADAPTED)))
    assert short_form(job(**SLICED))["slice"] == "4x4x4"
    assert "recipe" not in short_form(job(**SLICED))
    every = {**ADAPTED, "lora_targets": "all", "base_dtype": "bf16"}
    assert {"lora_targets", "base_dtype"}.isdisjoint(short_form(job(**every)))


def test_stages_written_out_and_chosen_schedules():
    written = job(**PLAIN, pp=2, pipeline_layout="Et*15|t*17L")
    assert short_form(written)["pipeline_layout"] == "Et*15|t*17L"
    assert short_form(job(**PLAIN, pp=2, schedule="gpipe"))["schedule"] == "gpipe"
    assert "schedule" not in short_form(job(**PLAIN, pp=2, schedule="1f1b"))
    # One GPU a sequence: nothing is sharded, whatever is asked.
    assert "sequence_parallel" not in short_form(job(**PLAIN, sequence_parallel=False))
    # Balanced stages of a pipeline of one are nothing to say.
    assert "pipeline_layout" not in short_form(job(**PLAIN, pipeline_layout="balanced"))


def test_the_command_line_word_by_word():
    assert command_text(job(**TURNED), "plan", {"llama3-8b": "my model.json"}) == (
        "costmodel plan -m 'my model.json' --precision fp8-delayed --optimizer muon -n 64 -l 'tp4 pp2 vp2' "
        "--micro-batch 2 --zero 3 --shard-group 4 --recompute selective --global-batch 64 --seq-len 4096 "
        "-s fused_norm=false -s launch_s=1e-05 -s selective_modules=core_attn,mlp "
        "--axis-order 'tp pp dp cp' --tokens 1.5T --price 2.5"
    )
    assert "--no-sequence-parallel" in command_text(job(**ADAPTED)).split()
    assert command_text(job(**ADAPTED), files={"mi300x-roce400": "own.yaml"}).split()[4:6] == [
        "-c",
        "own.yaml",
    ]


def test_the_short_form_is_the_job(tmp_path):
    for asked in [PLAIN, TURNED, ADAPTED, SLICED]:
        whole = estimate(**asked)
        again = estimate(**short_form(whole.job))
        assert float(again.step_time_s) == pytest.approx(float(whole.step_time_s), rel=1e-12)
        (tmp_path / "job.yaml").write_text(job_file_text(whole.job))
        read = estimate(**read_job(tmp_path / "job.yaml"))
        assert float(read.step_time_s) == pytest.approx(float(whole.step_time_s), rel=1e-12)


def test_a_layout_in_words():
    assert layout_text(job(**TURNED).layout) == (
        "tp4 pp2 vp2 dp8, micro-batch 2, ZeRO-3 in groups of 4, interleaved, selective recompute"
    )
    assert layout_text(job(**ADAPTED).layout) == (
        "tp2 dp4, micro-batch 1, ZeRO-1, no sequence parallelism, no recompute"
    )
    assert layout_text(job(**PLAIN).layout) == "tp1 dp8, micro-batch 1, ZeRO-1, no recompute"


def test_a_difference_in_words():
    ours = job(**{**PLAIN, "gpus": 16, "cluster": "dgx-a100-hdr", "pp": 2, "switches": {"fused_norm": False}})
    theirs = job(**{**PLAIN, "cluster": "dgx-a100-hdr", "precision": "fp32", "axis_order": "tp dp cp pp"})
    said = difference_text(ours, theirs)
    assert said == (
        "pp 2 (here 1), schedule 1f1b (here none), gpus 16 (here 8), precision bf16 (here fp32), "
        "axis order tp cp dp pp (here tp dp cp pp), fused_norm=false (here true)"
    )
    other = job(**{**PLAIN, "cluster": "dgx-h200-ndr"})
    assert difference_text(other, job(**PLAIN)).startswith("cluster dgx-h200-ndr (here dgx-h100-ndr)")
    assert difference_text(ours, ours) == "the same"


def test_one_switch_changed():
    found = switch_change(job(**PLAIN), "fused_norm", False)
    assert (found.name, found.before, found.after, found.kind) == ("fused_norm", "true", "false", "switch")
    assert found.job.switches["fused_norm"] is False
    assert str(found) == "fused_norm=false"
    assert not found.changes_numerics
    assert switch_change(job(**PLAIN), "grad_reduce_dtype", "bf16").changes_numerics
    assert not Change("grad_reduce_dtype", "a", "b", found.job, "number").changes_numerics
    with pytest.raises(RecipeError, match="fused_nrm"):
        switch_change(job(**PLAIN), "fused_nrm", True).job  # noqa: B018
    assert [switch_text(v) for v in (True, False, 0.5, "ring", ["a", "b"])] == [
        "true",
        "false",
        "0.5",
        "ring",
        "a,b",
    ]


def test_paths_of_a_file_count_from_its_folder(tmp_path):
    (tmp_path / "job.yaml").write_text(
        "model: own.json\ncluster: /else/where.yml\nsite: near/site.yaml\ngpus: 8\n"
    )
    assert read_job(tmp_path / "job.yaml") == {
        "model": str(tmp_path / "own.json"),
        "cluster": "/else/where.yml",
        "site": str(tmp_path / "near" / "site.yaml"),
        "gpus": 8,
    }
    (tmp_path / "job.yaml").write_text("model: llama3-8b\ncluster: h100-ndr\n")
    assert read_job(tmp_path / "job.yaml") == {"model": "llama3-8b", "cluster": "h100-ndr"}
    (tmp_path / "job.yaml").write_text("gpus: many\n")
    with pytest.raises(CostModelError, match=r"job\.yaml: gpus: "):
        read_job(tmp_path / "job.yaml")


def test_what_is_above_wins_and_switches_are_joined():
    below = {"tp": 8, "gpus": 64, "switches": {"fused_norm": False, "launch_s": 1e-5}}
    above = {"tp": 4, "gpus": None, "switches": {"launch_s": 2e-5}}
    assert merge_jobs(below, above) == {
        "tp": 4,
        "gpus": 64,
        "switches": {"fused_norm": False, "launch_s": 2e-5},
    }
    assert merge_jobs({"gpus": 8}, {"switches": {}}).get("switches") in (None, {})
    assert with_stragglers(None, None) is None
    assert with_stragglers(None, False) == {"stragglers": "none"}
    assert with_stragglers({"stragglers": "none"}, True) == {"stragglers": "none"}


def test_a_usual_batch_has_four_million_tokens_or_a_sequence_for_eight_gpus():
    for gpus, batch in ((48, 768), (16384, 2048), (24576, 3072)):
        assert usual_batch({"model": "llama3-8b", "gpus": gpus}) == {"seq_len": 8192, "global_batch": batch}


def test_a_usual_sequence_has_as_many_tokens_as_the_model_has_learned_positions():
    assert usual_batch({"model": "gpt3-175b", "gpus": 64}) == {"seq_len": 2048, "global_batch": 2048}
    assert usual_batch({"model": "gpt2-xl", "gpus": 64})["seq_len"] == 1024


def test_what_places_ranks():
    layout, cluster, order, recipe = placement(
        {
            "gpus": 64,
            "tp": 4,
            "pp": 2,
            "dp": 8,
            "cluster": "tpu-v5p",
            "slice": "4x4x4",
            "switches": {"fused_norm": False},
        }
    )
    assert [float(getattr(layout, axis)) for axis in ("tp", "pp", "dp")] == [4, 2, 8]
    assert (cluster.name, cluster.tiers[0].shape) == ("tpu-v5p", (4, 4, 4))
    assert (order, recipe.name, recipe.kernels.fused_norm) == (("tp", "cp", "dp", "pp"), "maxtext-tpu", False)
    assert placement({"gpus": 8, "recipe": "llama3", "axis_order": "tp dp cp pp"})[2:3] == (
        ("tp", "dp", "cp", "pp"),
    )
    with pytest.raises(LayoutError, match=r"tp·cp·pp·dp = 4·1·2·4 = 32, but gpus = 64"):
        placement({"gpus": 64, "tp": 4, "pp": 2, "dp": 4})
    with pytest.raises(CostModelError, match="job: gpus missing"):
        placement({"tp": 4})
