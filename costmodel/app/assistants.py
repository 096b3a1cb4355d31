"""The tools of `costmodel.app.tools` over the Model Context Protocol, on stdin and stdout, by the official SDK."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from typing import Any

from costmodel.app.limits import LIMITS
from costmodel.app.tools import TOOLS, Said, Tool
from costmodel.app.workers import BrokenWorkerError, Workers
from costmodel.base.answer import to_json
from costmodel.base.errors import CostModelError, choices_hint, one_line
from costmodel.base.version import __version__, install_command

_ABOUT = (
    "Prices distributed LLM training analytically: every second and byte is a line with a formula. Numbers may be written "
    "as 32k or 15T. Predictions carry an error band; `estimate` says what was assumed."
)
_WAITING = 16
_LOOK_EVERY_S = 0.1


def serve_tools() -> None:
    """Answer an assistant on stdin and stdout until it hangs up.

    Raises
    ------
    CostModelError
        If the extra is missing.
    """
    try:
        import mcp  # noqa: F401
    except ImportError:
        raise CostModelError(f"tools for assistants need the MCP SDK: {install_command('mcp')}") from None
    workers = Workers(
        LIMITS.answers_at_once, queue=_WAITING, busy="too many questions at once; wait for an answer"
    )
    plans = Workers(
        LIMITS.plans_at_once,
        queue=0,
        busy=f"{LIMITS.plans_at_once} searches are running, which is the limit here; wait for one",
    )
    try:
        asyncio.run(_serve(workers, plans))
    finally:
        workers.close()
        plans.close()


async def _serve(workers: Workers, plans: Workers) -> None:
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
            tool = tools[params.name]
            said = await _asked(tool, params.arguments or {}, plans if tool.is_long else workers, context)
        except (CostModelError, BrokenWorkerError) as error:
            content: list[Any] = [types.TextContent(type="text", text=one_line(str(error)))]
            return types.CallToolResult(content=content, is_error=True)
        except Exception:  # a bug: the assistant goes on, the log has it
            traceback.print_exc(file=sys.stderr)
            content = [
                types.TextContent(type="text", text="this is a bug of the program; its log has the details")
            ]
            return types.CallToolResult(content=content, is_error=True)
        content = [types.TextContent(type="text", text=said.text)]
        return types.CallToolResult(content=content, structured_content=_plain(said.record))

    server: Any = Server(
        "costmodel", version=__version__, instructions=_ABOUT, on_list_tools=listed, on_call_tool=called
    )
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def _asked(tool: Tool, given: dict[str, Any], workers: Workers, context: Any) -> Said:
    """Let a worker answer; when the assistant gives up, so does the worker.

    Raises
    ------
    CostModelError
        As the tool raises it.
    """
    stop, at = threading.Event(), [0, 0]

    def note(done: int, total: int) -> None:
        at[:] = done, total

    try:
        most_s = LIMITS.plan_s if tool.is_long else LIMITS.answer_s
        progress = note if tool.is_long else None
        future = workers.submit(tool.ask, given, most_s=most_s, progress=progress, stop=stop)
        told = 0
        while not future.done():
            await asyncio.sleep(_LOOK_EVERY_S if tool.is_long else 0.01)
            if at[0] > told:
                told = at[0]
                await context.session.report_progress(told, at[1], "layouts priced")
        answer: Said = future.result()
        return answer
    finally:
        stop.set()


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record as JSON has it."""
    import json

    plain: dict[str, Any] = json.loads(to_json(record))
    return plain
