"""The maintainers' scripts, run on a copy of the shipped profiles with tables made from known constants."""

from pathlib import Path
from shutil import copy

import fit_fabric
import fit_kernels
import numpy as np
import pytest

from costmodel.describe.hardware.hardware import check_file, load_accelerator, load_link
from costmodel.describe.hardware.kernels import PEAK_KEY
from costmodel.describe.hardware.profile_files import read_yaml
from costmodel.physics.kernels.roofline import attention_time, matmul_time
from costmodel.physics.network.mesh import Group
from costmodel.trust.calibration import fabric_fit, kernel_fits
from costmodel.trust.calibration.kernel_csv import INPUT_BYTES

PROFILES = Path(__file__).parents[2] / "hardware_profiles"
H100 = load_accelerator("h100-sxm-80gb")
MEMORY = H100.memory_bandwidth_bytes_per_s
SHAPES = [(m, n, k) for m in (1024, 4096, 16384) for n, k in ((1024, 4096), (4096, 4096), (8192, 8192))]


def product_s(accelerator, dtype, m, n, k):
    """Time of a product that runs in a burst."""
    return float(
        matmul_time(
            m,
            n,
            k,
            constants=accelerator.kernels.matmul[dtype],
            peak_flops_per_s=accelerator.peak_flops_per_s[PEAK_KEY[dtype]],
            memory_bandwidth_bytes_per_s=accelerator.memory_bandwidth_bytes_per_s,
            input_bytes=INPUT_BYTES[dtype],
            sustained=False,
        ).value
    )


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


def kernel_tables(folder: Path) -> list[str]:
    """Write what an H100 with the shipped constants would measure, and return the scripts' arguments."""
    products = ["id,source,gpu,op,dtype,batch,m,n,k,groups,layout,accumulate,out_dtype,time_us,notes"]
    for dtype in ("bf16", "fp8-block"):
        for m, n, k in SHAPES:
            time_us = product_s(H100, dtype, m, n, k) * 1e6
            products.append(f"x,our/bench,{H100.name},matmul,{dtype},1,{m},{n},{k},,,,,{time_us:.4f},")
    kernels = ["gpu,kernel,op,batch,seq_len,heads,head_dim,causal,tflops"]
    for kernel in ("flash2", "flash3"):
        for seq in (1024, 4096, 16384):
            for dim, causal, backward in (
                (64, True, False),
                (128, False, False),
                (128, True, True),
                (64, False, True),
            ):
                flops = 4.0 * 16384 * seq * 2048 * (0.5 if causal else 1.0) * (2.5 if backward else 1.0)
                rate = flops / attention_s(H100, kernel, seq, dim, causal, backward) / 1e12
                op = "attention_bwd" if backward else "attention_fwd"
                kernels.append(
                    f"{H100.name},{kernel},{op},{16384 // seq},{seq},{2048 // dim},{dim},{causal},{rate:.3f}"
                )
    paths = [folder / "products.csv", folder / "attention.csv"]
    for path, lines in zip(paths, (products, kernels), strict=True):
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return [str(path) for path in paths]


def outside(text: str, block: str) -> str:
    """Return a profile's text without one of its blocks."""
    head, _, rest = text.partition(f"\n{block}:")
    return head + rest.partition("\nsources:")[2]


def test_kernels_are_fitted_and_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(kernel_fits, "SEEDS", (0,))
    folder = tmp_path / "accelerators"
    folder.mkdir()
    for name in ("h100-sxm-80gb", "h20-sxm-96gb"):
        copy(PROFILES / "accelerators" / f"{name}.yaml", folder)
    before = {path.stem: path.read_text("utf-8") for path in folder.iterdir()}

    assert fit_kernels.main([*kernel_tables(tmp_path), "--write", str(folder)]) == 0

    assert "matmul            h100-sxm-80gb      fp8-block" in capsys.readouterr().out
    fitted = load_accelerator(folder / "h100-sxm-80gb.yaml")
    assert (folder / "h20-sxm-96gb.yaml").read_text("utf-8") == before["h20-sxm-96gb"]
    for path in folder.iterdir():
        assert check_file(path) == []
        assert outside(path.read_text("utf-8"), "kernels") == outside(before[path.stem], "kernels")
    for dtype in ("bf16", "fp8-block"):
        for shape in SHAPES:
            was, now = (product_s(chip, dtype, *shape) for chip in (H100, fitted))
            assert now == pytest.approx(was, rel=0.06), (dtype, shape)
    for kernel in ("flash2", "flash3"):
        was, now = (attention_s(chip, kernel, 4096, 128, True, True) for chip in (H100, fitted))
        assert now == pytest.approx(was, rel=0.04)
    own = fitted.kernels.blocks.matmul["bf16"]
    assert (own.basis, own.points, own.source) == ("measured", 9, "our/bench (9); power limit: none known")
    # What no row tells stays as the rule that it is.
    assert "like: flash2" in (folder / "h100-sxm-80gb.yaml").read_text("utf-8")
    assert fitted.kernels.memory == H100.kernels.memory


def sweeps_csv(path: Path) -> str:
    """Write what nccl-tests would print on links with the shipped constants."""
    inner, network = load_link("nvlink3", size=8), load_link("ib-hdr", size=1024)
    lines = ["id,gpu,gpus,nodes,interconnect,collective,size_bytes,time_us,notes"]
    sizes = 1024.0 * 8.0 ** np.arange(8)
    for ranks, nodes in ((4, 1), (8, 1), (16, 2), (32, 4)):
        group = Group(np.asarray(float(ranks)), (np.asarray(float(ranks / nodes)), np.asarray(float(ranks))))
        for primitive in ("all_reduce", "all_gather"):
            run = fabric_fit.FabricRun("x", primitive, group, "nvlink3", None, "auto", sizes, sizes)
            times = fabric_fit.predict(run, inner, network if nodes > 1 else inner)
            lines += [
                f"{primitive}-{ranks},a100-sxm,{ranks},{nodes},NVLink3 + RDMA,{primitive},{size:.0f},{time * 1e6:.4f},"
                for size, time in zip(sizes, times, strict=True)
            ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def test_links_are_fitted_and_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(fit_fabric, "CURVES", ())
    folder = tmp_path / "links"
    folder.mkdir()
    for path in (PROFILES / "links").glob("*.yaml"):
        copy(path, folder)
    before = {path.stem: path.read_text("utf-8") for path in folder.iterdir()}

    assert fit_fabric.main([sweeps_csv(tmp_path / "sweeps.csv"), "--write", str(folder)]) == 0

    printed = capsys.readouterr().out
    assert "roce-100: left as it is, because roce-200 has no rows" in printed
    for name in ("nvlink3", "ib-hdr"):
        was, now = load_link(name, size=8), load_link(folder / f"{name}.yaml", size=8)
        block = read_yaml(folder / f"{name}.yaml")["fabric"]
        assert block["residual"] < 0.05
        assert block["points"] == 32
        assert now.base_latency_s == pytest.approx(was.base_latency_s, rel=0.25)
        assert outside((folder / f"{name}.yaml").read_text("utf-8"), "fabric").count("\n") == outside(
            before[name], "fabric"
        ).count("\n")
    # NVLink 2 takes NVLink 3's constants; EDR takes HDR's; nothing else was touched.
    changed = {path.stem for path in folder.iterdir() if path.read_text("utf-8") != before[path.stem]}
    assert changed == {"nvlink3", "ib-hdr", "nvlink2", "nvlink3-a800", "ib-edr", "omnipath-100"}
    assert read_yaml(folder / "nvlink2.yaml")["fabric"]["basis"] == "similar-link"
    assert load_link(folder / "nvlink2.yaml").fabric.rate_factor == pytest.approx(
        load_link(folder / "nvlink3.yaml").fabric.rate_factor
    )
