"""The certificate and its key, looked at before anything is started: what is wrong is said by file, in plain words.

OpenSSL names neither the file nor what to do, and asks at the terminal for a passphrase; here nothing ever asks. A key
may lie behind links and may be shared with a group, because programs that renew certificates keep it so. Everybody else
may not read it.
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


def context_of(settings: Settings) -> ssl.SSLContext | None:
    """Return what the server speaks TLS with; None if it speaks plain HTTP. Raises `BadCertificateError`."""
    if settings.tls_cert is None:
        if settings.tls_key is not None:
            raise BadCertificateError("tls_key is set and tls_cert is not: set both")
        return None
    key_path = settings.tls_key or settings.tls_cert
    named = "tls_cert" if settings.tls_key is None else "tls_key"
    chain = _read("tls_cert", settings.tls_cert)
    key = _read(named, key_path)
    if _CERTIFICATE not in chain:
        if _KEY in chain and _CERTIFICATE in key:
            raise BadCertificateError(f"tls_cert {settings.tls_cert} holds a key: tls_cert and tls_key are swapped")
        raise BadCertificateError(f"tls_cert {settings.tls_cert} holds no certificate in PEM (-----BEGIN CERTIFICATE)")
    if _KEY not in key:
        do = "name the file of the key with tls_key" if settings.tls_key is None else "name the private key in PEM"
        raise BadCertificateError(f"{named} {key_path} holds no private key (-----BEGIN PRIVATE KEY): {do}")
    _check_mode(named, key_path)
    return _load(settings.tls_cert, key_path, named)


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
