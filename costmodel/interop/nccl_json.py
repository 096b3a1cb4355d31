"""The JSON that nccl-tests write with ``-J``, as the lines that they print.

Keys of NVIDIA/nccl-tests 0fdb00a3, ``src/util.cu`` (file version 2).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_HEAD = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong"


def lines_of_json(text: str) -> list[str] | None:
    """Return what the tests would have printed; None if the text is no such JSON."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(raw, dict) or not isinstance(raw.get("results"), list):
        return None
    words = raw.get("args")
    program = str(words[0]).rsplit("/", 1)[-1] if isinstance(words, list) and words else ""
    lines = [f"# Collective test starting: {program}"] if program.endswith("_perf") else []
    environment = raw.get("env")
    forced = (
        [str(line) for line in environment if str(line).startswith("NCCL_ALGO=")]
        if isinstance(environment, list)
        else []
    )
    config = raw.get("config")
    devices = config.get("devices") if isinstance(config, dict) else None
    for device in devices if isinstance(devices, list) else []:
        if isinstance(device, dict):
            lines.append(_device(device))
    rows = [row for entry in raw["results"] if isinstance(entry, dict) and (row := _row(entry))]
    return [*lines, *forced, _HEAD, *rows, "# Out of bounds values : 0 OK"]


def _device(entry: Mapping[str, Any]) -> str:
    """Return the line of one GPU."""
    return (
        f"# Rank {entry.get('rank')} Group {entry.get('group', 0)} Pid {entry.get('pid', 0)} on "
        f"{entry.get('hostname')} device {entry.get('device', 0)} [{entry.get('device_hex') or '0x0'}] "
        f"{entry.get('device_info', '')}"
    )


def _row(entry: Mapping[str, Any]) -> str:
    """Return one line of the table, empty if it has no measurement out of place."""
    halves = [entry.get("out_of_place"), entry.get("in_place")]
    if not isinstance(halves[0], dict):
        halves[0] = halves[1]
    cells = [
        entry.get("size"),
        entry.get("count"),
        entry.get("type"),
        entry.get("redop") or "none",
        entry.get("root", -1),
    ]
    for half in halves:
        if not isinstance(half, dict):
            half = halves[0] if isinstance(halves[0], dict) else {}
        wrong = half.get("nwrong")
        cells += [
            half.get("time", half.get("cpu_time")),
            half.get("alg_bw"),
            half.get("bus_bw"),
            "N/A" if wrong is None else wrong,
        ]
    return " ".join(str(cell).strip() for cell in cells) if all(cell is not None for cell in cells) else ""
