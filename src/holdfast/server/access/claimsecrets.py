"""The secret of a claim: what a command gets in place of its caller's token, so that it can act on that claim alone.

    holdc_<principal, grant and claim's key, in base64>_<24 bytes that depend on the token, 8 bytes that do not>

All leases of one claim share the idempotency key of the claim, and what it was granted as: the id of its first lease.
So one secret is good for one claim of one name, and for one of several. It says all of that itself: nothing is stored.
It is derived under the authority's key from that and from the digest of the token that the principal has now, so it
dies with that token. Whether the claim lives is looked up by name at each request (`is_own`), so it dies with the claim
too, and stays dead when the key is used again. By its last 8 bytes a secret whose token is gone is told from a guess.
"""

from __future__ import annotations

import binascii
import hashlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.values import KEY_CHARS_MAX, EndedLease
from holdfast.server.access.secrets import same

if TYPE_CHECKING:
    from holdfast.core.state import State
    from holdfast.server.access.secrets import AuthorityKey

CLAIM_PREFIX = "holdc_"
_PRINCIPAL_CHARS_MAX = 64
_OWN_BYTES, _MARK_BYTES = 24, 8
_OWN_CHARS, _MAC_CHARS = 32, 43
_SAID_CHARS_MAX = _PRINCIPAL_CHARS_MAX + 1 + 36 + 1 + KEY_CHARS_MAX
CLAIM_SECRET_CHARS_MAX = len(CLAIM_PREFIX) + -(-_SAID_CHARS_MAX * 4 // 3) + 1 + _MAC_CHARS
_SECRET_AT, _CLAIM = len("Bearer "), CLAIM_PREFIX.encode()


class ClaimId(NamedTuple):
    principal: str
    grant: str
    """The id of the first lease that it was granted: another each time that the key is used."""
    key: str


def grant_of(state: State, principal: str, key: str, lease_id: str) -> str:
    """Return the grant that a lease of a key is of. While it lives or is remembered, so is what its key made."""
    memo = state.memos.get((principal, key))
    return lease_id if memo is None else memo.made


def claim_secret(authority: AuthorityKey, claim: ClaimId, token_digest: str) -> str:
    said = " ".join(claim)
    own = authority.mac("claim", f"{said} {token_digest}")[:_OWN_BYTES]
    return f"{CLAIM_PREFIX}{_base64(said.encode())}_{_base64(own + _mark(authority, claim))}"


def claim_in(secret: str) -> ClaimId | None:
    """Return the claim that something of the shape of a secret speaks of, or None. It proves nothing."""
    said = secret[len(CLAIM_PREFIX) : -_MAC_CHARS - 1]
    try:
        text = urlsafe_b64decode(said + "=" * (-len(said) % 4)).decode("ascii")
    except (binascii.Error, ValueError):
        return None
    # A principal and an id have no blank, a key may have some.
    principal, _, rest = text.partition(" ")
    grant, blank, key = rest.partition(" ")
    return ClaimId(principal, grant, key) if blank else None


def key_within(key: str, authorization: bytes | None) -> str:
    """Return an idempotency key as it is kept: one that came with a claim's secret is that claim's, not its token's.

    Whether the secret is right is looked at before the key is used.
    """
    if authorization is None or not authorization.startswith(_CLAIM, _SECRET_AT):
        return key
    claim = authorization[_SECRET_AT + len(_CLAIM) : -_MAC_CHARS - 1]
    return "claim " + hashlib.blake2b(claim + b" " + key.encode(), digest_size=16).hexdigest()


def was_ours(authority: AuthorityKey, secret: str, claim: ClaimId) -> bool:
    """Tell whether this was a secret of this claim under some token: nobody else can make such."""
    return same(_base64(b"0" * _OWN_BYTES + _mark(authority, claim))[_OWN_CHARS:], secret[-_MAC_CHARS + _OWN_CHARS :])


def is_own(claim: ClaimId, name: str, state: State) -> bool:
    lease = state.lease_of(name)
    return lease is not None and _is_of(claim, state, lease.principal, lease.key, lease.lease_id)


def was_own(claim: ClaimId, name: str, lease_id: object, state: State) -> bool:
    """Tell whether the claim had this lease of this name until it ended, as long as that is remembered."""
    ended = state.remembered.get(lease_id) if isinstance(lease_id, str) else None
    if not isinstance(ended, EndedLease) or not isinstance(lease_id, str):
        return False
    return ended.name == name and _is_of(claim, state, ended.principal, ended.key, lease_id)


def _is_of(claim: ClaimId, state: State, principal: str, key: str | None, lease_id: str) -> bool:
    if key is None or (principal, key) != (claim.principal, claim.key):
        return False
    return grant_of(state, principal, key, lease_id) == claim.grant


def _mark(authority: AuthorityKey, claim: ClaimId) -> bytes:
    return authority.mac("claim's mark", " ".join(claim))[:_MARK_BYTES]


def _base64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
