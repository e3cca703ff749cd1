"""How many wrong tokens come from where. More than a few a minute are a guess, or a client that somebody forgot.

Nobody who has a right token is refused for it: a token is looked up first, and only one that is wrong is counted. What
is saved is the work that a wrong one makes: its refusal does not wait for the disk any more, and is told once to retry
later. The table is bounded; so is what is written to the log.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from ipaddress import IPv6Address, IPv6Network
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.server.access.proxies import Address

WINDOW_MS = 60_000
PLACES_MAX = 10_000
LOGGED_MAX = 10
"""Lines in the log in one window, of all places together."""
_PREFIX_BITS = 64
"""One customer of a provider has at least so many addresses of IPv6 to himself."""

log = logging.getLogger("holdfast.server")


class WrongTokens:
    """Counts them, for each place they come from and window."""

    def __init__(self, per_minute_max: int) -> None:
        self._max = per_minute_max
        self._places: OrderedDict[str, list[int]] = OrderedDict()
        """By place: when its window began, and how many came since. The oldest window comes first."""
        self._logged: list[int] = [0, 0]
        """The same for lines in the log."""

    def count(self, client: Address | None, now_ms: int) -> int:
        """Count one more from there. Return 0, or in how many milliseconds it may be tried again if it was too many."""
        place = place_of(client)
        window = self._places.get(place)
        if window is None or now_ms - window[0] >= WINDOW_MS:
            self._places.pop(place, None)
            if len(self._places) >= PLACES_MAX:
                self._places.popitem(last=False)
            window = self._places[place] = [now_ms, 0]
        window[1] += 1
        if window[1] <= self._max:
            return 0
        if window[1] == self._max + 1:
            self._log(place, now_ms)
        return window[0] + WINDOW_MS - now_ms

    def _log(self, place: str, now_ms: int) -> None:
        if now_ms - self._logged[0] >= WINDOW_MS:
            self._logged = [now_ms, 0]
        self._logged[1] += 1
        if self._logged[1] <= LOGGED_MAX:
            log.warning("too many wrong access tokens from %s: more than %d in a minute", place, self._max)


def place_of(client: Address | None) -> str:
    """Return what is counted as one place: an address, or a network of IPv6 that one customer has to himself."""
    if isinstance(client, IPv6Address):
        return str(IPv6Network((int(client), _PREFIX_BITS), strict=False))
    return str(client or "an unknown address")
