"""What a claim may ask for. Every option has its home here; each verb that claims has it as a parameter of its own.

The classes of options are for programs that put options together before they claim: `client.claim(job, **options)`. All
times are seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias, TypedDict

import msgspec

from holdfast.client.values.arguments import session_name, wait_seconds, whole_seconds
from holdfast.client.values.records import Metadata, Place, packed, plain_labels

OnWait: TypeAlias = Callable[[Place], None]
"""Is told where one stands in line, and whether the server is away."""


class _EveryOption(TypedDict, total=False):
    """What every claim may ask for, `claim_job` too."""

    wait: float | None
    """How long to stand in line for it; not at all, unless given."""
    redo: bool
    """Claim it although it is done."""
    lock_delay: float
    """Keep the job closed for so long after any end of this claim."""
    labels: Mapping[str, str] | None
    """What to find it by: at most 16 texts by key. Lists and events can be asked for a label."""
    on_wait: OnWait | None
    """Called every few seconds of the wait, with the place in the line, and whether the server is away."""


class ClaimAnyOptions(_EveryOption, total=False):
    """What `claim_any` may ask for."""

    ttl: float | None
    """The life of the lease: how long the job stays ours if this process dies.

    The server's `default_ttl_seconds` (60), unless given; 120 for those who renew themselves.
    """
    owner: str | None
    """The name that others see; the client's, unless given, else one of the form host:pid:random."""
    metadata: Metadata
    """Shown to everybody who asks for the job."""


class ClaimAllOptions(ClaimAnyOptions, total=False):
    """What `claim_all` may ask for: what `claim_any` may."""


class ClaimOptions(ClaimAllOptions, total=False):
    """What `claim` may ask for: what `claim_all` may, and one's own live claim back."""

    resume: bool
    """Ask for one's own live claim back."""


class ClaimJobOptions(_EveryOption, total=False):
    """What `claim_job` may ask for, beside the owner, the metadata and the ttl, which have a place of their own."""

    resume: bool
    """Ask for one's own live claim back."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What one claim asks for. Times in seconds, and whole ones but for the wait."""

    ttl: int | None
    owner: str | None
    wait: float = 0.0
    metadata: Metadata = None
    labels: dict[str, str] | None = None
    resume: bool = False
    redo: bool = False
    session: str | None = None
    lock_delay: int = 0
    on_wait: OnWait | None = None


def wanted(
    *,
    ttl: float | None,
    wait: float | None,
    owner: str | None,
    metadata: Metadata,
    labels: Mapping[str, str] | None,
    redo: bool,
    lock_delay: float,
    session: str | None,
    on_wait: OnWait | None,
    resume: bool = False,
) -> Wanted:
    """Put together what a claim asks for. What cannot be sent at all is refused here, before anything is asked."""
    packed(metadata)
    return Wanted(
        ttl=None if ttl is None else whole_seconds(ttl),
        owner=owner,
        wait=wait_seconds(wait),
        metadata=metadata,
        labels=plain_labels(labels),
        resume=resume,
        redo=redo,
        session=None if session is None else session_name(session),
        lock_delay=whole_seconds(lock_delay, "lock_delay"),
        on_wait=on_wait,
    )
