"""How many streams are open, and for whom."""

from __future__ import annotations

from holdfast.core.shares import exceeded
from holdfast.wire.problems import Problem


class OpenStreams:
    """Counts the open streams of each principal, and of each session or claim: that one may have half as many."""

    def __init__(self, per_principal_max: int, kind: str = "watches") -> None:
        """`kind` is what the streams are called, in the name of the setting too."""
        self._per_principal_max = per_principal_max
        self._kind = kind
        self._open: dict[tuple[str, str | None], int] = {}
        self.count = 0
        """How many are open, of all principals."""

    def count_in(self, principal: str, share: str | None) -> None:
        """Count a stream in, or raise that its principal, or its session or claim, has too many."""
        in_share = None if share is None else self._open.get((principal, share), 0)
        limit = exceeded(self._per_principal_max, 1, self._open.get((principal, None), 0), in_share)
        if limit is not None:
            full, of_all = f"may have {limit} {self._kind} open", limit == self._per_principal_max
            whose = (
                f"This access token {full}" if of_all else f"This claim or session {full}, half of what its token may"
            )
            raise Problem("quota_exceeded", f"{whose} ({self._kind}_per_principal_max): close some.")
        self.count += 1
        for who in {(principal, None), (principal, share)}:
            self._open[who] = self._open.get(who, 0) + 1

    def count_out(self, principal: str, share: str | None) -> None:
        """Count a stream out."""
        self.count -= 1
        for who in {(principal, None), (principal, share)}:
            self._open[who] -= 1
            if not self._open[who]:
                del self._open[who]
