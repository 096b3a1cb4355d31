"""A budget as tables: what it buys, and what each rule would train."""

from __future__ import annotations

from typing import Any

from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_count
from costmodel.base.words import plural
from costmodel.reporting.cells import grid_of
from costmodel.whole_run.budget import Budget, Purchase


def budget_grids(found: Budget) -> list[Grid]:
    """Return the tables of a budget."""
    cells: dict[str, Any] = {
        "Rule": "rule",
        "Parameters >": lambda choice: f"{choice.num_params / 1e9:,.1f} B",
        "Tokens >": lambda choice: format_count(choice.tokens),
        "Tokens/param >": _tokens_per_parameter,
        "Loss >": "loss:.3f",
        "Training >": "train_usd:$",
    }
    if found.served_tokens:
        cells["Serving >"] = lambda choice: _served(choice.serve_usd, "too large")
        cells["Together >"] = lambda choice: _served(
            None if choice.serve_usd is None else choice.serve_usd + choice.train_usd, "–"
        )
    note = (
        "Losses of different laws are on different data and cannot be compared. Kaplan counts parameters outside "
        "embeddings. 'Cheapest with serving' reaches the same law's compute-optimal loss."
    )
    grids = [_bought(found), grid_of("What to train", found.choices, cells, note=note)]
    if found.solved:
        grids.append(_solved(found))
    return grids


def _solved(found: Budget) -> Grid:
    """Return what samples solve, and what a solved problem costs."""
    cells: dict[str, Any] = {
        "Model": "rule",
        "Parameters >": lambda one: f"{one.num_params / 1e9:,.1f} B",
        "Tokens >": lambda one: "–" if one.tokens is None else format_count(one.tokens),
        "Samples >": "samples_per_prompt:,.0f",
        "Solved >": "solved:.1%",
        "Training >": "train_usd:$",
        "Samples' cost >": "serve_usd:$",
        "A solved problem >": lambda one: f"${one.usd_per_solved:,.3g}",
    }
    return grid_of(
        f"{format_count(found.answers)} problems",
        found.solved,
        cells,
        note="A solved problem bears training and all samples. How often a sample solves is as given: one rate takes problems "
        "as alike, so that samples help most; between two models the logit of the rate follows the loss of the law.",
    )


def _bought(found: Budget) -> Grid:
    """Return what the budget buys before anything is chosen."""
    when = ""
    if found.gpus is not None and found.days is not None:
        when = f" on {plural(found.gpus, 'GPU')} in {found.days:,.1f} days"
    spread = {name: tuple(ends.values()) for name, ends in found.spread.items()}
    spent = ["${:,.0f} / ${:,.0f} / ${:,.0f}".format(*spread["dollars"])]
    if "days" in spread:
        spent.append("{:,.1f} / {:,.1f} / {:,.1f} days".format(*spread["days"]))
    bought = "{:.3g} / {:.3g} / {:.3g} FLOP".format(*spread["training_flops"])
    rows = [
        ("budget", f"${found.dollars:,.0f} at ${found.price_usd_per_gpu_hour:,.2f} a GPU-hour"),
        ("GPU-hours", f"{found.gpu_hours:,.0f}{when}"),
        (
            "training",
            f"{found.training_flops:.3g} FLOP: MFU {found.mfu:.0%} in {found.precision}, "
            f"{found.effective_time:.0%} of the time in steps that count",
        ),
        (
            "p10 / p50 / p90",
            f"{' and '.join(spent)} for this training, or {bought} for this money, as steps of dense models here "
            "differ from what is expected of them",
        ),
    ]
    if found.served_tokens:
        tokens = format_count(found.served_tokens)
        rows.append(("serving", f"{tokens} tokens at a context of {found.context:,} tokens"))
    return Grid(f"A budget on {found.cluster.accelerator.name}", columns("", ""), rows)


def _tokens_per_parameter(choice: Purchase) -> str:
    ratio = choice.tokens_per_parameter
    return f"{ratio:,.2g}" if ratio < 10 else f"{ratio:,.0f}"


def _served(dollars: float | None, none: str) -> str:
    return none if dollars is None else f"${dollars:,.0f}"
