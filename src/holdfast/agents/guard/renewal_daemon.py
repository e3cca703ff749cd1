"""The renewal daemon of one owner: renews its session while the host process is alive, then ends it.

Every second it reads the owner's `session` file and renews that session until the file is gone. It exits under the
owner's lock, so that no hook relies on an exiting daemon. It retries while the server is unavailable; the
server decides by its own clock whether the session is alive. The next check reports a lost job.
"""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress

from holdfast.agents.guard import host_registry, owner_session, state
from holdfast.agents.guard.server import RefusedError, UnavailableError
from holdfast.agents.guard.state import LOCK_DESCRIPTOR, Session

POLL_SECONDS = 1.0
RENEWALS_PER_TTL = 3
ANSWER_SECONDS_MAX = 5.0
RETRY_SECONDS = 0.5


class RenewalDaemon:
    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._base = folder.rpartition(f"/{state.OWNERS}/")[0]
        self._last_message = ""

    def run(self) -> None:
        session_id, due = "", 0.0
        while state.is_same(LOCK_DESCRIPTOR, self._folder + "/keeper"):
            session = state.read_session(self._folder)
            if session is None:
                if self._release_lock():
                    return
                continue
            if session.id != session_id:
                session_id, due = session.id, state.now() + session.ttl_seconds / RENEWALS_PER_TTL
            if not host_registry.is_alive(session.host):
                self._end_session(session)
                continue
            if state.now() >= due:
                due = state.now() + self._renew(session)
            _wait(session.host, min(POLL_SECONDS, due - state.now()))

    def _renew(self, session: Session) -> float:
        """Renew, or remove an ended session; return the seconds until the next renewal."""
        try:
            seconds_left = owner_session.renew(session, min(ANSWER_SECONDS_MAX, session.ttl_seconds / RENEWALS_PER_TTL))
        except (UnavailableError, RefusedError) as error:
            self._log_once(f"{session.owner}: not renewed: {error}")
            return RETRY_SECONDS
        if seconds_left is None:
            self._log_once(f"{session.owner}: its session is over, and what it had is free for others")
            self._forget(session)
            return 0.0
        self._last_message = ""
        return seconds_left / RENEWALS_PER_TTL

    def _end_session(self, session: Session) -> None:
        """End the session of a host that is gone, with retries until it has expired by itself.

        Each try holds the owner's lock and checks the host again: the agent may continue in another process with this
        session.
        """
        deadline = state.now() + session.ttl_seconds
        while state.now() < deadline:
            with state.locked(self._base, self._folder):
                if not self._is_current(session):
                    return
                try:
                    owner_session.end_session(session, ANSWER_SECONDS_MAX)
                except (UnavailableError, RefusedError) as error:
                    self._log_once(f"{session.owner}: the host is gone, and its session could not be ended: {error}")
                else:
                    state.remove_folder(self._folder)
                    return
            _wait("", RETRY_SECONDS)
        self._forget(session)

    def _forget(self, session: Session) -> None:
        with state.locked(self._base, self._folder):
            if self._is_current(session):
                state.remove_folder(self._folder)

    def _is_current(self, session: Session) -> bool:
        found = state.read_session(self._folder)
        return found is not None and (found.id, found.host) == (session.id, session.host)

    def _release_lock(self) -> bool:
        """Release the daemon's lock, unless a hook has opened another session meanwhile."""
        with state.locked(self._base, self._folder):
            if state.read_session(self._folder) is not None:
                return False
            os.close(LOCK_DESCRIPTOR)
            state.remove_folder(self._folder)
        return True

    def _log_once(self, text: str) -> None:
        if text != self._last_message:
            state.log(self._base, text)
            self._last_message = text


def _wait(key: str, seconds: float) -> None:
    """Wait until the marked process exits, at most for `seconds`."""
    watched = []
    with suppress(OSError, AttributeError, ValueError):
        watched = [os.pidfd_open(int(key.partition(":")[0]))]
    try:
        select.select(watched, [], [], max(seconds, 0.01))
    finally:
        for descriptor in watched:
            os.close(descriptor)


if __name__ == "__main__":
    RenewalDaemon(sys.argv[1]).run()
