"""Whom to answer, and what is answered when the store is the reason: the smallest words of the engine."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from holdfast.journal.base import JournalUnavailableError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from holdfast.core.values import Moment

log = logging.getLogger("holdfast.engine")


class Unavailable(msgspec.Struct, frozen=True):
    """The store cannot take this: it did not happen and will not."""

    text: str


class Unknown(msgspec.Struct, frozen=True):
    """The store may have taken this: only a retry with the same idempotency key can tell."""

    text: str


Reply: TypeAlias = "Callable[[Any, Moment], None]"
Waiting: TypeAlias = "tuple[Reply, Any, Moment]"
"""Whom to answer, what, and as of when."""


def answer_all(answers: Iterable[Waiting]) -> None:
    """Call every reply. One that raises is logged: it must cost nobody else an answer."""
    for reply, outcome, now in answers:
        try:
            reply(outcome, now)
        except Exception:
            log.exception("a reply could not be delivered")


def outcome_or_raise(outcome: Any) -> Any:  # noqa: ANN401 - It is whatever was asked for.
    """Return an outcome; raise that there can be none."""
    if isinstance(outcome, Unavailable | Unknown):
        raise JournalUnavailableError(outcome.text)
    return outcome


def settle_future(future: asyncio.Future[Any], value: object) -> None:
    """Give a future its value unless nobody waits for it any more."""
    if not future.done():
        future.set_result(value)
