"""Generated owner names for threads and tasks without one: `host:pid:random`.

A thread or task keeps its name, with one exception (D1a): if it is unknown whether a lease under that name has ended,
the name is retired, and the next claim gets a new one. Under the old name a wait for the same job would be a wait for
one's own lease, which the server refuses as a deadlock.
"""

from __future__ import annotations

import os
import socket
from weakref import WeakKeyDictionary, WeakValueDictionary

from holdfast.client import clock
from holdfast.errors import JobDone, JobHeld, LeaseLost, Refused

HOST_CHARS_MAX = 64
_SERVER_FAILED = 500  # From this status on, a refusal leaves open whether the request took effect.


class _Name:
    __slots__ = ("__weakref__", "is_retired", "pid", "text")

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.text = f"{socket.gethostname()[:HOST_CHARS_MAX]}:{pid}:{clock.new_key()[:8]}"
        self.is_retired = False


_names: WeakKeyDictionary[object, _Name] = WeakKeyDictionary()
_by_text: WeakValueDictionary[str, _Name] = WeakValueDictionary()


def owner_of(worker: object) -> str:
    """Return the generated name of a thread or task.

    Each has its own, because the server treats equal owners as one holder, and two threads that wait for the same job
    must be two waiters. A forked process gets new names.
    """
    pid = os.getpid()
    known = _names.get(worker)
    if known is None or known.is_retired or known.pid != pid:
        known = _Name(pid)
        _by_text[known.text] = known
        _names[worker] = known
    return known.text


def retire(owner: str | None) -> None:
    """Stop using a generated name, because a lease under it may be live. Names that users chose are kept."""
    known = None if owner is None else _by_text.get(owner)
    if known is not None:
        known.is_retired = True


def doubt(owner: str | None, error: BaseException) -> None:
    """Retire a name if this error leaves open whether a lease under it is live."""
    if isinstance(error, JobHeld | JobDone | LeaseLost):
        return
    if not isinstance(error, Refused) or error.status >= _SERVER_FAILED:
        retire(owner)
