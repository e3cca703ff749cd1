"""The client for threads alone: its threads, its forks, its interrupts, and the functions of the module."""

from __future__ import annotations

import gc
import inspect
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from types import FrameType

import pytest

import holdfast
from holdfast import Claim, Claims, Holdfast, JobDone, JobHeld, LeaseLost, NotInTime, Session
from holdfast.client import functions
from holdfast.client import sync as driver
from holdfast.client.effects import NOW, Flow
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import at_once, unique, wait_until
from tests.support.server import ServerProcess

SECONDS_MAX = 20.0


def test_renewed_in_the_background(client: Holdfast, job: str) -> None:
    """A claim is renewed without its owner doing anything, and its deadline moves."""
    with client.claim(job, ttl=3) as claim:
        first = claim.expires_at
        wait_until(lambda: claim.expires_at > first and renewed(client, job), seconds_max=SECONDS_MAX)
        claim.raise_if_lost()


def renewed(client: Holdfast, job: str) -> bool:
    owner = client.get_job_owner(job)
    return owner is not None and owner.last_heartbeat_at > owner.claimed_at


def test_background_detects_a_loss(client: Holdfast, operator: Api, job: str) -> None:
    """L7: a revoked claim is lost at its next renewal: the event is set, and `on_lost` is called once, in a thread."""
    reported: list[tuple[Claim, str]] = []
    claim = client.claim(job, ttl=3, on_lost=lambda lost: reported.append((lost, threading.current_thread().name)))
    operator.revoke(job, reason="because")
    assert claim.lost.wait(SECONDS_MAX)
    wait_until(lambda: reported, seconds_max=SECONDS_MAX)
    with pytest.raises(LeaseLost, match="operator has revoked it: because"):
        claim.raise_if_lost()
    claim.release()
    assert reported == [(claim, "holdfast-on-lost")]
    assert "lost" not in repr(client.job(job))


def test_group_reports_its_loss_once(client: Holdfast, operator: Api, job: str) -> None:
    """`on_lost` of a group is called once, though several of it are lost."""
    reported: list[Claims] = []
    claims = client.claim_all([f"{job}/1", f"{job}/2"], on_lost=reported.append)
    for claim in claims:
        operator.revoke(claim.job_id, reason="because")
        with pytest.raises(LeaseLost):
            claim.renew()
    wait_until(lambda: reported, seconds_max=SECONDS_MAX)
    claims.release()
    assert reported == [claims]


def test_session_reports_its_loss(client: Holdfast, job: str) -> None:
    """`on_lost` of a session is called when the session has ended."""
    reported: list[Session] = []
    session = client.session(ttl=10, on_lost=reported.append)
    client.end_session(session.session_id)
    assert session.lost.wait(SECONDS_MAX)
    wait_until(lambda: reported == [session], seconds_max=SECONDS_MAX)
    with pytest.raises(LeaseLost) as caught:
        session.end()
    assert caught.value.reason == "session_ended"


def test_dropped_while_held_warns(client: Holdfast, job: str) -> None:
    """A claim that is dropped while held warns and is not renewed any more; one that was given back does not."""
    with pytest.warns(ResourceWarning, match=f"{job} was dropped while held"):
        client.claim(job)  # Nobody keeps it.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client.claim(unique()).release()
        gc.collect()


def test_loss_is_noticed_where_no_thread_can_be_started(
    client: Holdfast, operator: Api, job: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where `on_lost` cannot be called for want of a thread, the loss is noticed all the same, and that is logged."""
    start = threading.Thread.start

    def start_others(thread: threading.Thread) -> None:
        if thread.name == "holdfast-on-lost":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_others)
    called: list[Claim] = []
    with client.claim(job, on_lost=called.append) as claim:
        operator.revoke(job, reason="because")
        with pytest.raises(LeaseLost):
            claim.renew()
        assert claim.lost.is_set()
        wait_until(lambda: "on_lost was not called" in caplog.text, seconds_max=SECONDS_MAX)
    assert called == []


def test_dropped_session_warns(client: Holdfast, job: str) -> None:
    """A session that is dropped while it lives warns and is not kept alive any more; a claim of it keeps it."""
    claims = [client.session("kept").claim(job)]
    session = claims[0]._session
    assert isinstance(session, Session)
    handle = session._renewal_handle
    del session
    gc.collect()
    assert not handle.stopped
    claims[0].release()
    with pytest.warns(ResourceWarning, match="the session kept was dropped while it lived"):
        claims.clear()
    assert handle.stopped


def test_threads_are_two_waiters_in_the_queue(client: Holdfast, job: str) -> None:
    """W3: two threads of one client that wait for the same job are two in the line, and each has its turn."""
    first = client.claim(job)

    def wait_and_release() -> int:
        with client.claim(job, wait=SECONDS_MAX) as claim:
            return claim.fencing_token

    def let_go() -> int:
        wait_until(lambda: client.job(job).waiting == 2, seconds_max=SECONDS_MAX)
        first.release()
        return first.fencing_token

    tokens = at_once([wait_and_release, wait_and_release, let_go])
    assert len(set(tokens)) == 3


def test_many_threads_one_owner(client: Holdfast, job: str) -> None:
    """C3: of many threads that try at once one has the job, and the others hear who."""

    def attempt() -> Claim | JobHeld:
        try:
            return client.claim(job, owner="triage")
        except JobHeld as error:
            return error

    results = at_once([attempt] * 24)
    had = [each for each in results if isinstance(each, Claim)]
    assert len(had) == 1
    assert {each.owner for each in results} == {"triage"}
    assert all(each.same_owner for each in results if isinstance(each, JobHeld))
    had[0].release()


def test_forked_child_leaves_the_parents_claim_alone(client: Holdfast, job: str) -> None:
    """A forked child does not release its parent's claim and says so; what it asks goes over connections of its own."""
    claim = client.claim(job)
    other = unique("child")
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Newer Pythons warn of what is tested here.
        pid = os.fork()
    if pid == 0:
        said = "nothing"
        try:
            with pytest.warns(RuntimeWarning, match=f"the claim on {job} belongs to process {os.getppid()}"):
                claim.release()
            with pytest.warns(RuntimeWarning, match="nothing was given back here"), claim:
                pass
            with client.claim(other) as own:
                said = f"{own.job_id} {client.get_job_owner(other) is not None} {own.owner}"
        except BaseException as error:  # noqa: BLE001 - told to the parent
            said = repr(error)
        finally:
            os.write(writer, said.encode())
            os._exit(0)
    os.close(writer)
    try:
        for _ in range(50):
            assert client.get_job_owner(job) is not None
        name, is_owned, owner = os.read(reader, 1_000).decode().split()
        assert (name, is_owned, owner.split(":")[1]) == (other, "True", str(pid))
    finally:
        os.close(reader)
        os.waitpid(pid, 0)
    claim.renew()
    claim.release()
    assert client.get_job_owner(other) is None


def test_interrupt_leaves_the_queue(client: Holdfast, job: str) -> None:
    """Ctrl-C in a wait leaves the line before it goes on: the next one need not wait for somebody who is gone."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    main = threading.get_ident()
    with client.claim(job, owner="other"):

        def interrupt() -> None:
            wait_until(lambda: client.job(job).waiting == 1, seconds_max=SECONDS_MAX)
            signal.pthread_kill(main, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                client.claim(job, wait=SECONDS_MAX)
        finally:
            thread.join()
            signal.signal(signal.SIGINT, before)
        assert client.job(job).waiting == 0


def test_interrupt_between_requests_leaves_nothing() -> None:
    """An interrupt that comes between a flow and what it asked for, in neither of them, is the flow's to clean up."""
    source, first = inspect.getsourcelines(driver.drive)
    handler = first + next(at for at, line in enumerate(source) if "except StopIteration" in line)
    for number in range(100):
        cleaned: list[int] = []
        lines: list[int] = []

        def flow(cleaned: list[int] = cleaned) -> Flow[str]:
            try:
                for _ in range(3):
                    yield NOW
            except KeyboardInterrupt:
                cleaned.append(1)
                raise
            return "done"

        def trace(frame: FrameType, event: str, _: object, lines: list[int] = lines, number: int = number) -> object:
            if frame.f_code is not driver.drive.__code__:
                return None
            if event == "line" and handler > frame.f_lineno:
                lines.append(frame.f_lineno)
                if len(lines) > number + 6:  # The flow has begun by then.
                    raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)  # type: ignore[arg-type]
        try:
            result = driver.drive(flow(), None)  # type: ignore[arg-type]
        except KeyboardInterrupt:
            assert cleaned == [1], lines
        else:
            assert result == "done" and number > 3
            return
        finally:
            sys.settrace(before)


def test_wait_is_not_exceeded_nor_cut_short(client: Holdfast, job: str) -> None:
    """A wait in vain lasts as long as it was to last, and no request of it is left behind."""
    with client.claim(job, owner="other"):
        began = time.monotonic()
        with pytest.raises(NotInTime):
            client.claim(job, wait=0.5)
        assert time.monotonic() - began >= 0.5


def test_closed_client_is_usable(client: Holdfast, job: str) -> None:
    """Closing a client closes its connections; a claim that is held goes on, and can be given back."""
    claim = client.claim(job)
    client.close()
    claim.renew()
    claim.release()


# A function that runs only while a job is ours.


def test_exclusive_runs_while_the_job_is_ours(client: Holdfast, job: str) -> None:
    """The job is held while the function runs, its name is made of the arguments and the date, its result returned."""

    @client.exclusive(job + "-{number}-{kind}-{date}")
    def work(number: int, kind: str = "x") -> list[str]:
        return [each.job_id for each in client.list_claimed_jobs(job)]

    today = datetime.now(UTC).date().isoformat()
    assert work(7) in ([f"{job}-7-x-{today}"], [f"{job}-7-x-{datetime.now(UTC).date().isoformat()}"])
    assert work.__name__ == "work"
    assert client.list_claimed_jobs(job) == []


def test_exclusive_skips_while_another_runs(client: Holdfast, job: str) -> None:
    """While somebody else has the job the function is not called: `JobHeld`, or None for one that may be skipped."""
    called: list[int] = []

    @client.exclusive(job)
    def loud() -> None:
        called.append(1)

    @client.exclusive(job, skip=True)
    def quiet() -> int:
        called.append(2)
        return 2

    with client.claim(job):
        with pytest.raises(JobHeld):
            loud()
        assert quiet() is None
    assert called == []
    loud()
    assert called == [1]


def test_exclusive_remembers(client: Holdfast, job: str) -> None:
    """L5: with `remember` the job is done once the function has returned, and not if it failed."""
    outcomes: list[Exception | None] = [ValueError(), None]

    @client.exclusive(job, remember=60)
    def nightly() -> str:
        problem = outcomes.pop(0)
        if problem is not None:
            raise problem
        return "result"

    with pytest.raises(ValueError):  # noqa: PT011 - it is the function's own
        nightly()
    assert client.job(job).attempts == 1
    assert nightly() == "result"
    with pytest.raises(JobDone):
        nightly()


def test_exclusive_refuses_mistakes_immediately(client: Holdfast) -> None:
    """A name that asks for what the function does not take is refused when it is decorated, not in the night."""

    def takes(number: int) -> None: ...

    async def coroutine() -> None: ...

    for template in ("job-{nubmer}", "job-{}", "job-{0}"):
        with pytest.raises(ValueError, match="known are date, number"):
            client.exclusive(template)(takes)
    with pytest.raises(TypeError, match=r"AsyncHoldfast\.exclusive"):
        client.exclusive("job")(coroutine)


# The functions of the module.


@pytest.fixture
def configured(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, nowhere: dict[str, str]
) -> Callable[[str], None]:
    """The environment names the server; the test may name another caller."""
    for name, value in {**nowhere, "HOLDFAST_URL": server.url, "HOLDFAST_TOKEN": callers.ALICE}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("HOLDFAST_TOKEN_FILE", raising=False)
    return lambda token: monkeypatch.setenv("HOLDFAST_TOKEN", token)


def test_the_five_job_functions(configured: object, job: str) -> None:
    """The five functions do what their names say, on the server that the environment names."""
    claim = holdfast.claim_job(job, "ana", {"a": 1}, ttl=120)
    assert (claim.job_id, claim.owner, claim.metadata) == (job, "ana", {"a": 1})
    with pytest.raises(JobHeld):
        holdfast.claim_job(job, "ben", None)
    assert 100 < holdfast.heartbeat_job(job, claim.lease_id, note="n") <= 120
    owner = holdfast.get_job_owner(job)
    assert owner is not None and (owner.owner, owner.note) == ("ana", "n")
    assert [each.job_id for each in holdfast.list_claimed_jobs(job)] == [job]
    assert job in {each.job_id for each in holdfast.list_claimed_jobs()}
    holdfast.release_job(job, claim.lease_id)
    assert holdfast.get_job_owner(job) is None


def test_the_other_functions(configured: object, job: str) -> None:
    """Claims, groups, sessions and exclusive functions need no client of one's own."""
    with holdfast.claim(f"{job}/1") as claim, holdfast.claim_any([f"{job}/1", f"{job}/2"]) as second:
        assert (claim.job_id, second.job_id) == (f"{job}/1", f"{job}/2")
    with holdfast.claim_all([f"{job}/1", f"{job}/2"]) as claims, holdfast.session("s") as session:
        assert len(claims) == 2
        third = session.claim(f"{job}/3")
        assert third.fencing_token > claims[f"{job}/1"].fencing_token

    @holdfast.exclusive(job)
    def work() -> int:
        return len(holdfast.list_claimed_jobs(job))

    assert work() == 1


def test_default_client_has_no_global_lock(configured: object) -> None:
    """Threads that need the client of the process at once get one of the same server, and it stays from then on."""
    made = at_once([functions.default_client] * 8)
    assert len({each.url for each in made}) == 1
    assert functions.default_client() is functions.default_client()


def test_another_environment_is_another_client(configured: Callable[[str], None], job: str) -> None:
    """The functions follow the environment: another token is another principal from the next call on."""
    claim = holdfast.claim_job(job, "ana")
    configured(callers.BOB)
    with pytest.raises(LeaseLost):
        holdfast.release_job(job, claim.lease_id)
    configured(callers.ALICE)
    holdfast.release_job(job, claim.lease_id)
