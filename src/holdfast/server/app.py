"""A server from start to stop: puts the parts together, listens, and ends with an exit code that says why.

0 stopped as asked · 64 bad settings · 74 the store failed or is damaged · 75 somebody else uses the data directory
or the disk hung · 69 the address cannot be listened on.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast import __version__, clientconfig
from holdfast.core.answers import TokenMade
from holdfast.core.commands import CreateToken
from holdfast.core.values import Limits
from holdfast.engine.build import (
    JournalError,
    JournalLockedError,
    Keeping,
    arm_failpoints,
    build,
)
from holdfast.errors import SettingsError
from holdfast.privatefiles import NotOursError, read_ours, reason_of, replace
from holdfast.server import logs, render
from holdfast.server.access.auth import SCOPES, Auth, BadTokenError, StaticTokens, entries_of
from holdfast.server.access.secrets import KEY_FILE, AuthorityKey, digest, new_token
from holdfast.server.api import Api
from holdfast.server.doors.asgi import Door
from holdfast.server.doors.lane import Lane
from holdfast.server.doors.lanes import Lanes, front_of
from holdfast.server.handshakes import SecureListener
from holdfast.server.operations.routes import Routes
from holdfast.server.operations.table import OPERATIONS
from holdfast.server.tls import BadCertificateError, Certificate, certificate_of
from holdfast.settings import parse_address

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from pathlib import Path
    from types import FrameType

    from holdfast.engine.engine import Engine
    from holdfast.settings import Settings

EX_OK, EX_USAGE, EX_UNAVAILABLE, EX_IOERR, EX_TEMPFAIL = 0, 64, 69, 74, 75
FIRST_TOKEN = "local"  # noqa: S105 - the name of the token
TOKEN_FILE = "local-token"  # noqa: S105 - the name of the file
FAREWELL_SECONDS = 0.5
HIDDEN_TOLD_MAX = 10
TOKENS_BYTES_MAX = 4_194_304
SPARE_FILES = 512
BACKLOG = 2_048
"""How many connections the kernel keeps until we take them."""
ACCEPTS_PER_TURN = 16
"""The loop accepts one connection per socket and turn. With one socket, callers that open a connection for each request
would be served one per commit; so the loop listens on several descriptors of the same socket."""


log = logging.getLogger("holdfast.server")


class StartError(Exception):
    """The server cannot start; the text says what to do, the code how the process ends."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def serve(settings: Settings, file: Path | None, warnings: Sequence[str] = ()) -> int:
    """Run a server until it is told to stop; return the exit code.

    `file` is where settings were read from; `warnings` are what the log says of how they were given.
    """
    try:
        arm_failpoints(os.environ)
        logs.configure(settings.log_format)
        for warning in warnings:
            log.warning("%s", warning)
        _allow_files(settings.connections_max + SPARE_FILES)
        with asyncio.Runner(loop_factory=_loop_factory(), debug=False) as runner:
            return runner.run(_serve(settings, file))
    except (ValueError, BadTokenError, BadCertificateError) as error:
        return _complain(str(error), EX_USAGE)
    except StartError as error:
        return _complain(str(error), error.code)


def _complain(text: str, code: int) -> int:
    print(f"holdfast: {text}", file=sys.stderr)
    return code


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ModuleNotFoundError:
        return None
    return uvloop.Loop


def _allow_files(wanted: int) -> None:
    """Let the process have a descriptor for every connection, as far as the machine allows; it may start with few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < enough:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))


async def _serve(settings: Settings, file: Path | None) -> int:
    static = _static_tokens(settings)
    tls = certificate_of(settings)
    listener = _listen(settings)
    engine = _engine_for(settings)
    try:
        key = await _start(engine, settings)
        api = Api(engine, Auth(static, key), settings)
        server = _Server(api, settings, tls)
        place = listener.getsockname()
        host = f"[{place[0]}]" if ":" in place[0] else place[0]
        url = f"{'http' if tls is None else 'https'}://{host}:{place[1]}"
        token_path = await _first_token(api, url, settings)
        _warn_of_hidden(api)
        _tune_collector()
        await server.run(listener, lambda: _greet(api, url, token_path, file))
        api.end()
    finally:
        listener.close()
        await engine.stop()
    return EX_OK if engine.failed is None else EX_IOERR


def _warn_of_hidden(api: Api) -> None:
    """Say which made tokens are out of use, because the settings gave their names to others."""
    hidden = api.auth.hidden(api.engine.state)
    if hidden:
        log.warning(
            "%d made tokens have the name of a static one and are not let in: %s. Revoke them with `holdfast token"
            " revoke NAME`, which leaves the static one, or take the static one out of the settings.",
            len(hidden),
            ", ".join(hidden[:HIDDEN_TOLD_MAX]),
        )


def _tune_collector() -> None:
    """Keep the garbage collector off what was loaded, and let it look seldom: our values are not in its care.

    But not too seldom: a look at 10,000 new objects takes 0.4 ms, at 50,000 2.5 ms, and the loop waits for it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 50, 100)


async def _start(engine: Engine, settings: Settings) -> AuthorityKey:
    try:
        await engine.start()
        return AuthorityKey.load(settings.data)
    except JournalLockedError as error:
        raise StartError(str(error), EX_TEMPFAIL) from error
    except (JournalError, NotOursError, OSError, ValueError) as error:
        raise StartError(f"the data directory {settings.data} cannot be used: {reason_of(error)}", EX_IOERR) from error


def _engine_for(settings: Settings) -> Engine:
    limits = Limits(
        ttl_ms_max=settings.max_ttl_seconds * 1000,
        session_ttl_ms_max=settings.max_session_ttl_seconds * 1000,
        metadata_chars_max=settings.metadata_chars_max,
        leases_per_principal_max=settings.leases_per_principal_max,
        sessions_per_principal_max=settings.sessions_per_principal_max,
        retry_memory_ms=settings.retry_memory_seconds * 1000,
        retry_keys_max=settings.retry_keys_max,
        retry_bytes_max=settings.retry_bytes_max,
        ended_names_max=settings.ended_names_max,
        ended_bytes_max=settings.ended_bytes_max,
        done_names_per_principal_max=settings.done_names_per_principal_max,
        done_bytes_per_principal_max=settings.done_bytes_per_principal_max,
        tokens_max=settings.tokens_max,
        tickets_per_principal_max=settings.tickets_per_principal_max,
        waiting_names_per_principal_max=settings.waiting_names_per_principal_max,
        line_max=settings.line_max,
        names_per_call_max=settings.names_per_call_max,
        reentrant=settings.reentrant,
    )
    return build(
        settings.data,
        limits,
        version=__version__,
        keeping=Keeping(
            wall_ms=settings.history_days * 86_400_000,
            records_max=settings.history_records_max,
            bytes_max=settings.history_bytes_max,
        ),
        witnesses=(KEY_FILE,),
        snapshot_records=settings.snapshot_records,
        # Archiving begins before anybody has more than their part of what may wait for it.
        snapshot_bytes=min(settings.snapshot_mib * 2**20, settings.tail_mib_max * 2**19),
        ballast_bytes=settings.disk_reserve_mib * 2**20,
        tail_bytes_max=settings.tail_mib_max * 2**20,
        disk_hang_ms=settings.disk_hang_seconds * 1000,
    )


def _static_tokens(settings: Settings) -> StaticTokens:
    text = settings.tokens
    if settings.tokens_file is not None:
        try:
            content = read_ours(settings.tokens_file, TOKENS_BYTES_MAX, root_shares=True)
            in_file = content.decode()
        except (OSError, UnicodeDecodeError) as error:
            raise StartError(
                f"tokens_file {settings.tokens_file} cannot be read: {reason_of(error)}", EX_USAGE
            ) from error
        except NotOursError as error:
            raise StartError(f"tokens_file {error}", EX_USAGE) from error
        if len(content) > TOKENS_BYTES_MAX:
            raise StartError(f"tokens_file {settings.tokens_file} has more than {TOKENS_BYTES_MAX} bytes", EX_USAGE)
        if not entries_of(in_file):
            problem = f"tokens_file {settings.tokens_file} holds no access token"
            raise StartError(f"{problem}: write name:token into it, one a line, or leave the setting out", EX_USAGE)
        text += f"\n{in_file}"
    return StaticTokens.parse(text)


def _listen(settings: Settings) -> socket.socket:
    host, port = parse_address(settings.listen)
    listener: socket.socket | None = None
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        if listener is not None:
            listener.close()
        text = f"cannot listen on {settings.listen}: {error.strerror or error}. Choose another with --listen HOST:PORT"
        raise StartError(text, EX_UNAVAILABLE) from error
    return listener


async def _first_token(api: Api, url: str, settings: Settings) -> str | None:
    """Make the first token on a machine that has none, for its own user alone. Return where it is kept."""
    if api.auth.static.callers or api.engine.state.tokens:
        return None
    if not _is_loopback(parse_address(settings.listen)[0]):
        text = (
            "there is no access token, and this address is open to others: set HOLDFAST_TOKENS or HOLDFAST_TOKENS_FILE"
        )
        raise StartError(text, EX_USAGE)
    token = new_token()
    path = None
    with contextlib.suppress(OSError):
        path = clientconfig.remember(url, token, os.environ)
    if path is None:
        # The user's configuration is for another server, or cannot be written: it is left alone.
        path = settings.data / TOKEN_FILE
        replace(path, f"{token}\n".encode())
    command = CreateToken(principal=FIRST_TOKEN, name=FIRST_TOKEN, digest=digest(token), scopes=SCOPES)
    outcome, _ = await api.engine.ask(command)
    if not isinstance(outcome, TokenMade):
        raise StartError(f"the first access token could not be made: {render.problem(outcome).details}", EX_IOERR)
    return str(path)


def _is_loopback(host: str) -> bool:
    return host in {"localhost", "::1"} or host.startswith("127.")


def _greet(api: Api, url: str, token_path: str | None, file: Path | None) -> None:
    """Say where things are, and a line that works when pasted."""
    print(f"Holdfast {__version__} is listening on {url}")
    if file is not None:
        print(f"Settings are from {file}")
    if api.settings.public_url:
        print(f"Clients elsewhere use {api.settings.public_url}")
    print(f"Data is in {api.settings.data.absolute()}")
    known = token_path or _token_at_hand(api)
    if token_path is not None:
        print(f"The first access token, {FIRST_TOKEN!r} with all scopes, is in {token_path}")
    elif known is not None:
        print(f"Your access token is in {known}")
    else:
        print("Put your access token into HOLDFAST_TOKEN: one of the settings, or made with `holdfast token create`")
    token = "$HOLDFAST_TOKEN" if known is None else f"$(cat '{known}')"
    # The certificate has the public name in it, and nobody can call an address like 0.0.0.0.
    url = api.settings.public_url or url
    print(
        f"\nTry:\n  curl -X POST {url}/locks/github-issue-1842/acquire \\\n"
        f"    -H \"Authorization: Bearer {token}\" -H 'Content-Type: application/json' \\\n"
        '    -d \'{"ttl_seconds": 120, "owner": "me"}\'\n',
        flush=True,
    )


def _token_at_hand(api: Api) -> str | None:
    """Return where an access token for this server is kept, if it is there and good here.

    That is in the user's own configuration, or beside the data, where the first start put it.
    """
    files = [api.settings.data / TOKEN_FILE]
    with contextlib.suppress(OSError, SettingsError):
        config = clientconfig.read(os.environ)
        if config.token_file is not None:
            # Its address may be another one of this server. Whether the access token is good here is looked at below.
            files.insert(0, config.token_file)
    for file in files:
        with contextlib.suppress(OSError, SettingsError):
            kept = digest(clientconfig.read_token(file))
            if api.auth.by_digest(kept, api.engine.state, api.engine.clock.wall_ms()) is not None:
                return str(file)
    return None


class _WithoutTrailers(HttpToolsProtocol):
    """uvicorn's own protocol, for the ASGI door alone. It takes trailers for headers, and so would let anybody in."""

    def on_headers_complete(self) -> None:
        """Let the trailers go where nobody looks."""
        super().on_headers_complete()
        self.headers = []


class _Server(uvicorn.Server):
    """uvicorn, with our doors, our signals, and an end to the streams when it stops."""

    def __init__(self, api: Api, settings: Settings, tls: Certificate | None) -> None:
        self._api = api
        self._tls = tls
        self._secure: SecureListener | None = None
        routes = Routes(api, OPERATIONS)
        door = Door(routes, chunks_only=not settings.fast_lane)
        config = uvicorn.Config(
            door,
            http=_WithoutTrailers,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=settings.idle_timeout_seconds,
            timeout_graceful_shutdown=settings.stop_timeout_seconds,
        )
        config.load()
        super().__init__(config)
        self._lanes: Lanes | None = None
        if settings.fast_lane:
            self._lanes = Lanes(front_of(routes, door), settings, api.engine.clock, api.proxies, self.server_state)

    async def run_until_told(self) -> None:
        """Let the second hand go round, and stop when the engine has failed."""
        while True:
            try:
                await asyncio.wait_for(self._api.engine.ended.wait(), 1)
            except TimeoutError:
                self._api.tick()
                if self._tls is not None:
                    self._tls.tick()
                if self._lanes is not None:
                    await self._lanes.tick()
                continue
            # What is owed is the news that nobody knows: leave a moment for it to go out.
            await asyncio.sleep(FAREWELL_SECONDS)
            self.should_exit = True
            return

    async def run(self, listener: socket.socket, greet: Callable[[], None]) -> None:  # type: ignore[override]
        """Serve until told to stop."""
        self._greet = greet
        watcher = asyncio.create_task(self.run_until_told())
        try:
            await self.serve(sockets=[listener, *(listener.dup() for _ in range(ACCEPTS_PER_TURN - 1))])
        finally:
            watcher.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, then say so. It is not left to uvicorn, which has no time limits for TLS."""
        loop = asyncio.get_running_loop()
        tls: dict[str, Any] = {}
        if self._tls is not None and self._lanes is not None:
            self._secure = SecureListener(self._lanes, (sockets or [])[0], self._tls.context)
            sockets = None
        elif self._tls is not None:
            seconds = self._api.settings.header_timeout_seconds
            tls = {"ssl": self._tls.context, "ssl_handshake_timeout": seconds, "ssl_shutdown_timeout": seconds}
        self.servers = [
            await loop.create_server(self._new_connection, sock=listener, backlog=BACKLOG, **tls)
            for listener in sockets or []
        ]
        self.started = True
        self._greet()

    def _new_connection(self) -> asyncio.BaseProtocol:
        if self._lanes is not None:
            return Lane(self._lanes)
        return _WithoutTrailers(self.config, self.server_state, {})

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams and the waits, answer what is owed, close."""
        if self._lanes is not None:
            self._lanes.is_stopping = True
        if self._secure is not None:
            self._secure.close()
        self._api.engine.feed.close()
        self._api.engine.end_waits()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Stop on SIGTERM and SIGINT, and end with our own exit code instead of the signal's."""
        before = {number: signal.signal(number, self._told) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _told(self, _number: int, _frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
