"""`costmodel observed calibrate kernels`: constants found again, bad rows named, nothing half done."""

import json
from functools import partial

import numpy as np
import pytest

from costmodel.cli import main
from costmodel.describe.hardware.hardware import check_file, load_accelerator
from costmodel.describe.hardware.kernels import AttentionPassBlock, MatmulBlock
from costmodel.physics.kernels.roofline import (
    AttentionPassConstants,
    MatmulConstants,
    attention_time,
    matmul_time,
)
from costmodel.trust.calibration.kernel_csv import read_timings, table_of
from costmodel.trust.calibration.kernel_fits import (
    _cases,
    constants_block,
    fit_attention,
    fit_held_out,
    fit_memory,
    predict_attention,
    predict_memory,
)

H200 = load_accelerator("h200")
MEMORY = H200.memory_bandwidth_bytes_per_s
PEAK = H200.peak_flops_per_s["bf16"]


def matmul_csv(slower=1.0):
    """Products as if this H200 were slower than the profile's by a factor, with 2 % of noise."""
    rng = np.random.default_rng(3)
    lines = ["# torch 2.13, H200", "m,n,k,dtype,time_us"]
    for m in (512, 2048, 8192, 16384):
        for n, k in ((1024, 4096), (4096, 4096), (8192, 2048), (14336, 4096), (8192, 8192)):
            one = matmul_time(
                m,
                n,
                k,
                constants=H200.kernels.matmul["bf16"],
                peak_flops_per_s=PEAK,
                memory_bandwidth_bytes_per_s=MEMORY,
                sustained=False,
            )
            lines.append(
                f"{m},{n},{k},bf16,{float(one.value) * 1e6 * slower * np.exp(0.02 * rng.standard_normal()):.3f}"
            )
    return "\n".join(lines) + "\n"


def attention_s(accelerator, kernel, seq, dim, causal, backward):
    """Time of an attention kernel over 16,384 tokens of 2,048 features."""
    return float(
        attention_time(
            16384 // seq,
            seq,
            seq,
            2048 // dim,
            kv_heads=2048 // dim,
            qk_head_dim=dim,
            v_head_dim=dim,
            causal=causal,
            backward=backward,
            constants=accelerator.kernels.attention[kernel],
            peak_flops_per_s=accelerator.peak_flops_per_s["fp8" if kernel == "cudnn-fp8" else "bf16"],
            memory_bandwidth_bytes_per_s=accelerator.memory_bandwidth_bytes_per_s,
        ).value
    )


def attention_csv(kernel="flash3"):
    lines = ["op,kernel,batch,seq_len,heads,head_dim,causal,time_us"]
    for seq in (512, 1024, 4096, 8192, 16384):
        for dim, causal, backward in (
            (64, True, False),
            (128, True, True),
            (128, False, False),
            (64, False, True),
        ):
            time_s = attention_s(H200, kernel, seq, dim, causal, backward)
            op = "attention_bwd" if backward else "attention_fwd"
            lines.append(
                f"{op},{kernel},{16384 // seq},{seq},{2048 // dim},{dim},{causal},{time_s * 1e6:.3f}"
            )
    return "\n".join(lines) + "\n"


def memory_csv():
    rows = [f"{size:.0f},{(3e-6 + size / (0.9 * MEMORY)) * 1e6:.4f}" for size in 2.0 ** np.arange(14, 32)]
    return "bytes,time_us\n" + "\n".join(rows) + "\n"


def test_kernels_make_an_accelerator_that_a_cluster_can_use(tmp_path, capsys):
    tables = {"mm.csv": matmul_csv(1.25), "attention.csv": attention_csv(), "memory.csv": memory_csv()}
    for name, text in tables.items():
        (tmp_path / name).write_text(text)
    profile = tmp_path / "ours.yaml"
    paths = [str(tmp_path / name) for name in tables]

    command = ["observed", "calibrate", "kernels", *paths, "-a", "h200", "--write", str(profile)]

    code = main([*command, "--format", "json"])

    record = json.loads(capsys.readouterr().out)
    fits = {(row["section"], row["name"]): row for row in record["kernels"]}
    assert code == 0
    assert fits["matmul", "bf16"]["error_before"] == pytest.approx(0.2, abs=0.02)
    assert fits["matmul", "bf16"]["held_out_error"] < 0.05
    assert fits["attention", "flash3"]["held_out_error"] < 0.08
    assert fits["memory", ""]["constants"]["bandwidth_fraction"] == pytest.approx(0.9, abs=0.005)
    assert fits["memory", ""]["constants"]["fixed"] == "3 us"
    assert check_file(profile) == []
    ours = load_accelerator(profile)
    price = partial(matmul_time, 8192, 8192, 8192, peak_flops_per_s=PEAK, memory_bandwidth_bytes_per_s=MEMORY)
    now, before = (price(constants=chip.kernels.matmul["bf16"]).value for chip in (ours, H200))
    assert float(now / before) == pytest.approx(1.25, rel=0.03)
    # what was not measured, and the power limit that bursts do not show, stay as they were
    assert ours.kernels.matmul["fp8"] == H200.kernels.matmul["fp8"]
    assert ours.kernels.matmul["bf16"].sustained_loss == H200.kernels.matmul["bf16"].sustained_loss
    assert main(command) == 2
    assert "--force replaces it" in capsys.readouterr().err


HEAD = "m,n,k,dtype,time_us\n"
BAD_ROWS = (
    (HEAD + "1024,1024,1024,bf16,0\n", "t.csv: line 2: time_us: expected a number above 0; got 0"),
    (HEAD + "8192,8192,8192,bf16,9\n", "above the peak of 989.4: mixed units?"),
    (HEAD + "1024,1024,1024\n", "t.csv: line 2: has 3 cells, expected 5"),
    ("a,b\n1,2\n", "t.csv: expected the columns m, n, k, dtype or"),
    ("", "t.csv: is empty"),
    (HEAD + "1024,1024,1024,bf16,9\n", "matmul bf16: 1 rows; expected at least 9"),
)


def test_bad_timings_are_named_by_file_and_line_and_nothing_is_written(tmp_path, capsys):
    file, profile = tmp_path / "t.csv", tmp_path / "ours.yaml"
    command = ["observed", "calibrate", "kernels", str(file), "-a", "h200", "--write", str(profile)]
    for text, message in BAD_ROWS:
        file.write_text(text)
        assert main(command) == 2
        assert message in capsys.readouterr().err
    assert not profile.exists()


def test_shares_end_at_one_and_a_row_that_went_wrong_does_not_rule():
    """Copies at 0.8 of the sheet's rate, one of them thrice as long; and at 1.3 of it, which is another sheet."""
    sizes = 2.0 ** np.arange(14, 32)
    for share, most in ((0.8, 0.8), (1.3, 1.0)):
        times = (3e-6 + sizes / (share * MEMORY)) * np.where(sizes == 2.0**28, 3.0, 1.0)
        rows = table_of(("size_bytes", "time_s"), list(zip(sizes, times, strict=True)))
        found = fit_memory(rows, H200.kernels.memory, lambda part, made: predict_memory(part, H200, made))
        assert found.bandwidth_fraction == pytest.approx(most, rel=0.02)


def test_what_a_mask_costs_needs_rows_without_one(tmp_path):
    """Causal rows a fifth slower: the peaks take it, and the factor of the mask stays."""
    kept = [line for line in attention_csv().splitlines() if "False" not in line]
    (tmp_path / "a.csv").write_text("\n".join(kept))
    rows = read_timings([tmp_path / "a.csv"], H200.peak_flops_per_s).attention["flash3"]
    rows.time_s *= 1.2
    start = H200.kernels.attention["flash3"]
    found = fit_attention(rows, start, lambda part, made: predict_attention(part, H200, made))
    for one in ("forward", "backward"):
        assert getattr(found, one).causal_fraction == getattr(start, one).causal_fraction
    assert predict_attention(rows, H200, found) == pytest.approx(rows.time_s, rel=0.03)


def test_attention_in_eight_bits_is_priced_at_its_own_peak(tmp_path):
    (tmp_path / "a.csv").write_text(attention_csv("cudnn-fp8"))
    timings = read_timings([tmp_path / "a.csv"], H200.peak_flops_per_s)
    (case,) = _cases(timings, H200, H200.kernels)
    assert case.price(case.rows, case.start) == pytest.approx(case.rows.time_s, rel=1e-4)


def test_constants_of_products_are_read_as_they_were_written():
    """What is zero is left out; a share of the peak is at most 0.98, and a start of a group's below 0.1 us none."""
    plain = dict(
        fixed_s=2.5e-6, peak_fraction=0.7654, memory_fraction=0.8, num_sms=132, tile_m=128, tile_n=256
    )
    plain |= dict(wave_fraction=0.3456, ramp_k=61.23)
    more = dict(split_k=3000.0, small_tile_fraction=0.7, epilogue_fraction=0.1234, sustained_loss=0.2)
    more |= dict(
        sustained_flops=3.5e11, cast_bytes_per_element=5.0, cast_fixed_s=4e-6, fixed_per_group_s=2e-7
    )
    for values in (plain, plain | more):
        block = constants_block(MatmulConstants(**values))
        read = MatmulBlock(basis="measured", source="x", **block).constants(132)
        for name, value in values.items():
            assert getattr(read, name) == pytest.approx(value, rel=4e-3), name
    assert len(constants_block(MatmulConstants(**plain))) == 6
    capped = constants_block(
        MatmulConstants(**plain | more | {"peak_fraction": 0.99, "fixed_per_group_s": 1e-7})
    )
    assert (capped["peak_fraction"], "fixed_per_group" in capped) == (0.98, False)
    shares = {"head_dims": (64.0, 128.0), "peak_fractions": (0.5123, 0.7), "causal_fraction": 0.92}
    one_pass = AttentionPassConstants(132, 5e-6, 0.8, **shares, ramp_seq=60.25, side_bytes_per_element=9.5)
    read = AttentionPassBlock(basis="measured", source="x", **constants_block(one_pass)).constants(132)
    for name, value in one_pass._asdict().items():
        assert getattr(read, name) == pytest.approx(value, rel=4e-3), name


def test_errors_are_those_of_rows_that_the_fit_did_not_see():
    """A fit that knows its own rows by heart, and misses all others by a factor of two."""
    rows = table_of(("size_bytes", "time_s"), [[size, 1.0] for size in range(1, 13)])

    def recalled(part, known):
        return np.where(np.isin(part.size_bytes, known), 1.0, 2.0)

    found = fit_held_out(rows, lambda part: part.size_bytes, recalled, (0, 1))
    assert (found.points, found.held_out_error, len(found.constants)) == (12, 1.0, 12)
