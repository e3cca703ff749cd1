"""The log of refused callers, and how many wrong tokens an address may send.

    refused 403 forbidden: ana (a session's secret) from 10.0.0.7, POST /locks/deploy/revoke, request 01J9…
    412 more refusals in the last minute (token ana 400, elsewhere 12)

In one minute a source, which is a token, or an address where no token is known, gets `LINES_PER_SOURCE_MAX` lines for
its 401s and 403s, and all together `LINES_MAX`. Further ones, and each 429 after too many wrong tokens, are counted in
one line at the end of the minute, by name only for sources that got a line, so memory is bounded. The query, the
headers and the body are never logged.

Many wrong tokens from one address get a 429 that does not wait for the disk. A right token is never refused for them.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from ipaddress import IPv6Address, IPv6Network

from holdfast.http.messages import Request
from holdfast.http.proxies import Address
from holdfast.observability.logs import shown_path
from holdfast.wire.problems import Problem

NETWORKS_MAX = 10_000
LOGGED_MAX = 10  # Lines about wrong tokens in the log in one minute, for all addresses together.
_PREFIX_BITS = 64  # One customer of a provider has at least so large an IPv6 network.
LOGGED_STATUSES = frozenset({401, 403})
COUNTED_CODE = "too_many_wrong_tokens"  # Only counted: whoever gets it had enough lines already.
WINDOW_MS = 60_000
LINES_PER_SOURCE_MAX = 10
LINES_MAX = 60
SOURCES_REPORTED_MAX = 3  # How many of those with the most refusals the last line of a minute names.
PATH_CHARS_MAX = 80  # A character may be six in the log, so this bounds the bytes of a line.
_METHOD_CHARS_MAX = 16

log = logging.getLogger("holdfast.server")


class RefusalLog:
    def __init__(self) -> None:
        self._window_ends_ms: int | None = None  # A window begins with a refusal.
        self._lines = 0
        self._lines_by_source: dict[str, int] = {}
        self._suppressed: dict[str, int] = {}  # Further refusals of the sources that got a line.
        self._suppressed_elsewhere = 0

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
        """Log a refusal, or count it if there were enough lines. `secret` says what was shown in place of a token."""
        self.tick(now_ms)
        if self._window_ends_ms is None:
            self._window_ends_ms = now_ms + WINDOW_MS
        source = f"token {principal}" if principal is not None else f"address {network_of(client)}"
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
            self._suppressed[source] = self._suppressed.get(source, 0) + 1
        else:
            self._suppressed_elsewhere += 1

    @staticmethod
    def is_logged(problem: Problem) -> bool:
        return problem.status in LOGGED_STATUSES or problem.code == COUNTED_CODE

    def tick(self, now_ms: int) -> None:
        if self._window_ends_ms is not None and now_ms >= self._window_ends_ms:
            self.end()

    def end(self) -> None:
        left_out, elsewhere = self._suppressed, self._suppressed_elsewhere
        self._window_ends_ms = None
        self._lines, self._lines_by_source = 0, {}
        self._suppressed, self._suppressed_elsewhere = {}, 0
        count = sum(left_out.values()) + elsewhere
        if not count:
            return
        first = sorted(left_out, key=lambda source: left_out[source], reverse=True)[:SOURCES_REPORTED_MAX]
        parts = [f"{source} {left_out[source]}" for source in first]
        rest = count - sum(left_out[source] for source in first)
        if rest:
            parts.append(f"elsewhere {rest}")
        log.warning("%d more refusals in the last minute (%s)", count, ", ".join(parts))


class WrongTokens:
    def __init__(self, per_minute_max: int) -> None:
        self._max = per_minute_max
        self._windows: OrderedDict[str, list[int]] = OrderedDict()  # When its window began, and a count; oldest first.
        self._logged: list[int] = [0, 0]  # The same for log lines.

    def count(self, client: Address | None, now_ms: int) -> int:
        """Count one more from there. Return 0, or in how many milliseconds it may be tried again if it was too many."""
        network = network_of(client)
        window = self._windows.get(network)
        if window is None or now_ms - window[0] >= WINDOW_MS:
            self._windows.pop(network, None)
            if len(self._windows) >= NETWORKS_MAX:
                self._windows.popitem(last=False)
            window = self._windows[network] = [now_ms, 0]
        window[1] += 1
        if window[1] <= self._max:
            return 0
        if window[1] == self._max + 1:
            self._log(network, now_ms)
        return window[0] + WINDOW_MS - now_ms

    def _log(self, network: str, now_ms: int) -> None:
        if now_ms - self._logged[0] >= WINDOW_MS:
            self._logged = [now_ms, 0]
        self._logged[1] += 1
        if self._logged[1] <= LOGGED_MAX:
            log.warning("too many wrong access tokens from %s: more than %d in a minute", network, self._max)


def network_of(client: Address | None) -> str:
    """Return what is counted as one client: an IPv4 address, or the IPv6 network of one customer."""
    if isinstance(client, IPv6Address):
        return str(IPv6Network((int(client), _PREFIX_BITS), strict=False))
    return str(client or "an unknown address")
