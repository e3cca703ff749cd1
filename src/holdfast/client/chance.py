"""The one place in the client that reads chance: keys that make a request once, jitter, names for the nameless."""

from __future__ import annotations

import os
import random
import socket
from weakref import WeakKeyDictionary

OWNER_HOST_CHARS_MAX = 64

_owners: WeakKeyDictionary[object, tuple[int, str]] = WeakKeyDictionary()


def new_key() -> str:
    """Return an idempotency key that nobody else has."""
    return os.urandom(16).hex()


def share() -> float:
    """Return a number from 0 up to 1."""
    return random.random()  # noqa: S311 - it spreads load, it hides nothing


def owner_of(worker: object) -> str:
    """Return the name of a thread or task that was given none: `host:pid:random`, the same for as long as it lives.

    Each has its own, because the server takes claims of one owner for one holder: two threads that wait for the same
    job must be two in the line. A forked process is another one.
    """
    pid = os.getpid()
    known = _owners.get(worker)
    if known is None or known[0] != pid:
        host = socket.gethostname()[:OWNER_HOST_CHARS_MAX]
        known = (pid, f"{host}:{pid}:{os.urandom(4).hex()}")
        _owners[worker] = known
    return known[1]
