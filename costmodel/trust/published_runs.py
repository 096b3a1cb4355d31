"""Published training runs: a row of a table of measurements to a job, cell by cell, and what memory its measure shows.

Columns are those of `tests/published/runs.csv` (documented in `notebooks/02_validation.ipynb`). ``recipe`` names the
recipe, ``switches`` (JSON) what the run set otherwise, ``cluster`` the machine where its accelerator is in one only.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from itertools import dropwhile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodel.base.errors import CostModelError, DataError, choices_hint, shown
from costmodel.bill.lines import Bill, Seen, broadcast_sum
from costmodel.describe.hardware.cluster import Cluster
from costmodel.describe.hardware.hardware import compose_cluster, list_profiles, load_cluster
from costmodel.describe.hardware.slices import default_slice, slice_text
from costmodel.describe.jobs.job import Job, make_job
from costmodel.describe.models.model_families import model_from_dims
from costmodel.interop.text_file import read_text

Row = Mapping[str, str]

REQUIRED_COLUMNS = (
    *("id", "source", "framework", "layers", "hidden", "heads", "vocab", "seq_len", "accelerator", "gpus"),
    *("gpus_per_node", "nvlink_domain", "precision", "recipe", "tp", "pp", "mbs", "gbs"),
)

_SEEN: Mapping[str, tuple[Seen, ...]] = {
    "max_allocated": ("allocated",),
    "max_reserved": ("allocated", "reserved"),
    "nvidia-smi": ("allocated", "reserved", "device"),
    "stated": ("allocated", "reserved"),
    "": ("allocated", "reserved"),
}
"""Lines that a way of measuring memory sees; the empty one is what people state without saying how."""


def seen_by_kind(bill: Bill, memory_kind: str) -> NDArray[np.float64]:
    """Return the peak memory that a way of measuring would show for a bill, worst stage. [B]"""
    if memory_kind not in _SEEN:
        raise CostModelError(f"memory_kind: {memory_kind!r} is unknown; {choices_hint(memory_kind, _SEEN)}")
    lines = [line.bytes for line in bill.memory_lines if line.seen in _SEEN[memory_kind]]
    return np.asarray(broadcast_sum(lines).max(axis=-1))


def shipped_runs() -> Path:
    """Return the table of published runs that comes with the package, or lies in the checkout."""
    packaged = Path(str(files("costmodel") / "published_runs.csv"))
    return packaged if packaged.is_file() else Path(__file__).parents[2] / "tests" / "published" / "runs.csv"


def read_rows(path: str | Path) -> list[dict[str, str]]:
    """Read a table of published runs."""
    return [row for _, row in read_table(path, REQUIRED_COLUMNS)[1]]


def read_table(
    path: str | Path, needed: Sequence[str] = ()
) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Return the columns of a table (.csv, .tsv), below lines that begin with ``#``, and its rows with their lines."""
    try:
        text = read_text(path).text
    except CostModelError as error:
        raise DataError(str(error)) from None
    lines = io.StringIO(text.replace("\r\n", "\n").replace("\r", "\n"))
    reader = csv.reader(lines, delimiter="\t" if Path(path).suffix.lower() == ".tsv" else ",")
    try:
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except csv.Error as error:
        raise DataError(f"{path}: line {reader.line_num}: cannot read the table ({error})") from None
    below = dropwhile(lambda row: row[1][0].startswith("#"), rows)
    _, columns = next(below, (0, []))
    rows = list(below)
    missing = [name for name in needed if name not in columns]
    if missing:
        raise DataError(f"{path}: the table lacks the column {missing[0]!r} (needed: {', '.join(needed)})")
    if not rows:
        raise DataError(f"{path}: no rows below the header")
    for number, row in rows:
        if len(row) != len(columns):
            raise DataError(f"{path}: line {number}: has {len(row)} cells, expected {len(columns)}")
    return columns, [(number, dict(zip(columns, row, strict=True))) for number, row in rows]


def job_of_row(row: Row) -> Job:
    """Return the job that a published run describes."""
    if not row.get("recipe"):
        raise CostModelError("recipe is not given; costmodel recipe list has all")
    gpus, tp = _integer(row, "gpus"), _integer(row, "tp")
    cluster = _cluster_of_row(row, gpus)
    torus = cluster.tiers[0] if cluster.tiers[0].shape else None
    sp = row.get("sp")
    return make_job(
        model=model_from_dims(**row),
        cluster=cluster,
        slice=slice_text(default_slice(torus, min(_integer(row, "nvlink_domain", gpus), gpus)))
        if torus
        else None,
        gpus=gpus,
        tp=tp,
        pp=_integer(row, "pp"),
        cp=_integer(row, "cp", 1),
        vp=_integer(row, "vp", 1),
        ep=_integer(row, "ep", 1),
        etp=_integer(row, "etp", tp),
        micro_batch=_integer(row, "mbs"),
        global_batch=_integer(row, "gbs"),
        seq_len=_integer(row, "seq_len"),
        zero_stage=_integer(row, "zero_stage", 1),
        shard_group=_integer(row, "shard_group", 0),
        sequence_parallel=(sp == "true") if sp else None,
        schedule=row.get("schedule") or None,
        recompute=row.get("recompute") or "none",
        precision=row["precision"],
        recipe=row["recipe"],
        switches=_json_mapping(row.get("switches")),
        pipeline_layout=row.get("pp_layout") or None,
        check=False,
    )


def _integer(row: Row, column: str, default: int | None = None) -> int:
    """Return a whole number of the row, or the default where the cell is empty."""
    text = row.get(column) or ""
    if not text:
        if default is None:
            raise CostModelError(f"{column} is not given")
        return default
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        raise CostModelError(f"{column}: expected a whole number, got {text!r}") from None


def _json_mapping(text: str | None) -> dict[str, Any]:
    try:
        switches = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise CostModelError(f"switches: not JSON ({error})") from None
    if not isinstance(switches, dict):
        raise CostModelError(f"switches: expected names and values in braces, got {shown(switches)}")
    return switches


def _cluster_of_row(row: Row, gpus: int) -> Cluster:
    """Return the named machine, that of an accelerator which comes in pods, or one composed of what the row says."""
    name = row.get("cluster") or row["accelerator"]
    if row.get("cluster") or name in list_profiles("cluster"):
        return load_cluster(name)
    per_node, domain = _integer(row, "gpus_per_node"), _integer(row, "nvlink_domain")
    nic_gbit, network = row.get("nic_gbit_per_gpu") or "", row.get("network") or ""
    # A job inside one NVLink domain needs no network.
    inside = gpus <= max(per_node, domain)
    if not inside and not nic_gbit:
        raise CostModelError("nic_gbit_per_gpu is not given and the run spans nodes")
    kind = "none" if inside else (network if network not in ("", "none") else "ib")
    return _composed(name, min(per_node, gpus), min(domain, gpus), float(nic_gbit or 0) * 1e9 / 8, kind, gpus)


_composed = lru_cache(maxsize=512)(compose_cluster)
