"""Published runs against the model: price every row, compare, and say how far off it is where.

A row that cannot be priced is kept with its reason. Errors are relative, (predicted - measured) /
measured; the summary gives them by source, accelerator and axis, and for sweeps also how well the
model ranks the layouts that were measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from costmodel.base.answer import Answer
from costmodel.base.errors import CostModelError, shown
from costmodel.base.words import plural
from costmodel.describe.hardware.hardware import load_accelerator
from costmodel.estimates.estimate import estimate_job
from costmodel.trust.published_runs import Row, job_of_row, read_rows, seen_by_kind, shipped_runs
from costmodel.trust.shares import fitted_runs, left_out_errors, source_family

GROUPINGS = ("class", "family", "source", "accelerator", "axis")
"""What a summary can be by: class is dense or mixture of experts, generation and bits of the products; family
are tables of one framework (`source_family`)."""

_BITS = {"fp32": 32, "fp16": 16, "bf16": 16, "nvfp4": 4, "mxfp4": 4}
"""Bits of the products by precision; the others have 8."""

_ONE_JOB = ("source", "model", "gpus", "global_batch")  # What layouts of one job share

LEAST_LAYOUTS = 6  # Layouts of one job that are ranked
LEAST_FAMILIES = 5  # Families of sources that a table needs for shares that leave one of them out

RESULT_COLUMNS = (
    "id",
    "measured_step_time_s",
    "predicted_step_time_s",
    "measured_peak_memory_gib",
    "predicted_peak_memory_gib",
    "oom",
    "predicted_fits",
    "skipped_reason",
)
PREDICTED = (
    "predicted_step_time_s",
    # As the run's way of measuring would show it; and all that has to fit.
    "predicted_peak_memory_gib",
    "predicted_need_gib",
    # Of the step what nothing explains, and what that is a share of.
    "predicted_unexplained_s",
    "predicted_shared_s",
    "predicted_fits",
)
RUN_COLUMNS = (
    *("id", "source", "accelerator", "framework", "recipe", "model", "num_experts", "gpus", "global_batch"),
    *("parallelism", "precision", "layout", "use", "quality", "measured_step_time_s"),
    *("measured_peak_memory_gib", "oom", *PREDICTED, "skipped_reason"),
)
"""Columns of `Validation.runs`; a number is None where a side has no value."""

_NUMBERS = (
    *("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "seq_len", "q_lora_rank"),
    *("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "num_experts", "top_k"),
    *("expert_ffn", "shared_expert_ffn", "first_dense_layers", "moe_layer_freq", "mtp_layers", "gpus"),
    *("gpus_per_node", "nvlink_domain", "nic_gbit_per_gpu", "tp", "pp", "vp", "cp", "ep", "etp", "dp"),
    *("zero_stage", "shard_group", "mbs", "gbs", "year", "step_time_s", "peak_memory_gib"),
)
"""Columns of numbers, which may be empty."""


def _number(row: Row, column: str) -> float | None:
    """Return the number in a cell, None where there is none that could be meant."""
    try:
        number = float(row.get(column) or "nan")
    except ValueError:
        return None
    return number if 0 <= number <= 1e12 else None


def price_row(row: Row) -> dict[str, Any]:
    """Price one published run, in `RUN_COLUMNS`; one that cannot be priced carries the reason."""
    predicted: dict[str, Any] = dict.fromkeys(PREDICTED)
    wrong = (name for name in _NUMBERS if row.get(name) and _number(row, name) is None)
    reason = next((f"{name}: expected a number, got {shown(row[name])}" for name in wrong), "")
    try:
        if not reason:
            predicted = _predicted(row)
    except CostModelError as error:
        reason = str(error)
    layout = ("tp", "pp", "vp", "cp", "ep", "mbs", "gbs", "seq_len", "zero_stage", "recompute", "switches")
    axes = [axis for axis in ("tp", "pp", "vp", "cp", "ep") if (_number(row, axis) or 1) > 1]
    axes += ["fsdp"] if row.get("zero_stage") == "3" else []
    return {
        **{name: row[name] for name in ("id", "source", "accelerator", "framework", "precision")},
        "recipe": row.get("recipe") or "",
        "model": row.get("model", ""),
        "num_experts": int(_number(row, "num_experts") or 0),
        "gpus": int(_number(row, "gpus") or 0),
        "global_batch": int(_number(row, "gbs") or 0),
        "parallelism": "+".join(axes) or "dp only",
        # What two runs of a layout share: degrees, batch and knobs.
        "layout": " ".join(f"{name}{row.get(name) or ''}" for name in layout),
        "use": row.get("use") or "time",
        "quality": row.get("quality") or "A",
        "measured_step_time_s": _number(row, "step_time_s"),
        "measured_peak_memory_gib": _number(row, "peak_memory_gib"),
        "oom": row.get("oom") == "true",
        **predicted,
        "skipped_reason": reason,
    }


def _predicted(row: Row) -> dict[str, Any]:
    """Return what the model says of a run."""
    est = estimate_job(job_of_row(row))
    step_s = float(est.step_time_s)
    if not np.isfinite(step_s) or step_s <= 0:
        raise CostModelError(f"the model gives no usable step time ({step_s})")
    line = next(one for one in est.bill.time_lines if one.name == "overhead.unexplained")
    return {
        "predicted_step_time_s": step_s,
        "predicted_peak_memory_gib": float(seen_by_kind(est.bill, row.get("memory_kind") or "")) / 2**30,
        "predicted_need_gib": float(est.memory_bytes_per_gpu) / 2**30,
        "predicted_unexplained_s": float(line.exposed_seconds),
        "predicted_shared_s": float(np.subtract(line.terms["known_s"], line.terms["attention_s"])),
        "predicted_fits": bool(est.fits),
    }


def validate(
    source: str | Path | Iterable[Row] | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Validation:
    """Price every run of a table but those whose `use` is ``none``.

    Parameters
    ----------
    source : path or rows, optional
        A CSV in the columns of `tests/published/runs.csv`, or its rows; the shipped runs if none is given.
    progress : callable, optional
        Called with rows priced and rows in all.

    Raises
    ------
    DataError
        If the table cannot be read.
    """
    source = shipped_runs() if source is None else source
    rows = read_rows(source) if isinstance(source, str | Path) else list(source)
    runs = []
    for done, row in enumerate(rows, start=1):
        if row.get("use") != "none":
            runs.append(price_row(row))
        if progress is not None:
            progress(done, len(rows))
    return Validation(pd.DataFrame(runs, columns=list(RUN_COLUMNS)))


class Validation(Answer):
    """The compared runs as a frame (`runs`), and their summaries."""

    def __init__(self, runs: pd.DataFrame) -> None:
        self.runs = runs.assign(
            time_error=_relative(runs.predicted_step_time_s, runs.measured_step_time_s).where(
                runs.use.str.contains("time")
            ),
            memory_error=_relative(runs.predicted_peak_memory_gib, runs.measured_peak_memory_gib).where(
                runs.use.str.contains("memory")
            ),
        )

    @property
    def judged(self) -> pd.DataFrame:
        """Rows of quality A or B."""
        return self.runs[self.runs.quality.isin(["A", "B"])]

    def columns(self) -> dict[str, list[Any]]:
        """Return a row per run in the columns of `RESULT_COLUMNS`."""
        return {name: self.runs[name].tolist() for name in RESULT_COLUMNS}

    @property
    def skipped(self) -> list[str]:
        """A sentence for every reason why rows were left out."""
        reasons = self.runs.skipped_reason[self.runs.skipped_reason != ""].value_counts()
        return [f"skipped {plural(count, 'row')}: {reason}" for reason, count in reasons.items()]

    def to_dict(self) -> dict[str, Any]:
        """Return the summaries as plain numbers, absent ones as None."""

        def table(frame: pd.DataFrame) -> list[dict[str, Any]]:
            return [{str(k): _plain(v) for k, v in row.items()} for row in frame.to_dict("records")]

        return {
            "schema_version": 1,
            "time": {
                "all": table(self.summary()),
                "cells": table(self.cells()),
                **{by: table(self.summary(by)) for by in GROUPINGS},
            },
            "memory": {
                "all": table(self.summary(of="memory")),
                "source": table(self.summary("source", of="memory")),
            },
            "out_of_memory": {key: _plain(value) for key, value in self.out_of_memory().items()},
            "sweeps": table(self.sweeps()),
            "skipped": self.skipped,
        }

    def summary(self, by: str | None = None, *, of: str = "time") -> pd.DataFrame:
        """Return rows, skipped, median, mean, p90 of the absolute error and the bias, in percent."""
        judged = self.judged
        scored = judged[judged.use.str.contains(of)]
        if by == "axis":
            scored = scored.assign(axis=scored.parallelism.str.split("+")).explode("axis")
        if by == "family":
            scored = scored.assign(family=scored.source.map(source_family))
        if by == "class":
            scored = scored.assign(**{"class": run_classes(scored)})
        return _table(by or "rows", [("all", scored)] if by is None else scored.groupby(by), f"{of}_error")

    @cached_property
    def left_out_errors(self) -> pd.Series[float]:
        """Errors of step times with shares of what nothing explains that the run's family of sources did not fit."""
        runs = self._timed
        if runs.source.map(source_family).nunique() < LEAST_FAMILIES:
            return pd.Series(dtype=float)
        return left_out_errors(fitted_runs(runs))

    @property
    def _timed(self) -> pd.DataFrame:
        """Rows of quality A or B with a time on both sides."""
        return self.judged.dropna(subset=["time_error"])

    def cells(self) -> pd.DataFrame:
        """Return the figures of `summary` by quality, A or B, as shipped and with the family of sources left out of the fit."""
        fitted = self._timed
        left = fitted.assign(time_error=self.left_out_errors)
        groups = [
            (f"{quality}, {name}", group)
            for name, frame in (("as shipped", fitted), ("source left out", left))
            for quality, group in frame.groupby("quality")
            if group.time_error.notna().any()
        ]
        return _table("quality", groups, "time_error")

    def out_of_memory(self) -> dict[str, float]:
        """Return how well `fits` tells runs that ran out of memory from runs that did not."""
        known = self.runs[self.runs.predicted_fits.notna()]
        known = known[known.oom | known.use.str.contains("time|memory")]
        oom, predicted = known.oom.astype(bool), ~known.predicted_fits.astype(bool)
        hits = int((oom & predicted).sum())
        return {
            "rows": len(known),
            "oom_rows": int(oom.sum()),
            "right": float((oom == predicted).mean()) if len(known) else float("nan"),
            "precision": hits / max(int(predicted.sum()), 1),
            "recall": hits / max(int(oom.sum()), 1),
        }

    def sweeps(self) -> pd.DataFrame:
        """Return rank correlation and regret for every group of `LEAST_LAYOUTS` or more layouts of one job."""
        found = []
        for key, group in self._timed.groupby(list(_ONE_JOB)):
            if len(group) >= LEAST_LAYOUTS:
                measured, predicted = group.measured_step_time_s, group.predicted_step_time_s
                regret = float(measured.iloc[int(predicted.argmin())]) / float(measured.min()) - 1.0
                spearman = float(measured.rank().corr(predicted.rank()))
                found.append((*key, len(group), spearman, regret))
        return pd.DataFrame(found, columns=[*_ONE_JOB, "layouts", "spearman", "regret"])


def run_classes(runs: pd.DataFrame) -> pd.Series[str]:
    """Return dense or moe, generation and bits of the products of every run: `moe blackwell 8-bit`."""
    # By what the name means: a table's names may be the aliases of ours.
    priced = set(runs.accelerator[runs.skipped_reason == ""])
    known = {name: load_accelerator(name).generation for name in priced}
    named = [
        f"{'moe' if experts else 'dense'} {known.get(accelerator, 'unknown')} {_BITS.get(precision, 8)}-bit"
        for experts, accelerator, precision in zip(
            runs.num_experts, runs.accelerator, runs.precision, strict=True
        )
    ]
    return pd.Series(named, index=runs.index, dtype=object)


def _plain(value: Any) -> Any:
    """Return a number that JSON has."""
    if isinstance(value, float) and math.isnan(value):
        return None
    return value.item() if hasattr(value, "item") else value


def _relative(predicted: pd.Series[float], measured: pd.Series[float]) -> pd.Series[float]:
    """Return (predicted - measured) / measured, NaN where a side is missing."""
    return (predicted.astype(float) - measured.astype(float)) / measured.astype(float)


def _table(by: str, groups: Iterable[tuple[Any, pd.DataFrame]], column: str) -> pd.DataFrame:
    """Return the figures of groups of runs, a row each."""
    rows = []
    for name, group in groups:
        error = group[column].dropna()
        size = error.abs()
        percent = (size.median(), size.mean(), size.quantile(0.9), error.mean())
        skipped = int((group.skipped_reason != "").sum())
        rows.append((name, len(group), skipped, *(100 * float(value) for value in percent)))
    return pd.DataFrame(rows, columns=[by, "runs", "skipped", "median_%", "mean_%", "p90_%", "bias_%"])
