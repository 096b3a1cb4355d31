"""``costmodel mesh``: where the ranks of each axis sit."""

from typing import Any

from costmodel.cli import options as opt

EPILOG = """\b
Examples:
  costmodel mesh -c llama3-roce -n 16384 -l "tp8 cp1 pp16" --axis-order "tp cp pp dp"
  costmodel mesh -c dgx-h100-ndr -n 64 --tp 2 --zero 3 --shard-group 4
"""


def mesh(
    job: opt.JobArgument = "",
    cluster: opt.ClusterOption = None,
    gpus: opt.GpusOption = None,
    layout: opt.LayoutOption = None,
    tp: opt.TpOption = None,
    cp: opt.CpOption = None,
    pp: opt.PpOption = None,
    dp: opt.DpOption = None,
    ep: opt.EpOption = None,
    etp: opt.EtpOption = None,
    zero_stage: opt.ZeroOption = None,
    shard_group: opt.ShardGroupOption = None,
    sequence_parallel: opt.SequenceOption = None,
    recipe: opt.RecipeOption = None,
    axis_order: opt.OrderOption = None,
    profiles: opt.ProfilesOption = None,
    format: opt.FormatOption = None,
    out: opt.OutOption = "",
    csv: opt.CsvOption = "",
    force: opt.ForceOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Show each axis of a layout: its factor, its groups, the link they meet on and what they send.

    Needs no model; of a job file it reads what places the ranks.
    """
    given: dict[str, Any] = dict(locals())
    from costmodel.cli.output import Result, plan_output, show
    from costmodel.describe.jobs.merge import merge_jobs, place_job, read_job
    from costmodel.estimates.mesh import mesh_columns, mesh_grid, mesh_records, mesh_rows

    target = plan_output(format, out, csv, force=force, quiet=quiet)
    keys = (
        "cluster",
        "gpus",
        "layout",
        "tp",
        "cp",
        "pp",
        "dp",
        "ep",
        "etp",
        "zero_stage",
        "shard_group",
        "sequence_parallel",
        "recipe",
        "axis_order",
    )
    merged = merge_jobs(read_job(job) if job else {}, {key: given[key] for key in keys})
    rows = mesh_rows(*place_job(merged, profile_path=profiles))
    show(
        Result(
            grids=lambda: [mesh_grid(rows)],
            record=lambda: {"schema_version": 1, "mesh": mesh_records(rows)},
            table=lambda: mesh_columns(rows),
        ),
        target,
    )
