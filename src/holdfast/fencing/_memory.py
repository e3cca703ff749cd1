"""Fences in the memory of one process. One block runs at a time per resource, in order of arrival.

A token raises its fence on arrival, not when its turn comes: an older owner that still waits is refused instead of
running late. A running block may finish, and the newer owner waits for it.

Beyond `resources_max` the resources with the smallest tokens are evicted, and the greatest evicted token becomes the
fence of every unknown resource. All names share one token counter, so this refuses at most owners as old as that.

A token is an integer from 0 to 2^53−1: it fits a JSON number and a BIGINT. A resource is a name of your choice for what
is written to, such as the name of the job.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager

from holdfast.errors import StaleToken

_EVICTED_PART = 8  # One in eight: sorting is paid for by the many that come after.


class MemoryFence:
    """Fences for the threads and tasks of one process. A restart forgets them; other processes know none of them."""

    def __init__(self, *, resources_max: int = 10_000) -> None:
        """Remember up to `resources_max` resources, and those in use beyond that."""
        if resources_max < 1:
            raise ValueError(f"resources_max is at least 1, not {resources_max}")
        self._resources_max = resources_max
        self._mutex = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._floor = 0

    @contextmanager
    def guard(self, resource: str, token: int) -> Iterator[None]:
        """Raise the fence, or raise `StaleToken`; keep every other owner out while the block runs.

        Guarding the same resource again inside the block would deadlock.
        """
        entry, turn = self._enqueue(checked_resource(resource), checked_token(token))
        try:
            turn.result()
        except BaseException:
            self._cancel(entry, turn)
            raise
        try:
            self._compare(entry, resource, token)
            yield
        finally:
            self._release(entry)

    @asynccontextmanager
    async def guard_async(self, resource: str, token: int) -> AsyncIterator[None]:
        """Do the same in asyncio; tasks and threads share one queue."""
        entry, turn = self._enqueue(checked_resource(resource), checked_token(token))
        try:
            if not turn.done():
                # Shielded: only `_cancel` decides, under the mutex, whether a cancelled turn had come.
                await asyncio.shield(asyncio.wrap_future(turn))
        except BaseException:
            self._cancel(entry, turn)
            raise
        try:
            self._compare(entry, resource, token)
            yield
        finally:
            self._release(entry)

    def _enqueue(self, resource: str, token: int) -> tuple[_Entry, Future[None]]:
        with self._mutex:
            entry = self._entries.get(resource)
            current = self._floor if entry is None else entry.token
            if token < current:
                raise stale(resource, token, current)
            if entry is None:
                entry = self._add_entry(resource)
            entry.token = token
            turn: Future[None] = Future()
            if entry.is_taken:
                entry.queue.append(turn)
            else:
                entry.is_taken = True
                turn.set_result(None)
            return entry, turn

    def _compare(self, entry: _Entry, resource: str, token: int) -> None:
        with self._mutex:
            if token < entry.token:
                raise stale(resource, token, entry.token)

    def _release(self, entry: _Entry) -> None:
        with self._mutex:
            self._grant_next(entry)

    def _cancel(self, entry: _Entry, turn: Future[None]) -> None:
        with self._mutex:
            if turn.done():
                self._grant_next(entry)  # It came at the same moment.
            else:
                entry.queue.remove(turn)

    def _grant_next(self, entry: _Entry) -> None:
        if entry.queue:
            entry.queue.popleft().set_result(None)
        else:
            entry.is_taken = False

    def _add_entry(self, resource: str) -> _Entry:
        if len(self._entries) >= self._resources_max:
            idle = sorted((entry.token, name) for name, entry in self._entries.items() if not entry.is_taken)
            for token, name in idle[: max(1, self._resources_max // _EVICTED_PART)]:
                del self._entries[name]
                self._floor = max(self._floor, token)
        entry = self._entries[resource] = _Entry()
        return entry


class _Entry:
    """One resource: its fence, whether a block runs, and its queue."""

    __slots__ = ("is_taken", "queue", "token")

    def __init__(self) -> None:
        self.token = 0
        self.is_taken = False
        self.queue: deque[Future[None]] = deque()


TOKEN_MAX = 2**53 - 1
RESOURCE_CHARACTERS_MAX = 256


def stale(resource: str, token: int, current: int) -> StaleToken:
    text = (
        f"fencing token {token} is too old for {resource}, which has seen {current}: "
        "you no longer own the job, so stop, and claim it again if it still needs doing"
    )
    return StaleToken(text, resource=resource, fencing_token=token, current=current)


def checked_token(token: int) -> int:
    """Return it if it is a token. `True` is not one, although `bool` is an `int`."""
    if isinstance(token, bool) or not isinstance(token, int):
        raise TypeError(f"a fencing token is a whole number, not {type(token).__name__}: pass claim.fencing_token")
    if not 0 <= token <= TOKEN_MAX:
        raise ValueError(f"a fencing token is 0 to {TOKEN_MAX}, not {token}: pass claim.fencing_token")
    return token


def parse_token(text: str) -> int:
    """Read a token from a header or from `HOLDFAST_FENCING_TOKEN`: digits and nothing else, or ValueError."""
    if not re.fullmatch(r"[0-9]{1,16}", text):
        raise ValueError(f"a fencing token is a whole number in at most 16 digits, not {text[:40]!r}")
    return checked_token(int(text))


def checked_resource(resource: str) -> str:
    """Return it if every fence can store it: PostgreSQL has no NUL, and a MySQL key has a maximum length."""
    if not isinstance(resource, str):
        raise TypeError(f"a resource is named by a str, not {type(resource).__name__}")
    if not 1 <= len(resource) <= RESOURCE_CHARACTERS_MAX:
        raise ValueError(f"a resource's name has 1 to {RESOURCE_CHARACTERS_MAX} characters, not {len(resource)}")
    if "\0" in resource or any("\ud800" <= character <= "\udfff" for character in resource):
        raise ValueError(f"a resource's name is text without NUL: {resource!r}")
    return resource
