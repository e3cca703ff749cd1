"""Whom a handler believes a token: the server that gave it, a key that signed it, or whoever sends it.

A token says how new its owner is and nothing of who that is. Whoever may raise a fence as high as it likes can shut out
every owner to come. So a handler takes a token from a request only if somebody vouches for it:

    is_current      the server: it is asked once for each token that is greater than all it vouched for before
    key             an HMAC of the resource and the token, made by `sign_token`; no server is asked
    trust_callers   nobody: for a handler that only its own workers can reach
"""

from __future__ import annotations

import asyncio
import hmac
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from holdfast.fencing._token import checked_resource, checked_token, parse_token

__all__ = ["Ask", "Signed", "Trust", "Vouched", "sign_token", "trust_in"]

KEY_BYTES_MIN = 16
RESOURCES_MAX = 10_000

Ask = Callable[[str, int], "bool | Awaitable[bool]"]
"""Tells of a resource and a token whether that is the token of the live claim."""


def sign_token(key: bytes, resource: str, token: int) -> str:
    """Return what to send as `Fencing-Token` to a handler that has the same key: the token, a dot, its signature."""
    return f"{checked_token(token)}.{_signature(_checked_key(key), checked_resource(resource), token)}"


def _signature(key: bytes, resource: str, token: int) -> str:
    # Neither has a NUL, so no two pairs are written the same.
    return hmac.digest(key, f"holdfast.fencing\0{resource}\0{token}".encode(), "sha256").hex()


def _checked_key(key: bytes) -> bytes:
    if not isinstance(key, bytes):
        raise TypeError(f"a key is bytes, not {type(key).__name__}")
    if len(key) < KEY_BYTES_MIN:
        raise ValueError(f"a key has at least {KEY_BYTES_MIN} bytes, this one has {len(key)}: take os.urandom(32)")
    return key


class Signed(NamedTuple):
    """Believes what is signed with the key."""

    key: bytes

    def read(self, resource: str, text: str) -> int | None:
        """Return the token in a header; None if its signature is not that of this token for this resource."""
        digits, _, signature = text.partition(".")
        token = parse_token(digits)
        is_signed = hmac.compare_digest(_signature(self.key, resource, token).encode(), signature.encode())
        return token if is_signed else None


class Vouched:
    """Believes the server. What it vouched for is remembered, so that it is asked once about an owner of a resource."""

    def __init__(self, is_current: Ask) -> None:
        self._ask = is_current
        self._is_async = inspect.iscoroutinefunction(is_current)
        self._mutex = threading.Lock()
        self._greatest: dict[str, int] = {}

    def believes(self, resource: str, token: int) -> bool:
        """Tell whether the server vouches for a token, or for a greater one: then the fence says what comes of it."""
        # Only True is a yes: what is not, such as a coroutine that nobody waits for, must not pass for one.
        return self._knows(resource, token) or self._noted(resource, token, self._ask(resource, token))

    async def believes_async(self, resource: str, token: int) -> bool:
        """Do the same in asyncio. A plain function is asked in a thread: it may well wait for a network."""
        if self._knows(resource, token):
            return True
        if self._is_async:
            answer = self._ask(resource, token)
        else:
            answer = await asyncio.to_thread(self._ask, resource, token)
        return self._noted(resource, token, await answer if inspect.isawaitable(answer) else answer)

    def _knows(self, resource: str, token: int) -> bool:
        with self._mutex:
            return token <= self._greatest.get(resource, -1)

    def _noted(self, resource: str, token: int, answer: object) -> bool:
        if answer is not True:
            return False
        with self._mutex:
            self._greatest[resource] = max(token, self._greatest.pop(resource, -1))
            if len(self._greatest) > RESOURCES_MAX:
                del self._greatest[next(iter(self._greatest))]  # The one that changed longest ago is asked about again.
        return True


Trust = Signed | Vouched | None
"""None believes whoever sends it."""


def trust_in(is_current: Ask | None, key: bytes | None, *, trust_callers: bool) -> Trust:
    """Return whom to believe. Just one must be named: there is no safe default."""
    if [is_current is not None, key is not None, trust_callers is True].count(True) != 1:
        raise TypeError(
            "say who vouches for a fencing token: is_current=… (asks the server), key=… (signed tokens), or"
            " trust_callers=True if only your own workers can send requests; just one of them"
        )
    if is_current is not None:
        return Vouched(is_current)
    return None if key is None else Signed(_checked_key(key))
