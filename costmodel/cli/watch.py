"""``costmodel watch``: a growing training log against the estimate of its job."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from costmodel.cli.job_options import merged_job, takes_job
from costmodel.describe.jobs.fields import JOB_FIELDS, RUN_FIELDS

if TYPE_CHECKING:
    from costmodel.whole_run.watch import Watch, Watcher

EPILOG = """\b
Examples:
  costmodel watch train.log --job job.yaml --once
  costmodel watch train.log --job job.yaml --tokens 2e12 --price 2.10 --interval 5min
  costmodel watch train.log --job job.yaml --stop || scontrol requeue $SLURM_JOB_ID
"""

EXIT_CODES = {"inside": 0, "unknown": 0, "slower": 4, "faster": 5}
"""By where the steps lay last."""


@takes_job((*JOB_FIELDS, *RUN_FIELDS))
def watch(
    given: Mapping[str, Any],
    output: Mapping[str, Any],
    log: Annotated[str, typer.Argument(metavar="LOG", help="What the framework prints while it trains.")],
    job: Annotated[
        str, typer.Option("--job", metavar="JOB.yaml", help="Job file; flags go on top of it.")
    ] = "",
    once: Annotated[bool, typer.Option("--once", help="Look once, and print where the steps lie.")] = False,
    interval: Annotated[
        str, typer.Option("--interval", metavar="TIME", help="Between two looks.  [default: 30s]")
    ] = "30s",
    stop: Annotated[bool, typer.Option("--stop", help="End as soon as steps leave the band.")] = False,
) -> None:
    """Follow a training log: say when steps leave the band of the estimate, since when, and what it costs.

    Quiet while they do not. It goes on through rotated and truncated logs, until the run's last step or
    Ctrl-C. The exit code says where steps lay last: 0 inside the band, 4 slower, 5 faster; 2 is wrong input.
    """
    import costmodel as cm
    from costmodel.base.units import read_quantity
    from costmodel.cli.output import answer_result, plan_output, show

    target = plan_output(**output)
    pause_s = read_quantity("--interval", interval, "s")
    if pause_s <= 0:
        raise cm.CostModelError(f"--interval: expected more than 0 s, got {interval!r}")
    asked = merged_job(given, job)
    seen: Watch | None
    if once:
        seen = cm.watch(log, **asked)
        show(answer_result(seen), target)
    else:
        seen = _followed(cm.Watcher(Path(log), **asked), pause_s, stop=stop)
        if seen is not None and (target.out is not None or target.csv is not None):
            show(answer_result(seen), target)
    if seen is not None:
        raise typer.Exit(EXIT_CODES[seen.state])


def _followed(watcher: "Watcher", pause_s: float, *, stop: bool) -> "Watch | None":
    """Look again and again, and print a line whenever the state changes."""
    seen: Watch | None = None
    said = "inside"
    try:
        while True:
            seen = watcher.look() or seen
            if seen is not None:
                if seen.state not in (said, "unknown"):
                    said = seen.state
                    print(seen.remarks()[0], flush=True)
                if seen.is_done or (stop and EXIT_CODES[seen.state]):
                    return seen
            time.sleep(pause_s)
    except KeyboardInterrupt:
        print("", file=sys.stderr)
        return seen
