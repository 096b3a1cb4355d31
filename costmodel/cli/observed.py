"""What machines did, ``costmodel observed``: profiles of own measurements, and ``measure`` of this machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import typer

from costmodel.base.errors import CostModelError, one_line
from costmodel.cli.collective import parse_sizes
from costmodel.cli.command import command, command_group, merged_job
from costmodel.cli.group import Command
from costmodel.cli.inspection import profile
from costmodel.cli.output import Target, planned_figure, waiting
from costmodel.cli.whole import watch

observed = command_group("observed")
measure = command_group("measure", "Measure kernels and collectives of this machine (needs torch and a GPU).")
calibrate = command_group(
    "calibrate", "Profiles from your own measurements: collectives, kernels, training steps."
)
observed.add_typer(measure, name="measure")
observed.add_typer(calibrate, name="calibrate")
for _called, _function in (("profile", profile), ("watch", watch)):
    observed.command(_called, cls=Command, epilog=_function.epilog)(_function)  # type: ignore[attr-defined]


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
    costmodel observed calibrate fabric all_reduce.log all_gather.log --cluster h100-ndr --write my-cluster.yaml
    costmodel observed calibrate fabric logs/*.log --cluster my-cluster.yaml --plot fit.png
    costmodel estimate -m llama3-8b -c my-cluster.yaml -n 64 -l "tp2" --global-batch 512 --seq-len 8192
    """,
    group=calibrate,
    name="fabric",
    uses="cluster profiles",
)
def fabric(target: Target, options: Any) -> None:
    """Fit a cluster's fabric to nccl-tests logs; write it as a profile that inherits from a shipped one."""
    import costmodel as cm

    draw = planned_figure("FabricCalibration", options.plot, target)
    path = _profile_file(options.write, target)
    log = cm.calibrate.read_logs(
        options.logs, collective=options.collective, ranks=options.ranks, nodes=options.nodes
    )
    for note in log.notes:
        target.note(f"Note: {note}")
    if not options.skip_bad:
        _refuse(log.problems)
    for problem in log.problems:
        typer.echo(one_line(f"Warning: {problem}"), err=True)
    found = cm.calibrate.fabric(
        log,
        cluster=options.cluster or cm.DEFAULT_CLUSTER,
        skip_bad_lines=options.skip_bad,
        max_error=options.max_error,
        profile_path=options.profiles,
    )
    target.show(found)
    draw(found)
    for warning in found.warnings:
        target.note(f"Warning: {warning}")
    _refuse(found.problems, "Nothing was written." if path else "")
    _write_files(found, path, target)


@command(
    """
    costmodel observed calibrate kernels matmul.csv attention.csv memory.csv --accelerator h200 --write my-h200.yaml
    costmodel observed measure matmul --out matmul.csv
    """,
    group=calibrate,
    name="kernels",
    uses="profiles",
)
def kernels(target: Target, options: Any) -> None:
    """Fit an accelerator's kernels to timings; write it as a profile that inherits from a shipped one."""
    import costmodel as cm

    path = _profile_file(options.write, target)
    found = cm.calibrate.kernels(
        options.tables,
        accelerator=options.accelerator,
        max_error=options.max_error,
        profile_path=options.profiles,
    )
    if found.results:
        target.show(found)
    _refuse(found.problems, "Nothing was written." if path else "")
    _write_files(found, path, target)


@command(
    """
    costmodel observed calibrate runs mine.csv --write site.yaml
    costmodel observed calibrate runs job.yaml=5.21s,61GiB
    costmodel observed calibrate runs job.yaml=train.log
    costmodel observed calibrate runs a.yaml b.yaml --write site.yaml && costmodel plan job.yaml --site site.yaml
    """,
    group=calibrate,
    name="runs",
)
def runs(target: Target, options: Any) -> None:
    """Learn from your own runs how far the model's constants are off, and how sure that is.

    Each row is a job with its step time, with memory if it is known; one is enough. Factors are updated
    under their shipped spreads, so that a bad row does not bend them; rows that do not fit are named. The
    site file that is written narrows --site where the runs speak, and nowhere else.
    """
    import costmodel as cm

    path = _profile_file(options.write, target)
    base = merged_job({"note": target.note}, options.job) if options.job else None
    with waiting("pricing runs", quiet=target.quiet) as progress:
        found = cm.calibrate.runs(options.measured, job=base, progress=progress)
    target.show(found)
    _write_files(found, path, target)


# --- measuring ---

_FILES = ("out", "force", "quiet")


def _kernels(what: str, target: Target, options: Any, dtypes: Sequence[str] = ("bf16",)) -> None:
    import costmodel as cm

    about = {"device": options.device, "small": options.small}
    with waiting(f"measuring {what}", quiet=target.quiet) as progress:
        target.put(cm.measure.kernels(what, dtypes=dtypes, progress=progress, **about))


@command(
    "costmodel observed measure matmul --dtypes bf16,fp8 --out matmul.csv",
    group=measure,
    name="matmul",
    output=_FILES,
    uses="device small",
)
def matmul(target: Target, options: Any) -> None:
    """Time the matrix products of transformer layers."""
    _kernels("matmul", target, options, [dtype.strip() for dtype in options.dtypes.split(",")])


@command(group=measure, name="attention", output=_FILES, uses="device small")
def attention(target: Target, options: Any) -> None:
    """Time fused attention, forward and backward, with and without a causal mask."""
    _kernels("attention", target, options)


@command(group=measure, name="memory", output=_FILES, uses="device small")
def memory(target: Target, options: Any) -> None:
    """Time copies on the device, which the memory's bandwidth bounds."""
    _kernels("memory", target, options)


@command(
    "torchrun --nproc-per-node 8 -m costmodel observed measure collectives --sizes 1KiB:4GiB --out sweep.log",
    group=measure,
    name="collectives",
    output=_FILES,
    uses="device",
)
def collectives(target: Target, options: Any) -> None:
    """Time collectives over torch.distributed and print them as nccl-tests does."""
    import costmodel as cm

    span = parse_sizes(options.sizes)
    with waiting("measuring collectives", quiet=target.quiet) as progress:
        text = cm.measure.collectives(
            options.names.split(","),
            low_bytes=span[0],
            high_bytes=span[-1],
            device=options.device,
            progress=progress,
        )
    if text:  # of rank 0
        target.put(text)
