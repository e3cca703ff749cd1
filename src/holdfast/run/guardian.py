"""Stops a process group in time even if its supervisor was stopped, frozen or killed.

Run as a script in a session of its own, with pipes for standard input and output. Every input line names the group and
the times until SIGTERM and SIGKILL, counted from an instant on both clocks; the newest line holds. The end of input
without `bye` means that the sender is dead: the group gets SIGTERM immediately, and SIGKILL after its grace or when its
time is over. Standard library only.

The sender does not reap the leader before `bye`, so the group's number cannot be reused. After the sender's death init
reaps it, and the pidfd taken at the first line still identifies the group. Where the kernel cannot signal a group
through a pidfd, the group is polled every slice; a number reused within one slice would be mistaken for it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from typing import NamedTuple

SLICE_SECONDS = 0.1  # How late it may notice that the machine slept.
# A signal that is sent to all processes around must not end the guardian.
DEAF_TO = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGTSTP", "SIGUSR1", "SIGUSR2", "SIGALRM")
TO_ENTIRE_GROUP = 4  # PIDFD_SIGNAL_PROCESS_GROUP, from Linux 6.9.

# On macOS CLOCK_MONOTONIC counts while the machine sleeps, and Python's own monotonic clock does not.
_BOOT: int | None = getattr(time, "CLOCK_MONOTONIC" if sys.platform == "darwin" else "CLOCK_BOOTTIME", None)


class BothClocks(NamedTuple):
    """An instant on both monotonic clocks. Compare two of them with `elapsed_ms`."""

    monotonic_ms: int
    boot_ms: int  # Also counts while the machine sleeps.


class Order(NamedTuple):
    """One line of input."""

    group: int
    monotonic_ms: int
    boot_ms: int  # The moment from which the times count.
    term_ms: int  # Until SIGTERM; negative if it has been sent.
    kill_ms: int
    grace_ms: int

    def age_ms(self, monotonic_ms: int, boot_ms: int) -> int:
        return elapsed_ms(BothClocks(self.monotonic_ms, self.boot_ms), BothClocks(monotonic_ms, boot_ms))


class GuardedGroup:
    def __init__(self, number: int) -> None:
        self.number = number
        self._leader: int | None = None
        with contextlib.suppress(OSError, AttributeError):
            self._leader = os.pidfd_open(number)
        self._by_pidfd = self._leader is not None

    def is_led(self) -> bool:
        """Tell whether the leader still runs, as far as can be seen."""
        return self._leader is None or not select.select([self._leader], [], [], 0)[0]

    def kill_leader(self) -> None:
        """Kill the leader itself, which may have joined another group."""
        if self._leader is not None:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self._leader, signal.SIGKILL)

    def send(self, number: int) -> bool:
        """Send a signal; 0 only probes. False if the group is empty."""
        try:
            if self._leader is not None and self._by_pidfd:
                signal.pidfd_send_signal(self._leader, number, None, TO_ENTIRE_GROUP)
            else:
                os.killpg(self.number, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        except OSError:
            if not self._by_pidfd:
                raise
            self._by_pidfd = False  # This kernel cannot.
            return self.send(number)
        return True


class Guardian:
    def __init__(self) -> None:
        self._order: Order | None = None
        self._group: GuardedGroup | None = None
        self._sigterm_sent = False
        self._killed = False
        self._is_alone = False

    def take(self, line: str) -> None:
        order = Order(*map(int, line.split()))
        self._order = order
        self._sigterm_sent = self._sigterm_sent or order.term_ms < 0
        if self._group is None:
            self._group = GuardedGroup(order.group)
            report("watching")

    def act(self) -> float | None:
        """Send what is due. Return how long to sleep; None when there is nothing left to do."""
        if self._order is None or self._group is None:
            return None if self._is_alone else SLICE_SECONDS
        age_ms = self._order.age_ms(*clocks())
        if age_ms >= self._order.kill_ms and not self._killed:
            if self._group.is_led():
                report("killed")
            self._group.send(signal.SIGKILL)
            self._group.kill_leader()
            self._killed = self._sigterm_sent = True
        elif not self._sigterm_sent and age_ms >= self._order.term_ms:
            self._send_sigterm(self._group)
        if self._is_alone and (self._killed or not self._group.send(0)):
            return None
        due_ms = self._order.kill_ms if self._sigterm_sent else min(self._order.term_ms, self._order.kill_ms)
        return min(SLICE_SECONDS, max(0, due_ms - age_ms) / 1_000) if not self._killed else SLICE_SECONDS

    def end_alone(self) -> None:
        """Stop the group immediately, because the sender is dead."""
        self._is_alone = True
        if self._order is not None and self._group is not None:
            age_ms = self._order.age_ms(*clocks())
            self._order = self._order._replace(kill_ms=min(self._order.kill_ms, age_ms + self._order.grace_ms))
            if not self._sigterm_sent and age_ms < self._order.kill_ms:
                self._send_sigterm(self._group)

    def _send_sigterm(self, group: GuardedGroup) -> None:
        # A command that has ended by itself was not stopped by us, even if it left processes behind.
        if group.is_led():
            report("terminated")
        group.send(signal.SIGTERM)
        group.send(signal.SIGCONT)
        self._sigterm_sent = True


def clocks() -> BothClocks:
    monotonic_ms = time.monotonic_ns() // 1_000_000
    return BothClocks(monotonic_ms, monotonic_ms if _BOOT is None else time.clock_gettime_ns(_BOOT) // 1_000_000)


def elapsed_ms(since: BothClocks, until: BothClocks) -> int:
    """Return the larger elapsed time of both clocks, so that no sleep goes unnoticed."""
    return max(until.monotonic_ms - since.monotonic_ms, until.boot_ms - since.boot_ms)


def report(word: str) -> None:
    with contextlib.suppress(OSError):
        os.write(1, f"{word}\n".encode())


def main() -> int:
    for name in DEAF_TO:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    guardian = Guardian()
    unread = b""
    is_open = True
    seconds: float | None = 0.0
    while seconds is not None:
        # All input is read before anything is done: the newest line may have granted more time.
        if is_open and select.select([0], [], [], seconds)[0]:
            data = os.read(0, 65_536)
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                if line == b"bye":
                    return 0
                guardian.take(line.decode())
            if not data:
                is_open = False
                guardian.end_alone()
            seconds = 0.0
            continue
        if not is_open:
            time.sleep(seconds)
        seconds = guardian.act()
    return 0


if __name__ == "__main__":
    sys.exit(main())
