"""The shipped kernel constants against published timings, and the blocks of every profile."""

from pathlib import Path

import pytest
from fit_kernels import device
from library_fp4 import fit_library

from costmodel.describe.hardware.hardware import list_profiles, load_accelerator
from costmodel.describe.hardware.kernels import PEAK_KEY

HERE = Path(__file__).parent


def test_the_shared_fp4_fit_is_what_the_profiles_hold():
    shared = fit_library(HERE / "matmul_fp4_cublaslt.csv", device)
    assert shared.points == 9
    assert shared.held_out_error < 0.12
    for name in ("b200-sxm-180gb", "gb200"):
        shipped = load_accelerator(name).kernels.matmul["nvfp4"]
        for constant in ("peak_fraction", "ramp_k", "wave_fraction", "epilogue_fraction"):
            assert getattr(shipped, constant) == pytest.approx(getattr(shared.constants, constant), rel=0.01)
    # What TensorRT-LLM's kernels gain from one to the other, 0.464 over 0.51 of their peaks.
    share = load_accelerator("gb300").kernels.matmul["nvfp4"].peak_fraction
    assert share / shared.constants.peak_fraction == pytest.approx(0.464 / 0.51, rel=0.01)


def test_every_profile_has_constants_for_what_it_can_run():
    for name in list_profiles("accelerator"):
        accelerator = load_accelerator(name)
        kernels = accelerator.kernels
        for dtype, peak in PEAK_KEY.items():
            if peak in accelerator.peak_flops_per_s and dtype != "fp32":
                assert 0.2 < kernels.matmul[dtype].peak_fraction <= 1.0, (name, dtype)
                assert kernels.grouped_matmul[dtype].num_sms == accelerator.num_sms, (name, dtype)
        assert {"flash1", "flash2", "flash3", "cudnn"} <= set(kernels.attention), name
        blocks = kernels.blocks.matmul.values()
        measured = [block for block in blocks if block.basis == "measured"]
        assert all(block.points >= 9 and block.held_out_error is not None for block in measured), name
        assert all(block.source for block in blocks), name
