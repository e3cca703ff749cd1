"""Reply callbacks, and the outcomes of the engine when the journal fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import msgspec

from holdfast.core.values import Instant
from holdfast.journal.interface import DeposedError, JournalUnavailableError

log = logging.getLogger("holdfast.engine")


class Unavailable(msgspec.Struct, frozen=True):
    """The journal cannot take it: it did not happen and will not."""

    text: str


class Unknown(msgspec.Struct, frozen=True):
    """The journal may have taken it: only a retry with the same idempotency key can tell."""

    text: str


class NotLeader(msgspec.Struct, frozen=True):
    """Another node leads, or may lead: it did not happen here and will not (N-12)."""

    text: str


Reply: TypeAlias = "Callable[[Any, Instant], None]"
PendingReply: TypeAlias = "tuple[Reply, Any, Instant]"


def answer_all(answers: Iterable[PendingReply]) -> None:
    for reply, outcome, now in answers:
        try:
            reply(outcome, now)
        except Exception:
            log.exception("a reply could not be delivered")


def outcome_or_raise(outcome: Any) -> Any:  # noqa: ANN401 - It is whatever was asked for.
    """Return the outcome, or raise `JournalUnavailableError` or `DeposedError` if the journal is why there is none."""
    if isinstance(outcome, Unavailable | Unknown):
        raise JournalUnavailableError(outcome.text)
    if isinstance(outcome, NotLeader):
        raise DeposedError(outcome.text)
    return outcome


def resolve_future(future: asyncio.Future[Any], value: object) -> None:
    if not future.done():
        future.set_result(value)
