"""How a stream that comes over a link is handed to a client of this node, in ASGI's words."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.server.nodes.link.frames import Begun, Over, Piece
from holdfast.server.nodes.link.streams import Here

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.server.doors.exchange import Application, Receive, Send
    from holdfast.server.doors.request import Request
    from holdfast.server.nodes.link.frames import Fields
    from holdfast.server.nodes.pending import Pending

    Took: TypeAlias = Callable[[Pending, int], None]

_EVENTS = b"text/event-stream"
"""A stream of this kind has no whole: a reader comes back and goes on where it was."""


async def relay(pending: Pending, disconnected: asyncio.Task[None], send: Send, took: Took) -> Application | None:
    """Hand on what comes until the end, or until the client leaves. Return the door that is to answer instead.

    One that was cut is not ended, unless it is one of events: the lane then breaks the connection off, so that nobody
    takes a part for the whole.
    """
    inbox = pending.inbox
    is_of_events = has_begun = False
    while inbox is not None:
        coming = asyncio.ensure_future(inbox.next())
        await asyncio.wait({coming, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if not coming.done():
            coming.cancel()
            return None
        frame = coming.result()
        if isinstance(frame, Here):
            return frame.door
        if isinstance(frame, Begun):
            has_begun = True
            is_of_events = any(name == b"content-type" and value.startswith(_EVENTS) for name, value in frame.headers)
            await send({"type": "http.response.start", "status": frame.status, "headers": list(frame.headers)})
        elif isinstance(frame, Piece):
            await send({"type": "http.response.body", "body": frame.body, "more_body": True})
            took(pending, len(frame.body))
        elif isinstance(frame, Over):
            if frame.is_whole or (has_begun and is_of_events):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            return None
    return None


async def read_body(receive: Receive) -> bytes:
    """Return the body. The lane bounds it while it comes in. Raises `ConnectionError` if the rest will never come."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError("the client left before its request was whole")
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)


async def respond(send: Send, request: Request, status: int, body: bytes, headers: Fields) -> None:
    """Answer as a whole where a stream was asked for."""
    fields = [
        (b"content-type", b"application/json"),
        *headers,
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", request.request_id.encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def until_disconnected(receive: Receive) -> None:
    """Wait until the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def read_again(request: Request, receive: Receive) -> Receive:
    """Return a `receive` that gives a body once more that was read already."""
    given = False

    async def again() -> dict[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": request.body, "more_body": False}

    return again
