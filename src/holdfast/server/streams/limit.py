"""How many streams are open, and for whom: bounded for each principal."""

from __future__ import annotations

from holdfast.wire.problems import Problem


class OpenStreams:
    """Counts the open streams of each principal."""

    def __init__(self, per_principal_max: int) -> None:
        self._per_principal_max = per_principal_max
        self._by_principal: dict[str, int] = {}

    def count_in(self, principal: str) -> None:
        """Count a stream in, or raise that its principal has too many."""
        count, limit = self._by_principal.get(principal, 0), self._per_principal_max
        if count >= limit:
            raise Problem("quota_exceeded", f"This token has {limit} watches open, the most it may: close some.")
        self._by_principal[principal] = count + 1

    def count_out(self, principal: str) -> None:
        """Count a stream out."""
        left = self._by_principal[principal] - 1
        if left:
            self._by_principal[principal] = left
        else:
            del self._by_principal[principal]
