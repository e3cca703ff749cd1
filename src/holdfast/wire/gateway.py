"""The bodies of the gateway routes: the fields of Action Llama's gateway, no more and no fewer, in its own spelling.

A run is known by its secret, a resource by its key. Times are milliseconds since 1970, for people and their logs.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

EpochMillis = Annotated[int, Meta(description="Milliseconds since 1970.", ge=0)]
Ttl = Annotated[float, Meta(description="Seconds; 0 and null stand for `resourceLockTimeout`.", ge=0)]


class GatewayBody(msgspec.Struct, kw_only=True, rename="camel"):
    """Name a resource, as a run."""

    secret: str
    resource_key: str


class GatewayTimedBody(GatewayBody, rename="camel", kw_only=True):
    """Name a resource, as a run, for some time."""

    ttl: Ttl | None = None


class GatewayAcquiredReply(msgspec.Struct, gc=False, rename="camel"):
    """The run has the resource."""

    ok: bool
    resource_key: str


class GatewayReleasedReply(msgspec.Struct, gc=False):
    """The run has given the resource back."""

    ok: bool


class GatewayRenewedReply(msgspec.Struct, gc=False, rename="camel"):
    """The run keeps the resource."""

    ok: bool
    expires_at: EpochMillis


class GatewayRefusedReply(msgspec.Struct, gc=False, rename="camel"):
    """The run cannot have the resource, or does not have it."""

    ok: bool = False
    holder: str | UnsetType = UNSET  # with `heldSince`, and only when that is all there is to say
    held_since: EpochMillis | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    deadlock: bool | UnsetType = UNSET
    cycle: list[str] | UnsetType = UNSET  # this run, what it wants, who holds that, what that one wants, and so on


class GatewayErrorReply(msgspec.Struct, gc=False):
    """The request itself was refused, or could not be served."""

    ok: bool
    error: str


class GatewayOwnLock(msgspec.Struct, gc=False, rename="camel"):
    """A resource that the run has."""

    resource_key: str
    holder: str
    held_since: EpochMillis
    expires_at: EpochMillis


class GatewayLock(msgspec.Struct, gc=False, rename="camel"):
    """A resource that somebody has."""

    resource_key: str
    agent_name: str
    holder: str
    held_since: EpochMillis


class GatewayStatusReply(msgspec.Struct, gc=False):
    """Who has what."""

    locks: list[GatewayLock]
