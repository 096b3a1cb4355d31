"""What answers elsewhere than on a command line: ``costmodel app`` and ``mcp``."""

import typer

from costmodel.cli.command import command


@command(
    """
    costmodel app
    costmodel app --port 0
    costmodel app --host 0.0.0.0
    """,
    output=(),
)
def app(
    host: str = typer.Option(
        "127.0.0.1",
        "--host",
        help="Address to listen on; with any but this machine's own, visitors need the token printed.",
    ),
    port: int = typer.Option(8080, "--port", min=0, max=65535, help="Port, 0 for a free one."),
) -> None:
    """Serve a page to choose a job, see its bill, memory and figures, plan, compare and export.

    It needs no network and tells nobody anything. The address in the browser holds the whole state. Where the page
    can be reached from other machines, the address that is printed has a token (COSTMODEL_APP_TOKEN sets it), without
    which nobody gets in. To serve it takes the extra `app`.
    """
    from costmodel.app.serve import serve

    serve(host, port, lambda line: typer.echo(line, err=True))


@command(
    """
    in the configuration of an assistant:
    {"mcpServers": {"costmodel": {"command": "costmodel", "args": ["mcp"]}}}
    """,
    output=(),
)
def mcp() -> None:
    """Answer an assistant over the Model Context Protocol: tools estimate, plan, explain and compare.

    It talks on stdin and stdout, so an assistant starts it. The tools read no file of this machine: a model or a job
    is handed over as text; requests have the limits of the page. To serve them takes the extra `mcp`.
    """
    from costmodel.app.assistants import serve_tools

    serve_tools()
