"""Inference as tables: the figures people ask for, and the lines of a decode step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_bytes, format_seconds
from costmodel.base.words import plural
from costmodel.describe.hardware.prices import price_text
from costmodel.reporting.tables import CATEGORY

if TYPE_CHECKING:
    from costmodel.generation.generate import Generation

_LINES = 8
"""Largest lines that a terminal shows; `--format json` has all, with their formulas."""


def generation_grids(found: Generation) -> list[Grid]:
    """Return the figures, and the largest lines of a decode step."""
    return [_head(found), _lines(found)]


def generation_remarks(found: Generation) -> list[str]:
    """Return the warnings."""
    return list(found.warnings)


def _head(found: Generation) -> Grid:
    served, work, memory = found.served, found.work, found.memory
    named = (f"{name}{degree:.0f}" for name, degree in found.split._asdict().items() if degree > 1)
    chosen = f", the best of {found.considered:,}" if found.considered > 1 else ""
    usd = found.usd_per_million_tokens
    rows = [
        ("layout", f"{' '.join(named) or 'tp1'}, {plural(found.replicas, 'replica')}{chosen}"),
        ("setting", f"{served.cluster.name}, {served.engine.name}, weights in {served.weights.name}"),
        (
            "workload",
            f"prompts of {work.prompt_len:,.0f} tokens, answers of {work.response_len:,.0f}; "
            f"{found.running:,.0f} run together, {found.largest_batch:,.0f} fit in memory",
        ),
        (
            "latency",
            f"{format_seconds(found.itl_s, 4)} a token, {format_seconds(found.first_token_s)} to the first",
        ),
        (
            "memory",
            f"{format_bytes(memory['weights'])} of weights and {format_bytes(memory['cache_room'])} of cache a GPU",
        ),
        ("cache", f"{format_bytes(found.cache_bytes_per_token)} a token"),
    ]
    if usd is not None:
        rows.append(("price", f"${usd:,.3g} per million generated tokens, at {price_text(served.cluster)}"))
    title = (
        f"{served.model.name} on {plural(work.gpus, 'GPU')} of {served.cluster.accelerator.name}: "
        f"{found.tokens_per_s_per_gpu:,.0f} tokens/s/GPU"
    )
    return Grid(title, columns("", ""), rows)


def _lines(found: Generation) -> Grid:
    whole = found.itl_s
    lines = sorted(found.bill.time_lines, key=lambda line: -float(line.exposed_seconds))
    rows = [
        [
            line.name.removeprefix("decode."),
            CATEGORY[line.category],
            format_seconds(float(line.exposed_seconds)),
            f"{float(line.exposed_seconds) / whole:.1%}",
        ]
        for line in lines[:_LINES]
        if float(line.exposed_seconds) > 0
    ]
    return Grid("", columns("Largest lines of a token", "Category", "Time >", "Share >"), rows)
