"""`costmodel.calibrate`: profiles from your own measurements of collectives and kernels, sites from training steps.

Each function fits, says what is wrong in ``.problems``, and gives the files of a profile that
inherits from a shipped one by ``.files(path)``; a fit with problems gives none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from costmodel.base.answer import Answer, columns_of
from costmodel.base.errors import DataError
from costmodel.describe.hardware.cluster import Accelerator, Cluster
from costmodel.describe.hardware.hardware import ProfilePath, load_accelerator, load_cluster
from costmodel.describe.jobs.job import DEFAULT_CLUSTER
from costmodel.estimates.collective import canonical
from costmodel.estimates.estimate import Estimate
from costmodel.interop.nccl_tests import Log
from costmodel.interop.nccl_tests import read_logs as read_nccl_logs
from costmodel.trust.calibration.calibrated_files import accelerator_text, cluster_texts
from costmodel.trust.calibration.cluster_fit import MAX_ERROR as FABRIC_ERROR
from costmodel.trust.calibration.cluster_fit import ClusterFit, fit_cluster, sweep_run
from costmodel.trust.calibration.kernel_csv import read_timings
from costmodel.trust.calibration.kernel_fits import MAX_ERROR as KERNEL_ERROR
from costmodel.trust.calibration.kernel_fits import KernelResult, fit_kernels
from costmodel.trust.own_runs import given_runs, read_runs
from costmodel.trust.site_fit import RunsCalibration, fit_site
from costmodel.trust.step_times import step_times as step_times

_POINTS = {
    **{name: name for name in ("run", "collective", "ranks", "nodes")},
    **{
        "size": "size_bytes",
        "measured": "measured_time_s",
        "fitted": "fitted_time_s",
        "signed": "relative_error",
    },
}
"""Columns of `ClusterFit.points`, as the record of a fit has them."""


@dataclass(frozen=True, repr=False, kw_only=True)
class Calibration(Answer):
    """What measurements say of a profile."""

    rows: list[dict[str, Any]]  # A record a point or a kernel
    record: dict[str, Any]  # All of it as plain data
    problems: tuple[str, ...] = ()  # Why the fit should not be used, empty if it is sound
    warnings: tuple[str, ...] = ()  # Which measurements it does not give
    texts: Callable[[Path], dict[Path, str]] | None = None

    def columns(self) -> dict[str, list[Any]]:
        """Return a row a point or a kernel."""
        return columns_of(self.rows) if self.rows else {}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {"schema_version": 1, **self.record}

    def files(self, path: str | Path) -> dict[Path, str]:
        """Return the files of the new profile with their texts: what it refers to first, then that at `path`."""
        if self.problems or self.texts is None:
            raise DataError(
                f"calibrate: nothing to write: {next(iter(self.problems), 'no constant was fitted')}"
            )
        return self.texts(Path(path))


@dataclass(frozen=True, repr=False, kw_only=True)
class FabricCalibration(Calibration):
    """A cluster's fabric fitted to sweeps of collectives: the cluster that the fit started from, the sweeps, the fit."""

    cluster: Cluster
    log: Log
    fit: ClusterFit


@dataclass(frozen=True, repr=False, kw_only=True)
class KernelCalibration(Calibration):
    """An accelerator's kernels fitted to timings: the accelerator as its profile had it, and a fitted kernel each."""

    accelerator: Accelerator
    results: tuple[KernelResult, ...]


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
    runs = [sweep_run(sweep, machine) for sweep in log.sweeps]
    fit = fit_cluster(runs, machine, max_error=max_error)
    points: list[Any] = fit.points[[*_POINTS]].rename(columns=_POINTS).to_dict("records")
    tiers = [
        {
            "tier": machine.tiers[index].name,
            "points": fitted.points,
            "mean_relative_error": fitted.residual,
            "constants": {name: one._asdict() for name, one in fitted.confidence.items()},
        }
        for index, fitted in fit.tiers.items()
    ]
    names: dict[int, list[str]] = {}
    for sweep, run in zip(log.sweeps, fit.runs, strict=True):
        names.setdefault(0 if run.network is None else 1, []).append(sweep.file)
    return FabricCalibration(
        cluster=machine,
        log=log,
        fit=fit,
        rows=points,
        record={
            "cluster": machine.name,
            "sound": not fit.problems,
            "problems": list(fit.problems),
            "warnings": list(fit.warnings),
            "tiers": tiers,
            "held_out_error": float(fit.held_out["error"].mean()) if len(fit.held_out) else None,
            "points": points,
        },
        problems=fit.problems,
        warnings=fit.warnings,
        texts=lambda path: cluster_texts(path, cluster, machine, fit.tiers, names, profile_path=profile_path),
    )


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
    results, problems = fit_kernels(timings, device, source, max_error=max_error)
    rows = [{key: value for key, value in one._asdict().items() if key != "block"} for one in results]
    blocks = [{"constants": dict(one.block)} for one in results]
    return KernelCalibration(
        accelerator=device,
        results=tuple(results),
        rows=rows,
        record={"kernels": [row | block for row, block in zip(rows, blocks, strict=True)]},
        problems=tuple(problems),
        texts=lambda path: {
            path: accelerator_text(path, accelerator, device, results, source, profile_path=profile_path)
        },
    )


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
        Tables of runs (.csv), job files with ``measured`` (.yaml), training logs; jobs with what a step took,
        ``"job.yaml=5.21s,61GiB"``, or with their log, ``"job.yaml=train.log"``; or estimates with the seconds of a step,
        by name.
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
        return fit_site(given_runs(measured), progress)
    files = [measured] if isinstance(measured, str | Path) else measured
    return fit_site(read_runs(files, job), progress)
