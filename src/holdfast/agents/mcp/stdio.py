"""`holdfast mcp`: the process behind a host's pipe.

When its input ends, or on SIGTERM, SIGINT or SIGHUP, it releases what it holds and saves that for the owner's next
process. If it is killed, its session expires. Daemon threads read and write the descriptors directly: a stuck one holds
no lock and does not delay the end, so a host that does not read cannot keep what was claimed.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
from mcp import MCPError, types
from mcp.server.session import ServerSession
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ResourceUpdated

from holdfast.agents.guard.host_registry import TOOLS
from holdfast.agents.guard.state import Owner
from holdfast.agents.mcp.guard_link import GuardLink, open_link
from holdfast.agents.mcp.results import clean
from holdfast.agents.mcp.saved_state import SavedStateError, open_saved_state
from holdfast.agents.mcp.sdk_server import Context, create_server
from holdfast.agents.mcp.stdio_backend import StdioBackend
from holdfast.agents.mcp.tools import AgentClient
from holdfast.client import requests
from holdfast.errors import HoldfastError, SettingsError

JOBS = "holdfast://my-jobs"  # The resource that changes when a job is lost: subscribed hosts are notified immediately.
OWNER_CHARS_MAX = 128
LINE_BYTES_MAX = 4_194_304
READ_BYTES = 65_536
SUBAGENTS_MAX = 50  # Above this number, sessions of subagents that hold nothing are dropped.
END_SECONDS = 10.0
OUTPUT_SECONDS = 3.0  # The time for reading the last responses when the input has ended.
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_SHARED = "another live process has your owner's name: you share nothing with it, and a restart resumes nothing"

log = logging.getLogger("holdfast.agents.mcp")


def run(
    url: str | None,
    token_file: Path | None,
    owner: str | None,
    *,
    ttl: int,
    environment: Mapping[str, str],
    ca_file: Path | None = None,
    allow_insecure_http: bool | None = None,
) -> int:
    """Serve until the host is gone. Without an owner, nothing is saved for the next process. Raises `SettingsError`."""
    client = AgentClient(
        url, token_file=token_file, ca_file=ca_file, allow_insecure_http=allow_insecure_http, environment=environment
    )
    if owner is not None and len(owner) > OWNER_CHARS_MAX:
        raise SettingsError("owner", "as given", f"it has {len(owner)} characters", f"1 to {OWNER_CHARS_MAX}")
    warning: str | None = None
    state_file = None
    if owner is not None:
        try:
            state_file = open_saved_state(client.url, owner, environment)
            warning = _SHARED if state_file is None else None
        except SavedStateError as error:
            warning = f"a restart resumes nothing: {error}"
    name = owner or requests.owner_of(client)
    host, unlinked = open_link(owner, environment, url)
    notifier = _ChangeNotifier()

    def make(agent: Owner) -> StdioBackend:
        return StdioBackend(
            client, agent.name, None, ttl=ttl, on_change=notifier.notify, host=host, folder=agent.folder
        )

    main = StdioBackend(
        client, name, state_file, ttl=ttl, on_change=notifier.notify, warning=warning or unlinked, host=host
    )
    asyncio.run(_serve(client, AgentBackends(main, host, make), notifier))
    return 0


class _ChangeNotifier:
    """Notifies subscribed hosts that the jobs changed: by the current protocol and by the older one."""

    def __init__(self) -> None:
        self.bus = InMemorySubscriptionBus()
        self.subscribed: ServerSession | None = None
        self._notifying: set[asyncio.Task[None]] = set()

    def notify(self) -> None:
        task = asyncio.get_running_loop().create_task(self._notify())
        self._notifying.add(task)
        task.add_done_callback(self._notifying.discard)

    async def _notify(self) -> None:
        await self.bus.publish(ResourceUpdated(uri=JOBS))
        if self.subscribed is not None:
            with contextlib.suppress(OSError):
                await self.subscribed.send_resource_updated(JOBS)


class AgentBackends:
    """The main agent's session, and one for each subagent that a hook has seen. Without hooks there are no others."""

    def __init__(self, main: StdioBackend, host: GuardLink | None, make: Callable[[Owner], StdioBackend]) -> None:
        self.main = main
        self._host = host
        self._make = make
        self._subagents: dict[str, StdioBackend] = {}

    async def backend_of(self, tool: str, arguments: Mapping[str, Any]) -> StdioBackend:
        """Return the session of the agent that makes a call. Raises `ToolRefusedError`."""
        if self._host is None or tool not in TOOLS:
            return self.main
        # Without hooks a call begins immediately, so that a cancellation that follows finds it under way.
        owner = await asyncio.to_thread(self._host.caller, tool, arguments) if self._host.sees_calls else None
        if owner is None:
            return self.main
        if len(self._subagents) >= SUBAGENTS_MAX:
            self._subagents = {folder: each for folder, each in self._subagents.items() if not each.is_idle}
        if owner.folder not in self._subagents:
            self._subagents[owner.folder] = self._make(owner)
        return self._subagents[owner.folder]

    async def end(self) -> None:
        try:
            async with asyncio.timeout(END_SECONDS):
                await asyncio.gather(*(each.end() for each in (*self._subagents.values(), self.main)))
                if self._host is not None:
                    self._host.close()
        except TimeoutError:
            log.warning("the server did not answer in time: what was claimed ends by itself")


async def _serve(client: AgentClient, backends: AgentBackends, notifier: _ChangeNotifier) -> None:
    signalled = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in _SIGNALS:
        loop.add_signal_handler(each, signalled.set)
    async with client:
        lines = _InputLines(signalled)
        serving = asyncio.create_task(_serve_mcp(backends, notifier, lines))
        others = [asyncio.create_task(_resume(backends.main)), asyncio.create_task(signalled.wait())]
        try:
            await asyncio.wait({serving, others[1]}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_cut_off = not serving.done()
            for task in (serving, *others):
                task.cancel()
            ended = await asyncio.gather(serving, *others, return_exceptions=True)
            await backends.end()
        if not is_cut_off:  # Errors because of the cancellation, as a response that nobody reads, are no bugs.
            _raise_bugs(ended)


async def _resume(main: StdioBackend) -> None:
    """Adopt what the previous process left, before it expires. If that fails, each call tries again."""
    try:
        await main.begin()
    except Exception as error:  # noqa: BLE001 - A call meets the same, and reports it where somebody reads it.
        log.warning("what the process before has left could not be taken over yet: %s", error)


def _raise_bugs(ended: Iterable[object]) -> None:
    for each in ended:
        if isinstance(each, BaseExceptionGroup):
            _raise_bugs(each.exceptions)
        elif isinstance(each, HoldfastError) or (isinstance(each, Exception) and not isinstance(each, OSError)):
            raise each


async def _serve_mcp(backends: AgentBackends, notifier: _ChangeNotifier, lines: _InputLines) -> None:
    async def find_session(_context: Context, params: types.CallToolRequestParams) -> StdioBackend:
        return await backends.backend_of(params.name, params.arguments or {})

    async def list_resources(_context: Context, _params: object) -> types.ListResourcesResult:
        text = "The jobs that are yours. It changes when you lose one."
        jobs = types.Resource(uri=JOBS, name="my-jobs", description=text, mime_type="application/json")
        return types.ListResourcesResult(resources=[jobs])

    async def read_resource(_context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        if str(params.uri) != JOBS:
            problem = f"there is no resource {str(params.uri)!r:.200}; there is {JOBS}"
            raise MCPError(types.INVALID_PARAMS, problem)
        try:
            await backends.main.begin()  # The jobs of the previous process may be ours too.
        except HoldfastError as error:
            raise MCPError(types.INTERNAL_ERROR, str(error)) from None
        text = msgspec.json.encode(clean(await backends.main.my_jobs())).decode()
        content = types.TextResourceContents(uri=JOBS, mime_type="application/json", text=text)
        return types.ReadResourceResult(contents=[content])

    async def subscribe(context: Context, _params: object) -> types.EmptyResult:
        notifier.subscribed = context.session
        return types.EmptyResult()

    async def unsubscribe(_context: Context, _params: object) -> types.EmptyResult:
        notifier.subscribed = None
        return types.EmptyResult()

    server = create_server(
        find_session,
        "stdio",
        on_list_resources=list_resources,
        on_read_resource=read_resource,
        on_subscribe_resource=subscribe,
        on_unsubscribe_resource=unsubscribe,
        on_subscriptions_listen=ListenHandler(notifier.bus, max_subscriptions=8, max_buffered_events=64),
    )
    # The SDK only iterates over the lines of one, and writes to the other.
    async with stdio_server(stdin=cast("Any", lines), stdout=cast("Any", _Output())) as (read, write):
        await server.run(read, write, server.create_initialization_options())


class _InputLines:
    """The lines of standard input. Each is read after the one before was consumed."""

    def __init__(self, end: asyncio.Event) -> None:
        self._end = end

    async def __aiter__(self) -> AsyncIterator[str]:
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(1)

        def read() -> None:
            try:
                for line in _lines_of(0):
                    asyncio.run_coroutine_threadsafe(queue.put(line), loop).result()
                asyncio.run_coroutine_threadsafe(queue.put(None), loop).result()
            except (RuntimeError, asyncio.CancelledError, concurrent.futures.CancelledError):
                return  # The loop has ended.

        threading.Thread(target=read, name="standard input", daemon=True).start()
        while (line := await queue.get()) is not None:
            yield line.decode("utf-8", "replace")
        loop.call_later(OUTPUT_SECONDS, self._end.set)


def _lines_of(descriptor: int) -> Iterator[bytes]:
    """Yield lines until the end of the input. Only the first bytes of a line that is too long are kept."""
    pending = bytearray()
    while True:
        try:
            data = os.read(descriptor, READ_BYTES)
        except OSError:
            data = b""
        if not data:
            return
        *complete, rest = data.split(b"\n")
        for part in complete:
            yield bytes(pending + part)[:LINE_BYTES_MAX]
            pending.clear()
        pending += rest[: LINE_BYTES_MAX - len(pending)]


class _Output:
    """Standard output, for messages alone: anything else that is printed goes to standard error."""

    def __init__(self) -> None:
        self._pending = b""
        self._descriptor = os.dup(1)
        with contextlib.suppress(OSError):
            os.dup2(2, 1)

    async def write(self, text: str) -> None:
        self._pending += text.encode()

    async def flush(self) -> None:
        """Write what is pending, in a thread: its caller can be cancelled."""
        data, self._pending = self._pending, b""
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()

        def write() -> None:
            rest, error = data, None
            try:
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            except OSError as raised:
                error = raised
            with contextlib.suppress(RuntimeError):  # The loop has ended.
                loop.call_soon_threadsafe(_resolve, written, error)

        threading.Thread(target=write, name="standard output", daemon=True).start()
        await written


def _resolve(written: asyncio.Future[None], error: OSError | None) -> None:
    if written.done():
        return
    if error is None:
        written.set_result(None)
    else:
        written.set_exception(error)
