"""Logs of nccl-tests and rccl-tests (``all_reduce_perf`` … ``sendrecv_perf``) read into sweeps.

A log is what the tests print, with or without the ``#`` lines, in whatever noise a launcher adds
(MPI prefixes, NCCL INFO). Each line of a table must hold together: size over time must be the
bandwidth printed beside it, and the ratio of the two bandwidths must be that of the collective and
the number of ranks. What does not is reported by file and line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from costmodel.base.errors import CostModelError
from costmodel.interop.nccl_rows import (
    NUMBER,
    Row,
    bus_factor,
    guess_primitive,
    lines_of_json,
    looks_like_row,
    ranks_by_ratio,
    read_row,
)
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
_RANK_LINE = re.compile(
    r"^#\s*Rank\s+(\d+)(?:\s+Group\s+\d+)?\s+Pid\s+\d+ on\s+(\S+)\s+device\s+(\d+)\s+\[\w[\w:.]*\]\s*(.*)$"
)
_TIMESTAMP = re.compile(r"\s+\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$")
_SAME_NAME = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "all_to_all": "alltoall",
    "all2all": "alltoall",
    "send_recv": "sendrecv",
}
_STARTING = re.compile(r"Collective test starting:\s*(\S+?)_perf")
_PROGRAM = re.compile(r"\b(\w+)_perf\b")
_FORCED = re.compile(r"NCCL_ALGO[=\s]+(?:set by environment to\s+)?\"?(\w+)")
_VERSION = re.compile(r"(?:nccl-library=(\d+)|(?:NCCL|RCCL) version[ :]+(\S+))")
_FAILED = re.compile(r"Test (?:NCCL|CUDA|HIP|RCCL) failure|NCCL WARN|Segmentation fault|Aborted \(core", re.I)
_FORCED_NAMES = {"ring": "ring", "tree": "tree", "nvls": "nvls", "nvlstree": "nvls-tree"}


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

    sweeps: tuple[LogSweep, ...]
    problems: tuple[LogProblem, ...]
    notes: tuple[LogProblem, ...]


def _joined(logs: Sequence[Log]) -> Log:
    """Return several logs as one."""
    return Log(*(tuple(item for part in parts for item in part) for parts in zip(*logs, strict=True)))


@dataclass
class _Table:
    """A table while it is read."""

    line: int = 0
    program: str = ""
    algorithm: str = "auto"
    version: str = ""
    hosts: dict[int, str] = field(default_factory=dict)
    devices: dict[int, int] = field(default_factory=dict)
    gpu: str = ""
    columns: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    bad_rows: int = 0


def read_logs(paths: Iterable[str | Path], *, collective: str = "", ranks: int = 0, nodes: int = 0) -> Log:
    """Read several logs; see `read_log`."""
    logs = [read_log(path, collective=collective, ranks=ranks, nodes=nodes) for path in paths]
    return _joined([*logs, Log((), (), ())])


def read_log(path: str | Path, *, collective: str = "", ranks: int = 0, nodes: int = 0) -> Log:
    """Read one log: a file that cannot be read is a problem, too.

    The collective that ran, GPUs and hosts are given where neither the log nor its name says.
    """
    file = Path(path).name
    try:
        text = read_text(path).text
    except CostModelError as error:
        message = str(error).removeprefix(f"{shown(str(path))}: ")
        return Log((), (LogProblem(str(path), 0, message),), ())
    return read_log_text(text, file, collective=collective, ranks=ranks, nodes=nodes)


def read_log_text(text: str, file: str, *, collective: str = "", ranks: int = 0, nodes: int = 0) -> Log:
    """Read the text of one log, or the JSON that the tests write with ``-J``; see `read_log`."""
    streams = _streams(text)
    if text.lstrip().startswith("{"):
        lines = lines_of_json(text)
        if lines is None:
            return Log((), (LogProblem(file, 0, "is JSON, but not what nccl-tests write with -J"),), ())
        streams = {"": list(enumerate(lines, start=1))}
    logs = []
    for name, numbered in streams.items():
        if name and not any(_tells(line) for _, line in numbered):
            continue
        reader = _Reader(file, collective, ranks, nodes)
        for number, line in numbered:
            reader.take(number, line)
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
        both = sorted(line for lines in found.values() for line in lines)
        return {"": both}
    return found


def _tells(line: str) -> bool:
    """Whether a line is a row of a table or its head."""
    return looks_like_row(line.split()) or bool(re.match(r"^\s*#\s+size\s+count\b", line))


class _Reader:
    """Goes through a log line by line."""

    def __init__(self, file: str, collective: str, ranks: int, nodes: int) -> None:
        self.file, self.collective, self.ranks, self.nodes = file, collective, ranks, nodes
        self.sweeps: list[LogSweep] = []
        self.problems: list[LogProblem] = []
        self.notes: list[LogProblem] = []
        self.table = _Table()
        self.tables = 0

    def wrong(self, line: int, text: str) -> None:
        """Keep a problem."""
        self.problems.append(LogProblem(self.file, line, text))

    def note(self, line: int, text: str) -> None:
        """Keep what is worth knowing."""
        self.notes.append(LogProblem(self.file, line, text))

    def take(self, number: int, raw: str) -> None:
        """Read one line."""
        line = _TIMESTAMP.sub("", raw.strip())
        if _FAILED.search(line):
            self.wrong(number, f"the test failed: {line[:80]}")
            return
        if forced := _FORCED.search(line):
            self.table.algorithm = _FORCED_NAMES.get(forced[1].lower(), "auto")
        if version := _VERSION.search(line):
            self.table.version = version[1] or version[2]
        if line.startswith("#"):
            self.comment(number, line)
            return
        words = line.split()
        if len(words) >= 2 and NUMBER.match(words[0]) and ":" not in words[0]:
            if self.table.columns or looks_like_row(words):
                self.row(number, words)
        elif len(words) == 1 and self.table.columns and NUMBER.match(words[0]):
            self.row(number, words)
        elif not self.table.rows:
            self.program(line)

    def program(self, line: str) -> None:
        """Note the test program that a command line names."""
        for word in _PROGRAM.findall(line):
            if word in PROGRAMS or word in _UNPRICED:
                self.table.program = word

    def comment(self, number: int, line: str) -> None:
        """Read a ``#`` line: the start of a run, a device, the head of a table, or noise."""
        started = _STARTING.search(line)
        device = _RANK_LINE.match(line)
        if line.replace(":", "").startswith("# nThread") or started:
            if self.table.rows or self.table.columns:
                self.close()
            if started:
                self.table.program = started[1]
        elif device:
            if self.table.rows:
                self.close()
            self.table.hosts[min(int(device[1][:12]), MOST_RANKS)] = device[2]
            self.table.devices[int(device[1])] = int(device[3])
            self.table.gpu = device[4].strip()
        elif re.match(r"^#\s+size\s+count\b", line):
            if self.table.rows:
                self.close(keep=True)
            self.table.columns = line.lstrip("# ").split()
            self.table.line = number
        elif re.match(r"^#\s*(?:Out of bounds|Avg bus)", line):
            if self.table.rows:
                self.close()
        elif re.match(r"^#\s*\(\w+\)\s+\(elements\)", line):
            units = re.findall(r"\(([^)]*)\)", line)
            odd = [unit for unit in units if unit not in ("B", "elements", "us", "GB/s")]
            if odd:
                self.wrong(number, f"expected the units (B), (elements), (us) and (GB/s); got ({odd[0]})")
        elif not self.table.rows:
            self.program(line)

    def row(self, number: int, words: list[str]) -> None:
        """Read one line of a table."""
        table = self.table
        table.line = table.line or number
        row = read_row(number, words, table.columns)
        problem = row if isinstance(row, str) else _place_problem(row, table.rows)
        if problem:
            table.bad_rows += 1
            self.wrong(number, problem)
        elif isinstance(row, Row) and row.size:
            table.rows.append(row)
        else:
            self.note(number, "size 0 (fewer bytes than ranks), left out")

    def close(self, *, keep: bool = False) -> None:
        """End a table and turn it into a sweep; `keep` what its run said about devices."""
        table = self.table
        self.table = replace(table, line=0, columns=[], rows=[], bad_rows=0)
        if not keep:
            self.table = replace(self.table, hosts={}, devices={}, gpu="")
        self.tables += 1
        if not table.rows:
            if not table.bad_rows:
                self.wrong(table.line, "the table has no rows: was the run cut off?")
            return
        primitive = self.primitive_of(table)
        if not primitive:
            return
        if count := self.ranks_of(table, primitive):
            rows = table.rows
            sweep = LogSweep(
                self.file,
                table.line,
                primitive,
                table.algorithm,
                count,
                self.nodes or _hosts_of(table, count),
                table.gpu,
                table.version,
                np.array([row.size for row in rows]),
                np.array([row.time_us for row in rows]) * 1e-6,
                np.array([row.in_place_us for row in rows]) * 1e-6,
            )
            self.sweeps.append(sweep)

    def primitive_of(self, table: _Table) -> str:
        """Return the collective of a table: as given, as the log says, as its name says, by its columns."""
        stem = Path(self.file).stem.lower().replace("-", "_")
        for alias, name in _SAME_NAME.items():
            stem = stem.replace(alias, name)
        by_name = [name for name in PROGRAMS if re.search(rf"(?:^|_|\d){name}(?:_|$|\d|\.)", stem)]
        if "reduce" in by_name and len(by_name) > 1:
            by_name.remove("reduce")
        if self.collective:
            return self.collective
        if table.program in PROGRAMS:
            return PROGRAMS[table.program]
        if table.program:
            self.wrong(table.line, f"{table.program}_perf is not a collective that can be fitted")
            return ""
        if len(by_name) == 1:
            return PROGRAMS[by_name[0]]
        found = guess_primitive(table.rows, self.ranks or _listed(table))
        if not found:
            self.wrong(
                table.line,
                "which collective this is cannot be told; name it by --collective or in the file's name",
            )
        return found

    def ranks_of(self, table: _Table, primitive: str) -> int:
        """Return the ranks of a table, checked against the ratio of its two bandwidths."""
        listed = self.ranks or _listed(table)
        if not self.ranks and len(table.hosts) < listed:
            abridged = f"the list of devices is abridged ({len(table.hosts)} of {listed})"
            self.note(table.line, f"{abridged}; ranks are the highest and one")
        line, last = table.rows[0].line, max(table.rows, key=lambda row: row.algbw)
        told = ranks_by_ratio(primitive, table.rows)
        if not listed:
            if told is None:
                self.wrong(
                    line, "the number of GPUs cannot be told without the list of devices; give --ranks"
                )
            return told or 0
        if listed == 1:
            self.wrong(line, "one GPU has nobody to talk to; expected a run of two or more")
            return 0
        wanted = bus_factor(primitive, listed)
        if last.algbw <= 1.0 or abs(last.busbw / last.algbw - wanted) <= 0.01 * wanted + 0.02 / last.algbw:
            return listed
        hint = f", as {told} ranks have" if told else ""
        self.wrong(
            last.line,
            f"busbw is {last.busbw / last.algbw:.4g} times algbw{hint}; {listed} ranks of {primitive} "
            f"have {wanted:.4g}",
        )
        return 0

    def finish(self) -> Log:
        """End the file."""
        if self.table.rows or self.table.columns or self.table.bad_rows:
            self.close()
        if not self.tables and not self.problems:
            self.wrong(
                0, "holds no table of nccl-tests; expected lines of size, count, type, …, time, algbw, busbw"
            )
        return Log(tuple(self.sweeps), tuple(self.problems), tuple(self.notes))


def _listed(table: _Table) -> int:
    """Return the ranks that a list of devices tells, also one that its author abridged."""
    return max(table.hosts, default=-1) + 1


def _hosts_of(table: _Table, ranks: int) -> int:
    """Return the hosts of a run: those listed or, of an abridged list, ranks over devices of one."""
    seen = len(set(table.hosts.values()))
    each = max(table.devices.values(), default=0) + 1
    abridged = 0 < len(table.hosts) < ranks
    return ranks // each if abridged and ranks % each == 0 else seen


def _place_problem(row: Row, before: Sequence[Row]) -> str:
    """Say what is wrong with a row among the rows before it."""
    if row.wrong > 1e-2:  # old versions print the largest error instead of a count
        return f"the test counted wrong results (#wrong = {row.wrong:g}): its times mean nothing"
    if before and 0 < row.size <= before[-1].size:
        return (
            f"size {row.size:.0f} follows {before[-1].size:.0f}: expected sizes that go up; two logs mixed?"
        )
    return ""
