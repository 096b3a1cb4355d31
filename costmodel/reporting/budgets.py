"""A budget as tables: what it buys, and what each rule would train."""

from __future__ import annotations

from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_count
from costmodel.base.words import plural
from costmodel.reporting.cells import facts_of, say, table_of
from costmodel.whole_run.budget import Budget, Purchase


def budget_grids(found: Budget) -> list[Grid]:
    """Return the tables of a budget."""
    own = {"Tokens/param >": _tokens_per_parameter}
    if found.served_tokens:
        own["Serving >"] = lambda choice: say("{serve_usd:$}", choice) or "too large"
        own["Together >"] = lambda choice: (
            "–" if choice.serve_usd is None else f"${choice.serve_usd + choice.train_usd:,.0f}"
        )
    grids = [_bought(found), table_of("budget", found.choices, own)]
    if found.solved:
        dash = {"Tokens >": lambda choice: say("{tokens:count}", choice) or "–"}
        title = f"{format_count(found.answers)} problems"
        grids.append(table_of("solved", found.solved, dash, title=title))
    return grids


def _bought(found: Budget) -> Grid:
    """Return what the budget buys before anything is chosen."""
    when = ""
    if found.gpus is not None and found.days is not None:
        when = f" on {plural(found.gpus, 'GPU')} in {found.days:,.1f} days"
    spread = {name: tuple(ends.values()) for name, ends in found.spread.items()}
    spent = "${:,.0f} / ${:,.0f} / ${:,.0f}".format(*spread["dollars"])
    if "days" in spread:
        spent += " and {:,.1f} / {:,.1f} / {:,.1f} days".format(*spread["days"])
    bought = "{:.3g} / {:.3g} / {:.3g} FLOP".format(*spread["training_flops"])
    rows = facts_of("budget", found, when=when, spent=spent, bought=bought)
    rows += facts_of("budget serving", found) if found.served_tokens else []
    return Grid(f"A budget on {found.cluster.accelerator.name}", columns("", ""), rows)


def _tokens_per_parameter(choice: Purchase) -> str:
    ratio = choice.tokens_per_parameter
    return f"{ratio:,.2g}" if ratio < 10 else f"{ratio:,.0f}"
