"""``costmodel profile``: a real step, class by class, and beside the bill."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from costmodel.cli import options as opt
from costmodel.cli.job_options import merged_job, takes_job

EPILOG = """\b
Examples:
  costmodel profile trace.json.gz                  # PyTorch profiler
  costmodel profile report.sqlite                  # nsys export --type sqlite report.nsys-rep
  costmodel profile trace.json.gz --job job.yaml --plot beside.png
  costmodel profile trace.json.gz --job job.yaml --write site.yaml
  costmodel profile trace.json.gz --job job.yaml --set attention_kernel=flash3 --format json
"""


@takes_job()
def profile(
    given: Mapping[str, Any],
    *,
    trace: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE",
            help="Trace of the PyTorch profiler (JSON, also gzipped), or SQLite export of Nsight Systems.",
            show_default=False,
        ),
    ],
    job: Annotated[
        str, typer.Option("--job", metavar="JOB.yaml", help="Job that ran; flags go on top of it.")
    ] = "",
    device: Annotated[
        int | None, typer.Option("--device", help="Which GPU of the trace.  [default: the one that did most]")
    ] = None,
    step_range: Annotated[
        str,
        typer.Option(
            "--step-range",
            metavar="TEXT",
            help="What the names of ranges that are steps begin with.  [default: ProfilerStep#3, iteration 3 …]",
        ),
    ] = "",
    write: Annotated[
        str,
        typer.Option(
            "--write",
            "-w",
            metavar="FILE.yaml",
            help="Write what it says of the model's factors, for --site.",
        ),
    ] = "",
    plot: opt.PlotOption = "",
    figure: Annotated[
        str,
        typer.Option(
            "--figure", help="Which: classes or beside.  [default: beside with a job, else classes]"
        ),
    ] = "",
    output: Mapping[str, Any],
) -> None:
    """Add up a profiler's trace of real steps: by class, stream and step, and beside the bill of a job.

    A job, by --job or by its flags, is laid beside it group by group, the largest difference first. Kernels are told
    by their names; those that no family has are listed.
    """
    import costmodel as cm
    from costmodel.cli.output import answer_result, plan_output, show, write_file
    from costmodel.cli.pictures import plan_picture, planned_figure

    target = plan_output(**output)
    beside = bool(job) or any(value is not None for name, value in given.items() if name in _job_names())
    draw = planned_figure(
        "TraceProfile", plot, figure or ("beside" if beside else "classes"), force=output["force"]
    )
    path = plan_picture(write, force=output["force"])
    est = cm.estimate(**merged_job(given, job)) if beside else None
    found = cm.profile(trace, est, device=device, step_range=step_range)
    files = found.files(path) if path is not None else {}
    show(answer_result(found), target)
    for file, text in files.items():
        write_file(file, text, target)
    draw(found.plot, target)


def _job_names() -> frozenset[str]:
    """Return the fields of a job."""
    from costmodel.describe.jobs.fields import FIELD

    return frozenset(FIELD)
