"""A held claim learns of its end at once, and not at its next renewal (L9); what it costs, and what it leaves alone."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest

from holdfast import Holdfast, LeaseLost
from holdfast.client import clock
from holdfast.client.answers import Answer
from holdfast.client.background import Background, RenewalHandle, ScheduledFlow
from holdfast.client.deadline import LeaseDeadline
from holdfast.client.effects import Close, Effect, Flow, Open, Read, Send
from holdfast.client.lease_flows import RENEWAL_DELAY_MS, Renewal
from holdfast.client.loss_stream import (
    GATHER_SECONDS,
    IDS_PER_CALL,
    NOT_THERE_SECONDS,
    REFUSED_SECONDS,
    LossStream,
)
from holdfast.errors import Unreachable
from holdfast.wire.requests import LeaseWatchBody
from tests.client.driving import AT, POLICY, URL, World, answer, problem, scripted
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import wait_until
from tests.support.server import ServerProcess

LONG = 3_600
"""A ttl whose first renewal comes after twenty minutes."""
SECONDS_MAX = 20.0
STREAM = "44444444-4444-4444-8444-444444444444"


# One client of either kind, and a real server.


def test_revocation_arrives_before_the_next_renewal(either: Any, operator: Api, job: str) -> None:  # noqa: ANN401
    """L9: a claim whose next renewal is twenty minutes away is lost when it is revoked, by whom and why."""
    claim = either.claim(job, ttl=LONG)
    assert operator.revoke(job, reason="wrong branch").status == 204
    wait_until(claim.lost.is_set, seconds_max=SECONDS_MAX)
    with pytest.raises(LeaseLost, match="operator has revoked it: wrong branch"):
        claim.raise_if_lost()
    claim.release()


def test_later_claims_join_the_same_stream(either: Any, operator: Api, job: str) -> None:  # noqa: ANN401
    """One stream serves a client: claims that come while it is open, several at once too, are added to it."""
    first = either.claim(job, ttl=LONG)
    operator.revoke(job, reason="r")
    wait_until(first.lost.is_set, seconds_max=SECONDS_MAX)
    more = either.claim_all([f"{job}/1", f"{job}/2"], ttl=LONG)
    other = either.claim(f"{job}/3", ttl=LONG)
    operator.revoke(f"{job}/2", reason="r")
    wait_until(more.lost.is_set, seconds_max=SECONDS_MAX)
    other.raise_if_lost()
    other.release()
    with pytest.raises(LeaseLost):
        more.release()


def test_session_loss_arrives_on_the_stream(either: Any, operator: Api, job: str) -> None:  # noqa: ANN401
    """L9: a session that somebody else ends is lost at once, with every claim of it."""
    session = either.session("run", ttl=LONG)
    claim = session.claim(job, ttl=LONG)
    either.end_session(session.session_id)
    wait_until(lambda: session.lost.is_set() and claim.lost.is_set(), seconds_max=SECONDS_MAX)
    with pytest.raises(LeaseLost, match="its session has ended"):
        claim.raise_if_lost()
    with pytest.raises(LeaseLost):
        session.end()


def test_session_keeps_running_when_an_operator_transfers_its_claim(either: Any, operator: Api, job: str) -> None:  # noqa: ANN401
    """L8a, L9: the old owner loses the claim with the reason `transferred`, and the claim outlives its session."""
    session = either.session("run", ttl=LONG)
    claim = session.claim(job, ttl=LONG)
    assert operator.hand_over(job, to_owner="ben", reason="ill").status == 204
    wait_until(claim.lost.is_set, seconds_max=SECONDS_MAX)
    with pytest.raises(LeaseLost) as loss:
        claim.raise_if_lost()
    assert (loss.value.reason, loss.value.by, loss.value.why) == ("transferred", "operator", "ill")
    session.end()
    taken = either.claim_job(job, "ben", resume=True)
    assert taken.reacquired and taken.fencing_token > claim.fencing_token
    either.release_job(job, taken.lease_id)


def test_session_ends_with_its_token(open_client: Callable[..., Any], operator: Api, job: str) -> None:
    """L9, S5: a token that is revoked before anything is followed takes its session along, and that is told at once.

    Nobody is let in with it any more, neither to follow nor to renew: the secret of the session is asked.
    """
    made = operator.post("/tokens", {"name": job}).json()
    session = open_client(made["token"]).session("run", ttl=LONG)
    claim = session.claim(job, ttl=LONG)
    assert operator.delete(f"/tokens/{job}").status == 204
    wait_until(lambda: session.lost.is_set() and claim.lost.is_set(), seconds_max=SECONDS_MAX)
    with pytest.raises(LeaseLost, match="its session has ended"):
        claim.raise_if_lost()
    with pytest.raises(LeaseLost, match="it has ended"):
        session.end()


def test_own_release_is_not_a_loss(open_client: Callable[..., Any], operator: Api, job: str) -> None:
    """A release and a transfer of our own are told on the stream like any end, and nobody is told of a loss."""
    either = open_client()
    reported: list[object] = []
    claims = [either.claim(f"{job}/{number}", ttl=LONG, on_lost=reported.append) for number in range(3)]
    operator.revoke(f"{job}/2", reason="r")
    wait_until(claims[2].lost.is_set, seconds_max=SECONDS_MAX)  # So all three are followed by now.
    claims[0].release()
    claims[1].transfer("next")
    last = either.claim(f"{job}/3", ttl=LONG)
    operator.revoke(f"{job}/3", reason="r")
    wait_until(last.lost.is_set, seconds_max=SECONDS_MAX)  # So the stream has told of what was before.
    assert len(reported) == 1
    assert not claims[0].lost.is_set() and not claims[1].lost.is_set()
    for lost in (claims[2], last):
        with pytest.raises(LeaseLost):
            lost.release()


def test_stream_reopens_after_a_restart(
    open_client: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory, job: str
) -> None:
    """A stream that breaks is opened again with all that is held."""
    with ServerProcess.start(tmp_path_factory.mktemp("again") / "data", tokens=callers.TOKENS) as server:
        either = open_client(url=server.url)
        claims = [either.claim(f"{job}/{number}", ttl=LONG) for number in range(2)]
        Api.of(server, callers.OPERATOR).revoke(f"{job}/0", reason="r")
        wait_until(claims[0].lost.is_set, seconds_max=SECONDS_MAX)
        server.kill()
        with server.restart() as again:
            Api.of(again, callers.OPERATOR).revoke(f"{job}/1", reason="later")
            wait_until(claims[1].lost.is_set, seconds_max=SECONDS_MAX)
        for claim in claims:
            with pytest.raises(LeaseLost):
                claim.release()


def test_listening_ends_when_nothing_is_held(server: ServerProcess, client: Holdfast, operator: Api, job: str) -> None:
    """The thread that listens ends with the last claim; one that was dropped does not keep it."""
    claim = client.claim(job, ttl=LONG)
    wait_until(_listeners, seconds_max=SECONDS_MAX)
    claim.release()
    with pytest.warns(ResourceWarning, match="dropped while held"):
        _claim_and_drop(client, f"{job}/dropped")
    last = client.claim(f"{job}/last", ttl=LONG)
    operator.revoke(f"{job}/last", reason="r")
    assert last.lost.wait(SECONDS_MAX)
    wait_until(lambda: not _listeners(), seconds_max=SECONDS_MAX)
    with pytest.raises(LeaseLost):
        last.release()


def _claim_and_drop(client: Holdfast, job: str) -> None:
    client.claim(job, ttl=LONG)
    gc.collect()


def _listeners() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "holdfast-ends"]


def test_forked_process_has_a_stream_of_its_own(client: Holdfast, operator: Api, job: str) -> None:
    """What a child claims is heard of by the child, although the parent listens already."""
    claim = client.claim(job, ttl=LONG)
    wait_until(_listeners, seconds_max=SECONDS_MAX)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            inner = client.claim(f"{job}/child", ttl=LONG)
            code = 0 if inner.lost.wait(SECONDS_MAX) else 2
        finally:
            os._exit(code)
    wait_until(lambda: operator.revoke(f"{job}/child", reason="r").status == 204, seconds_max=SECONDS_MAX)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    claim.raise_if_lost()
    claim.release()


# The flows, in a world of their own.


class Stream:
    """A stream that says what it is told to say, and then ends or breaks."""

    def __init__(self, status: int, parts: Iterable[bytes | BaseException | Callable[[], object]]) -> None:
        self.status = status
        self.parts = list(parts)
        self.is_closed = False


class Streaming(World):
    """A world in which streams can be opened."""

    def __init__(self, *streams: Stream | BaseException) -> None:
        super().__init__(scripted(answer(200, stream=STREAM, following=1, ended=[], unknown=[])))
        self.streams = list(streams)
        self.opened: list[LeaseWatchBody] = []

    def perform(self, effect: Effect) -> Any:  # noqa: ANN401 - each effect has a result of its own
        match effect:
            case Open(body=LeaseWatchBody() as body, path="/leases/watch", method="POST"):
                self.opened.append(body)
                stream = self.streams.pop(0)
                if isinstance(stream, BaseException):
                    raise stream
                return stream
            case Read(stream=stream):
                while stream.parts:
                    part = stream.parts.pop(0)
                    if isinstance(part, BaseException):
                        raise part
                    if isinstance(part, bytes):
                        return part
                    part()
                return b""
            case Close(stream=stream):
                stream.is_closed = True
                return None
            case _:
                return super().perform(effect)


class StreamedLosses:
    """A loss stream whose flows are held until the test runs them."""

    def __init__(self) -> None:
        self.pending: list[Flow[None]] = []
        self.listening: list[Flow[None]] = []
        self.stream = LossStream(POLICY, self.pending.append, self.listening.append)
        self.world = Streaming()

    def claimed(self, number: int = 0, *, is_session: bool = False) -> LeaseDeadline:
        """Claim something, and let it live for a while."""
        deadline = LeaseDeadline(f"j{number}", 1, self.world.now(), LONG * 1_000)
        self.stream.watch(deadline, Renewal(f"id-{number}", None if is_session else f"j{number}"))
        return deadline

    def run_pending(self) -> None:
        while self.pending:
            self.run_kept_once()

    def run_kept_once(self) -> None:
        self.world.run(self.pending.pop(0))


def _following(*ended: dict[str, object]) -> bytes:
    said = {"stream": STREAM, "following": 1, "ended": list(ended), "unknown": []}
    return b"event: following\ndata: " + msgspec.json.encode(said) + b"\n\n"


def _end(number: int, how: str = "revoked", *, name: str | None = "") -> dict[str, object]:
    said = f"j{number}" if name == "" else name
    return {"id": f"id-{number}", "name": said, "ended": how, "at": AT, "by": "ops", "reason": "why"}


def _ended(number: int, how: str = "revoked", *, name: str | None = "") -> bytes:
    return b"event: ended\ndata: " + msgspec.json.encode(_end(number, how, name=name)) + b"\n\n"


def test_short_claims_cost_nothing() -> None:
    """A claim that is given back within half a second is neither renewed nor followed; one that lives longer is."""
    losses, background = StreamedLosses(), RecordingBackground()
    now = clock.now()
    deadlines = [LeaseDeadline(f"j{number}", 1, now, LONG * 1_000) for number in range(3)]
    renewals = [Renewal(deadline.job_id, deadline.job_id) for deadline in deadlines]
    handle = [
        RenewalHandle(background, deadline, renewal, send=lambda _: None, loss_stream=losses.stream)
        for deadline, renewal in zip(deadlines, renewals, strict=True)
    ]
    assert background.due_ms == [now.boot_ms + RENEWAL_DELAY_MS] * 3
    deadlines[0].end()
    handle[1].stop()
    del handle[1]
    for begins in tuple(background.scheduled):
        background._resume(begins)
    assert list(losses.stream._held) == ["j2"]
    assert len(background.due_ms) == 5  # One watches the deadline of the third, and one renews it.
    handle[-1].stop()
    assert [each.is_over for each in background.scheduled] == [False, True, True, True, True]


def test_a_claim_whose_answer_took_long_is_renewed() -> None:
    """Where the moment to begin is past already, the background may begin before the claim is complete: it is renewed
    and followed all the same.
    """
    losses, background = StreamedLosses(), ImmediateBackground()
    deadline = LeaseDeadline("j0", 1, clock.now(), LONG * 1_000)
    handle = RenewalHandle(background, deadline, Renewal("id-0", "j0"), send=lambda _: None, loss_stream=losses.stream)
    assert list(losses.stream._held) == ["id-0"]
    assert len(background.scheduled) == 3  # The beginning, one that watches the deadline, and one that renews.
    handle.stop()
    assert all(each.is_over for each in background.scheduled[1:])


class RecordingBackground(Background):
    """Takes note of what rests, and resumes nothing."""

    def __init__(self) -> None:
        self.scheduled: list[ScheduledFlow] = []
        self.due_ms: list[int] = []

    def _resume_at(self, scheduled: ScheduledFlow, due_ms: int) -> None:
        self.scheduled.append(scheduled)
        self.due_ms.append(due_ms)

    def _ask(self, running: ScheduledFlow, request: Send) -> None:
        pytest.fail("something was asked")


class ImmediateBackground(RecordingBackground):
    """Begins what is to begin before whoever wanted it goes on, as another thread may."""

    def _resume_at(self, scheduled: ScheduledFlow, due_ms: int) -> None:
        super()._resume_at(scheduled, due_ms)
        if len(self.scheduled) == 1:
            self._resume(scheduled)


def test_simultaneous_claims_share_one_request() -> None:
    """However many claims come within a moment, they open one stream, or add to it with one request."""
    losses = StreamedLosses()
    deadlines = [losses.claimed(number) for number in range(3)]
    assert len(losses.pending) == 1
    losses.run_pending()
    assert len(losses.listening) == 1
    later: list[LeaseDeadline] = []

    def claim_more() -> None:
        later.extend(losses.claimed(number) for number in (3, 4))
        later[1].end()
        losses.run_pending()

    losses.world.streams = [Stream(200, [_following(), claim_more, _ended(3)])]
    losses.world.streams.append(Unreachable(URL, "gone"))
    losses.world.on_sleep = lambda _seconds: [deadline.end() for deadline in deadlines]  # So that listening ends.
    losses.world.run(losses.listening[0])
    assert [sorted(body.leases) for body in losses.world.opened] == [["j0", "j1", "j2"]]
    assert losses.world.paths == [f"POST /lease-watches/{STREAM}"]
    assert losses.world.sent[0].body == LeaseWatchBody(leases={"j3": "id-3"}, sessions=[])
    assert later[0].loss is not None and later[0].loss.reason == "revoked"


@pytest.mark.parametrize("lost", [Unreachable(URL, "cut"), answer(503), answer(401)], ids=["cut", "503", "401"])
def test_failed_additions_are_retried(lost: Answer | BaseException) -> None:
    """L9: a request to follow that is lost is sent again, although the stream itself lives on."""
    losses = StreamedLosses()
    first = losses.claimed(0)
    losses.run_pending()
    losses.world.network = scripted(lost, answer(200, stream=STREAM, following=1, ended=[], unknown=[]))

    later: list[LeaseDeadline] = []

    def claim_more() -> None:
        later.append(losses.claimed(1))
        losses.run_pending()
        first.end()

    losses.world.streams = [Stream(200, [_following(), claim_more, _ended(1)]), Unreachable(URL, "gone")]
    losses.world.run(losses.listening[0])
    bodies = [request.body for request in losses.world.sent]
    assert bodies == 2 * [LeaseWatchBody(leases={"j1": "id-1"}, sessions=[])]


def test_a_new_claim_does_not_wait_for_a_retry() -> None:
    """L9: a claim that is made while a request to follow another is to be sent again is followed without that pause."""
    losses = StreamedLosses()
    first = losses.claimed(0)
    losses.run_pending()
    losses.world.network = scripted(answer(401), answer(200, stream=STREAM, following=1, ended=[], unknown=[]))
    later: list[LeaseDeadline] = []
    rested: list[float] = []

    def claim_more() -> None:
        later.append(losses.claimed(1))
        losses.run_kept_once()
        later.append(losses.claimed(2))
        losses.world.on_sleep = rested.append
        losses.world.run(losses.pending.pop())
        first.end()

    losses.world.streams = [Stream(200, [_following(), claim_more, _ended(1), _ended(2)]), Unreachable(URL, "gone")]
    losses.world.run(losses.listening[0])
    assert [request.body for request in losses.world.sent][1:] == [
        LeaseWatchBody(leases={"j1": "id-1", "j2": "id-2"}, sessions=[])
    ]
    assert rested[0] == GATHER_SECONDS


def test_unknown_leases_are_renewed_immediately() -> None:
    """L9: a server that was restored from a backup does not know a lease. Its holder asks, and hears that."""
    losses = StreamedLosses()
    deadline = losses.claimed(0)
    losses.run_pending()
    losses.world.network = scripted(problem(404, "lease_not_current"))
    said = {"stream": STREAM, "following": 0, "ended": [], "unknown": ["id-0"]}
    data = b"event: following\ndata: " + msgspec.json.encode(said) + b"\n\n"
    losses.world.streams = [Stream(200, [data, losses.run_pending])]
    losses.world.run(losses.listening[0])
    losses.run_pending()
    assert losses.world.paths == ["POST /locks/j0/renew"]
    assert deadline.loss is not None


def test_many_leases_are_followed_in_batches() -> None:
    """A server takes so many ids in a call; the rest is added as soon as the stream is open."""
    losses = StreamedLosses()
    deadlines = [losses.claimed(number) for number in range(2 * IDS_PER_CALL + 1)]
    losses.run_pending()
    losses.world.streams = [
        Stream(200, [_following(), lambda: [deadline.end() for deadline in deadlines], b": keepalive\n\n"])
    ]
    losses.world.run(losses.listening[0])
    asked = [*losses.world.opened, *(request.body for request in losses.world.sent)]
    assert [len(body.leases) for body in asked if isinstance(body, LeaseWatchBody)] == [IDS_PER_CALL, IDS_PER_CALL, 1]


@pytest.mark.parametrize(
    ("how", "name", "reason"),
    [
        ("revoked", "", "revoked"),
        ("expired", "", "expired"),
        ("transferred", "", "transferred"),
        ("released", "", "released"),
        ("deleted", None, "session_ended"),
    ],
)
def test_reported_end_is_a_loss_like_a_refused_renewal(how: str, name: str | None, reason: str) -> None:
    """The same reasons as a renewal that is refused; cut anywhere on the way, and told at once if it came before."""
    for parts in ([_following(), _ended(0, how, name=name)[:20], _ended(0, how, name=name)[20:]], None):
        losses = StreamedLosses()
        deadline = losses.claimed(0, is_session=name is None)
        losses.run_pending()
        losses.world.streams = [Stream(200, parts or [_following(_end(0, how, name=name))]), Stream(404, [])]
        losses.world.run(_until(losses, deadline))
        assert deadline.loss is not None and (deadline.loss.reason, deadline.loss.is_reported) == (reason, True)


def _until(losses: StreamedLosses, deadline: LeaseDeadline) -> Flow[None]:
    """Listen, and run what is pending, until the lease is lost."""
    flow = losses.listening[0]
    value: Any = None
    while deadline.loss is None:
        effect = flow.send(value)
        losses.run_pending()
        value = losses.world.perform(effect)
    yield from ()


def test_release_by_lease_id_is_reported_later() -> None:
    """A command that gives its own run's claim back as its last act is not stopped for it; one that goes on is."""
    losses = StreamedLosses()
    deadline = losses.claimed(0)
    losses.run_pending()
    losses.world.streams = [Stream(200, [_following(), _ended(0, "released")]), Unreachable(URL, "gone")]
    losses.world.on_sleep = lambda _seconds: deadline.end()
    losses.world.run(losses.listening[0])
    assert len(losses.pending) == 1, "it would be lost later"
    losses.run_pending()
    assert deadline.loss is None


@pytest.mark.parametrize(
    ("stream", "seconds_min"),
    [
        (Stream(404, []), NOT_THERE_SECONDS / 2),
        (Stream(405, []), NOT_THERE_SECONDS / 2),
        (Stream(401, []), REFUSED_SECONDS / 2),
        (Stream(429, []), REFUSED_SECONDS / 2),
        (Stream(503, []), 0.1),
        (Stream(200, [b"event: following\ndata: nonsense\n\n"]), 0.1),
        (Stream(200, [b"x" * 2_000_000]), 0.1),
        (Unreachable(URL, "refused"), 0.1),
    ],
)
def test_client_works_without_the_stream(stream: Stream | BaseException, seconds_min: float) -> None:
    """An older server, a refusal, nonsense, or nobody there: nothing is lost by it, and it is not asked without end."""
    losses = StreamedLosses()
    deadline = losses.claimed(0)
    losses.run_pending()
    sleeps: list[float] = []

    def rest(seconds: float) -> None:
        sleeps.append(seconds)
        deadline.end()

    losses.world.on_sleep = rest
    losses.world.streams = [stream]
    losses.world.run(losses.listening[0])
    assert deadline.loss is None
    assert sleeps[0] >= seconds_min
    assert isinstance(stream, BaseException) or stream.is_closed
