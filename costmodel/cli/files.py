"""Files and programs of others: ``costmodel read`` and ``validate``, and the server ``serve``."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from costmodel.base.errors import CostModelError
from costmodel.cli import options as opt
from costmodel.cli.command import command, read_flags, reading_of
from costmodel.cli.output import Result, Target, planned_figure, waiting
from costmodel.describe.jobs.fields import JOB_FIELDS, LENGTH_FIELDS

if TYPE_CHECKING:
    from costmodel.interop.framework import Imported


@command(
    """
    costmodel read train.sh
    costmodel read config.json --format json | jq .model.num_params
    costmodel read ds_config.json --gpus 64 --micro-batch 1 --precision bf16 --out job.yaml
    costmodel read run.slurm --env MODEL_SIZE=8B --env TP=2
    costmodel read --schema job --out job.schema.json
    """,
    fields=(*JOB_FIELDS, *LENGTH_FIELDS),
    output=("out", "force", "quiet", "details"),
    endings=(".yaml", ".yml"),
)
def read(given: Mapping[str, Any], target: Target, options: Any) -> None:
    """Read a file of another program: what it trains, on what, how, and what was not understood.

    What the file leaves to its surroundings (GPUs, vocabulary, "auto") is given by flags of the same names. With
    --schema a kind of our own files stands in its place: job, grid (of sweep), hardware, model or recipe. Its JSON
    Schema is what editors complete and check by; a file names it in its first line,
    ``# yaml-language-server: $schema=job.schema.json``.
    """
    if options.schema:
        import costmodel as cm
        from costmodel.base.answer import to_json

        return target.put(to_json(cm.schema(options.job or given["model"] or "")) + "\n")
    from costmodel.interop.answer import job_yaml, record
    from costmodel.interop.reading import read as read_file
    from costmodel.reporting.lists import import_grids

    endings = {".yaml": opt.ReadFormat.yaml, ".yml": opt.ReadFormat.yaml, ".json": opt.ReadFormat.json}
    form = options.format or endings.get(target.out.suffix if target.out else "", opt.ReadFormat.table)
    log: dict[str, Any] = {
        "collective": options.collective or None,
        "ranks": options.ranks,
        "nodes": options.nodes,
    }
    how = reading_of(given)
    found = read_file(options.job, how.pop("kind") or "", **read_flags(given), **how, **log)
    if form is opt.ReadFormat.yaml:
        target.put(job_yaml(found, _write_model(found, target)))
    else:
        shape = opt.Format.json if form is opt.ReadFormat.json else opt.Format.table
        target._replace(format=shape).show(Result(lambda: import_grids(found), lambda: record(found), dict))
    for remark in found.remarks:
        target.note(f"Warning: {remark}")


def _write_model(found: Imported, target: Target) -> str:
    """Write the model that a file describes beside a job file, and return its name; nothing for stdout."""
    from costmodel.describe.models.model import Model
    from costmodel.interop.answer import model_yaml

    model = found.job.get("model")
    if not isinstance(model, Model) or target.out is None:
        return ""
    path = target.out.with_name(f"{target.out.stem}.model.yaml")
    if path.exists() and not target.out.exists():
        raise CostModelError(f"{path}: exists; --force replaces it")
    target.write(path, model_yaml(model))
    return path.name


@command(
    """
    costmodel validate
    costmodel validate runs.csv --csv predicted.csv --worst 10
    costmodel validate runs.csv --plot predicted.png
    costmodel validate runs.csv --format json
    """,
    uses="plot",
)
def validate(target: Target, options: Any) -> None:
    """Price every run of a table and compare with what was measured.

    The columns are those of tests/published/runs.csv, which is shipped: recipe names the recipe of
    each row, switches (JSON) what the run set otherwise. Errors are relative to the measurement, over
    rows of quality A and B. A row that cannot be priced is counted with its
    reason. --csv writes a row per run.
    """
    import costmodel as cm

    draw = planned_figure("Validation", options.plot, target)
    with waiting("pricing runs", quiet=target.quiet) as progress:
        checked = cm.validate(options.file or None, progress=progress)
    target.show(checked, worst=options.worst)
    draw(checked)


# --- elsewhere ---

_COLLECT_EVERY = 700
"""Python's own threshold: a command may end before cycles are looked for (`costmodel.cli`), a server may not."""


@command(
    """
    costmodel serve
    costmodel serve --port 0
    and in the configuration of an assistant:
    {"mcpServers": {"costmodel": {"command": "costmodel", "args": ["serve", "--mcp"]}}}
    """,
    output=(),
)
def serve(
    port: int,
    mcp: bool,
) -> None:
    """Serve a page to choose a job, see its bill, plan, compare and export; or tools for assistants.

    The page needs no network, tells nobody anything, and only this machine reaches it. The address in the browser holds
    the whole state. With --mcp an assistant is answered over the Model Context Protocol, on stdin and stdout: list,
    estimate, plan, run, compare and explain. The tools read no file of this machine: a model or a job is handed over as
    text. To serve them takes the extra `mcp`.
    """
    gc.set_threshold(_COLLECT_EVERY)
    if mcp:
        from costmodel.app.assistants import serve_tools

        serve_tools()
    else:
        from costmodel.app.serve import serve as serve_page

        serve_page(port, lambda line: typer.echo(line, err=True))
