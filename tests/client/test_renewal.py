"""Renewing as flows: in time, through a blip, until a real loss with its reason. No clock runs here."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.client import lease_flows as renewing
from holdfast.client.answers import Answer
from holdfast.client.claim_flows import claim
from holdfast.client.deadline import LeaseDeadline, Loss, lost_error, safe_ms
from holdfast.client.effects import Send
from holdfast.client.event_flows import Follower
from holdfast.client.lease_flows import (
    ANSWER_SHARE,
    Renewal,
    keep_renewed,
    open_session,
    watch_deadline,
)
from holdfast.client.options import ClaimRequest
from holdfast.errors import Refused, ServerError, Unreachable
from tests.client.driving import (
    AT,
    BROKEN,
    HOLDER,
    LEASE,
    POLICY,
    URL,
    World,
    acquired,
    after,
    answer,
    bodies,
    no_answer,
    problem,
    renewed,
    scripted,
)

STOP = problem(404, "lease_not_current", ended="released")
TTL_MS = 60_000


def renew_with(*steps: object, random_fraction: float = 0.5) -> tuple[World, LeaseDeadline]:
    """Keep a lease of a minute against a script; the last step stays."""
    world = World(scripted(*steps), random_fraction=random_fraction)  # type: ignore[arg-type]
    deadline = LeaseDeadline("j", 7, world.now(), TTL_MS)
    claimed = World(scripted(acquired())).run(claim("j", ClaimRequest(ttl=60, owner="o"), POLICY)).claim
    world.run(keep_renewed(deadline, Renewal(claimed.lease_id, claimed.job_id).request, POLICY))
    return world, deadline


@pytest.mark.parametrize(("random_fraction", "seconds"), [(0.0, 18.0), (0.5, 19.0), (1.0, 20.0)])
def test_renewed_at_a_third(random_fraction: float, seconds: float) -> None:
    """A lease is renewed after a third of its ttl, a little earlier by chance, again and again."""
    world, _ = renew_with(renewed(), renewed(), STOP, random_fraction=random_fraction)
    assert world.sleeps == [seconds] * 3
    assert world.paths == ["POST /locks/j/renew"] * 3
    assert bodies(world.sent)[0] == {"lease_id": LEASE, "keep_ttl": True}


@pytest.mark.parametrize("promised_ms", [0, -60_000, 10, 300, 10**15])
def test_strange_promises_do_not_make_it_spin(promised_ms: int) -> None:
    """A server that promises next to nothing is not asked without end: what it says is believed, and is over."""
    world, deadline = renew_with(*[renewed(promised_ms)] * 20, STOP)
    assert deadline.loss is not None
    assert min(world.sleeps) >= renewing.AGAIN_SECONDS_MIN
    assert len(world.sent) <= 21


def test_hurried_tries_do_not_change_the_reason() -> None:
    """A server that answered, and refused, is what a loss is put down to, though the last tries had no time left."""

    def refuse_or_be_late(world: World, request: Send) -> Answer:
        return problem(400, "some_code") if request.answer_seconds >= 0.5 else no_answer(world, request)

    _, deadline = renew_with(refuse_or_be_late)
    assert deadline.loss is not None and deadline.loss.reason == "refused"


def test_blip_is_survived() -> None:
    """Failures in between cost nothing as long as one renewal gets through in time."""
    world, deadline = renew_with(
        BROKEN, problem(503, "storage_unavailable"), no_answer, problem(429, "slow"), renewed(), STOP
    )
    assert len(world.sent) == 6
    assert deadline.loss == Loss("released", is_reported=True)
    assert deadline.trouble is None


def test_renewal_counts_from_before_it_was_sent() -> None:
    """T4: a renewal that was answered late is worth what is left of it."""
    world = World(scripted(after(5, renewed()), STOP))
    deadline = LeaseDeadline("j", 7, world.now(), TTL_MS)
    flow = keep_renewed(deadline, lambda seconds: Send("POST", "/renew", answer_seconds=seconds), POLICY)
    effect = next(flow)
    while not world.sent:
        effect = flow.send(world.perform(effect))
        if isinstance(effect, Send):
            effect = flow.send(world.perform(effect))
    assert deadline.left_ms(world.now()) == safe_ms(TTL_MS) - 5_000
    flow.close()


@pytest.mark.parametrize(
    ("step", "reason", "reported"),
    [
        (BROKEN, "unreachable", False),
        (no_answer, "unreachable", False),
        (problem(500, "internal"), "unreachable", False),
        (problem(403, "forbidden"), "refused", False),
        (problem(401, "authentication_failed"), "refused", False),
        (answer(200, nonsense=1), "refused", False),
        (ServerError("more than anybody can read"), "refused", False),
        (problem(404, "lease_not_current", ended="expired"), "expired", True),
        (problem(404, "revoked", by="op", reason="because"), "revoked", True),
        (problem(404, "lease_not_current", ended="session_ended"), "session_ended", True),
        (problem(410, "session_expired"), "session_ended", True),
        (problem(404, "not_found"), "session_ended", True),
    ],
)
def test_loss_has_its_reason(step: object, reason: str, reported: bool) -> None:
    """A loss says why: what the server said at once, what went wrong in between when the time is over."""
    world, deadline = renew_with(step)
    assert deadline.loss is not None
    assert (deadline.loss.reason, deadline.loss.is_reported) == (reason, reported)
    assert deadline.error().reason == reason
    if reported:
        assert len(world.sent) == 1, "what the server has said is not asked again"
    else:
        assert len(world.sent) > 5, "it is tried again and again"
        assert deadline.left_ms(world.now()) == 0


def test_words_of_a_loss() -> None:
    """L7: the exception names the job and its token, and for a revocation who did it and why."""
    _, deadline = renew_with(problem(404, "revoked", by="op", reason="because"))
    error = deadline.error()
    assert (error.job_id, error.fencing_token, error.by, error.why) == ("j", 7, "op", "because")
    assert "op has revoked it: because" in str(error)
    assert "would not renew" in str(lost_error("the claim on j", Loss("refused", why="no")))


def test_unreachable_is_lost_before_the_lease_ends() -> None:
    """I4: nobody answers any more; the loss comes strictly before the lease can have ended."""
    world = World(scripted(no_answer))
    began = world.now()
    deadline = LeaseDeadline("j", 7, began, TTL_MS)
    world.run(keep_renewed(deadline, lambda seconds: Send("POST", "/renew", answer_seconds=seconds), POLICY))
    assert deadline.loss == Loss("unreachable", why="the answer did not come in time")
    assert world.now().boot_ms - began.boot_ms < TTL_MS


def test_hanging_try_leaves_time_for_another() -> None:
    """A try may take half of what is left at most, so that a hanging one is never the last."""
    world = World(scripted(no_answer))
    deadline = LeaseDeadline("j", 7, world.now(), 6_000)
    lefts: list[float] = []

    def request(seconds: float) -> Send:
        lefts.append(deadline.left_ms(world.now()) / 1_000)
        return Send("POST", "/renew", answer_seconds=seconds)

    world.run(keep_renewed(deadline, request, POLICY))
    assert len(lefts) > 4
    for sent, left in zip(world.sent, lefts, strict=True):
        assert sent.answer_seconds <= max(left * ANSWER_SHARE, renewing.AGAIN_SECONDS_MIN) + 1e-9


def test_sleep_of_the_machine_is_noticed() -> None:
    """T4: a machine that slept through the ttl finds the claim lost before it sends or believes anything."""
    world = World(scripted(renewed()))
    deadline = LeaseDeadline("j", 7, world.now(), TTL_MS)
    world.on_sleep = lambda _: world.suspend(61)
    world.run(keep_renewed(deadline, lambda seconds: Send("POST", "/renew"), POLICY))
    assert deadline.loss == Loss("expired")
    assert world.sent == []


def test_deadline_watch_waits_for_time_only() -> None:
    """The deadline is watched beside the renewals: a hanging one cannot hide it."""
    world = World(scripted(no_answer))
    began = world.now()
    deadline = LeaseDeadline("j", 7, began, TTL_MS)
    world.run(watch_deadline(deadline))
    assert deadline.loss == Loss("expired") and world.sent == []
    assert world.now().boot_ms - began.boot_ms == safe_ms(TTL_MS)


def test_watch_ends_with_the_claim() -> None:
    """What was given back is not watched any more."""
    world = World(scripted(no_answer))
    deadline = LeaseDeadline("j", 7, world.now(), TTL_MS)
    world.on_sleep = lambda _: deadline.end()
    world.run(watch_deadline(deadline))
    assert deadline.loss is None and len(world.sleeps) == 1


def test_released_claim_is_not_renewed() -> None:
    """A lease that was given back while its renewal rested is not renewed."""
    world = World(scripted(renewed()))
    deadline = LeaseDeadline("j", 7, world.now(), TTL_MS)
    world.on_sleep = lambda _: deadline.end()
    world.run(keep_renewed(deadline, lambda seconds: Send("POST", "/renew"), POLICY))
    assert world.sent == []


def test_reported_loss_wins_over_the_clock() -> None:
    """A loss the server reported of stays the reason, though the time passes afterwards too."""
    world, deadline = renew_with(problem(404, "revoked", by="op", reason="because"))
    world.advance(600)
    assert deadline.is_lost(world.now())
    assert deadline.loss is not None and deadline.loss.reason == "revoked"


# Sessions.

OPENED = answer(
    201,
    session_id=HOLDER,
    expires_at=AT,
    keepalive_interval_secs=20,
    session_secret="secret",
    expires_in_ms=TTL_MS,
    name="n",
    metadata=None,
)


def test_session_renewal_includes_its_leases() -> None:
    """S4: one request keeps a session and every lease that is bound to it."""
    assert Renewal(HOLDER, None).request(1.5) == Send("POST", f"/sessions/{HOLDER}/renew-all", answer_seconds=1.5)


UNKNOWN = problem(401, "authentication_failed")


def _renew_session(*steps: object) -> tuple[World, LeaseDeadline]:
    """Keep a session of a minute against a script, until its second renewal at the latest."""
    world = World(scripted(*steps))  # type: ignore[arg-type]
    deadline = LeaseDeadline("", None, world.now(), TTL_MS)
    renewal = Renewal(HOLDER, None, "its-secret")
    world.run(keep_renewed(deadline, renewal.request, POLICY, renewal.ended_check))
    return world, deadline


def test_session_that_ended_with_its_token_is_lost_at_once() -> None:
    """S5: where our token is refused, the session's own secret is asked, and reported that the session is over."""
    world, deadline = _renew_session(UNKNOWN, problem(410, "session_expired"))
    assert world.paths == [f"POST /sessions/{HOLDER}/renew-all", f"GET /sessions/{HOLDER}"]
    assert [request.bearer for request in world.sent] == [None, "its-secret"]
    assert deadline.loss == Loss("session_ended", is_reported=True)
    assert "its-secret" not in repr(world.sent)


@pytest.mark.parametrize(
    "said",
    [UNKNOWN, problem(429, "too_many_wrong_tokens"), *map(answer, (401, 410, 404, 200)), no_answer, BROKEN],
)
def test_token_that_is_refused_ends_nothing_by_itself(said: object) -> None:
    """A refusal may be odd, or a rotation whose new token is on its way: as long as the session may live it is kept."""
    renewed_again = answer(200, session_id=HOLDER, expires_at=AT, expires_in_ms=TTL_MS, renewed=0)
    world, deadline = _renew_session(UNKNOWN, said, renewed_again, problem(404, "not_found"))
    assert world.paths[:3] == [f"POST /sessions/{HOLDER}/renew-all", f"GET /sessions/{HOLDER}", world.paths[0]]
    assert len(world.sent) == 4, "the third renewed it, and only the fourth said that it is over"
    assert deadline.loss == Loss("session_ended", is_reported=True)


def test_session_counts_from_the_first_try() -> None:
    """T4: a session counts from before the first try, because a retry may hear of what that one began."""
    world = World(scripted(no_answer, OPENED))
    began = world.now()
    _, deadline = world.run(open_session(POLICY, name="n", ttl_seconds=60, metadata=None))
    assert deadline.left_ms(began) == safe_ms(TTL_MS)
    assert world.keys == ["key-1", "key-1"]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), asyncio.CancelledError()])
def test_interrupted_session_is_ended(interrupt: BaseException) -> None:
    """An interrupt while a session is opened ends it: nothing is left behind that nobody knows of."""
    world = World(scripted(interrupt, OPENED, answer(204)))
    with pytest.raises(type(interrupt)):
        world.run(open_session(POLICY, name="n", ttl_seconds=60, metadata=None))
    assert world.paths[-1] == f"DELETE /sessions/{HOLDER}"
    assert world.keys[:2] == ["key-1", "key-1"]


# Following.


class Stream:
    """What comes of an opened stream, part by part; an exception is raised."""

    def __init__(self, status: int, *parts: bytes | Exception) -> None:
        self.status = status
        self.parts = list(parts)


class Line(World):
    """A world in which streams are opened one after another."""

    def __init__(self, *streams: Stream | Exception) -> None:
        super().__init__(scripted(no_answer))
        self.streams = list(streams)
        self.headers: list[dict[str, str]] = []

    def perform(self, effect: object) -> object:
        match type(effect).__name__:
            case "Open":
                self.headers.append(dict(effect.headers))  # type: ignore[attr-defined]
                found: object = self.streams.pop(0)
            case "Read":
                parts = effect.stream.parts  # type: ignore[attr-defined]
                found = parts.pop(0) if parts else b""
            case "Close":
                return None
            case _:
                return super().perform(effect)  # type: ignore[arg-type]
        if isinstance(found, Exception):
            raise found
        return found


def frame(seq: int, name: str) -> bytes:
    change = {"seq": seq, "at": AT, "event": "acquired", "name": name}
    rest = {"owner": None, "fencing_token": 1, "by": None, "reason": None}
    body = answer(200, seq=seq, changes=[{**change, **rest}]).body
    return b"id: %d\nevent: change\ndata: %s\n\n" % (seq, body)


def test_followed_through_broken_connections() -> None:
    """I16: a follower goes on behind the last event it has seen, whatever breaks: a stream, a frame, the server."""
    data = frame(5, "a") + frame(6, "b")
    line = Line(
        Stream(200, b": from 4\n\n", data[:70], data[70:]),
        BROKEN,
        Stream(503, b"busy"),
        Stream(200, frame(7, "c")[:30], Unreachable(URL, "broke")),
        Stream(200, frame(7, "c")),
    )
    follower = Follower(POLICY, None, None)
    seen: list[str] = []
    while len(seen) < 3:
        seen += [event.job_id for event in line.run(follower.more())]
    assert seen == ["a", "b", "c"]
    assert [headers.get("Last-Event-ID") for headers in line.headers] == [None, "6", "6", "6", "6"]


def test_last_event_id_is_sent_unchanged() -> None:
    """N-32: the id of an event is sent back as it came: it may say after which restore it was made."""
    reported = [frame(seq, "a").replace(b"id: ", b"id: 2.") for seq in (7, 8)]
    line = Line(
        Stream(200, b"id: 2.6\n\n"), Stream(200, reported[0]), Stream(200, b": from 2.7\n\n"), Stream(200, reported[1])
    )
    follower = Follower(POLICY, None, None)
    assert [event.seq for _ in range(2) for event in line.run(follower.more())] == [7, 8]
    assert [headers.get("Last-Event-ID") for headers in line.headers] == [None, "2.6", "2.7", "2.7"]


def part(seq: int, name: str, number: int, parts: int) -> bytes:
    """One part of a record; only the last has an id."""
    data = frame(seq, name).replace(b'"changes"', b'"part":%d,"parts":%d,"changes"' % (number, parts))
    return data if number == parts else data.partition(b"\n")[2]


def test_parts_of_a_record_are_yielded_together() -> None:
    """I16: a record that comes in parts is yielded once, when all parts have arrived, even through a broken stream."""
    line = Line(
        Stream(200, frame(6, "a"), part(7, "b", 1, 3), part(7, "c", 2, 3)),
        Stream(200, part(7, "b", 1, 3) + part(7, "c", 2, 3)[:40], Unreachable(URL, "broke")),
        Stream(200, part(7, "b", 1, 3), part(7, "c", 2, 3) + part(7, "d", 3, 3) + frame(8, "e")),
    )
    follower = Follower(POLICY, None, 5)
    reported: list[list[str]] = []
    while sum(map(len, reported)) < 5:
        reported.append([event.job_id for event in line.run(follower.more())])
    assert reported == [["a"], ["b", "c", "d", "e"]]
    assert [headers.get("Last-Event-ID") for headers in line.headers] == ["5", "6", "6"]
    endless = Line(Stream(200, part(7, "b", 1, 1_000_000)))
    with pytest.raises(ServerError, match="parts"):
        endless.run(Follower(POLICY, None, 5).more())


def test_cut_off_before_the_first_event() -> None:
    """A follower that is cut off before anything happened goes on from where the server said it begins."""
    line = Line(Stream(200, b": from 41\n\n"), Stream(200, frame(42, "a")))
    assert [event.seq for event in line.run(Follower(POLICY, "p", None).more())] == [42]
    assert line.headers[1]["Last-Event-ID"] == "41"


def test_follower_reports_invalid_streams() -> None:
    """A refusal is raised at once, and a server that never answers after a while."""
    with pytest.raises(Refused) as caught:
        Line(Stream(403, problem(403, "forbidden").body)).run(Follower(POLICY, None, None).more())
    assert caught.value.code == "forbidden"
    with pytest.raises(Unreachable):
        Line(*[BROKEN] * 100).run(Follower(POLICY, None, None).more())


def test_gap_is_yielded_as_resync() -> None:
    """I16: what is no longer kept comes as `resync`."""
    line = Line(Stream(200, b'event: resync\ndata: {"seq": 9}\n\n'))
    (event,) = line.run(Follower(POLICY, None, 3).more())
    assert (event.event, event.seq, event.at) == ("resync", 9, None)
    assert line.headers == [{"Accept": "text/event-stream", "Last-Event-ID": "3"}]


def test_answer_is_a_value() -> None:
    """What is not JSON reads as nothing rather than as a guess."""
    assert Answer(200, {}, b"<html>").json() is None
    assert Answer(200, {}, b"[1]").json() == [1]
