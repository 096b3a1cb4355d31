"""Parts that many answers share, by hand: progress that ends, faster links, spreads of fitted constants, the list of models."""

import pytest
from round_jobs import price

import costmodel as cm
from costmodel.describe.hardware.changed import at_rate
from costmodel.describe.hardware.hardware import load_link
from costmodel.what_if.changes import _with_latency


@pytest.mark.parametrize("name", ["nvlink4", "ib-ndr"])
def test_a_link_of_twice_the_rate_or_the_latency(name):
    """Rates of adding in the switch go with the link's, times that it takes to start do not, and the other way round."""
    link = load_link(name, size=8)
    fast, slow = at_rate(link, 2.0), _with_latency(link, 2.0)
    rates, times = (
        ("bandwidth_bytes_per_s", "reduction_bandwidth_bytes_per_s"),
        ("latency_s", "base_latency_s"),
    )
    assert link.latency_s > 0
    assert (link.reduction_bandwidth_bytes_per_s > 0) == (name == "nvlink4")
    for one in rates:
        assert getattr(fast, one) == 2.0 * getattr(link, one)
        assert getattr(slow, one) == getattr(link, one)
    for one in times:
        assert getattr(slow, one) == 2.0 * getattr(link, one)
        assert getattr(fast, one) == getattr(link, one)
    assert fast.fabric.copy_bandwidth_bytes_per_s == 2.0 * link.fabric.copy_bandwidth_bytes_per_s
    assert fast.fabric.pipeline_s == link.fabric.pipeline_s
    assert slow.fabric.copy_bandwidth_bytes_per_s == link.fabric.copy_bandwidth_bytes_per_s


def test_memory_of_every_stage_is_told_from_an_estimate_of_the_worst_alone():
    """A trace prices the stages that an estimate of many left out."""
    est = price(gpus=4, layout="pp4", global_batch=8)
    stages = cm.trace(est)
    assert len({one.stage for one in stages.slices}) == 4
