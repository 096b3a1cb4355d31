"""The tools of `costmodel.app.tools` over the Model Context Protocol, on stdin and stdout, by the official SDK."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import traceback
from typing import Any

from costmodel.app.tools import TOOLS, Reply, Tool
from costmodel.base.answer import to_json
from costmodel.base.errors import CostModelError, choices_hint, one_line
from costmodel.base.files import close_files
from costmodel.base.version import __version__, install_command

_ABOUT = (
    "Prices distributed LLM training analytically: every second and byte is a line with a formula. Numbers may be written "
    "as 32k or 15T. Predictions carry an error band; `estimate` says what was assumed."
)
_PROGRESS_EVERY_S = 0.1


class _StoppedError(Exception):
    """The assistant has given up a search."""


def serve_tools() -> None:
    """Answer an assistant on stdin and stdout until it hangs up."""
    try:
        import mcp  # noqa: F401
    except ImportError:
        raise CostModelError(f"tools for assistants need the MCP SDK: {install_command('mcp')}") from None
    close_files()  # an assistant may be talked into asking for one
    asyncio.run(_serve())


async def _serve() -> None:
    import mcp_types as types
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server

    tools = {tool.name: tool for tool in TOOLS}

    async def listed(context: Any, params: Any) -> types.ListToolsResult:
        kind = types.ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=tool.name, description=tool.description, input_schema=tool.schema, annotations=kind
                )
                for tool in TOOLS
            ]
        )

    async def called(context: Any, params: Any) -> types.CallToolResult:
        try:
            if params.name not in tools:
                raise CostModelError(f"no tool is called {params.name!r}; {choices_hint(params.name, tools)}")
            reply = await _requested(tools[params.name], params.arguments or {}, context)
        except CostModelError as error:
            content: list[Any] = [types.TextContent(type="text", text=one_line(str(error)))]
            return types.CallToolResult(content=content, is_error=True)
        except Exception:  # a bug: the assistant goes on, the log has it
            traceback.print_exc(file=sys.stderr)
            content = [
                types.TextContent(type="text", text="this is a bug of the program; its log has the details")
            ]
            return types.CallToolResult(content=content, is_error=True)
        content = [types.TextContent(type="text", text=reply.text)]
        return types.CallToolResult(content=content, structured_content=json.loads(to_json(reply.record)))

    server: Any = Server(
        "costmodel", version=__version__, instructions=_ABOUT, on_list_tools=listed, on_call_tool=called
    )
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def _requested(tool: Tool, given: dict[str, Any], context: Any) -> Reply:
    """Let a thread answer; a search ends when the assistant gives it up."""
    if not tool.is_long:
        return await asyncio.to_thread(tool.ask, given)
    stop, at = threading.Event(), [0, 0]

    def note(done: int, total: int) -> None:
        if stop.is_set():
            raise _StoppedError
        at[:] = done, total

    search = asyncio.create_task(asyncio.to_thread(tool.ask, given, progress=note))
    try:
        reported = 0
        while not search.done():
            await asyncio.wait([search], timeout=_PROGRESS_EVERY_S)
            if at[0] > reported:
                reported = at[0]
                await context.session.report_progress(reported, at[1], "layouts priced")
        return search.result()
    finally:
        stop.set()
