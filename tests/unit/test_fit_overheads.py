"""The one constant of each recipe, and the error bands: by hand on made-up runs, and as shipped."""

import bands
import fit_overheads as overheads
import numpy as np
import pandas as pd
import pytest

import costmodel as cm
from costmodel.base.yaml_files import read_mapping
from costmodel.describe.hardware.hardware import load_accelerator
from costmodel.describe.jobs.switches import switch_choices
from costmodel.describe.recipe import list_recipes, load_recipe, usual_overhead
from costmodel.estimates.priced_job import error_bands
from costmodel.trust.source_families import source_family


def runs(*groups):
    """Rows of (recipe family, source, share that is not explained, count)."""
    rows = [
        {
            "family": family,
            "source": source,
            "model": model,
            "is_gpu": gpu,
            "log_ratio": -np.log1p(share),
            "accelerator": "h100-sxm-80gb" if gpu else "tpu-v5p",
            "generation": "hopper" if gpu else "tpu-v5",
            "own_stack": not gpu,
            "num_experts": 0,
        }
        for family, source, share, count, model, gpu in groups
        for _ in range(count)
    ]
    return pd.DataFrame(rows)


def test_one_source_is_taken_as_it_is_and_a_large_one_weighs_no_more_than_another():
    found = overheads.fit_constants(
        runs(
            ("one", "a", 0.05, 40, "m", True),
            ("two", "b", 0.10, 400, "m", True),
            ("two", "c", 0.30, 25, "m", True),
            ("few", "d", 0.50, 3, "m", True),
        )
    )
    assert found["one", True] == pytest.approx(0.05)
    # Half of the weight each: between them, and then nearer to the others, as they do not agree.
    assert 0.10 < found["two", True] < 0.21
    assert ("few", True) not in found
    assert overheads.share_of(found, "few", True) == found["", True]
    assert overheads.share_of(found, "few", True, "volta") == found["", True]


def test_a_recipe_without_a_constant_takes_that_of_the_generation():
    old = runs(("one", "a", 0.05, 10, "m", True)).assign(generation="ampere")
    new = runs(("two", "b", 0.15, 10, "m", True), ("few", "c", 0.4, 6, "m", True))
    found = overheads.fit_constants(pd.concat([old, new], ignore_index=True))
    assert overheads.share_of(found, "few", True, "ampere") == pytest.approx(0.05)
    # 10 of 16 runs of the generation have it.
    assert 0.15 <= overheads.share_of(found, "few", True, "hopper") < 0.25
    assert overheads.share_of(found, "one", True, "hopper") == pytest.approx(0.05)
    assert overheads.share_of(found, "few", True, "volta") == found["", True]


def test_gpus_beyond_cuda_without_runs_of_their_generation_take_what_others_beyond_cuda_lose():
    cuda = runs(("one", "a", 0.1, 40, "m", True))
    other = runs(("two", "b", 0.5, 10, "m", True)).assign(generation="cdna4", own_stack=True)
    found = overheads.fit_constants(pd.concat([cuda, other], ignore_index=True))
    assert overheads.share_of(found, "few", True, "cdna3", own_stack=True) == pytest.approx(0.5)
    assert overheads.share_of(found, "few", True, "cdna3") == found["", True] < 0.2
    assert overheads.share_of(found, "few", True, "hopper", own_stack=True) == pytest.approx(0.1)
    assert overheads.share_of(found, "one", True, "cdna3", own_stack=True) == pytest.approx(0.1)
    few = overheads.fit_constants(pd.concat([cuda, other.head(6)], ignore_index=True))
    assert (overheads.OTHER_STACKS, True) not in few
    assert usual_overhead("none of ours", own_stack=True) > usual_overhead("none of ours")
    assert load_accelerator("mi300x").has_own_stack
    assert not load_accelerator("h100-sxm-80gb").has_own_stack


def test_bands_are_made_of_errors_of_what_was_left_out_where_something_of_the_kind_is_left():
    made = runs(
        ("one", "a", 0.1, 10, "m", True),
        ("two", "b", 0.3, 10, "m", True),
        ("xla", "c", 0.1, 20, "m", False),
        ("xla", "d", 0.3, 6, "m", False),
        ("own", "e", 0.2, 20, "m", False),
    ).assign(source_family=lambda frame: frame.source.replace({"c": "xla", "d": "xla"}))
    fitted = pd.Series(9.0, index=made.index)
    errors = overheads.left_out_errors(made, fitted).groupby(made.source).first()
    # Leaving c out leaves six runs of the recipe, one less than a constant needs; e is alone with its recipe.
    assert errors[["c", "e"]].tolist() == [9.0, 9.0]
    assert errors["a"] == pytest.approx(1.3 / 1.1 - 1)
    assert errors["b"] == pytest.approx(1.1 / 1.3 - 1)
    assert errors["d"] == pytest.approx(1.1 / 1.3 - 1)


def test_a_recipe_of_no_own_constant_is_that_of_the_device_unless_it_is_set():
    job = {"model": "llama2-7b", "gpus": 8, "global_batch": 8, "seq_len": 4096, "recipe": "llama3"}
    shares = {
        cluster: cm.estimate(**job, cluster=cluster).job.recipe.host.overhead_fraction
        for cluster in ("dgx-a100-hdr", "h100-ndr")
    }
    assert shares == {"dgx-a100-hdr": usual_overhead("ampere"), "h100-ndr": usual_overhead("hopper")}
    fixed = cm.estimate(**job, cluster="dgx-a100-hdr", switches={"overhead_fraction": 0.5})
    assert fixed.job.recipe.host.overhead_fraction == 0.5
    assert switch_choices("overhead_fraction") == ()
    assert usual_overhead("none of ours") == usual_overhead("any")


def test_shares_of_generations_are_written_and_read(tmp_path):
    made = runs(("one", "a", 0.05, 10, "m", True))
    file = tmp_path / "unexplained.yaml"
    overheads.write_generations(overheads.fit_constants(made), made, file)
    assert read_mapping(file, example="hopper: 0.15") == {"hopper": 0.05, "any": 0.05}
    assert "10 runs, 1 sources" in file.read_text()


def test_sources_that_disagree_pull_a_constant_to_that_of_all():
    """5 % and 25 %: halfway, 14.6 %; their median is as uncertain as their distance says, against what recipes differ by."""
    groups = [("one", name, 0.0, 25, "m", True) for name in "abc"]
    found = overheads.fit_constants(
        runs(*groups, ("two", "d", 0.05, 25, "m", True), ("two", "e", 0.25, 25, "m", True))
    )
    low, high = np.log1p(0.05), np.log1p(0.25)
    assert found["", True] == pytest.approx(0.0)
    squared_error = (1.4826 * (high - low) / 2) ** 2 / 2
    kept = 0.07**2 / (0.07**2 + squared_error)
    assert np.log1p(found["two", True]) == pytest.approx(kept * (low + high) / 2)


def test_what_is_held_back_or_no_gpu_does_not_move_a_constant():
    base = [("one", "a", 0.05, 40, "m", True)]
    for other in (
        ("one", "korthikanti22", 0.9, 400, "m", True),
        ("one", "a", 0.9, 400, "m", False),
    ):
        assert overheads.fit_constants(runs(*base, other))["one", True] == pytest.approx(0.05)
    xla = overheads.fit_constants(runs(*base, ("one", "t", 0.2, 10, "m", False)))
    assert xla["one", False] == pytest.approx(0.2)


def test_held_out_errors_leave_the_whole_group_out():
    made = runs(("one", "a", 0.1, 10, "m", True), ("two", "b", 0.3, 10, "m", True))
    errors = overheads.joined_errors(overheads.held_out_errors(made))
    # Each is priced with the other's share.
    assert errors.iloc[0] == pytest.approx(1.3 / 1.1 - 1)
    assert errors.iloc[-1] == pytest.approx(1.1 / 1.3 - 1)


def test_bands_hold_their_share_and_are_wider_where_nothing_was_fitted():
    made = runs(("one", "a", 0.1, 21, "m", True))
    made = made.assign(quality="A", memory_error=0.0)
    own, other = (pd.Series(np.linspace(-w, w, 21), index=made.index) for w in (0.1, 0.2))
    found = bands.error_bands(made, own, other)
    narrow, wide = found["time"]["hopper-dense"], found["time"]["hopper-dense-unfitted"]
    assert (narrow["low"], narrow["high"]) == (round(1 / 1.08, 3), round(1 / 0.92, 3))
    assert wide["low"] < narrow["low"] < narrow["high"] < wide["high"]
    inside = bands.coverage(made, own, found["time"])
    assert inside.inside.tolist() == pytest.approx([0.8], abs=0.05)
    assert found["memory"]["any"] == {"low": 1.0, "high": 1.0, "runs": 21}


def test_families_of_sources():
    assert {source_family(name) for name in ("megatron-bridge-25.09", "mbridge-cards")} == {"megatron-bridge"}
    assert source_family("dgxc-25.01") == source_family("nemo-24.07") != source_family("dgxc-maxtext")
    assert source_family("bloom") == "bloom"


def test_shipped_bands_name_recipes_and_machines_and_every_recipe_has_both_constants():
    shipped = error_bands()
    assert {"ampere-dense", "hopper-moe", "blackwell-moe", "any-dense-unfitted"} <= set(shipped.time)
    assert set(shipped.fitted_recipes) < set(list_recipes())
    assert "maxtext-tpu" in set(shipped.fitted_recipes_xla) - set(shipped.fitted_recipes)
    assert "gb200" in shipped.accelerators
    for band in (*shipped.time.values(), *shipped.memory.values()):
        assert band.low < band.high
        assert band.runs >= bands.LEAST_RUNS
    for name in list_recipes():
        host = load_recipe(name).host
        assert host.overhead_fraction is None or 0 <= host.overhead_fraction <= 1
        assert host.overhead_fraction_xla > 0


def test_a_recipe_with_a_constant_on_tpus_has_their_band_there_and_not_on_gpus():
    job = {
        "model": "llama3-8b",
        "gpus": 64,
        "layout": "tp1",
        "zero_stage": 3,
        "global_batch": 64,
        "seq_len": 8192,
    }
    for recipe, cluster, of in (
        ("maxtext-tpu", "tpu-v5p", "tpu-v5-dense"),
        ("torchtitan", "tpu-v5p", "tpu-v5-dense-unfitted"),
        ("torchtitan", "dgx-h100-ndr", "hopper-dense"),
        ("maxtext-tpu", "dgx-h100-ndr", "hopper-dense-unfitted"),
    ):
        assert cm.estimate(**job, recipe=recipe, cluster=cluster).error_band.of == of


def test_no_step_takes_less_than_its_parts():
    fast = runs(("fast", "a", -0.05, 30, "m", True), ("other", "b", 0.10, 30, "m", True))
    assert overheads.fit_constants(fast)["fast", True] == 0.0
    shares = [
        getattr(load_recipe(name).host, switch)
        for name in list_recipes()
        for switch in overheads.SWITCHES.values()
    ]
    assert all(share is None or share >= 0 for share in shares)
