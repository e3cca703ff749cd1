"""The cookie of somebody who signed in at the page: a signed statement that the browser sends back.

    p.<principal, signed in, made; in base64>.<signature>

Nothing is stored. The signature depends on the digest of the principal's current token, so the cookie ends with that.
It is good for `LIFE_MS` and is renewed while it is used, for `SIGNED_IN_MS_MAX` in all. Its first letter is `s` if it
was given over https, with a name that begins with `__Host-`, which browsers take from nobody else; `p` is not believed
over https: it could have been planted on the way. Cookies go to all ports of a host, so the port is part of the name.
"""

from __future__ import annotations

import binascii
import re
from base64 import urlsafe_b64decode
from collections.abc import Mapping

import msgspec

from holdfast.server.access.secrets import AuthorityKey, base64, same

COOKIE = b"Cookie "  # Before a cookie, as `Bearer ` before a token.
LIFE_MS = 12 * 3_600_000
RENEWED_AFTER_MS = 600_000  # A younger one is not renewed: not every response needs one.
SIGNED_IN_MS_MAX = 30 * 86_400_000
AHEAD_MS_MAX = 60_000  # How far the wall clock may have been set back since a cookie was made.
HEADER_BYTES_MAX = 16_384
COOKIE_CHARS_MAX = 256
SHOWN_MAX = 4  # How many cookies of our name are checked.

_SAFE_NAME, _PLAIN_NAME = b"__Host-holdfast", b"holdfast"
_SAFE, _PLAIN = "s", "p"
_PORT = re.compile(rb":([0-9]{1,5})$")


class Cookie(msgspec.Struct, frozen=True):
    """What a cookie says. It proves nothing by itself."""

    principal: str
    signed_in_ms: int  # When the token was shown, as wall time.
    made_ms: int  # When this very cookie was made: later, if it was renewed.
    is_safe: bool  # Whether it was made over https.

    @property
    def said(self) -> str:
        return f"{_SAFE if self.is_safe else _PLAIN} {self.principal} {self.signed_in_ms} {self.made_ms}"

    def is_ahead(self, wall_ms: int) -> bool:
        """Tell whether it was made while the wall clock was ahead: it would outlive its end by as much."""
        return max(self.made_ms, self.signed_in_ms) - wall_ms > AHEAD_MS_MAX

    def is_over(self, wall_ms: int) -> bool:
        return wall_ms - self.made_ms >= LIFE_MS or wall_ms - self.signed_in_ms >= SIGNED_IN_MS_MAX

    def is_worth_renewing(self, wall_ms: int) -> bool:
        return not 0 <= wall_ms - self.made_ms < RENEWED_AFTER_MS

    def renewed(self, wall_ms: int) -> Cookie:
        return msgspec.structs.replace(self, made_ms=wall_ms)


def written(key: AuthorityKey, cookie: Cookie, token_digest: str) -> str:
    kind = _SAFE if cookie.is_safe else _PLAIN
    said = f"{cookie.principal} {cookie.signed_in_ms} {cookie.made_ms}"
    return f"{kind}.{base64(said.encode())}.{key.signature('page', cookie.said, f'{cookie.said} {token_digest}')}"


def cookie_in(value: str) -> Cookie | None:
    kind, _, rest = value.partition(".")
    said, dot, _ = rest.partition(".")
    if kind not in {_SAFE, _PLAIN} or not dot or len(value) > COOKIE_CHARS_MAX:
        return None
    try:
        principal, signed_in, made = urlsafe_b64decode(said + "=" * (-len(said) % 4)).decode("ascii").split(" ")
        return Cookie(principal, int(signed_in), int(made), kind == _SAFE)
    except (binascii.Error, ValueError):
        return None


def is_right(key: AuthorityKey, value: str, cookie: Cookie, token_digest: str) -> bool:
    return same(written(key, cookie, token_digest), value)


def is_ours(key: AuthorityKey, value: str, cookie: Cookie) -> bool:
    return key.was_signed("page", cookie.said, value.rpartition(".")[2])


def form_token(key: AuthorityKey, cookie: Cookie, token_digest: str) -> str:
    """Return what a form on a page of ours has in it, and one on a page of others cannot: it stays for one sign-in."""
    return base64(key.mac("form", f"{cookie.principal} {cookie.signed_in_ms} {token_digest}")[:24])


def shown_in(headers: Mapping[bytes, bytes]) -> bytes | None:
    """Return what stands for a token in a head that has none: cookies, behind `COOKIE`; None if there are none."""
    sent = headers.get(b"cookie", b"")
    if _PLAIN_NAME not in sent or len(sent) > HEADER_BYTES_MAX:
        return None
    found = _found(sent, _SAFE_NAME + _port_of(headers), _SAFE) or _found(sent, _PLAIN_NAME + _port_of(headers), _PLAIN)
    return COOKIE + b" ".join(found) if found else None


def _found(sent: bytes, name: bytes, kind: str) -> list[bytes]:
    """Return the first values of that name: over plain http a neighbour on the host may put its own before ours."""
    found = []
    for part in sent.replace(b",", b";").split(b";"):  # A proxy may have joined two fields with a comma.
        said, _, value = part.strip().partition(b"=")
        if said == name and value.startswith(kind.encode() + b".") and len(value) <= COOKIE_CHARS_MAX:
            found.append(value)
    return found[:SHOWN_MAX]


def set_by(headers: Mapping[bytes, bytes], cookie: Cookie, value: str) -> tuple[bytes, bytes]:
    name = (_SAFE_NAME if cookie.is_safe else _PLAIN_NAME) + _port_of(headers)
    return b"set-cookie", _field(name, value.encode(), LIFE_MS // 1000, is_safe=cookie.is_safe)


def forgotten_by(headers: Mapping[bytes, bytes], *, is_safe: bool) -> tuple[bytes, bytes]:
    return b"set-cookie", _field((_SAFE_NAME if is_safe else _PLAIN_NAME) + _port_of(headers), b"", 0, is_safe=is_safe)


def _field(name: bytes, value: bytes, seconds: int, *, is_safe: bool) -> bytes:
    field = b"%b=%b; Path=/; Max-Age=%d; HttpOnly; SameSite=Strict" % (name, value, seconds)
    return field + b"; Secure" if is_safe else field


def _port_of(headers: Mapping[bytes, bytes]) -> bytes:
    found = _PORT.search(headers.get(b"host", b""))
    return b"" if found is None else b"-" + found[1]
