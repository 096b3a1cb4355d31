"""Hardware profiles as tables: lists of them, and one with its numbers and their sources."""

from __future__ import annotations

from costmodel.base.grid import Grid, columns
from costmodel.base.units import format_si
from costmodel.describe.hardware.profile_pages import ProfilePage


def page_grids(page: ProfilePage) -> list[Grid]:
    """Return one profile as tables: the tiers of a cluster, then the numbers of the file."""
    grids = []
    if page.cluster is not None:
        rows = [
            [
                tier.name,
                tier.link,
                f"{tier.size:,}",
                format_si(tier.bandwidth_bytes_per_s, "B/s"),
                f"{tier.oversubscription:g}:1",
                f"{tier.efficiency:.0%}",
                f"{tier.latency_s * 1e6:.2g} us",
            ]
            for tier in page.cluster.tiers
        ]
        titles = columns(
            "Tier", "Link", "GPUs >", "Line rate >", "Oversubscribed >", "Achieved >", "Latency >"
        )
        note = "Rates per GPU and direction, innermost tier first."
        title = f"{page.name}: {page.cluster.title} ({page.cluster.accelerator.name})"
        grids.append(Grid(title, titles, rows, note=note))
    numbers = [[number.key, number.value, number.source, number.title] for number in page.numbers]
    grids.append(
        Grid(f"{page.kind} {page.name}", columns("Key", "Value", "Source", "Title of the source"), numbers)
    )
    return grids
