"""A budget for people and machines: what each rule would train."""

from __future__ import annotations

from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_si
from costmodel.base.words import plural
from costmodel.whole_run.budget import Budget


def budget_grids(found: Budget) -> list[Grid]:
    """Return the tables of a budget."""
    return [_headline(found), _choices(found)]


def _headline(found: Budget) -> Grid:
    """Return what the budget buys before anything is chosen."""
    when = ""
    if found.gpus is not None and found.days is not None:
        when = f" on {plural(found.gpus, 'GPU')} in {found.days:,.1f} days"
    rows = [
        ("budget", f"${found.dollars:,.0f} at ${found.price_usd_per_gpu_hour:,.2f} a GPU-hour"),
        ("GPU-hours", f"{found.gpu_hours:,.0f}{when}"),
        (
            "training",
            f"{found.training_flops:.3g} FLOP: MFU {found.mfu:.0%} in {found.precision}, "
            f"{found.effective_time:.0%} of the time in steps that count",
        ),
    ]
    within = {name: tuple(said.values()) for name, said in found.spread.items()}
    said = ["${:,.0f} / ${:,.0f} / ${:,.0f}".format(*within["dollars"])]
    if "days" in within:
        said.append("{:,.1f} / {:,.1f} / {:,.1f} days".format(*within["days"]))
    bought = "{:.3g} / {:.3g} / {:.3g} FLOP".format(*within["training_flops"])
    rows.append(
        (
            "p10 / p50 / p90",
            f"{' and '.join(said)} for this training, or {bought} for this money, as steps of dense models here "
            "differ from what is expected of them",
        )
    )
    if found.served_tokens:
        rows.append(
            (
                "serving",
                f"{format_si(found.served_tokens, '')} tokens at a context of {found.context:,} tokens",
            )
        )
    return Grid(f"A budget on {found.cluster.accelerator.name}", columns("", ""), rows)


def _choices(found: Budget) -> Grid:
    """Return a row for each rule."""
    titles = ["Rule", "Parameters >", "Tokens >", "Tokens/param >", "Loss >", "Training >"]
    if found.served_tokens:
        titles += ["Serving >", "Together >"]
    rows = []
    for choice in found.choices:
        row = [
            choice.rule,
            f"{choice.num_params / 1e9:,.1f} B",
            format_si(choice.tokens, ""),
            f"{choice.tokens_per_parameter:,.2g}"
            if choice.tokens_per_parameter < 10
            else f"{choice.tokens_per_parameter:,.0f}",
            f"{choice.loss:.3f}",
            f"${choice.train_usd:,.0f}",
        ]
        if found.served_tokens:
            served = choice.serve_usd
            costs = (
                ["too large", "–"]
                if served is None
                else [f"${served:,.0f}", f"${choice.train_usd + served:,.0f}"]
            )
            row += costs
        rows.append(row)
    note = (
        "Losses of different laws are on different data and cannot be compared. Kaplan counts parameters outside "
        "embeddings. 'Cheapest with serving' reaches the same law's compute-optimal loss."
    )
    return Grid("What to train", columns(*titles), rows, note=note)
