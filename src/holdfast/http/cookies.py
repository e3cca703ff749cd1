"""The page's sign-in cookie in HTTP headers. `access.cookies` makes and checks its value.

Cookies go to all ports of a host, so the port is part of the name. Over https the name begins with `__Host-`, which
browsers accept only from the host itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

COOKIE = b"Cookie "  # Before a cookie, as `Bearer ` before a token.
HEADER_BYTES_MAX = 16_384
COOKIE_CHARS_MAX = 256
CHECKED_MAX = 4  # How many cookies of our name are checked.
SAFE, PLAIN = "s", "p"  # The first letter of a value: made over https, or over plain http.

_SAFE_NAME, _PLAIN_NAME = b"__Host-holdfast", b"holdfast"
_PORT = re.compile(rb":([0-9]{1,5})$")


def cookie_credential(headers: Mapping[bytes, bytes]) -> bytes | None:
    """Return what stands for a token in a head that has none: cookies, behind `COOKIE`; None if there are none."""
    sent = headers.get(b"cookie", b"")
    if _PLAIN_NAME not in sent or len(sent) > HEADER_BYTES_MAX:
        return None
    values = _values_of(sent, _SAFE_NAME + _port_of(headers), SAFE) or _values_of(
        sent, _PLAIN_NAME + _port_of(headers), PLAIN
    )
    return COOKIE + b" ".join(values) if values else None


def _values_of(sent: bytes, name: bytes, kind: str) -> list[bytes]:
    """Return the first values of that name: over plain http a neighbour on the host may put its own before ours."""
    values = []
    for part in sent.replace(b",", b";").split(b";"):  # A proxy may have joined two fields with a comma.
        cookie_name, _, value = part.strip().partition(b"=")
        if cookie_name == name and value.startswith(kind.encode() + b".") and len(value) <= COOKIE_CHARS_MAX:
            values.append(value)
    return values[:CHECKED_MAX]


def set_cookie(headers: Mapping[bytes, bytes], value: str, seconds: int, *, is_https: bool) -> tuple[bytes, bytes]:
    name = (_SAFE_NAME if is_https else _PLAIN_NAME) + _port_of(headers)
    return b"set-cookie", _field(name, value.encode(), seconds, is_https=is_https)


def clear_cookie(headers: Mapping[bytes, bytes], *, is_https: bool) -> tuple[bytes, bytes]:
    return b"set-cookie", _field(
        (_SAFE_NAME if is_https else _PLAIN_NAME) + _port_of(headers), b"", 0, is_https=is_https
    )


def _field(name: bytes, value: bytes, seconds: int, *, is_https: bool) -> bytes:
    field = b"%b=%b; Path=/; Max-Age=%d; HttpOnly; SameSite=Strict" % (name, value, seconds)
    return field + b"; Secure" if is_https else field


def _port_of(headers: Mapping[bytes, bytes]) -> bytes:
    values = _PORT.search(headers.get(b"host", b""))
    return b"" if values is None else b"-" + values[1]
