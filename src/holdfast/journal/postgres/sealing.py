"""The authority's key under a secret that only the nodes have, so that who reads the database cannot speak for one.

Sealed are a tag and the key: the tag is a HMAC of the key, and the key is hidden by a HMAC of the tag. So no chance is
needed, the same key looks the same each time, and a wrong secret or a changed byte is found out.
"""

from __future__ import annotations

import hmac

from holdfast.journal.base import JournalError

KEY_BYTES = 32
PLAIN, SEALED = b"\x00", b"\x01"


def seal(key: bytes, secret: bytes | None) -> bytes:
    """Return the key as it is stored. Without a secret it stands there as it is."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"the authority's key has {len(key)} bytes instead of {KEY_BYTES}")
    if secret is None:
        return PLAIN + key
    tag = _mac(secret, b"tag", key)
    return SEALED + tag + _xor(key, _mac(secret, b"key", tag))


def unseal(stored: bytes, secret: bytes | None) -> bytes:
    """Return the key. Raises `JournalError` for a secret that is missing, not needed, or another."""
    kind, rest = stored[:1], stored[1:]
    if kind == PLAIN and len(rest) == KEY_BYTES:
        if secret is not None:
            raise JournalError(
                "the authority's key in the store is not sealed, and store_secret_file is set",
                "Leave store_secret_file out: a key is sealed when its store is made, and only then",
            )
        return rest
    if kind != SEALED or len(rest) != 2 * KEY_BYTES:
        raise JournalError("the authority's key in the store is not one that this version knows")
    if secret is None:
        raise JournalError("the authority's key in the store is sealed", "Set store_secret_file, as on the other nodes")
    tag, hidden = rest[:KEY_BYTES], rest[KEY_BYTES:]
    key = _xor(hidden, _mac(secret, b"key", tag))
    if not hmac.compare_digest(tag, _mac(secret, b"tag", key)):
        raise JournalError(
            "the authority's key in the store was sealed with another secret",
            "Use the store_secret_file of the other nodes",
        )
    return key


def _mac(secret: bytes, purpose: bytes, data: bytes) -> bytes:
    return hmac.digest(secret, b"holdfast " + purpose + b" " + data, "sha256")


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
