"""Randomness: ids, tokens, keys. Only this module draws it on the server.

Ids are made a block at a time: a system call and a few steps of Python for each would cost more than the rest of their
use. `_made` writes a whole block digit by digit: the first digit of all ids, then the second.
"""

from __future__ import annotations

import os
from binascii import hexlify
from collections.abc import Callable, Iterator
from itertools import chain

_BLOCK = 256
_DIGITS = 32
_UUID = "xxxxxxxx-xxxx-4xxx-yxxx-xxxxxxxxxxxx"
_REQUEST_ID = f"req_{'x' * _DIGITS}"
_VARIANT = bytes.maketrans(b"0123456789abcdef", b"89ab" * 4)  # `y` in a UUID of version 4
_IDENTITY_BYTES = 7  # SQLite's integers have eight bytes and a sign.


def _made(pattern: str) -> list[str]:
    """Return a block of ids: `x` is any digit, `y` the variant of a UUID, all else is literal."""
    line = f"{pattern}\n".encode()
    digits, made = hexlify(os.urandom(_BLOCK * _DIGITS // 2)), bytearray(line * _BLOCK)
    positions = (position for position, what in enumerate(pattern) if what in "xy")
    for number, position in enumerate(positions):
        drawn = digits[number::_DIGITS]
        made[position :: len(line)] = drawn if pattern[position] == "x" else drawn.translate(_VARIANT)
    return made[:-1].decode().split("\n")


def _endless(pattern: str) -> Callable[[], str]:
    block: list[str] = []
    # A forked child draws its own: two processes must never hand out the same ids. An empty list has no more to give.
    os.register_at_fork(after_in_child=block.clear)

    def blocks() -> Iterator[list[str]]:
        while True:
            block[:] = _made(pattern)
            yield block

    return chain.from_iterable(blocks()).__next__


new_uuid = _endless(_UUID)
new_request_id = _endless(_REQUEST_ID)  # It guards nothing.


def new_secret(size: int) -> bytes:
    return os.urandom(size)


def new_identity() -> int:
    return 1 + int.from_bytes(new_secret(_IDENTITY_BYTES))


def drawn(below: int) -> int:
    return int.from_bytes(os.urandom(4)) % below
