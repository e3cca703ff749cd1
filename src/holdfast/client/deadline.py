"""How long we may believe that something is ours. Reads no clock: times are arguments.

A deadline never ends after the server's own. It counts from before the request was sent, by the larger elapsed time of
both clocks, less clock drift and rounding (T4). Once lost it stays lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from holdfast.client.clock import Instant, elapsed_ms
from holdfast.errors import LeaseLost

DRIFT_PER_MILLE = 2  # Between two clocks: NTP slews by at most 0.5 ‰, crystals differ by less than 0.2 ‰.
ROUNDING_MS = 3  # Each time and duration in the calculation may have lost up to a millisecond.


class Loss(msgspec.Struct, frozen=True):
    reason: str
    by: str | None = None
    why: str | None = None
    is_reported: bool = False  # The server reported it, so there is nothing left to release.


def safe_ms(promised_ms: int, waited_ms: int = 0) -> int:
    """Return how long a promise may be trusted, counted from before the request was sent."""
    span = promised_ms + waited_ms
    return span - span * DRIFT_PER_MILLE // 1_000 - ROUNDING_MS


class _Promise(NamedTuple):
    sent: Instant
    safe_ms: int  # How long we may trust it.
    span_ms: int  # What the server promised.


class LeaseDeadline:
    """The local deadline of a lease or session. Shared by the owner's thread and those that renew it."""

    def __init__(
        self, job_id: str, fencing_token: int | None, sent: Instant, promised_ms: int, waited_ms: int = 0
    ) -> None:
        """Start with the first promise, which answered a request sent at `sent`."""
        self.job_id = job_id
        self.fencing_token = fencing_token
        self.title = ""  # For error texts; empty for a claim, which is named by its job.
        self.ended = False  # It was released; nothing that happens afterwards is a loss.
        self.loss: Loss | None = None
        self.trouble: Loss | None = None  # Why the last renewal failed: the loss's reason if none succeeds in time.
        # Replaced as a whole: a signal handler or a fork may read it, without a lock, in the middle of a change.
        self._promise = _Promise(sent, safe_ms(promised_ms, waited_ms), promised_ms)
        # Reentrant: a signal handler may query a claim whose lock its own thread holds.
        self._lock = threading.RLock()
        self._listeners: list[Callable[[], None]] = []

    def extend(self, sent: Instant, promised_ms: int) -> None:
        """Adopt the latest request's promise, even a shorter one: any holder of the lease id may shorten it."""
        with self._lock:
            if elapsed_ms(self._promise.sent, sent) >= 0:
                self._promise = _Promise(sent, safe_ms(promised_ms), promised_ms)
            self.trouble = None

    def left_ms(self, now: Instant) -> int:
        """Return how long it is still ours; 0 after a loss."""
        if self.loss is not None:
            return 0
        sent, safe_ms, _ = self._promise
        return max(0, safe_ms - elapsed_ms(sent, now))

    def renewal_starts_ms(self, at_most_ms: int) -> int:
        """Return the boot clock time at which the background work starts: before its first renewal."""
        sent, _, span_ms = self._promise
        return sent.boot_ms + min(at_most_ms, span_ms * 3 // 10)

    def renew_in_ms(self, now: Instant, random_fraction: float) -> int:
        """Return in how many ms to renew: after a third of the promise, less some jitter."""
        promise = self._promise
        due = promise.span_ms * (0.9 + random_fraction / 10) / 3
        return max(0, round(due) - elapsed_ms(promise.sent, now))

    def is_lost(self, now: Instant) -> bool:
        """Tell whether it is lost, and mark it lost if its time has passed."""
        if self.loss is None and not self.ended and self.left_ms(now) == 0:
            self.lose(self.trouble or Loss("expired"))
        return self.loss is not None

    def lose(self, loss: Loss) -> None:
        """Mark it lost, once, and call the listeners."""
        with self._lock:
            if self.loss is not None or self.ended:
                return
            self.loss = loss
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener()

    def end(self) -> bool:
        """Mark it released; False if it was before."""
        with self._lock:
            if self.ended:
                return False
            self.ended = True
            return True

    def resume(self) -> None:
        """Undo `end`: the server refused the release, so it is still ours."""
        self.ended = False

    @property
    def refused(self) -> str | None:
        """The reason if the server refused the last renewal, else None."""
        trouble = self.trouble
        return None if trouble is None or trouble.reason != "refused" else trouble.why

    def on_loss(self, listener: Callable[[], None]) -> None:
        """Call `listener` at the loss, or now if it has happened."""
        with self._lock:
            if self.loss is None:
                self._listeners.append(listener)
                return
        listener()

    @property
    def name(self) -> str:
        return self.title or f"the claim on {self.job_id}"

    def error(self) -> LeaseLost:
        return lost_error(self.name, self.loss or Loss("expired"), job_id=self.job_id, fencing_token=self.fencing_token)


_REASONS = {
    "expired": "its time passed before it was renewed",
    "unreachable": "the server could not be reached in time",
    "refused": "the server would not renew it",
    "session_ended": "its session has ended",
    "released": "somebody with its lease id has released it",
    "transferred": "it was handed to another owner",
}


def lost_error(title: str, loss: Loss, *, job_id: str = "", fencing_token: int | None = None) -> LeaseLost:
    how = _REASONS.get(loss.reason, f"it ended ({loss.reason})")
    if loss.reason == "revoked":
        how = f"{loss.by or 'an operator'} has revoked it: {loss.why or 'no reason was given'}"
    elif loss.reason == "refused" and loss.why:
        how = f"{how}: {loss.why}"
    elif loss.reason == "session_ended" and not job_id:
        how = "it has ended"  # The session itself is lost.
    text = f"{title} is lost: {how}; stop working on it"
    return LeaseLost(text, job_id=job_id, fencing_token=fencing_token, reason=loss.reason, by=loss.by, why=loss.why)
