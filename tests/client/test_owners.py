"""The names that are made up for threads and tasks: one for each, and a new one after an end that nobody confirmed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import AsyncHoldfast, Deadlock, Holdfast, Unreachable
from holdfast.client import requests
from holdfast.client.answers import Answer
from holdfast.client.claim_flows import claim
from holdfast.client.effects import Flow
from holdfast.client.lease_flows import release, transfer
from holdfast.client.options import ClaimRequest
from holdfast.errors import HoldfastError
from tests.client.driving import (
    BROKEN,
    LEASE,
    POLICY,
    Network,
    World,
    acquired,
    held,
    no_answer,
    problem,
    scripted,
    waiting,
)
from tests.support import callers
from tests.support.proxy import CuttingProxy
from tests.support.server import ServerProcess


class Worker:
    """Stands for a thread or a task."""


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[CuttingProxy]:
    with CuttingProxy(server) as between:
        yield between


def release_that_gets_lost(client: Holdfast, proxy: CuttingProxy, job: str, ttl: float = 1) -> str | None:
    """Claim, and release while nothing reaches the server."""
    first = client.claim(job, ttl=ttl)
    proxy.cuts = "/release"
    with pytest.raises(Unreachable):
        first.release()
    proxy.cuts = None
    return first.owner


def test_lost_release_does_not_block_the_next_claim(proxy: CuttingProxy, nowhere: dict[str, str], job: str) -> None:
    """D1a: after a release that was lost, a wait for the same job has a new name, and gets it when the lease ends."""
    with Holdfast(proxy.url, token=callers.ALICE, retry_seconds=0.1, environment=nowhere) as client:
        before = release_that_gets_lost(client, proxy, job)
        with client.claim(job, wait=20) as second:
            assert second.owner != before
        with client.claim(job) as third:
            assert third.owner == second.owner, "an end that was confirmed keeps the name"


def test_lost_release_in_a_task(proxy: CuttingProxy, nowhere: dict[str, str], job: str) -> None:
    """D1a: the same in one task, which has one name too."""

    async def work() -> None:
        async with AsyncHoldfast(proxy.url, token=callers.ALICE, retry_seconds=0.1, environment=nowhere) as client:
            first = await client.claim(job, ttl=1)
            proxy.cuts = "/release"
            with pytest.raises(Unreachable):
                await first.release()
            proxy.cuts = None
            async with client.claim(job, wait=20) as second:
                assert second.owner != first.owner

    asyncio.run(work())


def test_lost_release_by_lease_id(proxy: CuttingProxy, nowhere: dict[str, str], job: str) -> None:
    """D1a: `release_job` knows no owner; the name of its thread is not used again if it was lost."""
    with Holdfast(proxy.url, token=callers.ALICE, retry_seconds=0.1, environment=nowhere) as client:
        first = client.claim_job(job, ttl=1)
        proxy.cuts = "/release"
        with pytest.raises(Unreachable):
            client.release_job(job, first.lease_id)
        proxy.cuts = None
        assert client.claim_job(job, wait=20).owner != first.owner


def test_lost_claim_gets_a_new_name(proxy: CuttingProxy, nowhere: dict[str, str], job: str) -> None:
    """D1a: a claim that was never answered may have been granted, so the next one has another name."""
    with Holdfast(proxy.url, token=callers.ALICE, retry_seconds=0.1, environment=nowhere) as client:
        with client.claim(job) as first:
            pass
        proxy.cuts = "/acquire"
        with pytest.raises(Unreachable):
            client.claim(job)
        proxy.cuts = None
        with client.claim(job) as second:
            assert second.owner != first.owner


def test_dropped_claim_gets_a_new_name(client: Holdfast, job: str) -> None:
    """D1a: a claim that was dropped while held lives on for a while, under a name that is not used again."""
    first = client.claim(job, ttl=1)
    before = first.owner
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del first
        gc.collect()
    with client.claim(job, wait=20) as second:
        assert second.owner != before


def test_chosen_names_stay(proxy: CuttingProxy, nowhere: dict[str, str], job: str) -> None:
    """D1a: a name that somebody chose is kept, and the wait for one's own lease is refused as a circle of one."""
    with Holdfast(proxy.url, token=callers.ALICE, owner="ana", retry_seconds=0.1, environment=nowhere) as client:
        assert release_that_gets_lost(client, proxy, job, ttl=60) == "ana"
        with pytest.raises(Deadlock):
            client.claim(job, wait=20)


def test_each_worker_has_one_name() -> None:
    """A worker keeps its name, and no two have the same."""
    one, other = Worker(), Worker()
    assert requests.owner_of(one) == requests.owner_of(one) != requests.owner_of(other)


FREED = Answer(200, {}, b"null")
UNKNOWN = problem(503, "outcome_unknown")


def claiming(owner: str) -> Flow[Any]:
    return claim("j", ClaimRequest(ttl=60, owner=owner, wait=60), POLICY)


def releasing(owner: str) -> Flow[Any]:
    return release("j", LEASE, POLICY, owner=owner)


def handing_over(owner: str) -> Flow[Any]:
    return transfer("j", LEASE, "ben", POLICY, owner=owner)


@pytest.mark.parametrize(
    ("flow", "network", "is_reused"),
    [
        (releasing, scripted(FREED), True),
        (releasing, scripted(problem(404, "lease_not_current", ended="expired")), True),
        (releasing, scripted(problem(422, "validation_error")), True),
        (releasing, scripted(BROKEN), False),
        (releasing, scripted(UNKNOWN), False),
        (releasing, scripted(KeyboardInterrupt(), no_answer), False),
        (handing_over, scripted(acquired()), True),
        (handing_over, scripted(BROKEN), False),
        (claiming, scripted(held()), True),
        (claiming, scripted(problem(409, "deadlock")), True),
        (claiming, scripted(UNKNOWN), False),
        (claiming, scripted(KeyboardInterrupt(), waiting(), FREED), True),
        (claiming, scripted(KeyboardInterrupt(), acquired(), FREED), True),
        (claiming, scripted(KeyboardInterrupt(), acquired(), UNKNOWN), False),
        (claiming, scripted(KeyboardInterrupt(), no_answer), False),
        (claiming, scripted(KeyboardInterrupt(), KeyboardInterrupt()), False),
    ],
)
def test_name_is_reused_if_the_end_is_known(
    flow: Callable[[str], Flow[Any]], network: Network, *, is_reused: bool
) -> None:
    """D1a: a name lasts as long as every end under it was confirmed, whatever interrupts."""
    worker = Worker()
    name = requests.owner_of(worker)
    with contextlib.suppress(HoldfastError, KeyboardInterrupt):
        World(network).run(flow(name))
    assert (requests.owner_of(worker) == name) == is_reused
