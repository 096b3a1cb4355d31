"""``costmodel plan``: the best layout of all that divide and fit."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from costmodel.cli import options as opt
from costmodel.cli.job_options import takes_job
from costmodel.describe.jobs.fields import ANY_FRAMEWORK, FIELD, PLAN_FIELDS

EPILOG = """\b
Examples:
  costmodel plan -m gpt3-175b -c dgx-a100-hdr -n 4096 --global-batch 1536 --seq-len 2048
  costmodel plan -m llama3-70b -n 64 --global-batch 128 --seq-len 8192 --tp 1,2,4,8 \\
      --fix schedule=1f1b --max-memory 72GiB --why-not "tp8 pp4" --csv plans.csv
  costmodel plan job.yaml --gpus 256,512,1024 --objective gpu-hours --format json
  costmodel plan job.yaml --emit megatron > flags.txt
  costmodel plan job.yaml --gpus 512 --emit job --out best.yaml
"""

_WRITTEN = [name for name in FIELD["framework"].words if name != ANY_FRAMEWORK]


@takes_job(PLAN_FIELDS, several=True)
def plan(
    given: Mapping[str, Any],
    output: Mapping[str, Any],
    why_not: Annotated[
        list[str] | None,
        typer.Option("--why-not", metavar="LAYOUT", help="Explain why this is not the plan."),
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Layouts to show.")] = 10,
    emit: Annotated[
        str,
        typer.Option(
            "--emit",
            help=f"Print the best layout for a framework, or as a job file: {', '.join((*_WRITTEN, 'job'))}.",
        ),
    ] = "",
    commands: Annotated[
        bool, typer.Option("--commands", help="Print the command line of every layout shown.")
    ] = False,
    start: opt.StartOption = "",
    days: Annotated[
        str,
        typer.Option(
            "--days", metavar="DAYS", help="Say whether the run is done in so many, and how surely."
        ),
    ] = "",
    plot: opt.PlotOption = "",
    figure: Annotated[
        str,
        typer.Option("--figure", help="Which: pareto or scaling (of several GPU counts).  [default: pareto]"),
    ] = "",
    check: Annotated[bool, typer.Option("--check", help="Exit with code 3 if no layout is found.")] = False,
) -> None:
    """Find the best layout: every one that divides is priced; the best, the front and the reasons are shown.

    Knobs that are not given take every sensible value. Wrong input and constraints that nothing
    meets are one line that names the constraint and what would do.
    """
    import costmodel as cm
    from costmodel.base.allocator import keep_freed_memory
    from costmodel.cli.output import Result, plan_output, show, write_file
    from costmodel.cli.pictures import planned_figure
    from costmodel.cli.plan_input import JOB, asked_of, require_start, require_tokens, waiting, write_parquet
    from costmodel.describe.jobs.reading import read

    parquet = output["out"] if output["out"].lower().endswith(".parquet") else ""
    force = output["force"]
    target = plan_output(**{**output, "out": "" if parquet else output["out"]})
    draw = planned_figure("Plan", plot, figure, force=force)
    asked = asked_of(given, emit)
    if start:
        require_start(start, asked)
    within = read("days", days) if days else None
    if within is not None:
        require_tokens("days", asked)
    keep_freed_memory()
    try:
        with waiting("pricing layouts", quiet=target.quiet) as progress:
            found = cm.plan(**asked, progress=progress)
    except cm.NoLayoutError as error:
        if not check:
            raise
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(3) from None
    answers = [(text, found.why_not(text, job=found.asked_job(found.pick))) for text in why_not or []]
    run_it = [f"Price it alone: {found.commands(1)[0]}"]
    remarks = [
        *found.remarks(),
        *run_it,
        *(found.finished(start) if start else []),
        *(found.in_time(within) if within is not None else []),
        *(f"Why not {text}: {answer}" for text, answer in answers),
    ]
    if emit:
        text = found.job_file() if emit == JOB else cm.emit(found.best, emit, given.get("job") or "")
        typer.echo(text, nl=False) if target.out is None else write_file(target.out, text, target)
        if not target.quiet:
            typer.echo("\n".join(remarks), err=True)
        return
    if parquet:
        write_parquet(found, parquet, force=force, quiet=target.quiet)
    gains = found.gains()
    show(
        Result(
            grids=lambda: found.grids(count=top, gains=gains, commands=commands, start=start),
            record=lambda: found.to_dict(count=top, gains=gains, answers=answers),
            table=found.columns,
            remarks=remarks,
        ),
        target,
    )
    draw(found.plot, target)
