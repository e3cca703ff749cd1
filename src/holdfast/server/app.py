"""A server from start to stop: puts the parts together, listens, and ends with an exit code that says why.

0 stopped as asked · 64 bad settings · 74 the store failed or is damaged · 75 somebody else uses the data directory
or the disk hung · 69 the address cannot be listened on. A node on a store never ends by itself: it retries, and reports
what is wrong in its log and its health.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from holdfast import __version__
from holdfast.api.auth.auth import Auth, BadTokenError
from holdfast.api.auth.secrets import AuthorityKey
from holdfast.api.mounts import Mount, MountTable
from holdfast.api.router import Routes
from holdfast.api.service import ApiService
from holdfast.config import Settings
from holdfast.config.addresses import shown
from holdfast.engine.build import JournalError, JournalLockedError, Peer, arm_failpoints
from holdfast.engine.engine import Engine
from holdfast.http.manager import ConnectionManager
from holdfast.http.server import HttpServer, fit_open_files, url_of
from holdfast.http.tls import BadCertificateError, certificate_of
from holdfast.observability.event_log import EventLog
from holdfast.observability.logs import configure, dropped_lines, flush
from holdfast.observability.request_log import ObserverChain
from holdfast.privatefiles import NotOursError, reason_of
from holdfast.server.cluster_node import ClusterNode
from holdfast.server.components import (
    EX_IOERR,
    EX_OK,
    EX_TEMPFAIL,
    EX_USAGE,
    OPERATIONS,
    StartError,
    engine_for,
    listen,
    observers_of,
    static_tokens,
)
from holdfast.server.first_access_token import FIRST_TOKEN, find_token, first_token, warn_of_hidden

GREETING_SECONDS = 0.2  # How long the greeting waits for earlier log lines.

log = logging.getLogger("holdfast.server")


def serve(
    settings: Settings, file: Path | None, warnings: Sequence[str] = (), mounts: Mapping[str, Mount] | None = None
) -> int:
    """Run a server until it is told to stop; return the exit code. `mounts` are applications by their paths."""
    mounts = mounts or {}
    try:
        arm_failpoints(os.environ)
        configure(settings.log_format)
        for warning in warnings:
            log.warning("%s", warning)
        settings = fit_open_files(settings)
        with asyncio.Runner(loop_factory=_loop_factory(), debug=False) as runner:
            return runner.run(_serve_node(settings, file, mounts) if settings.store else _serve(settings, file, mounts))
    except (ValueError, BadTokenError, BadCertificateError) as error:
        return _complain(str(error), EX_USAGE)
    except StartError as error:
        return _complain(str(error), error.code)
    finally:
        flush()


def _complain(text: str, code: int) -> int:
    if flush():
        print(f"holdfast: {text}", file=sys.stderr)
    return code


async def _serve(settings: Settings, file: Path | None, mounts: Mapping[str, Mount]) -> int:
    static = static_tokens(settings)
    tls = certificate_of(settings)
    listener = listen(settings)
    engine = engine_for(settings)
    observing = ObserverChain(())
    events: EventLog | None = None
    try:
        key = await _start(engine, settings)
        events = EventLog(engine) if settings.log_events else None
        api = ApiService(engine, Auth(static, key), settings)
        routes = Routes(api, OPERATIONS)
        observing = observers_of(settings, engine.clock, api.proxies)
        handler = MountTable(mounts, settings, api.proxies).wrap(routes.handler())
        manager = ConnectionManager(handler, settings, engine.clock, api.proxies, wrap=observing.wrap)
        api.meter.sources.connections = lambda: len(manager.connections)
        api.meter.sources.lines_dropped = dropped_lines
        url = url_of(listener, tls)
        token_path = await first_token(api, url, settings)
        warn_of_hidden(api)
        api.meter.start()
        _tune_collector()
        server = HttpServer(api, manager, tls)
        await server.run(listener, lambda: _greet(api, url, token_path, file))
        api.meter.stop()
        api.end()
    finally:
        listener.close()
        await engine.stop()
        if events is not None:
            events.end()
        observing.close()
    return EX_OK if engine.failed is None else EX_IOERR


async def _serve_node(settings: Settings, file: Path | None, mounts: Mapping[str, Mount]) -> int:
    static = static_tokens(settings)
    tls = certificate_of(settings)
    listener = listen(settings)
    try:
        node = ClusterNode(settings, static, tls, listener, say=partial(print, flush=True), mounts=mounts)
        _tune_collector()
        await node.run(listener, lambda: _greet_node(node.node.me, settings, url_of(listener, tls), file))
    except JournalError as error:
        raise StartError(str(error), EX_USAGE) from error
    finally:
        listener.close()
    return EX_OK


def _tune_collector() -> None:
    """Keep the collector off what was loaded, and run it rarely; but a run must stay short."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(1_000, 500, 100)


async def _start(engine: Engine, settings: Settings) -> AuthorityKey:
    try:
        await engine.start()
        return AuthorityKey.load(settings.data)
    except JournalLockedError as error:
        raise StartError(f"{error}. A second server needs a directory of its own (--data)", EX_TEMPFAIL) from error
    except (JournalError, NotOursError, OSError, ValueError) as error:
        raise StartError(f"the data directory {settings.data} cannot be used: {reason_of(error)}", EX_IOERR) from error


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    try:
        import uvloop  # noqa: PLC0415 - not on every platform
    except ModuleNotFoundError:
        return None
    return uvloop.Loop


def _greet_node(me: Peer, settings: Settings, url: str, file: Path | None) -> None:
    _say_where(settings, url, file, f"{shown(settings.store)}, in the schema {settings.store_schema}")
    print(f"This is node {me.node}, and the others reach it at {me.url}. Who leads: holdfast nodes", flush=True)


def _say_where(settings: Settings, url: str, file: Path | None, data: object) -> None:
    flush(GREETING_SECONDS)
    print(f"Holdfast {__version__} is listening on {url}")
    if file is not None:
        print(f"Settings are from {file}")
    if settings.public_url:
        print(f"Clients elsewhere use {settings.public_url}")
    print(f"Data is in {data}")


def _greet(api: ApiService, url: str, token_path: str | None, file: Path | None) -> None:
    _say_where(api.settings, url, file, api.settings.data.absolute())
    known = token_path or find_token(api)
    if token_path is not None:
        print(f"The first access token, {FIRST_TOKEN!r} with all scopes, is in {token_path}")
    elif known is not None:
        print(f"Your access token is in {known}")
    else:
        print("Put your access token into HOLDFAST_TOKEN: one of the settings, or made with `holdfast token create`")
    token = "$HOLDFAST_TOKEN" if known is None else f"$(cat '{known}')"
    url = api.settings.public_url or url  # It is in the certificate; 0.0.0.0 is no address to call.
    print(f"The page for a browser is {url}/, and takes that token")
    print(
        f"\nTry:\n  curl -X POST {url}/locks/github-issue-1842/acquire \\\n"
        f"    -H \"Authorization: Bearer {token}\" -H 'Content-Type: application/json' \\\n"
        '    -d \'{"ttl_seconds": 120, "owner": "me"}\'\n',
        flush=True,
    )
