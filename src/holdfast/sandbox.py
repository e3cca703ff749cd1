"""Sandboxes without a network, in which hosts run the commands of their agents."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

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
