"""``costmodel estimate``: the bill of one job."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import typer

from costmodel.cli import options as opt
from costmodel.cli.job_options import merged_job, takes_job

EPILOG = """\b
Examples:
  costmodel estimate -m llama3-405b -c llama3-roce -n 16384 -l "tp8 cp1 pp16 vp8" \\
      --global-batch 2048 --seq-len 8192 --tokens 15.6e12
  costmodel estimate job.yaml --recompute full --set attention_kernel=flash3
  costmodel estimate job.yaml --samples 200 --format json | jq .uncertainty.time_causes
  costmodel estimate job.yaml --plot pipeline.svg --figure pipeline
  costmodel estimate job.yaml --expect "mfu > 0.3, memory < 78 GiB" --format json | jq .mfu
"""


@takes_job()
def estimate(
    given: Mapping[str, Any],
    *,
    every_line: Annotated[bool, typer.Option("--all-lines", help="Also list the lines below 0.5 %.")] = False,
    samples: opt.SamplesOption = 0,
    seed: opt.SeedOption = 0,
    expect: opt.ExpectOption = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with code 3 if the job does not fit.")] = False,
    form: Annotated[
        opt.Form, typer.Option("--form", help="CSV with a row a line of the bill, or a row a layout.")
    ] = opt.Form.long,
    plot: opt.PlotOption = "",
    figure: Annotated[
        str,
        typer.Option(
            "--figure",
            help="Which: time, memory, pipeline, compute-roofline, communication-roofline or mesh.  [default: time]",
        ),
    ] = "",
    output: Mapping[str, Any],
) -> None:
    """Price one training step: step time, MFU and memory per GPU, with the lines they add up from.

    A job is given by flags, by a YAML file with the same names as keys, or by both; flags win. Where no
    degree of the layout is named, the planner's best stands beside what was assumed.
    """
    import costmodel as cm
    from costmodel.cli.output import answer_result, hold, plan_output, show
    from costmodel.cli.pictures import planned_figure
    from costmodel.cli.plan_input import with_plan
    from costmodel.describe.jobs.merge import assumed_recipe

    target = plan_output(**output)
    draw = planned_figure("Estimate", plot, figure, force=output["force"])
    for text in expect or []:
        cm.read_expected(text)
    asked = merged_job(given)
    est = cm.estimate(**asked)
    if samples:
        est = est.with_samples(samples, seed)
    result = answer_result(est, every_line=every_line)._replace(table=partial(est.columns, form.value))
    said = assumed_recipe(asked) if target.format is opt.Format.table else []
    show(with_plan(result._replace(remarks=[*said, *result.remarks]), est, asked), target)
    draw(est.plot, target)
    if check and not est.fits:
        raise typer.Exit(3)
    hold(est, expect or [])
