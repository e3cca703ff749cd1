"""The process of `holdfast mcp`: its client, its owner, its memory. Then it serves, over `stdio`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from holdfast.client import owners
from holdfast.errors import SettingsError
from holdfast.mcp import stdio
from holdfast.mcp.agent import AgentClient
from holdfast.mcp.hostlink import open_link
from holdfast.mcp.memory import BadMemoryError, open_memory

OWNER_CHARS_MAX = 128
_SHARED = "another live process has your owner's name: you share nothing with it, and a restart resumes nothing"


def run(
    url: str | None,
    token_file: Path | None,
    owner: str | None,
    *,
    ttl: int,
    environment: Mapping[str, str],
    ca_file: Path | None = None,
    allow_insecure_http: bool | None = None,
) -> int:
    """Serve until the host is gone; return the exit code. Raises `SettingsError`.

    Without an owner it makes up a name. The next process has another one, so it leaves nothing for that.
    """
    client = AgentClient(
        url, token_file=token_file, ca_file=ca_file, allow_insecure_http=allow_insecure_http, environment=environment
    )
    if owner is not None and len(owner) > OWNER_CHARS_MAX:
        raise SettingsError("owner", "as given", f"it has {len(owner)} characters", f"1 to {OWNER_CHARS_MAX}")
    warning: str | None = None
    memory = None
    if owner is not None:
        try:
            memory = open_memory(client.url, owner, environment)
            warning = _SHARED if memory is None else None
        except BadMemoryError as error:
            warning = f"a restart resumes nothing: {error}"
    name = owner or owners.owner_of(stdio)
    host, unlinked = open_link(owner, environment, url)
    warning = warning or unlinked
    asyncio.run(stdio.serve(client, name, memory, ttl=ttl, warning=warning, host=host))
    return 0
