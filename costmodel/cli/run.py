"""``costmodel run``: the whole month, from tokens to days and dollars."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from costmodel.cli.job_options import merged_job, takes_job

EPILOG = """\b
Examples:
  costmodel run -m llama3-405b -c llama3-roce -n 16384 -l "tp8 cp1 pp16 vp4" --zero 2 --recipe llama3 \\
      --axis-order "tp cp pp dp" --global-batch 2048 --seq-len 8192 --tokens 15.6e12
  costmodel run job.yaml --tokens 2e12 --reliability rsc-1 --checkpointing blocking --price 2.10
  costmodel run job.yaml --budget 5e6
  costmodel run job.yaml --tokens 2e12 --failures-per-node-day 0.01 --spare-nodes 4 --format json
"""


@takes_job()
def run(
    given: Mapping[str, Any],
    *,
    reliability: Annotated[
        str | None,
        typer.Option(
            "--reliability",
            help="Published failure rates: llama3, rsc-1, rsc-2, megascale, opt-175b, "
            "bloom or none.  [default: llama3]",
        ),
    ] = None,
    failures_per_node_day: Annotated[
        float | None,
        typer.Option("--failures-per-node-day", help="Interruptions for each eight GPUs and day."),
    ] = None,
    failures_per_gpu_day: Annotated[
        float | None, typer.Option("--failures-per-gpu-day", help="Interruptions for each GPU and day.")
    ] = None,
    checkpointing: Annotated[
        str | None,
        typer.Option("--checkpointing", help="blocking, async or replica (in another node's memory)."),
    ] = None,
    checkpoint_interval: Annotated[
        str | None,
        typer.Option("--checkpoint-interval", metavar="TIME", help="Such as 30min.  [default: the best one]"),
    ] = None,
    detection: Annotated[
        str | None, typer.Option("--detection", metavar="TIME", help="From a failure until it is diagnosed.")
    ] = None,
    restart: Annotated[
        str | None,
        typer.Option("--restart", metavar="TIME", help="Until the job runs again, without loading."),
    ] = None,
    repair: Annotated[
        str | None, typer.Option("--repair", metavar="TIME", help="Until a node that failed is back.")
    ] = None,
    spare_nodes: Annotated[
        int | None, typer.Option("--spare-nodes", help="Nodes kept ready.  [default: as many as it takes]")
    ] = None,
    storage_bandwidth: Annotated[
        str | None,
        typer.Option(
            "--storage-bandwidth", metavar="RATE", help="Of the file system in all, such as 100GB/s."
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option("--budget", metavar="USD", help="Without --tokens: as many as it pays for."),
    ] = None,
    days: Annotated[
        float | None,
        typer.Option(
            "--days", help="Without --tokens: as many as fit; without --gpus: as few as finish in time."
        ),
    ] = None,
    price: Annotated[
        float | None, typer.Option("--price", metavar="USD", help="Of a GPU-hour.  [default: the profile's]")
    ] = None,
    pue: Annotated[
        float | None, typer.Option("--pue", help="Power of the building over that of the machines.")
    ] = None,
    samples: Annotated[int, typer.Option("--samples", help="Runs to draw for p10, p50 and p90.")] = 10_000,
    seed: Annotated[int, typer.Option("--seed", help="Of the draws.")] = 0,
    output: Mapping[str, Any],
) -> None:
    """Price a whole training run: days, GPU-hours, energy and dollars, with what failures take.

    The job is given as for estimate, with the tokens to train on. Without --tokens, --budget or --days
    say how far to train; with --tokens and --days but without --gpus, replicas are added until it is done in time.
    """
    import costmodel as cm
    from costmodel.cli.durations import duration
    from costmodel.cli.output import answer_result, plan_output, show
    from costmodel.cli.sizes import quantity

    target = plan_output(**output)
    options: dict[str, Any] = {} if reliability is None else {"reliability": reliability}
    if storage_bandwidth is not None:
        options["storage_bytes_per_s"] = quantity("--storage-bandwidth", storage_bandwidth, "B/s")
    found = cm.run(
        **merged_job(given, complete=False),
        budget_usd=budget,
        days=days,
        changes={
            "failures_per_node_day": failures_per_node_day,
            "failures_per_gpu_day": failures_per_gpu_day,
            "checkpointing": checkpointing,
            "spare_nodes": spare_nodes,
            "checkpoint_interval_s": duration("--checkpoint-interval", checkpoint_interval),
            "detection_s": duration("--detection", detection),
            "restart_s": duration("--restart", restart),
            "repair_s": duration("--repair", repair),
        },
        price_usd_per_gpu_hour=price,
        pue=pue,
        samples=samples,
        seed=seed,
        **options,
    )
    show(answer_result(found), target)
