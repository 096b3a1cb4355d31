"""Properties of random jobs: `JOBS=20000 pytest tests/unit/test_many_jobs.py -k simulated` tries more of one."""

import os

import numpy as np
import pytest
from many_jobs import FIGURES, PROPERTIES, assert_sound, batches, failures

import costmodel as cm
from costmodel.describe.recipe import list_recipes

COUNT, SEED = int(os.environ.get("JOBS", "200")), 2026


@pytest.fixture(scope="module")
def drawn():
    return list(batches(COUNT, SEED))


@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda holds: holds.__name__)
def test_property_holds(drawn, holds):
    asked, found = 0, []
    for batch in drawn:
        count, failed = failures(batch, holds)
        asked += count
        found += failed

    assert asked >= 10
    assert found == []


@pytest.mark.parametrize("recipe", list_recipes())
def test_every_recipe_makes_such_bills(recipe):
    job = {"cluster": "dgx-a100-hdr", "gpus": 32, "layout": "tp2 pp2", "global_batch": 64, "seq_len": 2048}
    for model, ep in (("llama3-8b", 1), ("mixtral-8x7b", 4)):
        for zero_stage in (1, 3):
            more = {"zero_stage": zero_stage, "recompute": "selective", "recipe": recipe}
            assert_sound(cm.estimate(model=model, ep=ep, **job, **more))


def test_an_open_mesh_equals_scalars():
    job = {"model": "llama3-8b", "gpus": 64, "pp": 2, "global_batch": 128, "seq_len": 4096}
    tp, zero, micro = np.asarray([1, 4]), np.asarray([0, 1, 3]), np.asarray([1, 2])
    mesh = {"tp": tp[:, None, None], "zero_stage": zero[None, :, None], "micro_batch": micro}
    together = cm.estimate(**job, **mesh)
    for i, j, k in ((0, 0, 0), (1, 2, 1), (0, 2, 0)):
        alone = cm.estimate(**job, tp=int(tp[i]), zero_stage=int(zero[j]), micro_batch=int(micro[k]))
        for figure in FIGURES:
            got = np.broadcast_to(getattr(together, figure), (2, 3, 2))[i, j, k]
            np.testing.assert_allclose(got, getattr(alone, figure), rtol=1e-12, err_msg=figure)
