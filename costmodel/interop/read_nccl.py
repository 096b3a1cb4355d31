"""Logs of nccl-tests as an answer of `costmodel.interop.reading`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from costmodel.interop.framework import FrameworkConfigError, Imported
from costmodel.interop.nccl_tests import LogSweep, read_log_text
from costmodel.interop.text_file import TextFile


def read(file: TextFile, given: Mapping[str, Any]) -> Imported:
    """Read the sweeps of a log; `given` says ``collective``, ``ranks`` and ``nodes`` where it does not.

    Raises
    ------
    FrameworkConfigError
        If it holds no sweep, with what is wrong first.
    """
    log = read_log_text(
        file.text,
        Path(file.name).name,
        collective=given.get("collective") or "",
        ranks=given.get("ranks") or 0,
        nodes=given.get("nodes") or 0,
    )
    if not log.sweeps:
        more = f" (and {len(log.problems) - 1} more)" if len(log.problems) > 1 else ""
        raise FrameworkConfigError(f"{log.problems[0]}{more}" if log.problems else "holds no sweep")
    return Imported(
        {},
        notes=tuple(str(note) for note in log.notes[:5]),
        warnings=tuple(str(problem) for problem in log.problems[:10]),
        sweeps=tuple(_plain(sweep) for sweep in log.sweeps),
    )


def _plain(sweep: LogSweep) -> dict[str, Any]:
    """Return a sweep as plain values."""
    return {
        "primitive": sweep.primitive,
        "algorithm": sweep.algorithm,
        "ranks": sweep.ranks,
        "nodes": sweep.nodes,
        "gpu": sweep.gpu,
        "version": sweep.version,
        "sizes": [int(size) for size in sweep.size_bytes],
        "time_s": [float(time) for time in sweep.time_s],
    }
