"""`claim_job` tells of the wait, in both clients."""

from __future__ import annotations

import threading

from holdfast import QueuePosition
from tests.client.both import Either


def test_claim_job_reports_its_queue_position(either: Either, job: str) -> None:
    """`on_wait` of `claim_job` hears the place and the owner, and the claim follows when the job is given back."""
    first = either.claim_job(job, "ana")
    updates: list[QueuePosition] = []
    is_waiting = threading.Event()

    def on_update(update: QueuePosition) -> None:
        updates.append(update)
        is_waiting.set()

    def run_release() -> None:
        is_waiting.wait(20)
        either.release_job(job, first.lease_id)

    giver = threading.Thread(target=run_release)
    giver.start()
    claim = either.claim_job(job, "ben", wait=20, on_wait=on_update)
    giver.join(20)
    assert claim.owner == "ben" and claim.fencing_token > first.fencing_token
    assert (updates[0].job_id, updates[0].position) == (job, 1)
    assert updates[0].owner is not None and updates[0].owner.owner == "ana"
