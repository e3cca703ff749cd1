"""Failover between several addresses of one server: which is asked first, and when the next one is.

The nodes of a server share one store, and each of them forwards what it is asked to the leader. So it does not matter
which of them is asked, only that it answers:

    first ──► a   no connection                        nothing was sent: ask the next, whatever it is
              b   503 not_leader, overloaded           nothing happened: ask the next, whatever it is
              c   the answer was lost                  it may have happened: ask the next if it may be sent twice,
              │                                        else raise, as with one address
              └─► all were asked: the flow sleeps for a while, and goes round again (`operations/exchange.py`)

A request may be sent twice if it is a GET or has an idempotency key (C5), which stays the same. Flows repeat renewals
and the like themselves, and those go to the next address then.

An address that failed is not asked first any more, by any connection of this client, until another fails. That is one
number, changed in one step: no lock that an interrupt could leave locked. If two requests find out about the same
address together, the second changes nothing.

A dead address must cost little, because a lease may have to be renewed meanwhile. So connecting may take so small a
share of the time for an answer that all of the addresses together leave half of it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, TypeAlias, TypeVar

import msgspec

from holdfast.client.answers import NOBODY_LEADS, NOT_NOW, Answer, envelope, lacks_leader
from holdfast.client.config import Target
from holdfast.client.operations.effects import Send
from holdfast.client.transports.base import Bearer
from holdfast.errors import Unreachable

BEGIN_SECONDS = 10.0
"""How long a stream may take to begin, where another address could be asked instead. It may be silent for longer."""
_NOTHING_HAPPENED = frozenset({"not_leader", "overloaded"})
_REFUSED = 300  # From here on the text of an error says who answered.

T = TypeVar("T")
Trying: TypeAlias = Generator[int, T, T]
"""Yields the address to ask next, is sent the answer or thrown `Unreachable`, and returns what all of it comes to."""


class Tries:
    """What came of the tries of one request."""

    def __init__(self, urls: tuple[str, ...]) -> None:
        self._urls = ",".join(urls)
        self.errors: list[Unreachable] = []
        self.refused: Answer | None = None  # A refusal after which nothing has happened.
        self.doubtful: Answer | None = None  # The answer of a proxy in between, which does not know what has happened.

    def fail(self, error: Unreachable) -> None:
        # Not the error itself: what it came of has the frames of our callers, and they have us.
        self.errors.append(Unreachable(error.url, error.problem, error.hint, was_sent=error.was_sent))

    def result(self) -> Answer:
        """Return what all of it comes to. Raises `Unreachable`.

        Only if no copy of the request can have taken effect, the answer is the one that says so.
        """
        found = self.doubtful or self.refused
        if found is None or any(error.was_sent for error in self.errors):
            raise self.error()
        return found

    def error(self) -> Unreachable:
        """Return what went wrong, of all of them."""
        problems = dict.fromkeys(error.problem for error in self.errors)
        text = ", ".join(problems)
        if len(problems) > 1:
            text = ", ".join(f"{error.problem} ({error.url})" for error in self.errors)
        hint = next((error.hint for error in self.errors if error.hint), "")
        if self.refused is not None and lacks_leader(self.refused):
            hint = NOBODY_LEADS
        return Unreachable(self._urls, text, hint, was_sent=any(error.was_sent for error in self.errors))


class Failover:
    """The order of the tries, for both kinds of transports."""

    def __init__(self, target: Target, make: Callable[..., Any]) -> None:
        """`make` makes the transport to one address."""
        self.target = target
        self._urls = target.addresses
        self._first = 0  # The address that is asked first.
        share = 1 / (2 * len(self._urls))
        more = {"bearer": Bearer(target), "connect_share": share, "begin_seconds": BEGIN_SECONDS}
        self._ways = [make(target.at(each), **more) for each in self._urls]

    def __repr__(self) -> str:  # Never the token.
        return f"{type(self).__name__}({self.target!r})"

    def order(self) -> list[int]:
        """Return in which order the addresses are asked."""
        count = len(self._urls)
        return [(self._first + number) % count for number in range(count)]

    def failed(self, at: int) -> None:
        """Ask the next one first, unless another request has found that out already."""
        if self._first == at:
            self._first = (at + 1) % len(self._urls)

    def sending(self, request: Send) -> Trying[Answer]:
        """Send one request to the first address that answers. Raises `Unreachable`."""
        tries = Tries(self._urls)
        repeats = request.method == "GET" or request.key is not None  # Though an answer was lost (C5).
        for at in self.order():
            try:
                answer = yield at
            except Unreachable as error:
                self.failed(at)
                if error.was_sent and not repeats:
                    raise
                tries.fail(error)
                continue
            if answer.status >= _REFUSED:
                # One of several addresses may be that of another program.
                answer = msgspec.structs.replace(answer, url=self._urls[at])
            found = envelope(answer) if answer.status in NOT_NOW else None
            if answer.status not in NOT_NOW or (found is not None and found.code not in _NOTHING_HAPPENED):
                return answer  # The leader has said so, and would say the same through another node.
            self.failed(at)
            if found is not None:
                tries.refused = answer
            elif repeats:
                tries.doubtful = answer
            else:
                return answer
        return tries.result()

    def opening(self) -> Trying[Any]:
        """Open a response that goes on and on, at the first address that answers. Raises `Unreachable`."""
        tries, order = Tries(self._urls), self.order()
        for at in order:
            try:
                stream = yield at
            except Unreachable as error:
                self.failed(at)
                tries.fail(error)
                continue
            if stream.status not in NOT_NOW:
                stream.on_broken = partial(self.failed, at)
                return stream
            self.failed(at)
            if at == order[-1]:
                return stream
            stream.close()
        raise tries.error()
