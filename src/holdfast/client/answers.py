"""What a server answered, and what becomes of it: the reply that was promised, or the exception that says why not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec.json import Decoder

from holdfast.errors import Deadlock, NotAllowed, Refused, ServerError
from holdfast.wire import replies

T = TypeVar("T")

FOLLOWS, SHARED = replies.FOLLOWS, replies.SHARED  # What a node says of itself in `/readyz`, and of its store.
NOT_NOW = frozenset({502, 503, 504})
"""What may be gone when asked again: the server restarts, or what stands in between does."""
NO_LEADER_HINT = "a node says that none leads right now: `holdfast nodes` shows what each of them says"
"""What to do where one copy of a request was not answered, and the last one found no leader."""


class Answer(msgspec.Struct, frozen=True):
    """What came back, whatever its status."""

    status: int
    headers: Mapping[str, str]  # To be asked for names in title case.
    body: bytes
    url: str = ""  # Who answered, where several may have been asked.

    def json(self) -> Any:  # noqa: ANN401 - JSON is whatever the server sent
        """Decode the body; None where it is not JSON."""
        try:
            return msgspec.json.decode(self.body)
        except msgspec.DecodeError:
            return None


class Envelope(msgspec.Struct):
    error: str
    code: str
    details: str | None = None
    request_id: str | None = None
    retry_after_ms: int | None = None
    cycle: list[str] = []
    ended: str | None = None
    at: str | None = None
    by: str | None = None
    reason: str | None = None


def envelope(answer: Answer) -> Envelope | None:
    """Read the body of a refusal; None where it is not ours."""
    try:
        return msgspec.json.decode(answer.body, type=Envelope)
    except msgspec.MsgspecError:
        return None


def lacks_leader(answer: Answer) -> bool:
    """Tell whether no node leads right now: nothing has happened, and one will lead in a few seconds."""
    if answer.status != 503:  # noqa: PLR2004 - unavailable
        return False
    found = envelope(answer)
    return found is not None and found.code == "not_leader"


def may_have_happened(answer: Answer) -> bool:
    """Tell whether what was asked may have been done: the server does not know it, or something in between gave up."""
    if answer.status not in NOT_NOW:
        return False
    found = envelope(answer)
    return found is None or found.code == "outcome_unknown"


def in_words(answer: Answer) -> str:
    """Say what is answered for a server that cannot serve now: its own words tell of a full disk."""
    if lacks_leader(answer):
        return "no node leads right now"
    found = envelope(answer)
    said = "" if found is None else f": {found.details or found.error}"
    return f"it answers {answer.status}{said}"


def retry_seconds(answer: Answer) -> float:
    """Return for how long the server wants to be left alone; 0 if it does not say."""
    found = envelope(answer)
    return 0.0 if found is None or found.retry_after_ms is None else found.retry_after_ms / 1_000


def decoded(answer: Answer, decoder: Decoder[T], asked: str, url: str) -> T:
    """Return the reply that was promised. Raises `ServerError` for anything else."""
    try:
        return decoder.decode(answer.body or b"null")
    except msgspec.MsgspecError as error:
        raise ServerError(
            f"{answer.url or url} does not answer {asked} as a Holdfast server would ({error});"
            " check the address, and that server and client have the same version"
        ) from None


def refusal(answer: Answer, url: str, token_file: str | None = None) -> Refused:
    """Make an exception of an answer that is not a success. What is about the token names the file that it is from."""
    url = answer.url or url
    if 300 <= answer.status < 400:  # noqa: PLR2004 - the range of redirects
        error = f"{url} answered with a redirect, and none is followed"
        return Refused(answer.status, "redirect", error, "set the address it leads to")
    found = envelope(answer)
    about_token = answer.status in {401, 403} or (found is not None and found.code == "too_many_wrong_tokens")
    kind: type[Refused] = Refused
    # A proxy says when to try again in seconds, or with a date, which is left out.
    seconds = answer.headers.get("Retry-After", "")
    more: dict[str, Any] = {"retry_after": float(seconds) if seconds.isascii() and seconds.isdigit() else None}
    if about_token:
        kind, more["token_file"] = NotAllowed, token_file
    if found is None:
        details = f"this is not how a Holdfast server refuses; {_instead(answer)}"
        return kind(answer.status, "unexpected", f"{url} answered {answer.status}", details, **more)
    if found.retry_after_ms is not None:
        more["retry_after"] = found.retry_after_ms / 1_000
    if found.code == "deadlock":
        kind, more = Deadlock, {"cycle": found.cycle}
    return kind(answer.status, found.code, found.error, found.details, found.request_id, **more)


def _instead(answer: Answer) -> str:
    """Say who may have answered in the place of a Holdfast server."""
    if answer.status in NOT_NOW:
        return "a proxy answers, and the server behind it does not: look whether that runs"
    program = answer.headers.get("Server", "").strip()
    named = f" ({program:.60})" if program else ""
    return f"another program{named} answers at this address: check it, and what stands in between"
