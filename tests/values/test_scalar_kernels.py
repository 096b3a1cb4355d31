"""PyTorch's kernels that load element by element: what limits them, and where the bill has them."""

import pytest

import costmodel as cm
from costmodel.physics.kernels.roofline import MemoryConstants, ScalarRate, memory_time

CONSTANTS = MemoryConstants(bandwidth_fraction=0.5, fixed_s=2e-6)


def time_us(scalar=None):
    made = memory_time(20e6, constants=CONSTANTS, memory_bandwidth_bytes_per_s=2e12, kernels=3, scalar=scalar)
    return float(made.value) * 1e6


def test_the_rate_of_elements_holds_where_the_memory_is_faster():
    """6 us of fixed times, 12 MB at 1 TB/s, and 4 M elements at 0.25 of 1e12 a second, which 8 MB are faster than."""
    assert time_us(ScalarRate(8e6, 4e6, 0.25e12)) == pytest.approx(6 + 12 + 16)


def test_the_memory_holds_where_elements_are_faster():
    assert time_us(ScalarRate(8e6, 4e6, 1e12)) == pytest.approx(6 + 20)
    assert time_us() == pytest.approx(6 + 20)


@pytest.fixture(scope="module")
def bill():
    """gpt-oss 20B on eight B200: 4 sequences of 4,096 tokens, four experts a token, widths 2,880."""
    return cm.estimate(
        model="gpt-oss-20b",
        cluster="hgx-b200-ndr",
        gpus=8,
        layout="ep8",
        micro_batch=4,
        global_batch=32,
        seq_len=4096,
        recipe="megatron-bridge",
        switches={"moe_balance": "balanced"},
    ).bill


HALVES = 4 * 4096 * 4 * 2 * 2880
"""Elements of both halves of the activation's input."""


@pytest.mark.parametrize(
    ("name", "touched", "moved"),
    [
        ("compute.moe.moe.experts.clamp.forward", 1 * HALVES, 4 * HALVES),
        ("compute.moe.moe.experts.clamp.backward", 2.5 * HALVES, 9.5 * HALVES),
        ("compute.moe.moe.experts.bias.forward", 2 * HALVES / 2, 14 * HALVES / 2),
        ("compute.moe.moe.experts.bias.backward", 3 * HALVES / 2, 22 * HALVES / 2),
    ],
)
def test_clamps_and_biases_of_experts_go_element_by_element(bill, name, touched, moved):
    """On 148 SMs at 2.61e9 elements a second each."""
    (found,) = (one for one in bill.time_lines if one.name == name)
    assert found.terms["scalar_elements"] == pytest.approx(touched)
    assert found.terms["scalar_bytes"] == pytest.approx(moved)
    assert found.terms["scalar_elements_per_s"] == pytest.approx(148 * 2.61e9)
    rest = found.terms["moved_bytes"] - moved
    bandwidth = found.terms["memory_fraction"] * found.terms["hbm_bytes_per_s"]
    fixed = found.terms["kernels"] * found.terms["fixed_s"]
    assert found.each_s == pytest.approx(fixed + rest / bandwidth + touched / (148 * 2.61e9))


def test_other_kernels_of_the_layer_go_by_their_bytes(bill):
    (found,) = (one for one in bill.time_lines if one.name == "compute.moe.moe.experts.activation.forward")
    assert "scalar_bytes" not in found.terms
