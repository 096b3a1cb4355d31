"""``costmodel roofline``: operators under the GPU's roofs, axes against the fabric."""

from typing import Annotated, Any

import typer

from costmodel.cli.job_options import merged_job, takes_job

EPILOG = """\b
Examples:
  costmodel roofline job.yaml
  costmodel roofline -m llama3-70b -n 512 -l "tp8 pp4" --global-batch 512 --seq-len 8192 --all
"""


@takes_job()
def roofline(
    given: dict[str, Any],
    output: dict[str, Any],
    every_operator: Annotated[
        bool, typer.Option("--all", help="Also list passes below 0.1 % of the step.")
    ] = False,
) -> None:
    """Show where operators lie under the GPU's roofs, and each axis against the tiers of the fabric.

    The first asks for FLOPs per byte of memory, the second for FLOPs per byte sent: left of a ridge point
    bytes set the pace. With the regime of each axis, what would move it, and the critical batch.
    """
    import costmodel as cm
    from costmodel.cli.output import answer_result, plan_output, show

    target = plan_output(**output)
    found = cm.roofline(cm.estimate(**merged_job(given)))
    show(answer_result(found, every_operator=every_operator), target)
