"""Logs of nccl-tests as people paste them: prefixes, abridged lists, blank columns, UTF-16, several at once."""

import pytest

from costmodel.base.errors import CostModelError
from costmodel.interop.reading import read as read_file

HEAD = "# nThread 1 nGpus 1 minBytes 1048576 maxBytes 67108864 step: 4(factor) warmup iters: 5 iters: 20\n"
COLUMNS = "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
SIZES = [2**20, 2**22, 2**24, 2**26]


def device(rank, host, local):
    return f"#  Rank {rank:2} Group  0 Pid  {900 + rank} on  {host} device  {local} [0x1a] NVIDIA H100 80GB HBM3\n"


def rows(ranks, factor=2.0, redop="sum", speed=1e11):
    lines = []
    for size in SIZES:
        time = size / speed * 1e6
        both = f"{time:8.2f} {size / time / 1e3:7.2f} {size / time / 1e3 * factor * (ranks - 1) / ranks:7.2f}      0"
        lines.append(f"{size:12} {size // 4:12}   float  {redop:>6}      -1 {both} {both}\n")
    return lines


def log(ranks=16, *, listed=None, program="all_reduce_perf", **kinds):
    wanted = range(ranks) if listed is None else listed
    devices = [device(rank, f"host{rank // 8}", rank % 8) for rank in wanted]
    start = f"# Collective test starting: {program}\n" if program else ""
    return [
        start,
        HEAD,
        "#\n",
        "# Using devices\n",
        *devices,
        COLUMNS,
        *rows(ranks, **kinds),
        "# Avg bus bandwidth : 9\n",
    ]


def sweeps(tmp_path, lines, name="run.log", encoding="utf-8", **given):
    file = tmp_path / name
    file.write_bytes((lines if isinstance(lines, str) else "".join(lines)).encode(encoding))
    return read_file(file, **given).sweeps


def facts(sweep):
    return (sweep["primitive"], sweep["ranks"], sweep["nodes"], len(sweep["sizes"]))


PREFIXES = (
    "Tue Nov 22 10:00:01 2026[1,0]<stdout>:{line}",
    "Tue Nov 22 10:00:01 2026<stdout>: {line}",
    "May  1 10:00:00 node7 nccl[123]: {line}",
    "0: [1,0]<stdout>:{line}",
    "node001: [1,0]<stdout>:{line}",
    "\x1b[32m{line}\x1b[0m",
    "{line}",
    "[1,0]<stdout>:{line}",
    "    [1,0]<stdout>:{line}",
    "0: {line}",
    "node-07: {line}",
    "2025-03-01T12:00:00.123456789Z {line}",
    "[pod/nccl-test-launcher-x/mpi] {line}",
    "(head, rank=0, pid=3808) {line}",
    "> {line}",
    "worker-0  | {line}",
    "> 2025-03-01T12:00:00Z [1,0]<stdout>: {line}",
)


def test_prefixes_of_launchers(tmp_path):
    for prefix in PREFIXES:
        lines = [prefix.format(line=line) for line in log()]
        assert [facts(sweep) for sweep in sweeps(tmp_path, lines)] == [("all_reduce", 16, 2, 4)], prefix


def test_a_list_that_its_author_abridged(tmp_path):
    for ranks, listed, nodes in (
        (16, [0, 7, 8, 15], 2),
        (72, [71], 9),
        (96, [0, 1, 95], 12),
        (16, None, 2),
        (12, [0, 7, 8, 11], 2),
    ):
        assert facts(sweeps(tmp_path, log(ranks, listed=listed))[0]) == ("all_reduce", ranks, nodes, 4)


def test_a_blank_reduction(tmp_path):
    head = "#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error\n"
    lines = [
        head if line == COLUMNS else line for line in log(8, program="alltoall_perf", factor=1.0, redop="")
    ]
    lines = [line.replace("      -1 ", " ") for line in lines]

    assert facts(sweeps(tmp_path, lines)[0]) == ("all_to_all", 8, 1, 4)


def test_the_file_names_the_collective(tmp_path):
    once, twice = log(8, program="", factor=1.0, redop="none"), log(8, program="")
    assert sweeps(tmp_path, twice, "allreduce-h100.log")[0]["primitive"] == "all_reduce"
    for name, primitive in (
        ("allgather.log", "all_gather"),
        ("all-gather_8.txt", "all_gather"),
        ("nccl_reducescatter.log", "reduce_scatter"),
        ("all2all.log", "all_to_all"),
    ):
        assert sweeps(tmp_path, once, name)[0]["primitive"] == primitive


def test_columns_alone_tell_the_collective_where_two_are_not_possible(tmp_path):
    """7/8 of eight ranks with a sum is a reduce-scatter; 30/16 are sixteen ranks, 10/6 six; 1/2 of two could be either."""
    for ranks, factor, known in (
        (8, 1.0, ("reduce_scatter", 8)),
        (16, 2.0, ("all_reduce", 16)),
        (6, 2.0, ("all_reduce", 6)),
    ):
        assert facts(sweeps(tmp_path, [COLUMNS, *rows(ranks, factor=factor)])[0])[:2] == known


def test_ranks_by_the_ratio_of_two_rounded_rates(tmp_path):
    """13/14 of 4.1 GB/s are printed as 3.81: 14.1 ranks, by 0.006 off 0.29 of one. At 3.5 GB/s that is 0.34, too much."""
    slow = [[COLUMNS, *rows(14, factor=1.0, redop="none", speed=speed)] for speed in (4.1e9, 3.5e9)]
    assert facts(sweeps(tmp_path, slow[0], collective="all_gather")[0])[:2] == ("all_gather", 14)
    with pytest.raises(CostModelError, match="cannot be told without the list of devices; give --ranks"):
        sweeps(tmp_path, slow[1], collective="all_gather")


def test_tests_that_ran_beside_each_other(tmp_path):
    first, second = log(8, speed=2e11), log(8, program="all_gather_perf", factor=1.0, redop="none")
    mixed = [
        line for pair in zip(first, second, strict=True) for line in (f"alpha: {pair[0]}", f"beta: {pair[1]}")
    ]

    assert [facts(sweep) for sweep in sweeps(tmp_path, mixed)] == [
        ("all_reduce", 8, 1, 4),
        ("all_gather", 8, 1, 4),
    ]


def test_what_a_log_does_not_say_can_be_given(tmp_path):
    lines = [COLUMNS, *rows(2)]

    with pytest.raises(CostModelError, match="name it by --collective"):
        sweeps(tmp_path, [COLUMNS, *rows(2, factor=1.0)], ranks=2)
    assert facts(sweeps(tmp_path, lines, collective="all_reduce", ranks=2, nodes=2)[0]) == (
        "all_reduce",
        2,
        2,
        4,
    )


def test_what_is_wrong_is_a_warning_and_no_note(tmp_path):
    file = tmp_path / "torn.log"
    file.write_text("".join(log(8)[:-1]) + "    67108864      16777216   float     sum      -1   nonsense\n")
    found = read_file(file)
    assert found.warnings == ("torn.log:18: ends after 6 of 13 columns: was the log cut off?",)
    assert found.notes == ()


def test_bandwidths_of_other_ranks_than_are_listed(tmp_path):
    """A start, a head, two more lines, eight devices and the columns: the fastest of four rows is the first, line 14."""
    for factor, said in [
        (1.0, "busbw is 0.875 times algbw, as 2 ranks have; 8 ranks of all_reduce have 1.75"),
        (2 * 15 / 14, "busbw is 1.875 times algbw, as 16 ranks have; 8 ranks of all_reduce have 1.75"),
    ]:
        with pytest.raises(CostModelError, match=f"run.log:14: {said}$"):
            sweeps(tmp_path, log(8, factor=factor))


def test_a_rate_may_differ_from_its_size_and_time_by_what_rounding_hides(tmp_path):
    """1,024 B in 2 us are 0.512 GB/s. Printed as 2, the time is off by up to 25.5 %, as 2.0 by 2.55 %; 1 % and 0.006 more."""
    for time, algbw, agrees in (
        ("2", 0.65, True),
        ("2", 0.66, False),
        ("2.0", 0.53, True),
        ("2.0", 0.54, False),
        ("2.0", 0.49, True),
        ("2.0", 0.48, False),
    ):
        row = f"1024 256 float sum -1 {time} {algbw} {algbw} 0 {time} {algbw} {algbw} 0\n"
        others = rows(8)
        lines = [*log(8)[:-5], row, *others]
        found = sweeps(tmp_path, lines)[0]
        assert (1024 in [one for one in found["sizes"]]) == agrees, (time, algbw)
