"""Examples of memory from introductions to the field: model state, ZeRO stages, activations, what fits where.

They are those of a widely read guide to distributed training, of two posts by S. Consul on blog.noise2signal.ai
("Training is not (just) a compute problem", "The five things you can shard") and of a talk. Where one is
wrong the printed value stands beside the right one: Rajbhandari et al., "ZeRO," arXiv:1910.02054, and
Korthikanti et al., arXiv:2205.05198.
"""

import numpy as np
import pytest

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
