"""The judge of `waiting_judge.py` believes a true journal and sees each way in which one can be untrue."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from tests.crash.waiting_checker import check_waiting
from tests.crash.waiting_load import Barrier, Claim, Deed, Ledger

Records: TypeAlias = list[dict[str, Any]]
Change: TypeAlias = Callable[[Ledger, Records], object]


def lease(owner: str, token: int) -> dict[str, Any]:
    return {"lease_id": f"lease-{token}", "token": token, "owner": owner, "key": f"key-{owner}"}


def granted(owner: str, token: int, name: str, ticket_id: str | None = None) -> dict[str, Any]:
    return {"event": "granted", "name": name, "lease": lease(owner, token), "ticket_id": ticket_id}


def joined(owner: str) -> dict[str, Any]:
    ticket = {"ticket_id": f"ticket-{owner}", "owner": owner, "names": ["job"], "redo": False}
    return {"event": "joined", "ticket": ticket}


def ended(token: int, name: str, how: str, key: str, **more: object) -> dict[str, Any]:
    end = {"event": "ended", "name": name, "lease_id": f"lease-{token}", "how": how, "key": key}
    return end | {"reason": None, "done": None, "left": []} | more


def valid_journal() -> tuple[Ledger, Records]:
    """A gate, a line of two, a transfer, a revocation, finished work that is reopened, and a claim of all."""
    ledger = Ledger()
    for owner, token in (("gate", 1), ("first", 2), ("second", 4)):
        claim = Claim(owner, f"key-{owner}", "one", ("job",), 60, sends=1, what="granted")
        claim.granted = {"job": (f"lease-{token}", token)}
        claim.tickets = [] if owner == "gate" else [f"ticket-{owner}"]
        ledger.claim(claim)
    both = ledger.claim(Claim("both", "key-both", "all", ("a", "b"), 60, sends=1, what="granted"))
    both.granted = {"a": ("lease-5", 5), "b": ("lease-6", 6)}
    ledger.deed(Deed("release", "job", "open", "lease-1", worked=True))
    ledger.deed(Deed("transfer", "job", "hand", "lease-2", "heir", worked=True, new_lease=("lease-3", 3)))
    ledger.deed(Deed("revoke", "job", "revoke", text="enough", worked=True))
    ledger.deed(Deed("release", "job", "finish", "lease-4", "second", is_done=True, worked=True))
    ledger.deed(Deed("reopen", "job", "reopen", text="again", worked=True))
    ledger.barriers.append(Barrier("job", "lease-1", frozenset({"first", "second"})))
    grants = [granted("both", 5, "a"), granted("both", 6, "b")]
    records: Records = [
        {"event": "opened", "epoch": 1},
        granted("gate", 1, "job"),
        joined("first"),
        joined("second"),
        ended(1, "job", "released", "open"),
        granted("first", 2, "job", "ticket-first"),
        {"event": "transferred", "name": "job", "old_lease_id": "lease-2", "lease": lease("heir", 3), "key": "hand"},
        ended(3, "job", "revoked", "revoke", reason="enough"),
        granted("second", 4, "job", "ticket-second"),
        ended(4, "job", "released", "finish", done={"result": "second", "until_ms": 10**6}),
        {"event": "reopened", "name": "job", "reason": "again", "key": "reopen"},
        {"event": "granted_many", "grants": grants, "ticket_id": None},
    ]
    return ledger, records


def numbered(records: Records) -> Records:
    return [record | {"seq": number, "at_ms": number * 10} for number, record in enumerate(records, 1)]


def swap_queue(_: Ledger, records: Records) -> None:
    records[2], records[3] = records[3], records[2]


def tear_a_claim(_: Ledger, records: Records) -> None:
    records[11] = records[11]["grants"][0] | {"ticket_id": None}


def grant_twice(_: Ledger, records: Records) -> None:
    records.append(granted("gate", 7, "job"))


def lose_entry(_: Ledger, records: Records) -> None:
    records.insert(4, {"event": "left", "ticket_id": "ticket-second", "how": "gone"})


def overtake(ledger: Ledger, records: Records) -> None:
    ledger.barriers.clear()
    ledger.claim(Claim("thief", "key-thief", "one", ("job",), 60))
    records.insert(5, granted("thief", 1, "job"))


def let_in_one_who_vanished(ledger: Ledger, _: Records) -> None:
    ledger.vanished.add("second")


CHANGES: list[tuple[Change, str]] = [
    (swap_queue, "let in as"),
    (swap_queue, "passed over"),
    (tear_a_claim, "not what was claimed"),
    (tear_a_claim, "an acknowledged grant is not in the journal"),
    (grant_twice, "granted twice"),
    (lose_entry, "a place was lost"),
    (overtake, "passed over"),
    (let_in_one_who_vanished, "was not there"),
    (lambda _, records: records.pop(11), "an acknowledged grant is not in the journal"),
    (lambda _, records: records.pop(10), "acknowledged, and not in the journal"),
    (lambda _, records: records.pop(7), "granted while it is held"),
    (lambda _, records: records.pop(6), "acknowledged, and not in the journal"),
    (lambda _, records: records.pop(3), "an acknowledged place is not in the journal"),
    (lambda _, records: records[9].update(done=None), "acknowledged, and not in the journal"),
    (lambda _, records: records[8]["lease"].update(token=3), "a token does not rise"),
    (lambda _, records: records.append(records[10]), "done twice"),
    (lambda ledger, _: setattr(ledger.deeds[2], "worked", False), "refused, and done"),
    (lambda ledger, _: ledger.deeds.pop(2), "nobody asked for it"),
    (lambda ledger, _: setattr(ledger.claims[1], "what", "done"), "refused, and granted"),
]


def test_valid_journal_is_accepted() -> None:
    """I12, M2: the judge has nothing to say of what is as it should be."""
    ledger, records = valid_journal()
    assert check_waiting(ledger, numbered(records)) == []


@pytest.mark.parametrize(("change", "complaint"), CHANGES)
def test_invalid_journal_is_rejected(change: Change, complaint: str) -> None:
    """I12, M2, C5, C6: whatever is lost, torn, repeated or out of order is told."""
    ledger, records = valid_journal()
    records = copy.deepcopy(records)
    change(ledger, records)
    found = check_waiting(ledger, numbered(records))
    assert any(complaint in one for one in found), found
