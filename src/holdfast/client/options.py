"""The options of a claim, declared once.

The classes below name and type every option, for editors, type checkers and programs that put options together before
they claim: `client.claim(job, **options)`. `takes_options` writes them, with their defaults, into the signature of each
method that takes them, where `help()` and `inspect.signature` find them. All times are seconds.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias, TypedDict, TypeVar

import msgspec

from holdfast.client.records import Metadata, Place, packed, plain_labels
from holdfast.client.requests import session_name, wait_seconds, whole_seconds

F = TypeVar("F", bound=Callable[..., Any])

OnWait: TypeAlias = Callable[[Place], None]
"""Called with the place in the line, and whether the server is away."""


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
    """What `claim_job` may ask for, beside the owner, the metadata and the ttl, which are parameters of their own."""

    resume: bool
    """Ask for one's own live claim back."""


_DEFAULTS: Mapping[str, object] = {"redo": False, "lock_delay": 0, "resume": False}
"""The defaults that are not None."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The checked options of one claim. Times in seconds, whole ones but for the wait."""

    ttl: int | None = None
    owner: str | None = None
    wait: float = 0.0
    metadata: Metadata = None
    labels: dict[str, str] | None = None
    resume: bool = False
    redo: bool = False
    session: str | None = None
    lock_delay: int = 0
    on_wait: OnWait | None = None


def _can_be_packed(metadata: Metadata) -> Metadata:
    packed(metadata)
    return metadata


_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "ttl": lambda ttl: None if ttl is None else whole_seconds(ttl),
    "wait": wait_seconds,
    "metadata": _can_be_packed,
    "labels": plain_labels,
    "lock_delay": partial(whole_seconds, what="lock_delay"),
}
"""What is checked of an option. What cannot be sent at all is refused here, before anything is asked."""


def wanted(options: Mapping[str, Any], kind: Any, session: str | None = None, **given: Any) -> Wanted:  # noqa: ANN401
    """Check the options of a claim. `given` are those that are parameters of their own."""
    check_names(options, kind)
    found = {**given, **options}
    for name in _CHECKS.keys() & found:
        found[name] = _CHECKS[name](found[name])
    return Wanted(session=None if session is None else session_name(session), **found)


def check_names(options: Mapping[str, Any], kind: Any) -> None:  # noqa: ANN401 - a class of options
    """Raise `TypeError` for an option that the class does not have, as Python does for a parameter."""
    known: frozenset[str] = kind.__optional_keys__
    if not known.issuperset(options):
        unknown = next(name for name in options if name not in known)
        raise TypeError(f"got an unexpected keyword argument {unknown!r}; the options are {', '.join(sorted(known))}")


def takes_options(kind: type, **defaults: object) -> Callable[[F], F]:
    """Write the options of a class, in place of `**options`, into the signature of a function."""

    def declare(function: F) -> F:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        options = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(name, _DEFAULTS.get(name)),
                annotation=getattr(hint, "__forward_arg__", hint),
            )
            for name, hint in kind.__annotations__.items()
        ]
        function.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
        return function

    return declare
