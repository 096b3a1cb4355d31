"""``costmodel explain``: every line of a bill with its formula, its numbers and its source."""

from typing import Annotated, Any

import typer

from costmodel.cli.job_options import merged_job, takes_job

EPILOG = """\b
Examples:
  costmodel explain job.yaml --line compute.mlp.fc1.forward
  costmodel explain job.yaml --line tp.
  costmodel explain -m llama3-405b -c llama3-roce -n 16384 -l "tp8 cp1 pp16 vp8" \\
      --global-batch 2048 --seq-len 8192 --tree
"""
_SMALL_SHARE = 0.002


@takes_job()
def explain(
    given: dict[str, Any],
    output: dict[str, Any],
    line: Annotated[
        str, typer.Option("--line", metavar="NAME", help="A line, or the beginning of several names.")
    ] = "",
    tree: Annotated[
        bool, typer.Option("--tree", help="Step, stage, micro-batch, layer and operator as a tree.")
    ] = False,
    every_line: Annotated[
        bool, typer.Option("--all-lines", help="Also show the parts of the tree below 0.2 %.")
    ] = False,
) -> None:
    """Open up the bill: each line's formula with its numbers put in, units, tier and source.

    A job is given as to `estimate`. Printed numbers have seven digits: the last step of each formula,
    recomputed by hand, gives the line; count times line is what the step pays.
    """
    import costmodel as cm
    from costmodel.cli.output import answer_result, plan_output, show

    if tree and line:
        raise cm.CostModelError("--tree and --line: give one of them")
    target = plan_output(**output)
    est = cm.estimate(**merged_job(given))
    if tree:
        result = answer_result(est.tree(), least_share=0.0 if every_line else _SMALL_SHARE)
    else:
        result = answer_result(est.explain(line))
    show(result, target)
