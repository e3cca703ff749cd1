"""The client for threads: `Holdfast`, `Claim`, `Claims` and `Session`.

One thread per process, the keeper, renews all claims. It waits for time only: while a flow waits for an answer, it runs
in a thread of its own, so that a server that does not answer delays no other renewal, and above all no deadline.

An interrupt may stop a user's thread between any two steps, so the keeper shares no lock with it and owns the schedule
alone. Other threads hand over in one step, and ring only if the keeper would sleep for too long:

    a user's thread                                   the keeper
    ───────────────                                   ──────────
    put (when, flow) into the inbox                   move the inbox into the schedule
    is that before it wakes? ── then ring ──►         set when it will wake
                                                      is the inbox still empty? ── then sleep, till then or the bell
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from inspect import GEN_CLOSED, getgeneratorstate
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Self, TypeVar
from weakref import ref

from holdfast.client import clock, effects
from holdfast.client.background import SLICE_MS, Background, RenewalHandle, Schedule, ScheduledFlow, log
from holdfast.client.base import ClaimingSession, Client
from holdfast.client.claim_flows import AcquiredClaim
from holdfast.client.deadline import LeaseDeadline
from holdfast.client.effects import Flow
from holdfast.client.event_flows import Follower
from holdfast.client.lease import ClaimGroup, Held, HeldClaim, HeldSession, mention
from holdfast.client.lease_flows import Renewal
from holdfast.client.loss_stream import LossStream
from holdfast.client.records import JobEvent
from holdfast.client.sync_transport import Transport, transport_to
from holdfast.errors import HoldfastError, Unreachable
from holdfast.wire.replies import SessionOpenedReply

EXIT_SECONDS = 2.0  # For starting releases at exit; the last one may take `lease.LAST_TRY_SECONDS` more.

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
H = TypeVar("H")


def drive(flow: Flow[T], transport: Transport) -> T:
    """Perform the effects of a flow until it returns. Errors and interrupts are thrown into the flow, which cleans up.

    An error is removed from `thrown` as it is thrown: in a variable of this frame it would be a reference cycle that
    keeps the callers' objects, claims included, alive until the next garbage collection.
    """
    result: Any = None
    thrown: list[BaseException] = []
    while True:
        try:
            while True:  # Inside `try`, because an interrupt may come at any loop iteration.
                effect = flow.throw(thrown.pop()) if thrown else flow.send(result)
                kind = type(effect)
                if kind is effects.Send:
                    result = transport.send(effect)  # type: ignore[arg-type]
                elif kind in effects.IMMEDIATE:
                    result = effects.IMMEDIATE[kind]()
                else:
                    result = _perform(effect, transport)
        except StopIteration as returned:
            returns: T = returned.value
            return returns
        except BaseException as error:
            if getgeneratorstate(flow) == GEN_CLOSED:  # The flow itself raised it.
                raise
            thrown.append(error)


def _perform(effect: effects.Effect, transport: Transport) -> Any:  # noqa: ANN401 - each effect has a result of its own
    match effect:
        case effects.Sleep(seconds=seconds):
            return time.sleep(seconds)
        case effects.Open():
            return transport.stream(effect)
        case effects.Read(stream=stream):
            return stream.read()
        case effects.Close(stream=stream):
            return stream.close()
        case _:
            raise TypeError(f"{type(effect).__name__} is no effect that a thread waits for")


class Link:
    """What a claim or a session needs of its client: runs flows and renews. Outlives the client."""

    def __init__(self, transport: Transport, policy: effects.Policy) -> None:
        self.policy = policy
        self._transport = transport
        # No bound methods: a reference cycle would keep connections open until a garbage collection.
        self._loss_stream = LossStream(
            policy, lambda flow: _background.add(flow, transport.send), partial(_listen, transport)
        )

    def run(self, flow: Flow[T]) -> T:
        return drive(flow, self._transport)

    def hold(self, flow: Callable[[effects.Cleanup], Flow[T]], make: Callable[[T], H]) -> H:
        """Run a flow that obtains something, and return what `make` makes of it.

        Whenever this is interrupted, even after the answer, what was obtained is released.
        """
        cleanup = effects.Cleanup()
        try:
            return make(self.run(flow(cleanup)))
        except HoldfastError:
            raise
        except BaseException:
            if cleanup.release is not None:
                self.run(cleanup.release())
            raise

    def run_release(self, flow: Flow[None], on_interrupt: Callable[[], Flow[None]]) -> None:
        """Run a flow that releases something. If it is interrupted, `on_interrupt` does so quickly."""
        try:
            self.run(flow)
        except Exception:
            raise
        except BaseException:
            self.run(on_interrupt())
            raise

    def start_renewal(self, deadline: LeaseDeadline, renewal: Renewal) -> RenewalHandle:
        """Renew in the background until the deadline ends or nothing refers to the result."""
        return RenewalHandle(_background, deadline, renewal, send=self._transport.send, loss_stream=self._loss_stream)


def _listen(transport: Transport, flow: Flow[None]) -> None:
    threading.Thread(target=drive, args=(flow, transport), name="holdfast-ends", daemon=True).start()


def start_thread(name: str, target: Callable[[], object], refused: Callable[[str], object]) -> None:
    """Start a thread safely where an interrupt may come; `refused` gets the reason if none can be started.

    An interrupt while `Thread.start` waits for the thread can keep that from ever running. So it is called in another
    thread, which no interrupt reaches and whose own start is a single step.
    """

    def start() -> None:
        try:
            threading.Thread(target=target, name=name, daemon=True).start()
        except RuntimeError as error:
            refused(str(error))

    try:
        _thread.start_new_thread(start, ())
    except RuntimeError as error:
        refused(str(error))


class BackgroundThread(Background):
    """The keeper and its schedule. Started when the first flow waits."""

    def __init__(self) -> None:
        self._schedule = Schedule()  # The keeper's alone.
        self._inbox: deque[tuple[int, ScheduledFlow]] = deque()  # Flows and when they are due.
        self._wakeups: SimpleQueue[None] = SimpleQueue()
        self._wakes_ms = 0.0  # When the keeper wakes; 0 while it is awake and will read the inbox before it sleeps.
        self._runs = False
        self._keeper = threading.Lock()  # Held by the keeper for ever, so that there is only one.

    def _ask(self, running: ScheduledFlow, request: effects.Send) -> None:
        def ask() -> None:
            try:
                step = partial(running.flow.send, running.send(request))
            except Exception as error:  # noqa: BLE001 - the flow handles it
                step = partial(running.flow.throw, error)
            self._advance(running, step)

        try:
            threading.Thread(target=ask, name="holdfast-renew", daemon=True).start()
        except RuntimeError as error:
            # There may be too many threads right now: a failed renewal is retried.
            self._advance(running, partial(running.flow.throw, Unreachable(request.path, str(error))))

    def _resume_at(self, scheduled: ScheduledFlow, due_ms: int) -> None:
        self._inbox.append((due_ms, scheduled))
        if not self._runs:
            # There may be too many threads right now. The next claim tries again, and deadlines need no thread.
            start_thread("holdfast-keeper", self._run, lambda why: log.error("nothing is renewed for now: %s", why))
        elif due_ms < self._wakes_ms:
            self._wakeups.put(None)

    def _run(self) -> None:
        if not self._keeper.acquire(blocking=False):
            return  # Two threads started one at the same time.
        self._runs = True
        while True:
            self._drain_inbox()
            due = self._schedule.take(clock.boot_ms())
            for scheduled in due:
                self._resume(scheduled)
            if not due:
                self._sleep()

    def _drain_inbox(self) -> None:
        while self._inbox:
            due_ms, scheduled = self._inbox.popleft()
            if not scheduled.is_over:
                self._schedule.add(due_ms, scheduled)

    def _sleep(self) -> None:
        next_ms, now_ms = self._schedule.next_due_ms(), clock.boot_ms()
        self._wakes_ms = math.inf if next_ms is None else min(next_ms, now_ms + SLICE_MS)
        # The inbox is checked after that was set: later arrivals know whether to ring.
        if not self._inbox and self._wakes_ms > now_ms:
            with contextlib.suppress(Empty):
                self._wakeups.get(timeout=None if next_ms is None else (self._wakes_ms - now_ms) / 1_000)
        self._wakes_ms = 0.0


_background = BackgroundThread()


def background_thread() -> BackgroundThread:
    return _background


def _start_over() -> None:
    """Start over in a forked process: it has no keeper thread, and the claims belong to the parent."""
    global _background  # noqa: PLW0603 - one for each process
    _background = BackgroundThread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_over)


class Lost(threading.Event):
    """Set at the loss. `is_set` also reads the clock, so that a stopped thread sees the loss before it acts.

    `wait` is reimplemented: a KeyboardInterrupt in `Event.wait` can leave a lock locked that `set` needs, which the
    keeper of all claims calls. Here each waiting thread has a lock of its own, which `set` releases.
    """

    def __init__(self, deadlines: Sequence[LeaseDeadline]) -> None:
        # No super().__init__(): it would only make a lock that is not needed, for every claim.
        self._deadlines = tuple(deadlines)
        self._was_set = False
        self._waiting: deque[threading.Lock] = deque()
        self._is_registered = (
            False  # Whether the deadlines call `set`. The first `wait` registers it; most claims never wait.
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {'set' if self.is_set() else 'unset'}>"

    def set(self) -> None:
        """Set it, and wake all waiting threads."""
        self._was_set = True
        with suppress(IndexError):
            while True:
                self._waiting.pop().release()

    def is_set(self) -> bool:
        now = clock.now()
        return self._was_set or any(deadline.is_lost(now) for deadline in self._deadlines)

    def clear(self) -> None:
        """Undo a `set` by a caller. What is lost stays lost."""
        self._was_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the loss, for at most `timeout` seconds; True if it is lost."""
        if self.is_set():
            return True
        gate = threading.Lock()
        gate.acquire()
        self._waiting.append(gate)
        if not self._is_registered:
            for deadline in self._deadlines:
                deadline.on_loss(self.set)
            self._is_registered = True  # Set last: an interrupt before means registering twice, which is harmless.
        try:
            if not self._was_set:  # Checked again, now that `set` would release the gate.
                gate.acquire(timeout=-1 if timeout is None else max(timeout, 0))
        finally:
            with suppress(ValueError):
                self._waiting.remove(gate)
        return self.is_set()


def _report_loss(deadlines: Sequence[LeaseDeadline], held: object, on_lost: Callable[[Any], object] | None) -> None:
    """Call `on_lost` at the first loss, in a thread of its own, because it may block."""
    if on_lost is None:
        return
    holder = ref(held)
    once = threading.Lock()

    def report() -> None:
        lost = holder()
        if lost is not None and once.acquire(blocking=False):  # Never released.
            # The caller must not fail if no thread can be started; `lost` is set anyway.
            start_thread(
                "holdfast-on-lost",
                lambda: on_lost(lost),
                lambda why: log.error("on_lost was not called for %r: %s", lost, why),
            )

    for deadline in deadlines:
        deadline.on_loss(report)


class Entered(effects.Blocking):
    """A claim, several, or a session: a `with` statement releases it at its end."""

    lost: Lost
    _title: Any
    _ending_word: str
    _release_on_exit: Any
    _stop: Any

    def _begin(self, link: Link, deadlines: Sequence[LeaseDeadline], on_lost: Callable[[Any], object] | None) -> None:
        self._link = link
        self.lost = Lost(deadlines)
        _report_loss(self.lost._deadlines, self, on_lost)  # noqa: SLF001 - its own

    def __enter__(self) -> Self:
        self.raise_if_lost()  # type: ignore[attr-defined] # Declared here, it would hide the method from editors.
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._release_on_exit(outcome=None if error is None else "failed")
        except HoldfastError as problem:
            if error is None:
                raise
            mention(problem, f"{self._title} was not {self._ending_word}")  # The block's own error matters more.
        finally:
            self._stop()


class HeldUntilExit(Entered, Held):
    """A claim or session that is released at exit if it is still held: nothing would renew it any more."""

    _how_to_end = "use `with`, or call release()"
    _release_quickly: Any

    def _start_renewal(self) -> RenewalHandle:
        _held_until_exit[ref(self, _forget)] = None
        return super()._start_renewal()

    def _stop(self) -> None:
        if not self._renewal_handle.stopped and not self._is_forked_copy:
            _held_until_exit.pop(ref(self), None)
            super()._stop()

    def _release_at_exit(self) -> None:
        if self._is_dropped:
            self._warn("was held to the end of the program, and is given back now")
            self._link.run(self._release_quickly())


_held_until_exit: dict[ref[HeldUntilExit], None] = {}  # In the order in which they were obtained.


def _forget(whose: ref[HeldUntilExit]) -> None:
    _held_until_exit.pop(whose, None)


@atexit.register
def _release_all_at_exit() -> None:
    """Release all that is left in the order of acquisition: a session ends its claims with it."""
    until_ms = clock.monotonic_ms() + EXIT_SECONDS * 1_000
    for each in tuple(_held_until_exit):
        held = each()
        if held is not None and clock.monotonic_ms() < until_ms:
            held._release_at_exit()  # noqa: SLF001 - one of ours


class Claim(HeldUntilExit, HeldClaim):
    """A job that is ours, renewed in the background until it is released or lost.

    Use it in a `with` statement: leaving the block releases it, as failed if by an exception. Leaving it after a loss
    raises `LeaseLost`, unless `raise_if_lost` did so before.
    """

    def __init__(self, link: Link, got: AcquiredClaim, on_lost: Callable[[Claim], object] | None) -> None:
        super().__init__(got, link.policy)
        self._begin(link, [self._deadline], on_lost)
        self._renewal_handle = self._start_renewal()


class Claims(Entered, ClaimGroup[Claim]):
    """Several jobs that are ours, every one of them. A context manager, as `Claim`."""

    def __init__(
        self, link: Link, acquired: Sequence[AcquiredClaim], on_lost: Callable[[Claims], object] | None
    ) -> None:
        super().__init__([Claim(link, got, None) for got in acquired])
        self._begin(link, self._deadlines, on_lost)


class Session(HeldUntilExit, HeldSession[Claim], ClaimingSession[Claim, Claims, Claim, Claims]):
    """A session that is ours, kept alive in the background. Use it in a `with` statement: leaving the block ends it."""

    _how_to_end = "use `with`, or call end()"

    def __init__(
        self,
        link: Link,
        claimer: Holdfast,
        opened: tuple[SessionOpenedReply, LeaseDeadline],
        on_lost: Callable[[Session], object] | None,
    ) -> None:
        super().__init__(link.policy, *opened)
        self._claimer = claimer
        self._begin(link, [self._deadline], on_lost)
        self._renewal_handle = self._start_renewal()


class Holdfast(Client[Claim, Claims, Session, Claim, Claims, Session, Iterator[JobEvent]], effects.Blocking):
    """A client of one server, for any number of threads. Close it, or use it as a context manager.

    >>> with Holdfast() as holdfast, holdfast.claim("github-issue-1842", ttl=120) as claim:
    ...     push(branch, fencing_token=claim.fencing_token)
    """

    def _prepare(self) -> None:
        self._transport = transport_to(self._target, environment=self._environment)
        self._link = Link(self._transport, self._policy)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Claims that are still held continue to be renewed."""
        self._transport.close()

    def _worker(self) -> object:
        return threading.current_thread()

    def _enter(
        self, flow: Callable[[effects.Cleanup], Flow[Any]], kind: str, on_lost: Callable[[Any], object] | None
    ) -> Any:  # noqa: ANN401
        link = self._link
        if kind == "session":
            return link.hold(flow, lambda opened: Session(link, self, opened, on_lost))
        made = Claim if kind == "claim" else Claims
        return link.hold(flow, lambda got: made(link, got, on_lost))

    _awaits = False

    def _follow(self, follower: Follower) -> Iterator[JobEvent]:
        try:
            while True:
                yield from self._run(follower.more())
        finally:
            self._run(follower.close())
