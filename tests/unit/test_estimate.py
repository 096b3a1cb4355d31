"""One estimate: its figures follow from the bill, its cost does not follow the number of GPUs."""

import sys

import numpy as np
import pytest

from costmodel.describe.jobs.layout import layout_problems, make_layout
from costmodel.describe.models.model_files import load_model
from costmodel.estimates.estimate import estimate
from costmodel.estimates.priced_job import PricedJob
from costmodel.physics.network.mesh import usable_domain_size
from costmodel.step.price import price

JOB = {"model": "llama3-8b", "cluster": "dgx-h100-ndr", "seq_len": 8192}


def work_of(gpus, **job):
    """Lines of Python that one estimate runs, and numbers that its bill holds."""
    # The first call fills the caches of the loaders, and compiles formulas that no call had before.
    estimate(gpus=gpus, global_batch=gpus, **JOB, **job)
    run = 0

    def count(frame, event, _):
        nonlocal run
        run += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        est = estimate(gpus=gpus, global_batch=gpus, **JOB, **job)
        assert est.step_time_s > 0
        assert est.memory_bytes_per_gpu > 0
    finally:
        sys.settrace(before)
    held = 0
    for line in (*est.bill.time_lines, *est.bill.memory_lines):
        values = [*(getattr(line, name) for name in line.__slots__), *line.terms.values()]
        held += sum(np.size(value) for value in values if isinstance(value, (np.ndarray, float)))
    return run, held


@pytest.mark.parametrize("job", [{}, {"zero_stage": 3}, {"layout": "tp8 pp4", "shard_group": 8}])
def test_a_million_gpus_are_no_more_work_than_a_few(job):
    lines, numbers = work_of(512, **job)
    assert 1000 < lines < 100_000
    assert numbers > 100
    for gpus in (8192, 2**20):
        more_lines, more_numbers = work_of(gpus, **job)
        # Another way of NCCL may be the fastest, whose formula has some terms more or less.
        assert abs(more_numbers - numbers) < 0.05 * numbers
        assert more_lines <= 1.1 * lines


def test_nor_is_a_number_of_gpus_without_divisors():
    lines, _ = work_of(64)
    assert work_of(999_983)[0] <= 1.2 * lines


@pytest.mark.parametrize(
    ("gpus", "tier", "used"),
    [(256, 72, 64), (8, 8, 8), (4, 8, 4), (72, 72, 72), (144, 72, 72), (999_983, 8, 1), (12, 8, 6)],
)
def test_part_of_a_domain_that_a_job_uses(gpus, tier, used):
    assert float(usable_domain_size(gpus, tier)) == used


STAGES = [
    {"model": "llama3-405b", "gpus": 1024, "layout": "tp8 pp16", "global_batch": 128, "recipe": "llama3"},
    {"model": "llama3-405b", "gpus": 1024, "layout": "tp8 pp16 vp2", "global_batch": 128},
    {"model": "deepseek-v3-671b", "gpus": 1024, "layout": "tp1 pp16 ep64 etp1", "global_batch": 1024},
    {"model": "gpt-oss-120b", "gpus": 64, "layout": "tp1 pp8 ep8 etp1", "global_batch": 128},
    {"model": "gpt3-175b", "gpus": 64, "layout": "tp8 pp8", "global_batch": 64, "recompute": "full"},
    {"model": "bloom-176b", "gpus": 384, "layout": "tp4 pp12", "global_batch": 512, "recipe": "zero-bubble"},
]


@pytest.mark.parametrize("job", STAGES, ids=lambda job: f"{job['model']}-{job['layout']}")
def test_a_search_sees_what_a_report_sees(job):
    """Stages one by one, as for one layout, against the few that a search looks at; one layout then follows its simulation."""
    job = {"cluster": "dgx-h100-ndr", "seq_len": 4096, **job}
    alone, search = estimate(**job), estimate(**{**job, "gpus": np.asarray([job["gpus"]])})
    report = PricedJob(alone.job, price(alone.job, every_stage=True))
    assert float(alone.step_time_s) == pytest.approx(float(report.step_time_s), rel=0.01)
    assert report.bill.memory_per_stage_bytes().shape == (float(report.job.layout.pp),)
    for figure in ("step_time_s", "memory_bytes_per_gpu", "mfu", "hfu"):
        seen = getattr(search, figure)
        np.testing.assert_allclose(seen, [getattr(report, figure)], rtol=1e-12, err_msg=figure)


def test_models_with_experts_only_can_be_split_by_tensor_parallelism():
    model = load_model("mixtral-8x7b")
    layout = make_layout(gpus=64, tp=[1, 2, 8], ep=8, etp=[[1], [2], [5]])
    broken = {problem.code: problem.bad for problem in layout_problems(layout, model, 64, 4096)}
    assert not broken["ffn_not_divisible"].any()
    assert not broken["shared_expert_not_divisible"].any()
    np.testing.assert_array_equal(np.ravel(broken["expert_ffn_not_divisible"]), [False, False, True])
