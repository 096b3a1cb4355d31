"""Logs of nccl-tests: what is read, and that each kind of broken log gets its own clear message."""

import numpy as np
import pytest

from costmodel.cli import main
from costmodel.describe.hardware.hardware import load_cluster
from costmodel.interop.nccl_tests import read_log
from costmodel.trust.calibration.cluster_fit import sweep_run

CLUSTER = load_cluster("h100-ndr")
HEAD = """\
# nThread 1 nGpus 1 minBytes 1048576 maxBytes 268435456 step: 4(factor) warmup iters: 5 iters: 20
#
# Using devices
"""
COLUMNS = """\
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
END = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 100.0\n#\n"


def devices(count, per_node=8, gpu="NVIDIA H100 80GB HBM3"):
    return "".join(
        f"#  Rank {k:2} Group  0 Pid  {9000 + k} on  host{k // per_node} device  {k % per_node} [0x1a] {gpu}\n"
        for k in range(count)
    )


def row(size, time_us, *, ranks=8, wrong="0", primitive="all_reduce", redop="sum"):
    factor = (2 if primitive == "all_reduce" else 1) * (ranks - 1) / ranks
    algbw = size / time_us / 1e3
    both = f"{time_us:8.2f} {algbw:7.2f} {algbw * factor:7.2f} {wrong:>6}"
    return f"{size:12} {size // 4:12}   float  {redop:>6}      -1 {both} {both}\n"


SIZES = [4**k * 2**10 for k in range(10)]


def times(size):
    return 20.0 + size / 250e3


def good_rows(**options):
    return [row(size, times(size), **options) for size in SIZES]


def log(rows=None, head=None, columns=COLUMNS, end=END):
    rows = good_rows() if rows is None else rows
    return (HEAD + devices(8) if head is None else head) + columns + "".join(rows) + end


def write(folder, text, name="all_reduce.log"):
    path = folder / name
    path.write_text(text)
    return path


def test_a_log_with_both_columns_is_read(tmp_path):
    read = read_log(write(tmp_path, log()))
    assert not read.problems
    (sweep,) = read.sweeps
    assert (sweep.primitive, sweep.ranks, sweep.nodes, sweep.gpu) == (
        "all_reduce",
        8,
        1,
        "NVIDIA H100 80GB HBM3",
    )
    np.testing.assert_allclose(sweep.size_bytes, SIZES)
    np.testing.assert_allclose(sweep.time_s, [times(size) * 1e-6 for size in SIZES], atol=6e-9)
    np.testing.assert_allclose(sweep.in_place_time_s, sweep.time_s)


def test_rccl_devices_and_unchecked_results(tmp_path):
    rccl = HEAD + devices(8, gpu="AMD Instinct MI300X").replace("[0x1a]", "[0000:0c:00.0]").replace(
        " Group  0", ""
    )
    read = read_log(write(tmp_path, log(head=rccl, rows=good_rows(wrong="N/A"))))
    assert not read.problems
    assert read.sweeps[0].gpu == "AMD Instinct MI300X"


@pytest.mark.parametrize(
    ("program", "primitive", "factor"),
    [
        ("all_gather", "all_gather", 7 / 8),
        ("reduce_scatter", "reduce_scatter", 7 / 8),
        ("alltoall", "all_to_all", 7 / 8),
        ("broadcast", "broadcast", 1),
        ("reduce", "reduce", 1),
        ("sendrecv", "send_recv", 1),
        ("all_reduce", "all_reduce", 14 / 8),
    ],
)
def test_each_program_is_known_by_its_start_line_and_by_the_name_of_its_log(
    tmp_path, program, primitive, factor
):
    rows = []
    for size in SIZES:
        rate = size / times(size) / 1e3
        rows.append(f"{size} {size // 4} float none -1 {times(size):.2f} {rate:.2f} {rate * factor:.2f} 0\n")
    started = f"# Collective test starting: {program}_perf\n" + HEAD + devices(8)
    by_line = read_log(
        write(tmp_path, log(rows, head=started, columns=COLUMNS.split("#wrong")[0] + "#wrong\n"), "run.log")
    )
    by_name = read_log(write(tmp_path, log(rows, columns=""), f"h100-{program}_perf.8.log"))
    for read in (by_line, by_name):
        assert not read.problems
        assert read.sweeps[0].primitive == primitive


def test_empty_sizes_are_noted_and_left_out(tmp_path):
    zero = "           0            0   float     sum      -1     9.10    0.00    0.00      0     9.00    0.00    0.00      0\n"
    read = read_log(write(tmp_path, log([zero, *good_rows()])))
    assert not read.problems
    assert len(read.sweeps[0].size_bytes) == len(SIZES)
    assert "size 0" in str(read.notes[0])


def broken(change):
    """Return a log whose last row is changed."""
    rows = good_rows()
    return log([*rows[:-1], change(rows[-1])])


LAST = f"{times(SIZES[-1]):8.2f}"
LINE = 3 + 8 + 4 + len(SIZES)

# What is wrong, the log, and what the message must say; the first is on the command's stderr.
BROKEN = {
    "empty": ("", "is empty"),
    "another file": ("Traceback (most recent call last):\n  ModuleNotFoundError: torch\n", "holds no table"),
    "row cut off": (
        log([*good_rows()[:-1], good_rows()[-1][:50]], end=""),
        f"log:{LINE}: ends after 5 of 13 columns",
    ),
    "table without rows": (log([], end=""), "no rows: was the run cut off?"),
    "zero time": (
        broken(lambda r: r.replace(LAST, "    0.00", 1)),
        f"log:{LINE}: time: expected more than 0; got 0.00",
    ),
    "negative time": (
        broken(lambda r: r.replace(LAST, "  -12.00", 1)),
        f"log:{LINE}: time: expected more than 0; got -12.00",
    ),
    "nan": (
        broken(lambda r: r.replace(LAST, "     nan", 1)),
        f"log:{LINE}: time: expected a finite number; got nan",
    ),
    "unit in a number": (
        broken(lambda r: r.replace(LAST, " 1.06ms ", 1)),
        f"log:{LINE}: time: expected a number without a unit",
    ),
    "unit in the head": (
        log(columns=COLUMNS.replace("(us)", "(ms)")),
        "expected the units (B), (elements), (us)",
    ),
    "size with a prefix": (
        broken(lambda r: r.replace(f"{SIZES[-1]:12}", "        256M", 1)),
        f"log:{LINE}: size: expected a whole number of bytes",
    ),
    "time in ms": (
        broken(lambda r: r.replace(LAST, f"{times(SIZES[-1]) / 1e3:8.4f}", 1)),
        f"log:{LINE}: {SIZES[-1]} B in 1.0",
    ),
    "wrong results": (log(good_rows(wrong="17")), "counted wrong results (#wrong = 17)"),
    "failed test": (
        log(end="node1: Test NCCL failure common.cu:1005 'unhandled system error'\n"),
        "the test failed: node1: Test NCCL failure",
    ),
    "ranks that do not match": (
        log(good_rows(ranks=16)),
        "as 16 ranks have; 8 ranks of all_reduce have 1.75",
    ),
    "two logs mixed": (log([*good_rows(), *good_rows()]), "two logs mixed?"),
    "one GPU": (log(head=HEAD + devices(1)), "one GPU has nobody to talk to"),
    "another GPU": (
        log(head=HEAD + devices(8, gpu="NVIDIA A100-SXM4-80GB")),
        "dgx-h100-ndr has h100-sxm-80gb",
    ),
    "too few sizes": (log(good_rows()[:3]), "3 points; expected at least 6"),
    "sizes too alike": (
        log([row(2**20 + k * 4096, times(2**20 + k * 4096)) for k in range(8)]),
        "to tell latency from rate",
    ),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_log_is_refused_with_its_own_message_and_nothing_is_written(kind, tmp_path, capsys):
    text, message = BROKEN[kind]
    path, profile = write(tmp_path, text), tmp_path / "mine.yaml"

    code = main(
        ["observed", "calibrate", "fabric", str(path), "--cluster", "h100-ndr", "--write", str(profile)]
    )

    error = capsys.readouterr().err
    assert code == 2
    assert message in error
    assert "all_reduce.log" in error or "nvlink" in error
    assert not list(tmp_path.glob("*.yaml"))


def test_bad_lines_can_be_skipped_on_request(tmp_path, capsys):
    path = write(tmp_path, BROKEN["zero time"][0])
    assert main(["observed", "calibrate", "fabric", str(path), "--skip-bad-lines", "--format", "json"]) == 0
    assert f"Warning: all_reduce.log:{LINE}: time" in capsys.readouterr().err


def test_an_algorithm_that_the_log_forces_is_priced_where_it_applies(tmp_path):
    for setting, ranks, algorithm in [
        ("Ring", 16, "ring"),
        ("Tree", 16, "tree"),
        ("NVLSTree", 16, "nvls-tree"),
        ("NVLS", 8, "nvls"),
        ("NVLS", 4, "auto"),
        ("LL", 16, "auto"),
    ]:
        head = f"+ mpirun -x NCCL_ALGO={setting} ./all_reduce_perf\n" + HEAD + devices(ranks)
        (sweep,) = read_log(write(tmp_path, log(good_rows(ranks=ranks), head=head))).sweeps
        run = sweep_run(sweep, CLUSTER)
        assert run.algorithm == algorithm


def test_a_name_of_two_lines_is_warned_of_in_one(capsys):
    assert main(["observed", "calibrate", "fabric", "a\nb", "--skip-bad-lines"]) == 2
    assert capsys.readouterr().err == "Warning: a b: no such file\nError: calibrate: no sweeps to fit\n"
