"""What answers elsewhere than on a command line: ``costmodel app`` and ``mcp``."""

import gc

import typer

from costmodel.cli.command import command

_COLLECT_EVERY = 700
"""Python's own threshold: a command may end before cycles are looked for (`costmodel.cli`), a server may not."""


@command(
    """
    costmodel app
    costmodel app --port 0
    """,
    output=(),
)
def app(
    port: int,
) -> None:
    """Serve a page to choose a job, see its bill, memory and figures, plan, compare and export.

    It needs no network, tells nobody anything, and only this machine reaches it. The address in the browser holds the
    whole state. To serve it takes the extra `app`.
    """
    from costmodel.app.serve import serve

    gc.set_threshold(_COLLECT_EVERY)
    serve(port, lambda line: typer.echo(line, err=True))


@command(
    """
    in the configuration of an assistant:
    {"mcpServers": {"costmodel": {"command": "costmodel", "args": ["mcp"]}}}
    """,
    output=(),
)
def mcp() -> None:
    """Answer an assistant over the Model Context Protocol: tools list, estimate, plan, run, compare and explain.

    It talks on stdin and stdout, so an assistant starts it. The tools read no file of this machine: a model or a job
    is handed over as text. To serve them takes the extra `mcp`.
    """
    from costmodel.app.assistants import serve_tools

    gc.set_threshold(_COLLECT_EVERY)
    serve_tools()
