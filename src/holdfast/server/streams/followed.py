"""What is followed on one stream, and whether it may be: who may follow a lease is who may renew it (L3, S3, L9).

A name has to stand beside its lease id: leases are found by name. What is not the caller's is as unknown as what never
was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.core.values import EndedLease, EndedSession, may_touch
from holdfast.server.access.claimsecrets import is_own, was_own
from holdfast.server.times import rfc3339
from holdfast.wire.replies import EndReply, FollowingReply

if TYPE_CHECKING:
    from holdfast.core.state import State
    from holdfast.core.values import Moment
    from holdfast.engine.feed import Follower
    from holdfast.server.access.auth import Caller
    from holdfast.wire.requests import FollowBody


class Followed:
    """What is followed on one stream, in the name of one caller."""

    def __init__(self, stream: str, caller: Caller, follower: Follower) -> None:
        self.stream = stream
        """Its id."""
        self._caller = caller
        self._follower = follower

    def is_of(self, caller: Caller) -> bool:
        """Tell whether this caller may add to it: whoever could have opened it."""
        own, other = self._caller, caller
        return (own.principal, own.session, own.claim) == (other.principal, other.session, other.claim)

    def take(self, asked: FollowBody, state: State, _now: Moment) -> FollowingReply:
        """Follow what lives, and say what does not. It is one look at the state, so no end can come between the two."""
        ended: list[EndReply] = []
        unknown: list[str] = []
        for name, lease_id in asked.leases.items():
            if self._holds(name, lease_id, state):
                self._follower.add(lease_id)
            elif (end := self._lease_end(name, lease_id, state)) is not None:
                ended.append(end)
            else:
                unknown.append(lease_id)
        for session_id in asked.sessions:
            if self._has(session_id, state):
                self._follower.add(session_id)
            elif (end := self._session_end(session_id, state)) is not None:
                ended.append(end)
            else:
                unknown.append(session_id)
        return FollowingReply(self.stream, len(self._follower), ended, unknown)

    # Whose it is.

    def _holds(self, name: str, lease_id: str, state: State) -> bool:
        caller, lease = self._caller, state.lease_of(name)
        if lease is None or lease.lease_id != lease_id or not self._may_speak_of(name):
            return False
        if caller.claim is not None:
            return is_own(caller.claim, name, state)
        return may_touch(lease, caller.principal, caller.session)

    def _lease_end(self, name: str, lease_id: str, state: State) -> EndReply | None:
        caller, ended = self._caller, state.remembered.get(lease_id)
        if not isinstance(ended, EndedLease) or ended.name != name or ended.principal != caller.principal:
            return None
        if not self._may_speak_of(name) or not self._was_bound(ended):
            return None
        if caller.claim is not None and not was_own(caller.claim, name, lease_id, state):
            return None
        end = ended.end
        return EndReply(lease_id, name, end.how, rfc3339(end.wall_ms), end.by, end.reason)

    def _was_bound(self, ended: EndedLease) -> bool:
        """Tell whether it was bound to the session whose secret was used, if one was."""
        return self._caller.session is None or (ended.bound and ended.session == self._caller.session)

    def _may_speak_of(self, name: str) -> bool:
        return self._caller.prefix is None or name.startswith(self._caller.prefix)

    def _has(self, session_id: str, state: State) -> bool:
        session = state.sessions.get(session_id)
        return session is not None and session.principal == self._caller.principal and self._is_not_barred(session_id)

    def _session_end(self, session_id: str, state: State) -> EndReply | None:
        ended = state.remembered.get(session_id)
        if not isinstance(ended, EndedSession) or ended.principal != self._caller.principal:
            return None
        if not self._is_not_barred(session_id):
            return None
        return EndReply(session_id, None, ended.how, rfc3339(ended.wall_ms), None, None)

    def _is_not_barred(self, session_id: str) -> bool:
        """Tell whether the caller's own secret is not that of a claim, or of another session."""
        return self._caller.claim is None and self._caller.session in {None, session_id}
