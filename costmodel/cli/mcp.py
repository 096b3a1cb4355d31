"""``costmodel mcp``: tools for assistants."""

EPILOG = """\b
Example, in the configuration of an assistant:
  {"mcpServers": {"costmodel": {"command": "costmodel", "args": ["mcp"]}}}
"""


def mcp() -> None:
    """Answer an assistant over the Model Context Protocol: tools estimate, plan, explain and compare.

    It talks on stdin and stdout, so an assistant starts it. The tools read no file of this machine: a model or a job
    is handed over as text; requests have the limits of the page. To serve them takes the extra `mcp`.
    """
    from costmodel.app.assistants import serve_tools

    serve_tools()
