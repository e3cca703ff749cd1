"""Why a connection or a TLS handshake failed, and what to do about it."""

from __future__ import annotations

import errno
import os
import ssl
from collections.abc import Mapping

_OTHER_NAME = frozenset({62, 64})
"""OpenSSL's codes for a certificate of another host name, or of another IP address."""
_OTHER_TIME = frozenset({9, 10})
"""The codes for one that is not valid yet, or not any more."""
_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL"})

IF_TLS = "does it speak https? Then write https:// in its address; else look whether it runs"
"""The advice if a server hung up on plain HTTP, as servers with TLS do."""


def trouble(error: BaseException) -> tuple[str, str]:
    """Return what happened, and what to do. `error` is one of `ssl`, or was raised because of one."""
    cause: BaseException | None = error
    while cause is not None and not (isinstance(cause, ssl.SSLError) and hasattr(cause, "reason")):
        # Libraries wrap it in errors of their own, which may be a kind of SSLError and say less.
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return _certificate(cause)
    if not isinstance(cause, ssl.SSLError) or isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return "the encrypted connection broke", "try again; if that does not help, look at the server's log"
    reason = (cause.reason or str(cause)).replace("_", " ").lower()
    hint = "look at the TLS settings of the server, or of the proxy before it"
    if cause.reason in _NOT_TLS:
        hint = "what answers there does not speak https: write http:// in its address, or give it a certificate"
    return f"the encrypted connection failed ({reason})", hint


def _certificate(error: ssl.SSLCertVerificationError) -> tuple[str, str]:
    said = f"({error.verify_message.rstrip('.')})"
    if error.verify_code in _OTHER_NAME:
        return f"its certificate is for another name {said}", "use the name that is in the certificate"
    if error.verify_code in _OTHER_TIME:
        return f"its certificate is not valid now {said}", "renew it, or set the clock of this machine right"
    hint = "name a file with its CA's certificate in HOLDFAST_CA_FILE (a self-signed certificate is its own CA)"
    return f"its certificate is not trusted {said}", hint


_CODEX = "CODEX_SANDBOX_NETWORK_DISABLED"
_INSTEAD = "use the MCP tools of Holdfast, which run outside of it, or run this command outside of it"


def hint(error: BaseException, environment: Mapping[str, str] = os.environ) -> str:
    """Return what to do if a sandbox may be why a connection failed, else ""."""
    if environment.get(_CODEX) == "1":
        return f"Codex runs this command in a sandbox without a network: {_INSTEAD}"
    # The error of sandboxes that forbid system calls, and of no server. The numbers of TLS errors are OpenSSL's own.
    if isinstance(error, OSError) and error.errno == errno.EPERM and type(error).__module__ != "ssl":
        return f"a sandbox or a policy of the system forbids network connections here: {_INSTEAD}"
    return ""
