"""The bodies of replies about the past: who held what at a moment, and where things ended badly."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.wire.fields import Millis, Time, Token, Uuid
from holdfast.wire.replies import ShownClaim


class LockThen(ShownClaim, gc=False):
    """A name that was held at a moment, as far as the history knows: by the lease as it was granted."""

    name: str
    status: Literal["held"]
    holder_id: Uuid
    fencing_token: Token
    owner: str | None
    claimed_at: Time
    ttl_ms: Millis
    """As granted. Renewals are not kept, so nobody knows its deadline at that moment."""
    session: Uuid | None
    record: int
    """The number of the record that granted it; 0 if it is older than all numbers."""


class LocksThenReply(msgspec.Struct, gc=False):
    """The names that were held at a moment, in order."""

    locks: list[LockThen]
    at: Time | None
    """The moment that was asked for; of a record alone, its time, or null if nothing of that record is kept."""
    record: int
    """The last record by then. Ask for the next page with `record` set to this: it stays at the same record."""
    prefix: str | None
    next_after: str | None
    """Ask again with `after` set to this for the next page. A page may have fewer than `limit`, or none."""


class Mark(msgspec.Struct, gc=False):
    """A record in which something ended badly."""

    seq: int
    at: Time
    event: str
    """`expired`, `revoked`, `failed` or `session_ended`."""
    name: str
    owner: str
    others: int
    """How many names more it ended."""


class MarksReply(msgspec.Struct, gc=False):
    """Where things ended badly, newest first, and how far back one can look."""

    marks: list[Mark]
    next_before: int | None
    """Ask again with `before` set to this for those before. A page may have none."""
    begins_at: Time | None
    """The earliest moment that can be looked at. Null: there is none yet."""
    now: Time
