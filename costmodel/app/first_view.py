"""What the page shows first: one line of numbers, the step as a bar, the memory of every stage against the device."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from costmodel.base.units import format_bytes, format_seconds, format_si
from costmodel.base.words import called
from costmodel.describe.hardware.hardware import load_cluster
from costmodel.describe.hardware.prices import price_text
from costmodel.describe.jobs.fields import known_words
from costmodel.reporting import tables
from costmodel.reporting.charts import FILLS, ink_on
from costmodel.reporting.series import MEMORY_PARTS, job_title, memory_stacks, time_parts

if TYPE_CHECKING:
    from costmodel.estimates.estimate import Estimate

_STAGES = 12
"""Rows of the memory gauge; of more stages some are shown."""
_NAMED = 0.07
"""Share of a bar from which on a part has its name inside."""

Part = tuple[str, str, float, str]
"""Label, name of the fill, share of the bar, and the amount as text."""


def head(est: Estimate) -> str:
    """Return the job, whether it fits, and its numbers in one line; the rest of them folded."""
    need, have = float(est.memory_bytes_per_gpu), est.memory_capacity_bytes
    numbers = [
        f'<b class="big">{format_seconds(float(est.step_time_s), 4)}</b> a step',
        f"<b>{float(est.mfu):.1%}</b> MFU",
        f'<span class="{"fits" if est.fits else "over"}"><b>{format_bytes(need)}</b> of {format_bytes(have)} a GPU</span>',
        f"<b>{float(est.tokens_per_s_per_gpu):,.0f}</b> tokens/s/GPU",
    ]
    details = [
        f"{float(est.fits_probability):.0%} likely to fit",
        f"error band: {tables.band_text(est)}",
        f"causal-masked MFU: {float(est.mfu_causal):.1%}",
        f"step: {tables.breakdown_text(est)}",
    ]
    if est.job.tokens is not None:
        numbers.append(f"<b>{float(est.days(est.job.tokens)):,.1f}</b> days")
        usd = est.job.cluster.price_usd_per_gpu_hour
        if usd is not None:
            numbers.append(f"<b>${usd * float(est.gpu_hours(est.job.tokens)):,.0f}</b>")
            details.append(f"dollars: at {price_text(est.job.cluster)}, no failures")
        details.append(f"days: for {format_si(est.job.tokens, '')} tokens, no failures")
    about = f"{tables.job_text(est)}; recipe {est.job.recipe.name}"
    html = (
        f"<header><h1>{escape(job_title(est))}</h1><p>{escape(about)}</p></header>{_refusal(est)}"
        f'<p class="numbers">{" · ".join(numbers)}</p>'
        f'<details class="more"><summary>How sure, and by which convention</summary>{_items(details)}</details>'
    )
    return called(html, est.device_word)


def _items(texts: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


def _refusal(est: Estimate) -> str:
    """Say that a job does not fit so that nobody overlooks it; nothing where it does."""
    if est.fits:
        return ""
    if not est.fits_gpu:
        over = format_bytes(float(est.memory_bytes_per_gpu) - est.memory_capacity_bytes)
        why = f"a GPU lacks {over}: more GPUs, more sharding or recomputation, or one of the layouts to try below"
    else:
        why = "the host's memory is too small for what is offloaded"
    return f'<p class="refused" role="alert"><b>DOES NOT FIT</b> {why}</p>'


def overview(est: Estimate) -> str:
    """Return the step as a bar and the memory of each stage, as HTML with every number in text too."""
    return called(_step(est) + _memory(est), est.device_word)


def _step(est: Estimate) -> str:
    step = float(est.step_time_s)
    parts = [
        (part.label, part.fill, part.exposed_s / step, format_seconds(part.exposed_s, 3))
        for part in time_parts(est)
        if part.exposed_s > 0
    ]
    title = f"Where a step of {format_seconds(step, 4)} goes"
    return f'<section class="view"><h2>{title}</h2>{_bar(parts, 1.0)}{_key(parts, has_shares=True)}</section>'


def _memory(est: Estimate) -> str:
    stages, held = memory_stacks(est)
    capacity, totals = est.memory_capacity_bytes, np.sum(list(held.values()), axis=0)
    longest = 1.04 * max(capacity, float(np.max(totals)))
    worst = int(np.argmax(totals))
    shown = sorted({worst, *np.linspace(0, len(stages) - 1, min(_STAGES, len(stages))).astype(int).tolist()})
    rows = []
    for at in shown:
        parts = [
            (label, name, float(held[name][at]) / longest, format_bytes(float(held[name][at])))
            for label, name in MEMORY_PARTS
            if held[name][at] > 0
        ]
        kind = "over" if totals[at] > capacity else "fits"
        rows.append(
            f'<div class="stage"><span>stage {stages[at]:.0f}</span>{_bar(parts, capacity / longest)}'
            f'<span class="{kind}">{format_bytes(float(totals[at]))}</span></div>'
        )
    fills = [
        (label, name, 1.0, format_bytes(float(held[name][worst])))
        for label, name in MEMORY_PARTS
        if held[name].max() > 0
    ]
    some = (
        "" if len(shown) == len(stages) else f"; {len(shown)} of {len(stages)} stages, the fullest among them"
    )
    title = f"Memory of a GPU; the line is the {format_bytes(capacity)} of {escape(est.job.cluster.accelerator.name)}"
    key = _key(fills, f"on stage {stages[worst]:.0f}: ")
    return f'<section class="view memory"><h2>{title}{some}</h2>{"".join(rows)}{key}</section>'


def _bar(parts: Iterable[Part], line: float) -> str:
    """Return a bar of parts; its `line`, where not at the end, is what the device offers."""
    inside = "".join(
        f'<i class="{name}" style="width:{100 * share:.3f}%;background-color:{FILLS[name][0]};color:{ink_on(FILLS[name][0])}" '
        f'title="{escape(label)}: {text}">{escape(label.split(" (")[0]) if share > _NAMED else ""}</i>'
        for label, name, share, text in parts
    )
    limit = f'<s style="left:{100 * line:.3f}%"></s>' if line < 1 else ""
    return f'<div class="bar" aria-hidden="true">{inside}{limit}</div>'


def _key(parts: Iterable[Part], before: str = "", *, has_shares: bool = False) -> str:
    """Return the parts in words, each behind its colour."""
    rows = "".join(
        f'<li><i class="{name}" style="background-color:{FILLS[name][0]}"></i>{escape(label)} <b>{text}</b>'
        f"{f' {share:.1%}' if has_shares else ''}</li>"
        for label, name, share, text in parts
    )
    return f'<ul class="key">{f"<li>{before}</li>" if before else ""}{rows}</ul>'


@cache
def pickers() -> dict[str, dict[str, list[str]]]:
    """Return the models by family and the machines by generation of accelerator, for those who know no name."""

    def generation(name: str) -> str:
        return load_cluster(name).accelerator.generation

    def family(name: str) -> str:
        return name.partition("-")[0].rstrip("0123456789.")

    return {
        field: {
            title: list(names)
            for title, names in groupby(sorted(known_words(field), key=lambda n: (of(n), n)), of)
        }
        for field, of in (("model", family), ("cluster", generation))
    }
