"""A token file that is written anew: running clients notice, and work goes on over a rotation."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
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
    place = tmp_path / f"{tmp_path.name}.token"
    written(place, operator.post("/tokens", {"name": tmp_path.name}).json()["token"])
    return place


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
            refused(wait.answer(5), 401, "authentication_failed")
        assert all(stream.wait_for_end(5) for stream in streams)
        for api in (thief, stolen):
            assert api.locks().status in {401, 410}
            assert api.acquire(f"{file.stem}-job-0").status in {401, 410}
        time.sleep(GAP_SECONDS)
        written(file, token)
        time.sleep(TTL_SECONDS + 1)
        for claim in claims:
            claim.raise_if_lost()
            now = operator.status(claim.job_id).json()
            assert (now["status"], now["fencing_token"]) == ("held", claim.token)
