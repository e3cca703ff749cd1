"""The parts of a server, made from its settings: limits, history, tokens, an engine on a directory, observers."""

from __future__ import annotations

import socket

from holdfast import __version__
from holdfast.api.auth.auth import StaticTokens, entries_of
from holdfast.api.auth.secrets import KEY_FILE
from holdfast.api.handlers import table
from holdfast.api.operation import Operation
from holdfast.config import Settings
from holdfast.config.addresses import parse_address
from holdfast.core.values import Limits
from holdfast.dashboard.documents import Documents
from holdfast.dashboard.table import JOBS, PAGES
from holdfast.engine.archiver import ArchivePolicy
from holdfast.engine.build import Retention, build
from holdfast.engine.clock import Clock
from holdfast.engine.engine import Engine
from holdfast.extras import how_to_install
from holdfast.http.proxies import Proxies
from holdfast.http.server import BACKLOG
from holdfast.observability.request_log import Observer, ObserverChain, RequestLog
from holdfast.privatefiles import NotOursError, read_ours, reason_of

TOKENS_BYTES_MAX = 4_194_304
TRACES_EXTRA = "otel"


def limits_of(settings: Settings) -> Limits:
    return Limits(
        ttl_ms_max=settings.max_ttl_seconds * 1000,
        session_ttl_ms_max=settings.max_session_ttl_seconds * 1000,
        metadata_chars_max=settings.metadata_chars_max,
        leases_per_principal_max=settings.leases_per_principal_max,
        sessions_per_principal_max=settings.sessions_per_principal_max,
        retry_memory_ms=settings.retry_memory_seconds * 1000,
        retry_bytes_max=settings.retry_bytes_max,
        ended_bytes_max=settings.ended_bytes_max,
        done_bytes_per_principal_max=settings.done_bytes_per_principal_max,
        tokens_max=settings.tokens_max,
        tickets_per_principal_max=settings.tickets_per_principal_max,
        waiting_names_per_principal_max=settings.waiting_names_per_principal_max,
        queue_max=settings.queue_max,
        names_per_call_max=settings.names_per_call_max,
        reentrant=settings.reentrant,
    )


def retention_of(settings: Settings) -> Retention:
    return Retention(
        wall_ms=settings.history_days * 86_400_000,
        records_max=settings.history_records_max,
        bytes_max=settings.history_bytes_max,
    )


def archiving_of(settings: Settings) -> ArchivePolicy:
    # It begins before anybody has more than their part of what may wait for it.
    size_bytes = min(settings.snapshot_mib * 2**20, settings.tail_mib_max * 2**19)
    return ArchivePolicy(records=settings.snapshot_records, size_bytes=size_bytes)


def engine_for(settings: Settings) -> Engine:
    return build(
        settings.data,
        limits_of(settings),
        version=__version__,
        retention=retention_of(settings),
        witnesses=(KEY_FILE,),
        archive_policy=archiving_of(settings),
        disk_reserve_bytes=settings.disk_reserve_mib * 2**20,
        tail_bytes_max=settings.tail_mib_max * 2**20,
        disk_hang_ms=settings.disk_hang_seconds * 1000,
    )


def static_tokens(settings: Settings) -> StaticTokens:
    """Read the static tokens, those of the file too. Raises `StartError` and `BadTokenError`."""
    text = settings.tokens
    if settings.tokens_file is not None:
        try:
            content = read_ours(settings.tokens_file, TOKENS_BYTES_MAX, root_shares=True)
            in_file = content.decode()
        except (OSError, UnicodeDecodeError) as error:
            text = f"tokens_file {settings.tokens_file} cannot be read: {reason_of(error)}"
            raise StartError(text, EX_USAGE) from error
        except NotOursError as error:
            raise StartError(f"tokens_file {error}", EX_USAGE) from error
        if len(content) > TOKENS_BYTES_MAX:
            raise StartError(f"tokens_file {settings.tokens_file} has more than {TOKENS_BYTES_MAX} bytes", EX_USAGE)
        if not entries_of(in_file):
            problem = f"tokens_file {settings.tokens_file} holds no access token"
            raise StartError(f"{problem}: write name:token into it, one a line, or leave the setting out", EX_USAGE)
        text += f"\n{in_file}"
    return StaticTokens.parse(text)


def observers_of(settings: Settings, clock: Clock, proxies: Proxies, node: str = "") -> ObserverChain:
    observers: list[Observer] = []
    if settings.log_requests:
        observers.append(RequestLog(clock, proxies))
    if settings.traces:
        observers.append(_traces(node))
    return ObserverChain(observers)


def _traces(node: str) -> Observer:
    try:
        from holdfast.observability.traces import Traces  # noqa: PLC0415 - Its extra may be missing.
    except ModuleNotFoundError as error:
        text = f"traces need a part of Holdfast that is not installed ({error.name}): {how_to_install(TRACES_EXTRA)}"
        raise StartError(text, EX_USAGE) from error
    return Traces(node)


def listen(settings: Settings) -> socket.socket:
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


EX_OK, EX_USAGE, EX_UNAVAILABLE, EX_IOERR, EX_TEMPFAIL = 0, 64, 69, 74, 75


class StartError(Exception):
    """The server cannot start; the text says what to do, the code how the process ends."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


_document = Documents(lambda: tuple(operation for operation in OPERATIONS if operation.in_documents))

OPERATIONS: tuple[Operation, ...] = (
    JOBS,
    Operation("GET", "/docs", _document.docs, "This API, for people", replies={200: "text/html"}, is_local=True),
    Operation(
        "GET",
        "/openapi.json",
        _document.openapi_json,
        "This document",
        replies={200: "application/json"},
        is_local=True,
    ),
    Operation(
        "GET",
        "/openapi.yaml",
        _document.openapi_yaml,
        "This document",
        replies={200: "application/yaml"},
        is_local=True,
    ),
    *table.OPERATIONS,
    *PAGES,
)
