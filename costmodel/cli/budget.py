"""``costmodel budget``: from dollars or days to parameters and tokens."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from costmodel.cli import options as opt
from costmodel.cli.job_options import takes_output

EPILOG = """\b
Examples:
  costmodel budget --budget 5e6 --days 30
  costmodel budget -c llama3-roce --gpus 16384 --days 54 --mfu 0.38
  costmodel budget --budget 1e6 --serve-tokens 1e13 --context 8192
"""


@takes_output()
def budget(
    output: Mapping[str, Any],
    cluster: opt.ClusterOption = None,
    dollars: Annotated[
        float | None, typer.Option("--budget", metavar="USD", help="To spend on training.")
    ] = None,
    gpus: Annotated[float | None, typer.Option("--gpus", "-n", help="GPUs to train on.")] = None,
    days: Annotated[float | None, typer.Option("--days", help="Calendar days of training.")] = None,
    price: Annotated[
        float | None, typer.Option("--price", metavar="USD", help="Of a GPU-hour.  [default: the profile's]")
    ] = None,
    precision: opt.PrecisionOption = None,
    mfu: Annotated[float, typer.Option("--mfu", help="Utilisation of a step, as estimate gives it.")] = 0.40,
    effective_time: Annotated[
        float, typer.Option("--effective-time", help="Share of time in steps that count, as run gives it.")
    ] = 0.93,
    serve_tokens: Annotated[
        float, typer.Option("--serve-tokens", help="Tokens to serve over the model's life; 0 for none.")
    ] = 0.0,
    context: Annotated[int, typer.Option("--context", min=1, help="Tokens of a served sequence.")] = 4096,
    profiles: opt.ProfilesOption = None,
) -> None:
    """Say what model to train, and on how many tokens, for a budget, by the published scaling laws.

    Give --budget, or --gpus and --days; --budget with one of them gives the other.
    """
    import costmodel as cm
    from costmodel.cli.output import answer_result, plan_output, show

    target = plan_output(**output)
    options: dict[str, Any] = {
        "dollars": dollars,
        "gpus": gpus,
        "days": days,
        "price_usd_per_gpu_hour": price,
    }
    if cluster or profiles:
        options["cluster"] = cm.load_cluster(cluster or cm.DEFAULT_CLUSTER, profile_path=profiles)
    found = cm.budget(
        **options,
        precision=precision or "bf16",
        mfu=mfu,
        effective_time=effective_time,
        served_tokens=serve_tokens,
        context=context,
    )
    show(answer_result(found), target)
