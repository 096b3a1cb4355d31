"""``costmodel read``: a file of another program in our names."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from costmodel.cli import options as opt
from costmodel.cli.job_options import takes_job

EPILOG = """\b
Examples:
  costmodel read train.sh
  costmodel read config.json --format json | jq .model.num_params
  costmodel read ds_config.json --gpus 64 --micro-batch 1 --precision bf16 --out job.yaml
  costmodel read run.slurm --env MODEL_SIZE=8B --env TP=2
"""


class ReadFormat(StrEnum):
    """Forms of the answer."""

    table = "table"
    json = "json"
    yaml = "yaml"


@takes_job(output=("out", "force", "quiet"))
def read(
    given: Mapping[str, Any],
    *,
    job: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Launch script, framework configuration, config.json, nccl-tests log or job file.",
            show_default=False,
        ),
    ],
    format: Annotated[
        ReadFormat | None,
        typer.Option("--format", help="table, json or yaml (a job file); default: by --out."),
    ] = None,
    collective: Annotated[
        str, typer.Option("--collective", help="Of a log that does not name it, such as all_reduce.")
    ] = "",
    ranks: Annotated[
        int | None, typer.Option("--ranks", min=2, help="GPUs of a log without a list of them.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, help="Hosts of a log without a list of them.")
    ] = None,
    output: Mapping[str, Any],
) -> None:
    """Read a file of another program: what it trains, on what, how, and what was not understood.

    What the file leaves to its surroundings (GPUs, vocabulary, "auto") is given by flags of the same names.
    """
    from costmodel.cli.output import Result, plan_output, show, write_file
    from costmodel.cli.read_input import surroundings, told, write_model
    from costmodel.interop.answer import job_yaml, record
    from costmodel.interop.reading import read as read_file
    from costmodel.reporting.imports import import_grids

    endings = {".yaml": ReadFormat.yaml, ".yml": ReadFormat.yaml, ".json": ReadFormat.json}
    form = format or endings.get(Path(output["out"]).suffix, ReadFormat.table)
    shape = opt.Format.json if form is ReadFormat.json else opt.Format.table
    target = plan_output(format=shape, **output)
    log: dict[str, Any] = {"collective": collective or None, "ranks": ranks, "nodes": nodes}
    found = read_file(job, given["kind"] or "", **surroundings(given), **log)
    if form is ReadFormat.yaml:
        text = job_yaml(found, write_model(found, target))
        typer.echo(text, nl=False) if target.out is None else write_file(target.out, text, target)
    else:
        show(Result(lambda: import_grids(found), lambda: record(found), dict), target)
    if not output["quiet"]:
        told(found)
