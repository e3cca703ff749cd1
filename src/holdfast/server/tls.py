"""The certificate and its key, looked at before anything is started: what is wrong is said by file, in plain words.

OpenSSL names neither the file nor what to do, and asks at the terminal for a passphrase; here nothing ever asks. A key
may lie behind links and may be shared with a group, because programs that renew certificates keep it so. Everybody else
may not read it.

The files may change while the server runs: certificates are renewed every few weeks. `tick` looks once a second. A
pair that lies still for one look and is good is used for new connections from then on, in a context of its own, so
nothing is ever half replaced. One that is not good is said in the log, once, and the old pair stays in use.
"""

from __future__ import annotations

import logging
import os
import ssl
import stat
from typing import TYPE_CHECKING, NoReturn

from holdfast.privatefiles import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.settings import Settings

FILE_BYTES_MAX = 1_048_576

_CERTIFICATE = b"CERTIFICATE-----"
_KEY = b"PRIVATE KEY-----"
_MISMATCH = frozenset({"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED"})
_CUT = "it is not PEM from its first line to its last; put a whole copy there"

log = logging.getLogger("holdfast.server")


class BadCertificateError(Exception):
    """The certificate or its key cannot be used. The text says which file, why, and what to do."""


def certificate_of(settings: Settings) -> Certificate | None:
    """Return what the server speaks TLS with; None if it speaks plain HTTP. Raises `BadCertificateError`."""
    if settings.tls_cert is not None:
        return Certificate(settings.tls_cert, settings.tls_key)
    if settings.tls_key is not None:
        raise BadCertificateError("tls_key is set and tls_cert is not: set both")
    return None


class Certificate:
    """The certificate and the key that new connections get."""

    def __init__(self, chain: Path, key: Path | None) -> None:
        """Read both. Raises `BadCertificateError`."""
        self._chain, self._key = chain, key
        self._seen = self._tried = self._look()
        self._current = self.context = _context_of(chain, key)
        # Asked at every handshake, with or without a name in it.
        self.context.sni_callback = self._hand_over

    def tick(self) -> None:
        """Look whether there is another pair, and use it if it is good."""
        found = self._look()
        if found != self._seen:
            # Whoever writes them may be at it right now: one file first, then the other.
            self._seen = found
        elif found != self._tried:
            self._tried = found
            try:
                self._current = _context_of(self._chain, self._key)
            except (BadCertificateError, OSError) as error:  # `OSError`: it went while we looked at it.
                log.warning("a new certificate is not used, and the one before stays: %s", error)
            else:
                log.info("a new certificate was read from %s: new connections get it", self._chain)

    def _hand_over(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._current

    def _look(self) -> tuple[object, ...]:
        """Tell the two files from any others that may take their place, behind links too."""
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
    """Refuse a key that everybody may use, and warn of one that a group may, unless root hands it to us that way."""
    found = path.stat()
    mode = stat.S_IMODE(found.st_mode)
    at = f"{name} {path}"
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        do = f"run: chmod 600 '{path}'; if a group needs it: chmod 640"
        raise BadCertificateError(f"{at} holds a private key and is open to other users (mode {mode:04o}); {do}")
    if mode & stat.S_IRGRP and not found.st_uid == ROOT != os.geteuid():
        log.warning("%s may be read by its group (mode %04o); if nobody else needs it: chmod 600 '%s'", at, mode, path)


class _PassphraseError(Exception):
    """The key asked for a passphrase."""


def _no_passphrase() -> NoReturn:
    raise _PassphraseError


def _load(chain: Path, key: Path, named: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(chain, key, password=_no_passphrase)
    except _PassphraseError:
        do = f"keep it without one: openssl pkey -in '{key}' -out NEW_FILE"
        raise BadCertificateError(f"{named} {key} has a passphrase, and nobody could type it; {do}") from None
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
        # A context of its own, to find out which of the two it was.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cafile=chain)
    except (OSError, ValueError):
        return f"tls_cert {chain} is damaged: {_CUT}"
    return f"{named} {key} is damaged: {_CUT}"
