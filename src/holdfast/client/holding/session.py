"""What a session is to whoever holds it, in threads and in coroutines alike: all of it but waiting."""

from __future__ import annotations

import os
import threading
import weakref
from functools import partial
from typing import Any, Generic
from weakref import WeakSet

import msgspec

from holdfast.client import clock
from holdfast.client.flows import sessions
from holdfast.client.flows.effects import NOW, Flow, Policy
from holdfast.client.holding.claim import LAST_TRY_SECONDS, H, log, warn_of_fork
from holdfast.client.values.records import Metadata, gateway_environment, unpacked
from holdfast.client.values.term import Loss, Term, lost_error
from holdfast.errors import HoldfastError, LeaseReleased, Refused
from holdfast.wire.replies import SessionOpenedReply

_GONE = frozenset({404, 410})


class HeldSession(Generic[H]):
    """A session and its term."""

    def __init__(self, policy: Policy, opened: SessionOpenedReply, term: Term) -> None:
        self._policy = policy
        self._opened = opened
        self._term = term
        self._pid = os.getpid()
        self._told = False
        self._is_back = False
        """Whether the server was told that it has ended, and has answered."""
        self._members: WeakSet[H] = WeakSet()
        self._joining = threading.RLock()
        term.on_loss(partial(_lose_members, weakref.ref(self)))

    @property
    def session_id(self) -> str:
        """Its id."""
        return self._opened.session_id

    @property
    def name(self) -> str | None:
        """Its name."""
        return self._opened.name

    @property
    def metadata(self) -> Metadata:
        """What was attached to it."""
        return unpacked(self._opened.metadata)

    @property
    def secret(self) -> str:
        """A bearer token for this session alone: for a child process, not for logs."""
        return self._opened.session_secret

    @property
    def url(self) -> str:
        """The address for whoever is handed the session: the server's `public_url` if it has one, else our own."""
        return self._opened.public_url or self._policy.url

    @property
    def environment(self) -> dict[str, str]:
        """What a child process needs for `rlock` and its kin."""
        return gateway_environment(self.url, self.secret)

    @property
    def remaining(self) -> float:
        """Seconds until we must stop believing that it lives; 0 once it is lost or ended."""
        return 0.0 if self._term.ended else self._term.left_ms(clock.now()) / 1_000

    @property
    def refused(self) -> str | None:
        """Why the server refused the last renewal; None if it did not. It is tried again until the time is over."""
        return self._term.refused

    def raise_if_lost(self) -> None:
        """Raise `LeaseLost` if the session does not live any more, `LeaseReleased` if we ended it."""
        if self._term.ended:
            raise LeaseReleased(f"{self._term.title} was ended before this call")
        if self._term.is_lost(clock.now()):
            self._told = True
            raise self._term.error()

    def __repr__(self) -> str:
        """Show everything but the secret."""
        state = "ended" if self._term.ended else "lost" if self._term.loss else f"{self.remaining:.1f} s left"
        return f"<{type(self).__name__} {self.name or self.session_id!r}, {state}>"

    @property
    def _is_dropped(self) -> bool:
        """Whether nobody ended it who should have. Asked where nobody has it any more, maybe not even whole."""
        whole = "_kept" in self.__dict__
        return whole and not self._term.ended and self._term.loss is None and os.getpid() == self._pid

    def _add(self, held: H) -> None:
        with self._joining:
            self._members.add(held)
        held._session = self  # noqa: SLF001 - one of ours
        self._lose_members()  # It may be over since the claim was asked for.

    def _lose_members(self) -> None:
        """Lose what was claimed in a session that the server says is over: it has ended with it (S2)."""
        loss = self._term.loss
        if loss is None or not loss.told:
            return
        with self._joining:
            members = tuple(self._members)
        for held in members:
            held._term.lose(Loss("session_ended", loss.by, told=True))  # noqa: SLF001 - one of ours

    def _ending(self) -> Flow[None]:
        """End it, once. Raises `LeaseLost` if it had ended by itself and nobody was told yet."""
        if os.getpid() != self._pid:
            warn_of_fork(self._term.title, self._pid)
            return
        lost = self._term.is_lost((yield NOW))
        if not self._term.end():
            return
        with self._joining:
            members = tuple(self._members)
        for held in members:
            held._term.end()  # noqa: SLF001 - one of ours
        policy = self._policy
        if lost:
            policy = msgspec.structs.replace(policy, answer_seconds=LAST_TRY_SECONDS, retry_seconds=0)
        try:
            yield from sessions.end_session(self.session_id, policy)
            self._is_back = True
        except HoldfastError as error:
            if not lost and not (isinstance(error, Refused) and error.status in _GONE):
                raise
            if not lost and not self._told:
                # It had ended before we did it, and took its claims with it.
                self._told = True
                raise lost_error(self._term.title, Loss("session_ended", told=True)) from None
        if lost and not self._told:
            self._told = True
            raise self._term.error()

    def _leaving(self) -> Flow[None]:
        """End it in haste, unless that is done: whoever was about to do it was interrupted, or ends."""
        if self._is_back or os.getpid() != self._pid:
            return
        self._term.end()
        for held in tuple(self._members):
            held._term.end()  # noqa: SLF001 - one of ours
        hasty = msgspec.structs.replace(self._policy, answer_seconds=LAST_TRY_SECONDS, retry_seconds=0)
        try:
            yield from sessions.end_session(self.session_id, hasty)
        except HoldfastError as error:
            log.info("%s could not be ended in haste: %s", self._term.title, error)
        self._is_back = True


def _lose_members(session: weakref.ref[HeldSession[Any]]) -> None:
    """Lose what was claimed in a session, if anybody has that still."""
    held = session()
    if held is not None:
        held._lose_members()  # noqa: SLF001 - one of ours
