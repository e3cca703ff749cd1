"""The one place where the client's TLS is set up: whom it trusts. Both transports take their context from here."""

from __future__ import annotations

import ssl

from holdfast.client.values.config import Target
from holdfast.errors import SettingsError


def context_for(target: Target) -> ssl.SSLContext | None:
    """Return how to speak TLS with a server; None where plain HTTP is spoken.

    Trusted are the certificates in the client's `ca_file`, and no others; without one, those of the system, or those in
    the file that SSL_CERT_FILE names. There is no way to trust everybody. Made once for each client, because reading
    the CAs takes a while. Raises `SettingsError`.
    """
    if not target.url.startswith("https://"):
        return None
    try:
        return ssl.create_default_context(cafile=target.ca_file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or "it cannot be read"
        problem = f"its certificates cannot be used: {reason.lower().replace('_', ' ')}"
        raise SettingsError("ca_file", str(target.ca_file), problem, "a file of certificates in PEM") from None
