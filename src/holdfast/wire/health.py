"""What a node says of itself, in words that commands look at too."""

from __future__ import annotations

FOLLOWS = "this node follows, and passes requests on to the leader"
"""It is well and does not lead. How large the store is, it does not know."""
LEADS = "this node leads"
"""How it begins, of one that has the seat; also if it cannot serve now."""
SHARED = "postgresql"
"""The kind of a store that nodes share."""
