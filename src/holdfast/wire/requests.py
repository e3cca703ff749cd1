"""The bodies of requests, as msgspec structs. The OpenAPI document is made from them, so it cannot drift.

A request refuses fields it does not know; `lenient` makes the forgiving twin for `unknown_fields = "ignore"`.
Fields that may be absent take `null` as absent. Whole numbers are 32 bits wide, as OctoStore's.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType


class _Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, gc=False):
    shown_first: ClassVar[tuple[str, ...]] = ()  # listed before all other fields by `field_names`


class ClaimBody(_Body):
    ttl_seconds: U32 | None = None
    metadata: str | None = None
    owner: str | None = None
    session_id: str | None = None
    ephemeral: bool | None = None
    lock_delay_seconds: U32 | None = None
    wait_seconds: Seconds | None = None  # 50 at most; of several names only with `all`
    ticket: str | None = None
    redo: bool | None = None
    labels: Labels | UnsetType | None = UNSET  # to find it by in lists and events; everybody sees them


class AcquireBody(ClaimBody):
    """Claim a name."""

    shown_first: ClassVar[tuple[str, ...]] = ("ttl_seconds", "metadata", "owner", "resume")

    resume: bool | None = None
    acl: msgspec.Raw | UnsetType = UNSET  # Not supported: refused, never ignored.


class ClaimsBody(ClaimBody):
    """Claim one of several names, or all of them."""

    shown_first: ClassVar[tuple[str, ...]] = ("any", "all")

    any: list[str] | None = None
    all: list[str] | None = None


class RenewBody(_Body):
    """Heartbeat."""

    lease_id: str
    ttl_seconds: U32 | None = None  # the new ttl, counted from now; 60 if absent
    keep_ttl: bool | None = None
    note: str | None = None  # Progress; the next owner reads it if this one dies.
    metadata: str | None = None


class ReleaseBody(_Body):
    """Give a name back."""

    lease_id: str
    outcome: Literal["done", "failed"] | None = None  # `done` may be remembered; `failed` counts as an attempt
    remember_seconds: U32 | None = None  # Answer `done` to whoever claims the name within so long; only with `done`.
    result: str | None = None


class TransferBody(_Body, kw_only=True):
    """Hand a claim to another owner."""

    lease_id: str | UnsetType = UNSET  # Without it an operator hands over the claim of another.
    to_owner: str
    ttl_seconds: U32 | None = None
    """The new lease's ttl, from now on. If absent, the new lease keeps the old ttl and the time that was left; with a
    session's secret it lives for the old ttl from now on."""
    reason: str | UnsetType | None = UNSET


class ClaimSecretBody(_Body):
    """Ask for the secret of a claim."""

    lock_name: str
    lease_id: str


class LeaseWatchBody(_Body):
    """Watch the ends of these. At most `names_per_call_max` of both together."""

    leases: dict[str, str] = {}
    sessions: list[str] = []


class CheckBody(_Body):
    """Ask whether a fencing token is the current one."""

    fencing_token: Token


class RevokeBody(_Body):
    """End somebody's lease."""

    reason: str


class ReopenBody(_Body):
    """Let finished work be claimed again."""

    reason: str | None = None


class SessionBody(_Body):
    """Open a session."""

    ttl_seconds: U32 | None = None  # clamped, never refused; 60 if absent
    name: str | None = None
    metadata: str | None = None


class TokenBody(_Body):
    """Make a bearer token."""

    name: str
    scopes: list[Literal["read", "claim", "admin"]] | None = None
    prefix: str | None = None
    expires_in_seconds: U32 | None = None


class RotateBody(_Body):
    """Replace a bearer token by another of the same name and rights."""

    expires_in_seconds: U32 | None = None  # If absent, the new one gets the old one's whole lifetime.
    keep_sessions: bool = False
    never_expires: bool = False


def field_names(body: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the fields of a body in the order in which they are shown and in which a fingerprint counts them.

    The journal keeps fingerprints: a retry after an upgrade must have the same one, so a field never changes its place.
    """
    return tuple(dict.fromkeys((*getattr(body, "shown_first", ()), *body.__struct_encode_fields__)))


def lenient(body: type[Any]) -> type[Any]:
    """Return a twin of a request body that ignores fields it does not know."""
    return msgspec.defstruct(body.__name__, [], bases=(body,), forbid_unknown_fields=False, gc=False, kw_only=True)


B = TypeVar("B", bound=_Body)


def brief(body: type[B]) -> type[B]:
    """Return a twin of a request body that leaves out defaults, for senders. A fingerprint is made of every field."""
    name, bases = body.__name__, (body,)
    return msgspec.defstruct(name, [], bases=bases, omit_defaults=True, gc=False, kw_only=True)  # type: ignore[return-value]


U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Uuid = Annotated[str, Meta(description="A UUID.", extra_json_schema={"format": "uuid"})]
Time = Annotated[str, Meta(description="RFC 3339, UTC. For people; programs use the *_ms fields.")]
Millis = Annotated[int, Meta(description="Milliseconds.", ge=0)]
Seconds = Annotated[float, Meta(ge=0)]
Labels = Annotated[
    dict[str, str],
    Meta(
        description="At most 16. Keys of 1 to 63 letters, digits, `.`, `_`, `-`, `/`; values of at most 128 characters."
    ),
]
Token = Annotated[int, Meta(description="Fencing token: rises with every new lease.", ge=0, le=2**53 - 1)]
