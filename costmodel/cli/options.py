"""Options that mean the same in every command that takes them."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Format(StrEnum):
    """How a result is printed."""

    table = "table"
    json = "json"
    csv = "csv"


class Form(StrEnum):
    """Which of the two tables of an estimate a CSV holds."""

    long = "long"
    wide = "wide"


FormatOption = Annotated[
    Format | None,
    typer.Option("--format", help="How to print the result; default: by the ending of --out, or table."),
]
OutOption = Annotated[
    str, typer.Option("--out", metavar="FILE", help="Write the result here instead of printing it; - prints.")
]
CsvOption = Annotated[str, typer.Option("--csv", metavar="FILE", help="Write the CSV here as well.")]
PlotOption = Annotated[
    str, typer.Option("--plot", metavar="FILE", help="Draw a figure into this picture: .svg, .png or .pdf.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing on stderr but errors.")]
ProfilesOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--profiles", metavar="DIR", help="Folder with your own hardware profiles; may be repeated."
    ),
]

JobArgument = Annotated[
    str, typer.Argument(metavar="JOB.yaml", help="Job file; flags go on top of it.", show_default=False)
]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", "-m", help="Preset, dense-<N>b, model file or HuggingFace config.json."),
]
ClusterOption = Annotated[
    str | None, typer.Option("--cluster", "-c", help="Cluster profile or file.  [default: dgx-h100-ndr]")
]
GpusOption = Annotated[int | None, typer.Option("--gpus", "-n", help="GPUs of the job.")]
LayoutOption = Annotated[
    str | None, typer.Option("--layout", "-l", help='Degrees in one text: "tp8 cp1 pp16 vp2".')
]
TpOption = Annotated[int | None, typer.Option("--tp", help="Tensor-parallel degree.  [default: 1]")]
CpOption = Annotated[int | None, typer.Option("--cp", help="Context-parallel degree.  [default: 1]")]
PpOption = Annotated[int | None, typer.Option("--pp", help="Pipeline stages.  [default: 1]")]
DpOption = Annotated[
    int | None, typer.Option("--dp", help="Data-parallel degree; follows from the rest, so a check.")
]
VpOption = Annotated[
    int | None, typer.Option("--vp", help="Virtual stages of a pipeline rank.  [default: 1]")
]
EpOption = Annotated[int | None, typer.Option("--ep", help="Expert-parallel degree.  [default: 1]")]
EtpOption = Annotated[
    int | None, typer.Option("--etp", help="Tensor-parallel degree of experts.  [default: 1]")
]
MicroBatchOption = Annotated[
    int | None, typer.Option("--micro-batch", help="Sequences of a micro-batch.  [default: 1]")
]
GlobalBatchOption = Annotated[int | None, typer.Option("--global-batch", help="Sequences a step.")]
SeqLenOption = Annotated[int | None, typer.Option("--seq-len", help="Tokens of a sequence.")]
PrecisionOption = Annotated[
    str | None,
    typer.Option(
        "--precision",
        help="bf16, fp16, fp32, fp8-delayed, fp8-current, fp8-block, mxfp8, mxfp4 or nvfp4.  [default: bf16]",
    ),
]
RecomputeOption = Annotated[
    str | None, typer.Option("--recompute", help="none, selective or full.  [default: none]")
]
ZeroOption = Annotated[
    int | None,
    typer.Option(
        "--zero", help="What dp shards: 0 nothing, 1 optimizer, 2 + gradients, 3 all.  [default: 1]"
    ),
]
ShardGroupOption = Annotated[
    int | None,
    typer.Option("--shard-group", help="Ranks that shard together (HSDP); 0 for all.  [default: 0]"),
]
ScheduleOption = Annotated[
    str | None,
    typer.Option(
        "--schedule", help="Pipeline schedule, such as gpipe, 1f1b, interleaved, zb-h1 or dualpipe."
    ),
]
SequenceOption = Annotated[
    bool | None,
    typer.Option(
        "--sequence-parallel/--no-sequence-parallel",
        help="Shard norms and residuals over tp.  [default: where tp > 1]",
    ),
]
RecipeOption = Annotated[
    str | None, typer.Option("--recipe", "-r", help="How a framework runs a step.  [default: megatron-core]")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-s", metavar="SWITCH=VALUE", help="Change a switch of the recipe; may be repeated."
    ),
]
OrderOption = Annotated[
    str | None,
    typer.Option("--axis-order", help='Axes on the machine, innermost first.  [default: "tp cp dp pp"]'),
]
TokensOption = Annotated[
    float | None, typer.Option("--tokens", help="Tokens of the whole run, for days and GPU-hours.")
]
StragglersOption = Annotated[
    bool | None,
    typer.Option(
        "--stragglers/--no-stragglers",
        help="Let every step wait for its slowest rank (see the straggler_* switches).  [default: the recipe's]",
    ),
]
