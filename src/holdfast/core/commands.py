"""Commands to the core. Each carries its caller and every id it may need.

The engine makes unguessable ids, since `decide` has neither randomness nor a clock. `principal` is the name of the
caller's token, `as_session` the session whose secret was used. A run has no lease id: `run` is its name, and its own
live lease is meant (`is_of_run`).
"""

from __future__ import annotations

import msgspec

from holdfast.core.values import Terms


class Acquire(msgspec.Struct, frozen=True, gc=False):
    name: str
    lease_id: str
    terms: Terms
    resume: bool = False
    wait_ms: int = 0
    ticket: str | None = None
    new_ticket: str = ""
    as_session: str | None = None
    interest: bool = False
    """A refusal leaves an interest, and a cycle of those is reported (D3)."""
    comes_back: bool = False
    """When its wait is over it asks again with the same key: it stays present meanwhile (W2)."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def lease_ids(self) -> tuple[str, ...]:
        return (self.lease_id,)


class ClaimAny(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    names: tuple[str, ...]
    lease_id: str
    terms: Terms
    as_session: str | None = None


class ClaimAll(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    names: tuple[str, ...]
    lease_ids: tuple[str, ...]
    terms: Terms
    wait_ms: int = 0
    ticket: str | None = None
    new_ticket: str = ""
    as_session: str | None = None
    comes_back: bool = False


class WithKey(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    principal: str
    key: str | None = None
    fingerprint: str = ""
    """What the request comes to: another request may not use its key again (C5)."""


class Leave(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    ticket_id: str
    principal: str
    as_session: str | None = None


class Transfer(WithKey, frozen=True, kw_only=True, gc=False):
    """Hand a claim to another owner of the same principal, without a gap (L8)."""

    name: str
    lease_id: str | None
    new_lease_id: str
    to_owner: str
    ttl_ms: int | None = None
    as_session: str | None = None
    reason: str | None = None


class Revoke(WithKey, frozen=True, kw_only=True, gc=False):
    name: str
    reason: str


class Reopen(WithKey, frozen=True, kw_only=True, gc=False):
    name: str
    reason: str | None = None


class Renew(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Move the deadline (L3, L4). `ttl_ms` None keeps the lease's own ttl."""

    name: str
    principal: str
    lease_id: str = ""
    ttl_ms: int | None
    note: str | None = None
    metadata: str | None = None
    as_session: str | None = None
    key: str | None = None
    run: str | None = None


class Release(WithKey, frozen=True, kw_only=True, gc=False):
    """`failed` leaves the attempts counting (C7); `remember_ms` keeps it as done (L5)."""

    name: str
    lease_id: str = ""
    failed: bool = False
    done: bool = False
    remember_ms: int = 0
    result: str | None = None
    as_session: str | None = None
    run: str | None = None


class OpenSession(WithKey, frozen=True, kw_only=True, gc=False):
    session_id: str
    ttl_ms: int
    name: str | None = None
    metadata: str | None = None
    salt: str = ""


class KeepSession(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    principal: str
    session_id: str


class RenewSession(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    principal: str
    session_id: str


class EndSession(WithKey, frozen=True, kw_only=True, gc=False):
    session_id: str


class CreateToken(WithKey, frozen=True, kw_only=True, gc=False):
    name: str
    digest: str
    scopes: tuple[str, ...]
    prefix: str | None = None
    expires_wall_ms: int | None = None
    salt: str = ""
    within: str | None = None
    """Its maker is confined to this prefix, and may use half of `tokens_max`."""


class RevokeToken(WithKey, frozen=True, kw_only=True, gc=False):
    """End a token, its sessions and its tickets. `keep_sessions` leaves the sessions (S5)."""

    name: str
    keep_sessions: bool = False
    alone: bool = False
    """The principal has another token, of the settings: only this one ends."""


class RotateToken(WithKey, frozen=True, kw_only=True, gc=False):
    name: str
    digest: str
    expires_wall_ms: int | None = None
    salt: str = ""
    keep_sessions: bool = False
    keep_lifetime: bool = False
    """The new one lives as long as the old one was to live; `expires_wall_ms` is ignored."""


class NoteUses(msgspec.Struct, frozen=True, kw_only=True):
    """Remember when tokens were last used: names with the minute as wall time, 0 to forget one."""

    uses: tuple[tuple[str, int], ...]


LeaseCommand = Acquire | ClaimAny | ClaimAll | Leave | Renew | Release | Transfer | Revoke | Reopen
SessionCommand = OpenSession | KeepSession | RenewSession | EndSession
TokenCommand = CreateToken | RevokeToken | RotateToken | NoteUses
Command = LeaseCommand | SessionCommand | TokenCommand

NEEDS_ROOM = (Acquire, ClaimAny, ClaimAll, OpenSession, CreateToken, NoteUses)
"""Refused when the disk is full; all others end or keep what exists."""


def claimant_of(command: Command) -> str:
    match command:
        case Acquire() | ClaimAny() | ClaimAll():
            return command.terms.principal
        case OpenSession() | CreateToken():
            return command.principal
        case _:
            return ""
