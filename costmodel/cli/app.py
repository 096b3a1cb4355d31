"""``costmodel app``: a page to open in a browser."""

from typing import Annotated

import typer

EPILOG = """\b
Examples:
  costmodel app
  costmodel app --port 0
  costmodel app --host 0.0.0.0
"""


def app(
    host: Annotated[
        str,
        typer.Option(
            "--host",
            help="Address to listen on; with any but this machine's own, visitors need the token printed.",
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port, 0 for a free one.")] = 8080,
) -> None:
    """Serve a page to choose a job, see its bill, memory and figures, plan, compare and export.

    It needs no network and tells nobody anything. The address in the browser holds the whole state. Where the page
    can be reached from other machines, the address that is printed has a token (COSTMODEL_APP_TOKEN sets it), without
    which nobody gets in. To serve it takes the extra `app`.
    """
    from costmodel.app.serve import serve

    serve(host, port, lambda line: typer.echo(line, err=True))
