"""Sessions, as flows: open, adopt, renew and end one."""

from __future__ import annotations

from functools import partial

import msgspec

from holdfast.client import records
from holdfast.client.clock import Instant
from holdfast.client.deadline import LeaseDeadline
from holdfast.client.effects import NEW_KEY, NOW, Cleanup, Flow, Policy, Send
from holdfast.client.records import Metadata, SessionInfo, packed
from holdfast.client.requests import session_path
from holdfast.client.retry import HASTE_SECONDS, ask, complete_request, get, reply_in
from holdfast.errors import HoldfastError, Refused
from holdfast.wire.replies import SessionOpenedReply, SessionRenewedReply, SessionReply, SessionSecretReply
from holdfast.wire.requests import SessionBody

_OVER = 410


def open_session(
    policy: Policy, cleanup: Cleanup | None = None, *, name: str | None, ttl_seconds: int, metadata: Metadata
) -> Flow[tuple[SessionOpenedReply, LeaseDeadline]]:
    body = SessionBody(ttl_seconds=ttl_seconds, name=name, metadata=packed(metadata))
    request = Send("POST", "/sessions", body, (yield NEW_KEY), policy.answer_seconds)
    sent: Instant = yield NOW  # The deadline counts from the first try: a retry may be answered with what that opened.
    cleanup = cleanup or Cleanup()
    cleanup.release = partial(_abandon_session, request, policy)
    try:
        reply = yield from ask(request, policy, SessionOpenedReply)
    except (Exception, GeneratorExit):
        raise
    except BaseException:
        # Interrupted or cancelled with an unknown outcome: nothing may be left behind.
        yield from _abandon_session(request, policy)
        cleanup.release = None
        raise
    deadline = LeaseDeadline("", None, sent, reply.expires_in_ms)
    deadline.title = f"the session {name or reply.session_id}"
    return reply, deadline


def adopt_session(session_id: str, policy: Policy) -> Flow[tuple[SessionOpenedReply, LeaseDeadline]]:
    """Take over a session of ours from another process that kept it alive. Raises `Refused` if it is over."""
    known = yield from live_session(session_id, policy)
    renewed, sent = yield from renew_session(session_id, policy)
    secret = yield from session_secret(session_id, policy)
    reply = SessionOpenedReply(
        session_id,
        renewed.expires_at,
        renewed.expires_in_ms // 2_000,
        secret,
        renewed.expires_in_ms,
        known.name,
        packed(known.metadata),
    )
    deadline = LeaseDeadline("", None, sent, renewed.expires_in_ms)
    deadline.title = f"the session {known.name or session_id}"
    return reply, deadline


def session_secret(session_id: str, policy: Policy) -> Flow[str]:
    request = Send("POST", session_path(session_id, "secret"), answer_seconds=policy.answer_seconds)
    return (yield from ask(request, policy, SessionSecretReply)).session_secret


def renew_session(session_id: str, policy: Policy) -> Flow[tuple[SessionRenewedReply, Instant]]:
    """Renew a session and all that is bound to it (S4); also return when its time starts to count."""
    sent: Instant = yield NOW
    request = Send("POST", session_path(session_id, "renew-all"), answer_seconds=policy.answer_seconds)
    return (yield from ask(request, policy, SessionRenewedReply)), sent


def live_session(session_id: str, policy: Policy) -> Flow[SessionInfo]:
    """Return a session of ours. Raises `Refused` if it is over, as all other requests for it do."""
    reply = yield from ask(get(session_path(session_id), policy), policy, SessionReply)
    if not reply.active:
        raise Refused(_OVER, "session_expired", "Session expired", "All that was bound to it has ended.")
    return records.session(reply)


def end_session(session_id: str, policy: Policy) -> Flow[None]:
    """End a session and all that is bound to it, even if interrupted."""
    request = Send("DELETE", session_path(session_id), None, (yield NEW_KEY), policy.answer_seconds)
    received = yield from complete_request(request, policy)
    reply_in(received.answer, policy, request, object)


def _abandon_session(request: Send, policy: Policy) -> Flow[None]:
    """End an unwanted session if it was opened, within a short time."""
    short_policy = policy.with_short_timeouts(HASTE_SECONDS, retry_seconds=HASTE_SECONDS / 2)
    try:
        hurried = msgspec.structs.replace(request, answer_seconds=HASTE_SECONDS)
        reply = yield from ask(hurried, short_policy, SessionOpenedReply)
        yield from end_session(reply.session_id, short_policy)
    except HoldfastError:
        return  # The server is away; what it may have opened expires.
