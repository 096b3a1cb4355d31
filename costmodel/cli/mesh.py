"""``costmodel mesh``: where the ranks of each axis sit."""

from collections.abc import Mapping
from typing import Any

from costmodel.cli.job_options import merged_job, takes_job
from costmodel.describe.jobs.fields import PLACE_FIELDS, names

EPILOG = """\b
Examples:
  costmodel mesh -c llama3-roce -n 16384 -l "tp8 cp1 pp16" --axis-order "tp cp pp dp"
  costmodel mesh -c dgx-h100-ndr -n 64 --tp 2 --zero 3 --shard-group 4
"""


@takes_job(PLACE_FIELDS)
def mesh(given: Mapping[str, Any], output: Mapping[str, Any]) -> None:
    """Show each axis of a layout: its factor, its groups, the link they meet on and what they send.

    Needs no model; of a job file it reads what places the ranks.
    """
    import costmodel as cm
    from costmodel.cli.output import answer_result, plan_output, show

    target = plan_output(**output)
    job, places = merged_job(given, complete=False), names(PLACE_FIELDS)
    placed = {name: value for name, value in job.items() if name in places}
    show(answer_result(cm.mesh(**placed)), target)
