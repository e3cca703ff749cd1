"""TLS for programs that must start at once: imported only for an https address, because `ssl` takes long to load."""

from __future__ import annotations

import _socket
import socket
import ssl

from holdfast import tlswords


def secured(connection: _socket.socket, host: str, ca_file: str) -> ssl.SSLSocket:
    """Shake hands on an open connection. Raises `OSError`.

    Trusted is what is in `ca_file` and nothing else; without one, what the system trusts.
    """
    left = connection.gettimeout()
    whole = socket.socket(fileno=connection.detach())
    whole.settimeout(left)
    try:
        return _context(ca_file).wrap_socket(whole, server_hostname=host)
    except BaseException:
        whole.close()
        raise


def _context(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:
        reason = getattr(error, "reason", None) or error.strerror or "it cannot be read"
        raise OSError(f"the CA file {ca_file} cannot be used: {reason.lower().replace('_', ' ')}") from None


def why_not(error: OSError) -> str:
    """Say why there is no encrypted connection, and what to do."""
    return "; ".join(tlswords.trouble(error)) if isinstance(error, ssl.SSLError) else error.strerror or str(error)
