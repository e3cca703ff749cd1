"""Finished work is remembered, failed work counts: L5, C7."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import moment, refused, unique, wait_until
from tests.support.pending import waiting
from tests.support.server import ServerProcess

DONE = {"status", "name", "owner", "fencing_token", "completed_at", "result", "remembered_for_ms"}
DAYS_30 = 30 * 86_400


def _finish(api: Api, name: str, **fields: object) -> dict[str, object]:
    lease = api.acquired(name, owner="ana")
    body: dict[str, Any] = {"outcome": "done", "remember_seconds": 60, **fields}
    assert api.release(name, lease["lease_id"], **body).status == 200
    return lease


def test_finished_work_is_answered_as_done(alice: Api, bob: Api, name: str) -> None:
    """L5: who claims finished work hears by whom, when and with what result, and does not get it."""
    lease = _finish(alice, name, result="merged as pr-7")
    body = bob.acquire(name, owner="ben").json()
    assert set(body) == DONE
    assert (body["status"], body["name"], body["owner"]) == ("done", name, "ana")
    assert (body["result"], body["fencing_token"]) == ("merged as pr-7", lease["fencing_token"])
    assert 50_000 < body["remembered_for_ms"] <= 60_000
    assert moment(body["completed_at"]) is not None
    assert bob.acquire(name, on_held="409").status == 409
    assert bob.acquire(name, wait_seconds=20).json()["status"] == "done"
    shown = bob.status(name).json()
    assert (shown["status"], shown["owner"], shown["result"]) == ("done", "ana", "merged as pr-7")
    assert shown["completed_at"] == body["completed_at"]
    assert name not in [lock["name"] for lock in bob.locks(prefix=name).json()["locks"]]


def test_done_without_memory_is_a_release(alice: Api, name: str) -> None:
    """L5: `done` that is not remembered, or for 0 s, leaves the name free."""
    for fields in ({"remember_seconds": 0}, {"remember_seconds": None}):
        _finish(alice, name, **fields)
        assert alice.status(name).json()["status"] == "free"


def test_memory_ends(alice: Api, name: str) -> None:
    """L5: after its time finished work can be claimed again, and says who was there before."""
    _finish(alice, name, remember_seconds=1)
    assert alice.acquire(name).json()["status"] == "done"
    granted = wait_until(lambda: (body := alice.acquire(name).json())["status"] == "acquired" and body)
    assert granted["previous"]["owner"] == "ana"
    assert granted["attempts"] == 1


def test_redo_lifts_it(alice: Api, bob: Api, name: str) -> None:
    """L5: who says `redo` gets finished work, and for everybody else it is held then, and free after."""
    _finish(alice, name)
    granted = bob.acquired(name, redo=True, owner="ben")
    assert alice.held(name)["owner"] == "ben"
    bob.release(name, granted["lease_id"])
    alice.acquired(name)


def test_done_comes_before_delayed(alice: Api, name: str) -> None:
    """L5, L6: finished work with a lock delay is `done`; with `redo` the delay counts."""
    lease = alice.acquired(name, lock_delay_seconds=20)
    alice.release(name, lease["lease_id"], outcome="done", remember_seconds=60)
    assert alice.acquire(name).json()["status"] == "done"
    delayed = alice.acquire(name, redo=True)
    assert (delayed.status, delayed.json()["status"]) == (409, "delayed")


def test_reopen(alice: Api, bob: Api, operator: Api, name: str) -> None:
    """L5: an operator reopens finished work, with a reason that history keeps; nobody else can."""
    _finish(alice, name)
    refused(alice.reopen(name), 403, "forbidden")
    answer = operator.reopen(name, reason="the fix was wrong")
    assert (answer.status, answer.body) == (204, b"")
    assert bob.status(name).json()["status"] == "free"
    newest = bob.history(name).json()["history"][0]
    assert (newest["event"], newest["by"], newest["reason"]) == ("reopened", "operator", "the fix was wrong")
    assert "not done" in refused(operator.reopen(name), 404, "not_found")["details"]
    refused(operator.reopen(unique()), 404, "not_found")
    refused(operator.reopen(name, reason="x" * 1_025), 400, "invalid_input")
    bob.acquired(name)
    refused(operator.reopen(name), 404, "not_found")


def test_reopen_can_be_retried(alice: Api, operator: Api, name: str) -> None:
    """C5: a retry of a reopening with its key is answered as the first one was, and opens nothing again."""
    _finish(alice, name)
    key = unique("key")
    assert operator.reopen(name, key=key).status == 204
    _finish(alice, name)
    assert operator.reopen(name, key=key).status == 204
    assert alice.status(name).json()["status"] == "done"


def test_reopening_grants_to_waiter_with_redo(alice: Api, bob: Api, operator: Api, name: str) -> None:
    """L5, W1: after a reopening the name is free for all, and its line works as any other."""
    _finish(alice, name)
    operator.reopen(name)
    lease = alice.acquired(name)
    request = waiting(bob, name)
    alice.release(name, lease["lease_id"])
    assert request.json()["status"] == "acquired"
    request.close()


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"outcome": "done", "remember_seconds": DAYS_30 + 1}, 400),
        ({"outcome": "done", "remember_seconds": -1}, 422),
        ({"outcome": "done", "remember_seconds": 1.5}, 422),
        ({"outcome": "done", "remember_seconds": 5, "result": "x" * 1_025}, 400),
        ({"outcome": "failed", "remember_seconds": 5}, 422),
        ({"outcome": "failed", "result": "x"}, 422),
        ({"remember_seconds": 5}, 422),
        ({"result": "x"}, 422),
        ({"outcome": "finished"}, 422),
        ({"outcome": True}, 422),
    ],
    ids=str,
)
def test_bad_outcomes(alice: Api, name: str, fields: dict[str, Any], status: int) -> None:
    """L5: what cannot be meant is refused, and the lease lives on."""
    lease = alice.acquired(name)
    refused(alice.release(name, lease["lease_id"], **fields), status, "invalid_input")
    assert alice.renew(name, lease["lease_id"]).status == 200


def test_bounds_themselves_are_good(alice: Api, name: str) -> None:
    """L5: thirty days and a result of 1,024 characters are taken."""
    _finish(alice, name, remember_seconds=DAYS_30, result="ä" * 1_024)
    body = alice.acquire(name).json()
    assert body["result"] == "ä" * 1_024
    assert body["remembered_for_ms"] > (DAYS_30 - 60) * 1_000


def test_failed_counts_attempts(alice: Api, bob: Api, name: str) -> None:
    """C7: claims count until the job ends well: failures go on counting, a plain release begins anew."""
    for attempt in (1, 2, 3):
        lease = alice.acquired(name, owner="ana")
        assert lease["attempts"] == attempt
        assert alice.status(name).json()["attempts"] == attempt
        alice.renew(name, lease["lease_id"], note=f"try {attempt}")
        alice.release(name, lease["lease_id"], outcome="failed")
    granted = bob.acquired(name)
    assert granted["attempts"] == 4
    assert (granted["previous"]["ended"], granted["previous"]["note"]) == ("released", "try 3")
    bob.release(name, granted["lease_id"])
    assert bob.acquired(name)["attempts"] == 1


def test_a_retry_of_done_is_done_once(alice: Api, bob: Api, name: str) -> None:
    """C5: a release repeated with its key is answered as the first; it does not remember the work anew."""
    lease = alice.acquired(name)
    key = unique("key")
    fields = {"outcome": "done", "remember_seconds": 60, "result": "r"}
    assert alice.release(name, lease["lease_id"], key=key, **fields).status == 200
    assert bob.acquired(name, redo=True)["attempts"] == 1
    assert alice.release(name, lease["lease_id"], key=key, **fields).status == 200
    assert bob.held(name)["status"] == "held"
    refused(alice.release(name, lease["lease_id"], key=key), 422, "idempotency_conflict")


def test_finished_work_survives_kill(tmp_path_factory: pytest.TempPathFactory) -> None:
    """I5, L5: what is done, the attempts and the notes are the same after kill −9, with and without a snapshot."""
    data = tmp_path_factory.mktemp("done") / "data"
    with ServerProcess.start(data, settings={"snapshot_records": 10}, tokens=callers.TOKENS) as server:
        alice = Api.of(server, callers.ALICE)
        for number in range(30):
            _finish(alice, f"done-{number}", result=f"r-{number}", remember_seconds=600)
            lease = alice.acquired(f"failed-{number}", owner="ana")
            alice.renew(f"failed-{number}", lease["lease_id"], note=f"n-{number}")
            alice.release(f"failed-{number}", lease["lease_id"], outcome="failed")
        server.kill()
        with server.restart() as again:
            alice = Api.of(again, callers.ALICE)
            for number in range(30):
                assert alice.acquire(f"done-{number}").json()["result"] == f"r-{number}"
                granted = alice.acquired(f"failed-{number}")
                assert (granted["attempts"], granted["previous"]["note"]) == (2, f"n-{number}")
