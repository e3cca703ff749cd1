"""How long we may believe that something is ours. Knows no clock: moments arrive as arguments.

A term is never later than the server's own. It counts from before the request was sent, by the larger elapsed of both
clocks, less what two clocks may differ and what rounding may hide (T4). Once lost it stays lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from holdfast.client.clock import Instant, elapsed_ms
from holdfast.errors import LeaseLost

DRIFT_PER_MILLE = 2
"""What two clocks may differ: NTP slews a clock by at most 0.5 ‰, crystals differ by less than 0.2 ‰."""
ROUNDING_MS = 3  # Each of the moments and spans we count with may have lost up to a millisecond.


class Loss(msgspec.Struct, frozen=True):
    """How something ended that was ours."""

    reason: str
    by: str | None = None
    why: str | None = None
    told: bool = False  # The server said so, so there is nothing left to give back.


def safe_ms(promised_ms: int, waited_ms: int = 0) -> int:
    """Return how long a promise may be believed, counted from before the request was sent."""
    span = promised_ms + waited_ms
    return span - span * DRIFT_PER_MILLE // 1_000 - ROUNDING_MS


class _Promise(NamedTuple):
    sent: Instant
    safe_ms: int  # How long it may be believed.
    span_ms: int  # How long it was said to last.


class Term:
    """The time something is ours for: a lease, a session. Shared by the owner's thread and those that renew it."""

    def __init__(self, job_id: str, token: int | None, sent: Instant, promised_ms: int, waited_ms: int = 0) -> None:
        """Begin with the first promise, which came with an answer to what was sent at `sent`."""
        self.job_id = job_id
        self.token = token
        self.title = ""  # What it is, for the text of errors; empty for a claim, which is called by its job.
        self.ended = False  # It was given back; nothing that happens afterwards is a loss.
        self.loss: Loss | None = None
        self.trouble: Loss | None = None
        """Why the last renewal failed; what the loss will be put down to if none succeeds in time."""
        # Replaced as a whole: it is read without a lock, also by a signal handler or a fork in the middle of a change.
        self._promise = _Promise(sent, safe_ms(promised_ms, waited_ms), promised_ms)
        # Reentrant: a signal handler may look at a claim whose lock its own thread has just taken.
        self._lock = threading.RLock()
        self._hearers: list[Callable[[], None]] = []

    def extend(self, sent: Instant, promised_ms: int) -> None:
        """Take the promise that was asked for last, a shorter one too: who knows the lease id may renew it for less."""
        with self._lock:
            if elapsed_ms(self._promise.sent, sent) >= 0:
                self._promise = _Promise(sent, safe_ms(promised_ms), promised_ms)
            self.trouble = None

    def left_ms(self, now: Instant) -> int:
        """Return how long it is still ours; 0 from the loss on."""
        if self.loss is not None:
            return 0
        sent, safe_ms, _ = self._promise
        return max(0, safe_ms - elapsed_ms(sent, now))

    def quiet_ms(self, at_most_ms: int) -> int:
        """Return until when nothing has to be done for it, by the boot clock: its first renewal at the latest."""
        sent, _, span_ms = self._promise
        return sent.boot_ms + min(at_most_ms, span_ms * 3 // 10)

    def rest_ms(self, now: Instant, share: float) -> int:
        """Return when to renew: after a third of the promise, or a little earlier, so that not all come at once."""
        promise = self._promise
        due = promise.span_ms * (0.9 + share / 10) / 3
        return max(0, round(due) - elapsed_ms(promise.sent, now))

    def is_lost(self, now: Instant) -> bool:
        """Tell whether it is lost, and lose it if its time has passed."""
        if self.loss is None and not self.ended and self.left_ms(now) == 0:
            self.lose(self.trouble or Loss("expired"))
        return self.loss is not None

    def lose(self, loss: Loss) -> None:
        """Lose it, once, and let everybody know who listens."""
        with self._lock:
            if self.loss is not None or self.ended:
                return
            self.loss = loss
            hearers = tuple(self._hearers)
        for hear in hearers:
            hear()

    def end(self) -> bool:
        """Stop believing because it is given back; False if that was so before."""
        with self._lock:
            if self.ended:
                return False
            self.ended = True
            return True

    def resume(self) -> None:
        """Believe again: giving it back was refused, so it is still ours."""
        self.ended = False

    @property
    def refused(self) -> str | None:
        """Why the server refused the last renewal; None if it did not."""
        trouble = self.trouble
        return None if trouble is None or trouble.reason != "refused" else trouble.why

    def on_loss(self, hear: Callable[[], None]) -> None:
        """Call this at the loss, or now if it has happened."""
        with self._lock:
            if self.loss is None:
                self._hearers.append(hear)
                return
        hear()

    @property
    def name(self) -> str:
        return self.title or f"the claim on {self.job_id}"

    def error(self) -> LeaseLost:
        return lost_error(self.name, self.loss or Loss("expired"), job_id=self.job_id, token=self.token)


_HOW = {
    "expired": "its time passed before it was renewed",
    "unreachable": "the server could not be reached in time",
    "refused": "the server would not renew it",
    "session_ended": "its session has ended",
    "released": "somebody with its lease id has released it",
    "transferred": "it was handed to another owner",
}


def lost_error(title: str, loss: Loss, *, job_id: str = "", token: int | None = None) -> LeaseLost:
    how = _HOW.get(loss.reason, f"it ended ({loss.reason})")
    if loss.reason == "revoked":
        how = f"{loss.by or 'an operator'} has revoked it: {loss.why or 'no reason was given'}"
    elif loss.reason == "refused" and loss.why:
        how = f"{how}: {loss.why}"
    elif loss.reason == "session_ended" and not job_id:
        how = "it has ended"  # The session itself is lost.
    text = f"{title} is lost: {how}; stop working on it"
    return LeaseLost(text, job_id=job_id, token=token, reason=loss.reason, by=loss.by, why=loss.why)
