"""TLS: the certificate and its key, and the handshakes of new connections.

**Certificate.** Both files are checked at the start, so that an error names the file and what to do. A key may be a
link and readable by a group, because programs that renew certificates keep it so. `tick` checks the files once a
second: a valid pair that did not change for one check is used for new connections, in a context of its own, so nothing
is half replaced. An invalid one is logged once, and the previous pair stays in use.

**Handshakes** cost us a signature, and the client nothing. `TlsAcceptor` accepts the sockets itself and lets the event
loop do a handshake only when the client's first record has arrived:

    accepted ──► silent ──► ready ──► under way ──► HttpConnection
                   │          │          │ HANDSHAKES_MAX: the oldest gives way after HANDSHAKE_MS_MIN
                   │          │ HANDSHAKES_PER_TICK are started, then other connections have their turn
                   └ a socket and a reader callback: no buffers, no TLS

`SO_RCVLOWAT` makes the socket readable only when the whole record is there. All of them are counted as unauthenticated
connections from the start, so they give way when there are too many, and end after `header_timeout_seconds`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from holdfast.config import Settings
from holdfast.http.manager import REFUSED_CONNECTIONS_MAX, ConnectionManager
from holdfast.privatefiles import ROOT

ACCEPTS_PER_TICK = 16
ACCEPT_RETRY_SECONDS = 0.2  # How long accepting pauses when the process has no free file descriptor.
HANDSHAKES_PER_TICK = 2
HANDSHAKES_MAX = 256
HANDSHAKE_MS_MIN = 1_000  # Until one that is under way may be displaced: longer than a slow network needs.
RECEIVE_BYTES = 16_384  # The kernel doubles it. OpenSSL processes it in one call, and tiny records take long.
RECORD_HEADER_BYTES = 5
RECORD_BYTES_MAX = 16_384
_HANDSHAKE_RECORD = 22
_NO_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
FILE_BYTES_MAX = 1_048_576

_CERTIFICATE = b"CERTIFICATE-----"
_KEY = b"PRIVATE KEY-----"
_MISMATCH = frozenset({"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"})
_CUT = "it is not PEM from its first line to its last; put a whole copy there"

log = logging.getLogger("holdfast.server")


class BadCertificateError(Exception):
    """The certificate or its key cannot be used. The text says which file, why, and what to do."""


def certificate_of(settings: Settings) -> Certificate | None:
    if settings.tls_cert is not None:
        return Certificate(settings.tls_cert, settings.tls_key)
    if settings.tls_key is not None:
        raise BadCertificateError("tls_key is set and tls_cert is not: set both")
    return None


class Certificate:
    def __init__(self, chain: Path, key: Path | None) -> None:
        self._chain, self._key = chain, key
        self._seen = self._tried = self._look()
        self._current = self.context = _context_of(chain, key)
        self.context.sni_callback = self._hand_over  # Called in every handshake, with or without a server name.

    def tick(self) -> None:
        found = self._look()
        if found != self._seen:
            self._seen = found  # The files may be written right now, one after the other.
        elif found != self._tried:
            self._tried = found
            try:
                self._current = _context_of(self._chain, self._key)
            except (BadCertificateError, OSError) as error:  # `OSError`: it vanished meanwhile.
                log.warning("a new certificate is not used, and the one before stays: %s", error)
            else:
                log.info("a new certificate was read from %s: new connections get it", self._chain)

    def _hand_over(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._current

    def _look(self) -> tuple[object, ...]:
        return tuple(_fingerprint(path) for path in (self._chain, self._key) if path is not None)


def _fingerprint(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError as error:
        return (error.errno or 0,)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _context_of(chain_path: Path, own_key_path: Path | None) -> ssl.SSLContext:
    key_path = own_key_path or chain_path
    named = "tls_cert" if own_key_path is None else "tls_key"
    chain = _read("tls_cert", chain_path)
    key = _read(named, key_path)
    if _CERTIFICATE not in chain:
        if _KEY in chain and _CERTIFICATE in key:
            raise BadCertificateError(f"tls_cert {chain_path} holds a key: tls_cert and tls_key are swapped")
        raise BadCertificateError(f"tls_cert {chain_path} holds no certificate in PEM (-----BEGIN CERTIFICATE)")
    if _KEY not in key:
        do = "name the file of the key with tls_key" if own_key_path is None else "name the private key in PEM"
        raise BadCertificateError(f"{named} {key_path} holds no private key (-----BEGIN PRIVATE KEY): {do}")
    _check_mode(named, key_path)
    return _load(chain_path, key_path, named)


def _read(name: str, path: Path) -> bytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise BadCertificateError(f"{name} {path} is not a regular file")
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise BadCertificateError(f"{name} {path} cannot be read: {error.strerror or error}") from error
    if len(content) > FILE_BYTES_MAX:
        raise BadCertificateError(f"{name} {path} has more than {FILE_BYTES_MAX} bytes")
    return content


def _check_mode(name: str, path: Path) -> None:
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    at = f"{name} {path}"
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        do = f"run: chmod 600 '{path}'; if a group needs it: chmod 640"
        raise BadCertificateError(f"{at} holds a private key and is open to other users (mode {mode:04o}); {do}")
    if mode & stat.S_IRGRP and not found.st_uid == ROOT != os.geteuid():
        log.warning("%s may be read by its group (mode %04o); if nobody else needs it: chmod 600 '%s'", at, mode, path)


def _load(chain: Path, key: Path, named: str) -> ssl.SSLContext:
    def refuse() -> NoReturn:
        do = f"keep it without one: openssl pkey -in '{key}' -out NEW_FILE"
        raise BadCertificateError(f"{named} {key} has a passphrase, and nobody could type it; {do}")

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(chain, key, password=refuse)
    except (OSError, ValueError) as error:
        raise BadCertificateError(_explained(error, chain, key, named)) from error
    return context


def _explained(error: Exception, chain: Path, key: Path, named: str) -> str:
    reason = getattr(error, "reason", None) or ""
    if reason in _MISMATCH:
        return f"tls_cert {chain} and {named} {key} do not belong together: name the key that the certificate is for"
    if reason and "PEM" not in reason:
        return f"tls_cert {chain} and {named} {key} cannot be used: {reason.lower().replace('_', ' ')}"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cafile=chain)  # Is it the chain?
    except (OSError, ValueError):
        return f"tls_cert {chain} is damaged: {_CUT}"
    return f"{named} {key} is damaged: {_CUT}"


class TlsHandshake:
    def __init__(self, acceptor: TlsAcceptor, sock: socket.socket) -> None:
        self._acceptor = acceptor
        self._socket = sock
        self.loop = acceptor.loop
        self._since = acceptor.manager.now_seconds
        self._record_bytes = 0
        self.started_ms = 0
        self._is_started = self._is_over = False
        self.is_authenticated: bool = False
        self.principal: str | None = None

    def wait_for_record(self) -> None:
        self.loop.add_reader(self._socket, self._readable)

    def _readable(self) -> None:
        try:
            header = self._socket.recv(RECORD_HEADER_BYTES, socket.MSG_PEEK)
        except OSError:
            self.abort()
            return
        size = RECORD_HEADER_BYTES
        if len(header) == size:
            size += int.from_bytes(header[3:], "big")
        if not header or header[0] != _HANDSHAKE_RECORD or size > RECORD_BYTES_MAX:
            # The client is gone, or does not speak TLS. Closing with unread data would reset the connection, and a
            # client of plain HTTP could not tell that from a crash.
            with contextlib.suppress(OSError):
                self._socket.recv(RECEIVE_BYTES)
            self.abort()
        elif len(self._socket.recv(size, socket.MSG_PEEK)) < size:
            # Readable although incomplete: the client sends no more. After a reset the loop may not call again.
            if size == self._record_bytes or self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self.abort()
                return
            self._record_bytes = size
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
        else:
            self.loop.remove_reader(self._socket)
            self._acceptor.enqueue(self)

    def start(self) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        self._is_started = True
        task = self.loop.create_task(self._run())
        self._acceptor.tasks.add(task)
        task.add_done_callback(self._acceptor.tasks.discard)

    async def _run(self) -> None:
        seconds = self._acceptor.manager.settings.header_timeout_seconds
        try:
            await self.loop.connect_accepted_socket(  # The protocol calls `finish` when the handshake is complete.
                lambda: self._acceptor.protocol(self),
                self._socket,
                ssl=self._acceptor.context,
                ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=seconds,
            )
        except OSError:
            pass  # The handshake failed, and the loop has closed the connection.
        finally:
            self.finish()

    def finish(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._acceptor.remove(self)

    def abort(self) -> None:
        if self._is_over:
            return
        self.finish()
        if self._is_started:
            with contextlib.suppress(OSError):  # The transport owns the socket, and sees that the connection is over.
                self._socket.shutdown(socket.SHUT_RDWR)
        else:
            self.loop.remove_reader(self._socket)
            self._socket.close()

    shutdown = abort

    def resume(self) -> None: ...  # It has no requests.

    def check_time(self) -> None:
        manager = self._acceptor.manager
        if manager.now_seconds - self._since > manager.settings.header_timeout_seconds:
            self.abort()


class TlsAcceptor:
    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        manager: ConnectionManager,
        protocol: Callable[[TlsHandshake], asyncio.BaseProtocol],
    ) -> None:
        """`protocol` makes the protocol of a connection; that calls `finish` of the handshake when it is connected."""
        self.loop = asyncio.get_running_loop()
        self.context, self.manager, self.protocol = context, manager, protocol
        self._listener = listener
        self._ready: dict[TlsHandshake, None] = {}
        self._under_way: dict[TlsHandshake, None] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self._start_is_due = self._is_closed = False
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        self._listen()

    def _listen(self) -> None:
        if not self._is_closed:
            self.loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        self._is_closed = True
        self.loop.remove_reader(self._listener)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TICK):
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _NO_RESOURCES:
                    self.loop.remove_reader(self._listener)
                    self.loop.call_later(ACCEPT_RETRY_SECONDS, self._listen)
                return
            sock.setblocking(False)
            handshake = TlsHandshake(self, sock)
            # One connection too many still gets a response that says so; but not a crowd of them.
            if self.manager.add(handshake) > REFUSED_CONNECTIONS_MAX or self.manager.is_stopping:
                handshake.abort()
            else:
                handshake.wait_for_record()

    def enqueue(self, handshake: TlsHandshake) -> None:
        self._ready[handshake] = None
        self._start_soon()

    def remove(self, handshake: TlsHandshake) -> None:
        self._ready.pop(handshake, None)
        self._under_way.pop(handshake, None)
        self.manager.remove(handshake)

    def _start_soon(self, delay: float = 0.0) -> None:
        if self._ready and not self._start_is_due:
            self._start_is_due = True
            self.loop.call_later(delay, self._start)

    def _start(self) -> None:
        self._start_is_due = False
        now_ms = self.manager.now_ms()
        for _ in range(min(HANDSHAKES_PER_TICK, len(self._ready))):
            if len(self._under_way) >= HANDSHAKES_MAX:
                oldest = next(iter(self._under_way))
                left_ms = oldest.started_ms + HANDSHAKE_MS_MIN - now_ms
                if left_ms > 0:
                    self._start_soon(left_ms / 1000)
                    return
                oldest.abort()
            handshake = next(iter(self._ready))
            del self._ready[handshake]
            self._under_way[handshake] = None
            handshake.started_ms = now_ms
            handshake.start()
        self._start_soon()
