"""The client for coroutines alone: blocks that are cancelled, and what is given back however one is cancelled."""

# ruff: noqa: PT012 - a block that raises in the end is what many of these tests are about.

from __future__ import annotations

import asyncio
import gc
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

import holdfast
from holdfast import AsyncClaim, AsyncHoldfast, AsyncSession, JobDone, JobHeld, LeaseLost
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.server import ServerProcess

SECONDS_MAX = 20.0

Open = Callable[[], AsyncHoldfast]
Work = Callable[[AsyncHoldfast, str], AbstractAsyncContextManager[None]]


@pytest.fixture
def opened(server: ServerProcess, nowhere: dict[str, str]) -> Open:
    return lambda: AsyncHoldfast(server.url, token=callers.ALICE, environment=nowhere)


@pytest.fixture
def alice(server: ServerProcess) -> Api:
    return Api.of(server, callers.ALICE)


async def soon(question: Callable[[], Awaitable[bool]]) -> None:
    """Ask until it is so."""
    async with asyncio.timeout(SECONDS_MAX):
        while not await question():  # noqa: ASYNC110 - what it waits for is the server's
            await asyncio.sleep(0.02)


async def for_ever() -> None:
    """Work that only ends by being cancelled; the test fails if it is not."""
    async with asyncio.timeout(SECONDS_MAX):
        await asyncio.Event().wait()


async def lose(claim: AsyncClaim, operator: Api) -> asyncio.Task[None]:
    """End a claim from outside, and let it hear of that beside the block."""
    operator.revoke(claim.job_id, reason="because")
    return asyncio.create_task(on_update(claim))


async def on_update(claim: AsyncClaim) -> None:
    with pytest.raises(LeaseLost):
        await claim.renew()


def test_block_is_cancelled_at_a_loss(opened: Open, operator: Api, job: str) -> None:
    """At a loss the block is cancelled where it waits, and leaves with `LeaseLost`; the task itself goes on."""

    async def main() -> None:
        async with opened() as client:
            with pytest.raises(LeaseLost) as caught:
                async with client.claim(job, ttl=3) as claim:
                    operator.revoke(job, reason="because")
                    await for_ever()
            assert (caught.value.reason, caught.value.why) == ("revoked", "because")
            assert claim.lost.is_set()
            task = asyncio.current_task()
            assert task is not None and task.cancelling() == 0
            await asyncio.sleep(0)

    asyncio.run(main())


def test_transfer_loss_cancels_the_block(opened: Open, operator: Api, job: str) -> None:
    """A block that was told of the loss, and is cut off in its own cleaning up, leaves with `LeaseLost` too."""

    async def main() -> None:
        async with opened() as client:
            with pytest.raises(LeaseLost):
                async with client.claim(job) as claim:
                    operator.revoke(job, reason="because")
                    with pytest.raises(LeaseLost):
                        await claim.renew()
                    await for_ever()
            with pytest.raises(LeaseLost):
                async with client.claim_all([f"{job}/1", f"{job}/2"]) as claims:
                    operator.revoke(f"{job}/2", reason="because")
                    with pytest.raises(LeaseLost):
                        await claims[f"{job}/2"].renew()
                    await for_ever()

    asyncio.run(main())


def test_outer_cancel_stays_one(opened: Open, alice: Api, job: str) -> None:
    """A cancel from outside, and a second one, is a `CancelledError`; the claim is given back as failed before."""

    async def main() -> None:
        async with opened() as client:
            inside = asyncio.Event()

            async def work() -> None:
                async with client.claim(job):
                    inside.set()
                    await for_ever()

            task = asyncio.create_task(work())
            await inside.wait()
            for _ in range(2):
                task.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert task.cancelled()
            assert await client.get_job_owner(job) is None

    asyncio.run(main())
    assert alice.status(job).json()["attempts"] == 1


def test_outer_cancel_wins_over_a_loss(opened: Open, operator: Api, job: str) -> None:
    """Who is cancelled from outside while the claim is lost stays cancelled."""

    async def main() -> None:
        async with opened() as client:
            inside = asyncio.Event()

            async def work() -> None:
                async with client.claim(job) as claim:
                    operator.revoke(job, reason="because")
                    with pytest.raises(LeaseLost):
                        await claim.renew()
                    inside.set()
                    await for_ever()

            task = asyncio.create_task(work())
            await inside.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())


def test_timeouts_and_groups_work_around_it(opened: Open, operator: Api, job: str) -> None:
    """A timeout around or inside the block is a timeout, and a loss inside a task group is a loss."""

    async def main() -> None:
        async with opened() as client:
            with pytest.raises(TimeoutError) as outer:
                async with asyncio.timeout(0.05), client.claim(job):
                    await for_ever()
            with pytest.raises(TimeoutError) as inner:
                async with client.claim(job), asyncio.timeout(0.05):
                    await for_ever()
            assert (outer.type, inner.type) == (TimeoutError, TimeoutError), "no error of ours, which may be one too"
            with pytest.raises(LeaseLost):
                async with client.claim(job) as claim, asyncio.TaskGroup() as group:
                    group.create_task(for_ever())
                    group.create_task(on_update(claim))
                    operator.revoke(job, reason="because")
                    await for_ever()
            assert await client.get_job_owner(job) is None

    asyncio.run(main())


def test_nested_losses(opened: Open, operator: Api, job: str) -> None:
    """Two claims, one inside the other, both lost: the outer one raises the loss and nothing is left cancelled."""

    async def main() -> None:
        async with opened() as client:
            with pytest.raises(LeaseLost):
                async with client.claim(f"{job}/1") as outer, client.claim(f"{job}/2") as inner:
                    hearing = [await lose(outer, operator), await lose(inner, operator)]
                    await for_ever()
            await asyncio.gather(*hearing)
            task = asyncio.current_task()
            assert task is not None and task.cancelling() == 0

    asyncio.run(main())


def test_session_block_is_cancelled(opened: Open, job: str) -> None:
    """A session that is lost cancels its block; its claims are lost with it."""

    async def main() -> None:
        async with opened() as client:
            reported: list[AsyncSession] = []
            with pytest.raises(LeaseLost) as caught:
                async with client.session("s", ttl=10, on_lost=reported.append) as session:
                    await client.end_session(session.session_id)
                    await for_ever()
            assert caught.value.reason == "session_ended"
            assert reported == [session]

    asyncio.run(main())


@asynccontextmanager
async def free(client: AsyncHoldfast, job: str) -> AsyncIterator[None]:
    async with client.claim(job):
        yield


@asynccontextmanager
async def several(client: AsyncHoldfast, job: str) -> AsyncIterator[None]:
    async with client.claim_all([f"{job}/{number}" for number in range(3)]):
        yield


@asynccontextmanager
async def in_a_session(client: AsyncHoldfast, job: str) -> AsyncIterator[None]:
    async with client.session(job) as session, session.claim(job):
        yield


@asynccontextmanager
async def waited_for(client: AsyncHoldfast, job: str) -> AsyncIterator[None]:
    first = await client.claim(job, owner="first")
    release_operation = asyncio.create_task(first.release())
    try:
        async with client.claim(job, wait=5):
            yield
    finally:
        await release_operation


@types.coroutine
def counted(work: Coroutine[Any, Any, None], hits: dict[int, Callable[[], object]]) -> Generator[Any, Any, int]:
    """Let a coroutine run, call what is to be called at its n-th pause, and return how many pauses it made."""
    inner = work.__await__()
    step: Callable[[Any], Any] = inner.send
    value: Any = None
    sleeps = 0
    while True:
        try:
            paused = step(value)
        except StopIteration:
            return sleeps
        hits.get(sleeps, bool)()
        sleeps += 1
        try:
            step, value = inner.send, (yield paused)
        except BaseException as error:  # noqa: BLE001 - it is the coroutine's
            step, value = inner.throw, error


@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize("work", [free, several, in_a_session, waited_for])
def test_cancelled_anywhere_nothing_is_left(opened: Open, alice: Api, job: str, work: Work, times: int) -> None:
    """Release is shielded: cancelled at any of its pauses, however often, nothing is left held or waiting."""
    names = [job, *(f"{job}/{number}" for number in range(3))]

    async def attempt(pause: int, delay: float) -> bool:
        """Cancel at that pause, or a moment later; False if there is no such pause."""
        async with opened() as client:
            loop = asyncio.get_running_loop()
            again: list[bool] = []

            async def run() -> None:
                async with work(client, job):
                    await asyncio.sleep(0)

            def cancel() -> None:
                again.append(task.cancel())
                if len(again) < times:
                    loop.call_soon(cancel)

            async def count() -> int:
                return await counted(run(), {pause: lambda: loop.call_later(delay, cancel)})

            task = asyncio.create_task(count())
            await asyncio.wait([task])
            return task.cancelled() or task.result() > pause

    def nothing_is_left() -> bool:
        held = alice.locks(prefix=job).json()["locks"]
        waiting = [alice.status(name).json()["waiting"] for name in names]
        return (held, waiting, job in alice.sessions().text) == ([], [0] * 4, False)

    pause = 0
    hit = True
    while hit:
        hit = False
        for delay in (0, 0.0002, 0.0005, 0.001, 0.002, 0.004):
            hit |= asyncio.run(attempt(pause, delay))
            assert nothing_is_left(), f"something is left after a cancel {delay} s after pause {pause} began"
        pause += 1
    assert pause > 3


def test_on_lost_may_be_a_coroutine(opened: Open, operator: Api, job: str) -> None:
    """`on_lost` is called once on the event loop; what it returns is awaited if it is a coroutine."""

    async def main() -> None:
        plain: list[AsyncClaim] = []
        awaited: list[AsyncClaim] = []

        async def later(claim: AsyncClaim) -> None:
            await asyncio.sleep(0)
            awaited.append(claim)

        async with opened() as client:
            claims = [await client.claim(f"{job}/1", on_lost=plain.append)]
            claims.append(await client.claim(f"{job}/2", on_lost=later))
            group = await client.claim_all([f"{job}/3", f"{job}/4"], on_lost=lambda _: plain.append(claims[0]))
            for claim in [*claims, *group]:
                await (await lose(claim, operator))
            await claims[0].lost.wait()
            await soon(lambda: answered(bool(awaited)))
            await group.release()
            for claim in claims:
                await claim.release()
        assert (plain, awaited) == ([claims[0], claims[0]], [claims[1]])

    asyncio.run(main())


async def answered(value: bool) -> bool:
    return value


def test_renewed_in_the_background(opened: Open, job: str) -> None:
    """A claim is renewed while its task does something else."""

    async def main() -> None:
        async with opened() as client, client.claim(job, ttl=3):

            async def renewed() -> bool:
                owner = await client.get_job_owner(job)
                return owner is not None and owner.last_heartbeat_at > owner.claimed_at

            await soon(renewed)

    asyncio.run(main())


def test_tasks_are_two_waiters_in_the_queue(opened: Open, job: str) -> None:
    """W3: two tasks of one client that wait for the same job are two in the line, and each has its turn."""

    async def main() -> None:
        async with opened() as client:
            first = await client.claim(job)

            async def wait_and_release() -> int:
                async with client.claim(job, wait=SECONDS_MAX) as claim:
                    return claim.fencing_token

            async def two_wait() -> bool:
                return (await client.job(job)).waiting == 2

            waiters = [asyncio.create_task(wait_and_release()) for _ in range(2)]
            await soon(two_wait)
            await first.release()
            assert len({first.fencing_token, *(await asyncio.gather(*waiters))}) == 3

    asyncio.run(main())


def test_waiting_tasks_do_not_delay_renewal(opened: Open, job: str) -> None:
    """Claims that wait never keep anything else from being sent, however many they are."""

    async def main() -> None:
        async with opened() as client, client.claim(job) as claim:
            waiters = [asyncio.create_task(claimed(client, job, f"w-{number}")) for number in range(120)]

            async def all_wait() -> bool:
                return (await client.job(job)).waiting == 120

            await soon(all_wait)
            await claim.renew()
            for waiter in waiters:
                waiter.cancel()
            await asyncio.wait(waiters)
            assert (await client.job(job)).waiting == 0

    asyncio.run(main())


async def claimed(client: AsyncHoldfast, job: str, owner: str) -> None:
    async with client.claim(job, wait=SECONDS_MAX, owner=owner):
        await asyncio.sleep(0)


def test_dropped_while_held_warns(opened: Open, job: str) -> None:
    """A claim or a session that is dropped while held warns, in whichever thread, and is not renewed any more."""

    async def main() -> None:
        async with opened() as client:
            dropped: list[Any] = [await client.claim(job), await client.session("run")]
            handles = [each._renewal_handle for each in dropped]
            await asyncio.to_thread(dropped.clear)
            gc.collect()
            assert all(each.stopped for each in handles)

    with pytest.warns(ResourceWarning) as warned:
        asyncio.run(main())
    texts = "\n".join(str(each.message) for each in warned)
    assert f"{job} was dropped while held" in texts and "the session run was dropped while it lived" in texts


def test_closed_client_can_be_used_again(opened: Open, job: str) -> None:
    """What is claimed through a client that was closed before is renewed as ever."""

    async def main() -> None:
        client = opened()
        claim = await client.claim(f"{job}/1")
        await client.close()
        await claim.release()
        async with client, client.claim(f"{job}/2", ttl=3) as second:
            first = second.expires_at
            await soon(lambda: answered(second.expires_at > first))

    asyncio.run(main())


def test_exclusive_for_coroutine_functions(opened: Open, job: str) -> None:
    """A coroutine function runs only while the job is ours; refused, skipped and remembered as an ordinary one."""

    async def main() -> None:
        async with opened() as client:

            @client.exclusive(job + "-{number}", remember=60)
            async def work(number: int) -> int:
                return len(await client.list_claimed_jobs(job))

            assert await work(1) == 1
            with pytest.raises(JobDone):
                await work(1)
            async with client.claim(f"{job}-2"):
                with pytest.raises(JobHeld):
                    await work(2)
                assert await client.exclusive(job + "-{number}", skip=True)(work.__wrapped__)(2) is None  # type: ignore[attr-defined]
            with pytest.raises(TypeError, match=r"Holdfast\.exclusive"):
                client.exclusive(job)(unique)

    asyncio.run(main())


def test_exclusive_of_the_module(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, nowhere: dict[str, str], job: str
) -> None:
    """The decorator of the module makes a client of its own for a coroutine function, and leaves nothing open."""
    for name, value in {**nowhere, "HOLDFAST_URL": server.url, "HOLDFAST_TOKEN": callers.ALICE}.items():
        monkeypatch.setenv(name, value)

    @holdfast.exclusive(job)
    async def work() -> int:
        return len(holdfast.list_claimed_jobs(job))

    @holdfast.exclusive(job, skip=True)
    async def skipped() -> int:
        return 1

    assert asyncio.run(work()) == 1
    with holdfast.claim(job):
        assert asyncio.run(skipped()) is None
        with pytest.raises(JobHeld):
            asyncio.run(work())


def test_following_ends_with_its_task(opened: Open, job: str) -> None:
    """A task that follows events can be cancelled, and hangs up."""

    async def main() -> None:
        async with opened() as client:
            seen: list[str] = []

            async def follow() -> None:
                async for event in client.events(job, after=0):
                    seen.append(event.job_id)  # noqa: PERF401 - the others look at it meanwhile

            task = asyncio.create_task(follow())
            async with client.claim(job):
                await soon(lambda: answered(bool(seen)))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert set(seen) == {job}

    asyncio.run(main())
