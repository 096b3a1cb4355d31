"""``costmodel collective``: what one collective costs on a fabric, by every algorithm."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from costmodel.cli import options as opt
from costmodel.cli.job_options import takes_output

EPILOG = """\b
Examples:
  costmodel collective all-reduce --size 1GB --ranks 64 --cluster h100-ndr
  costmodel collective all-gather --sizes 8B:16GiB --ranks 16 --members-per-node 1 --out sweep.csv
  costmodel collective all-reduce --size 1MB --ranks 8 --alpha 1us --bandwidth 450GB/s
  costmodel collective moe-dispatch --size 28MiB --ranks 32 --top-k 8 --node-limit 4 -c h800-cx7
"""


@takes_output()
def collective(
    output: Mapping[str, Any],
    name: Annotated[
        str,
        typer.Argument(
            metavar="COLLECTIVE",
            help="all-reduce, all-gather, reduce-scatter, all-to-all, broadcast, reduce, scatter, gather, "
            "send-recv, moe-dispatch or moe-combine.",
            show_default=False,
        ),
    ],
    ranks: Annotated[int, typer.Option("--ranks", "-n", help="GPUs of the group.")],
    size: Annotated[
        str,
        typer.Option(
            "--size", help="Bytes of the full tensor, such as 1GB; for moe-* of all tokens of a rank."
        ),
    ] = "",
    sizes: Annotated[
        str,
        typer.Option("--sizes", metavar="FROM:TO[:FACTOR]", help="A range of sizes, such as 8B:16GB."),
    ] = "",
    cluster: opt.ClusterOption = None,
    members: Annotated[
        int | None,
        typer.Option(
            "--members-per-node",
            help="Members inside one innermost domain; 1 for a data-parallel group of full TP nodes.  [default: as many as fit]",
        ),
    ] = None,
    concurrent: Annotated[
        float, typer.Option("--concurrent", min=1.0, help="Groups at a time that share each port and link.")
    ] = 1.0,
    tier: Annotated[
        str | None,
        typer.Option("--tier", help="Tier of the textbook formulas.  [default: the outermost one crossed]"),
    ] = None,
    alpha: Annotated[
        str, typer.Option("--alpha", help="No cluster, but a flat fabric of this latency a step (1us) …")
    ] = "",
    bandwidth: Annotated[str, typer.Option("--bandwidth", help="… and this rate per GPU (450GB/s).")] = "",
    top_k: Annotated[int, typer.Option("--top-k", min=1, help="Experts of a token, for moe-*.")] = 8,
    node_limit: Annotated[
        int, typer.Option("--node-limit", min=0, help="Nodes that a token may go to, 0 for all, for moe-*.")
    ] = 0,
    imbalance: Annotated[
        float, typer.Option("--imbalance", min=1.0, help="Busiest rank's tokens over the mean, for moe-*.")
    ] = 1.0,
    profiles: opt.ProfilesOption = None,
    plot: opt.PlotOption = "",
) -> None:
    """Price one collective by every algorithm: NCCL's ways on the fabric, and the textbook's on one tier."""
    import costmodel as cm
    from costmodel.base.errors import LayoutError
    from costmodel.base.units import read_quantity
    from costmodel.cli.output import answer_result, plan_output, show
    from costmodel.cli.pictures import planned_figure
    from costmodel.cli.sizes import parse_size, parse_sizes

    target = plan_output(**output)
    draw = planned_figure("CollectiveCosts", plot, "", force=output["force"])
    if bool(size) == bool(sizes):
        raise LayoutError("size: expected either --size, such as 1GB, or --sizes, such as 8B:16GB")
    if bool(alpha) != bool(bandwidth):
        raise LayoutError("alpha: expected --alpha and --bandwidth together, or --cluster")
    if alpha and (cluster is not None or tier is not None or members is not None):
        raise LayoutError("alpha: a flat fabric takes no --cluster, --tier or --members-per-node")
    found = cm.collective(
        name,
        parse_size(size) if size else parse_sizes(sizes),
        ranks=ranks,
        cluster=cm.load_cluster(cluster, profile_path=profiles) if cluster else None,
        members_per_node=members,
        tier=tier,
        concurrent=concurrent,
        latency_s=read_quantity("alpha", alpha, "s") if alpha else None,
        bandwidth_bytes_per_s=read_quantity("bandwidth", bandwidth, "B/s") if bandwidth else None,
        top_k=top_k,
        node_limit=node_limit,
        imbalance=imbalance,
    )
    show(answer_result(found), target)
    draw(found.plot, target)
