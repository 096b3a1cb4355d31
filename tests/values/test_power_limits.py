"""The clock of long kernels: what an accelerator loses to its power limit when nobody timed it for long."""

import pytest
from fit_kernels import loss_at_power, share_power_limits
from kernel_tables import ShippedFit

from costmodel import load_accelerator
from costmodel.physics.kernels.roofline import MatmulConstants
from costmodel.trust.calibration.kernel_csv import MATMUL, table_of


def test_between_and_beyond_what_was_seen():
    """With one power limit it is what was seen there; more power never loses more, whatever was seen."""
    seen = [(1000.0, 0.334), (1200.0, 0.095)]
    assert loss_at_power(1100, seen) == pytest.approx(0.2145)
    assert loss_at_power(1400, seen) == 0.0
    assert loss_at_power(900, seen) == pytest.approx(0.4535)
    assert loss_at_power(1400, [(1000.0, 0.1), (1200.0, 0.2)]) == pytest.approx(0.15)
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


def fits(*seen):
    """Return fits and rows of (accelerator, dtype, loss, whether it was timed for long)."""
    made, rows = {}, {}
    for name, dtype, loss, sustained in seen:
        key = (name, "matmul", dtype)
        constants = MatmulConstants(
            num_sms=148, fixed_s=0, peak_fraction=0.7, memory_fraction=0.8, tile_m=128, tile_n=128
        )._replace(sustained_loss=loss)
        made[key] = ShippedFit(constants, 9, 0.1, ("one",))
        rows[key] = table_of(MATMUL, [[1.0] * 6 + [sustained, False, 1.0]])
    return {key: found.constants.sustained_loss for key, found in share_power_limits(made, rows).items()}


def test_a_dtype_timed_in_bursts_takes_the_least_of_its_own_and_its_siblings_losses():
    """No mean of two machines: GB200's bf16 loses what its fp8 does, B200's fp8 what GB200's does."""
    found = fits(
        ("b200-sxm-180gb", "bf16", 0.334, True),
        ("b200-sxm-180gb", "fp8", 0.0, False),
        ("gb200", "bf16", 0.0, False),
        ("gb200", "fp8", 0.095, True),
        ("gb200", "nvfp4", 0.0, True),
    )
    assert found["gb200", "matmul", "bf16"] == 0.095
    assert found["b200-sxm-180gb", "matmul", "fp8"] == 0.095
    assert found["b200-sxm-180gb", "matmul", "bf16"] == 0.334


def test_without_a_sibling_at_the_dtype_it_is_the_largest_of_its_own():
    found = fits(("gb200", "fp8", 0.095, True), ("gb200", "nvfp4", 0.02, True), ("gb200", "bf16", 0.0, False))
    assert found["gb200", "matmul", "bf16"] == 0.095


@pytest.mark.parametrize(("name", "dtype"), [("gb200", "bf16"), ("b200-sxm-180gb", "fp8")])
def test_blackwell_as_shipped(name, dtype):
    assert load_accelerator(name).kernels.matmul[dtype].sustained_loss == 0.095
    assert load_accelerator(name).kernels.grouped_matmul[dtype].sustained_loss == 0.095
