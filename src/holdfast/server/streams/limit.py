"""How many streams are open, and for whom: bounded for each principal, and for a session half of that."""

from __future__ import annotations

from holdfast.core.shares import exceeded, may
from holdfast.wire.problems import Problem


class OpenStreams:
    """Counts the open streams of each principal, and of each session whose secret opened some."""

    def __init__(self, per_principal_max: int) -> None:
        self._per_principal_max = per_principal_max
        self._open: dict[tuple[str, str | None], int] = {}

    def count_in(self, principal: str, session: str | None) -> None:
        """Count a stream in, or raise that its principal or its session has too many."""
        in_session = None if session is None else self._open.get((principal, session), 0)
        limit = exceeded(self._per_principal_max, 1, self._open.get((principal, None), 0), in_session)
        if limit is not None:
            whose = may(f"have {limit} watches open", of_session=limit != self._per_principal_max)
            raise Problem("quota_exceeded", f"{whose} (watches_per_principal_max): close some.")
        for who in {(principal, None), (principal, session)}:
            self._open[who] = self._open.get(who, 0) + 1

    def count_out(self, principal: str, session: str | None) -> None:
        """Count a stream out."""
        for who in {(principal, None), (principal, session)}:
            self._open[who] -= 1
            if not self._open[who]:
                del self._open[who]
