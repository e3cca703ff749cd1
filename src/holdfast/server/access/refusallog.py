"""The log of those who were not let in: one line for each 401 and 403, and never more than a few lines a minute.

    refused 403 forbidden: ana (a session's secret) from 10.0.0.7, POST /locks/deploy/revoke, request 01J9…
    412 more refusals in the last minute (token ana 400, elsewhere 12)

Somebody who is refused all the time must neither fill the disk nor hide the others. So in one minute a token, or an
address where no token is known, gets `LINES_PER_SOURCE_MAX` lines, and all together get `LINES_MAX`. What is beyond is
counted and told in one line when the minute is over; so is each 429 after too many wrong tokens. Only who got a line is
kept by name: the memory is bounded by the number of lines.

The query, the headers and the body are never shown: secrets live there. Something in the path that looks like one of
our secrets was put there by mistake, and is not shown either.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from holdfast.server.access.wrongtokens import place_of
from holdfast.server.observability.logs import shown_path

if TYPE_CHECKING:
    from holdfast.server.access.proxies import Address
    from holdfast.server.http.messages import Request
    from holdfast.wire.problems import Problem

LOGGED_STATUSES = frozenset({401, 403})
COUNTED_CODE = "too_many_wrong_tokens"
"""Who gets this had enough lines already: it is counted, and has none of its own."""
WINDOW_MS = 60_000
LINES_PER_SOURCE_MAX = 10
LINES_MAX = 60
SOURCES_TOLD_MAX = 3
"""How many of those with the most refusals the last line of a minute names."""
PATH_CHARS_MAX = 80
"""A character may be six in the log, so this bounds the bytes of a line."""
_METHOD_CHARS_MAX = 16

log = logging.getLogger("holdfast.server")


class RefusalLog:
    """Writes the lines and counts what it leaves out."""

    def __init__(self) -> None:
        self._window_ends_ms: int | None = None
        """None while nobody was refused: a window begins with a refusal."""
        self._lines = 0
        self._lines_by_source: dict[str, int] = {}
        self._left_out: dict[str, int] = {}
        """How many more refusals each of those who got a line had; it has no others."""
        self._left_out_elsewhere = 0

    def note(
        self,
        problem: Problem,
        request: Request,
        principal: str | None,
        client: Address | None,
        now_ms: int,
        *,
        secret: str | None = None,
    ) -> None:
        """Log a refusal, or count it if there were enough lines. `principal` is None for one whom nobody knows.

        `secret` says what was shown in place of the principal's token.
        """
        self.look(now_ms)
        if self._window_ends_ms is None:
            self._window_ends_ms = now_ms + WINDOW_MS
        source = f"token {principal}" if principal is not None else f"address {place_of(client)}"
        lines = self._lines_by_source.get(source, 0)
        if problem.code != COUNTED_CODE and lines < LINES_PER_SOURCE_MAX and self._lines < LINES_MAX:
            self._lines_by_source[source] = lines + 1
            self._lines += 1
            method = request.method[:_METHOD_CHARS_MAX].decode("latin-1")
            path = shown_path(request.path, PATH_CHARS_MAX)
            log.warning(
                "refused %d %s: %s from %s, %s %s, request %s",
                problem.status,
                problem.code,
                (principal or "unknown") + (f" ({secret})" if secret else ""),
                client or "an unknown address",
                method,
                path,
                request.request_id,
                extra={
                    "fields": {
                        "status": problem.status,
                        "code": problem.code,
                        "principal": principal,
                        "shown": secret,
                        "client": None if client is None else str(client),
                        "request_id": request.request_id,
                    }
                },
            )
        elif lines:
            self._left_out[source] = self._left_out.get(source, 0) + 1
        else:
            self._left_out_elsewhere += 1

    @staticmethod
    def is_concerned(problem: Problem) -> bool:
        """Tell whether a refusal is one to log or to count."""
        return problem.status in LOGGED_STATUSES or problem.code == COUNTED_CODE

    def look(self, now_ms: int) -> None:
        """End the minute if it is over, and tell what was left out. Called every second."""
        if self._window_ends_ms is not None and now_ms >= self._window_ends_ms:
            self.end()

    def end(self) -> None:
        """Tell what was left out so far, and begin anew."""
        left_out, elsewhere = self._left_out, self._left_out_elsewhere
        self._window_ends_ms = None
        self._lines, self._lines_by_source = 0, {}
        self._left_out, self._left_out_elsewhere = {}, 0
        count = sum(left_out.values()) + elsewhere
        if not count:
            return
        first = sorted(left_out, key=lambda source: left_out[source], reverse=True)[:SOURCES_TOLD_MAX]
        told = [f"{source} {left_out[source]}" for source in first]
        rest = count - sum(left_out[source] for source in first)
        if rest:
            told.append(f"elsewhere {rest}")
        log.warning("%d more refusals in the last minute (%s)", count, ", ".join(told))
