"""The whole run: ``costmodel run``, ``budget`` and ``observed watch``."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from costmodel.cli.command import (
    command,
    command_with,
    jobs_side_by_side,
    merged_job,
    refuse_flags,
)
from costmodel.cli.output import Target, hold, result_of, shortened
from costmodel.describe.jobs.fields import BUDGET_FIELDS, FIELD, JOB_FIELDS, LENGTH_FIELDS, RUN_FIELDS

if TYPE_CHECKING:
    from costmodel.whole_run.watch import Watch, Watcher


_RUN = (*JOB_FIELDS, *LENGTH_FIELDS, *RUN_FIELDS, FIELD["dollars"], FIELD["days"])


@command(
    r"""
    costmodel run -m llama3-405b -c llama3-roce -n 16384 -l "tp8 cp1 pp16 vp4" --zero 2 --recipe llama3 \
        --axis-order "tp cp pp dp" --global-batch 2048 --seq-len 8192 --tokens 15.6e12
    costmodel run job.yaml --tokens 2e12 --reliability rsc-1 --checkpointing blocking --price 2.10
    costmodel run h200.yaml b200.yaml --tokens 5T --csv both.csv
    costmodel run job.yaml --budget 5e6 --expect "days_p90 < 60"
    costmodel run job.yaml --tokens 2e12 --on-failure shrink
    costmodel run job.yaml --tokens 2e12 --failures-per-node-day 0.01 --spare-nodes 4 --format json
    """,
    fields=_RUN,
    uses="start expect check",
)
def run(given: Mapping[str, Any], target: Target, options: Any) -> None:
    """Price a whole training run: days, GPU-hours, energy and dollars, with what failures take.

    The job is given as for estimate, with the tokens to train on. Without --tokens, --budget or --days
    say how far to train; with --tokens they are limits: what is left, and how surely they are kept. With --tokens and
    --days but without --gpus, replicas are added until it is done in time.
    A file with a section ``rl`` takes --steps. Several job files, models or machines are laid side by side.
    """
    import costmodel as cm
    from costmodel.describe.jobs.merge import is_rl

    for text in options.expect or []:
        cm.read_expected(text, whole_run=True)
    jobs = jobs_side_by_side(given, options.job)
    first = next(iter(jobs.values()))
    if is_rl(first):
        if not options.steps or len(jobs) > 1:
            raise cm.CostModelError(
                "--steps: a run of reinforcement learning takes one job file and its steps"
            )
        why = "is of a training run; this is one of reinforcement learning"
        refuse_flags(given, why, ("steps", "check"), tokens=first.get("tokens"))
        campaign = cm.run_rl(steps=options.steps, **first)
        target.show(campaign)
        if options.check and not campaign.step.fits:
            raise typer.Exit(3)
        return None
    if options.steps:
        raise cm.CostModelError("--steps: goes with a job file that has a section rl; give --tokens")
    found = [cm.run(**one) for one in jobs.values()]
    dated = []
    for name, one in zip(jobs, found, strict=True):
        if options.start:
            days = ", ".join(
                f"{percent} {day}" for percent, day in one.finishing_dates(options.start).items()
            )
            dated.append(f"{name and f'{name}: '}started on {options.start}, done by {days}.")
    result = result_of(found[0] if len(found) == 1 else cm.runs(*found, labels=list(jobs)))
    result = result._replace(remarks=[*result.remarks, *dated])
    if len(found) == 1:
        following = (
            command_with("run", {**given, "job": options.job}, _RUN, "--details"),
            command_with("estimate", {**given, "job": options.job}, JOB_FIELDS),
        )
        result = shortened(result, found[0], *following, before=dated)
    target.show(result)
    if options.check and not all(one.est.fits for one in found):
        raise typer.Exit(3)
    for one in found:
        hold(one, options.expect or [])


EXIT_CODES = {"inside": 0, "unknown": 0, "slower": 4, "faster": 5}
"""By where the steps lay last."""


@command(
    """
    costmodel observed watch train.log --job job.yaml --once
    costmodel observed watch train.log --job job.yaml --tokens 2e12 --price 2.10 --interval 5min
    costmodel observed watch train.log --job job.yaml --stop || scontrol requeue $SLURM_JOB_ID
    """,
    fields=(*JOB_FIELDS, *RUN_FIELDS),
)
def watch(given: Mapping[str, Any], target: Target, options: Any) -> None:
    """Follow a training log: say when steps leave the band of the estimate, since when, and what it costs.

    Quiet while they do not. It goes on through rotated and truncated logs, until the run's last step or
    Ctrl-C. The exit code says where steps lay last: 0 inside the band, 4 slower, 5 faster; 2 is wrong input.
    """
    import costmodel as cm
    from costmodel.base.files import refuse_endless
    from costmodel.base.units import read_quantity

    if not Path(options.log).is_file():
        raise cm.CostModelError(f"{options.log}: there is no such log")
    pause_s = read_quantity("--interval", options.interval, "s")
    if pause_s <= 0:
        raise cm.CostModelError(f"--interval: expected more than 0 s, got {options.interval!r}")
    keywords = merged_job(given, options.job)
    seen: Watch | None
    if options.once:
        refuse_endless(options.log)
        seen = cm.watch(options.log, **keywords)
        target.show(seen)
    else:
        seen = _followed(cm.Watcher(Path(options.log), **keywords), pause_s, stop=options.stop)
        if seen is not None and (target.out is not None or target.csv is not None):
            target.show(seen)
    if seen is not None:
        raise typer.Exit(EXIT_CODES[seen.state])


def _followed(watcher: Watcher, pause_s: float, *, stop: bool) -> Watch | None:
    """Look again and again, and print a line whenever the state changes."""
    seen: Watch | None = None
    state = "inside"
    try:
        while True:
            seen = watcher.look() or seen
            if seen is not None:
                if seen.state not in (state, "unknown"):
                    state = seen.state
                    print(seen.remarks()[0], flush=True)
                if seen.is_done or (stop and EXIT_CODES[seen.state]):
                    return seen
            time.sleep(pause_s)
    except KeyboardInterrupt:
        print("", file=sys.stderr)
        return seen


@command(
    """
    costmodel budget --budget 5e6 --days 30
    costmodel budget -c llama3-roce --gpus 16384 --days 54 --mfu 0.38
    costmodel budget --budget 1e6 --serve-tokens 1e13 --context 8192
    costmodel budget --budget 1e5 -m llama3-8b --answers 1M --samples 16 --pass-rate "1=0.2 16=0.55" --response 2000
    costmodel budget --budget 1e5 --answers 10M --pass-rate "8B/15T: 0.3; 70B/15T: 0.55"
    """,
    fields=[field for field in BUDGET_FIELDS if field.name != "samples"],
    job_file=False,
)
def budget(
    given: Mapping[str, Any],
    samples_per_prompt: str,
) -> Any:
    """Say what model to train, and on how many tokens, for a budget, by the published scaling laws.

    Give --budget, or --gpus and --days; --budget with one of them gives the other. With --answers and --pass-rate: how
    many problems k samples solve, and what a solved one costs, training and samples in one bill.
    """
    import costmodel as cm

    keywords = merged_job(given)
    if samples_per_prompt:
        keywords["samples_per_prompt"] = samples_per_prompt
    return cm.budget(**keywords)
