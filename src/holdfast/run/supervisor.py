"""Runs a command for as long as a claim is held, and stops it before the claim can be lost.

    supervisor (this module) ─────── renewed in the background ─────────► the server
       │
       ├─ child.py ──────────► gate.py ── becomes ──► the command, and all that it starts:
       │                                              one process group, signalled as one
       │                                                        ▲
       └─ GuardianLink ──────► guardian.py ── if we do not ─────┘

**The gate.** A command must not run unguarded, and there is nothing to guard before it runs. So a small script leads
the new group and waits. When guardian and gate have both reported, we open the gate, and it becomes the command under
the same pid. If we die before, the gate ends and nothing has run. Without a guardian the command is not run at all.

**The guardian.** We may be stopped by Ctrl-Z, frozen with the machine, or killed. So a second process has the deadlines
too, on clocks that count while the machine sleeps. We send it every change. If a deadline passes without one, it sends
SIGTERM a little later than we would have, and SIGKILL at the same time. If we die, its input ends without `bye`, and it
stops the command immediately, because the claim is not renewed any more. If the guardian dies, we start another.

**The plan** counts back from the time at which the claim may be lost. Each renewal extends all of it:

    now                        SIGTERM                  SIGKILL       may be lost
     ├── the command works ───────┼──────── grace ─────────┼── margin ────┤
                                   --grace, and at most     for the signal to arrive:
                                   a third of the lease     at most 0.5 s, or 1/20

**The order of stopping.** "Told to stop" means SIGTERM, then SIGCONT, since a stopped process handles nothing else.

1. The group is told to stop when the plan says so, immediately if the claim is lost, and also when the command has
   ended and left other processes in its group.
2. It is killed when the grace is over or no time is left, which may be immediately.
3. We wait until no member is alive. One that survives SIGKILL is left behind once the claim is lost and 5 s are over.
4. We take the terminal back, send `bye` to the guardian and wait until it is gone, so that it can signal nothing.
5. The group's leader is reaped last: its pid cannot be reused before, so no signal hits an unrelated process.
6. `run_child` returns and its caller releases the claim. Nothing of the command runs beyond the claim.

Our signals are passed on to the group and the terminal is lent to it: the command runs as if we were not there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple, Protocol, Self

from holdfast.run import guardian
from holdfast.run.child import Child
from holdfast.run.gate import CANNOT_RUN
from holdfast.run.guardian import BothClocks, Order, clocks, elapsed_ms


class Terminal:
    """The controlling terminal, if there is one. The caller ignores SIGTTOU while it changes the owner."""

    def __init__(self) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def owner(self) -> int | None:
        if self._file is None:
            return None
        try:
            return os.tcgetpgrp(self._file)
        except OSError:
            return None

    def lend(self, group: int) -> None:
        if self.owner() == os.getpgrp():
            self._set(group)

    def take_back(self, group: int) -> None:
        """Take it from the group it was lent to, or from a dead one. Any other owner keeps it."""
        owner = self.owner()
        if owner is not None and owner != os.getpgrp() and (owner == group or not _exists(owner)):
            self._set(os.getpgrp())

    def _set(self, group: int) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.tcsetpgrp(self._file, group)


def reads_keyboard() -> bool:
    """Tell whether input is the terminal and output is not a pipe: its reader may be a pager that wants the keys."""
    try:
        return os.isatty(0) and not stat.S_ISFIFO(os.fstat(1).st_mode)
    except OSError:
        return False


def _exists(group: int) -> bool:
    if group <= 0:
        return False
    try:
        os.killpg(group, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return True


OUR_OWN = frozenset(
    getattr(signal, name)
    for name in (
        *("SIGKILL", "SIGSTOP"),  # Nobody can catch them.
        *("SIGCHLD", "SIGTTIN", "SIGTTOU", "SIGPIPE"),  # They are about us.
        *("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS", "SIGEMT", "SIGSTKFLT"),  # Our bugs.
        *("SIGXCPU", "SIGXFSZ", "SIGVTALRM", "SIGPROF"),  # Our limits.
    )
    if hasattr(signal, name)
)


class Signals:
    """Every signal that can be passed on, and SIGCHLD."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        self._read, self._write = os.pipe()
        self._wakeup_before = -1

    def __enter__(self) -> Self:
        for file in (self._read, self._write):
            os.set_blocking(file, False)
        self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGCONT):
            self._set(number, _note)
        for number in signal.valid_signals() - OUR_OWN:
            if signal.getsignal(number) not in {signal.SIG_IGN, None}:
                self._set(number, _note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._read)
        os.close(self._write)

    def fileno(self) -> int:
        return self._read

    def arrived(self) -> list[int]:
        """Take the signals that arrived and are to be passed on."""
        try:
            return [number for number in os.read(self._read, 4_096) if number not in OUR_OWN]
        except BlockingIOError:
            return []

    def ignore_terminal_output(self) -> None:
        """Let us write to a terminal that another group owns, and take it. Called after the start: it is inherited."""
        self._set(signal.SIGTTOU, signal.SIG_IGN)

    def stop_ourselves(self) -> None:
        """Stop our process group, as Ctrl-Z would, until it is continued. Does nothing in an orphaned group."""
        if signal.getsignal(signal.SIGTSTP) is signal.SIG_IGN:
            return
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        try:
            os.killpg(os.getpgrp(), signal.SIGTSTP)
        finally:
            signal.signal(signal.SIGTSTP, handler)

    def _set(self, number: int, handler: Any) -> None:  # noqa: ANN401 - whatever `signal.signal` takes
        before = signal.signal(number, handler)
        self._before.setdefault(number, before if before is not None else signal.SIG_DFL)


def _note(number: int, frame: FrameType | None) -> None:
    """Do nothing: Python has written the number to the file descriptor already."""


GRACE_SHARE_MAX = 1 / 3  # Renewal starts after a third of the lease. The second third is for retries, the last to stop.
MARGIN_SECONDS_MAX = 0.5  # A signal needs time to arrive on a busy machine.
MARGIN_SHARE_MAX = 1 / 20  # A short lease cannot spare half a second.
SECONDS_MAX = 2**32


class Plan(NamedTuple):
    """How long until SIGTERM, and until SIGKILL. Zero is now."""

    term_ms: int
    kill_ms: int
    grace_ms: int  # What lies between the two when there is time enough.


def plan(
    remaining_seconds: float,
    *,
    longest_seconds: float,
    grace_seconds: float,
    must_stop: bool = False,
    stopping_ms: int | None = None,
) -> Plan:
    """Count back from what remains of the lease.

    `longest_seconds` is the most that ever remained, which is about the length of the lease. `must_stop` ends the
    command's own time now. `stopping_ms` is how long ago it was told to stop; None if it was not.
    """
    longest = min(longest_seconds, SECONDS_MAX)
    grace_ms = int(1_000 * min(grace_seconds, longest * GRACE_SHARE_MAX))
    margin_ms = int(1_000 * min(MARGIN_SECONDS_MAX, longest * MARGIN_SHARE_MAX))
    kill_ms = max(0, int(1_000 * min(remaining_seconds, SECONDS_MAX)) - margin_ms)
    if stopping_ms is not None:
        return Plan(0, min(kill_ms, max(0, grace_ms - stopping_ms)), grace_ms)
    if must_stop:
        return Plan(0, min(kill_ms, grace_ms), grace_ms)
    return Plan(max(0, kill_ms - grace_ms), kill_ms, grace_ms)


SCRIPT = Path(guardian.__file__).absolute()
MOVED_MS_MIN = 20  # A deadline that moved by less is the same, read a little later.
TERM_LATE_MS = 300  # The guardian sends SIGTERM only if we did not: some programs react to a second one.
END_SECONDS_MAX = 2
FIRST_WORD = "watching"


class GuardianLink:
    """A guardian for one group: gets the newest deadlines, and is replaced when it dies."""

    def __init__(self, group: int) -> None:
        self._group = group
        self._last: Order | None = None
        self._unread = b""
        self._process = _start()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def fileno(self) -> int:
        """Return a file that is readable when the guardian has written something or has died."""
        return _file(self._process.stdout)

    def send_plan(self, now: BothClocks, plan: Plan, *, is_sigterm_sent: bool) -> None:
        """Send the deadlines, counted from `now`, unless the guardian has them. `is_sigterm_sent`: SIGTERM was sent."""
        if self._last is not None:
            was_sigterm_sent = self._last.term_ms < 0
            moved_ms = plan.kill_ms + self._last.age_ms(*now) - self._last.kill_ms
            if was_sigterm_sent == is_sigterm_sent and abs(moved_ms) < MOVED_MS_MIN:
                return
        term_ms = -1 if is_sigterm_sent else min(plan.term_ms + TERM_LATE_MS, plan.kill_ms)
        self._last = Order(self._group, *now, term_ms, plan.kill_ms, plan.grace_ms)
        self._repeat()

    def replace(self) -> None:
        """Start another after this one died. Raises `OSError` if that fails."""
        self._forget()
        self._process = _start()
        self._unread = b""
        self._repeat()

    def reports(self) -> list[str]:
        try:
            *lines, self._unread = (self._unread + os.read(self.fileno(), 4_096)).split(b"\n")
        except BlockingIOError:
            return []
        return [line.decode() for line in lines]

    def end(self) -> list[str]:
        """Stop it and wait until it is gone, so that it can signal nothing. Return its last reports."""
        with contextlib.suppress(OSError):
            os.write(_file(self._process.stdin), b"bye\n")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS_MAX)
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()
        last_words = self.reports()
        self._forget()
        return last_words

    def _repeat(self) -> None:
        if self._last is None:
            return
        try:
            os.write(_file(self._process.stdin), (" ".join(map(str, self._last)) + "\n").encode())
        except BlockingIOError:
            self._process.kill()  # It has not read a thousand lines: replace it.
        except BrokenPipeError:
            pass

    def _forget(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def _start() -> subprocess.Popen[bytes]:
    process = subprocess.Popen(  # noqa: S603 - our own script
        [sys.executable, "-I", "-S", str(SCRIPT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        cwd="/",
        start_new_session=True,
    )
    for pipe in (process.stdin, process.stdout):
        os.set_blocking(_file(pipe), False)
    return process


def _file(pipe: object) -> int:
    return pipe.fileno()  # type: ignore[attr-defined,no-any-return]


TICK_SECONDS = 0.2  # How late we may notice that the claim was lost, or that the guardian died.
START_SECONDS_MAX = 20
NO_MORE_TIME = "there is no more time"
DEATH_SECONDS_MAX = 5  # A killed process is gone at once, unless it waits for a disk or a network that does not answer.
NOT_GUARDED = 70  # The exit code if there is no guardian. Every command has it for what it did not expect.
TERMINAL_STOPS = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
WANTS_TERMINAL = frozenset({signal.SIGTTIN, signal.SIGTTOU})

Say = Callable[[str], None]


class Ownership(Protocol):
    """What the command runs under: a claim, several, or a session."""

    @property
    def remaining(self) -> float:
        """Seconds for which it is surely ours; 0.0 once it is lost."""

    @property
    def lost(self) -> Any:  # noqa: ANN401 - its `is_set`
        """An event that is set as soon as it is lost."""

    @property
    def refused(self) -> str | None:
        """Why it was not renewed when that was last tried; None if it was."""


class Outcome(NamedTuple):
    returncode: int  # As a shell would see it: 128 + n for signal n.
    lost: bool  # The command was told to stop, or killed, because of the claim.


def run_child(
    command: Sequence[str], *, environment: Mapping[str, str], held: Ownership, grace_seconds: float, say: Say
) -> Outcome:
    """Run a command while a claim is held. Called in the main thread; no process of it is left at return."""
    with Signals() as signals, Terminal() as terminal:
        try:
            child = Child(command, environment)
        except (OSError, ValueError) as error:
            _quietly(say, f"{command[0]}: it cannot be started: {_reason(error)}")
            return Outcome(CANNOT_RUN, lost=False)
        try:
            try:
                guardian = GuardianLink(child.group)
            except OSError as error:
                return _refuse(child, say, _reason(error))
            supervisor = _Supervisor(
                child=child,
                guardian=guardian,
                held=held,
                grace_seconds=grace_seconds,
                say=say,
                signals=signals,
                terminal=terminal,
            )
            if problem := supervisor.wait_for_guard():
                guardian.end()
                return _refuse(child, say, problem)
            return supervisor.run()
        finally:
            child.close()


def _refuse(child: Child, say: Say, problem: str) -> Outcome:
    child.send(signal.SIGKILL)
    _quietly(say, f"the command was not run: nobody would stop it in time if we were killed: {problem}")
    return Outcome(NOT_GUARDED, lost=False)


class _Supervisor:
    """The loop around a running command. `_sigterm_at`: when it got SIGTERM; `_killed_at`: when it got SIGKILL."""

    def __init__(
        self,
        *,
        child: Child,
        guardian: GuardianLink,
        held: Ownership,
        grace_seconds: float,
        say: Say,
        signals: Signals,
        terminal: Terminal,
    ) -> None:
        self._child = child
        self._guardian = guardian
        self._held = held
        self._grace_seconds = grace_seconds
        self._say = say
        self._signals = signals
        self._terminal = terminal
        self._longest_seconds = held.remaining
        self._sigterm_at: BothClocks | None = None
        self._has_leftovers = False
        self._killed_at: BothClocks | None = None
        self._is_lost = False
        self._is_refused = False
        self._shares_terminal = reads_keyboard()
        self._replaced_at: BothClocks | None = None
        self._due_seconds = 0.0

    def wait_for_guard(self) -> str | None:
        """Wait until guardian and gate have reported. Return what went wrong."""
        began = now = clocks()
        self._guardian.send_plan(now, self._plan(now), is_sigterm_sent=False)
        missing: dict[int, str] = {self._guardian.fileno(): "guardian", self._child.status: "gate"}
        while missing and elapsed_ms(began, now) < START_SECONDS_MAX * 1_000:
            for file in select.select(list(missing), [], [], TICK_SECONDS)[0]:
                # If its time is over, the guardian may have ended it; `run` handles that.
                if file == self._child.status and os.read(file, 1) != b"r" and self._plan(now).term_ms > 0:
                    return f"the process {self._child.group} that was to become it has ended"
                if file == self._guardian.fileno():
                    words = self._guardian.reports()
                    if FIRST_WORD not in words:
                        return "the guardian has ended"
                    self._note_reports(words)
                del missing[file]
            now = clocks()
        return f"no word from the {' and the '.join(missing.values())} for {START_SECONDS_MAX} s" if missing else None

    def run(self) -> Outcome:
        self._signals.ignore_terminal_output()
        try:
            if self._shares_terminal:
                self._terminal.lend(self._child.group)
            self._follow_plan()
            if self._sigterm_at is None and self._killed_at is None:
                self._child.begin()
            while not self._is_over():
                self._sleep()
                self._read_guardian()
                self._follow_plan()
                self._mention_refusal()
                self._pass_on_signals()
                self._check_for_stop()
        except BaseException:
            self._child.send(signal.SIGKILL)
            raise
        finally:
            self._terminal.take_back(self._child.group)
            self._note_reports(self._guardian.end())
        if problem := self._child.problem():
            _quietly(self._say, problem)
        return Outcome(self._child.ended_with() or 0, self._is_lost)

    def _sleep(self) -> None:
        sources: list[Signals | GuardianLink] = [self._signals]
        if self._guardian.is_alive:
            sources.append(self._guardian)
        select.select(sources, [], [], min(TICK_SECONDS, self._due_seconds))

    def _plan(self, now: BothClocks) -> Plan:
        # `now` is read before `remaining`, so that deadlines err on the early side.
        remaining = self._held.remaining
        self._longest_seconds = max(self._longest_seconds, remaining)
        return plan(
            remaining,
            longest_seconds=self._longest_seconds,
            grace_seconds=self._grace_seconds,
            must_stop=self._held.lost.is_set() or self._has_leftovers,
            stopping_ms=None if self._sigterm_at is None else elapsed_ms(self._sigterm_at, now),
        )

    def _follow_plan(self) -> None:
        if self._child.ended_with() is not None and not self._has_leftovers:
            return
        now = clocks()
        due = self._plan(now)
        if due.kill_ms == 0:
            self._kill()
        elif due.term_ms == 0 and self._sigterm_at is None:
            self._send_sigterm(now)
            due = self._plan(now)
        self._guardian.send_plan(now, due, is_sigterm_sent=self._sigterm_at is not None)
        if self._killed_at is not None:
            self._due_seconds = TICK_SECONDS
        else:
            self._due_seconds = (due.term_ms if self._sigterm_at is None else due.kill_ms) / 1_000

    def _send_sigterm(self, now: BothClocks) -> None:
        self._sigterm_at = now
        self._child.send(signal.SIGTERM)
        self._child.send(signal.SIGCONT)  # A stopped process handles nothing else.
        if self._has_leftovers:
            return _quietly(self._say, "the command has ended and left processes behind: they are told to stop")
        self._is_lost = True
        return _quietly(self._say, f"{self._why()}: the command is told to stop")

    def _why(self, else_: str = "the claim was not renewed in time") -> str:
        """Return why the command must end: a claim that was revoked, say, is lost with time left."""
        return "the claim is lost" if self._held.lost.is_set() else else_

    def _mention_refusal(self) -> None:
        """Report a refused renewal once, with the reason: the user may be able to fix it in time."""
        why = self._held.refused
        if why is not None and not self._is_refused and self._sigterm_at is None:
            left = f"it is tried again, for {self._held.remaining:.0f} s more"
            _quietly(self._say, f"the claim was not renewed, {left}: {why}")
        self._is_refused = why is not None

    def _kill(self) -> None:
        reached = self._child.send(signal.SIGKILL)
        if self._killed_at is not None:
            return
        self._killed_at = clocks()
        self._is_lost = self._is_lost or not self._has_leftovers
        what = "what the command left behind" if self._has_leftovers else "the command"
        how = "was killed" if reached else "cannot be killed, because it belongs to another user"
        _quietly(self._say, f"{self._why(NO_MORE_TIME)}: {what} {how}")

    def _is_over(self) -> bool:
        if self._child.ended_with() is None:
            return False
        self._has_leftovers = self._child.has_survivors()
        if not self._has_leftovers:
            self._child.send(signal.SIGKILL)  # Processes started during the check.
            return True
        # A process that survives SIGKILL is abandoned, but only after the claim is over.
        if self._killed_at is None or elapsed_ms(self._killed_at, clocks()) < DEATH_SECONDS_MAX * 1_000:
            return False
        return self._held.lost.is_set() or self._held.remaining <= 0

    def _read_guardian(self) -> None:
        self._note_reports(self._guardian.reports())
        now = clocks()
        if self._guardian.is_alive or (
            self._replaced_at is not None and elapsed_ms(self._replaced_at, now) < TICK_SECONDS * 1_000
        ):
            return
        self._replaced_at = now
        with contextlib.suppress(OSError):  # Then at the next tick.
            self._guardian.replace()

    def _note_reports(self, words: list[str]) -> None:
        if self._sigterm_at is None and self._killed_at is None and {"terminated", "killed"} & set(words):
            self._sigterm_at = clocks()
            self._is_lost = True
            _quietly(self._say, f"{self._why()}, and the guardian has stopped the command")
        elif "killed" in words and self._killed_at is None:  # Just before we would have done it.
            self._killed_at = clocks()
            _quietly(self._say, f"{self._why(NO_MORE_TIME)}: the command was killed")

    def _pass_on_signals(self) -> None:
        for number in self._signals.arrived():
            if number == signal.SIGCONT:
                self._resume()
            else:
                self._child.send(number)

    def _check_for_stop(self) -> None:
        number = self._child.stopped_by()
        owner = self._terminal.owner()
        # A stop without a terminal is for its sender to continue, and a stop does not delay the end.
        if number is None or owner is None or self._sigterm_at is not None:
            return
        if number not in TERMINAL_STOPS and owner != self._child.group:
            return
        if number in WANTS_TERMINAL:
            self._shares_terminal = True
            if owner in {os.getpgrp(), self._child.group}:
                self._resume()
                return
        self._terminal.take_back(self._child.group)
        self._signals.stop_ourselves()
        # SIGCONT continues us and is passed on like any signal. After Ctrl-Z in an orphaned group none comes; then the
        # key does nothing.
        if number == signal.SIGTSTP:
            self._follow_plan()  # We may have been away for long: the claim comes first.
            self._resume()

    def _resume(self) -> None:
        if self._killed_at is not None:
            return
        if self._shares_terminal:
            self._terminal.lend(self._child.group)
        self._child.send(signal.SIGCONT)


def _quietly(say: Say, text: str) -> None:
    """Say something, though the terminal may be gone."""
    with contextlib.suppress(OSError, ValueError):
        say(text)


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.errno == errno.E2BIG:
        return "its arguments and environment are too long"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
