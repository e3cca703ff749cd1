"""An MCP process below its host: which agent makes a call, and the session that it shares with the guard's hooks.

`holdfast.guard.link` explains how both sides find each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.guard import link, processes, server, state
from holdfast.guard.server import RefusedError as BadServerError
from holdfast.guard.state import Owner, Session, StateError
from holdfast.mcp.results import RefusedError

_HIDDEN = (
    "these tools do not see their host among their ancestors (a sandbox or PID namespace hides them), so the guard does"
    " not know that they act for you: what you claim here counts as another owner's in its checks"
)


class HostLink:
    """The place of this process below its host, in the guard's state folder."""

    def __init__(self, owner: str | None, environment: Mapping[str, str], url: str | None) -> None:
        """`owner` is a name that was given. Raises `StateError` and the guard's `RefusedError`."""
        self._base = state.base_of(environment)
        self._mark = processes.proven_host(environment)
        self._found_by = server.found_by(environment)
        found = server.find({**environment, "HOLDFAST_URL": url} if url else environment)
        self._urls, self._ca_file = found.urls, found.ca_file
        self.warning: str | None = None
        self._registration: link.Registration | None = None
        if self._mark:
            self._registration = link.Registration(self._base, self._mark, processes.own_mark(), owner or "")
        elif state.owner_folders(self._base):
            self.warning = _HIDDEN

    @property
    def has_calls(self) -> bool:
        """Whether a hook has seen a call that no process has served."""
        return bool(self._mark) and link.has_calls(self._base, self._mark)

    def caller(self, tool: str, arguments: Mapping[str, Any]) -> Owner | None:
        """Return the subagent that makes a call; None for the main agent. Raises `RefusedError`."""
        try:
            found = link.take_call(self._base, self._mark, tool, link.subject_of(arguments))
        except link.AmbiguousCallError:
            raise RefusedError(
                "two of your agents made this call at the same moment, and their calls cannot be told apart: nothing"
                " was done. Call again, one after the other."
            ) from None
        except StateError as error:
            raise RefusedError(f"it cannot be found out which of your agents makes this call: {error}") from None
        return found if found is not None and found.agent and self._is_only_session() else None

    def _is_only_session(self) -> bool:
        return len(link.host_sessions(self._base, self._mark)) == 1

    def shared_session(self, folder: str = "") -> Session | None:
        """Return the session that the guard keeps for an agent, the main one unless its folder is given."""
        folder = folder or (link.main_folder(self._base, self._mark) if self._mark else "")
        found = state.read_session(folder) if folder else None
        return found if found is not None and found.host == self._mark and found.urls == self._urls else None

    def is_kept_by_others(self, session_id: str) -> bool:
        """Tell whether the guard's keeper, or another MCP process of this host, keeps a session alive."""
        for folder in state.owner_folders(self._base):
            found = state.read_session(folder)
            if found is not None and found.id == session_id and found.host and state.keeper_lives(folder):
                return True
        return self._registration is not None and self._registration.others(session_id)

    def publish(self, session_id: str, secret: str, owner: str, ttl_seconds: float) -> None:
        """Show the guard which session this process uses; it is no error if that is not possible."""
        if self._registration is None:
            return
        from_url, from_config = self._found_by
        session = Session(
            {
                "id": session_id,
                "secret": secret,
                "owner": owner,
                "urls": self._urls,
                "ca_file": self._ca_file,
                "from_url": from_url,
                "from_config": from_config,
                "ttl_seconds": ttl_seconds,
                "host": self._mark,
            }
        )
        self._write(session)

    def withdraw(self) -> None:
        """Show the guard that this process uses no session."""
        self._write(None)

    def _write(self, session: Session | None) -> None:
        try:
            if self._registration is not None:
                self._registration.publish(session)
        except StateError as error:
            state.log(self._base, f"holdfast mcp: {error}")

    def close(self) -> None:
        """Leave the host."""
        if self._registration is not None:
            self._registration.close()


def open_link(owner: str | None, environment: Mapping[str, str], url: str | None) -> HostLink | None:
    """Return the link to the guard; None if there can be none, for instance without a home folder."""
    try:
        return HostLink(owner, environment, url)
    except (StateError, BadServerError, OSError):
        return None
