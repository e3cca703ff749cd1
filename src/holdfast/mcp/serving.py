"""The tools as a server of the SDK: lists them, reads what a call says, and writes what comes of it.

What a desk refuses in words of the tools (held, lost, not yours) is a result like any other. An error is what the model
can do nothing about, or should say otherwise: then the text says what to do next.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

import msgspec
from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server

from holdfast import __version__
from holdfast.errors import HoldfastError, NotAllowed, Unreachable
from holdfast.harmless import plain
from holdfast.mcp import tools
from holdfast.mcp.results import RefusedError, Result, clean
from holdfast.mcp.tools import BadArgumentsError, Transport

NAME = "holdfast"
INSTRUCTIONS = {
    "stdio": tools.INSTRUCTIONS + tools.STDIO_INSTRUCTIONS,
    "http": tools.INSTRUCTIONS + tools.HTTP_INSTRUCTIONS,
}
ARGUMENT_CHARS_SHOWN = 500

log = logging.getLogger("holdfast.mcp")

Context: TypeAlias = ServerRequestContext[Any, Any]


class Desk(Protocol):
    """Who does the work for one call."""

    async def call(self, asked: tools.Arguments) -> Result:
        """Do what a tool was called for. Raises `HoldfastError` and `RefusedError`."""

    def news(self) -> Result:
        """Return what else has to be told with this result, whichever tool it is of."""


FindDesk: TypeAlias = Callable[[Context, types.CallToolRequestParams], Awaitable[Desk]]
"""Returns the desk for a call: that of the agent that makes it, or one for this request. Raises `RefusedError`."""


def tool_list(transport: Transport) -> list[types.Tool]:
    """Return all tools as hosts see them."""
    return [
        types.Tool(
            name=tool.name,
            description=tool.words,
            input_schema=tools.input_schema(tool, transport),
            output_schema=tools.output_schema(tool),
            annotations=types.ToolAnnotations(
                read_only_hint=tool.read_only,
                destructive_hint=tool.destructive,
                idempotent_hint=tool.idempotent or tool.read_only,
                open_world_hint=False,
            ),
        )
        for tool in tools.TOOLS
    ]


def server_of(find_desk: FindDesk, transport: Transport, **more: Any) -> Server[Any]:  # noqa: ANN401 - the SDK's own
    """Return a server of the SDK with our tools. `more` is what it can do beside."""
    listed = types.ListToolsResult(tools=tool_list(transport))
    schemas = {tool.name: tool.input_schema for tool in listed.tools}

    async def list_tools(_context: Context, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return listed

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            desk = await find_desk(context, params)
        except RefusedError as error:
            return _error(str(error))
        tool = tools.BY_NAME.get(params.name)
        if tool is None:
            there_are = ", ".join(tools.BY_NAME)
            return _error(f"there is no tool {params.name!r:.100}; there are {there_are}", desk.news())
        try:
            asked = tools.read_arguments(tool, params.arguments or {}, transport)
        except BadArgumentsError as error:
            return _error(str(error), desk.news())
        return await _answer(desk, asked)

    server: Server[Any] = Server(
        NAME,
        version=__version__,
        instructions=INSTRUCTIONS[transport],
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        get_tool_input_schema=schemas.get,
        **more,
    )
    # The SDK would add spans of its own to ours, with what was asked for in them.
    server.middleware.clear()
    return server


async def _answer(desk: Desk, asked: tools.Arguments) -> types.CallToolResult:
    try:
        result = await desk.call(asked)
    except (HoldfastError, RefusedError) as error:
        return _error(_next_step(error), desk.news())
    except (TypeError, ValueError) as error:  # The client refuses what cannot be sent at all.
        return _error(str(error), desk.news())
    told = clean({**result, **desk.news()})
    return types.CallToolResult(content=[_text(told)], structured_content=told)


def _next_step(error: Exception) -> str:
    match error:
        case Unreachable(was_sent=True):
            return f"{error}. Whether it was done is not known: ask my_jobs before you go on."
        case Unreachable():
            return f"{error}. Nothing was done: begin nothing. Try again in a minute, or tell your person."
        case NotAllowed(code="authentication_required"):
            return (
                "there is no access token for the server. Tell the person who set this up to name one in HOLDFAST_TOKEN"
                " or HOLDFAST_TOKEN_FILE: no other call will help."
            )
        case NotAllowed():
            return f"{error} Tell the person who set this up: no other call will help."
        case _:
            return str(error)


def _error(text: str, news: Result | None = None) -> types.CallToolResult:
    """Answer with an error; what is new is told with it."""
    content = [types.TextContent(text=plain(text)[:ARGUMENT_CHARS_SHOWN])]
    return types.CallToolResult(content=[*content, *([_text(clean(news))] if news else [])], is_error=True)


def _text(result: Result) -> types.TextContent:
    return types.TextContent(text=msgspec.json.encode(result).decode())
