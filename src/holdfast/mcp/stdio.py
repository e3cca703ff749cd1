"""`holdfast mcp`: the life of the process behind a host's pipe.

It ends when its input ends, and when it is told to (SIGTERM, SIGINT, SIGHUP): then it gives back what it holds, and
leaves word for the next process of its owner. One that is killed gives nothing back; its session ends by itself.

Input is read by a thread of its own, straight from the descriptor: a thread that hangs in `read` keeps no process from
ending, and holds no lock of Python's that its end needs. Output is written by threads in the same way: a host that
lives, and does not read, must not keep what was claimed.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec
from mcp import MCPError, types
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated

from holdfast.errors import HoldfastError
from holdfast.guard.link import TOOLS
from holdfast.mcp.keeping import Keeper
from holdfast.mcp.results import clean
from holdfast.mcp.serving import Context, Desk, server_of

if TYPE_CHECKING:
    from mcp.server.session import ServerSession

    from holdfast.guard.state import Owner
    from holdfast.mcp.agent import AgentClient
    from holdfast.mcp.hostlink import HostLink
    from holdfast.mcp.memory import Memory

JOBS = "holdfast://my-jobs"
"""The resource that changes when a job is lost: a host that subscribes to it hears of that at once."""
LINE_BYTES_MAX = 4_194_304
READ_BYTES = 65_536
SUBAGENTS_MAX = 50
"""From this number on, keepers of subagents that hold nothing are dropped."""
END_SECONDS = 10.0
OUTPUT_SECONDS = 3.0
"""How long the last answers may take to be read when the input has ended."""
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

log = logging.getLogger("holdfast.mcp")


class _News:
    """Tells hosts that listen that something changed: in the old way of the protocol, and in the new one."""

    def __init__(self) -> None:
        self.bus = InMemorySubscriptionBus()
        self.subscribed: ServerSession | None = None
        self._telling: set[asyncio.Task[None]] = set()

    def tell(self) -> None:
        task = asyncio.get_running_loop().create_task(self._tell())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tell(self) -> None:
        await self.bus.publish(ResourceUpdated(uri=JOBS))
        if self.subscribed is not None:
            with contextlib.suppress(OSError):
                await self.subscribed.send_resource_updated(JOBS)


class Callers:
    """The keepers of one process: the main agent's, and one for each subagent that a hook has seen.

    Without a link to the guard, or if calls cannot be told apart, all calls are the main agent's.
    """

    def __init__(self, main: Keeper, host: HostLink | None, make: Callable[[Owner], Keeper]) -> None:
        self.main = main
        self._host = host
        self._make = make
        self._subagents: dict[str, Keeper] = {}

    async def keeper_of(self, tool: str, arguments: Mapping[str, Any]) -> Keeper:
        """Return the keeper of the agent that makes a call. Raises `RefusedError`."""
        if self._host is None or tool not in TOOLS:
            return self.main
        # Without hooks a call begins at once, so that a cancellation that follows finds it under way.
        owner = await asyncio.to_thread(self._host.caller, tool, arguments) if self._host.sees_calls else None
        if owner is None:
            return self.main
        if len(self._subagents) >= SUBAGENTS_MAX:
            self._subagents = {folder: each for folder, each in self._subagents.items() if not each.is_idle}
        if owner.folder not in self._subagents:
            self._subagents[owner.folder] = self._make(owner)
        return self._subagents[owner.folder]

    async def end(self) -> None:
        """End all keepers."""
        await asyncio.gather(*(each.end() for each in (*self._subagents.values(), self.main)))
        if self._host is not None:
            self._host.close()


async def serve(
    client: AgentClient,
    owner: str,
    memory: Memory | None,
    *,
    ttl: int,
    warning: str | None = None,
    host: HostLink | None = None,
) -> None:
    """Serve the host at the other end of standard input and output, until it is gone or we are told to end."""
    news = _News()

    def of_subagent(agent: Owner) -> Keeper:
        return Keeper(client, agent.name, None, ttl=ttl, tell=news.tell, host=host, folder=agent.folder)

    keeper = Keeper(client, owner, memory, ttl=ttl, tell=news.tell, warning=warning, host=host)
    callers = Callers(keeper, host, of_subagent)
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in _SIGNALS:
        loop.add_signal_handler(each, told.set)
    async with client:
        resuming = asyncio.create_task(_resume(keeper))
        lines = _Lines()
        serving = asyncio.create_task(_serve(callers, news, lines))
        telling = asyncio.create_task(_until_told(told, lines))
        try:
            await asyncio.wait({serving, telling}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_cut_off = not serving.done()
            for task in (serving, telling, resuming):
                task.cancel()
            ended = await asyncio.gather(serving, telling, resuming, return_exceptions=True)
            await _end(callers)
        if not is_cut_off:  # What breaks because it was cut off, as an answer that nobody reads, is no bug.
            _raise_bugs(list(ended))


async def _until_told(told: asyncio.Event, lines: _Lines) -> None:
    """Wait until we are told to end: by a signal, or by an input that ended a while ago."""
    ended = asyncio.create_task(lines.ended.wait())
    signalled = asyncio.create_task(told.wait())
    try:
        await asyncio.wait({ended, signalled}, return_when=asyncio.FIRST_COMPLETED)
        if not signalled.done():
            await asyncio.wait({signalled}, timeout=OUTPUT_SECONDS)
    finally:
        ended.cancel()
        signalled.cancel()


async def _end(callers: Callers) -> None:
    """Give everything back, for as long as a host may wait for that."""
    try:
        async with asyncio.timeout(END_SECONDS):
            await callers.end()
    except TimeoutError:
        log.warning("the server did not answer in time: what was claimed ends by itself")


async def _resume(keeper: Keeper) -> None:
    """Take over what the process before has left, at once: its time runs out. If it fails, each call tries again."""
    try:
        await keeper.begin()
    except Exception as error:  # noqa: BLE001 - A call meets the same, and tells it where somebody reads it.
        log.warning("what the process before has left could not be taken over yet: %s", error)


def _raise_bugs(ended: list[Any]) -> None:
    """Raise what went wrong, but for the ways in which a host goes away."""
    for each in ended:
        if isinstance(each, BaseExceptionGroup):
            _raise_bugs(list(each.exceptions))
        elif isinstance(each, Exception) and not isinstance(each, OSError):
            raise each


async def _serve(callers: Callers, news: _News, lines: _Lines) -> None:
    keeper = callers.main

    async def desk(_context: Context, params: types.CallToolRequestParams) -> Desk:
        return await callers.keeper_of(params.name, params.arguments or {})

    async def list_resources(_context: Context, _params: object) -> types.ListResourcesResult:
        text = "The jobs that are yours. It changes when you lose one."
        known = types.Resource(uri=JOBS, name="my-jobs", description=text, mime_type="application/json")
        return types.ListResourcesResult(resources=[known])

    async def read_resource(_context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        if str(params.uri) != JOBS:
            problem = f"there is no resource {str(params.uri)!r:.200}; there is {JOBS}"
            raise MCPError(types.INVALID_PARAMS, problem)
        try:
            await keeper.begin()  # What the process before has left may be ours too.
        except HoldfastError as error:
            raise MCPError(types.INTERNAL_ERROR, str(error)) from None
        text = msgspec.json.encode(clean(keeper.mine())).decode()
        content = types.TextResourceContents(uri=JOBS, mime_type="application/json", text=text)
        return types.ReadResourceResult(contents=[content])

    async def subscribe(context: Context, _params: object) -> types.EmptyResult:
        news.subscribed = context.session
        return types.EmptyResult()

    async def unsubscribe(_context: Context, _params: object) -> types.EmptyResult:
        news.subscribed = None
        return types.EmptyResult()

    server = server_of(
        desk,
        "stdio",
        on_list_resources=list_resources,
        on_read_resource=read_resource,
        on_subscribe_resource=subscribe,
        on_unsubscribe_resource=unsubscribe,
        on_subscriptions_listen=ListenHandler(news.bus, max_subscriptions=8, max_buffered_events=64),
    )
    # All that is asked of them is to give lines, and to take them.
    async with stdio_server(stdin=cast("Any", lines), stdout=cast("Any", _Output())) as (read, write):
        await server.run(read, write, server.create_initialization_options())


class _Lines:
    """The lines of standard input, one by one: the next is read when the one before was taken."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[str]:
        """Yield each line; one that is too long comes cut, and is no message then."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(1)

        def read() -> None:
            try:
                for line in _lines_of(0):
                    asyncio.run_coroutine_threadsafe(queue.put(line), loop).result()
                asyncio.run_coroutine_threadsafe(queue.put(None), loop).result()
            except (RuntimeError, asyncio.CancelledError, concurrent.futures.CancelledError):
                return  # The loop has ended, and nobody reads any more.

        threading.Thread(target=read, name="standard input", daemon=True).start()
        while (line := await queue.get()) is not None:
            yield line.decode("utf-8", "replace")
        self.ended.set()


def _lines_of(descriptor: int) -> Iterator[bytes]:
    """Read lines from a descriptor until its end. Of one that is too long, only the first bytes are kept."""
    pending = bytearray()
    while True:
        try:
            data = os.read(descriptor, READ_BYTES)
        except OSError:
            data = b""
        if not data:
            return
        *whole, rest = data.split(b"\n")
        for part in whole:
            yield bytes(pending + part)[:LINE_BYTES_MAX]
            pending.clear()
        pending += rest[: LINE_BYTES_MAX - len(pending)]


class _Output:
    """Standard output, for messages alone: what else is printed goes to standard error."""

    def __init__(self) -> None:
        self._pending = b""
        self._wire = os.dup(1)
        with contextlib.suppress(OSError):
            os.dup2(2, 1)

    async def write(self, text: str) -> None:
        """Take a message."""
        self._pending += text.encode()

    async def flush(self) -> None:
        """Write what was taken, by a thread: who waits here can be cancelled, and the thread keeps no process alive."""
        data, self._pending = self._pending, b""
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()

        def write() -> None:
            error = _write(self._wire, data)
            with contextlib.suppress(RuntimeError):  # The loop has ended, and nobody waits any more.
                loop.call_soon_threadsafe(_settle, written, error)

        threading.Thread(target=write, name="standard output", daemon=True).start()
        await written


def _write(descriptor: int, data: bytes) -> OSError | None:
    """Write all of this; return why that was not possible."""
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError as error:
        return error
    return None


def _settle(written: asyncio.Future[None], error: OSError | None) -> None:
    if written.done():
        return
    if error is None:
        written.set_result(None)
    else:
        written.set_exception(error)
