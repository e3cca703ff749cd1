"""What can be asked of the core. Imperatives; each carries who asks and every id it may need.

Ids that must be unguessable are made by the engine and travel inside: `decide` knows neither chance nor clock.
`principal` is the name of the token that asked. `via` is the session whose secret was used, if one was.
"""

from __future__ import annotations

import msgspec


class Acquire(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Claim a name (C1–C7)."""

    name: str
    principal: str
    lease_id: str
    ttl_ms: int
    owner: str | None = None
    metadata: str | None = None
    session: str | None = None
    bound: bool = False
    delay_ms: int = 0
    resume: bool = False
    via: str | None = None
    key: str | None = None
    fingerprint: str = ""


class Renew(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Heartbeat: move the deadline, maybe leave a note (L3, L4). `ttl_ms` None keeps the lease's own ttl."""

    name: str
    principal: str
    lease_id: str
    ttl_ms: int | None
    note: str | None = None
    metadata: str | None = None
    via: str | None = None
    key: str | None = None


class Release(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Give a name back (L3). `failed` leaves the attempts counting (C7)."""

    name: str
    principal: str
    lease_id: str
    failed: bool = False
    via: str | None = None
    key: str | None = None
    fingerprint: str = ""


class OpenSession(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Begin a group of claims (S1)."""

    principal: str
    session_id: str
    ttl_ms: int
    name: str | None = None
    metadata: str | None = None
    key: str | None = None
    fingerprint: str = ""


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
    key: str | None = None
    fingerprint: str = ""


class RevokeToken(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Shut a bearer token out."""

    principal: str
    name: str
    key: str | None = None
    fingerprint: str = ""


Command = Acquire | Renew | Release | OpenSession | KeepSession | RenewSession | EndSession | CreateToken | RevokeToken
