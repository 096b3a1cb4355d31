"""``costmodel calibrate``: profiles from your own measurements."""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from costmodel.cli import options as opt
from costmodel.cli.job_options import takes_output
from costmodel.cli.output import Target
from costmodel.cli.texts import command_group

app = command_group("Profiles from your own measurements: collectives, kernels, training steps.")

FABRIC_EPILOG = """\b
Examples:
  costmodel calibrate fabric all_reduce.log all_gather.log --cluster h100-ndr --write my-cluster.yaml
  costmodel calibrate fabric logs/*.log --cluster my-cluster.yaml --plot fit.png
  costmodel estimate -m llama3-8b -c my-cluster.yaml -n 64 -l "tp2" --global-batch 512 --seq-len 8192

"""


def refuse(problems: Iterable[object], quiet_end: str = "") -> None:
    """Print what is wrong in one line, and exit with code 2 if anything is."""
    from costmodel.base.errors import one_line

    wrong = [one_line(str(problem)) for problem in problems]
    if wrong:
        print(one_line(f"Error: {'; '.join([*wrong, quiet_end] if quiet_end else wrong)}"), file=sys.stderr)
        raise typer.Exit(2)


@app.command("fabric", epilog=FABRIC_EPILOG)
@takes_output()
def fabric(
    output: Mapping[str, Any],
    logs: Annotated[
        list[Path], typer.Argument(metavar="LOG…", help="What nccl-tests or rccl-tests printed.")
    ],
    cluster: opt.ClusterOption = None,
    write: Annotated[
        str,
        typer.Option(
            "--write", "-w", metavar="FILE.yaml", help="Write the new cluster here, its links beside it."
        ),
    ] = "",
    collective: Annotated[
        str, typer.Option("--collective", help="What was run, where neither log nor file name says.")
    ] = "",
    ranks: Annotated[
        int, typer.Option("--ranks", help="GPUs of each run, where the log does not list them.")
    ] = 0,
    nodes: Annotated[int, typer.Option("--nodes", help="Nodes of each run, where the log does not say.")] = 0,
    in_place: Annotated[bool, typer.Option("--in-place", help="Fit the in-place times instead.")] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad-lines", help="Report lines that are wrong, and fit without them.")
    ] = False,
    max_error: Annotated[
        float, typer.Option("--max-error", help="Mean relative error above which nothing is written.")
    ] = 0.2,
    plot: Annotated[str, typer.Option("--plot", metavar="FILE", help="Draw measured against fitted.")] = "",
    profiles: opt.ProfilesOption = None,
) -> None:
    """Fit a cluster's fabric to nccl-tests logs; write it as a profile that inherits from a shipped one."""
    import costmodel as cm
    from costmodel.cli.output import answer_result, plan_output, show
    from costmodel.cli.pictures import planned_figure

    target = plan_output(**output)
    draw = planned_figure("FabricCalibration", plot, "", force=output["force"])
    path = _profile_file(write, output["force"]) if write else None
    log = cm.calibrate.read_logs(logs, collective=collective, ranks=ranks, nodes=nodes)
    if not target.quiet:
        for note in log.notes:
            print(f"Note: {note}", file=sys.stderr)
    if skip_bad:
        for problem in log.problems:
            print(f"Warning: {problem}", file=sys.stderr)
    else:
        refuse(log.problems)
    found = cm.calibrate.fabric(
        log,
        cluster=cluster or cm.DEFAULT_CLUSTER,
        in_place=in_place,
        skip_bad_lines=skip_bad,
        max_error=max_error,
        profile_path=profiles,
    )
    show(answer_result(found), target)
    draw(found.plot, target)
    if not target.quiet:
        for warning in found.warnings:
            print(f"Warning: {warning}", file=sys.stderr)
    refuse(found.problems, "Nothing was written." if path else "")
    if path is not None:
        _write_files(found.files(path), output["force"], target)


def _write_files(texts: Mapping[Path, str], force: bool, target: Target) -> None:
    """Write the files of a profile, all or none."""
    from costmodel.cli.output import write_file

    for file in texts:
        _profile_file(str(file), force)
    for file, text in texts.items():
        write_file(file, text, target)


def _profile_file(name: str, force: bool) -> Path:
    """Check a profile's file as `plan_output` checks results."""
    from costmodel.base.errors import CostModelError
    from costmodel.cli.output import plan_output

    if not name.endswith(".yaml"):
        raise CostModelError(f"{name}: expected a file that ends in .yaml")
    path = plan_output(None, name, force=force).out
    assert path is not None
    return path


KERNELS_EPILOG = """\b
Examples:
  costmodel calibrate kernels matmul.csv attention.csv memory.csv --accelerator h200 --write my-h200.yaml
  costmodel measure matmul --out matmul.csv
"""


@app.command("kernels", epilog=KERNELS_EPILOG)
@takes_output()
def kernels(
    output: Mapping[str, Any],
    tables: Annotated[
        list[Path],
        typer.Argument(
            metavar="CSV…",
            help="Timings: m,n,k,dtype or batch,seq_len,heads,head_dim,op or bytes; and time_us or tflops.",
        ),
    ],
    accelerator: Annotated[
        str, typer.Option("--accelerator", "-a", help="Accelerator that was measured: profile or file.")
    ],
    write: Annotated[
        str, typer.Option("--write", "-w", metavar="FILE.yaml", help="Write the new accelerator here.")
    ] = "",
    max_error: Annotated[
        float, typer.Option("--max-error", help="Held-out mean error above which nothing is written.")
    ] = 0.15,
    profiles: opt.ProfilesOption = None,
) -> None:
    """Fit an accelerator's kernels to timings; write it as a profile that inherits from a shipped one."""
    import costmodel as cm
    from costmodel.cli.output import answer_result, plan_output, show

    target = plan_output(**output)
    path = _profile_file(write, output["force"]) if write else None
    found = cm.calibrate.kernels(tables, accelerator=accelerator, max_error=max_error, profile_path=profiles)
    if found.results:
        show(answer_result(found), target)
    refuse(found.problems, "Nothing was written." if path else "")
    if path is not None:
        _write_files(found.files(path), output["force"], target)


STEPS_EPILOG = """\b
Examples:
  costmodel calibrate steps job.yaml=5.21s
  costmodel calibrate steps a.yaml=5.21s,61GiB b.yaml=3.4s --overhead
  costmodel calibrate steps job.yaml=train.log
"""


@app.command("steps", epilog=STEPS_EPILOG)
@takes_output()
def steps(
    output: Mapping[str, Any],
    measured: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB.yaml=TIME[,MEMORY]…", help="Job files with what a step took, or with a training log."
        ),
    ],
    overhead: Annotated[
        bool,
        typer.Option("--overhead", help="Also print the constant that fits best, to add to your estimates."),
    ] = False,
) -> None:
    """Compare measured training steps with the model, and say which part could explain the difference."""
    import costmodel as cm
    from costmodel.cli.output import answer_result, plan_output, show

    target = plan_output(**output)
    show(answer_result(cm.calibrate.steps(measured, overhead=overhead)), target)


RUNS_EPILOG = """\b
Examples:
  costmodel calibrate runs mine.csv --write site.yaml
  costmodel calibrate runs train.log --job job.yaml
  costmodel calibrate runs a.yaml b.yaml --write site.yaml && costmodel plan job.yaml --site site.yaml
"""


@app.command("runs", epilog=RUNS_EPILOG)
@takes_output()
def runs(
    output: Mapping[str, Any],
    measured: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE…",
            help="Tables of runs (.csv), job files with `measured` (.yaml), or training logs.",
        ),
    ],
    job: Annotated[
        str,
        typer.Option(
            "--job", metavar="JOB.yaml", help="Job of the logs; fields that the rows of a table leave out."
        ),
    ] = "",
    write: Annotated[
        str, typer.Option("--write", "-w", metavar="FILE.yaml", help="Write the site file for --site here.")
    ] = "",
) -> None:
    """Learn from your own runs how far the model's constants are off, and how sure that is.

    Each row is a job with its step time, with memory if it is known; one is enough. Factors are updated
    under their shipped spreads, so that a bad row does not bend them; rows that do not fit are named. The
    site file that is written narrows --site where the runs speak, and nowhere else.
    """
    import costmodel as cm
    from costmodel.cli.job_options import merged_job
    from costmodel.cli.output import answer_result, plan_output, show
    from costmodel.cli.plan_input import waiting

    target = plan_output(**output)
    path = _profile_file(write, output["force"]) if write else None
    base = merged_job({}, job, complete=False) if job else None
    with waiting("pricing runs", quiet=target.quiet) as progress:
        found = cm.calibrate.runs(measured, job=base, progress=progress)
    files = found.files(path) if path is not None else {}
    show(answer_result(found), target)
    if files:
        _write_files(files, output["force"], target)
