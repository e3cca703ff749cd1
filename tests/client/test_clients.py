"""What both clients do, against a real server: each body is run by the one for threads and the one for coroutines."""

# ruff: noqa: PT012 - a block that raises in the end is what many of these tests are about.

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast import (
    Deadlock,
    JobClaim,
    JobDone,
    JobHeld,
    LeaseLost,
    LeaseReleased,
    NotAllowed,
    NotInTime,
    QueuePosition,
    Refused,
    SettingsError,
    Unreachable,
)
from tests.client.both import KINDS, Both, Either
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.server import ServerProcess

Open = Callable[..., Either]


class Text(str):
    """A text as a library may make it; what it calls itself is not what it is."""

    __slots__ = ()

    def __str__(self) -> str:
        return "another text"


def test_texts_of_other_classes_are_texts(either: Either, job: str) -> None:
    """Names, owners, notes and metadata may be of a class that is a text or a number: they travel as what they are."""
    metadata = {"model": Text("m"), "tries": type("Count", (int,), {})(3), "share": type("Share", (float,), {})(0.5)}
    with either.claim(Text(job), owner=Text("ana"), metadata=metadata) as claim:
        assert (claim.owner, claim.metadata) == ("ana", {"model": "m", "tries": 3, "share": 0.5})
        claim.note(Text("half done"))
        owner = either.get_job_owner(Text(job))
        assert owner is not None and owner.note == "half done"


def test_unencodable_metadata_is_refused(either: Either, job: str) -> None:
    """A note that is no text is an error of the caller's that names it, and the claim goes on."""
    with either.claim(job) as claim:
        with pytest.raises(TypeError, match="object object"):
            claim.note(object())
        assert not claim.lost.is_set()


def test_claim_is_acquired_and_released(either: Either, job: str) -> None:
    """A claim is ours inside the block, says what it is, and is given back at its end."""
    with either.claim(job, ttl=120, owner="ana", metadata={"model": "m"}) as claim:
        assert (claim.job_id, claim.owner, claim.metadata) == (job, "ana", {"model": "m"})
        assert 100 < claim.remaining <= 120 and not claim.released and not claim.lost.is_set()
        assert (claim.attempts, claim.previous, claim.reacquired) == (1, None, False)
        assert claim.claimed_at <= datetime.now(UTC) < claim.expires_at
        owner = either.get_job_owner(job)
        assert (owner.owner, owner.fencing_token, owner.metadata) == ("ana", claim.fencing_token, {"model": "m"})
        assert isinstance(claim.record, JobClaim) and claim.record.lease_id == claim.lease_id
    assert claim.released and claim.remaining == 0
    assert either.get_job_owner(job) is None


def test_held_job_raises(either: Either, job: str) -> None:
    """`with` raises `JobHeld` with who has the job, and never enters the block."""
    with either.claim(job, owner="ana") as claim:
        claim.note("half way")
        with pytest.raises(JobHeld) as caught, either.claim(job, owner="ben"):
            pytest.fail("the block was entered without the claim")
    assert (caught.value.owner, caught.value.note, caught.value.job_id) == ("ana", "half way", job)


def test_exception_releases_as_failed(either: Either, job: str) -> None:
    """C7: leaving by an exception releases the claim as failed: the next one is attempt two and reads the note."""

    class Broken(Exception):
        pass

    with pytest.raises(Broken), either.claim(job, owner="ana") as claim:
        claim.note("as far as this")
        raise Broken
    with either.claim(job, owner="ben") as again:
        assert again.attempts == 2
        assert (again.previous.owner, again.previous.ended) == ("ana", "released")
        assert again.previous.note == "as far as this"
    with either.claim(job) as third:
        assert third.attempts == 1


def test_release_twice_is_harmless(either: Either, job: str) -> None:
    """Releasing twice is harmless, inside the block too; afterwards the claim says that it was released."""
    with either.claim(job) as claim:
        claim.release()
        claim.release(outcome="failed")
    claim.release()
    with pytest.raises(LeaseReleased):
        claim.raise_if_lost()
    with pytest.raises(LeaseReleased):
        claim.note("too late")
    with pytest.raises(LeaseReleased), claim:
        pytest.fail("entered although released")


def test_done_is_remembered(either: Either, job: str) -> None:
    """L5: a job that is done stays done: `JobDone` with its result, until it is redone."""
    with either.claim(job, owner="ana") as claim:
        claim.done("42", remember=60)
    with pytest.raises(JobDone) as caught:
        either.claim(job)
    assert (caught.value.result, caught.value.owner) == ("42", "ana")
    known = either.job(job)
    assert (known.status, known.result, known.done_by) == ("done", "42", "ana")
    with either.claim(job, redo=True) as again:
        assert again.fencing_token > claim.fencing_token


def test_revoked_claim_is_lost(either: Either, operator: Api, job: str) -> None:
    """L7: a revoked claim is lost as soon as it hears of it; the loss says who did it and why, and is raised once."""
    with pytest.raises(LeaseLost) as caught, either.claim(job) as claim:
        assert operator.revoke(job, reason="because").status == 204
        with pytest.raises(LeaseLost):
            claim.renew()
        assert claim.lost.is_set() and claim.remaining == 0
        claim.raise_if_lost()
    assert (caught.value.reason, caught.value.by, caught.value.why) == ("revoked", "operator", "because")
    assert caught.value.fencing_token == claim.fencing_token
    claim.release()


def test_loss_is_raised_at_the_exit(either: Either, operator: Api, job: str) -> None:
    """Leaving a block after a loss that nobody has heard of raises `LeaseLost`."""
    with pytest.raises(LeaseLost) as caught, either.claim(job):
        operator.revoke(job, reason="because")
    assert caught.value.reason == "revoked"


def test_loss_is_raised_once(either: Either, operator: Api, job: str) -> None:
    """Who was told of the loss inside the block is not told again at its end."""
    with either.claim(job) as claim:
        operator.revoke(job, reason="because")
        with pytest.raises(LeaseLost):
            claim.note("are you there?")


def test_loss_does_not_hide_the_exception(either: Either, operator: Api, job: str) -> None:
    """An exception of the block matters more than the loss."""
    with pytest.raises(ZeroDivisionError), either.claim(job):
        operator.revoke(job, reason="because")
        raise ZeroDivisionError


def test_resume_returns_the_own_claim(either: Either, job: str) -> None:
    """C4: who lost its memory asks for its claim back and gets the same lease and token."""
    first = either.claim_job(job, "ana")
    with pytest.raises(JobHeld) as caught:
        either.claim_job(job, "ana")
    assert caught.value.same_owner
    again = either.claim_job(job, "ana", resume=True)
    assert (again.lease_id, again.fencing_token, again.reacquired) == (first.lease_id, first.fencing_token, True)
    either.release_job(job, first.lease_id)


def test_job_functions(either: Either, job: str) -> None:
    """One claim by its lease id: claimed, renewed with a note, handed over, given back, each told of its end."""
    claim = either.claim_job(job, "ana", {"a": 1}, 30)
    assert 25 < either.heartbeat_job(job, claim.lease_id, note="n") <= 30
    assert either.heartbeat_job(job, claim.lease_id, ttl=90, metadata="text") > 80
    owner = either.get_job_owner(job)
    assert (owner.note, owner.metadata) == ("n", "text")
    given = either.transfer_job(job, claim.lease_id, "ben", ttl=60, reason="end of shift")
    assert (given.owner, given.fencing_token > claim.fencing_token) == ("ben", True)
    with pytest.raises(LeaseLost) as caught:
        either.heartbeat_job(job, claim.lease_id)
    assert (caught.value.reason, caught.value.why) == ("transferred", "end of shift")
    with pytest.raises(LeaseLost):
        either.release_job(job, claim.lease_id)
    either.release_job(job, given.lease_id, outcome="done", result="r", remember=30)
    either.release_job(job, given.lease_id)
    assert either.job(job).status == "done"


def test_transfer_of_a_claim(either: Either, job: str) -> None:
    """L8: a claim that was handed over is not ours any more, and leaving the block touches the new one not."""
    with either.claim(job, owner="ana") as claim:
        given = claim.transfer("ben", ttl=60)
        with pytest.raises(LeaseReleased):
            claim.transfer("cam")
    assert either.get_job_owner(job).owner == "ben"
    either.release_job(job, given.lease_id)


def test_transfer_of_a_lost_claim_fails(either: Either, operator: Api, job: str) -> None:
    """A claim that cannot be handed over because it ended is lost, and that is raised once."""
    with either.claim(job) as claim:
        operator.revoke(job, reason="because")
        with pytest.raises(LeaseLost, match="because"):
            claim.transfer("ben")
        assert claim.lost.is_set()


def test_any_of_several(either: Either) -> None:
    """M1: the first free job of a list, in its order; a wait asks until one is free or the time is over."""
    a, b = unique("any"), unique("any")
    with either.claim(a), either.claim_any([a, b], owner="w") as second:
        assert second.job_id == b
        with pytest.raises(JobHeld) as caught:
            either.claim_any([a, b])
        assert {other.job_id for other in caught.value.others} == {a, b}
        with pytest.raises(NotInTime):
            either.claim_any([a, b], wait=0.3)
    with pytest.raises(TypeError, match="list"):
        either.claim_any(a)


def test_all_of_several(either: Either, job: str) -> None:
    """M2: every job or none; they are renewed, noted and given back together."""
    names = [f"{job}/{number}" for number in range(3)]
    with either.claim_all(names, owner="ana") as claims:
        assert len(claims) == 3 and set(claims.fencing_tokens) == set(names)
        assert [claim.job_id for claim in claims] == names and claims[names[1]].owner == "ana"
        assert claims.remaining > 30 and not claims.lost.is_set()
        claims.note("all of it")
        claims.raise_if_lost()
        assert {owner.note for owner in either.list_claimed_jobs(f"{job}/")} == {"all of it"}
        with pytest.raises(JobHeld) as caught:
            either.claim_all([names[2], f"{job}/free"])
        assert [other.job_id for other in caught.value.others] == [names[2]]
        with pytest.raises(NotInTime):
            either.claim_all([names[2], f"{job}/free"], wait=0.2)
    assert either.list_claimed_jobs(f"{job}/") == []


def test_losing_one_claim_loses_the_group(either: Either, operator: Api, job: str) -> None:
    """A group is lost with the first of it; leaving the block gives the others back and raises the loss."""
    names = [f"{job}/{number}" for number in range(3)]
    with pytest.raises(LeaseLost) as caught, either.claim_all(names) as claims:
        operator.revoke(names[1], reason="because")
        with pytest.raises(LeaseLost):
            claims[names[1]].renew()
        assert claims.lost.is_set()
        claims.raise_if_lost()
    assert caught.value.job_id == names[1]
    assert either.list_claimed_jobs(f"{job}/") == []


def test_failed_claim_all_claims_nothing(either: Either, job: str) -> None:
    """An exception in the block releases every claim of the group as failed."""
    names = [f"{job}/{number}" for number in range(2)]
    with pytest.raises(ZeroDivisionError), either.claim_all(names):
        raise ZeroDivisionError
    assert [either.job(name).attempts for name in names] == [1, 1]
    with either.claim(names[0]) as again:
        assert again.attempts == 2


def test_session_ends_all(either: Either, job: str) -> None:
    """S2: the claims of a session end with it, in one step; what a child process needs is in its environment."""
    with either.session("run-1", ttl=30, metadata={"a": 1}) as session:
        assert (session.name, session.metadata) == ("run-1", {"a": 1})
        assert session.environment == {"GATEWAY_URL": either.url, "SHUTDOWN_SECRET": session.secret}
        assert session.secret not in repr(session) and session.remaining > 20 and not session.lost.is_set()
        claim = session.claim(f"{job}/1", ttl=60)
        assert 20 < claim.remaining <= 30, "the earlier of its own deadline and the session's"
        several = session.claim_all([f"{job}/2", f"{job}/3"])
        one = session.claim_any([f"{job}/3", f"{job}/4"])
        assert one.job_id == f"{job}/4"
        known = {each.session_id: each for each in either.sessions()}[session.session_id]
        assert (known.name, known.claims) == ("run-1", 4)
        assert len(either.list_claimed_jobs(session=session.session_id)) == 4
        session.raise_if_lost()
    assert either.list_claimed_jobs(f"{job}/") == []
    for ended in (claim, one, *several):
        ended.release()
    session.end()
    with pytest.raises(LeaseReleased):
        session.raise_if_lost()


def test_unreferenced_claims_expire(either: Either, job: str) -> None:
    """`claim_any_job` and `claim_all_jobs` leave renewing to the caller: their claims last for 120 s."""
    taken, free, other = f"{job}-1", f"{job}-2", f"{job}-3"
    first = either.claim_job(taken, "ana")
    found = either.claim_any_job([taken, free], owner="ben", metadata={"model": "m"})
    assert isinstance(found, JobClaim) and (found.job_id, found.owner, found.metadata) == (free, "ben", {"model": "m"})
    assert 100 < (found.expires_at - found.claimed_at).total_seconds() <= 120
    assert 100 < either.heartbeat_job(free, found.lease_id) <= 120
    with pytest.raises(JobHeld) as caught:
        either.claim_all_jobs([free, other])
    assert [each.job_id for each in caught.value.others] == [free]
    with pytest.raises(NotInTime):
        either.claim_any_job([taken, free], wait=0.1)
    either.release_job(taken, first.lease_id)
    either.release_job(free, found.lease_id)
    claims = either.claim_all_jobs([free, taken], ttl=30)
    assert [each.job_id for each in claims] == [free, taken]
    assert either.get_job_owner(taken).expires_in <= 30
    for each in claims:
        either.release_job(each.job_id, each.lease_id)
    assert either.list_claimed_jobs(job) == []


def test_unreferenced_session_expires(either: Either, open_client: Open, job: str) -> None:
    """`open_session` gives what a child needs: its secret lets one in and keeps it, and its end ends what is bound."""
    opened = either.open_session("run-1", ttl=30, metadata={"why": "tests"})
    assert (opened.name, opened.metadata, opened.url) == ("run-1", {"why": "tests"}, either.url)
    assert 20 < opened.expires_in <= 30 and opened.expires_at > datetime.now(UTC)
    assert opened.environment == {"GATEWAY_URL": either.url, "SHUTDOWN_SECRET": opened.secret}
    assert opened.secret not in repr(opened)
    known = {each.session_id: each for each in either.sessions()}[opened.session_id]
    assert (known.name, known.metadata) == ("run-1", {"why": "tests"})
    either.claim_job(f"{job}-1", session=opened.session_id)
    either.claim_any_job([f"{job}-2"], session=opened.session_id)
    either.claim_all_jobs([f"{job}-3", f"{job}-4"], session=opened.session_id)
    child = open_client(token=opened.secret)
    assert len(child.list_claimed_jobs(job, session=opened.session_id)) == 4
    either.end_session(opened.session_id)
    assert either.list_claimed_jobs(job) == []
    with pytest.raises(Refused) as caught:
        either.claim_job(job, session=opened.session_id)
    assert caught.value.code == "not_found"


def test_session_that_was_ended_is_lost(either: Either, job: str) -> None:
    """S2: a session that somebody else has ended is lost, and with it its claims."""
    with pytest.raises(LeaseLost) as caught, either.session(ttl=30) as session:
        claim = session.claim(job)
        either.end_session(session.session_id)
        with pytest.raises(LeaseLost) as gone:
            claim.renew()
    assert (caught.value.reason, gone.value.reason) == ("session_ended", "session_ended")


def test_wait_acquires_the_released_job(either: Either, open_client: Open, job: str) -> None:
    """W1: a wait gets the job when it is given back, and hears of its place meanwhile."""
    other = open_client(callers.BOB)
    updates: list[QueuePosition] = []
    first = other.claim(job, owner="ben")

    def seen(update: QueuePosition) -> None:
        updates.append(update)
        if len(updates) == 1:
            Api(*address(either), callers.BOB).release(job, first.lease_id)

    with either.claim(job, wait=20, on_wait=seen) as claim:
        assert claim.fencing_token > first.fencing_token
    before = updates[0].owner
    assert updates[0].position == 1 and before is not None and before.owner == "ben"
    first.release()


def address(client: Either) -> tuple[str, int]:
    host, _, port = client.url.removeprefix("http://").partition(":")
    return host, int(port)


def test_timeout_raises_not_in_time(either: Either, job: str) -> None:
    """A wait that is over is `NotInTime`, says who has the job, and leaves nobody in the line."""
    with either.claim(job, owner="ana"):
        with pytest.raises(NotInTime) as caught:
            either.claim(job, owner="ben", wait=0.2)
        assert caught.value.owner == "ana"
        assert either.job(job).waiting == 0


def test_deadlock_is_refused(either: Either, job: str) -> None:
    """D1: a wait that would never end is refused, with the circle."""
    with either.claim(job, owner="ana"), pytest.raises(Deadlock) as caught:
        either.claim(job, owner="ana", wait=5)
    assert job in caught.value.cycle


def test_lock_delay_closes_the_job(either: Either, job: str) -> None:
    """L6: a lock delay keeps the job closed after its end."""
    either.claim(job, lock_delay=19.2).release()
    with pytest.raises(JobHeld, match="closed until") as caught:
        either.claim(job)
    assert caught.value.owner is None and either.job(job).available_at is not None
    either.claim(f"{job}/short", lock_delay=0.9).release()
    with pytest.raises(JobHeld, match="closed until"):
        either.claim(f"{job}/short")


def test_reading(either: Either, job: str) -> None:
    """History, why, check and status say what the server knows."""
    with either.claim(job, owner="ana") as claim:
        assert either.check(job, claim.fencing_token) and not either.check(job, claim.fencing_token + 1)
        assert either.why(job).name == job
    events = either.history(job, limit=10)
    assert [(event.event, event.owner, event.fencing_token) for event in events][-1][1:] == ("ana", claim.fencing_token)
    assert len(either.history(job, limit=1)) == 1
    assert either.history(job, owner="nobody", since="2020-01-01T00:00:00Z", until="2021-01-01T00:00:00Z") == []
    assert either.job(job).status == "free"
    assert either.server_status().active_locks >= 0


def test_listing_has_pages(either: Either, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing is whole however many pages it has, in order of name; an owner or a limit narrows it."""
    monkeypatch.setattr("holdfast.client.queries.PAGE", 2)
    names = [f"{job}/{number}" for number in range(5)]
    with either.claim_all(names, owner="ana"), either.claim(f"{job}/9", owner="ben"):
        assert [each.job_id for each in either.list_claimed_jobs(f"{job}/")] == [*names, f"{job}/9"]
        assert [each.job_id for each in either.list_claimed_jobs(f"{job}/", owner="ben")] == [f"{job}/9"]
        assert [each.job_id for each in either.list_claimed_jobs(f"{job}/", limit=3)] == names[:3]
        assert [each.job_id for each in either.list_claimed_jobs(f"{job}/", limit=99)] == [*names, f"{job}/9"]


def test_events_are_followed(either: Either, job: str) -> None:
    """I16: events are followed as they happen, and from an earlier one on."""
    either.claim(job, owner="ana").release()
    began = either.history(job)[-1].seq - 1
    following = either.events(job, after=began)
    seen = [next(following) for _ in range(2)]
    assert [event.job_id for event in seen] == [job, job]
    either.claim(job, owner="ben").release()
    assert next(following).owner == "ben"
    following.close()


def test_operators(open_client: Open, operator: Api, job: str) -> None:
    """Operators revoke, reopen, and make, list and shut out tokens; others may not."""
    boss, worker = open_client(callers.OPERATOR), open_client()
    claim = worker.claim(job)
    with pytest.raises(NotAllowed):
        worker.revoke(job, "because")
    boss.revoke(job, "because")
    with pytest.raises(LeaseLost):
        claim.release()
    worker.claim(job).done(remember=60)
    boss.reopen(job, "again")
    assert worker.job(job).status == "free"
    made = boss.create_token(unique("t"), scopes=["read"], prefix="p/", expires_in_seconds=60)
    assert made.name in {token.name for token in boss.list_tokens()}
    assert open_client(made.token).list_claimed_jobs("p/") == []
    other = boss.rotate_token(made.name, keep_sessions=True, expires_in_seconds=60)
    assert (other.name, other.scopes, other.prefix) == (made.name, made.scopes, made.prefix)
    assert open_client(other.token).list_claimed_jobs("p/") == []
    boss.revoke_token(made.name, keep_sessions=True)
    for token in (made.token, other.token):
        with pytest.raises(NotAllowed):
            open_client(token).list_claimed_jobs("p/")


@pytest.mark.parametrize("name", ["a/b", "github://x/y", "ü/é", "a.b_c-d", "."])
def test_names_of_all_kinds(either: Either, name: str) -> None:
    """N2: whatever may be a name can be claimed under that name."""
    job = name if name == "." else f"{name}-{unique()}"
    with either.claim(job):
        assert either.get_job_owner(job).job_id == job
        assert either.list_claimed_jobs(job)[0].job_id == job


def test_owner_of_a_client(open_client: Open, job: str) -> None:
    """A claim bears its own owner's name, else the client's, else one of the form host:pid:random."""
    with open_client(owner="team").claim(job) as claim:
        assert claim.owner == "team"
    with open_client(owner="team").claim(job, owner="me") as claim:
        assert claim.owner == "me"
    with open_client().claim(job) as claim:
        assert len(claim.owner.split(":")) == 3


def test_configuration_comes_from_the_environment(open_client: Open, server: ServerProcess, job: str) -> None:
    """Without arguments the server and the token come from the environment; arguments come first."""
    environment = {"HOLDFAST_URL": server.url, "HOLDFAST_TOKEN": callers.BOB, "XDG_CONFIG_HOME": "/nowhere"}
    with open_client(None, url=None, environment=environment).claim(job):
        assert open_client(None, url=None, environment=environment).sessions() == []
    with pytest.raises(NotAllowed):
        open_client("no-such-token", url=None, environment=environment).claim(job)


def test_configuration_comes_from_files(open_client: Open, server: ServerProcess, tmp_path: Path) -> None:
    """Arguments beat HOLDFAST_TOKEN, which beats HOLDFAST_TOKEN_FILE, which beats client.toml."""
    folder = tmp_path / "holdfast"
    folder.mkdir()
    for name, token in {"bob": callers.BOB, "carol": callers.CAROL}.items():
        (folder / name).write_text(token)
        (folder / name).chmod(0o600)
    (folder / "client.toml").write_text(f"url = '{server.url}'\ntoken_file = 'bob'\n")
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}

    def caller(token: str | None = None) -> str:
        client, name = open_client(token, url=None, environment=environment), unique()
        client.claim(name).release()
        return str(client.history(name)[0].by)

    assert caller() == "bob"
    environment["HOLDFAST_TOKEN_FILE"] = str(folder / "carol")
    assert caller() == "carol"
    environment["HOLDFAST_TOKEN"] = callers.DAVE
    assert caller() == "dave"
    assert caller(callers.ALICE) == "alice"


def test_token_never_shows(open_client: Open, job: str) -> None:
    """The token and the lease id are in no `repr` and in no exception."""
    secret = "hold_this_is_secret"
    client = open_client(secret)
    with pytest.raises(NotAllowed) as caught:
        client.claim(job)
    assert secret not in f"{client!r} {caught.value!r} {caught.value} {vars(caught.value)}"
    with open_client().claim(job) as claim:
        assert claim.lease_id not in f"{claim!r} {claim.record!r}"
        with pytest.raises(JobHeld) as held:
            open_client().claim(job)
        assert claim.lease_id not in f"{held.value!r} {vars(held.value)}"


@pytest.mark.parametrize("kind", KINDS)
def test_token_stays_on_this_machine(kind: str, nowhere: dict[str, str]) -> None:
    """A token never goes over plain HTTP to another host: the client is not even made."""
    both = Both(kind)
    with pytest.raises(SettingsError, match="unencrypted"):
        both.client(url="http://holdfast.example", token="hold_x", environment=nowhere)
    both.close()


def test_unreachable_server_is_reported(open_client: Open, job: str) -> None:
    """A server that is not there is `Unreachable`, not held and not refused."""
    client = open_client(url="http://127.0.0.1:9", retry_seconds=0.1)
    with pytest.raises(Unreachable):
        client.claim(job)
    with pytest.raises(Unreachable):
        client.get_job_owner(job)


def test_bad_requests_are_refused(either: Either) -> None:
    """What the server cannot take is refused with its code."""
    with pytest.raises(Refused) as caught:
        either.claim("no blanks please")
    assert (caught.value.status, caught.value.code) == (400, "invalid_lock_name")
    with pytest.raises(Refused):
        either.claim_all([])
