"""``costmodel estimate``: the bill of one job."""

from typing import Annotated, Any

import typer

from costmodel.cli import options as opt

EPILOG = """\b
Examples:
  costmodel estimate -m llama3-405b -c llama3-roce -n 16384 -l "tp8 cp1 pp16 vp8" \\
      --global-batch 2048 --seq-len 8192 --tokens 15.6e12
  costmodel estimate job.yaml --recompute full --set attention_kernel=flash3
  costmodel estimate job.yaml --plot pipeline.svg --figure pipeline
  costmodel estimate job.yaml --format json | jq .mfu
"""


def estimate(
    job: opt.JobArgument = "",
    model: opt.ModelOption = None,
    cluster: opt.ClusterOption = None,
    gpus: opt.GpusOption = None,
    layout: opt.LayoutOption = None,
    tp: opt.TpOption = None,
    cp: opt.CpOption = None,
    pp: opt.PpOption = None,
    dp: opt.DpOption = None,
    vp: opt.VpOption = None,
    ep: opt.EpOption = None,
    etp: opt.EtpOption = None,
    micro_batch: opt.MicroBatchOption = None,
    global_batch: opt.GlobalBatchOption = None,
    seq_len: opt.SeqLenOption = None,
    precision: opt.PrecisionOption = None,
    recompute: opt.RecomputeOption = None,
    zero_stage: opt.ZeroOption = None,
    shard_group: opt.ShardGroupOption = None,
    schedule: opt.ScheduleOption = None,
    sequence_parallel: opt.SequenceOption = None,
    recipe: opt.RecipeOption = None,
    switches: opt.SetOption = None,
    axis_order: opt.OrderOption = None,
    tokens: opt.TokensOption = None,
    stragglers: opt.StragglersOption = None,
    profiles: opt.ProfilesOption = None,
    every_line: Annotated[bool, typer.Option("--all-lines", help="Also list the lines below 0.5 %.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with code 3 if the job does not fit.")] = False,
    form: Annotated[
        opt.Form, typer.Option("--form", help="CSV with a row a line of the bill, or a row a layout.")
    ] = opt.Form.long,
    plot: opt.PlotOption = "",
    figure: Annotated[
        str,
        typer.Option(
            "--figure",
            help="Which: time, memory, pipeline, compute-roofline, communication-roofline or mesh.  [default: time]",
        ),
    ] = "",
    format: opt.FormatOption = None,
    out: opt.OutOption = "",
    csv: opt.CsvOption = "",
    force: opt.ForceOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Price one training step: step time, MFU and memory per GPU, with the lines they add up from.

    A job is given by flags, by a YAML file with the same names as keys, or by both; flags win.
    """
    given: dict[str, Any] = dict(locals())
    from costmodel.cli.output import Result, plan_output, show
    from costmodel.cli.pictures import planned_figure
    from costmodel.describe.job import DEFAULT_CLUSTER, JOB_KEYS
    from costmodel.describe.job_merge import merge_jobs, read_job, read_switches, require_complete
    from costmodel.estimates import estimate as price_job
    from costmodel.report import frames, records, tables
    from costmodel.report.plots.faces import EstimatePlots

    target = plan_output(format, out, csv, force=force, quiet=quiet)
    draw = planned_figure(EstimatePlots, plot, figure, force=force)
    flags = {key: given[key] for key in JOB_KEYS if key in given}
    merged = merge_jobs(read_job(job) if job else {}, {**flags, "switches": read_switches(switches, stragglers)})
    require_complete(merged)
    if profiles:
        from costmodel.describe.hardware import load_cluster

        merged["cluster"] = load_cluster(merged.get("cluster", DEFAULT_CLUSTER), profile_path=profiles)
    est = price_job(**merged)
    in_form = frames.long_columns if form is opt.Form.long else frames.wide_columns
    show(
        Result(
            grids=lambda: tables.estimate_grids(est, every_line=every_line),
            record=lambda: records.estimate_record(est),
            table=lambda: in_form(est),
            remarks=[f"Warning: {warning}" for warning in est.warnings],
        ),
        target,
    )
    draw(est.plot, target)
    if check and not est.fits:
        raise typer.Exit(3)
