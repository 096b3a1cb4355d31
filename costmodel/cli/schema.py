"""``costmodel schema``: what a file may hold, for editors that complete and check."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from costmodel.cli.job_options import takes_output

EPILOG = """\b
Examples:
  costmodel schema job --out job.schema.json
  costmodel schema hardware | jq keys
A file names its schema in its first line:
  # yaml-language-server: $schema=job.schema.json
"""


@takes_output("out", "force", "quiet")
def schema(
    output: Mapping[str, Any],
    kind: Annotated[
        str, typer.Argument(help="Of the file: job, grid (of sweep), hardware, model or recipe.")
    ],
) -> None:
    """Print the JSON Schema of a kind of file, by which editors complete and check it."""
    import costmodel as cm
    from costmodel.base.answer import to_json
    from costmodel.cli.output import plan_output, write_file

    target = plan_output(None, **output)
    text = to_json(cm.schema(kind)) + "\n"
    typer.echo(text, nl=False) if target.out is None else write_file(target.out, text, target)
