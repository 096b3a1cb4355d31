"""The sliders of a report move through estimates: each position is one, or says why there is none."""

import itertools

import numpy as np
import pytest
from famous_jobs import DEEPSEEK_V3, LLAMA3_405B

import costmodel as cm
from costmodel.base.errors import CostModelError
from costmodel.describe.jobs.layout import parse_layout
from costmodel.physics.pipeline.schedules import schedule_at
from costmodel.planning.space import REASONS
from costmodel.step.price import price
from costmodel.what_if.slider_grid import MOST_POINTS, SLIDERS, _doublings, slider_grid, slider_values


def by_degrees(job):
    """Return a job whose degrees are fields of their own, which sliders turn."""
    rest = {name: value for name, value in job.items() if name != "layout"}
    return {**rest, **parse_layout(job["layout"])}


LLAMA, DEEPSEEK = by_degrees(LLAMA3_405B), by_degrees(DEEPSEEK_V3)
SMALL = {"model": "llama3-8b", "seq_len": 8192}
GROUPED = {**SMALL, "gpus": 64, "tp": 2, "zero_stage": 3, "shard_group": 8, "global_batch": 128}
ODD = {**SMALL, "gpus": 48, "tp": 1, "pp": 3, "micro_batch": 3, "global_batch": 144}
# As a plan writes it: 18 chunks hold 48 layers, and the stage with the head no more work than the others.
BALANCED = {
    "model": "qwen3-30b-a3b",
    "cluster": "dgx-h100-ndr",
    "gpus": 32,
    "pp": 2,
    "vp": 9,
    "ep": 8,
    "schedule": "interleaved",
    "zero_stage": 1,
    "pipeline_layout": "balanced",
    "global_batch": 256,
    "seq_len": 4096,
}
WRITTEN_OUT = {
    **{name: value for name, value in BALANCED.items() if name != "model"},
    "model": "llama3-8b",
    "ep": 1,
    "vp": 2,
    "pipeline_layout": "Et*8|t*8|t*8|t*8L",
}
JOBS = {
    "llama": LLAMA,
    "deepseek": DEEPSEEK,
    "grouped": GROUPED,
    "odd": ODD,
    "balanced": BALANCED,
    "written out": WRITTEN_OUT,
}


def job_at(job, est, grid, at):
    chosen = {knob: grid.values[knob][place] for knob, place in zip(SLIDERS, at, strict=True)}
    own = est.job.layout
    keep = chosen["pp"] > 1 and not grid.plain[at]
    schedule = schedule_at(own.schedule).name if keep else "1f1b" if chosen["pp"] > 1 else "none"
    more = {"vp": int(own.vp) if keep else 1, "schedule": schedule}
    given = job.get("pipeline_layout")
    if given and not (chosen["pp"] > 1 if given == "balanced" else keep and chosen["pp"] == own.pp):
        more["pipeline_layout"] = None
    return {**job, **chosen, **more}


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_every_position_is_an_estimate_or_is_refused_as_one(job):
    est = cm.estimate(**job)
    grid = slider_grid(est)

    start = tuple(grid.start[knob] for knob in SLIDERS)
    assert grid.step_time_s[start] == pytest.approx(float(est.step_time_s), rel=1e-12)
    assert not grid.plain[start]
    assert grid.step_time_s.size <= MOST_POINTS
    places = list(itertools.product(*(range(len(grid.values[knob])) for knob in SLIDERS)))
    some = np.random.default_rng(0).choice(len(places), 30, replace=False)
    seen = set()
    for index in some:
        at = places[index]
        seen.add(bool(grid.reason[at]))
        if grid.reason[at]:
            with pytest.raises(CostModelError):
                cm.estimate(**job_at(job, est, grid, at))
            assert np.isnan(grid.step_time_s[at])
            continue
        one = cm.estimate(**job_at(job, est, grid, at))
        # A single estimate follows the simulation of its pipeline.
        assert grid.step_time_s[at] == pytest.approx(float(one.step_time_s), rel=0.03)
        alone = price(one.job, every_stage=True).bill
        if one.job.layout.pp != est.job.layout.pp or est.priced.step.order_factor == 1.0:
            assert grid.step_time_s[at] == pytest.approx(float(alone.step_time_s()), rel=1e-9)
        assert grid.memory_bytes[at] == pytest.approx(float(one.memory_bytes_per_gpu), rel=1e-9)
    assert seen == {True, False}


def test_shares_of_every_position_are_the_whole_step():
    grid = slider_grid(cm.estimate(**DEEPSEEK))
    can = grid.reason == 0

    np.testing.assert_allclose(grid.shares.sum(axis=-1)[can], 1.0, rtol=1e-12)
    assert np.isnan(grid.step_time_s[~can]).all()
    assert (grid.reason <= len(grid.reasons)).all()


def test_values_are_halves_and_doubles_that_are_whole_and_in_range():
    known = {
        (8, 1, 16): (1, 2, 4, 8, 16),
        (8, 4, 8): (4, 8),
        (12, 1, 24): (1, 3, 6, 12, 24),
        (6, 0, 6): (1, 3, 6),
        (16, 3, 40): (4, 8, 16, 32),
        (5, 2, 9): (5,),
    }
    assert {bounds: _doublings(*bounds) for bounds in known} == known


def test_values_of_every_slider_by_hand():
    """An eighth of the GPUs to four times; tp within a node; pp to the layers or 32; cp down to 512 tokens; no experts."""
    job = {
        "model": "llama3-8b",
        "cluster": "dgx-h100-ndr",
        "gpus": 64,
        "layout": "tp2 pp2",
        "global_batch": 128,
    }
    assert slider_values(cm.estimate(**job, seq_len=4096).job) == {
        "gpus": (8, 16, 32, 64, 128, 256),
        "tp": (1, 2, 4, 8),
        "pp": (1, 2, 4, 8, 16, 32),
        "cp": (1, 2, 4, 8),
        "ep": (1,),
        "micro_batch": (1, 2, 4, 8),
    }
    # 16 of a rack of 72, and never more than 16 ranks of 128 k tokens.
    wide = {
        **job,
        "model": "deepseek-v3-671b",
        "cluster": "gb200-nvl72",
        "layout": "pp2 ep8",
        "gpus": 72 * 16,
    }
    found = slider_values(cm.estimate(**{**wide, "global_batch": 576 * 8}, seq_len=131072).job)
    assert (found["tp"], found["cp"]) == ((1, 2, 4, 8, 16), (1, 2, 4, 8, 16))


def test_groups_that_shard_together_divide_the_ranks():
    """Eight ranks share parameters: of all positions those whose dp times cp they do not divide cannot run."""
    grid = slider_grid(cm.estimate(**GROUPED))
    gpus, tp, _, pp, *_ = np.meshgrid(*(grid.values[knob] for knob in SLIDERS), indexing="ij")
    assert SLIDERS[:4] == ("gpus", "tp", "cp", "pp")
    parted = (gpus % (tp * pp) == 0) & (gpus // (tp * pp) % 8 != 0)
    said = grid.reasons.index(REASONS["shard_group_not_divisible"]) + 1
    assert (grid.reason == said).any()
    assert (grid.reason[parted] != 0).all()
    assert parted[grid.reason == said].all()


def test_micro_batches_of_a_position_decide_whether_its_schedule_runs():
    """Of 64 sequences 16 replicas run 4, 2 and 1 micro-batches of 1, 2 and 4: four stages interleave only the first."""
    job = {"model": "llama3-8b", "gpus": 64, "tp": 1, "pp": 4, "vp": 2, "global_batch": 64, "seq_len": 4096}
    grid = slider_grid(cm.estimate(**job))
    at = {knob: grid.values[knob].index(job.get(knob, 1)) for knob in SLIDERS}
    plain = {
        size: bool(grid.plain[tuple({**at, "micro_batch": place}[knob] for knob in SLIDERS)])
        for place, size in enumerate(grid.values["micro_batch"])
    }
    assert {size: plain[size] for size in (1, 2, 4)} == {1: False, 2: True, 4: True}
