"""The secret of a claim: what a command gets in place of its caller's token, so that it can act on that claim alone.

    holdc_<principal and claim's key, in base64>_<24 bytes that depend on the token, 8 bytes that do not>

All leases of one claim share the idempotency key of the claim. So a secret that speaks of (principal, key) is good for
one claim of one name, and for one of several. It says both itself: nothing is stored. It is derived under the
authority's key from them and from the digest of the token that the principal has now, so it dies with that token.
Whether the claim lives is looked up by name at each request (`is_own`), so it dies with the claim too. By its last 8
bytes a secret whose token is gone is told from a guess.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import TYPE_CHECKING, NamedTuple

from holdfast.core.values import KEY_CHARS_MAX, EndedLease
from holdfast.server.access.secrets import same

if TYPE_CHECKING:
    from holdfast.core.state import State
    from holdfast.core.values import Lease
    from holdfast.server.access.secrets import AuthorityKey

CLAIM_PREFIX = "holdc_"
_PRINCIPAL_CHARS_MAX = 64
_OWN_BYTES, _MARK_BYTES = 24, 8
_OWN_CHARS, _MAC_CHARS = 32, 43
CLAIM_SECRET_CHARS_MAX = len(CLAIM_PREFIX) + -(-(_PRINCIPAL_CHARS_MAX + 1 + KEY_CHARS_MAX) * 4 // 3) + 1 + _MAC_CHARS


class ClaimId(NamedTuple):
    """Which claim a secret speaks of."""

    principal: str
    key: str


def claim_secret(authority: AuthorityKey, claim: ClaimId, token_digest: str) -> str:
    """Return the secret that a claim has under a token."""
    said = _base64(f"{claim.principal} {claim.key}".encode())
    own = authority.mac("claim", f"{claim.principal} {claim.key} {token_digest}")[:_OWN_BYTES]
    return f"{CLAIM_PREFIX}{said}_{_base64(own + _mark(authority, claim))}"


def claim_in(secret: str) -> ClaimId | None:
    """Return the claim that something of the shape of a secret speaks of, or None. It proves nothing."""
    said = secret[len(CLAIM_PREFIX) : -_MAC_CHARS - 1]
    try:
        text = urlsafe_b64decode(said + "=" * (-len(said) % 4)).decode("ascii")
    except (binascii.Error, ValueError):
        return None
    # A principal has no blank, a key may have some.
    principal, blank, key = text.partition(" ")
    return ClaimId(principal, key) if blank else None


def was_ours(authority: AuthorityKey, secret: str, claim: ClaimId) -> bool:
    """Tell whether this was a secret of this claim under some token: nobody else can make such."""
    return same(_base64(b"0" * _OWN_BYTES + _mark(authority, claim))[_OWN_CHARS:], secret[-_MAC_CHARS + _OWN_CHARS :])


def is_own(claim: ClaimId, lease: Lease | None) -> bool:
    """Tell whether a live lease is one of this claim."""
    return lease is not None and lease.key == claim.key and lease.principal == claim.principal


def was_own(claim: ClaimId, lease_id: object, state: State) -> bool:
    """Tell whether a lease that has ended was one of this claim, as long as that is remembered."""
    ended = state.remembered.get(lease_id) if isinstance(lease_id, str) else None
    return isinstance(ended, EndedLease) and ended.key == claim.key and ended.principal == claim.principal


def _mark(authority: AuthorityKey, claim: ClaimId) -> bytes:
    return authority.mac("claim's mark", f"{claim.principal} {claim.key}")[:_MARK_BYTES]


def _base64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
