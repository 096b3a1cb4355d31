"""Logs of nccl-tests and rccl-tests (``all_reduce_perf`` … ``sendrecv_perf``) read into sweeps.

A log is what the tests print, with or without the ``#`` lines, in whatever noise a launcher adds
(MPI prefixes, NCCL INFO). Each line of a table must hold together: size over time must be the
bandwidth printed beside it, and the ratio of the two bandwidths must be that of the collective and
the number of ranks. What does not is reported by file and line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.base.errors import CostModelError
from costmodel.interop.text_file import read_text, shown, uncoloured

Array = NDArray[np.float64]

PROGRAMS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "sendrecv": "send_recv",
}
"""Name of each test program (before ``_perf``) and of its collective here."""

_UNPRICED = ("scatter", "gather", "hypercube", "alltoallv", "all_to_allv")
_PRINTED = re.compile(
    r"#\s*(?:nThread|nccl-tests|Using|Rank|size|Collective|Out of|Avg|\([A-Za-z]+\)|$)"
    r"|(?<![\w.-])\d+\s+\d+\s+(?:float|half|bfloat16|bf16|fp\d|u?int\d*|u?char|double|f8)"
)
"""Where what the tests print begins in a line; before it stands what a launcher adds (rank, host, time, pod)."""
_HOST_PREFIX = re.compile(r"\s*([A-Za-z][\w.-]*)(?::|\s*\|)\s")
_DEVICE = re.compile(
    r"#\s*Rank\s+(\d+)(?:\s+Group\s+\d+)?\s+Pid\s+\d+ on\s+(\S+)\s+device\s+(\d+)\s+\[\w[\w:.]*\]\s*(.*)$"
)
_START = re.compile(r"# nThread|.*Collective test starting:\s*(\S+?)_perf")
_HEAD = re.compile(r"#\s+size\s+count\b")
_END = re.compile(r"#\s*(?:Out of bounds|Avg bus)")
_UNITS = re.compile(r"#\s*\(\w+\)\s+\(elements\)")
_TIMESTAMP = re.compile(r"\s+\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$")
_OTHER_NAMES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "all_to_all": "alltoall",
    "all2all": "alltoall",
    "send_recv": "sendrecv",
}
_PROGRAM = re.compile(rf"\b({'|'.join((*PROGRAMS, *_UNPRICED))})_perf\b")
_FORCED = re.compile(r"NCCL_ALGO[=\s]+(?:set by environment to\s+)?\"?(\w+)")
_FORCED_NAMES = {"ring": "ring", "tree": "tree", "nvls": "nvls", "nvlstree": "nvls-tree"}
_VERSION = re.compile(r"(?:nccl-library=|(?:NCCL|RCCL) version[ :]+)(\S+)")
_FAILED = re.compile(r"Test (?:NCCL|CUDA|HIP|RCCL) failure|NCCL WARN|Segmentation fault|Aborted \(core", re.I)
MOST_RANKS = 10_000_000
"""More than a list of devices can mean."""


class LogProblem(NamedTuple):
    """Something wrong, and where."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        """Write as compilers do."""
        return f"{self.file}:{self.line}: {self.text}" if self.line else f"{self.file}: {self.text}"


class LogSweep(NamedTuple):
    """One table of a log, where it starts, and what ran on how many GPUs of how many hosts (0: the log does not say).

    `algorithm` is ``auto`` or the one that NCCL_ALGO forced; sizes are those of the full buffer [B], times out of place
    and in place [s], nan where not printed.
    """

    file: str
    line: int
    primitive: str
    algorithm: str
    ranks: int
    nodes: int
    gpu: str
    version: str
    size_bytes: Array
    time_s: Array
    in_place_time_s: Array

    @property
    def name(self) -> str:
        """Short name for tables."""
        hosts = f"/{self.nodes}" if self.nodes > 1 else ""
        return f"{Path(self.file).stem} {self.primitive} {self.ranks}{hosts}"


class Log(NamedTuple):
    """Everything that logs hold: sweeps, what is wrong, and what is worth knowing."""

    sweeps: tuple[LogSweep, ...] = ()
    problems: tuple[LogProblem, ...] = ()
    notes: tuple[LogProblem, ...] = ()


def _joined(logs: Sequence[Log]) -> Log:
    """Return several logs as one."""
    return Log(*(tuple(item for part in parts for item in part) for parts in zip(*logs, strict=True)))


def read_logs(paths: Iterable[str | Path], *, collective: str = "", ranks: int = 0, nodes: int = 0) -> Log:
    """Read several logs; see `read_log`."""
    logs = [read_log(path, collective=collective, ranks=ranks, nodes=nodes) for path in paths]
    return _joined([*logs, Log()])


def read_log(path: str | Path, *, collective: str = "", ranks: int = 0, nodes: int = 0) -> Log:
    """Read one log: a file that cannot be read is a problem, too.

    The collective that ran, GPUs and hosts are given where neither the log nor its name says.
    """
    try:
        text = read_text(path).text
    except CostModelError as error:
        message = str(error).removeprefix(f"{shown(str(path))}: ")
        return Log(problems=(LogProblem(str(path), 0, message),))
    return read_log_text(text, Path(path).name, collective=collective, ranks=ranks, nodes=nodes)


def read_log_text(text: str, file: str, *, collective: str = "", ranks: int = 0, nodes: int = 0) -> Log:
    """Read the text of one log; see `read_log`."""
    logs = []
    for name, numbered in _streams(text).items():
        if name and not any(looks_like_row(line.split()) or _HEAD.match(line) for _, line in numbered):
            continue
        reader = _Reader(file, collective, ranks, nodes)
        for number, line in numbered:
            reader.take(number, _TIMESTAMP.sub("", line.strip()))
        logs.append(reader.finish())
    return _joined([log for log in logs if log.sweeps] or logs[:1])


def _streams(text: str) -> dict[str, list[tuple[int, str]]]:
    """Return numbered lines without their prefixes; tests that run beside each other apart, by their host."""
    found: dict[str, list[tuple[int, str]]] = {"": []}
    before = ""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = uncoloured(raw)
        if printed := _PRINTED.search(line):
            before = line[: printed.start()].strip()
        # A torn row stands behind what stood before the others.
        line = line.strip()
        rest = line[line.find(before) + len(before) :] if before in line else line
        host = _HOST_PREFIX.match(f"{before} ") if rest != line else None
        found.setdefault(host[1] if host else "", []).append((number, rest))
    if len(found) == 2:
        # One host's lines, and lines without a host that belong to the same run.
        return {"": sorted(line for lines in found.values() for line in lines)}
    return found


NUMBER = re.compile(r"^[-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf)\S*$", re.I)

_TYPE = re.compile(
    r"u?int(?:8|32|64)?|u?char|half|float(?:16)?|double|b(?:float|f)16|fp(?:16|32)|f(?:8|p8_)(?:e4m3|e5m2)"
)
_MEASURED = ["time", "algbw", "busbw", "#wrong"]


class Row(NamedTuple):
    """A line of a table: size in bytes, times in us (nan where not printed), bandwidths in GB/s."""

    line: int
    size: float
    time_us: float
    algbw: float
    busbw: float
    in_place_us: float = math.nan
    wrong: float = 0.0
    redop: str = ""


def looks_like_row(words: Sequence[str]) -> bool:
    """Say whether a line is of a table even without its head: size, count, type."""
    return len(words) >= 3 and words[1].isdigit() and bool(_TYPE.fullmatch(words[2]))


def default_columns(count: int) -> list[str]:
    """Return the columns of a table without its head, by their number."""
    head = ["size", "count", "type", "redop", "root"]
    if count in (11, 12):
        head = head[: count - 8]
    return [*head, *_MEASURED, *([] if count == 9 else _MEASURED)]


def read_row(number: int, words: Sequence[str], columns: Sequence[str]) -> Row | str:
    """Return the numbers of a row, or what is wrong with it."""
    names = list(columns) or default_columns(len(words))
    if "time" not in names[:-2]:
        return f"the head of the table ({' '.join(names[-4:])}) has no columns time, algbw and busbw"
    if not re.fullmatch(r"[-+]?\d+", words[0]):
        return f"size: expected a whole number of bytes; got {words[0]!r}"
    if len(words) == len(names) - 1 and "redop" in names and NUMBER.match(words[names.index("redop")]):
        # Tests that reduce nothing left the column blank until 2.13.
        names = [name for name in names if name != "redop"]
    size = float(words[0])
    if size < 0:
        return f"size: expected at least 0 bytes; got {words[0]}"
    if len(words) < len(names):
        return f"ends after {len(words)} of {len(names)} columns: was the log cut off?"
    if len(words) > len(names):
        return f"has {len(words)} columns; expected {len(names)} ({' '.join(names[:6])} …)"
    first = names.index("time")
    places = {"time": first, "algbw": first + 1, "busbw": first + 2}
    if "time" in names[first + 1 :]:
        places["in-place time"] = names.index("time", first + 1)
    numbers = {}
    for name, at in places.items():
        may_be_zero = "time" not in name or size == 0
        try:
            value = numbers[name] = float(words[at])
        except ValueError:
            return f"{name}: expected a number without a unit; got {words[at]!r}"
        if not math.isfinite(value):
            return f"{name}: expected a finite number; got {words[at]}"
        if value < 0.0 or (value == 0.0 and not may_be_zero):
            return f"{name}: expected {'at least' if may_be_zero else 'more than'} 0; got {words[at]}"
    if size:
        rate, digits = size / numbers["time"] / 1e3, len(words[first].partition(".")[2])
        # What rounding of the two allows.
        allowed = 0.006 + rate * (0.01 + 0.51 * 10.0**-digits / numbers["time"])
        if abs(rate - numbers["algbw"]) > allowed:
            return f"{size:.0f} B in {words[first]} us is {rate:.4g} GB/s, but algbw says {words[first + 1]}: mixed units?"
    wrong = words[first + 3] if len(words) > first + 3 and names[first + 3] != "time" else "0"
    try:
        count = float(wrong)
    except ValueError:
        count = 0.0  # what was not checked counts as right
    redop = words[names.index("redop")] if "redop" in names else ""
    in_place = numbers.get("in-place time", math.nan)
    return Row(number, size, numbers["time"], numbers["algbw"], numbers["busbw"], in_place, count, redop)


def bus_factor(primitive: str, ranks: float) -> float:
    """Return busbw over algbw."""
    passes = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
    return passes[primitive] * (1.0 - 1.0 / ranks) if primitive in passes else 1.0


@dataclass
class _Run:
    """What a test has printed of itself: its program, and host and number on it of each rank's device."""

    program: str = ""
    algorithm: str = "auto"
    version: str = ""
    devices: dict[int, tuple[str, int]] = field(default_factory=dict)
    gpu: str = ""

    @property
    def listed(self) -> int:
        """Ranks of the list of devices, also of one that its author abridged."""
        return max(self.devices, default=-1) + 1

    def hosts(self, ranks: int) -> int:
        """Return the hosts: those listed or, of an abridged list, ranks over devices of one."""
        each = max((device for _, device in self.devices.values()), default=0) + 1
        abridged = 0 < len(self.devices) < ranks
        return ranks // each if abridged and ranks % each == 0 else len({h for h, _ in self.devices.values()})


class _Reader:
    """Goes through a log line by line."""

    def __init__(self, file: str, collective: str, ranks: int, nodes: int) -> None:
        self.file, self.collective, self.ranks, self.nodes = file, collective, ranks, nodes
        self.log = list[LogSweep](), list[LogProblem](), list[LogProblem]()
        self.run = _Run()
        self.line, self.columns, self.rows, self.is_bad = 0, list[str](), list[Row](), False
        """The table that is read: where it starts, its head, its rows, and whether one of them was wrong."""
        self.any_table = False

    def wrong(self, line: int, text: str) -> None:
        """Keep a problem."""
        self.log[1].append(LogProblem(self.file, line, text))

    def note(self, line: int, text: str) -> None:
        """Keep what is worth knowing."""
        self.log[2].append(LogProblem(self.file, line, text))

    def take(self, number: int, line: str) -> None:
        """Read one line."""
        if _FAILED.search(line):
            self.wrong(number, f"the test failed: {line[:80]}")
            return
        if forced := _FORCED.search(line):
            self.run.algorithm = _FORCED_NAMES.get(forced[1].lower(), "auto")
        if version := _VERSION.search(line):
            self.run.version = version[1]
        words = line.split()
        is_number = bool(words) and bool(NUMBER.match(words[0])) and ":" not in words[0]
        if line.startswith("#"):
            self.comment(number, line)
        elif is_number and (self.columns or looks_like_row(words)):
            self.row(number, words)
        elif not is_number and not self.rows:
            self.run.program = [self.run.program, *_PROGRAM.findall(line)][-1]

    def comment(self, number: int, line: str) -> None:
        """Read a ``#`` line: the start of a run, a device, the head of a table, or noise."""
        started, device = _START.match(line), _DEVICE.match(line)
        if started:
            if self.rows or self.columns:
                self.close()
            self.run.program = started[1] or self.run.program
        elif device or _END.match(line):
            if self.rows:
                self.close()
            if device:
                self.run.devices[min(int(device[1][:12]), MOST_RANKS)] = device[2], int(device[3])
                self.run.gpu = device[4].strip()
        elif _HEAD.match(line):
            if self.rows:
                self.close(keep=True)
            self.columns, self.line = line.lstrip("# ").split(), number
        elif _UNITS.match(line):
            units = set(re.findall(r"\(([^)]*)\)", line)) - {"B", "elements", "us", "GB/s"}
            if units:
                self.wrong(number, f"expected the units (B), (elements), (us) and (GB/s); got ({min(units)})")
        elif not self.rows:
            self.run.program = [self.run.program, *_PROGRAM.findall(line)][-1]

    def row(self, number: int, words: list[str]) -> None:
        """Read one line of a table."""
        self.line = self.line or number
        row = read_row(number, words, self.columns)
        problem = row if isinstance(row, str) else ""
        if isinstance(row, Row):
            last = self.rows[-1].size if self.rows else 0
            if row.wrong > 1e-2:  # old versions print the largest error instead of a count
                problem = f"the test counted wrong results (#wrong = {row.wrong:g}): its times mean nothing"
            elif 0 < row.size <= last:
                problem = (
                    f"size {row.size:.0f} follows {last:.0f}: expected sizes that go up; two logs mixed?"
                )
            elif not row.size:
                self.note(number, "size 0 (fewer bytes than ranks), left out")
            else:
                self.rows.append(row)
        if problem:
            self.is_bad = True
            self.wrong(number, problem)

    def close(self, *, keep: bool = False) -> None:
        """End a table and turn it into a sweep; `keep` what its run said about devices."""
        run, line, rows, is_bad = self.run, self.line, self.rows, self.is_bad
        self.run = run if keep else _Run(run.program, run.algorithm, run.version)
        self.line, self.columns, self.rows, self.is_bad, self.any_table = 0, [], [], False, True
        if not rows:
            if not is_bad:
                self.wrong(line, "the table has no rows: was the run cut off?")
            return
        primitive = self.primitive_of(run, line, rows)
        ranks = self.ranks_of(run, line, rows, primitive) if primitive else 0
        if not ranks:
            return
        columns = np.array([(row.size, row.time_us * 1e-6, row.in_place_us * 1e-6) for row in rows]).T
        facts = (run.algorithm, ranks, self.nodes or run.hosts(ranks), run.gpu, run.version)
        self.log[0].append(LogSweep(self.file, line, primitive, *facts, *columns))

    def primitive_of(self, run: _Run, line: int, rows: Sequence[Row]) -> str:
        """Return the collective of a table: as given, as the log says, as its name says, by its columns."""
        stem = Path(self.file).stem.lower().replace("-", "_")
        for alias, name in _OTHER_NAMES.items():
            stem = stem.replace(alias, name)
        by_name = [name for name in PROGRAMS if re.search(rf"(?:^|_|\d){name}(?:_|$|\d|\.)", stem)]
        if "reduce" in by_name and len(by_name) > 1:
            by_name.remove("reduce")
        if self.collective:
            return self.collective
        if run.program and run.program not in PROGRAMS:
            self.wrong(line, f"{run.program}_perf is not a collective that can be fitted")
            return ""
        if run.program or len(by_name) == 1:
            return PROGRAMS[run.program or by_name[0]]
        best = max(rows, key=lambda row: row.algbw)
        ratio = best.busbw / best.algbw if best.algbw >= 1.0 and best.redop not in ("", "none") else 1.0
        if ratio > 1.02:
            return "all_reduce"
        # Of two ranks an all-reduce has the ratio of a broadcast.
        if ratio < 0.995 and (self.ranks or run.listed) != 2:
            return "reduce_scatter"
        self.wrong(
            line, "which collective this is cannot be told; name it by --collective or in the file's name"
        )
        return ""

    def ranks_of(self, run: _Run, line: int, rows: Sequence[Row], primitive: str) -> int:
        """Return the ranks of a table, checked against the ratio of its two bandwidths; 0 where they are not known."""
        listed, best = self.ranks or run.listed, max(rows, key=lambda row: row.algbw)
        ratio = best.busbw / best.algbw if best.algbw else 0.0
        if not self.ranks and len(run.devices) < listed:
            abridged = f"the list of devices is abridged ({len(run.devices)} of {listed})"
            self.note(line, f"{abridged}; ranks are the highest and one")
        # Ranks by the ratio: 1 − 1/n of one pass or two, as far as two decimals tell n.
        passes = bus_factor(primitive, np.inf)
        gap = passes - ratio
        by_ratio = (
            passes / gap if best.algbw >= 1.0 and gap > 0 and bus_factor(primitive, 2) < passes else 0.0
        )
        is_whole = abs(by_ratio - round(by_ratio)) < 0.3 and by_ratio > 1.5
        if not is_whole or by_ratio**2 * 0.006 / best.algbw / passes >= 0.3:
            by_ratio = 0.0
        if not listed:
            if not by_ratio:
                self.wrong(
                    rows[0].line,
                    "the number of GPUs cannot be told without the list of devices; give --ranks",
                )
            return round(by_ratio)
        if listed == 1:
            self.wrong(rows[0].line, "one GPU has nobody to talk to; expected a run of two or more")
            return 0
        wanted = bus_factor(primitive, listed)
        if best.algbw <= 1.0 or abs(ratio - wanted) <= 0.01 * wanted + 0.02 / best.algbw:
            return listed
        hint = f", as {round(by_ratio)} ranks have" if by_ratio else ""
        self.wrong(
            best.line,
            f"busbw is {ratio:.4g} times algbw{hint}; {listed} ranks of {primitive} have {wanted:.4g}",
        )
        return 0

    def finish(self) -> Log:
        """End the file."""
        if self.rows or self.columns or self.is_bad:
            self.close()
        if not self.any_table and not self.log[1]:
            self.wrong(
                0, "holds no table of nccl-tests; expected lines of size, count, type, …, time, algbw, busbw"
            )
        sweeps, problems, notes = self.log
        return Log(tuple(sweeps), tuple(problems), tuple(notes))
