"""What a poll of the leadership means: whom to follow, when to take over. Nothing here waits or reads a clock (N-13).

A leader writes at least twice a second, and every write under its leadership increments its heartbeat. A follower polls
four times a second. If it sees the same epoch and the same heartbeat for `takeover_ms`, it takes the leader for dead.

    polls      ●────●────●────✗────●────●────●         ✗ the poll failed
    heartbeat  7    7    8         8    8    8
    silent     0   250   0         0   250  500 …      time on both sides of ✗ is not counted

**No clock is compared with another machine's.** Silence is counted on our own monotonic clock, from poll to poll. At
most 500 ms count for each, so a follower that was stopped, or whose machine slept, deposes no leader when it wakes. A
failed poll shows no silence.

**Safety does not depend on this:** the store's fence keeps a deposed leader from writing and from confirming its
leadership.

A node takes over immediately if nobody leads, if this process has the leadership in a term that is over, or if this
process has just started and the leadership has its node's name: the process that acquired it is dead.
"""

from __future__ import annotations

import msgspec

from holdfast.engine.build import Leadership

COUNTED_MS_MAX = 500  # Of the time between two polls.
JITTER_MS = 50  # The longest random wait before a campaign: two nodes should not write at once.
BACKOFF_MS = 10_000  # How long an isolated leader does not campaign after it gave up the leadership (N-37).
ISOLATED_MS = 5_000
PEER_SEEN_MS_MAX = 10_000  # Another node that reported within this time may live.
LINK_MS = 2_000  # How long a node that has reported has to open its link.


class Observation(msgspec.Struct, frozen=True):
    leader: Leadership | None  # The node to follow. None: there is none, or we lead.
    why_take: str | None = None  # Why to take over now; None: not now.
    is_namesake: bool = False  # Whether another live process has our node name.


class Watcher:
    def __init__(self, node: str, process: str, *, takeover_ms: int) -> None:
        self._node = node
        self._process = process
        self._takeover_ms = takeover_ms
        self._last: Leadership | None = None  # With the highest epoch since the store last lost one.
        self._polled_ms: int | None = None  # Of the last poll; None if it failed.
        self._silent_ms = 0
        self._not_before_ms = 0

    def back_off_until(self, until_ms: int) -> None:
        self._not_before_ms = until_ms

    def note_failed_poll(self) -> None:
        """Called when a poll failed: the time until the next one does not count."""
        self._polled_ms = None

    def observe(self, leadership: Leadership, now_ms: int, *, is_ours_over: bool) -> Observation:
        """Evaluate a poll. `is_ours_over`: no term of this process runs, or is still being ended."""
        last, polled_ms = self._last, self._polled_ms
        if last is not None and _is_stale(leadership, last):
            # An old copy of the store. What it shows is over.
            self._polled_ms = None
            return Observation(self._leader(last))
        self._last, self._polled_ms = leadership, now_ms
        if last is None or (leadership.epoch, leadership.term_id, leadership.heartbeat) != (
            last.epoch,
            last.term_id,
            last.heartbeat,
        ):
            self._silent_ms = 0
        elif polled_ms is not None:
            self._silent_ms += min(now_ms - polled_ms, COUNTED_MS_MAX)
        why = self._why_take(leadership, is_first=last is None, is_ours_over=is_ours_over)
        if now_ms < self._not_before_ms:
            why = None
        # A dead process is not a duplicate: a restored store has the leadership of our own process before this one.
        is_alive = (
            last is not None
            and (leadership.epoch, leadership.term_id) == (last.epoch, last.term_id)
            and leadership.heartbeat > last.heartbeat
        )
        is_other = leadership.is_held and leadership.process != self._process
        is_namesake = is_alive and is_other and leadership.node == self._node and why is None
        return Observation(self._leader(leadership), why, is_namesake)

    def _leader(self, leadership: Leadership) -> Leadership | None:
        return leadership if leadership.is_held and leadership.process != self._process else None

    def _why_take(self, leadership: Leadership, *, is_first: bool, is_ours_over: bool) -> str | None:
        if not leadership.is_held:
            return "nobody has the seat"
        if leadership.process == self._process:
            return "the seat is still ours, of a tenure that is over" if is_ours_over else None
        if is_first and leadership.node == self._node:
            return "the seat has the name of this node, and was another process's"
        if self._silent_ms >= self._takeover_ms:
            return f"node {leadership.node} was silent for {self._silent_ms / 1000:.1f} s"
        return None


def _is_stale(leadership: Leadership, last: Leadership) -> bool:
    """Tell whether it is from an old copy of the store (N-2): not if the store lost an epoch, and may go on."""
    if leadership.wants_token_gap or leadership.is_rolled_back:
        return False
    return (leadership.token_gaps, leadership.epoch) < (last.token_gaps, last.epoch)


class IsolationDetector:
    """Finds out that a leader reaches the store and nobody else (N-37), so that another can serve.

    That is: other nodes report to the store, none has a link to us, and no request came for 5 s. Only reports since
    then count: a node that has just died reported, too.
    """

    def __init__(self) -> None:
        self._since_ms: int | None = None
        self._first_peer_ms: int | None = None  # First peer report seen since `_since_ms`.
        self._requests = 0

    def is_isolated(self, now_ms: int, *, links: int, requests: int, peer_seen_ms: int | None) -> bool:
        """`requests` ever came. `peer_seen_ms` is when another node last reported."""
        if links or requests != self._requests or peer_seen_ms is None or now_ms - peer_seen_ms >= PEER_SEEN_MS_MAX:
            self._requests = requests
            self._since_ms = self._first_peer_ms = None
            return False
        if self._since_ms is None:
            self._since_ms = now_ms
        if peer_seen_ms <= self._since_ms:
            return False
        if self._first_peer_ms is None:
            self._first_peer_ms = peer_seen_ms
        return now_ms - self._since_ms >= ISOLATED_MS and now_ms - self._first_peer_ms >= LINK_MS
