"""A token file that is written anew: running clients notice, and work goes on over a rotation."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast import AsyncHoldfast, Holdfast, NotAllowed
from holdfast.privatefiles import replace
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import refused
from tests.support.pending import waiting
from tests.support.server import ServerProcess

WORKERS = 10
TTL_SECONDS = 6.0
GAP_SECONDS = 1.5
"""From the rotation until the new token is in the file: some renewals fall into it."""
OUT = {401, 410, 429}
"""Answers to who is not known any more; the last where many from its address were not, as the workers meanwhile."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess.start(tmp_path_factory.mktemp("files") / "data", tokens=callers.TOKENS) as process:
        yield process


@pytest.fixture
def operator(server: ServerProcess) -> Api:
    return Api.of(server, callers.OPERATOR)


@pytest.fixture
def file(operator: Api, tmp_path: Path) -> Path:
    """The token file of workers whose token is called as the test's folder is."""
    file = tmp_path / f"{tmp_path.name}.token"
    written(file, operator.post("/tokens", {"name": tmp_path.name}).json()["token"])
    return file


def written(file: Path, token: str) -> None:
    replace(file, f"{token}\n".encode())


def rotated(operator: Api, file: Path, **body: object) -> str:
    answer = operator.post(f"/tokens/{file.stem}/rotate", body)
    assert answer.status == 200, answer
    return str(answer.json()["token"])


def test_refused_token_is_read_again(server: ServerProcess, operator: Api, file: Path) -> None:
    """A client whose token came from a file reads that again after a 401, once, and asks again."""
    with Holdfast(server.url, token_file=file) as client:
        claim = client.claim_job(file.stem)
        written(file, rotated(operator, file))
        assert client.list_claimed_jobs()
        client.release_job(claim.job_id, claim.lease_id)
        rotated(operator, file)
        with pytest.raises(NotAllowed):
            client.list_claimed_jobs()
        file.unlink()
        with pytest.raises(NotAllowed):
            client.list_claimed_jobs()


def test_coroutines_read_it_again_too(server: ServerProcess, operator: Api, file: Path) -> None:
    """So does the client for coroutines, and so does a stream that it opens anew."""

    async def scene() -> None:
        async with AsyncHoldfast(server.url, token_file=file) as client:
            await client.list_claimed_jobs()
            written(file, rotated(operator, file))
            await client.list_claimed_jobs()
            written(file, rotated(operator, file))
            assert operator.acquire(f"{file.stem}-seen").status == 200
            async for event in client.events(after=0, prefix=f"{file.stem}-seen"):
                assert event.job_id == f"{file.stem}-seen"
                break

    asyncio.run(scene())


def test_given_token_is_not_looked_for_elsewhere(server: ServerProcess, operator: Api, file: Path) -> None:
    """A client that was given its token has no file to look at: a refusal is a refusal."""
    with Holdfast(server.url, token=file.read_text().strip()) as client:
        written(file, rotated(operator, file))
        with pytest.raises(NotAllowed):
            client.list_claimed_jobs()


def test_release_waits_for_the_new_file(server: ServerProcess, operator: Api, file: Path) -> None:
    """Work that is finished between the rotation and the new file is given back as done, once that is there."""
    with Holdfast(server.url, token_file=file, retry_seconds=10) as client:
        claim = client.claim(f"{file.stem}-finished", ttl=60)
        token = rotated(operator, file)
        late = threading.Timer(GAP_SECONDS, written, (file, token))
        late.start()
        claim.done(remember=60)
        late.join()
    assert operator.status(claim.job_id).json()["status"] == "done"


@pytest.mark.parametrize("keep_sessions", [False, True])
def test_rotation_under_load(server: ServerProcess, operator: Api, file: Path, *, keep_sessions: bool) -> None:
    """Ten workers hold claims while their token is rotated: none loses its claim, although the file comes late.

    Whoever has the old token or an old secret of a session is out at once: no request, no open wait, no open stream.
    """
    thief = Api.of(server, file.read_text().strip())
    stolen = Api.of(server, thief.new_session(ttl_seconds=600)["session_secret"])
    busy = f"{file.stem}-busy"
    operator.acquired(busy, ttl_seconds=600)
    with ExitStack() as stack:
        clients = [stack.enter_context(Holdfast(server.url, token_file=file)) for _ in range(WORKERS)]
        claims = [
            stack.enter_context(client.claim(f"{file.stem}-job-{number}", ttl=TTL_SECONDS))
            for number, client in enumerate(clients)
        ]
        waits = [stack.enter_context(waiting(api, busy, owner=owner)) for api, owner in ((thief, "a"), (stolen, "b"))]
        streams = [stack.enter_context(api.events()) for api in (thief, stolen)]
        token = rotated(operator, file, keep_sessions=keep_sessions)
        for wait in waits:
            refused(wait.answer(), 401, "authentication_failed")
        assert all(stream.wait_for_end(10) for stream in streams)
        for api in (thief, stolen):
            assert api.locks().status in OUT
            assert api.acquire(f"{file.stem}-job-0").status in OUT
        time.sleep(GAP_SECONDS)
        written(file, token)
        time.sleep(TTL_SECONDS + 1)
        for claim in claims:
            claim.raise_if_lost()
            now = operator.status(claim.job_id).json()
            assert (now["status"], now["fencing_token"]) == ("held", claim.fencing_token)


def written_late(file: Path, token: str) -> threading.Timer:
    """Put the new token into its file when everybody has been refused for a while."""
    late = threading.Timer(GAP_SECONDS, written, (file, token))
    late.start()
    return late


def wait_for_line(operator: Api, job: str, waiting: int) -> None:
    deadline = time.monotonic() + 20
    while operator.status(job).json()["waiting"] != waiting:
        assert time.monotonic() < deadline, operator.status(job)
        time.sleep(0.05)


@pytest.mark.parametrize("watches", [False, True])
@pytest.mark.parametrize("kind", ["one", "all", "any"])
def test_queue_wait_continues(server: ServerProcess, operator: Api, file: Path, kind: str, *, watches: bool) -> None:
    """Who waits in line when its token is rotated waits for the new one in its file, and joins the line anew."""
    busy = f"{file.stem}-busy"
    held = operator.acquired(busy, ttl_seconds=600)
    with Holdfast(server.url, token_file=file, retry_seconds=10) as client, ThreadPoolExecutor(1) as pool:
        on_wait = {"on_wait": lambda _update: None} if watches and kind != "any" else {}
        if kind == "one":
            claiming = pool.submit(lambda: [client.claim(busy, wait=60, **on_wait)])  # type: ignore[arg-type]
        elif kind == "all":
            claiming = pool.submit(lambda: list(client.claim_all([busy, f"{busy}-2"], wait=60, **on_wait)))  # type: ignore[arg-type]
        else:
            claiming = pool.submit(lambda: [client.claim_any([busy], wait=60)])
        if kind == "any":
            time.sleep(0.5)
        else:
            wait_for_line(operator, busy, 1)
        late = written_late(file, rotated(operator, file))
        late.join()
        if kind != "any":
            wait_for_line(operator, busy, 1)
        assert not claiming.done()
        operator.release(busy, held["lease_id"])
        for claim in claiming.result(30):
            claim.release()


def test_coroutine_wait_continues(server: ServerProcess, operator: Api, file: Path) -> None:
    """So does the client for coroutines, in line and along a stream: nothing that happened meanwhile is missed."""
    busy = f"{file.stem}-busy"
    held = operator.acquired(busy, ttl_seconds=600)

    async def scene() -> list[str]:
        async with AsyncHoldfast(server.url, token_file=file, retry_seconds=10) as client:
            events = client.events(prefix=f"{file.stem}-seen", after=0)
            operator.acquired(f"{file.stem}-seen-1")
            seen = [(await anext(events)).job_id]
            claiming = asyncio.ensure_future(client.claim(busy, wait=60))
            await asyncio.to_thread(wait_for_line, operator, busy, 1)
            late = written_late(file, rotated(operator, file))
            operator.acquired(f"{file.stem}-seen-2")
            seen.append((await anext(events)).job_id)
            await asyncio.to_thread(late.join)
            await asyncio.to_thread(wait_for_line, operator, busy, 1)
            operator.release(busy, held["lease_id"])
            await (await claiming).release()
            return seen

    assert asyncio.run(scene()) == [f"{file.stem}-seen-1", f"{file.stem}-seen-2"]


def test_event_stream_continues(server: ServerProcess, operator: Api, file: Path) -> None:
    """Who follows events when its token is rotated goes on after the last one it saw, once the new token is there."""
    with Holdfast(server.url, token_file=file, retry_seconds=0) as client:
        events = client.events(prefix=f"{file.stem}-seen", after=0)
        operator.acquired(f"{file.stem}-seen-1")
        assert next(events).job_id == f"{file.stem}-seen-1"
        late = written_late(file, rotated(operator, file))
        operator.acquired(f"{file.stem}-seen-2")
        assert next(events).job_id == f"{file.stem}-seen-2"
        late.join()


def test_wait_ends_with_its_own_deadline(server: ServerProcess, operator: Api, file: Path) -> None:
    """A wait is not made longer by a new token that does not come; and who was given its token is refused at once."""
    busy = f"{file.stem}-busy"
    operator.acquired(busy, ttl_seconds=600)
    given = file.read_text().strip()
    rotated(operator, file)
    with Holdfast(server.url, token_file=file, retry_seconds=600) as client, pytest.raises(NotAllowed):
        client.claim(busy, wait=2)
    with Holdfast(server.url, token=given, retry_seconds=600) as client, pytest.raises(NotAllowed):
        client.claim(busy, wait=600)
