"""A collective over size: every algorithm's time, and the regions where the library takes which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from costmodel.estimates.collective import SEARCHED_SIZES, CollectiveCosts, Price, price_collective
from costmodel.reporting.figures import FILLS, new_figure

_STYLES = ("-", "--", "-.", ":")
_COLOURS = [FILLS[name][0] for name in ("math", "tp", "cp", "ep", "pp", "hbm", "overhead", "optimizer")]
_SHADES = ("#DCEAF4", "#FBEBC8", "#D7EEE6", "#F5E1EC", "#EEEEEE")


_DRAWN_SIZES = SEARCHED_SIZES[24::4]
"""From 8 B on, two an octave. [B]"""


def draw_collective(found: CollectiveCosts) -> Any:
    """Draw time over size; shaded regions name what is taken. One size is drawn among all."""
    prices: Sequence[Price] = found.prices
    if found.one_size:
        prices = price_collective(found.name, _DRAWN_SIZES, found.placed, found.routing)
    shown_name = found.name.replace("_", "-")
    title = f"{shown_name} over {found.placed.ranks:,} GPUs of {found.where}: time by size, and what is taken where"
    figure, axes = new_figure(title, size=(9.0, 6.0))
    sizes = prices[0].size_bytes
    library = [price for price in prices if price.family != "textbook"]
    shown = library or [price for price in prices if not price.needs]
    for index, price in enumerate(shown):
        axes.plot(
            price.size_bytes,
            price.time_s * 1e6,
            linestyle=_STYLES[index % 4],
            linewidth=1.8,
            color=_COLOURS[index % len(_COLOURS)],
            label=f"{price.family} {price.algorithm}",
        )
    if library:
        for price in prices:
            if price.family == "textbook" and price.algorithm == "ring":
                axes.plot(
                    price.size_bytes, price.time_s * 1e6, color="grey", linewidth=1.0, label="textbook ring"
                )
    low = min(float(price.time_s[price.time_s > 0].min()) for price in shown) * 1e6
    high = max(float(price.time_s.max()) for price in shown) * 1e6
    for index, one in enumerate(found.choices):
        left, right = max(one.from_bytes, float(sizes[0])), min(one.to_bytes, float(sizes[-1]))
        if right <= left:
            continue
        axes.axvspan(left, right, color=_SHADES[index % len(_SHADES)], zorder=0)
        axes.axvline(left, color="grey", linewidth=0.7)
        axes.text(
            np.sqrt(left * right),
            high * 2.2,
            one.algorithm,
            ha="center",
            va="top",
            fontsize="small",
            rotation=0 if np.log10(right / left) > 1.3 else 90,
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="size of the whole tensor [B]",
        ylabel="time [us]",
        xlim=(float(sizes[0]), float(sizes[-1])),
        ylim=(low * 0.6, high * 3.0),
    )
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    return figure
