"""Whole runs side by side: what each takes in time and money, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from costmodel.base.answer import Answer, columns_of
from costmodel.base.errors import CostModelError
from costmodel.base.version import __version__
from costmodel.base.words import common_device
from costmodel.describe.jobs.layout_text import layout_text
from costmodel.estimates.record import SCHEMA_VERSION
from costmodel.what_if.compare import default_labels
from costmodel.whole_run.run import PERCENTILES, TrainingRun

_SPREAD = ("days", "gpu_hours", "energy_kwh", "dollars")


@dataclass(frozen=True)
class Runs(Answer):
    """Whole runs beside each other.

    Attributes
    ----------
    labels : tuple of str
        What each is called.
    runs : tuple of TrainingRun
        The runs.
    """

    labels: tuple[str, ...]
    runs: tuple[TrainingRun, ...]

    @property
    def device_word(self) -> str:
        """What the devices are called where all are called alike."""
        return common_device(run.device_word for run in self.runs)

    def to_dict(self) -> dict[str, Any]:
        """Return a record a run."""
        return {
            "schema_version": SCHEMA_VERSION,
            "version": __version__,
            "runs": [
                {"label": label, **run.to_dict()} for label, run in zip(self.labels, self.runs, strict=True)
            ],
        }

    def columns(self) -> dict[str, list[Any]]:
        """Return a row a run: what it is, and its figures with their percentiles."""
        rows = [_row(label, run) for label, run in zip(self.labels, self.runs, strict=True)]
        return columns_of(rows)


def _row(label: str, run: TrainingRun) -> dict[str, Any]:
    """Return one run as a row."""
    job, spread = run.est.job, run.spread()
    figures: dict[str, Any] = {}
    for name in _SPREAD:
        figures[name] = getattr(run, name)
        for index, percent in enumerate(PERCENTILES):
            figures[f"{name}_p{percent}"] = float(spread[name][index]) if name in spread else None
    return {
        "label": label,
        "model": job.model.name,
        "cluster": job.cluster.name,
        "gpus": int(run.gpus),
        "precision": job.precision.name,
        "layout": layout_text(job.layout),
        "fits": bool(run.est.fits),
        "tokens": run.tokens,
        "step_time_s": run.step_time_s,
        "mfu": float(run.est.mfu),
        **figures,
        "headline_place": run.headline_place,
        "price_usd_per_gpu_hour": run.price_usd_per_gpu_hour,
        "price_note": run.price_note,
        "interruptions": run.interruptions,
        **{
            f"{limit}_{figure}": value
            for limit in ("dollars", "days")
            for figure, value in _kept(run, limit).items()
        },
        "spare_nodes": run.spare_nodes,
    }


def _kept(run: TrainingRun, limit: str) -> dict[str, float | None]:
    """Return what is left of a limit, and how surely it is kept; none where it was not given."""
    found = run.within().get(limit)
    return {
        "limit": None if found is None else found.limit,
        "margin": None if found is None else found.margin,
        "kept_probability": None if found is None else found.probability,
    }


def runs(*priced: TrainingRun, labels: Sequence[str] = ()) -> Runs:
    """Lay whole runs side by side.

    Parameters
    ----------
    *priced : TrainingRun
        Two or more, of `costmodel.run`.
    labels : sequence of str
        What to call them; A, B, C … by default.

    Raises
    ------
    CostModelError
        If there are fewer than two, or not as many labels.

    Examples
    --------
    >>> import costmodel as cm
    >>> job = {"model": "llama3-8b", "gpus": 8, "global_batch": 8, "seq_len": 2048, "tokens": 1e12}
    >>> found = cm.runs(cm.run(**job, tp=2), cm.run(**job, tp=4))
    >>> found.labels, found.columns()["gpus"]
    (('A', 'B'), [8, 8])
    """
    if len(priced) < 2:
        raise CostModelError("runs: one run given, expected two or more")
    names = tuple(labels) or default_labels(len(priced))
    if len(names) != len(priced):
        raise CostModelError(f"runs: {len(priced)} runs given, expected as many labels, got {len(names)}")
    return Runs(names, tuple(priced))
