"""Examples of memory from introductions to the field: model state, ZeRO stages, activations, what fits where.

They are those of a widely read guide to distributed training, of two posts by S. Consul on blog.noise2signal.ai
("Training is not (just) a compute problem", "The five things you can shard") and of a talk. Where one is
wrong the printed value stands beside the right one: Rajbhandari et al., "ZeRO," arXiv:1910.02054, and
Korthikanti et al., arXiv:2205.05198.
"""

import numpy as np
import pytest

from costmodel.describe.hardware.hardware import load_accelerator
from costmodel.describe.models.model_files import load_model
from costmodel.estimates.estimate import Estimate, estimate
from costmodel.step.anatomy.params import num_params

BF16_GRADIENTS = {"grad_accum_dtype": "bf16"}
LLAMA_7B = num_params(load_model("llama-7b"))
FULL_FP32 = {"param_dtype": "fp32", "grad_accum_dtype": "fp32", "master_weights_bytes": 0}


def price(model: str, gpus: int = 1, **job: object) -> Estimate:
    """Price one sequence of 2,048 tokens a data-parallel rank."""
    asked = {"cluster": "dgx-a100-hdr", "global_batch": gpus, "seq_len": 2048, "zero_stage": 0}
    return estimate(model=model, gpus=gpus, **{**asked, **job})


def state(est: Estimate) -> dict[str, float]:
    """Bytes of parameters, gradients, main weights and moments on the worst stage."""
    held: dict[str, float] = {}
    for line in est.bill.memory_lines:
        if line.name.startswith("state."):
            name = line.name.split(".")[-1]
            held[name] = held.get(name, 0.0) + float(np.max(line.bytes))
    return held


def activations(est: Estimate) -> float:
    """Bytes that the layers keep for one micro-batch."""
    names = ("activation.attention", "activation.mlp")
    return float(sum(line.bytes.max() for line in est.bill.memory_lines if line.name in names))


# Printed: 16, "18-20", "4N + 2N + 12N = 18N", and "2-4" for the gradient; 16 is arXiv:1910.02054, section 3.1.
BYTES_PER_PARAM = [(BF16_GRADIENTS, 16), ({}, 18), (FULL_FP32, 16), ({"moments_bytes": 4}, 14)]


@pytest.mark.parametrize(("switches", "bytes_per_param"), BYTES_PER_PARAM)
def test_bytes_per_parameter_follow_from_the_recipe(switches, bytes_per_param):
    held = sum(state(price("llama-7b", switches=switches)).values())
    assert held == pytest.approx(bytes_per_param * LLAMA_7B, rel=1e-12)


# The guide on the memory wall: model, nominal parameters, printed state, printed GPUs of 80 GB
STATES = [
    ("llama-7b", 7e9, 112e9, 2),
    ("llama-13b", 13e9, 208e9, 3),
    ("llama-65b", 65e9, 1.04e12, 13),
    ("gpt3-175b", 175e9, 2.8e12, 35),
    ("dense-540b", 540e9, 8.6e12, 108),
]


@pytest.mark.parametrize(("model", "nominal", "printed_bytes", "printed_gpus"), STATES)
def test_sixteen_bytes_per_parameter_table(model, nominal, printed_bytes, printed_gpus):
    held = sum(state(price(model, switches=BF16_GRADIENTS)).values())
    per_param = held / num_params(load_model(model))
    assert per_param * nominal == pytest.approx(printed_bytes, rel=0.005)
    assert np.ceil(per_param * nominal / 80e9) == printed_gpus
    # The exact count is a few percent off the round one, and so may the number of GPUs be.
    assert held == pytest.approx(printed_bytes, rel=0.05)
    a100 = load_accelerator("a100-sxm-80gb").memory_bytes
    assert printed_gpus - 8 <= np.ceil(held / a100) <= printed_gpus


# ZeRO stages (arXiv:1910.02054, figure 1), 7B on 8 GPUs: stage, GB as the guide prints them, right ones
ZERO_STAGES = [
    (0, (14, 14, 112), (14, 14, 84)),
    (1, (14, 14, 14), (14, 14, 10.5)),
    (2, (14, 1.75, 14), (14, 1.75, 10.5)),
    (3, (1.75, 1.75, 14), (1.75, 1.75, 10.5)),
]


@pytest.mark.parametrize(("stage", "printed", "right"), ZERO_STAGES)
def test_zero_memory_table(stage, printed, right):
    parts = state(price("llama-7b", 8, zero_stage=stage, switches=BF16_GRADIENTS))
    optimizer = parts["main_weights"] + parts["moments"]
    scale = 7 / LLAMA_7B
    got = [scale * held for held in (parts["parameters"], parts["gradients"], optimizer)]
    assert got == pytest.approx(right, rel=1e-12)
    assert sum(got) < sum(printed)  # the printed optimizer has 16 bytes a parameter, not 12


def test_gpt3_activations_of_one_sample():
    """arXiv:2205.05198, section 4.1: s b h (34 + 5 a s / h) L = 275 GB, with dropout and the score matrix kept."""
    est = price("gpt3-175b", recipe="megatron-2021", precision="fp16")
    formula = 2048 * 12288 * (34 + 5 * 96 * 2048 / 12288) * 96
    assert formula == pytest.approx(275e9, rel=0.002)
    assert activations(est) == pytest.approx(formula, rel=1e-12)


def test_sequence_parallelism_shards_what_is_between():
    """B S H a GPU without, B S H / TP with it (Korthikanti et al., eqs. 2 and 4)."""
    asked = {"recipe": "megatron-2021", "precision": "fp16", "layout": "tp8"}
    sbh, scores = 2048 * 12288 * 96, 5 * 96 * 2048 / 12288
    without = activations(price("gpt3-175b", 8, global_batch=1, sequence_parallel=0, **asked))
    with_sp = activations(price("gpt3-175b", 8, global_batch=1, sequence_parallel=1, **asked))
    assert without == pytest.approx(sbh * (10 + 24 / 8 + scores / 8), rel=1e-12)
    assert with_sp == pytest.approx(sbh * (34 + scores) / 8, rel=1e-12)


def test_activations_are_quadratic_only_without_flash_attention():
    """The posts call them quadratic in the sequence."""
    growth = {}
    for kernel in ("fused-softmax", "flash2"):
        switches = {"attention_kernel": kernel}
        short, long = (activations(price("llama-7b", seq_len=s, switches=switches)) for s in (8192, 16384))
        growth[kernel] = long / short
    assert growth["flash2"] == pytest.approx(2.0, rel=1e-9)
    assert growth["fused-softmax"] > 3.2


def test_a_hundred_billion_on_sixty_four_gpus():
    """The talk: no device holds it; sixty-four identical backpacks, or one shared between them."""
    copied = price("dense-100b", 64, switches=BF16_GRADIENTS)
    params = num_params(load_model("dense-100b"))
    assert params == pytest.approx(100e9, rel=0.02)
    weights = state(copied)["parameters"]
    assert weights > load_accelerator("h100-sxm-80gb").memory_bytes  # "not the weights, not …"
    assert sum(state(copied).values()) == pytest.approx(1.6e12, rel=0.02)
    assert not copied.fits

    shared = {"cluster": "dgx-h100-ndr", "switches": BF16_GRADIENTS, "recompute": "full", "global_batch": 64}
    sharded = price("dense-100b", 64, zero_stage=3, **shared)
    assert sum(state(sharded).values()) == pytest.approx(25e9, rel=0.02)
    assert sharded.fits
    # Slice and split: the same state, divided by stages and within layers; the ends hold the table.
    sliced = price("dense-100b", 64, layout="pp8", **shared)
    split = price("dense-100b", 64, layout="tp8", **shared)
    assert 200e9 <= sum(state(sliced).values()) <= 1.15 * 200e9
    assert sum(state(split).values()) == pytest.approx(200e9, rel=0.02)


def test_five_categories():
    """The talk: state shelf, scratchpad, cable, bubble and last inch are what a bill is sorted by."""
    est = price("dense-100b", 64, cluster="dgx-h100-ndr", layout="tp8 pp4", global_batch=128, zero_stage=1)
    paid = {category: float(seconds) for category, seconds in est.exposed_by("category").items()}
    assert sum(paid.values()) == pytest.approx(float(est.step_time_s), rel=1e-12)
    for category in ("communication", "bubble", "hbm", "math"):
        assert paid[category] > 0
    held = {line.category for line in est.bill.memory_lines}
    assert held == {"state", "activation"}
