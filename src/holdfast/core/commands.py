"""What can be asked of the core. Imperatives; each carries who asks and every id it may need.

Ids that must be unguessable are made by the engine and travel inside: `decide` knows neither chance nor clock.
`principal` is the name of the token that asked. `as_session` is the session whose secret was used, if one was.
A run says no lease id: `run` is its name, and the live lease that is its own is meant (`rights.is_of_run`).
"""

from __future__ import annotations

import msgspec

from holdfast.core.values import Terms


class Acquire(msgspec.Struct, frozen=True, gc=False):
    """Claim a name (C1–C7)."""

    name: str
    lease_id: str
    terms: Terms
    resume: bool = False
    wait_ms: int = 0
    ticket: str | None = None
    """Come back to this place in the line."""
    new_ticket: str = ""
    """The ticket to get if it has to wait."""
    as_session: str | None = None
    interest: bool = False
    """A refusal leaves an interest, and a circle of those is told (D3)."""
    comes_back: bool = False
    """If its wait is over it asks again at once, with the same key: it is there meanwhile (W2)."""

    @property
    def names(self) -> tuple[str, ...]:
        """What it wants, as a claim of several says it."""
        return (self.name,)

    @property
    def lease_ids(self) -> tuple[str, ...]:
        """The ids to get, as a claim of several says it."""
        return (self.lease_id,)


class ClaimAny(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Claim the first free name of a list (M1)."""

    names: tuple[str, ...]
    lease_id: str
    terms: Terms
    as_session: str | None = None


class ClaimAll(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Claim every name of a list or none, in one record (M2)."""

    names: tuple[str, ...]
    lease_ids: tuple[str, ...]
    terms: Terms
    wait_ms: int = 0
    ticket: str | None = None
    new_ticket: str = ""
    as_session: str | None = None
    comes_back: bool = False


class Leave(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Give a place in the line up (W2)."""

    ticket_id: str
    principal: str
    as_session: str | None = None


class Transfer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Hand a claim to another owner of the same principal, without a gap (L8). `ttl_ms` None: see there."""

    name: str
    principal: str
    lease_id: str | None
    """None if an operator asks, for whichever lease is live."""
    new_lease_id: str
    to_owner: str
    ttl_ms: int | None = None
    as_session: str | None = None
    key: str | None = None
    fingerprint: str = ""
    reason: str | None = None


class Revoke(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """End somebody's lease, as an operator (L7)."""

    name: str
    principal: str
    reason: str
    key: str | None = None
    fingerprint: str = ""


class Reopen(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Let finished work be claimed again, as an operator (L5)."""

    name: str
    principal: str
    reason: str | None = None
    key: str | None = None
    fingerprint: str = ""


class Renew(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Heartbeat: move the deadline, maybe leave a note (L3, L4). `ttl_ms` None keeps the lease's own ttl."""

    name: str
    principal: str
    lease_id: str = ""
    ttl_ms: int | None
    note: str | None = None
    metadata: str | None = None
    as_session: str | None = None
    key: str | None = None
    run: str | None = None


class Release(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Give a name back (L3). `failed` leaves the attempts counting (C7); `remember_ms` keeps it as done (L5)."""

    name: str
    principal: str
    lease_id: str = ""
    failed: bool = False
    done: bool = False
    remember_ms: int = 0
    result: str | None = None
    as_session: str | None = None
    key: str | None = None
    fingerprint: str = ""
    run: str | None = None


class OpenSession(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Begin a group of claims (S1)."""

    principal: str
    session_id: str
    ttl_ms: int
    name: str | None = None
    metadata: str | None = None
    key: str | None = None
    fingerprint: str = ""
    salt: str = ""
    """Random, for its secret (S5)."""


class KeepSession(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Keep a session alive for another ttl (S1)."""

    principal: str
    session_id: str


class RenewSession(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Keep a session and every lease bound to it alive, in one record (S4)."""

    principal: str
    session_id: str


class EndSession(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """End a session and everything bound to it, in one record (S2)."""

    principal: str
    session_id: str
    key: str | None = None
    fingerprint: str = ""


class CreateToken(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Let a new bearer token in. Only its digest gets here."""

    principal: str
    name: str
    digest: str
    scopes: tuple[str, ...]
    prefix: str | None = None
    expires_wall_ms: int | None = None
    salt: str = ""
    key: str | None = None
    fingerprint: str = ""
    within: str | None = None
    """The prefix that its maker is confined to: such a maker can use half of the places for tokens."""


class RevokeToken(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Shut a bearer token out, with its sessions and places in line. `keep_sessions` leaves the sessions (S5)."""

    principal: str
    name: str
    keep_sessions: bool = False
    key: str | None = None
    fingerprint: str = ""
    alone: bool = False
    """The principal has another token, of the settings: this one ends, and nothing of the principal does."""


class RotateToken(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Shut a bearer token out and let another of the same name and rights in, in one step."""

    principal: str
    name: str
    digest: str
    expires_wall_ms: int | None = None
    salt: str = ""
    keep_sessions: bool = False
    keep_lifetime: bool = False
    """Let the new one live as long as the old one was to live, from now on; `expires_wall_ms` is not looked at."""
    key: str | None = None
    fingerprint: str = ""


class NoteUses(msgspec.Struct, frozen=True, kw_only=True):
    """Remember when tokens were last used: names with the minute as wall time, 0 to forget one."""

    uses: tuple[tuple[str, int], ...]


LeaseCommand = Acquire | ClaimAny | ClaimAll | Leave | Renew | Release | Transfer | Revoke | Reopen
SessionCommand = OpenSession | KeepSession | RenewSession | EndSession
TokenCommand = CreateToken | RevokeToken | RotateToken | NoteUses
Command = LeaseCommand | SessionCommand | TokenCommand
WithKey = Release | Transfer | Revoke | Reopen | OpenSession | EndSession | CreateToken | RevokeToken | RotateToken

NEEDS_ROOM = (Acquire, ClaimAny, ClaimAll, OpenSession, CreateToken, NoteUses)
"""What is refused when the disk is full; all else ends or keeps what is there."""


def claimant_of(command: Command) -> str:
    """Return who asks for what needs room; what the server notes by itself is nobody's."""
    match command:
        case Acquire() | ClaimAny() | ClaimAll():
            return command.terms.principal
        case OpenSession() | CreateToken():
            return command.principal
        case _:
            return ""
