"""Chance. The one place in the program that makes what nobody may guess: lease ids, session ids, tokens, keys.

Random bytes are drawn from the system in blocks: a call for each id would cost more than the rest of making it.
"""

from __future__ import annotations

import os
from collections import deque

_BLOCK = 4_096
_VARIANT = "89ab"
_IDENTITY_BYTES = 7
"""SQLite's numbers have eight bytes and a sign."""

_ids: deque[str] = deque()
_request_ids: deque[str] = deque()
# A forked child draws its own: two processes must never hand out the same ids.
os.register_at_fork(after_in_child=_ids.clear)


def new_uuid() -> str:
    """Return a random UUID (version 4) as text."""
    if not _ids:
        _fill()
    return _ids.popleft()


def new_request_id() -> str:
    """Return `req_` and 32 hexadecimal digits. It names a request in logs and replies; nothing is guarded by it."""
    if not _request_ids:
        block = os.urandom(_BLOCK).hex()
        _request_ids.extend("req_" + block[start : start + 32] for start in range(0, len(block), 32))
    return _request_ids.popleft()


def new_secret(size: int) -> bytes:
    """Return bytes that nobody can guess."""
    return os.urandom(size)


def new_identity() -> int:
    """Return the number of a new journal, by which it is told from all others."""
    return 1 + int.from_bytes(new_secret(_IDENTITY_BYTES))


def _fill() -> None:
    block = os.urandom(_BLOCK).hex()
    for start in range(0, len(block), 32):
        digits = block[start : start + 32]
        variant = _VARIANT[int(digits[16], 16) & 3]
        _ids.append(f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}")
