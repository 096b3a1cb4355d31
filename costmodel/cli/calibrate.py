"""``costmodel calibrate``: profiles from your own measurements."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

from costmodel.base.errors import CostModelError, one_line
from costmodel.cli import options as opt
from costmodel.cli.command import command, command_group, merged_job
from costmodel.cli.output import Target, planned_figure, waiting

calibrate = command_group("calibrate")


def _write_option(what: str) -> Any:
    return typer.Option("", "--write", "-w", metavar="FILE.yaml", help=what)


def _refuse(problems: Iterable[object], end: str = "") -> None:
    """Print what is wrong in one line, and exit with code 2 if anything is."""
    wrong = [one_line(str(problem)) for problem in problems]
    if wrong:
        typer.echo(one_line(f"Error: {'; '.join([*wrong, end] if end else wrong)}"), err=True)
        raise typer.Exit(2)


def _profile_file(name: str, target: Target) -> Path | None:
    """Check a profile's file; none where none is named."""
    if name and not name.endswith(".yaml"):
        raise CostModelError(f"{name}: expected a file that ends in .yaml")
    return target.file(name)


def _write_files(found: Any, path: Path | None, target: Target) -> None:
    """Write the files of a profile, all or none."""
    texts = found.files(path) if path is not None else {}
    for file in texts:
        _profile_file(str(file), target)
    for file, text in texts.items():
        target.write(file, text)


@command(
    """
    costmodel calibrate fabric all_reduce.log all_gather.log --cluster h100-ndr --write my-cluster.yaml
    costmodel calibrate fabric logs/*.log --cluster my-cluster.yaml --plot fit.png
    costmodel estimate -m llama3-8b -c my-cluster.yaml -n 64 -l "tp2" --global-batch 512 --seq-len 8192
    """,
    group=calibrate,
    name="fabric",
)
def fabric(
    target: Target,
    logs: list[Path] = typer.Argument(..., metavar="LOG…", help="What nccl-tests or rccl-tests printed."),
    cluster: str | None = opt.CLUSTER,
    write: str = _write_option("Write the new cluster here, its links beside it."),
    collective: str = typer.Option(
        "", "--collective", help="What was run, where neither log nor file name says."
    ),
    ranks: int = typer.Option(0, "--ranks", help="GPUs of each run, where the log does not list them."),
    nodes: int = typer.Option(0, "--nodes", help="Nodes of each run, where the log does not say."),
    in_place: bool = typer.Option(False, "--in-place", help="Fit the in-place times instead."),
    skip_bad: bool = typer.Option(
        False, "--skip-bad-lines", help="Report lines that are wrong, and fit without them."
    ),
    max_error: float = typer.Option(
        0.2, "--max-error", help="Mean relative error above which nothing is written."
    ),
    plot: str = typer.Option("", "--plot", metavar="FILE", help="Draw measured against fitted."),
    profiles: list[Path] | None = opt.PROFILES,
) -> None:
    """Fit a cluster's fabric to nccl-tests logs; write it as a profile that inherits from a shipped one."""
    import costmodel as cm

    draw = planned_figure("FabricCalibration", plot, target)
    path = _profile_file(write, target)
    log = cm.calibrate.read_logs(logs, collective=collective, ranks=ranks, nodes=nodes)
    for note in log.notes:
        target.note(f"Note: {note}")
    if not skip_bad:
        _refuse(log.problems)
    for problem in log.problems:
        typer.echo(f"Warning: {problem}", err=True)
    found = cm.calibrate.fabric(
        log,
        cluster=cluster or cm.DEFAULT_CLUSTER,
        in_place=in_place,
        skip_bad_lines=skip_bad,
        max_error=max_error,
        profile_path=profiles,
    )
    target.show(found)
    draw(found)
    for warning in found.warnings:
        target.note(f"Warning: {warning}")
    _refuse(found.problems, "Nothing was written." if path else "")
    _write_files(found, path, target)


@command(
    """
    costmodel calibrate kernels matmul.csv attention.csv memory.csv --accelerator h200 --write my-h200.yaml
    costmodel measure matmul --out matmul.csv
    """,
    group=calibrate,
    name="kernels",
)
def kernels(
    target: Target,
    tables: list[Path] = typer.Argument(
        ...,
        metavar="CSV…",
        help="Timings: m,n,k,dtype or batch,seq_len,heads,head_dim,op or bytes; and time_us or tflops.",
    ),
    accelerator: str = typer.Option(
        ..., "--accelerator", "-a", help="Accelerator that was measured: profile or file."
    ),
    write: str = _write_option("Write the new accelerator here."),
    max_error: float = typer.Option(
        0.15, "--max-error", help="Held-out mean error above which nothing is written."
    ),
    profiles: list[Path] | None = opt.PROFILES,
) -> None:
    """Fit an accelerator's kernels to timings; write it as a profile that inherits from a shipped one."""
    import costmodel as cm

    path = _profile_file(write, target)
    found = cm.calibrate.kernels(tables, accelerator=accelerator, max_error=max_error, profile_path=profiles)
    if found.results:
        target.show(found)
    _refuse(found.problems, "Nothing was written." if path else "")
    _write_files(found, path, target)


@command(
    """
    costmodel calibrate steps job.yaml=5.21s
    costmodel calibrate steps a.yaml=5.21s,61GiB b.yaml=3.4s --overhead
    costmodel calibrate steps job.yaml=train.log
    """,
    group=calibrate,
    name="steps",
)
def steps(
    measured: list[str] = typer.Argument(
        ...,
        metavar="JOB.yaml=TIME[,MEMORY]…",
        help="Job files with what a step took, or with a training log.",
    ),
    overhead: bool = typer.Option(
        False, "--overhead", help="Also print the constant that fits best, to add to your estimates."
    ),
) -> Any:
    """Compare measured training steps with the model, and say which part could explain the difference."""
    import costmodel as cm

    return cm.calibrate.steps(measured, overhead=overhead)


@command(
    """
    costmodel calibrate runs mine.csv --write site.yaml
    costmodel calibrate runs train.log --job job.yaml
    costmodel calibrate runs a.yaml b.yaml --write site.yaml && costmodel plan job.yaml --site site.yaml
    """,
    group=calibrate,
    name="runs",
)
def runs(
    target: Target,
    measured: list[str] = typer.Argument(
        ...,
        metavar="FILE…",
        help="Tables of runs (.csv), job files with `measured` (.yaml), or training logs.",
    ),
    job: str = typer.Option(
        "", "--job", metavar="JOB.yaml", help="Job of the logs; fields that the rows of a table leave out."
    ),
    write: str = _write_option("Write the site file for --site here."),
) -> None:
    """Learn from your own runs how far the model's constants are off, and how sure that is.

    Each row is a job with its step time, with memory if it is known; one is enough. Factors are updated
    under their shipped spreads, so that a bad row does not bend them; rows that do not fit are named. The
    site file that is written narrows --site where the runs speak, and nowhere else.
    """
    import costmodel as cm

    path = _profile_file(write, target)
    base = merged_job({}, job, complete=False) if job else None
    with waiting("pricing runs", quiet=target.quiet) as progress:
        found = cm.calibrate.runs(measured, job=base, progress=progress)
    target.show(found)
    _write_files(found, path, target)
