"""How long a client may believe: never longer than the server (T4, I4). Time is an argument."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.client import lease_flows as renewing
from holdfast.client.answers import Answer
from holdfast.client.background import Schedule, ScheduledFlow
from holdfast.client.claim_flows import AcquiredClaim, claim
from holdfast.client.clock import Instant, elapsed_ms
from holdfast.client.deadline import ROUNDING_MS, LeaseDeadline, Loss, safe_ms
from holdfast.client.effects import Effect, Flow, NewKey, Now, Random, Send, Sleep
from holdfast.client.options import ClaimRequest
from holdfast.errors import HoldfastError, Unreachable
from tests.client.driving import POLICY, URL, acquired, problem, renewed

START = Instant(1_000, 5_000)


def at(ms: int, *, slept_ms: int = 0) -> Instant:
    return Instant(START.monotonic_ms + ms, START.boot_ms + ms + slept_ms)


@given(promised_ms=st.integers(10, 200_000), waited_ms=st.integers(0, 60_000))
def test_renewal_starts_before_anything_is_due(promised_ms: int, waited_ms: int) -> None:
    """Nothing is done for what is held until a moment that is never later than its first renewal, and it lives then."""
    deadline = LeaseDeadline("j", 1, START, promised_ms, waited_ms)
    renewal_starts_ms = deadline.renewal_starts_ms(renewing.RENEWAL_DELAY_MS) - START.boot_ms
    assert renewal_starts_ms <= min(renewing.RENEWAL_DELAY_MS, deadline.renew_in_ms(START, 0.0))
    assert not deadline.is_lost(at(renewal_starts_ms))


def test_local_deadline_precedes_the_promise() -> None:
    """T4: what was promised for a minute is believed for a minute less drift and rounding, from before the send."""
    deadline = LeaseDeadline("j", 1, START, 60_000)
    assert deadline.left_ms(START) == 60_000 - 120 - ROUNDING_MS
    assert not deadline.is_lost(at(59_876))
    assert deadline.is_lost(at(59_877))
    assert deadline.loss == Loss("expired")


def test_larger_elapsed_counts() -> None:
    """T4: time that only one of both clocks has seen pass counts, whichever it is."""
    assert LeaseDeadline("j", 1, START, 60_000).is_lost(at(10, slept_ms=60_000))
    assert LeaseDeadline("j", 1, START, 60_000).is_lost(Instant(START.monotonic_ms + 60_000, START.boot_ms))
    assert elapsed_ms(START, at(10, slept_ms=90)) == 100


def test_wait_extends_the_deadline() -> None:
    """W4: the time that the server says it let us wait is added, so a grant after a long wait is worth its ttl."""
    deadline = LeaseDeadline("j", 1, START, 30_000, waited_ms=40_000)
    assert 29_000 < deadline.left_ms(at(40_010)) < 30_000


def test_extension_counts_from_its_own_send() -> None:
    """A renewal counts from before its own request; one that was asked for earlier takes nothing away."""
    deadline = LeaseDeadline("j", 1, START, 60_000)
    deadline.extend(at(20_000), 60_000)
    assert deadline.left_ms(at(20_000)) == safe_ms(60_000)
    deadline.extend(at(19_000), 10_000)
    assert deadline.left_ms(at(21_000)) == safe_ms(60_000) - 1_000


@pytest.mark.parametrize(("promised_ms", "left_ms"), [(10_000, safe_ms(10_000)), (0, 0), (-5_000, 0)])
def test_shorter_promise_shortens_the_deadline(promised_ms: int, left_ms: int) -> None:
    """I4: who knows the lease id may renew it for less; then the next answer says less, and that is what counts."""
    deadline = LeaseDeadline("j", 1, START, 600_000)
    deadline.extend(at(1_000), promised_ms)
    assert deadline.left_ms(at(1_000)) == left_ms
    assert deadline.is_lost(at(1_000)) == (left_ms == 0)


def test_deadline_may_be_read_during_a_change() -> None:
    """A signal handler may look at a claim, and lose it, while its own thread has the lock."""
    deadline = LeaseDeadline("j", 1, START, 60_000)
    with deadline._lock:
        assert deadline.left_ms(START) > 0
        assert deadline.is_lost(at(60_000))


def test_lost_stays_lost() -> None:
    """Once lost it stays lost: no answer that comes later brings it back, and everybody hears of it once."""
    lost: list[str] = []
    deadline = LeaseDeadline("j", 1, START, 1_000)
    deadline.on_loss(lambda: lost.append("before"))
    assert deadline.is_lost(at(1_000))
    deadline.extend(at(999), 60_000)
    deadline.lose(Loss("revoked", is_reported=True))
    deadline.on_loss(lambda: lost.append("after"))
    assert deadline.is_lost(at(1_001)) and deadline.left_ms(at(1_001)) == 0
    assert lost == ["before", "after"]
    assert deadline.error().reason == "expired"


def test_released_deadline_is_not_lost() -> None:
    """Nothing that happens after it was given back is a loss."""
    deadline = LeaseDeadline("j", 1, START, 1_000)
    assert deadline.end() and not deadline.end()
    deadline.lose(Loss("revoked"))
    assert not deadline.is_lost(at(5_000))


def test_renewal_is_due_after_a_third() -> None:
    """A renewal is due after a third of the promise, or up to a tenth earlier, so that not all come at once."""
    deadline = LeaseDeadline("j", 1, START, 60_000)
    assert [deadline.renew_in_ms(START, random_fraction) for random_fraction in (0.0, 0.5, 1.0)] == [
        18_000,
        19_000,
        20_000,
    ]
    assert deadline.renew_in_ms(at(25_000), 0.5) == 0


def test_schedule_returns_due_entries_in_order() -> None:
    """What is due comes in order of time, what was stopped never, and stopped entries are removed once a second."""
    schedule = Schedule()
    a, a2, b, c = (ScheduledFlow(None) for _ in range(4))
    for due_ms, flow in ((30, c), (20, b), (10, a), (10, a2)):
        schedule.add(due_ms, flow)
    b.stopped = True
    assert schedule.next_due_ms() == 10
    assert schedule.take(10) == [a, a2]
    assert schedule.take(29) == []
    assert schedule.take(30) == [c]
    assert (len(schedule), schedule.next_due_ms()) == (0, None)
    for number in range(1_000):
        stopped = ScheduledFlow(None)
        schedule.add(5_000 + number, stopped)
        stopped.stopped = True
    assert schedule.take(2_000) == []
    assert len(schedule) == 0


# I4 at large: a model server and a client whose every step may be late, lost or slept through.


@dataclass
class Model:
    """One lease on a server with its own idea of time, and a client's clocks beside it. Times in microseconds."""

    ttl_us: int
    rate: float
    """How much of a second the client's clocks see pass while the server's sees one."""
    steps: list[tuple[str, int, int]]
    sleeps: list[int]
    server_us: int = 0
    client_us: float = 1e9
    boot_us: float = 3e9
    until_us: int | None = None
    deadline: LeaseDeadline | None = None
    effects: int = 0
    checks: int = 0

    def now(self) -> Instant:
        return Instant(int(self.client_us) // 1_000, int(self.boot_us) // 1_000)

    def pass_us(self, span_us: int, *, asleep: bool = False) -> None:
        """Let time pass, and look at the very moment at which the server's lease ends."""
        end_us = self.server_us + span_us
        if self.until_us is not None and self.server_us < self.until_us <= end_us:
            self._move(self.until_us - self.server_us, asleep)
            self.check()
        self._move(end_us - self.server_us, asleep)

    def _move(self, span_us: int, asleep: bool) -> None:
        self.server_us += span_us
        self.boot_us += span_us * self.rate
        if not asleep:
            self.client_us += span_us * self.rate

    def check(self) -> None:
        """At the end of the server's lease nobody may believe in it any more."""
        if self.deadline is not None:
            self.checks += 1
            assert self.deadline.left_ms(self.now()) == 0, "the client believes longer than the server"

    def send(self, request: Send) -> Answer:
        kind, there_us, back_us = self.steps.pop(0) if self.steps else ("ok", 1_000, 1_000)
        limit_us = int(request.answer_seconds / self.rate * 1_000_000)
        arrives = kind != "lost there"
        self.pass_us(min(there_us, limit_us))
        reply = self.serve(request) if arrives else None
        if there_us + back_us > limit_us or kind.startswith("lost"):
            self.pass_us(max(0, limit_us - there_us))
            raise Unreachable(URL, "the answer did not come in time")
        self.pass_us(back_us, asleep=kind == "asleep")
        if kind == "broken" or reply is None:
            raise Unreachable(URL, "the connection broke")
        return reply

    def serve(self, request: Send) -> Answer:
        """The server's whole memory is when the lease ends."""
        ended = self.until_us is not None and self.until_us <= self.server_us
        if request.path.endswith("/acquire"):
            if ended:
                return problem(404, "lease_not_current", ended="expired")
            waited_us = 0
            if self.until_us is None:
                waited_us = min(self.ttl_us * 2, 20_000_000)
                self.pass_us(waited_us)
                self.until_us = self.server_us + self.ttl_us
            left_ms = (self.until_us - self.server_us) // 1_000
            return acquired(left_ms, max(0, waited_us // 1_000 - 1))
        if ended or self.until_us is None:
            return problem(404, "lease_not_current", ended="expired")
        self.until_us = max(self.until_us, self.server_us + self.ttl_us)
        return renewed((self.until_us - self.server_us) // 1_000)

    def perform(self, effect: Effect) -> object:
        self.effects += 1
        if self.sleeps:
            pause_us = self.sleeps.pop(0)
            self.pass_us(pause_us, asleep=bool(pause_us % 2))
        match effect:
            case Now():
                return self.now()
            case Random():
                return 0.5
            case NewKey():
                return f"key-{self.effects}"
            case Sleep(seconds=seconds):
                self.pass_us(int(seconds * 1_000_000 / self.rate))
                return None
            case Send():
                return self.send(effect)
            case _:
                raise TypeError(type(effect).__name__)

    def drive(self, flow: Flow[object], effects_max: int) -> object:
        step, value = flow.send, None
        limit = self.effects + effects_max
        try:
            while True:
                effect = step(value)
                if isinstance(effect, Sleep) and self.effects > limit:
                    return None
                try:
                    step, value = flow.send, self.perform(effect)
                except Unreachable as error:
                    step, value = flow.throw, error
        except StopIteration as returned:
            return returned.value


_MS = 1_000
_STEP = st.tuples(
    st.sampled_from(["ok", "ok", "ok", "asleep", "broken", "lost there", "lost back"]),
    st.integers(0, 3_000 * _MS),
    st.integers(0, 3_000 * _MS),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    ttl_s=st.integers(1, 90),
    rate=st.floats(0.9995, 1.0005),
    steps=st.lists(_STEP, max_size=20),
    sleeps=st.lists(st.integers(0, 4_000 * _MS), max_size=30),
    asleep=st.booleans(),
)
def test_client_never_believes_longer_than_the_server(
    ttl_s: int, rate: float, steps: list[tuple[str, int, int]], sleeps: list[int], asleep: bool
) -> None:
    """I4: whatever is slow, lost or slept through, and with clocks half a per mille apart, belief ends first."""
    model = Model(ttl_s * 1_000_000, rate, steps, sleeps)
    try:
        got = model.drive(claim("j", ClaimRequest(ttl=ttl_s, owner="o", wait=45), POLICY), 200)
    except HoldfastError:
        return
    if not isinstance(got, AcquiredClaim):
        return
    model.deadline = got.deadline
    if model.until_us is not None and model.until_us <= model.server_us:
        model.check()  # It ended before we heard of it.
    model.drive(
        renewing.keep_renewed(got.deadline, renewing.Renewal(got.claim.lease_id, got.claim.job_id).request, POLICY), 100
    )
    # Then the client hears nothing any more.
    model.pass_us(200_000_000, asleep=asleep)
    assert model.checks
