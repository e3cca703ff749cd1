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

from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from holdfast.client.answers import NOBODY_LEADS, NOT_NOW, Answer, envelope, lacks_leader
from holdfast.client.config import Target
from holdfast.client.operations.effects import Send
from holdfast.client.transports.base import Bearer, may_repeat
from holdfast.errors import Unreachable

BEGIN_SECONDS = 10.0
"""How long a stream may take to begin, where another address could be asked instead. It may be silent for longer."""
_NOTHING_HAPPENED = frozenset({"not_leader", "overloaded"})
_REFUSED = 300
"""From here on the text of an error says who answered."""

T = TypeVar("T")
Trying: TypeAlias = Generator[int, T, T]
"""Yields the address to ask next, is sent the answer or thrown `Unreachable`, and returns what all of it comes to."""


class Addresses:
    """The addresses of one client, and which of them is asked first."""

    def __init__(self, urls: tuple[str, ...]) -> None:
        self.urls = urls
        self._first = 0

    @property
    def connect_share(self) -> float:
        """How much of the time for an answer it may take to connect."""
        return 1 / (2 * len(self.urls))

    def failed(self, at: int) -> None:
        """Ask the next one first, unless somebody else has found that out already."""
        if self._first == at:
            self._first = (at + 1) % len(self.urls)

    def tries(self, *, may_repeat: bool) -> Tries:
        """Return the tries of a request: one at each address. `may_repeat` says whether it may be sent twice."""
        return Tries(self, self._first, may_repeat=may_repeat)


class _Failure(NamedTuple):
    """What an `Unreachable` says."""

    url: str
    problem: str
    hint: str
    was_sent: bool


class Tries:
    """One try at each address, the first one first. Iterate over it; it ends where there is no other to be asked."""

    def __init__(self, addresses: Addresses, first: int, *, may_repeat: bool) -> None:
        self._addresses = addresses
        self._first = first
        self._may_repeat = may_repeat
        self._errors: list[_Failure] = []
        self._refused: Answer | None = None
        """A refusal after which nothing has happened."""
        self._doubtful: Answer | None = None
        """The answer of somebody in between, who does not know what has happened."""
        self.left = len(addresses.urls)
        """How many are still to be asked after the one that is asked now."""

    def __iter__(self) -> Iterator[int]:
        count = len(self._addresses.urls)
        for number in range(count):
            self.left = count - 1 - number
            yield (self._first + number) % count

    def go_on_after(self, at: int, error: Unreachable) -> bool:
        """Take note that no answer came. Tells whether another may be asked; else the error is to be raised."""
        self._addresses.failed(at)
        if error.was_sent and not self._may_repeat:
            return False
        # Not the error itself: what it came of has the frames of our callers, and they have us.
        self._errors.append(_Failure(error.url, error.problem, error.hint, error.was_sent))
        return True

    def settles(self, at: int, answer: Answer) -> bool:
        """Tell whether this answer is the last word. If not, the next one is to be asked."""
        if answer.status not in NOT_NOW:
            return True
        found = envelope(answer)
        if found is not None and found.code not in _NOTHING_HAPPENED:
            return True  # Who leads has said so, and would say the same through another.
        self._addresses.failed(at)
        if found is not None:
            self._refused = answer
            return False
        self._doubtful = answer
        return not self._may_repeat

    def result(self) -> Answer:
        """Return what all of it comes to. Raises `Unreachable`.

        Only if no copy of the request can have taken effect, the answer is the one that says so.
        """
        if any(error.was_sent for error in self._errors):
            raise self.error()
        found = self._doubtful or self._refused
        if found is None:
            raise self.error()
        return found

    def named(self, at: int, answer: Answer) -> Answer:
        """Let a refusal say whose it is: of several addresses, one may be that of another program."""
        return answer if answer.status < _REFUSED else msgspec.structs.replace(answer, url=self._addresses.urls[at])

    def error(self) -> Unreachable:
        """Return what went wrong, of all of them."""
        errors = self._errors
        problems = dict.fromkeys(error.problem for error in errors)
        text = ", ".join(problems)
        if len(problems) > 1:
            text = ", ".join(f"{error.problem} ({error.url})" for error in errors)
        hint = next((error.hint for error in errors if error.hint), "")
        if self._refused is not None and lacks_leader(self._refused):
            hint = NOBODY_LEADS
        urls = ",".join(self._addresses.urls)
        return Unreachable(urls, text, hint, was_sent=any(error.was_sent for error in errors))


class Failover:
    """The order of the tries, for both kinds of transports."""

    def __init__(self, target: Target, make: Callable[..., Any]) -> None:
        """`make` makes the transport to one address."""
        self.target = target
        self._addresses = Addresses(target.addresses)
        share = self._addresses.connect_share
        more = {"bearer": Bearer(target), "connect_share": share, "begin_seconds": BEGIN_SECONDS}
        self._ways = [make(target.at(each), **more) for each in target.addresses]

    def __repr__(self) -> str:
        """Show where it leads, never the token."""
        return f"{type(self).__name__}({self.target!r})"

    def sending(self, request: Send) -> Trying[Answer]:
        """Send one request to the first address that answers. Raises `Unreachable`."""
        tries = self._addresses.tries(may_repeat=may_repeat(request))
        for at in tries:
            try:
                answer = tries.named(at, (yield at))
            except Unreachable as error:
                if not tries.go_on_after(at, error):
                    raise
            else:
                if tries.settles(at, answer):
                    return answer
        return tries.result()

    def opening(self) -> Trying[Any]:
        """Open a response that goes on and on, at the first address that answers. Raises `Unreachable`."""
        tries = self._addresses.tries(may_repeat=True)
        for at in tries:
            try:
                stream = yield at
            except Unreachable as error:
                tries.go_on_after(at, error)
                continue
            if stream.status not in NOT_NOW:
                stream.on_broken = partial(self._addresses.failed, at)
                return stream
            self._addresses.failed(at)
            if not tries.left:
                return stream
            stream.close()
        raise tries.error()
