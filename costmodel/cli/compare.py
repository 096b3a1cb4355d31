"""``costmodel compare``: bills side by side."""

from typing import Annotated, Any

import typer

from costmodel.cli import options as opt
from costmodel.cli.job_options import merged_job, short_names, takes_job

EPILOG = """\b
Examples:
  costmodel compare before.yaml after.yaml
  costmodel compare job.yaml --vary tp=4,8
  costmodel compare h200.yaml v6e.yaml --tokens 1T --start 2026-12-01 --price dgx-h200-ndr=2.5,tpu-v6e=1.8
  costmodel compare job.yaml --vary recompute=none,full --vary dp_overlap=none,last-micro-batch
  costmodel compare job.yaml --vary zero=0,1,2,3 --plot zero.svg
"""


@takes_job()
def compare(
    given: dict[str, Any],
    output: dict[str, Any],
    job: opt.JobFilesArgument = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            metavar="NAME=A,B",
            help="Values of a field or a recipe switch; several flags give all combinations.",
        ),
    ] = None,
    start: opt.StartOption = "",
    plot: opt.PlotOption = "",
    every_line: Annotated[
        bool, typer.Option("--all-lines", help="Also list what moves less than 0.5 %.")
    ] = False,
) -> None:
    """Lay bills side by side: the difference line by line, what moved and why.

    Every job is compared with the first; with one value to vary, the job as given is the first.
    Differences of lines add up to the difference of step times (and of memory).
    """
    import costmodel as cm
    from costmodel.cli.output import answer_result, plan_output, show
    from costmodel.cli.pictures import planned_figure

    target = plan_output(**output)
    draw = planned_figure("Comparison", plot, "", force=output["force"])
    files, found = job or [""], {}
    for name, file in zip(short_names(files), files, strict=True):
        for label, est in cm.vary(vary or [], **merged_job(given, file)).items():
            parts = (name if len(files) > 1 else "", label)
            found[" ".join(part for part in parts if part) or "as given"] = est
    comparison = cm.compare(*found.values(), labels=list(found))
    if start and any(est.job.tokens is None for est in comparison.estimates):
        raise cm.CostModelError("start: needs --tokens, for a run that ends")
    show(answer_result(comparison, every_line=every_line, start=start), target)
    draw(comparison.plot, target)
