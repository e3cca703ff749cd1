"""The callers of the black-box tests and their static tokens."""

from __future__ import annotations

ALICE = "alice-0123456789abcdef"
BOB = "bob-0123456789abcdef"
CAROL = "carol-0123456789abcdef"
DAVE = "dave-0123456789abcdef"
OPERATOR = "operator-0123456789abcdef"
READER = "reader-0123456789abcdef"

TOKENS = ",".join(
    [
        f"alice:{ALICE}",
        f"bob:{BOB}",
        f"carol:{CAROL}",
        f"dave:{DAVE}",
        f"operator:{OPERATOR}:read+claim+admin",
        f"reader:{READER}:read",
    ]
)

OCTOSTORE_SETTINGS: dict[str, object] = {
    "max_ttl_seconds": 3600,
    "reentrant": "holder",
    "unknown_fields": "ignore",
    "leases_per_principal_max": 100,
    "max_session_ttl_seconds": 300,
}
"""The settings with which the server keeps OctoStore's rules."""
