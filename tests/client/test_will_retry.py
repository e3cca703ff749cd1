"""W2: a wait is several requests. Between two of them it is there, and nobody overtakes it; in both clients."""

from __future__ import annotations

import threading

import pytest

from holdfast import QueuePosition
from holdfast.client.claim_flows import claim
from holdfast.client.options import ClaimRequest
from tests.client.both import Either
from tests.client.driving import POLICY, World, acquired, after, lock, scripted
from tests.client.driving import waiting as waiting_reported
from tests.client.test_server_outage import line
from tests.support.api import Api
from tests.support.pending import waiting


@pytest.mark.parametrize("is_new", [True, False])
def test_watcher_keeps_its_queue_position(either: Either, operator: Api, job: str, is_new: bool) -> None:
    """W1, W2: a job that is given back while the first in line is being told its place is the first's, whatever its
    client was used for before."""
    if not is_new:
        either.release_job(f"{job}-before", either.claim_job(f"{job}-before").lease_id)
    lease_id = operator.acquired(job, owner="ana", ttl_seconds=600)["lease_id"]
    is_waiting, may_go_on = threading.Event(), threading.Event()

    def on_update(_: QueuePosition) -> None:
        is_waiting.set()
        may_go_on.wait(20)

    granted: list[int] = []
    first = threading.Thread(
        target=lambda: granted.append(either.claim_job(job, "first", wait=60, on_wait=on_update).fencing_token)
    )
    first.start()
    assert is_waiting.wait(20), "its first request is over"
    second = waiting(operator, job, owner="second")
    operator.release(job, lease_id)
    may_go_on.set()
    first.join(20)
    assert granted, "the first in line has it"
    operator.revoke(job, reason="the next one has its turn")
    assert second.json()["fencing_token"] > granted[0]
    second.close()


def test_every_wait_request_but_the_last_announces_the_next() -> None:
    """W2: the last request of a wait does not say that another follows, nor does one that gives up."""
    world = World(line(70))
    world.run(claim("j", ClaimRequest(ttl=60, owner="o", wait=80, on_wait=lambda _: None), POLICY))
    claims = [request for request in world.sent if request.method == "POST"]
    assert len(claims) > 3 and all(request.will_retry for request in claims)
    world = World(line(70))
    world.run(claim("j", ClaimRequest(ttl=60, owner="o", wait=75), POLICY))
    said = [request.will_retry for request in world.sent if request.method == "POST"]
    assert said[-1] is False and all(said[:-1])


def test_wait_leaves_a_stopping_server_immediately() -> None:
    """W2: who is sent away early, after waits that lasted, asks again first, without a look or a rest."""
    answers = scripted(after(0.1, waiting_reported(2)), lock(), after(1, waiting_reported(1)), acquired())
    world = World(answers)
    updates: list[QueuePosition] = []
    world.run(claim("j", ClaimRequest(ttl=60, owner="o", wait=80, on_wait=updates.append), POLICY))
    assert [request.method for request in world.sent] == ["POST", "GET", "POST", "POST"]
    assert world.sleeps == [] and [update.position for update in updates] == [2]
