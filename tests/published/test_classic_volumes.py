"""What introductions to the field say that each axis sends, against the wire bytes of the bill's lines.

They are a widely read guide to distributed training, two posts by S. Consul on blog.noise2signal.ai ("Training is
not (just) a compute problem", "The five things you can shard") and an interactive page on parallelism.
Where one is wrong the printed value stands beside the right one, which follows the papers cited by each axis
in `costmodel.step`.
"""

import numpy as np
import pytest

from costmodel.describe.models.model_files import load_model
from costmodel.estimates.estimate import Estimate, estimate
from costmodel.step.anatomy.params import num_params

BF16 = {"grad_reduce_dtype": "bf16", "gather_dtype": "bf16"}
MEGATRON = {"recipe": "megatron-2021", "precision": "fp16", "seq_len": 2048}


def price(model: str, **job: object) -> Estimate:
    """Price a job on A100."""
    return estimate(model=model, **{"cluster": "dgx-a100-hdr", "seq_len": 2048, **job})


def sent(est: Estimate, *prefixes: str) -> float:
    """Wire bytes of one GPU in a step, over the lines whose names start so."""
    return float(sum(line.bytes for line in est.bill.time_lines if line.name.startswith(prefixes)))


@pytest.mark.parametrize(("model", "nominal", "printed"), [("gpt2-xl", 1.5e9, 6e9), ("llama-7b", 7e9, 28e9)])
def test_ddp_volume_of_the_bill(model, nominal, printed):
    est = price(model, gpus=64, global_batch=64, zero_stage=0, switches=BF16)
    exact = 2 * 63 / 64 * num_params(load_model(model)) * 2
    assert sent(est, "dp.dense.grad_all_reduce") == pytest.approx(exact, rel=1e-12)
    assert exact * nominal / num_params(load_model(model)) == pytest.approx(printed, rel=0.02)
    # the posts: "~2P bytes per rank" are 2P elements, 4P bytes in bf16
    assert exact / num_params(load_model(model)) == pytest.approx(4, rel=0.02)


# Sharded data parallelism (arXiv:1910.02054, section 7): passes of all parameters, with one and four micro-batches
PASSES = [
    (0, {}, 2, 2),
    (1, {}, 2, 2),
    (2, {}, 2, 2),
    (3, {}, 3, 12),
    (3, {"fsdp_reshard_after_forward": False}, 2, 8),
]


@pytest.mark.parametrize(("stage", "switches", "one", "four"), PASSES)
def test_zero_volumes(stage, switches, one, four):
    """ "~3N per layer" is 3N over all layers, and again for every micro-batch (the page: "1.5x DDP")."""
    for micro_batches, expected in ((1, one), (4, four)):
        job = {"gpus": 8, "global_batch": 8 * micro_batches, "switches": {**BF16, **switches}}
        est = price("llama-7b", zero_stage=stage, **job)
        whole = 7 / 8 * num_params(load_model("llama-7b")) * 2
        assert sent(est, "dp.") / whole == pytest.approx(expected, rel=1e-9)


def test_hsdp_keeps_the_heavy_traffic_inside_the_node():
    """HSDP (arXiv:2304.11277, section 3.2.2): gather and scatter on NVLink, one all-reduce of matching shards across nodes."""
    est = price("llama-7b", gpus=64, global_batch=256, zero_stage=3, shard_group=8, switches=BF16)
    weights = 2 * num_params(load_model("llama-7b"))
    inside = [line for line in est.bill.time_lines if line.axis == "dp" and "replica" not in line.name]
    across = [line for line in est.bill.time_lines if "replica" in line.name]
    assert {float(line.tier) for line in inside if line.bytes > 0} == {0.0}
    assert min(float(line.tier) for line in across) > 0
    assert sum(float(line.bytes) for line in inside) == pytest.approx(4 * 3 * 7 / 8 * weights, rel=1e-9)
    assert sum(float(line.bytes) for line in across) == pytest.approx(2 * 7 / 8 * weights / 8, rel=1e-9)


def test_tensor_parallel_volume_of_a_gpt3_layer():
    """The guide prints ~175 MB a layer and 16.8 GB a step; its formula gives 352 MB and 33.8 GB."""
    est = price("gpt3-175b", gpus=8, layout="tp8", global_batch=1, sequence_parallel=0, **MEGATRON)
    activation = 2048 * 12288 * 2
    layers = sent(est, "tp.attention.", "tp.mlp.")
    assert layers / 96 == pytest.approx(4 * 2 * 7 / 8 * activation, rel=1e-12)
    assert layers / 96 == pytest.approx(352e6, rel=2e-3)  # printed 175e6
    assert layers == pytest.approx(33.8e9, rel=2e-3)  # printed 16.8e9
    # Elsewhere it prints ~400 MB a layer: the same without (T - 1)/T.
    assert 4 * 2 * activation == pytest.approx(403e6, rel=1e-3)


def test_pipeline_volume():
    """The guide: 8 stages, 32 micro-batches of 16 x 2,048 x 8,192: 240 GB over 7 boundaries."""
    est = price("llama3-70b", gpus=8, layout="pp8", global_batch=512, micro_batch=16)
    activation = 16 * 2048 * 8192 * 2
    # An inner stage sends one activation on and one gradient back for each micro-batch.
    assert sent(est, "pp.send_recv") == pytest.approx(2 * 32 * activation, rel=1e-12)
    assert 7 * sent(est, "pp.send_recv") == pytest.approx(240.5e9, rel=1e-3)
    # Its GPT-3: ~50 MB a boundary and micro-batch of GPT-3; with TP each rank sends its eighth.
    for layout, parts in (("pp8", 1), ("tp8 pp8", 8)):
        gpt3 = price("gpt3-175b", gpus=64, layout=layout, global_batch=64)
        line = next(line for line in gpt3.bill.time_lines if line.name == "pp.send_recv")
        assert float(line.bytes_each) * parts == pytest.approx(50.3e6, rel=1e-3)


def test_gradients_of_three_dimensional_parallelism():
    """The guide prints 2 N/P 2(D - 1)/D and 22B parameters a GPU; TP divides them too."""
    est = price("gpt3-175b", gpus=256, layout="tp8 pp8", global_batch=64, zero_stage=0, switches=BF16)
    n, d = num_params(load_model("gpt3-175b")), 4
    right = 2 * (d - 1) / d * n / (8 * 8) * 2
    # The first stage also has the table, the last one a copy of it: a little more than the mean.
    assert right < sent(est, "dp.dense.grad_all_reduce") < 1.06 * right
    assert 2 * n / 8 == pytest.approx(44e9, rel=0.01)  # printed: a whole stage in fp16
    assert 2 * n / 64 == pytest.approx(5.5e9, rel=0.01)  # what a GPU holds


@pytest.mark.parametrize(("model", "layers", "top_k"), [("mixtral-8x7b", 32, 2), ("qwen3-30b-a3b", 48, 8)])
def test_expert_parallel_volume(model, layers, top_k):
    """The guide: 4 B S H (E - 1)/E elements a layer, for one expert a token; times top-k."""
    even = {"moe_dispatcher": "all-to-all", "moe_balance": "balanced"}
    est = price(model, gpus=8, layout="ep8 etp1", global_batch=8, switches=even)
    elements = 2048 * load_model(model).hidden_size
    assert sent(est, "ep.") == pytest.approx(layers * 4 * elements * 7 / 8 * top_k * 2, rel=1e-12)
    # the first post: twice a layer forward, twice backward
    calls = sum(float(line.count) for line in est.bill.time_lines if line.axis == "ep" and line.seconds > 0)
    assert calls == 4 * layers


def test_ring_attention_rotates_n_minus_one_times():
    """The second post: N - 1 rotations of K and V a layer; the backward pass carries their gradients along."""
    ring = {"cp_method": "ring"}
    est = price("llama3-8b", gpus=8, layout="cp8", global_batch=1, seq_len=65536, switches=ring)
    model = load_model("llama3-8b")
    own = 65536 / 8 * model.num_kv_heads * (model.head_dim + model.v_head_dim) * 2
    assert sent(est, "cp.attention.ring.forward") == pytest.approx(32 * 7 * own, rel=1e-12)
    assert sent(est, "cp.attention.ring.backward") == pytest.approx(32 * 7 * 2 * own, rel=1e-12)


# The guide: model, printed GPUs and days; GPU-hours of LLaMA's Table 15 (arXiv:2302.13971)
LLAMA = [
    ("llama-7b", 1000, 21, 82_432, 1.0e12),
    ("llama-13b", 1000, 29, 135_168, 1.0e12),
    ("llama-33b", 1000, 53, 530_432, 1.4e12),
    ("llama-65b", 2048, 21, 1_022_362, 1.4e12),
]


@pytest.mark.parametrize(("model", "gpus", "days", "published", "tokens"), LLAMA)
def test_llama_days(model, gpus, days, published, tokens):
    """Only the last row is what the paper says; the first three are two to six times too long."""
    printed = gpus * days * 24
    est = price(model, gpus=2048, global_batch=2048, recipe="deepspeed", zero_stage=3, recompute="none")
    assert published / 1.6 < float(est.gpu_hours(tokens)) < 1.6 * published
    if model == "llama-65b":
        assert printed == pytest.approx(published, rel=0.02)
        at_380_tokens_per_s = tokens / (2048 * 380) / 86400
        assert at_380_tokens_per_s == pytest.approx(days, rel=0.02)
    else:
        assert printed > 2 * published
    assert np.isfinite(est.mfu)
