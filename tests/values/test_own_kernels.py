"""Kernels that a framework has of its own: weight gradients, casts, permutations and exchanges of HAI-LLM."""

import numpy as np
import pytest

import costmodel as cm
from costmodel.physics.kernels.roofline import matmul_time

JOB = {
    "model": "deepseek-v3",
    "cluster": "h800-cx7",
    "gpus": 512,
    "layout": "tp1 pp8 ep64",
    "schedule": "dualpipe",
    "global_batch": 4096,
    "seq_len": 4096,
    "precision": "fp8-block",
    "recipe": "hai-llm",
}
PLAIN = {
    "weight_gradient_slowdown": 1.0,
    "cast_slowdown": 1.0,
    "permutes_once": False,
    "exchange_rate_under_load": 1.0,
    "moe_balance": "balanced",
}


def lines(job=None, **switches):
    est = cm.estimate(**{**JOB, **(job or {})}, switches={**PLAIN, **switches})
    return {line.name: line for line in est.bill.time_lines if line.name.startswith(("compute", "ep"))}


def ratio(changed, name, plain):
    return float(changed[name].each_s / plain[name].each_s)


@pytest.mark.parametrize("fused", [True, False])
def test_weight_gradients_of_8_bits_are_slower_and_nothing_else(fused):
    plain, slow = (lines(weight_gradient_slowdown=by, fused_grad_accumulation=fused) for by in (1.0, 1.5))
    moved = {name for name in plain if float(plain[name].each_s) != float(slow[name].each_s)}
    assert moved == {name for name in moved if name.endswith(".backward_weight")}
    assert "compute.moe.moe.experts.fc1.backward_weight" in moved
    # The router and the head are computed in 16 bits.
    assert not {name for name in moved if ".router." in name or ".head." in name}
    by = ratio(slow, "compute.moe.attention.out.backward_weight", plain)
    assert by == pytest.approx(1.5) if fused else 1.2 < by < 1.5
    same = lines({"precision": "bf16"}), lines({"precision": "bf16"}, weight_gradient_slowdown=1.5)
    assert all(float(line.each_s) == float(same[1][name].each_s) for name, line in same[0].items())


def test_weight_gradients_of_experts_are_dense_products():
    """4 experts of a rank, 8,192 tokens each: 2,048 x 7,168 with the constants of dense products."""
    gpu = cm.load_accelerator("h800-sxm-80gb")
    alone = matmul_time(
        np.asarray(2048.0),
        np.asarray(7168.0),
        np.asarray(8192.0),
        groups=4.0,
        constants=gpu.kernels.matmul["fp8-block"],
        peak_flops_per_s=gpu.peak_flops_per_s["fp8"] * 0.85,
        memory_bandwidth_bytes_per_s=gpu.memory_bandwidth_bytes_per_s,
        input_bytes=1.03,
        output_bytes=4.0,
        accumulate=True,
    )
    name = "compute.moe.moe.experts.fc2.backward_weight"
    assert float(lines()[name].each_s) == pytest.approx(float(alone.value))
    # Transformer Engine groups them.
    grouped = lines({"precision": "mxfp8", "cluster": "hgx-b200-ndr"})
    constants = cm.load_cluster("hgx-b200-ndr").accelerator.kernels
    assert constants.grouped_matmul["mxfp8"] != constants.matmul["mxfp8"]
    assert grouped[name].terms["peak_fraction"] == constants.grouped_matmul["mxfp8"].peak_fraction


def test_casts_apart_take_so_much_longer():
    plain, twice, thrice = (lines(cast_slowdown=by) for by in (1.0, 2.0, 3.0))
    moved = {name for name in plain if float(plain[name].each_s) != float(twice[name].each_s)}
    assert moved
    assert all(".quantise." in name for name in moved)
    for name in moved:
        one, two, three = (float(each[name].each_s) for each in (plain, twice, thrice))
        assert three - two == pytest.approx(two - one)
        # All but the start of the kernels.
        assert 1.2 < two / one <= 2.0


def test_tokens_permuted_once_move_as_they_travelled():
    """8 x 4,096 tokens of 7,168: read and written twice in 16 bits, or once at 1.03 bytes; results in 16 bits."""
    elements = 8 * 4096 * 7168
    plain, once = lines(), lines(permutes_once=True)
    for way in ("permute", "unpermute"):
        assert float(plain[f"compute.moe.moe.{way}.forward"].bytes_each) == 8 * elements
        assert float(plain[f"compute.moe.moe.{way}.backward"].bytes_each) == 8 * elements
    sizes = {
        way: float(once[f"compute.moe.moe.{way}"].bytes_each) / elements
        for way in ("permute.forward", "unpermute.forward", "permute.backward", "unpermute.backward")
    }
    expected = {
        "permute.forward": 2.06,
        "unpermute.forward": 4,
        "permute.backward": 4,
        "unpermute.backward": 2.06,
    }
    assert sizes == pytest.approx(expected)
    wide = lines(permutes_once=True, moe_dispatches_gradients_in_fp8=False)
    assert float(wide["compute.moe.moe.unpermute.backward"].bytes_each) / elements == pytest.approx(4)
    assert (
        float(lines({"precision": "bf16"}, permutes_once=True)["compute.moe.moe.permute.forward"].bytes_each)
        == 4 * elements
    )


def test_an_exchange_is_slower_beside_compute_only():
    name = "ep.moe.moe.combine.forward"
    plain, half = lines(), lines(exchange_rate_under_load=0.5)
    paired = float(half[name].terms["paired"])
    assert 0.5 < paired < 1.0
    assert ratio(half, name, plain) == pytest.approx(1 + paired)
    alone = {"layout": "tp1 pp1 ep64", "schedule": "none", "gpus": 64, "global_batch": 64}
    assert ratio(lines(alone, exchange_rate_under_load=0.5), name, lines(alone)) == pytest.approx(1.0)
