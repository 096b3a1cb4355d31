"""``costmodel run``: the whole month, from tokens to days and dollars."""

from collections.abc import Mapping
from typing import Any

from costmodel.cli.job_options import merged_job, takes_job
from costmodel.describe.jobs.fields import FIELD, JOB_FIELDS, RUN_FIELDS

EPILOG = """\b
Examples:
  costmodel run -m llama3-405b -c llama3-roce -n 16384 -l "tp8 cp1 pp16 vp4" --zero 2 --recipe llama3 \\
      --axis-order "tp cp pp dp" --global-batch 2048 --seq-len 8192 --tokens 15.6e12
  costmodel run job.yaml --tokens 2e12 --reliability rsc-1 --checkpointing blocking --price 2.10
  costmodel run job.yaml --budget 5e6
  costmodel run job.yaml --tokens 2e12 --failures-per-node-day 0.01 --spare-nodes 4 --format json
"""


@takes_job((*JOB_FIELDS, *RUN_FIELDS, FIELD["dollars"], FIELD["days"]))
def run(given: Mapping[str, Any], output: Mapping[str, Any]) -> None:
    """Price a whole training run: days, GPU-hours, energy and dollars, with what failures take.

    The job is given as for estimate, with the tokens to train on. Without --tokens, --budget or --days
    say how far to train; with --tokens and --days but without --gpus, replicas are added until it is done in time.
    Where no degree of the layout is named, it is the planner's.
    """
    import costmodel as cm
    from costmodel.cli.output import answer_result, plan_output, show

    target = plan_output(**output)
    show(answer_result(cm.run(**merged_job(given, complete=False))), target)
