"""Tables that cannot forget: choices of a recipe are those of their registry, and each does something."""

import dataclasses
from typing import get_args

import pytest

import costmodel as cm
from costmodel.base.errors import CostModelError
from costmodel.bill.lines import PHASES
from costmodel.describe import recipe as recipes
from costmodel.describe.hardware.attention_kernels import ATTENTION_KERNELS, OPEN_KERNELS, AttentionKind
from costmodel.describe.hardware.cluster import AttentionKernel
from costmodel.describe.jobs.fields import OBJECTIVES, RECOMPUTE_POLICIES
from costmodel.describe.jobs.policy import Compression
from costmodel.describe.precision import PRECISIONS, Precision
from costmodel.estimates import mesh, timeline
from costmodel.physics.network.expert_dispatch import DISPATCHERS, Dispatcher
from costmodel.physics.network.gradient_compression import METHODS
from costmodel.step import compute, context
from costmodel.step.anatomy import operators

SMALL = {"cluster": "dgx-h100-ndr", "gpus": 8, "global_batch": 8, "seq_len": 4096}


@pytest.mark.parametrize(
    ("choices", "registry"),
    [
        (AttentionKernel, ATTENTION_KERNELS),
        (recipes.Dispatcher, DISPATCHERS),
        (recipes.ContextMethod, context.METHODS),
        (recipes.ContextMethod, mesh._CP_COMM),
        (recipes.GraphScope, compute._GRAPHED),
        (recipes.CrossEntropy, operators._LOSS),
        (recipes.Dtype, recipes.DTYPE_BYTES),
        (Compression, METHODS),
    ],
)
def test_choices_are_those_of_the_registry(choices, registry):
    assert set(get_args(choices)) == set(registry)


@pytest.mark.parametrize("record", [AttentionKind, Dispatcher])
def test_no_field_of_a_record_has_a_default(record):
    for field in dataclasses.fields(record):
        assert field.default is dataclasses.MISSING, field.name
        assert field.default_factory is dataclasses.MISSING, field.name


def test_every_field_of_a_precision_is_said():
    assert all(field.is_required() for field in Precision.model_fields.values())
    for name, found in PRECISIONS.items():
        assert found.name == name
        # What is quantised is cast.
        assert (found.input_bytes < 2) == (found.cast_bytes > 0)


def test_open_choices_are_settled_by_the_device():
    for name in OPEN_KERNELS:
        est = cm.estimate(model="llama3-8b", layout="tp1", switches={"attention_kernel": name}, **SMALL)
        chosen = est.job.recipe.kernels.attention_kernel
        assert chosen not in OPEN_KERNELS
        assert chosen in est.job.cluster.accelerator.kernels.attention


@pytest.mark.parametrize("name", [name for name in ATTENTION_KERNELS if name not in OPEN_KERNELS])
def test_every_attention_kernel_is_priced(name):
    """Scores through HBM are lines of their own, and keep what grows with the square of the sequence."""
    est = cm.estimate(model="llama3-8b", layout="tp1", switches={"attention_kernel": name}, **SMALL)
    names = {line.name for line in est.bill.time_lines}
    assert ("compute.attention.scores.forward" in names) == ATTENTION_KERNELS[name].writes_scores
    assert ("compute.attention.core.forward" in names) != ATTENTION_KERNELS[name].writes_scores


@pytest.mark.parametrize("module", get_args(recipes.RecomputeModule))
def test_every_module_of_recomputation_frees_something(module):
    """A module that no operator belongs to would be recomputed for nothing."""
    freed = []
    for model in ("llama3-8b", "mixtral-8x7b", "deepseek-v2-lite"):
        job = {
            **SMALL,
            "model": model,
            "layout": "tp1",
            "recompute": "selective",
            # Nothing quadratic is kept by a fused kernel: its output is.
            "switches": {"selective_modules": [module]},
        }
        before = cm.estimate(**{**job, "recompute": "none"})
        freed.append(float(before.memory_bytes_per_gpu) - float(cm.estimate(**job).memory_bytes_per_gpu))
    assert max(freed) > 0


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"switches": {"attention_kernel": "flash9"}}, "attention_kernel"),
        ({"switches": {"moe_dispatcher": "pigeon"}}, "moe_dispatcher"),
        ({"switches": {"cp_method": "star"}}, "cp_method"),
        ({"switches": {"selective_modules": ["mlpp"]}}, "selective_modules"),
        ({"precision": "fp7"}, "precision: 'fp7' is unknown; did you mean"),
        ({"recompute": "half"}, "recompute: 'half' is unknown"),
        ({"schedule": "2f2b"}, "schedule: '2f2b' is unknown"),
        ({"optimizer": "adan"}, "optimizer: 'adan' is unknown"),
        ({"recipe": "megatron-cor"}, "did you mean 'megatron-core'"),
    ],
)
def test_an_unknown_member_is_one_line(asked, words):
    with pytest.raises(CostModelError) as caught:
        cm.estimate(model="llama3-8b", layout="tp1", **asked, **SMALL)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_phase_has_its_place_after_the_pipeline():
    assert set(timeline._ORDER) == set(PHASES)


def test_policies_and_objectives():
    assert RECOMPUTE_POLICIES == ("none", "selective", "full")
    assert len(set(OBJECTIVES)) == len(OBJECTIVES) == 8
