"""When each token was last used, right to the minute, without a write for each request.

Once a minute, and at an orderly stop, one record `TokensUsed` has the tokens whose minute has changed. So a server that
nobody asks writes nothing, and one that is killed forgets at most the last minute. A session's secret counts for the
token that opened the session.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.answers import UsesNoted
from holdfast.core.commands import NoteUses
from holdfast.core.state import State
from holdfast.core.values import Moment
from holdfast.engine.engine import Engine
from holdfast.server.access.auth import StaticTokens

PERIOD_MS = 60_000
MINUTE_MS = 60_000


class TokenUses:
    def __init__(self, engine: Engine, static: StaticTokens) -> None:
        self.seen: dict[str, int] = {}
        """By the token's name: the wall time of its last use. `Api.admit` writes it."""
        self._engine = engine
        self._static = frozenset(caller.principal for caller in static.callers.values())
        self._next_ms = engine.clock.monotonic_ms() + PERIOD_MS
        self._settings_may_have_changed = True

    def last_of(self, name: str, state: State) -> int | None:
        seen = self.seen.get(name)
        if seen is not None and self._is_of_current_token(name, seen, state):
            return _minute_of(seen)
        return state.last_used.get(name)

    def look(self, now_ms: int) -> None:
        if now_ms >= self._next_ms:
            self._next_ms = now_ms + PERIOD_MS
            self.write()

    def write(self) -> None:
        uses = tuple(self._uses(self._engine.state))
        taken = self.seen.copy()
        self.seen.clear()

        def noted(outcome: object, _: Moment) -> None:
            if not isinstance(outcome, UsesNoted):
                # Nothing was written. It is tried again in a minute, unless the token is used meanwhile.
                self.seen.update({name: wall_ms for name, wall_ms in taken.items() if name not in self.seen})

        if uses:
            self._engine.submit(NoteUses(uses=uses), noted)

    def _uses(self, state: State) -> Iterator[tuple[str, int]]:
        for name, seen in self.seen.items():
            if self._is_of_current_token(name, seen, state):
                yield name, _minute_of(seen)
        if self._settings_may_have_changed:
            # Made tokens take what is known of them along. Static ones go with a restart, and no record tells of it.
            self._settings_may_have_changed = False
            for name in state.last_used:
                if name not in self._static and name not in state.tokens:
                    yield name, 0

    def _is_of_current_token(self, name: str, seen: int, state: State) -> bool:
        if name in self._static:
            return True
        token = state.tokens.get(name)
        return token is not None and seen >= token.made_wall_ms


def _minute_of(wall_ms: int) -> int:
    return wall_ms - wall_ms % MINUTE_MS
