"""The clock of long kernels: what an accelerator loses to its power limit when nobody timed it for long."""

import pytest

from costmodel import load_accelerator
from costmodel.trust.calibration.ship_kernels import loss_at_power


def test_between_and_beyond_what_was_seen():
    seen = [(1000.0, 0.334), (1200.0, 0.095)]
    assert loss_at_power(1100, seen) == pytest.approx(0.2145)
    assert loss_at_power(1400, seen) == 0.0
    assert loss_at_power(900, seen) == pytest.approx(0.4535)


def test_more_power_never_loses_more():
    """Where the larger part was seen to lose more, the rule is their mean, not a rising line."""
    assert loss_at_power(1400, [(1000.0, 0.1), (1200.0, 0.2)]) == pytest.approx(0.15)


def test_one_power_limit_tells_nothing_of_another():
    assert loss_at_power(350, [(700.0, 0.124)]) == 0.124


@pytest.mark.parametrize(("name", "loss"), [("b300", 0.214), ("gb300", 0.0)])
def test_blackwell_ultra_as_shipped(name, loss):
    """1,100 W lies half way between B200 (1,000 W, 0.334) and GB200 (1,200 W, 0.095); 1,400 W is beyond."""
    kernels = load_accelerator(name).kernels
    assert kernels is not None
    # Products of nvfp4 were timed at the clock that the limit leaves.
    lost = {name: round(one.sustained_loss, 3) for name, one in kernels.matmul.items()}
    assert {**lost, "nvfp4": loss} == dict.fromkeys(lost, loss)
    assert lost["nvfp4"] == 0.0
