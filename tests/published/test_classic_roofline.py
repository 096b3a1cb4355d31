"""Hardware figures, compute-to-communication ratios and ridge points as introductions to the field print them.

They are those of a widely read guide to distributed training, of a post by S. Consul ("Training is not (just) a compute
problem", blog.noise2signal.ai) and of an interactive page on parallelism. Where one is wrong the printed
value stands beside the right one, from the vendors' data sheets that the profiles cite.
"""

import numpy as np
import pytest

from costmodel.describe.hardware.hardware import load_accelerator, load_cluster
from costmodel.describe.models.model_files import load_model
from costmodel.physics.network.comm_roofline import (
    REGIMES,
    batch_for_efficiency,
    data_parallel_intensity,
    efficiency,
    regime,
    ridge_point,
    ridge_points,
)
from costmodel.step.anatomy.params import model_flops_per_token, num_params


def test_gap_between_tiers():
    """The guide prints 2-18x between 900 GB/s and 400 … 50 GB/s; per GPU and direction it is 9x."""
    nvlink, leaf, _ = (tier.bandwidth_bytes_per_s for tier in load_cluster("dgx-h100-ndr").tiers)
    assert nvlink / leaf == pytest.approx(9)
    # the first post: each tier about ten times slower than the one above
    hbm = load_accelerator("h100-sxm-80gb").memory_bandwidth_bytes_per_s
    assert hbm == pytest.approx(3.35e12, rel=0.01)
    assert hbm / nvlink == pytest.approx(7.4, rel=0.01)
    assert load_accelerator("b200-sxm-180gb").memory_bandwidth_bytes_per_s == pytest.approx(8e12, rel=0.05)


@pytest.mark.parametrize(
    ("batch", "printed"), [(1, 3072.0), (4, 12288.0), (16, 49152.0), (64, 196608.0), (256, 786432.0)]
)
def test_ccr_table_of_gpt3(batch, printed):
    """The guide: six FLOPs a parameter and token over two passes of fp16 gradients."""
    n, tokens = 175e9, batch * 2048
    assert float(data_parallel_intensity(6 * n, tokens, n)) == pytest.approx(printed, rel=1e-12)
    # With the real model: attention and the head are in, (P - 1)/P of the ring is sent.
    model = load_model("gpt3-175b")
    per_token = model_flops_per_token(model, 2048)
    exact = data_parallel_intensity(per_token, tokens, num_params(model), num_ranks=64)
    assert float(exact) == pytest.approx(printed * 64 / 63 * 1.026, rel=2e-3)


# The guide's ridge points: GPUs' accelerator, printed TFLOP/s and GB/s per GPU, printed ridge, tier, right ridge
RIDGES = [
    ("dgx-h100-ndr", 1979, 900, 2200, 0, 2199),  # two factors of two that cancel
    ("dgx-h100-ndr", 1979, 50, 40_000, 1, 19_788),
    ("dgx-a100-hdr", 312, 600, 520, 0, 1040),  # dense, but both directions
    ("cloud-h100-100gbe", 1979, 12.5 / 8, 200_000, 1, 633_216),  # one 100 Gbit/s port for eight GPUs
]


@pytest.mark.parametrize(("cluster", "tflops", "gbps", "printed", "tier", "right"), RIDGES)
def test_ridge_points(cluster, tflops, gbps, printed, tier, right):
    from_printed = float(ridge_point(tflops * 1e12, gbps * 1e9))
    if printed != 200_000:  # "~200,000+" stands for 25-100 Gbit/s of a node
        assert from_printed == pytest.approx(printed, rel=0.02)
    machine = load_cluster(cluster)
    peak = machine.accelerator.peak_flops_per_s["bf16"]
    exact = float(ridge_point(peak, machine.tiers[tier].bandwidth_bytes_per_s))
    assert exact == pytest.approx(right, rel=1e-3)


def test_staircase_of_tiers():
    """The guide: each level has its own ridge, and what large messages achieve moves them up."""
    machine = load_cluster("dgx-h100-ndr")
    peak = machine.accelerator.peak_flops_per_s["bf16"]
    line_rate = ridge_point(peak, [tier.bandwidth_bytes_per_s for tier in machine.tiers])
    achieved = ridge_points(peak, machine.tiers)
    assert achieved[0] < achieved[1] <= achieved[2]
    assert np.all(achieved > line_rate)


def test_efficiency_is_linear_in_the_batch_below_the_ridge():
    """The guide: its formula divides by FLOPs per sample once too often; I·B over the peak is meant."""
    ridge = ridge_point(989.4e12, 50e9)
    batch = np.asarray([1.0, 2.0, 4.0, 8.0])
    intensity = data_parallel_intensity(6e9, batch * 2048, 1e9)
    share = efficiency(intensity, ridge)
    np.testing.assert_allclose(share[:3] / share[0], [1, 2, 4])
    np.testing.assert_allclose(share[:3], intensity[:3] * 50e9 / 989.4e12)
    assert share[-1] == 1.0
    assert [REGIMES[i] for i in regime(intensity, ridge)] == [
        "severely communication-bound",
        "communication-bound",
        "communication-bound",
        "compute-bound",
    ]


# The guide's "Min Batch for 90 % Eff": printed sequences; tokens per GPU that the bound really asks for
BATCHES = [("dgx-h100-ndr", 0, "16-32", 1_319), ("dgx-h100-ndr", 1, "2,000+", 11_873)]


@pytest.mark.parametrize(("cluster", "tier", "printed", "tokens"), BATCHES)
def test_batch_for_ninety_percent(cluster, tier, printed, tokens):
    """The size of the model cancels: less than one sequence of 2,048 on NVLink, six on InfiniBand."""
    machine = load_cluster(cluster)
    peak = machine.accelerator.peak_flops_per_s["bf16"]
    ridge = ridge_point(peak, machine.tiers[tier].bandwidth_bytes_per_s)
    for n in (1e9, 175e9):
        one = data_parallel_intensity(6 * n, 1.0, n)
        assert float(batch_for_efficiency(1.0, one, ridge, 0.9)) == pytest.approx(tokens, rel=1e-3)
    assert tokens / 2048 < float(printed.split("-")[0].rstrip("+").replace(",", ""))
