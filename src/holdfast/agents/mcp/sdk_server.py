"""The tools as a server of the MCP SDK: lists them, decodes calls, and encodes their results.

What a session refuses in terms of the tools (held, lost, not yours) is a result like any other. An error is what the
model can do nothing about, or should call differently; its text says what to do next.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec
from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server

from holdfast import __version__
from holdfast.agents.mcp import tools
from holdfast.agents.mcp.results import Result, ToolRefusedError, clean
from holdfast.agents.mcp.tools import BadArgumentsError, ToolBackend, Transport
from holdfast.errors import HoldfastError, NotAllowed, Unreachable
from holdfast.sanitize import plain

INSTRUCTIONS = {
    "stdio": tools.INSTRUCTIONS + tools.STDIO_INSTRUCTIONS,
    "http": tools.INSTRUCTIONS + tools.HTTP_INSTRUCTIONS,
}
ERROR_CHARS_MAX = 500

Context: TypeAlias = ServerRequestContext[Any, Any]
# Returns the session for a call: the agent's, or one for this request. Raises `ToolRefusedError`.
FindSession: TypeAlias = Callable[[Context, types.CallToolRequestParams], Awaitable[ToolBackend[Any]]]


def tool_list(transport: Transport) -> list[types.Tool]:
    return [
        types.Tool(
            name=tool.name,
            description=tool.description,
            input_schema=tools.input_schema(tool, transport),
            output_schema=tools.output_schema(tool),
            annotations=types.ToolAnnotations(
                read_only_hint=tool.read_only,
                destructive_hint=tool.destructive,
                idempotent_hint=True,  # All of ours are.
                open_world_hint=False,
            ),
        )
        for tool in tools.TOOLS
    ]


def create_server(find_session: FindSession, transport: Transport, **more: Any) -> Server[Any]:  # noqa: ANN401 - the SDK's
    listed = types.ListToolsResult(tools=tool_list(transport))
    schemas = {tool.name: tool.input_schema for tool in listed.tools}

    async def list_tools(_context: Context, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return listed

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            session = await find_session(context, params)
        except ToolRefusedError as error:
            return _error(str(error))
        try:
            result = await session.call(tools.read_arguments(params.name, params.arguments or {}, transport))
        except (HoldfastError, ToolRefusedError, BadArgumentsError, TypeError, ValueError) as error:
            # TypeError and ValueError: the client refuses what cannot be encoded.
            return _error(_next_step(error), session.notices())
        result = clean({**result, **session.notices()})
        return types.CallToolResult(content=[_text(result)], structured_content=result)

    server: Server[Any] = Server(
        "holdfast",
        version=__version__,
        instructions=INSTRUCTIONS[transport],
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        get_tool_input_schema=schemas.get,
        **more,
    )
    # The SDK would add spans of its own to ours, with the arguments in them.
    server.middleware.clear()
    return server


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


def _error(text: str, notices: Result | None = None) -> types.CallToolResult:
    content = [types.TextContent(text=plain(text)[:ERROR_CHARS_MAX])]
    return types.CallToolResult(content=[*content, *([_text(clean(notices))] if notices else [])], is_error=True)


def _text(result: Result) -> types.TextContent:
    return types.TextContent(text=msgspec.json.encode(result).decode())
