"""``costmodel run``: the whole month, from tokens to days and dollars."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from costmodel.cli import options as opt
from costmodel.cli.job_options import merged_job, short_names, takes_job
from costmodel.describe.jobs.fields import FIELD, JOB_FIELDS, RUN_FIELDS

EPILOG = """\b
Examples:
  costmodel run -m llama3-405b -c llama3-roce -n 16384 -l "tp8 cp1 pp16 vp4" --zero 2 --recipe llama3 \\
      --axis-order "tp cp pp dp" --global-batch 2048 --seq-len 8192 --tokens 15.6e12
  costmodel run job.yaml --tokens 2e12 --reliability rsc-1 --checkpointing blocking --price 2.10
  costmodel run h200.yaml b200.yaml --tokens 5T --csv both.csv
  costmodel run job.yaml --budget 5e6 --expect "days_p90 < 60"
  costmodel run job.yaml --tokens 2e12 --failures-per-node-day 0.01 --spare-nodes 4 --format json
"""


@takes_job((*JOB_FIELDS, *RUN_FIELDS, FIELD["dollars"], FIELD["days"]))
def run(
    given: Mapping[str, Any],
    output: Mapping[str, Any],
    job: opt.JobFilesArgument = None,
    start: opt.StartOption = "",
    expect: opt.ExpectOption = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with code 3 if the job does not fit.")] = False,
) -> None:
    """Price a whole training run: days, GPU-hours, energy and dollars, with what failures take.

    The job is given as for estimate, with the tokens to train on. Without --tokens, --budget or --days
    say how far to train; with --tokens they are limits: what is left, and how surely they are kept. With --tokens and
    --days but without --gpus, replicas are added until it is done in time.
    Where no degree of the layout is named, it is the planner's. Several job files are laid side by side.
    """
    import costmodel as cm
    from costmodel.cli.output import answer_result, hold, plan_output, show

    target = plan_output(**output)
    for text in expect or []:
        cm.read_expected(text, whole_run=True)
    files = job or [""]
    found = [cm.run(**merged_job(given, file, complete=False)) for file in files]
    dated = []
    for name, run in zip(short_names(files), found, strict=True):
        if start:
            days = ", ".join(f"{percent} {day}" for percent, day in run.finishing_dates(start).items())
            dated.append(f"{name + ': ' if len(files) > 1 else ''}started on {start}, done by {days}.")
    result = answer_result(found[0] if len(found) == 1 else cm.runs(*found, labels=short_names(files)))
    show(result._replace(remarks=[*result.remarks, *dated]), target)
    if check and not all(run.est.fits for run in found):
        raise typer.Exit(3)
    for run in found:
        hold(run, expect or [])
