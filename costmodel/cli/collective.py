"""``costmodel collective``: what one collective costs on a fabric, by every algorithm."""

from __future__ import annotations

import re
from typing import Any

from costmodel.base.errors import CostModelError, LayoutError, UnitError
from costmodel.base.units import read_quantity
from costmodel.cli.command import command
from costmodel.cli.output import Target, planned_figure

MAX_SIZES = 2000


@command(
    """
    costmodel collective all-reduce --size 1GB --ranks 64 --cluster h100-ndr
    costmodel collective all-gather --sizes 8B:16GiB --ranks 16 --members-per-node 1 --out sweep.csv
    costmodel collective all-reduce --size 1MB --ranks 8 --alpha 1us --bandwidth 450GB/s
    costmodel collective moe-dispatch --size 28MiB --ranks 32 --top-k 8 --node-limit 4 -c h800-cx7
    """,
    uses="cluster profiles plot",
)
def collective(target: Target, options: Any) -> None:
    """Price one collective by every algorithm: NCCL's ways on the fabric, and the textbook's on one tier."""
    import costmodel as cm

    draw = planned_figure("CollectiveCosts", options.plot, target)
    if bool(options.size) == bool(options.sizes):
        raise LayoutError("size: expected either --size, such as 1GB, or --sizes, such as 8B:16GB")
    found = cm.collective(
        options.name,
        parse_size(options.size) if options.size else parse_sizes(options.sizes),
        ranks=options.ranks,
        cluster=cm.load_cluster(options.cluster, profile_path=options.profiles) if options.cluster else None,
        members_per_node=options.members,
        concurrent=options.concurrent,
        latency_s=read_quantity("alpha", options.alpha, "s") if options.alpha else None,
        bandwidth_bytes_per_s=read_quantity("bandwidth", options.bandwidth, "B/s")
        if options.bandwidth
        else None,
        top_k=options.top_k,
        node_limit=options.node_limit,
        imbalance=options.imbalance,
    )
    target.show(found)
    draw(found)


def parse_size(text: str) -> float:
    """Read a size in bytes, without a space before the unit; a bare number is one of bytes.

    >>> parse_size("1GB"), parse_size("64MiB"), parse_size("8")
    (1000000000.0, 67108864.0, 8.0)
    """
    size = read_quantity("size", f"{text} B" if re.fullmatch(r"\s*[0-9]+\s*", text) else text, "B")
    if size <= 0:
        raise UnitError(f"size: expected more than 0 bytes; got {text!r}")
    return size


def parse_sizes(text: str) -> list[float]:
    """Read ``FROM:TO`` or ``FROM:TO:FACTOR`` as a geometric range with both ends; the factor is 2.

    >>> parse_sizes("1KiB:6KiB")
    [1024.0, 2048.0, 4096.0, 6144.0]
    """
    parts = text.split(":")
    if len(parts) not in (2, 3):
        raise CostModelError(f"sizes: expected FROM:TO or FROM:TO:FACTOR, such as 8B:16GB; got {text!r}")
    low, high = parse_size(parts[0]), parse_size(parts[1])
    try:
        factor = float(parts[2]) if len(parts) == 3 else 2.0
    except ValueError:
        factor = 0.0
    if not 1.0 < factor < 1e6:
        raise CostModelError(f"sizes: expected a factor above 1; got {parts[2]!r}")
    if low > high:
        raise CostModelError(f"sizes: expected a range that goes up; got {text!r}")
    sizes = [low]
    while sizes[-1] * factor <= high * (1 + 1e-12):
        sizes.append(sizes[-1] * factor)
        if len(sizes) > MAX_SIZES:
            raise CostModelError(f"sizes: {text!r} has more than {MAX_SIZES} sizes")
    return sizes if sizes[-1] >= high * (1 - 1e-12) else [*sizes, high]
