"""The share of a step that nothing explains: fitted by hand on made-up runs, left out by sources, and as shipped."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import costmodel as cm
from costmodel.describe.hardware.hardware import load_accelerator
from costmodel.describe.odds import odds
from costmodel.describe.recipe import is_fitted, list_recipes, share_keys, usual_overhead
from costmodel.describe.switch_table import SWITCHES
from costmodel.estimates.priced_job import error_bands
from costmodel.trust.shares import MIN_RUNS, errors_of, fit_shares, fitted_runs, left_out_errors

H100, A100, TPU, MI300X = "h100-sxm-80gb", "a100-sxm-80gb", "tpu-v5p", "mi300x"


def share_of(shares, recipe, is_gpu, generation, own_stack):
    device = SimpleNamespace(is_gpu=is_gpu, generation=generation, has_own_stack=own_stack)
    found = (shares[key].share for key in share_keys(recipe, device) if key in shares)
    return next(share for share in found if share is not None)


def runs(*groups):
    """Runs of (recipe, source, share that is not explained, count, accelerator): 2 s a step that no share is of, 8 s that are."""
    rows = [
        {
            "recipe": recipe,
            "source": source,
            "accelerator": accelerator,
            "time_error": 0.0,
            "measured_step_time_s": 2.0 + 8.0 * (1.0 + share),
            # What was billed before is no part of the fit.
            "predicted_step_time_s": 2.0 + 8.0 + 3.0,
            "predicted_shared_s": 8.0,
            "predicted_unexplained_s": 3.0,
        }
        for recipe, source, share, count, accelerator in groups
        for _ in range(count)
    ]
    return fitted_runs(pd.DataFrame(rows))


def logs(share):
    return float(np.log1p(share))


def test_one_source_moves_a_recipe_half_way_from_its_generation_and_two_agreeing_ones_by_four_fifths():
    found = fit_shares(
        runs(
            *[("core", name, 0.10, 20, H100) for name in "abcdefg"],
            ("alone", "h", 0.30, 10, H100),
            ("both", "i", 0.20, 10, H100),
            ("both", "j", 0.20, 10, H100),
            ("few", "k", 0.90, MIN_RUNS - 1, H100),
        )
    )
    usual = found["any", "hopper"]
    assert usual.share == pytest.approx(0.10)
    assert (usual.runs, usual.sources) == (176, 11)
    assert logs(found["alone", "hopper"].share) == pytest.approx((logs(0.10) + logs(0.30)) / 2)
    assert logs(found["both", "hopper"].share) == pytest.approx(0.2 * logs(0.10) + 0.8 * logs(0.20))
    assert ("few", "hopper") not in found
    assert share_of(found, "few", True, "hopper", False) == usual.share
    assert np.isnan(found["alone", "hopper"].spread)
    assert found["both", "hopper"].spread == pytest.approx(0.0)


def test_a_family_counts_as_the_three_quarter_power_of_its_runs():
    """Of four families each 16 runs count 8: 32 are more than 27 of 81 runs and fewer than 64 of 256."""
    small = [("core", name, 0.10, 16, H100) for name in "abcd"]
    for count, usual in ((81, 0.10), (256, 0.30)):
        found = fit_shares(runs(*small, ("core", "large", 0.30, count, H100)))["any", "hopper"]
        assert logs(found.share) == pytest.approx((logs(0.10) + 10 * logs(usual)) / 11)


def test_sources_of_one_family_are_one_source():
    """Two containers of one framework say what one says."""
    others = [("core", name, 0.0, 20, H100) for name in "abc"]
    found = fit_shares(
        runs(*others, ("nemo", "nemo-24.07", 0.2, 9, H100), ("nemo", "nemo-25.02", 0.2, 9, H100))
    )
    assert found["nemo", "hopper"].sources == 1
    assert logs(found["nemo", "hopper"].share) == pytest.approx(logs(0.2) / 2)


def test_a_large_source_weighs_as_sixty_runs():
    found = fit_shares(runs(("core", "a", 0.05, 60, H100), ("core", "b", 0.25, 600, H100)))
    assert 0.05 < found["any", "hopper"].share < 0.24


def test_a_generation_of_one_source_is_half_way_to_all_generations_of_its_kind_where_each_source_has_one_vote():
    votes = (("a", 0.05, 10, A100), ("b", 0.15, 20, H100), ("c", 0.35, 400, H100))
    found = fit_shares(runs(*[("core", *vote) for vote in votes]))
    assert found["any", "gpu"].share == pytest.approx(0.15)
    ampere = found["any", "ampere"]
    assert logs(ampere.share) == pytest.approx((logs(0.15) + logs(0.05)) / 2)
    # Nothing that it was fitted to elsewhere is lent, to a recipe neither.
    own = share_of(found, "core", True, "ampere", False)
    assert logs(own) == pytest.approx((logs(ampere.share) + logs(0.05)) / 2)
    assert share_of(found, "core", True, "volta", False) == found["any", "gpu"].share


def test_a_recipe_near_its_generation_has_no_share_of_its_own():
    votes = [("core", name, 0.10, 20, H100) for name in "abc"]
    for share, own in ((0.13, None), (0.16, np.expm1((logs(0.10) + logs(0.16)) / 2))):
        found = fit_shares(runs(*votes, ("near", "d", share, 10, H100)))["near", "hopper"]
        assert found.share == (own and pytest.approx(own))
        assert (found.runs, found.sources) == (10, 1)


def test_gpus_beyond_cuda_take_what_others_beyond_cuda_lose():
    cuda = [("one", "a", 0.1, 40, H100)]
    found = fit_shares(runs(*cuda, ("two", "b", 0.5, 10, MI300X)))
    assert share_of(found, "few", True, "cdna2", True) == pytest.approx(0.5)
    assert share_of(found, "few", True, "volta", False) == found["any", "gpu"].share < 0.2
    few = fit_shares(runs(*cuda, ("two", "b", 0.5, MIN_RUNS - 1, MI300X)))
    assert share_of(few, "few", True, "cdna2", True) == few["any", "gpu"].share
    assert load_accelerator(MI300X).has_own_stack
    assert not load_accelerator(H100).has_own_stack


def test_what_is_held_back_or_no_gpu_does_not_move_a_share():
    base = ("one", "a", 0.05, 40, H100)
    for other in (("one", "korthikanti22", 0.9, 400, H100), ("one", "a", 0.9, 400, TPU)):
        assert fit_shares(runs(base, other))["any", "hopper"].share == pytest.approx(0.05)
    assert fit_shares(runs(base, ("one", "t", 0.2, 10, TPU)))["any", "other"].share == pytest.approx(0.2)


def test_no_step_takes_less_than_its_parts():
    assert fit_shares(runs(("fast", "a", -0.05, 30, H100)))["fast", "hopper"].share == 0.0
    assert all(usual_overhead(load_accelerator(H100), name) >= 0 for name in list_recipes())


def test_a_run_is_judged_by_what_its_family_of_sources_did_not_fit():
    """Each is priced with the other's share: (2 + 8 x 1.3) for (2 + 8 x 1.1) measured, and the other way round."""
    made = runs(
        ("one", "nemo-1", 0.1, 10, H100), ("one", "nemo-2", 0.1, 10, H100), ("two", "b", 0.3, 10, H100)
    )
    errors = left_out_errors(made).groupby(made.source).first()
    assert errors["nemo-1"] == errors["nemo-2"] == pytest.approx(12.4 / 10.8 - 1)
    assert errors["b"] == pytest.approx(10.8 / 12.4 - 1)
    # By source the other container of the family still tells.
    assert left_out_errors(made, "source").iloc[0] < errors["nemo-1"]
    assert errors_of(made, {}).iloc[0] == pytest.approx(10.0 / 10.8 - 1)


def test_a_recipe_takes_the_share_of_its_runs_on_the_generation_then_of_all_there_unless_it_is_set():
    job = {"model": "llama2-7b", "gpus": 8, "global_batch": 8, "seq_len": 4096}
    for cluster, device in (("dgx-a100-hdr", A100), ("dgx-h100-ndr", H100)):
        for recipe in ("llama3", "torchtitan"):
            share = cm.estimate(**job, cluster=cluster, recipe=recipe).job.recipe.host.overhead_fraction
            assert share == usual_overhead(load_accelerator(device), recipe)
    hopper, ampere = load_accelerator(H100), load_accelerator(A100)
    assert usual_overhead(hopper, "llama3") == usual_overhead(hopper) != usual_overhead(hopper, "torchtitan")
    # What runs of torchtitan on Hopper tell is not lent to Ampere.
    assert usual_overhead(ampere, "torchtitan") == usual_overhead(ampere)
    fixed = cm.estimate(**job, cluster="dgx-a100-hdr", switches={"overhead_fraction": 0.5})
    assert fixed.job.recipe.host.overhead_fraction == 0.5
    assert SWITCHES["overhead_fraction"].words == ()
    volta = load_accelerator("v100-sxm2-32gb")
    assert usual_overhead(ampere) < usual_overhead(volta) < usual_overhead(load_accelerator(MI300X))


def test_shipped_bands_say_of_how_many_sources_they_are():
    shipped = error_bands()
    assert {"ampere-dense", "hopper-moe", "blackwell-moe", "any-dense-unfitted", "any-large"} <= set(
        shipped.time
    )
    assert "gb200" in shipped.accelerators
    for band in (*shipped.time.values(), *shipped.memory.values()):
        assert band.low < 1.0 < band.high
        assert band.runs >= 8
        assert band.sources >= 1
    # A range of memory and the odds of fitting say one thing: what surely fits has no end beyond the GPU.
    for band in shipped.memory.values():
        assert band.runs >= 50
        for fits in odds().fits.values():
            assert np.exp(fits.center - 2.326 * fits.spread) * band.high < 1.0
    for name, band in shipped.time.items():
        kind = "moe" if "moe" in name else "dense"
        if band.sources == 1 and not name.startswith("any"):
            guess = shipped.time[f"any-{kind}-estimated"]
            assert band.low <= guess.low < guess.high <= band.high
        wider = shipped.time.get(f"{name}-unfitted", band)
        assert wider.low <= band.low < band.high <= wider.high


def test_a_recipe_with_runs_on_a_generation_has_their_band_there_alone():
    job = {"model": "llama3-8b", "gpus": 64, "layout": "tp1", "zero_stage": 3, "seq_len": 8192}
    for recipe, cluster, of in (
        ("maxtext-tpu", "tpu-v5p", "tpu-v5-dense"),
        ("torchtitan", "tpu-v5p", "tpu-v5-dense-unfitted"),
        ("torchtitan", "dgx-h100-ndr", "hopper-dense"),
        ("maxtext-tpu", "dgx-h100-ndr", "hopper-dense-unfitted"),
    ):
        found = cm.estimate(**job, global_batch=64, recipe=recipe, cluster=cluster)
        assert found.error_band.of == of
        assert is_fitted(recipe, found.job.cluster.accelerator.generation) == (not of.endswith("unfitted"))


def test_a_machine_of_more_than_two_thousand_gpus_has_a_wider_band():
    job = {"model": "llama3-8b", "layout": "tp1", "zero_stage": 3, "seq_len": 8192, "recipe": "torchtitan"}
    small, large = (
        cm.estimate(**job, cluster="dgx-h100-ndr", gpus=gpus, global_batch=gpus).error_band
        for gpus in (2000, 2008)
    )
    at_scale = error_bands().time["any-large"]
    assert large.low == min(small.low, at_scale.low)
    assert large.high == max(small.high, at_scale.high)


def test_the_nearest_share_is_the_recipes_then_its_generations_its_stacks_and_its_kinds():
    for is_gpu, own_stack, kinds in (
        (True, True, ["other-stacks", "gpu"]),
        (True, False, ["gpu"]),
        (False, True, ["other"]),
    ):
        device = SimpleNamespace(is_gpu=is_gpu, generation="new", has_own_stack=own_stack)
        assert share_keys("core", device) == [
            ("core", "new"),
            ("any", "new"),
            *(("any", kind) for kind in kinds),
        ]
