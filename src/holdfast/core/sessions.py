"""Sessions: groups of claims that end together, in one record (S1–S3, I10)."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core import outcomes
from holdfast.core.commands import EndSession, KeepSession, OpenSession, RenewSession
from holdfast.core.decision import Decision, accept, end_of, left, recall, refuse, too_long, why_unusable
from holdfast.core.events import Ended, Left, Renewed, SessionEnded, SessionExtended, SessionOpened, SessionRenewed
from holdfast.core.outcomes import SessionOpen, SessionOver
from holdfast.core.state import State
from holdfast.core.values import SESSION_NAME_CHARS_MAX, SESSION_TTL_MS_MIN, IdempotencyRecord, Instant, Limits, Session


def open_(state: State, command: OpenSession, now: Instant, limits: Limits) -> Decision:
    if command.name is not None and len(command.name) > SESSION_NAME_CHARS_MAX:
        return refuse(outcomes.BadField(f"name has at most {SESSION_NAME_CHARS_MAX} characters"))
    if (wrong := too_long("metadata", command.metadata, limits)) is not None:
        return refuse(wrong)
    if (memo := recall(state, command, "session")) is not None:
        return _opened_before(state, command, memo) if isinstance(memo, IdempotencyRecord) else refuse(memo)
    if len(state.index.sessions_by_principal.get(command.principal, ())) >= limits.sessions_per_principal_max:
        return refuse(outcomes.TooManySessions(limits.sessions_per_principal_max))
    ttl_ms = min(max(command.ttl_ms, SESSION_TTL_MS_MIN), limits.session_ttl_ms_max)
    session = Session(
        command.session_id,
        command.principal,
        command.name,
        command.metadata,
        ttl_ms,
        now.ms + ttl_ms,
        now.wall_ms,
        command.key,
        command.salt,
    )
    return Decision((SessionOpened(session, command.fingerprint),), SessionOpen(session))


def _opened_before(state: State, command: OpenSession, memo: IdempotencyRecord) -> Decision:
    lacking = why_unusable(state, memo.made, command.principal)
    return accept(SessionOpen(state.sessions[memo.made])) if lacking is None else refuse(lacking)


def keep(state: State, command: KeepSession | RenewSession, now: Instant) -> Decision:
    """Renew the session, and maybe each lease bound to it by its own ttl; none is shortened (S1, S4)."""
    if (lacking := why_unusable(state, command.session_id, command.principal)) is not None:
        return refuse(lacking)
    session = state.sessions[command.session_id]
    until_ms = now.ms + session.ttl_ms
    extended = replace(session, until_ms=until_ms)
    if isinstance(command, KeepSession):
        return Decision((SessionExtended(command.session_id, until_ms),), SessionOpen(extended))
    renewed: list[Renewed] = []
    for name in sorted(state.index.names_by_session.get(command.session_id, ())):
        if (lease := state.lease_of(name)) is not None and lease.bound:
            longer_ms = max(lease.until_ms, now.ms + lease.ttl_ms)
            renewed.append(Renewed(name, lease.lease_id, lease.ttl_ms, longer_ms))
    event = SessionRenewed(command.session_id, until_ms, tuple(renewed))
    return Decision((event,), SessionOpen(extended, len(renewed)))


def end(state: State, command: EndSession, now: Instant) -> Decision:
    """End the session and all that is bound to it. One that has lapsed is over already, which is no refusal."""
    if (memo := recall(state, command, "end_session")) is not None:
        return accept(SessionOver()) if isinstance(memo, IdempotencyRecord) else refuse(memo)
    lacking = why_unusable(state, command.session_id, command.principal)
    if isinstance(lacking, outcomes.SessionLapsed):
        return accept(SessionOver())
    if lacking is not None:
        return refuse(lacking)
    by = command.principal
    leases, ended_tickets = (
        end_leases_of(state, command.session_id, now.ms, by),
        end_tickets_of(state, command.session_id),
    )
    event = SessionEnded(command.session_id, "deleted", leases, by, command.key, command.fingerprint, ended_tickets, by)
    return Decision(
        (event,), SessionOver(), tuple((each.ticket_id, outcomes.SessionUnknown()) for each in ended_tickets)
    )


def end_tickets_of(state: State, session_id: str) -> tuple[Left, ...]:
    return tuple(
        left(state.tickets[each], "session_ended") for each in state.index.tickets_by_session.get(session_id, ())
    )


def end_leases_of(state: State, session_id: str, now_ms: int, by: str | None) -> tuple[Ended, ...]:
    """Return the ends of all that is bound to a session, sorted, so that the record is deterministic."""
    return tuple(
        end_of(name, lease, "session_ended", now_ms, by)
        for name in sorted(state.index.names_by_session.get(session_id, ()))
        if (lease := state.lease_of(name)) is not None and lease.bound
    )
