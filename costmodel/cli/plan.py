"""``costmodel plan``: the best layout of all that divide and fit."""

from typing import Annotated, Any

import typer

from costmodel.cli import options as opt

EPILOG = """\b
Examples:
  costmodel plan -m gpt3-175b -c dgx-a100-hdr -n 4096 --global-batch 1536 --seq-len 2048
  costmodel plan -m llama3-70b -n 64 --global-batch 128 --seq-len 8192 --tp 1,2,4,8 \\
      --fix schedule=1f1b --max-memory 72GiB --why-not "tp8 pp4" --csv plans.csv
  costmodel plan job.yaml --gpus 256,512,1024 --objective gpu-hours --format json
  costmodel plan job.yaml --emit megatron > flags.txt
"""


def _knob(name: str, help: str) -> Any:
    return typer.Option(name, metavar="VALUES", help=help)


GpuCounts = Annotated[
    str | None,
    typer.Option("--gpus", "-n", metavar="VALUES", help="GPUs of the job; several compare scales."),
]
Batches = Annotated[str | None, _knob("--global-batch", "Sequences a step.")]
Clusters = Annotated[
    str | None,
    typer.Option("--cluster", "-c", metavar="VALUES", help="Cluster profiles.  [default: dgx-h100-ndr]"),
]
Precisions = Annotated[str | None, _knob("--precision", "Precisions of the GEMMs.  [default: bf16]")]
Degrees = Annotated[str | None, _knob("--tp", "Tensor-parallel degrees to try.")]


def plan(
    job: opt.JobArgument = "",
    model: opt.ModelOption = None,
    cluster: Clusters = None,
    gpus: GpuCounts = None,
    global_batch: Batches = None,
    seq_len: opt.SeqLenOption = None,
    tp: Degrees = None,
    cp: Annotated[str | None, _knob("--cp", "Context-parallel degrees to try.")] = None,
    pp: Annotated[str | None, _knob("--pp", "Numbers of pipeline stages to try.")] = None,
    vp: Annotated[str | None, _knob("--vp", "Virtual stages to try.")] = None,
    ep: Annotated[str | None, _knob("--ep", "Expert-parallel degrees to try.")] = None,
    etp: Annotated[str | None, _knob("--etp", "Tensor-parallel degrees of experts to try.")] = None,
    micro_batch: Annotated[str | None, _knob("--micro-batch", "Micro-batches to try.")] = None,
    zero_stage: Annotated[str | None, _knob("--zero", "ZeRO stages to try, 0 to 3.")] = None,
    shard_group: Annotated[
        str | None, _knob("--shard-group", "Ranks that shard together; 0 for all.")
    ] = None,
    recompute: Annotated[str | None, _knob("--recompute", "none, selective, full.")] = None,
    schedule: Annotated[
        str | None, _knob("--schedule", "Pipeline schedules to try, such as 1f1b,interleaved.")
    ] = None,
    sequence_parallel: Annotated[str | None, _knob("--sequence-parallel", "true, false or both.")] = None,
    fix: Annotated[
        list[str] | None, typer.Option("--fix", metavar="KNOB=VALUE", help="Decide a knob; may be repeated.")
    ] = None,
    max_memory: Annotated[str, typer.Option("--max-memory", help="Memory limit a GPU, such as 72GiB.")] = "",
    headroom: Annotated[
        str, typer.Option("--headroom", help="Share of memory to leave free, such as 10%.")
    ] = "",
    objective: Annotated[
        str, typer.Option("--objective", help="step-time, mfu, tokens-per-dollar or gpu-hours.")
    ] = "step-time",
    offload: Annotated[
        str,
        typer.Option("--offload", help="Optimizer states on the CPU: true, false, or true,false to choose."),
    ] = "",
    why_not: Annotated[
        list[str] | None,
        typer.Option("--why-not", metavar="LAYOUT", help="Explain why this is not the plan."),
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Layouts to show.")] = 10,
    emit: Annotated[
        str, typer.Option("--emit", help="Print the best layout for megatron, torchtitan, deepspeed or nemo.")
    ] = "",
    framework: Annotated[
        str, typer.Option("--framework", help="Only what megatron, torchtitan, deepspeed or nemo can launch.")
    ] = "",
    precision: Precisions = None,
    recipe: opt.RecipeOption = None,
    switches: opt.SetOption = None,
    axis_order: opt.OrderOption = None,
    tokens: opt.TokensOption = None,
    profiles: opt.ProfilesOption = None,
    plot: opt.PlotOption = "",
    figure: Annotated[
        str,
        typer.Option("--figure", help="Which: pareto or scaling (of several GPU counts).  [default: pareto]"),
    ] = "",
    check: Annotated[bool, typer.Option("--check", help="Exit with code 3 if no layout is found.")] = False,
    format: opt.FormatOption = None,
    out: opt.OutOption = "",
    csv: opt.CsvOption = "",
    force: opt.ForceOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Find the best layout: every one that divides is priced; the best, the front and the reasons are shown.

    Knobs that are not given take every sensible value. Wrong input and constraints that nothing
    meets are one line that names the constraint and what would do.
    """
    given: dict[str, Any] = dict(locals())
    from costmodel.base.errors import NoLayoutError
    from costmodel.cli.output import Result, plan_output, show
    from costmodel.cli.pictures import planned_figure
    from costmodel.cli.plan_input import asked_of, emitted, waiting, write_parquet
    from costmodel.planning.plan import make_question, search
    from costmodel.reporting.faces import PlanFace

    parquet = out if out.lower().endswith(".parquet") else ""
    target = plan_output(format, "" if parquet else out, csv, force=force, quiet=quiet)
    draw = planned_figure(PlanFace, plot, figure, force=force)
    asked = asked_of(given)
    try:
        question = make_question(**asked)
        with waiting("pricing layouts", quiet=quiet) as progress:
            found = search(question, progress=progress)
    except NoLayoutError as error:
        if not check:
            raise
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(3) from None
    answers = [(text, found.why_not(text, job=int(found.kept.top["job"][0]))) for text in why_not or []]
    remarks = [*found.advice(), *(f"Why not {text}: {answer}" for text, answer in answers)]
    if emit:
        typer.echo(emitted(found.best, emit), nl=False)
        if not quiet:
            typer.echo("\n".join(remarks), err=True)
        return
    if parquet:
        write_parquet(found, parquet, force=force, quiet=quiet)
    gains = found.gains()
    show(
        Result(
            grids=lambda: found.grids(count=top, gains=gains),
            record=lambda: found.to_dict(count=top, gains=gains, answers=answers),
            table=found.columns,
            remarks=remarks,
        ),
        target,
    )
    draw(found.plot, target)
