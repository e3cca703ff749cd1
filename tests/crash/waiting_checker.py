"""Holds what the clients of `waiting.py` were told against the journal: nothing lost, nothing twice, in order.

The law of this file: who was there is not in the journal, so a place counts as one that was there only where that is
certain: it joined in this life of the server and got its turn by that very request, or it stood behind the gate with
all the others when the gate was opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tests.crash.waiting_load import Claim, Deed, Ledger

DETACHED_MS_MAX = 60_000
Record: TypeAlias = Mapping[str, Any]


def check_waiting(ledger: Ledger, records: Iterable[Record]) -> list[str]:
    """Complaints about answers that differ from the journal, or a journal that breaks W1–W3, M2, L5, L7, L8 or C5."""
    journal = _Journal(ledger)
    for record in records:
        journal.apply(record)
    return [
        *journal.complaints,
        *_compare_claims(ledger, journal),
        *_compare_deeds(ledger, journal),
        *_check_order(ledger, journal),
    ]


@dataclass(slots=True)
class _QueueEntry:
    """A ticket, from its first record on."""

    seq: int
    epoch: int
    at_ms: int
    owner: str
    names: tuple[str, ...]
    redo: bool
    left: str | None = None


@dataclass(slots=True)
class _Grant:
    seq: int
    epoch: int
    leases: dict[str, tuple[str, int]]
    ticket_id: str | None


@dataclass(slots=True)
class _Pass:
    """A grant and who was overtaken by it, if they were there and could have been met."""

    record: Record
    waiting: list[str] = field(default_factory=list)


class _Journal:
    def __init__(self, ledger: Ledger) -> None:
        self.complaints: list[str] = []
        self.entries: dict[str, _QueueEntry] = {}
        self.grants: dict[str, _Grant] = {}
        self.ends: dict[str, tuple[int, int, Record]] = {}
        """By lease id: where it ended, in which life, and how."""
        self.by_key: dict[str, Record] = {}
        """Ends, transfers and reopenings that were asked for with a key."""
        self.passes: list[_Pass] = []
        self._claims = {claim.label: claim for claim in ledger.claims}
        self._asked = {deed.key: deed for deed in ledger.deeds}
        self._live: dict[str, Record] = {}
        self._done_until: dict[str, int] = {}
        self._queued: dict[str, _QueueEntry] = {}
        self._token = self._epoch = self._seq = self._at_ms = 0

    def apply(self, record: Record) -> None:
        if record["seq"] <= self._seq or record["at_ms"] < self._at_ms:
            self._complain("the journal goes backwards", record)
        self._seq, self._at_ms = record["seq"], record["at_ms"]
        match record["event"]:
            case "opened":
                self._epoch = record["epoch"]
            case "joined":
                self._on_joined(record)
            case "left":
                self._on_left(record, record)
            case "granted":
                self._on_grants(record, [record])
            case "granted_many":
                self._on_grants(record, record["grants"])
            case "transferred":
                self._on_transfer(record)
            case "ended":
                self._on_end(record, record)
                for each in record["left"]:
                    self._on_left(record, each)
            case "session_ended":
                self._check_key(record)
                for each in record["leases"]:
                    self._on_end(record, each)
                for each in record["left"]:
                    self._on_left(record, each)
            case "reopened":
                self._check_key(record)
                self._done_until.pop(record["name"], None)
            case _:
                pass

    def _on_joined(self, record: Record) -> None:
        ticket = record["ticket"]
        if ticket["ticket_id"] in self._queued:
            return
        if ticket["ticket_id"] in self.entries:
            self._complain("a place that was left is taken again", record)
        names = tuple(ticket["names"])
        entry = _QueueEntry(self._seq, self._epoch, self._at_ms, ticket["owner"], names, ticket["redo"])
        self.entries[ticket["ticket_id"]] = self._queued[ticket["ticket_id"]] = entry
        claim = self._claims.get(entry.owner)
        if claim is None or claim.names != names:
            self._complain("somebody stands in line who never asked", record)

    def _on_left(self, record: Record, left: Record) -> None:
        entry = self._queued.pop(left["ticket_id"], None)
        if entry is None:
            self._complain("somebody left who was not in line", record)
            return
        entry.left = left["how"]
        is_early = left["how"] == "gone" and self._at_ms < entry.at_ms + DETACHED_MS_MAX
        if is_early or left["how"] not in {"gone", "done", "session_ended"}:
            self._complain(f"a place was lost ({left['how']})", record)

    def _on_grants(self, record: Record, grants: list[Record]) -> None:
        ticket_id = record["ticket_id"]
        label = grants[0]["lease"]["owner"]
        names = {grant["name"] for grant in grants}
        mine = self._queued.pop(ticket_id, None) if ticket_id is not None else None
        before = mine.seq if mine is not None else self._seq
        passed = [
            other
            for other, entry in self._queued.items()
            if entry.seq < before and names & set(entry.names) and self._can_be_met(entry)
        ]
        if passed:
            self.passes.append(_Pass(record, passed))
        leases = {grant["name"]: (grant["lease"]["lease_id"], grant["lease"]["token"]) for grant in grants}
        claim = self._claims.get(label)
        if claim is None or any(grant["lease"]["key"] != claim.key for grant in grants):
            self._complain("a grant that nobody asked for", record)
        elif (names != set(claim.names)) if claim.shape != "any" else (len(names) != 1 or not names < set(claim.names)):
            self._complain(f"not what was claimed by {claim}", record)
        if label in self.grants:
            self._complain("one key was granted twice", record)
        self.grants[label] = _Grant(self._seq, self._epoch, leases, ticket_id)
        for grant in grants:
            if grant["name"] in self._live:
                self._complain(f"{grant['name']} is granted while it is held", record)
            self._begin(record, grant["name"], grant["lease"])
            self._done_until.pop(grant["name"], None)

    def _can_be_met(self, entry: _QueueEntry) -> bool:
        if any(name in self._live for name in entry.names):
            return False
        return entry.redo or all(self._done_until.get(name, 0) <= self._at_ms for name in entry.names)

    def _begin(self, record: Record, name: str, lease: Record) -> None:
        if lease["token"] <= self._token:
            self._complain("a token does not rise", record)
        self._token = lease["token"]
        self._live[name] = lease

    def _on_transfer(self, record: Record) -> None:
        self._check_key(record)
        live = self._live.pop(record["name"], None)
        if live is None or live["lease_id"] != record["old_lease_id"]:
            self._complain("a transfer of what does not live", record)
        self.ends[record["old_lease_id"]] = (self._seq, self._epoch, record)
        self._begin(record, record["name"], record["lease"])

    def _on_end(self, record: Record, ended: Record) -> None:
        live = self._live.pop(ended["name"], None)
        if live is None or live["lease_id"] != ended["lease_id"]:
            self._complain("an end of what does not live", record)
        self.ends[ended["lease_id"]] = (self._seq, self._epoch, ended)
        if ended["how"] in {"released", "revoked"}:
            self._check_key(ended)
        if ended["done"] is not None:
            self._done_until[ended["name"]] = ended["done"]["until_ms"]

    def _check_key(self, record: Record) -> None:
        key = record["key"]
        if key in self.by_key:
            self._complain("one key was done twice", record)
        if key not in self._asked and not str(key).startswith("release-"):
            self._complain("nobody asked for it", record)
        self.by_key[key] = record

    def _complain(self, text: str, record: Record) -> None:
        self.complaints.append(f"{text}: {dict(record)}")


def _compare_claims(ledger: Ledger, journal: _Journal) -> list[str]:
    complaints: list[str] = []
    claims = {claim.label: claim for claim in ledger.claims}
    for claim in ledger.claims:
        grant = journal.grants.get(claim.label)
        if claim.what == "granted" and (grant is None or grant.leases != claim.granted):
            complaints.append(f"an acknowledged grant is not in the journal: {claim}, {grant}")
        if claim.what == "ended" and grant is None:
            complaints.append(f"said to have ended, and never was: {claim}")
        if claim.what in {"held", "done", "gone"} and grant is not None:
            complaints.append(f"refused, and granted: {claim}, {grant}")
        entries = [journal.entries.get(ticket) for ticket in claim.tickets]
        if any(entry is None or entry.owner != claim.label for entry in entries):
            complaints.append(f"an acknowledged place is not in the journal: {claim}")
        # Whoever was told another place than before, or none, had been answered by finished work meanwhile.
        lost = entries if claim.what == "gone" else entries[:-1]
        if any(entry is not None and entry.left != "done" for entry in lost):
            complaints.append(f"a place was lost: {claim}, {entries}")
    for passing in journal.passes:
        complaints += [
            f"{journal.entries[ticket]} was there and was passed over: {dict(passing.record)}"
            for ticket in passing.waiting
            if _was_surely_there(journal.entries[ticket], claims, journal, passing.record["seq"])
        ]
    return complaints


def _was_surely_there(entry: _QueueEntry, claims: dict[str, Claim], journal: _Journal, seq: int) -> bool:
    claim = claims[entry.owner]
    grant = journal.grants.get(entry.owner)
    return (
        claim.sends == 1
        and claim.what == "granted"
        and grant is not None
        and entry.epoch == grant.epoch
        and entry.seq < seq < grant.seq
    )


def _compare_deeds(ledger: Ledger, journal: _Journal) -> list[str]:
    complaints: list[str] = []
    for deed in ledger.deeds:
        record = journal.by_key.get(deed.key)
        if deed.worked is False and record is not None:
            complaints.append(f"refused, and done: {deed}, {dict(record)}")
        elif deed.worked and (record is None or not _is_it(deed, record)):
            complaints.append(f"acknowledged, and not in the journal: {deed}, {record}")
    return complaints


def _is_it(deed: Deed, record: Record) -> bool:
    if deed.kind == "end_session":
        return bool(record["session_id"] == deed.name)
    if record["name"] != deed.name:
        return False
    match deed.kind:
        case "release":
            result = None if record["done"] is None else record["done"]["result"]
            return (record["lease_id"], result) == (deed.lease_id, deed.text if deed.is_done else None)
        case "transfer":
            lease = record["lease"]
            new = (lease["lease_id"], lease["token"])
            return (record["old_lease_id"], new, lease["owner"]) == (deed.lease_id, deed.new_lease, deed.text)
        case "revoke":
            return (record["how"], record["reason"]) == ("revoked", deed.text)
        case _:
            return bool(record["reason"] == deed.text)


def _check_order(ledger: Ledger, journal: _Journal) -> list[str]:
    """Behind a gate that opened when all were back, grants follow the order of joining, in that life of the server."""
    complaints = [f"{label} was not there and was let in" for label in ledger.vanished if label in journal.grants]
    joined = sorted(journal.entries.values(), key=lambda entry: entry.seq)
    for barrier in ledger.barriers:
        opened_seq, epoch, _ = journal.ends[barrier.gate_lease_id]
        order = [entry.owner for entry in joined if entry.owner in barrier.back]
        let_in = [(journal.grants[label].seq, label) for label in order if label in journal.grants]
        turns = [label for seq, label in sorted(let_in) if journal.grants[label].epoch == epoch and seq > opened_seq]
        if turns != order[: len(turns)]:
            complaints.append(f"{barrier.name}: joined as {order}, let in as {turns}")
    return complaints
