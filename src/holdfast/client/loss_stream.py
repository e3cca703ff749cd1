"""Immediate notification of losses: one stream per client, and the flows that maintain it (L9).

    RenewalHandle.start ──► watch   half a second after the claim; shorter claims are never followed
                         │ gathers for a moment: one request for all claims made meanwhile
                         ├─ a stream is open ──► POST /lease-watches/{id}       adds to it
                         └─ none is ───────────► listen ──► POST /leases/watch, in a thread or task of its own
                                                   │
                              deadline.lose(Loss(…)) ◄─┘ for each reported end

This only speeds up the news. Renewal and deadlines do not depend on it, so an older server, one that refuses, or one
that is unreachable is no error. Listening ends when nothing is held any more.

Nothing here has a lock. Shared state changes in single steps, and never in a user's thread, which an interrupt could
stop in the middle: the background calls `watch` and runs the flows.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from weakref import ref

import msgspec

from holdfast.client.answers import Answer
from holdfast.client.deadline import LeaseDeadline, Loss
from holdfast.client.effects import RANDOM, Close, Flow, Open, Policy, Read, Send, Sleep
from holdfast.client.lease_flows import TOKEN_REFUSED, Renewal, check_whether_ended, renew_once
from holdfast.client.retry import fields_of
from holdfast.errors import HoldfastError, Refused, Unreachable
from holdfast.wire.replies import EndReply, LeaseWatchReply
from holdfast.wire.requests import LeaseWatchBody

GATHER_SECONDS = 0.1
IDS_PER_CALL = 500  # By default a server accepts 1,000.
AGAIN_SECONDS, AGAIN_SECONDS_MAX = 0.25, 2.0  # Retry pauses, no longer than those of renewals.
REFUSED_SECONDS = 5.0  # The pause after a refusal. Servers count wrong tokens, and renewals send the same one.
NOT_THERE_SECONDS = 300.0  # The pause if the server does not know the path: it is older, or a proxy answers.
RELEASED_SECONDS = 0.75  # A claim that was released by its lease id is lost later: the releasing process may be ending.
FRAME_BYTES_MAX = 2**20
_OK, _SERVER_TROUBLE = 200, 500
_NOT_THERE = frozenset({404, 405})

log = logging.getLogger("holdfast.client")


class _Held(NamedTuple):
    renewal: Renewal
    deadline: ref[LeaseDeadline]


class LossStream:
    """Tracks what one client holds, and the stream that reports its end."""

    def __init__(
        self, policy: Policy, run_in_background: Callable[[Flow[None]], object], listen: Callable[[Flow[None]], object]
    ) -> None:
        """`run_in_background` starts a flow; `listen` starts a blocking one in a thread or a task of its own."""
        self.policy = policy
        self._run_in_background = run_in_background
        self._listen = listen
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._held: dict[str, _Held] = {}
        self._new: deque[str] = deque()
        self._is_listening = False
        self._pauses: set[float] = set()  # One flow waits for each: a new claim does not wait for a retry (L9).
        self._stream: str | None = None  # The id of the stream that is open.

    def watch(self, deadline: LeaseDeadline, renewal: Renewal) -> None:
        """Follow something that is held. Called in the background."""
        if os.getpid() != self._pid:
            self._reset()  # A fork: the listening thread and its claims are the parent's.
        self._held[renewal.id] = _Held(renewal, ref(deadline))
        self._new.append(renewal.id)
        self._watch_new_in(GATHER_SECONDS)

    def _watch_new_in(self, seconds: float) -> None:
        if seconds not in self._pauses:
            self._pauses.add(seconds)
            self._run_in_background(self._watch_new(seconds))

    def _watch_new(self, after_seconds: float) -> Flow[None]:
        """Follow all new ids, and those that could not be added before."""
        yield Sleep(after_seconds)
        self._pauses.discard(after_seconds)
        new = [self._new.popleft() for _ in range(len(self._new))]
        # Read after the new ids are in `_held`: a flow that opens a stream sets `_stream` and then reads `_held`.
        stream = self._stream
        if stream is not None:
            yield from self._add(stream, new)
        elif not self._is_listening and self._active():
            self._is_listening = True
            try:
                self._listen(self.listen())
            except RuntimeError as error:
                self._is_listening = False  # There may be too many threads right now: the next claim tries again.
                log.debug("ends are heard of at the next renewal: %s", error)

    def _add(self, stream: str, ids: Iterable[str]) -> Flow[None]:
        """Add ids to an open stream. Failures are retried; a new stream would include them anyway."""
        for body in _bodies(
            (id_, held) for id_ in ids if (held := self._held.get(id_)) is not None and _is_active(held)
        ):
            try:
                path = f"/lease-watches/{stream}"
                answer: Answer = yield Send("POST", path, body, answer_seconds=self.policy.answer_seconds)
                pause = AGAIN_SECONDS_MAX if answer.status >= _SERVER_TROUBLE else REFUSED_SECONDS
                if answer.status == _OK:
                    self._take(msgspec.json.decode(answer.body, type=LeaseWatchReply))
                    continue
            except (HoldfastError, msgspec.MsgspecError) as error:
                log.debug("not followed yet, so its end may be heard of at its next renewal: %s", error)
                pause = AGAIN_SECONDS_MAX
            self._new.extend([*body.leases.values(), *body.sessions])
            self._watch_new_in(pause)

    def listen(self) -> Flow[None]:
        pause = AGAIN_SECONDS
        while self._must_listen():
            try:
                yield from self._read_stream()
                pause = AGAIN_SECONDS
            except Refused as refused:
                pause = max(pause, REFUSED_SECONDS if refused.status < _SERVER_TROUBLE else AGAIN_SECONDS)
                if refused.status in _NOT_THERE:
                    pause = NOT_THERE_SECONDS
                if refused.status == TOKEN_REFUSED:
                    yield from self._check_sessions()
            except (HoldfastError, msgspec.MsgspecError) as error:
                log.debug("ends are heard of at the next renewal for now: %s", error)
            yield Sleep(pause * (0.5 + (yield RANDOM) / 2))
            pause = min(pause * 2, max(AGAIN_SECONDS_MAX, pause))

    def _must_listen(self) -> bool:
        """Tell whether there is anything to listen for. If not, the next claim starts listening again."""
        if self._active():
            return True
        self._is_listening = False
        if not self._active() or self._is_listening:
            return False
        self._is_listening = True  # It came during the check. A second listener is harmless.
        return True

    def _read_stream(self) -> Flow[None]:
        asked = (_bodies(self._active().items()) or [LeaseWatchBody()])[0]
        headers = {"Accept": "text/event-stream"}
        stream: Any = yield Open("/leases/watch", headers, self.policy.read_seconds, method="POST", body=asked)
        try:
            if stream.status != _OK:
                raise Refused(stream.status, "not_followed", "the server does not let us follow")
            rest = b""
            while data := (yield Read(stream)):
                *frames, rest = (rest + data).split(b"\n\n")
                if len(rest) > FRAME_BYTES_MAX:
                    raise Unreachable(self.policy.url, "it sends events without end")
                for kind, said in map(_event, frames):
                    if kind == "following":
                        following = msgspec.json.decode(said, type=LeaseWatchReply)
                        self._stream = following.stream
                        self._take(following)
                        known = {*asked.leases.values(), *asked.sessions}
                        yield from self._add(following.stream, [id_ for id_ in self._active() if id_ not in known])
                    elif kind == "ended":
                        self._report_end(msgspec.json.decode(said, type=EndReply))
                if not self._active():
                    return
        finally:
            self._stream = None
            yield Close(stream)

    def _check_sessions(self) -> Flow[None]:
        """Check which sessions ended with our access token, because the server refuses it for a stream."""
        for held in self._active().values():
            deadline = held.deadline()
            if deadline is not None:
                yield from check_whether_ended(deadline, held.renewal.ended_check, self.policy)

    def _take(self, following: LeaseWatchReply) -> None:
        for end in following.ended:
            self._report_end(end)
        for id_ in following.unknown:
            # It may have ended long ago, or a restore dropped it. A renewal tells.
            held = self._held.pop(id_, None)
            deadline = None if held is None else held.deadline()
            if held is not None and deadline is not None and not deadline.ended:
                # If this fails, the regular renewal tells.
                self._run_in_background(
                    _to_end(renew_once(deadline, held.renewal.request, self.policy, held.renewal.ended_check))
                )

    def _report_end(self, end: EndReply) -> None:
        """Mark the deadline lost, unless we released it ourselves."""
        held = self._held.pop(end.id, None)
        deadline = None if held is None else held.deadline()
        if deadline is None or deadline.ended:
            return
        if end.name is None:
            deadline.lose(Loss("session_ended", end.by, is_reported=True))
        elif end.ended == "released":
            self._run_in_background(_lose_later(ref(deadline), Loss(end.ended, end.by, end.reason, is_reported=True)))
        else:
            deadline.lose(Loss(end.ended, end.by, end.reason, is_reported=True))

    def _active(self) -> dict[str, _Held]:
        """Return what is held, and drop the rest."""
        held = self._held.copy()
        for id_, each in tuple(held.items()):
            if not _is_active(each):
                del held[id_]
                self._held.pop(id_, None)
        return held


def _is_active(held: _Held) -> bool:
    deadline = held.deadline()
    return deadline is not None and not deadline.ended and deadline.loss is None


def _lose_later(held_deadline: ref[LeaseDeadline], loss: Loss) -> Flow[None]:
    yield Sleep(RELEASED_SECONDS)
    deadline = held_deadline()
    if deadline is not None:
        deadline.lose(loss)


def _to_end(flow: Flow[Any]) -> Flow[None]:
    yield from flow


def _bodies(held: Iterable[tuple[str, _Held]]) -> list[LeaseWatchBody]:
    bodies: list[LeaseWatchBody] = []
    for number, (id_, each) in enumerate(held):
        if number % IDS_PER_CALL == 0:
            bodies.append(LeaseWatchBody(leases={}, sessions=[]))
        if each.renewal.name is None:
            bodies[-1].sessions.append(id_)
        else:
            bodies[-1].leases[each.renewal.name] = id_
    return bodies


def _event(frame: bytes) -> tuple[str, str]:
    fields = fields_of(frame)
    return fields.get("event", ""), fields.get("data", "")
