"""Tables that cannot forget: choices of a recipe are those of their registry, and each does something."""

import costmodel as cm
from costmodel.describe.hardware.cluster import ATTENTION_KERNELS, OPEN_KERNELS
from costmodel.describe.switch_table import DTYPE_BYTES, SWITCHES
from costmodel.estimates import mesh
from costmodel.physics.network.expert_dispatch import DISPATCHERS
from costmodel.physics.network.gradient_compression import METHODS
from costmodel.step import compute, context
from costmodel.step.anatomy import operators

SMALL = {"cluster": "dgx-h100-ndr", "gpus": 8, "global_batch": 8, "seq_len": 4096}


def test_words_of_switches_are_those_of_their_registry():
    for name, registry in (
        ("attention_kernel", ATTENTION_KERNELS),
        ("moe_dispatcher", DISPATCHERS),
        ("cp_method", context.METHODS),
        ("cp_method", mesh._CP_COMM),
        ("cuda_graph_scope", compute._GRAPH_SCOPES),
        ("cross_entropy", operators.LOSS),
        ("param_dtype", DTYPE_BYTES),
        ("gradient_compression", METHODS),
    ):
        assert set(SWITCHES[name].choices) == set(registry), name
    dtypes = [switch for switch in SWITCHES.values() if switch.name.endswith("_dtype")]
    assert len(dtypes) == 4
    assert {switch.choices for switch in dtypes} == {tuple(DTYPE_BYTES)}


def test_open_choices_are_settled_by_the_device():
    for name in OPEN_KERNELS:
        est = cm.estimate(model="llama3-8b", layout="tp1", switches={"attention_kernel": name}, **SMALL)
        chosen = est.job.recipe.kernels.attention_kernel
        assert chosen not in OPEN_KERNELS
        assert chosen in est.job.cluster.accelerator.kernels.attention


def test_every_attention_kernel_is_priced():
    """Scores through HBM are lines of their own, and keep what grows with the square of the sequence."""
    for name, kernel in ATTENTION_KERNELS.items():
        if name in OPEN_KERNELS:
            continue
        est = cm.estimate(model="llama3-8b", layout="tp1", switches={"attention_kernel": name}, **SMALL)
        names = {line.name for line in est.bill.time_lines}
        assert ("compute.attention.scores.forward" in names) == kernel.writes_scores, name
        assert ("compute.attention.core.forward" in names) != kernel.writes_scores, name


def test_every_module_of_recomputation_frees_something():
    """A module that no operator belongs to would be recomputed for nothing."""

    def memory(model, **asked):
        return float(cm.estimate(model=model, layout="tp1", **asked, **SMALL).memory_bytes_per_gpu)

    models = ("llama3-8b", "mixtral-8x7b", "deepseek-v2-lite")
    before = {model: memory(model, recompute="none") for model in models}
    for module in SWITCHES["selective_modules"].choices:
        # Nothing quadratic is kept by a fused kernel: its output is.
        only = {"recompute": "selective", "switches": {"selective_modules": [module]}}
        assert any(memory(model, **only) < before[model] for model in models), module


def test_schedules_of_other_names():
    """ZB-H2 holds 2 p - 1 micro-batches as ZB-2p does (arXiv:2401.10241, table 1); PipeDream with a flush is 1F1B."""
    for other, name in (("zb-h2", "zb-2p"), ("PipeDream-Flush", "1f1b")):
        job = {**SMALL, "layout": "tp1 pp2"}
        assert (
            cm.estimate(model="llama3-8b", schedule=other, **job).job.layout.schedule
            == cm.estimate(model="llama3-8b", schedule=name, **job).job.layout.schedule
        )
