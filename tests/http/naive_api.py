"""What a request must be answered, by a server in which nobody else uses the same names: a few rules, and one table.

A request of the histories has at most one thing wrong with it, so the order in which a server looks does not matter
here. Who holds a name, and what was said of it, is all there is to remember.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Literal

from tests.http.naive_http import CONTINUE, ParsedRequest
from tests.support import callers

Then = Literal["goes on", "closes", "either"]
Outcome = tuple[set[int], dict[str, object], str]
"""The statuses, what is told (under "" that it is a stream, or waits), and the name that is granted."""

_SINGLE = ("authorization", "content-type", "host", "idempotency-key")
_PLAIN = ("/docs", "/health", "/healthz", "/openapi.json")
_FIELDS = {"metadata", "ttl_seconds", "wait_seconds"}
_PRINCIPALS = {
    f"Bearer {callers.ALICE}": "alice",
    f"Bearer {callers.BOB}": "bob",
    f"Bearer {callers.READER}": "reader",
}
TUNNEL = frozenset({*range(400, 500), 501})


@dataclass(frozen=True)
class ExpectedAnswer:
    """What one request must get."""

    statuses: frozenset[int]
    then: Then
    body_fields: dict[str, object] = field(default_factory=dict)
    """What its JSON must say, among other things: which answer it is."""
    grants: str = ""
    """The name that is held by the one who asks when it has been answered."""
    is_stream: bool = False
    ends_with_sender: bool = False
    """Whether it asks for a stream or may wait in line: one who sends no more then counts as gone."""
    may_send_continue: bool = False


class NaiveApi:
    """The names of one history, and who holds them."""

    def __init__(self) -> None:
        self.holders: dict[str, tuple[str, object]] = {}
        """For each held name who holds it, and the metadata of its claim."""

    def expected(self, asked: ParsedRequest) -> ExpectedAnswer:
        """What a request must get. Nothing changes before `happened` is told."""
        then = _then(asked)
        if asked.method == "CONNECT":
            return ExpectedAnswer(TUNNEL, "closes")
        if any(len(asked.all(name)) > 1 for name in _SINGLE):
            return ExpectedAnswer(frozenset({400}), "either" if then == "goes on" else then)
        statuses, body_fields, grants = self._answer(asked)
        kind = body_fields.pop("", "")
        return ExpectedAnswer(
            frozenset(statuses),
            then,
            body_fields,
            grants,
            is_stream=kind == "stream",
            ends_with_sender=kind == "waits" or _path(asked).endswith(("/watch", "/events")),
            may_send_continue=asked.version == "1.1" and asked.says("expect", CONTINUE),
        )

    def happened(self, asked: ParsedRequest, expected: ExpectedAnswer) -> None:
        """The request was decided."""
        if expected.grants:
            self.holders[expected.grants] = (_PRINCIPALS[asked.get("authorization")], expected.body_fields["metadata"])

    def _answer(self, asked: ParsedRequest) -> Outcome:
        path = _path(asked)
        reads = asked.method in ("GET", "HEAD")
        if path in _PLAIN:
            return {200 if reads else 405}, {}, ""
        if path == "/events" or (path.startswith("/locks/") and path.endswith("/watch")):
            return self._stream(asked) if reads else ({405}, {}, "")
        if not path.startswith("/locks/"):
            return {404}, {}, ""
        name = path.removeprefix("/locks/")
        if name.endswith("/acquire"):
            return self._acquire(asked, name.removesuffix("/acquire")) if asked.method == "POST" else ({405}, {}, "")
        if not reads:
            return {405}, {}, ""
        if asked.get("authorization") not in _PRINCIPALS:
            return {401}, {}, ""
        return {200}, {"name": name, "status": "held" if name in self.holders else "free"}, ""

    def _stream(self, asked: ParsedRequest) -> Outcome:
        if asked.get("authorization") not in _PRINCIPALS:
            return {401}, {}, ""
        return {200}, {"": "stream"} if asked.method == "GET" else {}, ""

    def _acquire(self, asked: ParsedRequest, name: str) -> Outcome:
        if asked.get("content-type") != "application/json":
            return {415}, {}, ""
        try:
            body = json.loads(asked.body)
        except ValueError:
            return {400}, {}, ""
        if not isinstance(body, dict) or not set(body) <= _FIELDS:
            return {400, 422}, {}, ""
        who = _PRINCIPALS.get(asked.get("authorization"))
        if who is None:
            return {401}, {}, ""
        if who == "reader":
            return {403}, {}, ""
        if name not in self.holders:
            return {200}, {"status": "acquired", "metadata": body.get("metadata")}, name
        _, metadata = self.holders[name]
        if "wait_seconds" in body:
            return {200}, {"status": "waiting", "": "waits"}, ""
        return {200}, {"status": "held", "metadata": metadata}, ""


def _path(asked: ParsedRequest) -> str:
    return asked.target.removeprefix("http://localhost").partition("?")[0]


def _then(asked: ParsedRequest) -> Then:
    if asked.version == "1.0" or asked.says("connection", "close"):
        return "closes"
    return "either" if asked.all("upgrade") else "goes on"
