"""`costmodel.calibrate`: profiles from your own measurements of collectives, kernels and training steps.

Each function fits, says what is wrong in ``.problems``, and gives the files of a profile that
inherits from a shipped one by ``.files(path)``; a fit with problems gives none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from costmodel.base.answer import Answer, columns_of, rows_of
from costmodel.base.errors import DataError
from costmodel.base.units import read_quantity
from costmodel.describe.hardware.cluster import Accelerator, Cluster
from costmodel.describe.hardware.hardware import ProfilePath, load_accelerator, load_cluster
from costmodel.describe.jobs.job import DEFAULT_CLUSTER
from costmodel.describe.jobs.merge import read_job
from costmodel.estimates.collective import canonical
from costmodel.estimates.estimate import Estimate, estimate
from costmodel.interop.nccl_tests import Log
from costmodel.interop.nccl_tests import read_logs as read_nccl_logs
from costmodel.trust.calibration.calibrated_files import accelerator_text, cluster_texts
from costmodel.trust.calibration.cluster_fit import MAX_ERROR as FABRIC_ERROR
from costmodel.trust.calibration.cluster_fit import ClusterFit, fit_cluster, price_run, sweep_run
from costmodel.trust.calibration.kernel_csv import read_timings
from costmodel.trust.calibration.kernel_fits import MAX_ERROR as KERNEL_ERROR
from costmodel.trust.calibration.kernel_fits import KernelResult, fit_kernels
from costmodel.trust.own_runs import OwnRun, logged, read_runs
from costmodel.trust.site_fit import RunsCalibration, fit_site
from costmodel.trust.step_times import step_times as step_times

_LOG_ENDINGS = (".log", ".out", ".txt", ".gz", ".err")
_DEVICE = "nvidia-smi"
"""How memory that is given beside a step time is taken to be measured."""


def _records(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows as JSON has them: none for a number that is none."""
    return [
        {
            key: None if isinstance(value, float) and not np.isfinite(value) else value
            for key, value in row.items()
        }
        for row in rows
    ]


def _refuse(problems: Sequence[object]) -> None:
    """Refuse to write what should not be used."""
    if problems:
        raise DataError(f"calibrate: nothing to write: {problems[0]}")


@dataclass(frozen=True, repr=False)
class FabricCalibration(Answer):
    """A cluster's fabric fitted to sweeps of collectives.

    Attributes
    ----------
    cluster : Cluster
        That the fit started from.
    base : str
        What it goes by: name or file.
    log : Log
        What was read, with notes and lines that could not be read.
    fit : ClusterFit
        Fitted tiers, errors, held-out errors.
    """

    cluster: Cluster
    base: str
    log: Log
    fit: ClusterFit
    profile_path: ProfilePath = None

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the fit should not be used; empty if it is sound."""
        return self.fit.problems

    @property
    def warnings(self) -> tuple[str, ...]:
        """Which sweeps' large messages it does not give."""
        return self.fit.warnings

    def columns(self) -> dict[str, list[Any]]:
        """Return a row a point: measured and fitted times."""
        rows = [
            {
                "run": run.name,
                "collective": run.primitive,
                "ranks": int(run.group.ranks),
                "nodes": int(run.nodes),
                "size_bytes": float(size),
                "measured_time_s": float(measured),
                "fitted_time_s": float(fitted),
                "relative_error": float(fitted / measured - 1.0),
            }
            for run in self.fit.runs
            for size, measured, fitted in zip(
                run.size_bytes, run.time_s, price_run(run, self.cluster.tiers, self.fit.tiers), strict=True
            )
        ]
        return columns_of(rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the fit as plain data."""
        fit = self.fit
        return {
            "schema_version": 1,
            "cluster": self.cluster.name,
            "sound": not fit.problems,
            "problems": list(fit.problems),
            "warnings": list(fit.warnings),
            "tiers": [
                {
                    "tier": self.cluster.tiers[index].name,
                    "points": fitted.points,
                    "mean_relative_error": fitted.residual,
                    "constants": {name: one._asdict() for name, one in fitted.confidence.items()},
                }
                for index, fitted in fit.tiers.items()
            ],
            "held_out_error": float(fit.held_out["error"].mean()) if len(fit.held_out) else None,
            "lines": _records([line._asdict() for line in fit.lines]),
            "points": rows_of(self.columns()),
        }

    def files(self, path: str | Path) -> dict[Path, str]:
        """Return the files of the new profile with their texts: links first, then the cluster at `path`."""
        _refuse(self.problems)
        names: dict[int, list[str]] = {}
        for sweep, run in zip(self.log.sweeps, self.fit.runs, strict=True):
            names.setdefault(0 if run.network is None else 1, []).append(sweep.file)
        return cluster_texts(
            Path(path), self.base, self.cluster, self.fit.tiers, names, profile_path=self.profile_path
        )


def read_logs(logs: Sequence[str | Path], *, collective: str = "", ranks: int = 0, nodes: int = 0) -> Log:
    """Read what nccl-tests or rccl-tests printed.

    Parameters
    ----------
    logs : sequence of path
        Files.
    collective, ranks, nodes
        What was run, where neither log nor file name says; 0 and empty to read it. [-]

    Returns
    -------
    Log
        Sweeps, lines that cannot be read (``.problems``), and what is worth knowing (``.notes``).
    """
    known = canonical(collective) if collective else ""
    return read_nccl_logs(logs, collective=known, ranks=ranks, nodes=nodes)


def fabric(
    logs: Sequence[str | Path] | Log,
    *,
    cluster: str = DEFAULT_CLUSTER,
    in_place: bool = False,
    skip_bad_lines: bool = False,
    max_error: float = FABRIC_ERROR,
    profile_path: ProfilePath = None,
) -> FabricCalibration:
    """Fit a cluster's fabric to nccl-tests logs.

    Parameters
    ----------
    logs : sequence of path, or Log
        What nccl-tests or rccl-tests printed: files, or what `read_logs` made of them.
    cluster : str
        Name or file of the profile to start from.
    in_place : bool
        Fit the in-place times instead.
    skip_bad_lines : bool
        Fit without lines that cannot be read.
    max_error : float
        Mean relative error above which the fit should not be used. [-]
    profile_path : path, optional
        Folders of profiles of your own.
    """
    machine = load_cluster(cluster, profile_path=profile_path)
    log = logs if isinstance(logs, Log) else read_logs(logs)
    if log.problems and not skip_bad_lines:
        raise DataError(str(log.problems[0]))
    runs = [sweep_run(sweep, machine, in_place=in_place) for sweep in log.sweeps]
    return FabricCalibration(
        machine, cluster, log, fit_cluster(runs, machine, max_error=max_error), profile_path
    )


@dataclass(frozen=True, repr=False)
class KernelCalibration(Answer):
    """An accelerator's kernels fitted to timings.

    Attributes
    ----------
    accelerator : Accelerator
        That was measured, as its profile had it.
    base : str
        What it goes by: name or file.
    source : str
        The tables.
    results : tuple of KernelResult
        A fitted kernel each.
    problems : tuple of str
        Why some should not be used; empty if all are sound.
    """

    accelerator: Accelerator
    base: str
    source: str
    results: tuple[KernelResult, ...]
    problems: tuple[str, ...]
    profile_path: ProfilePath = None

    def columns(self) -> dict[str, list[Any]]:
        """Return a row a fitted kernel."""
        return {
            "section": [one.section for one in self.results],
            "name": [one.name for one in self.results],
            "points": [one.points for one in self.results],
            "error_before": [one.before for one in self.results],
            "held_out_error": [one.held_out_error for one in self.results],
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the fitted kernels and their constants."""
        rows = _records(rows_of(self.columns()))
        constants = [{"constants": dict(one.block)} for one in self.results]
        return {
            "schema_version": 1,
            "kernels": [row | block for row, block in zip(rows, constants, strict=True)],
        }

    def files(self, path: str | Path) -> dict[Path, str]:
        """Return the file of the new accelerator with its text."""
        _refuse(self.problems)
        text = accelerator_text(
            Path(path),
            self.base,
            self.accelerator,
            self.results,
            self.source,
            profile_path=self.profile_path,
        )
        return {Path(path): text}


def kernels(
    tables: Sequence[str | Path],
    *,
    accelerator: str,
    max_error: float = KERNEL_ERROR,
    profile_path: ProfilePath = None,
) -> KernelCalibration:
    """Fit an accelerator's kernels to timings.

    Parameters
    ----------
    tables : sequence of path
        CSV files of products, attention or copies, as `costmodel observed measure` writes them.
    accelerator : str
        Name or file of the accelerator that was measured.
    max_error : float
        Held-out mean error above which a fit should not be used. [-]
    profile_path : path, optional
        Folders of profiles of your own.
    """
    device = load_accelerator(accelerator, profile_path=profile_path)
    paths = [Path(table) for table in tables]
    timings = read_timings(paths, device.peak_flops_per_s)
    source = ", ".join(path.name for path in paths)
    if timings.problems:
        problems = tuple(str(problem) for problem in timings.problems)
        return KernelCalibration(device, accelerator, source, (), problems, profile_path)
    results, wrong = fit_kernels(timings, device, source, max_error=max_error)
    return KernelCalibration(device, accelerator, source, tuple(results), tuple(wrong), profile_path)


class PartFactor(NamedTuple):
    """One part of the step, and the factor on it alone that brings the model closest to what was measured."""

    part: str  # Where time is paid, or ``constant`` for a time added to every step
    share: float  # Of the model's step times. [-]
    factor: float  # On the part; seconds for ``constant``
    error_left: float  # Mean relative error of all steps with it. [-]
    # Whether the part would change by less than half or double, a constant be a fifth of a step
    plausible: bool


def part_factors(steps: Sequence[OwnRun]) -> list[PartFactor]:
    """Return what each part alone could explain, the best plausible one first: one that explains a step may miss the next."""
    model = np.array([float(step.est.step_time_s) for step in steps])
    measured = np.array([step.time_s for step in steps])
    parts: dict[str, Any] = {}
    for index, step in enumerate(steps):
        for category, seconds in step.est.exposed_by("category").items():
            parts.setdefault(category, np.zeros(len(steps)))[index] = float(seconds)
    parts = {part: seconds for part, seconds in parts.items() if seconds.sum() >= 1e-3 * model.sum()}
    found = []
    for part, seconds in {**parts, "constant": np.ones(len(steps))}.items():
        # Least squares on relative errors: how many times the part must be added.
        weight = seconds / measured
        more = float(np.sum(weight * (measured - model) / measured) / np.sum(weight * weight))
        if part == "constant":
            share, factor, plausible = float("nan"), more, abs(more) <= 0.2 * float(measured.min())
        else:
            share, factor = float(seconds.sum() / model.sum()), max(1.0 + more, 0.0)
            plausible, more = 0.5 <= factor <= 2.0, factor - 1.0
        error = float(np.abs((model + more * seconds) / measured - 1.0).mean())
        found.append(PartFactor(part, share, factor, error, plausible))
    return sorted(found, key=lambda one: (not one.plausible, one.error_left))


@dataclass(frozen=True, repr=False)
class StepCalibration(Answer):
    """Measured training steps against the model, and which part could explain the difference.

    Attributes
    ----------
    steps : tuple of OwnRun
        Jobs with what their steps took.
    parts : tuple of PartFactor
        What each part alone could explain, the best plausible one first.
    """

    steps: tuple[OwnRun, ...]
    parts: tuple[PartFactor, ...]

    def columns(self) -> dict[str, list[Any]]:
        """Return a row a step."""
        model = [float(step.est.step_time_s) for step in self.steps]
        return {
            "job": [step.name for step in self.steps],
            "measured_step_time_s": [step.time_s for step in self.steps],
            "step_time_s": model,
            "relative_error": [ours / step.time_s - 1 for ours, step in zip(model, self.steps, strict=True)],
            "measured_memory_bytes": [step.memory_bytes for step in self.steps],
            "memory_bytes_per_gpu": [step.model_memory_bytes for step in self.steps],
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "schema_version": 1,
            "steps": _records(rows_of(self.columns())),
            "explanations": _records([one._asdict() for one in self.parts]),
        }


def steps(
    measured: Sequence[str] | Mapping[str, tuple[Estimate, float]], *, overhead: bool = False
) -> StepCalibration:
    """Compare measured training steps with the model, and say which part could explain the difference.

    Parameters
    ----------
    measured : sequence of str, or mapping
        Job files with what a step took, ``"job.yaml=5.21s,61GiB"``, or with the log of their training,
        ``"job.yaml=train.log"``; or estimates with the seconds of a step, by name.
    overhead : bool
        Also try a constant that is added to every step.
    """
    found = _given(measured) if isinstance(measured, Mapping) else [_measured(text) for text in measured]
    parts = tuple(one for one in part_factors(found) if overhead or one.part != "constant")
    return StepCalibration(tuple(found), parts)


def _given(measured: Mapping[str, tuple[Estimate, float]]) -> list[OwnRun]:
    """Return estimates with the seconds of a step as runs."""
    for name, (_, time_s) in measured.items():
        if not time_s > 0:
            raise DataError(f"{name}: step time: expected more than 0 s")
    return [OwnRun(name, est, float(time_s), memory_kind=_DEVICE) for name, (est, time_s) in measured.items()]


def _measured(text: str) -> OwnRun:
    """Read ``job.yaml=5.21s,61GiB``, or ``job.yaml=train.log``."""
    name, _, rest = text.rpartition("=")
    path, (time, _, memory) = Path(name), rest.partition(",")
    if not time or not path.name:
        raise DataError(f"{text}: expected a job and its step time or its log, such as job.yaml=5.21s")
    if Path(time).suffix in _LOG_ENDINGS or Path(time).is_file():
        return logged(path.stem, estimate(**read_job(path)), Path(time))
    time_s = read_quantity("step time", time, "s")
    if not 1e-6 <= time_s <= 1e7:
        raise DataError(f"{text}: step time: expected 1 us to 10,000,000 s")
    memory_bytes = read_quantity("memory", memory, "B") if memory else float("nan")
    if memory_bytes <= 0:
        raise DataError(f"{text}: memory: expected more than 0 B")
    return OwnRun(path.stem, estimate(**read_job(path)), time_s, memory_bytes, _DEVICE)


def runs(
    measured: Sequence[str | Path] | str | Path | Mapping[str, tuple[Estimate, float]],
    *,
    job: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RunsCalibration:
    """Learn from measured runs how far the model's constants are off at a site.

    Parameters
    ----------
    measured : sequence of path, or mapping
        Tables of runs (.csv), job files with ``measured`` (.yaml), training logs; or estimates with the seconds of
        a step, by name.
    job : mapping, optional
        Fields of a job below those of every row, and the job of every log.
    progress : callable, optional
        Called with runs priced and runs in all, in every round.

    Returns
    -------
    RunsCalibration
        Factors before and after, errors of each run left out, runs that do not fit; ``.site`` goes into
        ``cm.estimate(site=...)``, ``.files(path)`` is the file for ``--site``.

    Raises
    ------
    CostModelError
        If a file, a row or a field cannot be read.
    """
    if isinstance(measured, Mapping):
        return fit_site(_given(measured), progress)
    files = [measured] if isinstance(measured, str | Path) else measured
    return fit_site(read_runs(files, job), progress)
