"""What a claim may ask for: every option has its one home here. A type checker knows them where they are given.

All times are seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypedDict

import msgspec

from holdfast.client.values.records import Metadata, Place


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
    on_wait: Callable[[Place], None] | None
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
    """What one claim asks for, once the defaults are filled in. Times in seconds, as the caller gave them."""

    ttl: float | None
    owner: str | None
    wait: float = 0.0
    metadata: Metadata = None
    labels: dict[str, str] | None = None
    resume: bool = False
    redo: bool = False
    session: str | None = None
    lock_delay: int = 0
    on_wait: Callable[[Place], None] | None = None


def check_known(given: Iterable[str], kind: type) -> None:
    """Refuse an option that there is not: it must never be ignored."""
    known = kind.__annotations__
    for name in given:
        if name not in known:
            hint = "; ttl is the life of the lease, wait how long to stand in line" if name == "timeout" else ""
            raise TypeError(f"there is no option {name!r} here; known are {', '.join(sorted(known))}{hint}")
