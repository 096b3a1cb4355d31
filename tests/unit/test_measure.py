"""`costmodel observed measure`: refusals without torch or GPU, and the whole path on processors where torch is."""

import builtins
import importlib.util
import subprocess
import sys

import pytest

from costmodel.base.version import install_command
from costmodel.cli import main
from costmodel.interop.nccl_tests import read_log
from costmodel.trust.calibration.measure_collectives import sizes_of

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed (extra [measure])")


@pytest.mark.parametrize("what", ["matmul", "attention", "memory", "collectives"])
def test_without_torch_one_line_says_so(what, monkeypatch, capsys):
    real = builtins.__import__

    def no_torch(name, *arguments, **options):
        if name == "torch":
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", no_torch)
    assert main(["observed", "measure", what]) == 2
    assert capsys.readouterr().err == f"Error: measuring needs torch: {install_command('measure')}\n"


@needs_torch
@pytest.mark.parametrize("what", ["matmul", "attention", "memory", "collectives"])
def test_without_a_gpu_one_line_says_so(what, capsys):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert main(["observed", "measure", what]) == 2
    error = capsys.readouterr().err
    assert "this machine has no GPU that torch can see" in error
    assert error.count("\n") == 1


def test_sizes_are_whole_numbers_of_floats_on_every_rank():
    for ranks in (2, 3, 8):
        sizes = sizes_of(1000, 1e6, ranks)
        assert sizes == sorted(set(sizes))
        assert all(size % (4 * ranks) == 0 for size in sizes)


def test_unknown_dtypes_and_collectives_are_refused(capsys):
    assert main(["observed", "measure", "matmul", "--dtypes", "bf61"]) == 2
    assert "did you mean 'bf16'" in capsys.readouterr().err


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_measure_calibrate_and_estimate(ranks, tmp_path, capsys):
    log, profile = tmp_path / "gloo.log", tmp_path / "gloo.yaml"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    sweep = ["--device", "cpu", "--sizes", "1KiB:4MiB", "--collectives", "all-reduce,all-gather"]
    command = ["-m", "costmodel", "observed", "measure", "collectives", *sweep, "--out", str(log)]
    subprocess.run([*torchrun, *command], check=True, capture_output=True)
    read = read_log(log)
    assert not read.problems
    assert {(one.primitive, one.ranks, one.nodes) for one in read.sweeps} == {
        ("all_reduce", ranks, 1),
        ("all_gather", ranks, 1),
    }
    # processes that share cores scatter: what is tested is the path, not the fit
    command = ["observed", "calibrate", "fabric", str(log), "--write", str(profile), "--max-error", "20"]
    assert main([*command, "--cluster", "cloud-h100-100gbe", "--out", str(tmp_path / "fit.txt")]) == 0
    job = ["-m", "llama3-8b", "-n", "8", "-l", "tp2", "--global-batch", "8", "--seq-len", "2048"]
    assert main(["estimate", *job, "-c", str(profile)]) == 0
    assert "step time" in capsys.readouterr().out


@needs_torch
@pytest.mark.slow
def test_kernel_sweeps_are_what_calibrate_reads(tmp_path):
    from costmodel.trust.calibration.kernel_csv import read_timings

    paths = []
    for what in ("matmul", "attention", "memory"):
        paths.append(tmp_path / f"{what}.csv")
        assert main(["observed", "measure", what, "--device", "cpu", "--small", "--out", str(paths[-1])]) == 0
    read = read_timings(paths, {"bf16": 1e15})
    assert len(read.matmul["matmul", "bf16"].m) == 16
    assert set(read.attention["flash2"].passes) == {0.0, 1.0}
    assert len(read.memory.time_s) == 10
