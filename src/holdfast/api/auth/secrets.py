"""Tokens and secrets: how they look, how they are checked, and what of them is kept.

- A bearer token is `hold_`, 30 random base62 characters and a 6-character checksum: leaked ones can be found by their
  shape, and a typo is refused without a look-up. Kept as SHA-256: 178 random bits need no salt.
- A session's secret is derived under the authority's key (S5) from its id, its salt and the digest of its principal's
  current token. It can be returned to a retry again, is stored nowhere, and dies with the token.
- The secret of a claim is `holdc_`, the principal, grant and key of the claim in base64, and a signature. All leases of
  one claim share the key and the grant (the id of the first), so it is good for several names. It dies with its token,
  and with the claim, which `claim_holds` looks up by name at each request, also if the key is used again.
- A token made with an idempotency key is derived from its maker, the key and a salt, so that a retry gets it again.
- A holder is shown as a pseudonym under the same key: the same for all its claims.

The sign-in cookie of the page is a signed statement that the browser sends back:

    p.<principal, signed in, made; in base64>.<signature>

Nothing is stored. The signature depends on the digest of the principal's current token, so the cookie ends with that.
It is valid for `LIFETIME_MS`, is renewed while it is used, for `SIGNED_IN_MS_MAX` in all. Its first letter is `s` if it
was given over https, with a name that begins with `__Host-`, which browsers take from nobody else; `p` is not believed
over https: it could have been planted on the way. Cookies go to all ports of a host, so the port is part of the name.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path
from typing import NamedTuple
from uuid import UUID
from zlib import crc32

import msgspec

from holdfast.core.state import State
from holdfast.core.values import KEY_CHARS_MAX, EndedLease, Session
from holdfast.engine.ids import new_secret
from holdfast.http.messages import COOKIE_CHARS_MAX, PLAIN, SAFE
from holdfast.privatefiles import read_ours, replace, sync_folder

TOKEN_PREFIX = "hold_"  # noqa: S105 - a shape, not a token
SESSION_PREFIX = "holds_"
SECRET_CHARS_MAX = 82  # Prefix, id, separator, and 32 bytes in base64. Tokens are shorter.
KEY_FILE = "authority.key"
KEY_BYTES = 32

_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_RANDOM_CHARS = 30
_CHECK_CHARS = 6
_PLACEHOLDER_WORDS = ("yourtoken", "yoursecret", "changeme", "replaceme", "replacewith", "placeholder", "exampletoken")
_UNFILLED = re.compile(r"\$\w+|\$\{.*\}|\$\(.*\)|<.*>|\{.*\}|%\w+%|.*(?:…|\.\.\.).*")
_DIFFERENT_CHARS_MIN = 5
_TAG_PURPOSES = {
    "run": "mark",
    "claim": "claim's mark",
    "page": "page's mark",
}  # What a signature's end is derived for.
_MAC_BYTES, _TAG_BYTES = 24, 8
_MAC_CHARS, SIGNATURE_CHARS = 32, 43  # Whole groups of base64 first, so that the characters of the two do not mix.
CLAIM_PREFIX = "holdc_"
_PAYLOAD_CHARS_MAX = 64 + 1 + 36 + 1 + KEY_CHARS_MAX  # Principal, grant and key, with a blank between them.
CLAIM_SECRET_CHARS_MAX = len(CLAIM_PREFIX) + -(-_PAYLOAD_CHARS_MAX * 4 // 3) + 1 + SIGNATURE_CHARS
_SECRET_AT, _CLAIM = len("Bearer "), CLAIM_PREFIX.encode()


def new_token() -> str:
    return token_from(new_secret(KEY_BYTES))


def token_from(seed: bytes) -> str:
    body = _base62(int.from_bytes(seed), _RANDOM_CHARS)
    return TOKEN_PREFIX + body + _checksum(body)


def is_mistyped(token: str) -> bool:
    if not token.startswith(TOKEN_PREFIX):
        return False
    body = token[len(TOKEN_PREFIX) :]
    if len(body) != _RANDOM_CHARS + _CHECK_CHARS:
        return True
    return _checksum(body[:_RANDOM_CHARS]) != body[_RANDOM_CHARS:]


def is_placeholder(token: str) -> bool:
    """Tell whether a token is one of our documents, or a variable that nobody filled in: everybody can guess it."""
    letters = re.sub(r"[^a-z]", "", token.lower())
    return (
        _UNFILLED.fullmatch(token) is not None
        or any(words in letters for words in _PLACEHOLDER_WORDS)
        or len(set(token)) < _DIFFERENT_CHARS_MIN
    )


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def secrets_equal(one: str, other: str) -> bool:
    """Tell whether two secrets are equal, in a time that says nothing of where they differ."""
    return hmac.compare_digest(one.encode(), other.encode())


def base64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


class AuthorityKey:
    def __init__(self, key: bytes) -> None:
        self._key = key
        self._holders: dict[str, str] = {}

    @classmethod
    def load(cls, directory: Path) -> AuthorityKey:
        """Read the key of a data directory, or make it. The journal's lock is held, so nobody else makes one."""
        path = directory / KEY_FILE
        try:
            key = read_ours(path, KEY_BYTES)
        except FileNotFoundError:
            key = new_secret(KEY_BYTES)
            replace(path, key)
            sync_folder(directory)
        if len(key) != KEY_BYTES:
            raise ValueError(f"{path} is not a key of {KEY_BYTES} bytes: restore it from a backup")
        return cls(key)

    def for_backup(self) -> bytes:
        """Return the key itself: a backup has it, so that secrets and pseudonyms stay what they are."""
        return self._key

    def signature(self, kind: str, payload: str, signed: str) -> str:
        """Sign `signed`. The signature's end depends on `payload` alone: that tells an ended secret from a guess."""
        return base64(self.mac(kind, signed)[:_MAC_BYTES] + self.mac(_TAG_PURPOSES[kind], payload)[:_TAG_BYTES])

    def was_signed(self, kind: str, payload: str, signature: str) -> bool:
        """Tell whether we once made this signature, for whichever token: nobody else can make such."""
        tag = base64(self.mac(_TAG_PURPOSES[kind], payload)[:_TAG_BYTES])
        return len(signature) == SIGNATURE_CHARS and secrets_equal(tag, signature[_MAC_CHARS:])

    def session_secret(self, session: Session, token_digest: str) -> str:
        session_id = session.session_id
        signature = self.signature("run", session_id, f"{session_id} {session.salt} {token_digest}")
        return f"{SESSION_PREFIX}{session_id.replace('-', '')}_{signature}"

    def session_id_in(self, secret: str) -> str | None:
        digits = secret[len(SESSION_PREFIX) :].partition("_")[0]
        try:
            return str(UUID(hex=digits))
        except ValueError:
            return None

    def is_ours(self, secret: str, session_id: str) -> bool:
        return len(secret) == SECRET_CHARS_MAX and self.was_signed("run", session_id, secret[-SIGNATURE_CHARS:])

    def token_for(self, principal: str, key: str, salt: str) -> str:
        return token_from(self.mac("salted token", f"{salt} {principal} {key}"))

    def holder(self, kind: str, who: str) -> str:
        """Return the pseudonym of a holder: a UUID (version 8) that says nothing."""
        identity = f"{kind} {who}"
        known = self._holders.get(identity)
        if known is None:
            digits = self.mac("holder", identity).hex()[:32]
            variant = "89ab"[int(digits[16], 16) & 3]
            known = f"{digits[:8]}-{digits[8:12]}-8{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"
            if len(self._holders) >= 10_000:  # noqa: PLR2004 - a cache, emptied now and then
                self._holders.clear()
            self._holders[identity] = known
        return known

    def mac(self, purpose: str, text: str) -> bytes:
        return hmac.digest(self._key, f"{purpose}:{text}".encode(), "sha256")


def _base62(number: int, length: int) -> str:
    chars: list[str] = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        chars.append(_BASE62[digit])
    return "".join(chars)


def _checksum(body: str) -> str:
    return _base62(crc32(body.encode()), _CHECK_CHARS)


# The secret of a claim: what a command gets in place of its caller's token, so that it can act on that claim alone.


class ClaimId(NamedTuple):
    principal: str
    grant: str  # The id of the first lease that it was granted: another each time that the key is used.
    key: str


def grant_of(state: State, principal: str, key: str, lease_id: str) -> str:
    """Return the grant that a lease of a key is of. While it lives or is remembered, so is what its key made."""
    memo = state.memos.get((principal, key))
    return lease_id if memo is None else memo.made


def claim_secret(authority: AuthorityKey, claim: ClaimId, token_digest: str) -> str:
    payload = " ".join(claim)
    signature = authority.signature("claim", payload, f"{payload} {token_digest}")
    return f"{CLAIM_PREFIX}{base64(payload.encode())}_{signature}"


def claim_in(secret: str) -> ClaimId | None:
    """Return the claim that something of the shape of a secret speaks of, or None. It proves nothing."""
    payload = secret[len(CLAIM_PREFIX) : -SIGNATURE_CHARS - 1]
    try:
        text = urlsafe_b64decode(payload + "=" * (-len(payload) % 4)).decode("ascii")
    except (binascii.Error, ValueError):
        return None
    principal, _, rest = text.partition(" ")  # A principal and an id have no blank, a key may have some.
    grant, blank, key = rest.partition(" ")
    return ClaimId(principal, grant, key) if blank else None


def key_in_scope(key: str, authorization: bytes | None) -> str:
    """Return an idempotency key as it is kept: one that came with a claim's secret is that claim's, not its token's."""
    if authorization is None or not authorization.startswith(_CLAIM, _SECRET_AT):
        return key
    claim = authorization[_SECRET_AT + len(_CLAIM) : -SIGNATURE_CHARS - 1]
    return "claim " + hashlib.blake2b(claim + b" " + key.encode(), digest_size=16).hexdigest()


def is_claim_secret_of_ours(authority: AuthorityKey, secret: str, claim: ClaimId) -> bool:
    return authority.was_signed("claim", " ".join(claim), secret[-SIGNATURE_CHARS:])


def claim_holds(claim: ClaimId, name: str, state: State) -> bool:
    lease = state.lease_of(name)
    return lease is not None and _is_of(claim, state, lease.principal, lease.key, lease.lease_id)


def claim_held(claim: ClaimId, name: str, lease_id: object, state: State) -> bool:
    """Tell whether the claim had this lease of this name until it ended, as long as that is remembered."""
    ended = state.remembered.get(lease_id) if isinstance(lease_id, str) else None
    if not isinstance(ended, EndedLease) or not isinstance(lease_id, str):
        return False
    return ended.name == name and _is_of(claim, state, ended.principal, ended.key, lease_id)


def _is_of(claim: ClaimId, state: State, principal: str, key: str | None, lease_id: str) -> bool:
    if key is None or (principal, key) != (claim.principal, claim.key):
        return False
    return grant_of(state, principal, key, lease_id) == claim.grant


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
