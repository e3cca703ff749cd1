"""Tokens and secrets: how they look, how they are checked, and what of them is kept.

- A bearer token is `hold_`, 30 random base62 characters and a 6-character checksum: leaked ones can be found by their
  shape, and a typo is refused without a look-up. Kept as SHA-256: 178 random bits need no salt.
- A session's secret is derived under the authority's key (S5) from its id, its salt and the digest of the token that
  its principal has now. It can be said again to a retry, is stored nowhere, and dies with the token. Its last 8 bytes
  are derived from the id alone: so a secret whose session or token is over is told from a guess.
- A token made with an idempotency key is derived from its maker, the key and a salt, so that a retry gets it again.
- A holder is shown as a pseudonym under the same key: the same for all its claims, and nobody can guess whose.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING
from uuid import UUID
from zlib import crc32

from holdfast.engine.ids import new_secret
from holdfast.privatefiles import read_ours, replace, sync_folder

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.core.values import Session

TOKEN_PREFIX = "hold_"  # noqa: S105 - a shape, not a token
SESSION_PREFIX = "holds_"
SECRET_CHARS_MAX = 82
"""A session's secret: its prefix, its id, the mark between them, and 32 bytes in base64. Tokens are shorter."""
KEY_FILE = "authority.key"
KEY_BYTES = 32

_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_RANDOM_CHARS = 30
_CHECK_CHARS = 6
_STANDING_IN = ("yourtoken", "yoursecret", "changeme", "replaceme", "replacewith", "placeholder", "exampletoken")
_UNFILLED = re.compile(r"\$\w+|\$\{.*\}|\$\(.*\)|<.*>|\{.*\}|%\w+%|.*(?:…|\.\.\.).*")
_DIFFERENT_CHARS_MIN = 5
_OWN_BYTES, _MARK_BYTES = 24, 8
"""Of a session's secret. Both are whole groups of base64, so that the characters of the two do not mix."""


def new_token() -> str:
    return token_from(new_secret(KEY_BYTES))


def token_from(seed: bytes) -> str:
    body = _base62(int.from_bytes(seed), _RANDOM_CHARS)
    return TOKEN_PREFIX + body + _checksum(body)


def is_mistyped(token: str) -> bool:
    """Tell whether a token has our shape and a wrong checksum, or not even the length."""
    if not token.startswith(TOKEN_PREFIX):
        return False
    body = token[len(TOKEN_PREFIX) :]
    if len(body) != _RANDOM_CHARS + _CHECK_CHARS:
        return True
    return _checksum(body[:_RANDOM_CHARS]) != body[_RANDOM_CHARS:]


def is_placeholder(token: str) -> bool:
    """Tell whether a token only stands where one belongs: as in our own documents, or a variable that nobody filled in.

    Everybody can read those, so a server that took one would be open to everybody.
    """
    letters = re.sub(r"[^a-z]", "", token.lower())
    return (
        _UNFILLED.fullmatch(token) is not None
        or any(words in letters for words in _STANDING_IN)
        or len(set(token)) < _DIFFERENT_CHARS_MIN
    )


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def same(one: str, other: str) -> bool:
    """Tell whether two secrets are equal, in a time that says nothing of where they differ."""
    return hmac.compare_digest(one.encode(), other.encode())


def _secret(session_id: str, mac: bytes) -> str:
    return f"{SESSION_PREFIX}{session_id.replace('-', '')}_{urlsafe_b64encode(mac).rstrip(b'=').decode()}"


class AuthorityKey:
    def __init__(self, key: bytes) -> None:
        self._key = key
        self._holders: dict[str, str] = {}

    @classmethod
    def load(cls, directory: Path) -> AuthorityKey:
        """Read the key of a data directory, or make it at the first start. Only its owner may read it.

        Called with the writer's seat taken: nobody else makes one at the same time.
        """
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

    def session_secret(self, session: Session, token_digest: str) -> str:
        """Return the secret that a session has under a token (S5)."""
        session_id = session.session_id
        own = self.mac("run", f"{session_id} {session.salt} {token_digest}")[:_OWN_BYTES]
        return _secret(session_id, own + self._mark(session_id))

    def id_in(self, secret: str) -> str | None:
        """Return the session that something of the shape of a secret speaks of, or None."""
        digits = secret[len(SESSION_PREFIX) :].partition("_")[0]
        try:
            return str(UUID(hex=digits))
        except ValueError:
            return None

    def is_ours(self, secret: str, session_id: str) -> bool:
        """Tell whether this was a secret of this session once: nobody else can make such."""
        mark = urlsafe_b64encode(self._mark(session_id)).rstrip(b"=").decode()
        return len(secret) == SECRET_CHARS_MAX and same(mark, secret[-len(mark) :])

    def token_for(self, principal: str, key: str, salt: str) -> str:
        """Return the token that an idempotency key makes: the same one for a retry."""
        return token_from(self.mac("salted token", f"{salt} {principal} {key}"))

    def holder(self, kind: str, who: str) -> str:
        """Return the pseudonym of a holder: a UUID (version 8) that says nothing."""
        place = f"{kind} {who}"
        known = self._holders.get(place)
        if known is None:
            digits = self.mac("holder", place).hex()[:32]
            variant = "89ab"[int(digits[16], 16) & 3]
            known = f"{digits[:8]}-{digits[8:12]}-8{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"
            if len(self._holders) >= 10_000:  # noqa: PLR2004 - a cache, emptied now and then
                self._holders.clear()
            self._holders[place] = known
        return known

    def _mark(self, session_id: str) -> bytes:
        return self.mac("mark", session_id)[:_MARK_BYTES]

    def mac(self, purpose: str, text: str) -> bytes:
        """Return 32 bytes that only this authority can make, for one purpose."""
        return hmac.digest(self._key, f"{purpose}:{text}".encode(), "sha256")


def _base62(number: int, length: int) -> str:
    chars: list[str] = []
    for _ in range(length):
        number, digit = divmod(number, 62)
        chars.append(_BASE62[digit])
    return "".join(chars)


def _checksum(body: str) -> str:
    return _base62(crc32(body.encode()), _CHECK_CHARS)
