"""The options of a claim, declared once.

The classes below type every option, for editors, type checkers and programs that collect options before they claim:
`client.claim(job, **options)`. `takes_options` writes them, with their defaults, into the signature of each method, for
`help()` and `inspect.signature`. All times are seconds.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias, TypedDict, TypeVar

import msgspec

from holdfast.client.records import Metadata, QueuePosition, packed, plain_labels
from holdfast.client.requests import integer_seconds, session_name, wait_seconds

F = TypeVar("F", bound=Callable[..., Any])

OnWait: TypeAlias = Callable[[QueuePosition], None]


class _EveryOption(TypedDict, total=False):
    """The options of every claim, `claim_job` included."""

    wait: float | None  # How long to wait in the queue; default: not at all.
    redo: bool  # Claim it although it is done.
    lock_delay: float  # Keep the job closed for this long after any end of this claim.
    labels: Mapping[str, str] | None  # At most 16 texts by key. Lists and events can be filtered by a label.
    on_wait: OnWait | None  # Called every few seconds with the queue position, and whether the server is away.


class ClaimAnyOptions(_EveryOption, total=False):
    """The options of `claim_any`."""

    # How long the job stays ours if this process dies. Default: the server's `default_ttl_seconds` (60), or 120 for the
    # verbs whose callers renew themselves.
    ttl: float | None
    owner: str | None  # The name that others see. Default: the client's, else one of the form host:pid:random.
    metadata: Metadata  # Shown to everyone who queries the job.


class ClaimAllOptions(ClaimAnyOptions, total=False):
    """The options of `claim_all`: those of `claim_any`."""


class ClaimOptions(ClaimAllOptions, total=False):
    """The options of `claim`: those of `claim_all`, and `resume`."""

    resume: bool  # Ask for one's own live claim back.


class ClaimJobOptions(_EveryOption, total=False):
    """The options of `claim_job`, besides owner, metadata and ttl, which are parameters of their own."""

    resume: bool


_DEFAULTS: Mapping[str, object] = {"redo": False, "lock_delay": 0, "resume": False}  # The defaults that are not None.


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The checked options of one claim. Times are in seconds."""

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
    "ttl": lambda ttl: None if ttl is None else integer_seconds(ttl),
    "wait": wait_seconds,
    "metadata": _can_be_packed,
    "labels": plain_labels,
    "lock_delay": partial(integer_seconds, what="lock_delay"),
}  # Values that cannot be sent at all are refused here, before any request.


def claim_request(options: Mapping[str, Any], kind: Any, session: str | None = None, **given: Any) -> ClaimRequest:  # noqa: ANN401
    """Check the options of a claim. `given` are those passed as parameters of their own."""
    check_names(options, kind)
    found = {**given, **options}
    for name in _CHECKS.keys() & found:
        found[name] = _CHECKS[name](found[name])
    return ClaimRequest(session=None if session is None else session_name(session), **found)


def check_names(options: Mapping[str, Any], kind: Any) -> None:  # noqa: ANN401 - a class of options
    """Raise `TypeError` for an unknown option, as Python does for a parameter."""
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
