"""The cookie of somebody who signed in at the page: a signed statement that the browser sends back.

    p.<principal, signed in, made; in base64>.<signature>

Nothing is stored. The signature depends on the digest of the principal's current token, so the cookie ends with that.
It is valid for `LIFETIME_MS`, is renewed while it is used, for `SIGNED_IN_MS_MAX` in all. Its first letter is `s` if it
was given over https, with a name that begins with `__Host-`, which browsers take from nobody else; `p` is not believed
over https: it could have been planted on the way. Cookies go to all ports of a host, so the port is part of the name.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode

import msgspec

from holdfast.api.auth.secrets import AuthorityKey, base64, secrets_equal
from holdfast.http.cookies import COOKIE_CHARS_MAX, PLAIN, SAFE

LIFE_SECONDS = 12 * 3_600
LIFETIME_MS = LIFE_SECONDS * 1000
RENEWED_AFTER_MS = 600_000  # A younger one is not renewed: not every response needs one.
SIGNED_IN_MS_MAX = 30 * 86_400_000
AHEAD_MS_MAX = 60_000  # How far the wall clock may have been set back since a cookie was made.


class Cookie(msgspec.Struct, frozen=True):
    """What a cookie says. It proves nothing by itself."""

    principal: str
    signed_in_ms: int  # When the token was shown, as wall time.
    made_ms: int  # When this very cookie was made: later, if it was renewed.
    is_https: bool  # Whether it was made over https.

    @property
    def payload(self) -> str:
        return f"{SAFE if self.is_https else PLAIN} {self.principal} {self.signed_in_ms} {self.made_ms}"

    def is_from_the_future(self, wall_ms: int) -> bool:
        """Tell whether it was made while the wall clock was ahead: it would outlive its end by as much."""
        return max(self.made_ms, self.signed_in_ms) - wall_ms > AHEAD_MS_MAX

    def is_expired(self, wall_ms: int) -> bool:
        return wall_ms - self.made_ms >= LIFETIME_MS or wall_ms - self.signed_in_ms >= SIGNED_IN_MS_MAX

    def needs_renewal(self, wall_ms: int) -> bool:
        return not 0 <= wall_ms - self.made_ms < RENEWED_AFTER_MS

    def renewed(self, wall_ms: int) -> Cookie:
        return msgspec.structs.replace(self, made_ms=wall_ms)


def sign(key: AuthorityKey, cookie: Cookie, token_digest: str) -> str:
    kind = SAFE if cookie.is_https else PLAIN
    payload = f"{cookie.principal} {cookie.signed_in_ms} {cookie.made_ms}"
    return (
        f"{kind}.{base64(payload.encode())}.{key.signature('page', cookie.payload, f'{cookie.payload} {token_digest}')}"
    )


def cookie_in(value: str) -> Cookie | None:
    kind, _, rest = value.partition(".")
    payload, dot, _ = rest.partition(".")
    if kind not in {SAFE, PLAIN} or not dot or len(value) > COOKIE_CHARS_MAX:
        return None
    try:
        principal, signed_in, made = urlsafe_b64decode(payload + "=" * (-len(payload) % 4)).decode("ascii").split(" ")
        return Cookie(principal, int(signed_in), int(made), kind == SAFE)
    except (binascii.Error, ValueError):
        return None


def is_valid(key: AuthorityKey, value: str, cookie: Cookie, token_digest: str) -> bool:
    return secrets_equal(sign(key, cookie, token_digest), value)


def is_ours(key: AuthorityKey, value: str, cookie: Cookie) -> bool:
    return key.was_signed("page", cookie.payload, value.rpartition(".")[2])


def form_token(key: AuthorityKey, cookie: Cookie, token_digest: str) -> str:
    """Return what a form on a page of ours has in it, and one on a page of others cannot: it stays for one sign-in."""
    return base64(key.mac("form", f"{cookie.principal} {cookie.signed_in_ms} {token_digest}")[:24])
