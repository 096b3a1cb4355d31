"""``costmodel sweep``: a plan for every point of a grid."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from costmodel.cli import options as opt
from costmodel.cli.job_options import takes_output

EPILOG = """\b
Examples:
  costmodel sweep grid.yaml --workers 2 --resume done.jsonl --csv points.csv
  where grid.yaml holds, for instance:
    model: [llama3-8b, llama3-70b]
    cluster: dgx-h100-ndr
    gpus: [64, 128, 256]
    bandwidth_scale: [1, 2]
    global_batch: 512
    seq_len: 8192
"""


@takes_output()
def sweep(
    output: Mapping[str, Any],
    file: Annotated[str, typer.Argument(metavar="GRID.yaml", help="Keywords of plan; lists are the axes.")],
    workers: Annotated[int, typer.Option("--workers", min=1, help="Processes.")] = 1,
    resume: Annotated[
        str, typer.Option("--resume", metavar="FILE", help="Keep finished points here, and go on from them.")
    ] = "",
    samples: opt.SamplesOption = 0,
    seed: opt.SeedOption = 0,
    retries: Annotated[int, typer.Option("--retries", min=0, help="New attempts when a worker dies.")] = 2,
) -> None:
    """Plan every point of a grid of models, clusters, scales, batches and link speeds.

    A point without a feasible layout is a row that says why. The rows are the same whatever the
    number of workers, and whether the sweep was interrupted or not. Points of wrong input are rows
    and a word on stderr; where every point is one, the exit code is 2.
    """
    from concurrent.futures import ProcessPoolExecutor
    from functools import partial

    import costmodel as cm
    from costmodel.cli.output import answer_result, plan_output, show
    from costmodel.cli.plan_input import waiting

    target = plan_output(**output)
    points = cm.points_of(cm.read_grid(file), who=file)
    executor = partial(ProcessPoolExecutor, workers) if workers > 1 else None
    with waiting("planning points", quiet=target.quiet) as progress:
        done = cm.sweep(
            points,
            executor=executor,
            resume=resume or None,
            samples=samples,
            seed=seed,
            retries=retries,
            progress=progress,
            say=lambda text: typer.echo(f"Note: {text}.", err=True),
        )
    first = f"{len(done.refused)} of {len(done)} points are wrong input, the first: "
    if done.rows and len(done.refused) == len(done):
        raise cm.CostModelError(first + str(done.refused[0]["problem"]))
    show(answer_result(done), target)
    if done.refused and not target.quiet:
        typer.echo(f"Note: {first}{done.refused[0]['problem']}", err=True)
