"""The link of an MCP process with the guard's hooks: which agent makes a call, and the session that both share.

`holdfast.agents.guard.host_registry` explains how they find each other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from holdfast import AsyncSession
from holdfast.agents.guard import host_registry, server, state
from holdfast.agents.guard.server import RefusedError as BadServerError
from holdfast.agents.guard.state import Owner, Session, StateError
from holdfast.agents.mcp.results import ToolRefusedError

_HIDDEN = (
    "these tools do not see their host among their ancestors (a sandbox or PID namespace hides them), so the guard does"
    " not know that they act for you: what you claim here counts as another owner's in its checks"
)


class GuardLink:
    def __init__(self, owner: str | None, environment: Mapping[str, str], url: str | None) -> None:
        """`owner` is a name that was given. Raises `StateError` and the guard's `ToolRefusedError`."""
        self._base = state.base_of(environment)
        self._host_key = host_registry.proven_host(environment)
        self._from_url, self._from_config = server.found_by(environment)
        found = server.find({**environment, "HOLDFAST_URL": url} if url else environment)
        self._urls, self._ca_file = found.urls, found.ca_file
        self.warning: str | None = None
        self._registration: host_registry.Registration | None = None
        if self._host_key:
            self._registration = host_registry.Registration(
                self._base, self._host_key, host_registry.process_key(os.getpid()), owner or ""
            )
        elif state.owner_folders(self._base):
            self.warning = _HIDDEN

    @property
    def sees_calls(self) -> bool:
        """Whether hooks see the calls that this process receives."""
        return bool(self._host_key) and host_registry.sees_calls(self._base, self._host_key)

    def caller(self, tool: str, arguments: Mapping[str, Any]) -> Owner | None:
        """Return the subagent that makes a call; None for the main agent. Raises `ToolRefusedError`."""
        try:
            found = host_registry.take_call(self._base, self._host_key, tool, host_registry.subject_of(arguments))
        except host_registry.AmbiguousCallError:
            raise ToolRefusedError(
                "two of your agents made this call at the same moment, and their calls cannot be told apart: nothing"
                " was done. Call again, one after the other."
            ) from None
        except host_registry.UnseenCallError:
            if tool in host_registry.READ_TOOLS:
                return None
            raise ToolRefusedError(
                "no hook has seen this call, so it is not known which of your agents makes it: nothing was done. Call"
                " again. If that does not help, `holdfast guard status` says whether the host skips the hooks."
            ) from None
        except StateError as error:
            raise ToolRefusedError(f"it cannot be found out which of your agents makes this call: {error}") from None
        is_only_session = len(host_registry.host_sessions(self._base, self._host_key)) == 1
        return found if found is not None and found.agent and is_only_session else None

    def shared_session(self, folder: str = "") -> Session | None:
        """Return the session that the guard keeps for an agent: the main one, or that of a folder."""
        folder = folder or (host_registry.main_folder(self._base, self._host_key) if self._host_key else "")
        found = state.read_session(folder) if folder else None
        if found is None or not found.is_proven:
            return None
        return found if (found.host, found.urls) == (self._host_key, self._urls) else None

    def is_needed_by_others(self, session_id: str) -> bool:
        """Tell whether an agent under the guard, or another MCP process of this host, needs a session."""
        for found in state.sessions(self._base).values():
            if found.id == session_id and host_registry.is_alive(found.host):
                return True
        return self._registration is not None and self._registration.is_used_by_others(session_id)

    def is_of_another_host(self, session_id: str) -> bool:
        return host_registry.is_of_another_host(self._base, session_id, self._host_key)

    def publish(self, session: AsyncSession | None, owner: str, ttl_seconds: float) -> None:
        if self._registration is None:
            return
        shown = None
        if session is not None:
            shown = Session(
                {
                    "id": session.session_id,
                    "secret": session.secret,
                    "owner": owner,
                    "urls": self._urls,
                    "ca_file": self._ca_file,
                    "from_url": self._from_url,
                    "from_config": self._from_config,
                    "ttl_seconds": ttl_seconds,
                    "host": self._host_key,
                    "is_proven": True,
                }
            )
        try:
            self._registration.publish(shown)
        except StateError as error:
            state.log(self._base, f"holdfast mcp: {error}")

    def close(self) -> None:
        if self._registration is not None:
            self._registration.close()


def open_link(
    owner: str | None, environment: Mapping[str, str], url: str | None
) -> tuple[GuardLink | None, str | None]:
    """Return the link, if there can be one, and a warning for the agent."""
    try:
        found = GuardLink(owner, environment, url)
    except BadServerError:
        return None, None  # Each call of a tool meets the same, and reports it.
    except (StateError, OSError) as error:
        return None, f"these tools are not linked with the guard, and count as another owner in its checks: {error}"
    return found, found.warning
