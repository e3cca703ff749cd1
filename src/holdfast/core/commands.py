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
    interest: bool = False  # A refusal leaves an interest, and a cycle of interests is reported (D3).
    will_retry: bool = False  # The client will ask again with the same key, so it stays present after its wait (W2).

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
    will_retry: bool = False


class WithKey(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    principal: str
    key: str | None = None
    fingerprint: str = ""  # what the request comes to: another request may not reuse its key (C5)


class Leave(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    ticket_id: str
    principal: str
    as_session: str | None = None


class Transfer(WithKey, frozen=True, kw_only=True, gc=False):
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
    name: str
    principal: str
    lease_id: str = ""
    ttl_ms: int | None  # None keeps the lease's own ttl.
    note: str | None = None
    metadata: str | None = None
    as_session: str | None = None
    key: str | None = None
    run: str | None = None


class Release(WithKey, frozen=True, kw_only=True, gc=False):
    name: str
    lease_id: str = ""
    failed: bool = False  # leaves the attempts counting (C7)
    done: bool = False
    remember_ms: int = 0  # how long the name stays done (L5)
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
    within: str | None = None  # its maker's prefix: confined makers may use half of `tokens_max`


class RevokeToken(WithKey, frozen=True, kw_only=True, gc=False):
    name: str
    keep_sessions: bool = False  # They and what is bound to them live on (S5).
    alone: bool = False  # Only this token ends: the principal has a static one too.


class RotateToken(WithKey, frozen=True, kw_only=True, gc=False):
    name: str
    digest: str
    expires_wall_ms: int | None = None
    salt: str = ""
    keep_sessions: bool = False
    keep_lifetime: bool = False  # The new token lives as long as the old one; `expires_wall_ms` is ignored.


class RecordUses(msgspec.Struct, frozen=True, kw_only=True):
    uses: tuple[tuple[str, int], ...]  # token names with the minute of their last use, as wall time; 0 forgets one


LeaseCommand = Acquire | ClaimAny | ClaimAll | Leave | Renew | Release | Transfer | Revoke | Reopen
SessionCommand = OpenSession | KeepSession | RenewSession | EndSession
TokenCommand = CreateToken | RevokeToken | RotateToken | RecordUses
Command = LeaseCommand | SessionCommand | TokenCommand

# Refused when the disk is full; all others end or keep what exists.
NEEDS_DISK_SPACE = (Acquire, ClaimAny, ClaimAll, OpenSession, CreateToken, RecordUses)


def claimant_of(command: Command) -> str:
    match command:
        case Acquire() | ClaimAny() | ClaimAll():
            return command.terms.principal
        case OpenSession() | CreateToken():
            return command.principal
        case _:
            return ""
