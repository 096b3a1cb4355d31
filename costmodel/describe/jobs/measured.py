"""What was measured of a job, as job files and tables of own runs say it."""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.base.errors import CostModelError, DataError, near_hint, shown
from costmodel.base.units import read_quantity

TIME = ("step_time", "step_time_s", "measured_step_time_s")
MEMORY = ("memory", "peak_memory_gib", "measured_memory_bytes")
MEMORY_KINDS = ("max_allocated", "max_reserved", "nvidia-smi", "stated", "")
"""Ways of measuring memory, those of `costmodel.trust.memory_kinds`."""


def read_measured(said: object, where: str) -> tuple[float, float, str]:
    """Return step time, memory and how it was measured; nan for what was not. [s], [B]"""
    if not isinstance(said, Mapping) or not said:
        raise DataError(
            f"{where}: measured: expected what was measured, such as {{step_time: 5.2s, memory: 61GiB}}"
        )
    for key in said:
        if key not in (*TIME, *MEMORY, "memory_kind"):
            raise DataError(
                f"{where}: measured: {shown(key)} is unknown; expected step_time, memory, memory_kind"
            )
    try:
        found = measured_of({str(key): str(value) for key, value in said.items()})
    except CostModelError as error:
        raise DataError(f"{where}: measured: {error}") from None
    if not {*said} & {*TIME, *MEMORY}:
        raise DataError(f"{where}: measured: expected step_time or memory")
    return found


def measured_of(row: Mapping[str, str]) -> tuple[float, float, str]:
    """Return step time, memory and how it was measured of a row's texts; a bare number is in the column's unit. [s], [B]"""
    time_s, memory = (
        next((_positive(key, row[key], unit) for key in keys if key in row), float("nan"))
        for keys, unit in ((TIME, "s"), (MEMORY, "B"))
    )
    kind = row.get("memory_kind", "")
    if kind not in MEMORY_KINDS:
        hint = near_hint(kind, MEMORY_KINDS) or f"expected {', '.join(filter(None, MEMORY_KINDS))}"
        raise DataError(f"memory_kind: {shown(kind)} is unknown; {hint}")
    is_gib = "memory" not in row and "peak_memory_gib" in row
    return time_s, memory * (2.0**30 if is_gib else 1.0), kind


def _positive(key: str, text: str, unit: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = read_quantity(key, text, unit)
    if not 0 < value < 1e18:
        raise DataError(f"{key}: expected more than 0, got {shown(text)}")
    return value
