"""``costmodel read``: a file of another program in our names."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from costmodel.cli import options as opt

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


def read(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Launch script, framework configuration, config.json, nccl-tests log or job file.",
            show_default=False,
        ),
    ],
    kind: Annotated[
        str, typer.Option("--from", metavar="KIND", help="What the file is.  [default: its content tells]")
    ] = "",
    format: Annotated[
        ReadFormat | None, typer.Option("--format", "-f", help="table, json or yaml (a job file).")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env", metavar="NAME=VALUE", help="Variable that a script finds set; may be repeated."
        ),
    ] = None,
    vocab_size: Annotated[
        int | None, typer.Option("--vocab-size", min=1, help="Tokens, where only a tokenizer would say.")
    ] = None,
    model: opt.ModelOption = None,
    cluster: opt.ClusterOption = None,
    gpus: opt.GpusOption = None,
    tp: opt.TpOption = None,
    cp: opt.CpOption = None,
    pp: opt.PpOption = None,
    ep: opt.EpOption = None,
    micro_batch: opt.MicroBatchOption = None,
    global_batch: opt.GlobalBatchOption = None,
    seq_len: opt.SeqLenOption = None,
    precision: opt.PrecisionOption = None,
    recompute: opt.RecomputeOption = None,
    zero_stage: opt.ZeroOption = None,
    recipe: opt.RecipeOption = None,
    collective: Annotated[
        str, typer.Option("--collective", help="Of a log that does not name it, such as all_reduce.")
    ] = "",
    ranks: Annotated[
        int | None, typer.Option("--ranks", min=2, help="GPUs of a log without a list of them.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, help="Hosts of a log without a list.")
    ] = None,
    out: opt.OutOption = "",
    force: opt.ForceOption = False,
    quiet: opt.QuietOption = False,
) -> None:
    """Read a file of another program: what it trains, on what, how, and what was not understood.

    What the file leaves to its surroundings (GPUs, vocabulary, "auto") is given by flags of the same names.
    """
    from costmodel.cli.output import Result, plan_output, show, write_whole
    from costmodel.cli.read_input import environment, told, write_model
    from costmodel.interop.answer import job_yaml, record
    from costmodel.interop.reading import read_file
    from costmodel.reporting.imports import import_grids

    endings = {".yaml": ReadFormat.yaml, ".yml": ReadFormat.yaml, ".json": ReadFormat.json}
    form = format or endings.get(Path(out).suffix, ReadFormat.table)
    shape = opt.Format.json if form is ReadFormat.json else opt.Format.table
    target = plan_output(shape, out, force=force, quiet=quiet)
    found = read_file(
        file,
        kind,
        env=environment(env),
        vocab_size=vocab_size,
        model=model,
        cluster=cluster,
        gpus=gpus,
        tp=tp,
        cp=cp,
        pp=pp,
        ep=ep,
        micro_batch=micro_batch,
        global_batch=global_batch,
        seq_len=seq_len,
        precision=precision,
        recompute=recompute,
        zero_stage=zero_stage,
        recipe=recipe,
        collective=collective or None,
        ranks=ranks,
        nodes=nodes,
    )
    if form is ReadFormat.yaml:
        text = job_yaml(found, write_model(found, target))
        typer.echo(text, nl=False) if target.out is None else write_whole(target.out, text, target)
    else:
        show(Result(lambda: import_grids(found), lambda: record(found), dict), target)
    if not quiet:
        told(found)
