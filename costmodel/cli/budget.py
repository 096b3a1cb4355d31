"""``costmodel budget``: from dollars or days to parameters and tokens."""

from collections.abc import Mapping
from typing import Any

from costmodel.cli.job_options import merged_job, takes_job
from costmodel.describe.jobs.fields import BUDGET_FIELDS

EPILOG = """\b
Examples:
  costmodel budget --budget 5e6 --days 30
  costmodel budget -c llama3-roce --gpus 16384 --days 54 --mfu 0.38
  costmodel budget --budget 1e6 --serve-tokens 1e13 --context 8192
"""


@takes_job(BUDGET_FIELDS, job_file=False)
def budget(given: Mapping[str, Any], output: Mapping[str, Any]) -> None:
    """Say what model to train, and on how many tokens, for a budget, by the published scaling laws.

    Give --budget, or --gpus and --days; --budget with one of them gives the other.
    """
    import costmodel as cm
    from costmodel.cli.output import answer_result, plan_output, show

    target = plan_output(**output)
    found = cm.budget(**merged_job(given, complete=False))
    show(answer_result(found), target)
