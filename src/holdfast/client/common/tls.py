"""The one place where the client's TLS is set up: whom it trusts. Both transports take their context from here."""

from __future__ import annotations

import ssl

from holdfast.client.values.config import Target


def context_for(target: Target) -> ssl.SSLContext | None:
    """Return how to speak TLS with a server; None where plain HTTP is spoken.

    Trusted are the CAs of the system, or those in the file that SSL_CERT_FILE names. There is no way to trust
    everybody. Made once for each client, because reading the CAs takes a while.
    """
    if not target.url.startswith("https://"):
        return None
    return ssl.create_default_context()
