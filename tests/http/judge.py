"""Judges what came on one connection against what the naive model says of what was sent on it.

The law: one answer for each complete request, in order, each the one that it must get; nothing inside an answer, and
nothing behind the last one; and held are exactly the names of the claims that were answered as granted. Where the
sender broke the connection, what was not heard of may have happened, but only from the front on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from tests.http.naive_api import ExpectedAnswer, NaiveApi
from tests.http.naive_http import BadAnswer, ParsedAnswer, ParsedRequest, Reading, Refusal, Rest, read, read_answers

ON_EVERY_ANSWER = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
_FRAMES = re.compile(rb"((data|id|event): ?[^\n]*\n|:[^\n]*\n|\n)*")


@dataclass(frozen=True)
class ReceivedData:
    """What came back on a connection."""

    data: bytes
    end: Literal["closed", "reset", "open"]


@dataclass
class Verdict:
    """What is wrong, and the statuses that were heard; `certain` and `possible` are names in the order of asking."""

    complaints: list[str] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    certain: list[str] = field(default_factory=list)
    possible: list[str] = field(default_factory=list)

    def check_held(self, held: Iterable[str]) -> None:
        """Complain if other names are held than those that were granted."""
        found = set(held)
        for name in self.certain:
            if name not in found:
                self.complaints.append(f"{name} was granted and is not held")
        unheard = [name in found for name in self.possible]
        if unheard != sorted(unheard, reverse=True):
            self.complaints.append(f"a later claim happened and an earlier one did not: {self.possible}, {unheard}")
        for name in sorted(found - {*self.certain, *self.possible}):
            self.complaints.append(f"{name} is held and nobody asked for it")


def due(reading: Reading) -> list[int]:
    """Where in what was sent each request ends that surely gets an answer, if the connection goes on until then."""
    api = NaiveApi()
    ends = []
    for asked in reading.asked:
        expected = api.expected(asked)
        api.happened(asked, expected)
        ends.append(asked.end)
        if expected.then == "closes" or expected.is_stream:
            break
    return ends


def ends_itself(reading: Reading) -> bool:
    """Does the server end the connection, whatever the sender does then?"""
    api = NaiveApi()
    for asked in reading.asked:
        expected = api.expected(asked)
        api.happened(asked, expected)
        if expected.is_stream:
            return False
        if expected.then == "closes":
            return True
    return isinstance(reading.last, Refusal)


def judge(sent: bytes, received: ReceivedData, *, half_closed: bool = False, broken: bool = False) -> Verdict:
    """Judge one connection. `half_closed`: the sender said that it sends no more; `broken`: it did not wait to hear."""
    trial = _Trial(read(sent), received, half_closed, broken)
    try:
        trial.hear()
    except BadAnswer as bad:
        if not broken:
            trial.complain(f"badly framed: {bad}")
    if received.end == "open" and not broken:
        trial.complain("the connection was not ended")
    return trial.verdict


class _Trial:
    def __init__(self, reading: Reading, received: ReceivedData, half_closed: bool, broken: bool) -> None:
        self._reading = reading
        self._half_closed = half_closed
        self._broken = broken
        self._data = received.data
        self._said: list[ParsedAnswer] = []
        self._api = NaiveApi()
        self.verdict = Verdict()

    def complain(self, text: str) -> None:
        self.verdict.complaints.append(text)

    def hear(self) -> None:
        """Walk along requests and answers."""
        if self._broken:
            self._all_may_have_happened()
        self._said = read_answers(self._data, [asked.method for asked in self._reading.asked])
        self.verdict.statuses = [said.status for said in self._said if said.status >= 200]
        for number, asked in enumerate(self._reading.asked):
            if self._ends_with(number, asked):
                break
        else:
            self._hear_last()
        for said in self._said:
            self.complain(f"{said.status} {said.body[:100]!r} was said behind the end")

    def _ends_with(self, number: int, asked: ParsedRequest) -> bool:
        expected = self._api.expected(asked)
        what = f"request {number} ({asked.method} {asked.target} HTTP/{asked.version})"
        self._hear_continue(what, allowed=expected.may_send_continue)
        if not self._said:
            if not self._broken and not (self._half_closed and expected.ends_with_sender):
                self.complain(f"{what} was not answered")
            return True
        said = self._said.pop(0)
        self._check(what, asked, expected, said)
        self._api.happened(asked, expected)
        if expected.grants:
            self.verdict.certain.append(expected.grants)
            if expected.grants in self.verdict.possible:
                self.verdict.possible.remove(expected.grants)
        if expected.is_stream:
            self._check_stream(what, said)
            return True
        if expected.then != "either" and said.closes != (expected.then == "closes"):
            self.complain(f"{what}: the connection {expected.then}, and the answer says otherwise: {said.fields}")
        return expected.then == "closes" or said.closes

    def _hear_continue(self, what: str, *, allowed: bool) -> None:
        while self._said and self._said[0].status < 200:
            if self._said.pop(0).status != 100 or not allowed:
                self.complain(f"an interim answer before that to {what}")
            allowed = False

    def _check(self, what: str, asked: ParsedRequest, expected: ExpectedAnswer, said: ParsedAnswer) -> None:
        if said.status not in expected.statuses:
            self.complain(f"{what}: expected {sorted(expected.statuses)[:5]}, got {said.status} {said.body[:200]!r}")
            return
        if not said.is_complete and not self._broken and not expected.is_stream:
            self.complain(f"{what}: the answer is cut off: {said.status}, {len(said.body)} bytes")
        if asked.version == "1.0" and said.framing == "chunks":
            self.complain(f"{what}: chunks for HTTP/1.0")
        for name, value in ON_EVERY_ANSWER.items():
            if value not in said.get(name):
                self.complain(f"{what}: {name} is {said.get(name)!r}")
        if expected.body_fields and asked.method != "HEAD" and said.is_complete:
            body = json.loads(said.body)
            for name, wanted in expected.body_fields.items():
                if body.get(name) != wanted:
                    self.complain(f"{what}: {name} is {body.get(name)!r} instead of {wanted!r}")

    def _check_stream(self, what: str, said: ParsedAnswer) -> None:
        if b"HTTP/1." in said.body or not _FRAMES.fullmatch(said.body.rpartition(b"\n")[0] + b"\n"):
            self.complain(f"{what}: there is something else in the stream: {said.body[:400]!r}")

    def _hear_last(self) -> None:
        """Hear what is said to that which stands behind the last complete request."""
        last = self._reading.last
        self._hear_continue("the rest", allowed=isinstance(last, Rest) and last.expects)
        if isinstance(last, Refusal) and not self._said and not self._broken:
            self.complain(f"not refused, although {last.why}")
        elif last is not None and self._said:
            said = self._said.pop(0)
            statuses = last.statuses if isinstance(last, Refusal) else frozenset({400, 408})
            if said.status not in statuses or not said.closes:
                self.complain(f"expected a refusal ({sorted(statuses)}), got {said.status} {said.body[:200]!r}")

    def _all_may_have_happened(self) -> None:
        """Nobody knows how far it went."""
        api = NaiveApi()
        for asked in self._reading.asked:
            expected = api.expected(asked)
            api.happened(asked, expected)
            if expected.grants:
                self.verdict.possible.append(expected.grants)
            if expected.then == "closes" or expected.is_stream:
                break
