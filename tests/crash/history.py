"""What was asked of a server and what it answered, and three judges of it, each blind to what the next one sees.

1. `check_tokens` looks from outside, in linear time: tokens rise, no two holders, no early end, no lost release.
2. `check_witness` holds the answers against the server's own journal: nothing lost, nothing invented, in real order.
3. `check_search` tries every order a name's operations may have had (Wing and Gong): a correct lock must have one.

Every claim has a label of its own (the `owner` it asks with), so a claim is known before its answer is, and without it.
The judges trust two things: both sides read one monotonic clock, and no renewal here takes time away.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

OPERATIONS_PER_NAME_MAX = 300
"""Beyond it the search may not end; a load takes a new name then."""
SEARCH_STEPS_MAX = 200_000
SLACK_SECONDS = 0.002
"""Authority time counts whole milliseconds, so a lease may seem to end so much early."""

Kind: TypeAlias = Literal["acquire", "renew", "release", "get"]
What: TypeAlias = Literal["granted", "held", "ended", "done", "gone", "free", "refused"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an answer said. `label`, `token` and `lease_id` are those of the lease it speaks of.

    `granted` · `held` by another · `ended`: it was granted before and is over · `done`: renewed or released · `gone`:
    not the holder any more · `free` · `refused`: nothing happened.
    """

    what: What
    label: str = ""
    token: int = 0
    lease_id: str = ""
    left_seconds: float = 0.0


@dataclass(slots=True, eq=False)
class Operation:
    """One request, from its first try to its last answer: tries with one key are one operation."""

    kind: Kind
    name: str
    label: str = ""
    ttl_seconds: float = 0.0
    called_at: float = 0.0
    sent_at: float = 0.0
    """When the last try was sent: what its answer grants is counted from here at the earliest."""
    returned_at: float = math.inf
    """Nothing of it happens later; infinite while nobody can know that."""
    outcome: Outcome | None = None
    """None: unknown. It may have happened, once, between the call and `returned_at`."""

    def __str__(self) -> str:
        what = "?" if self.outcome is None else f"{self.outcome.what} {self.outcome.label} {self.outcome.token or ''}"
        return f"{self.kind} {self.name} {self.label} [{self.called_at:.4f}, {self.returned_at:.4f}] -> {what}"

    def answered(self, outcome: Outcome | None, at: float) -> None:
        """Note an answer; None is one that says that nobody knows."""
        self.outcome = outcome
        if outcome is not None:
            self.returned_at = at


@dataclass(slots=True)
class History:
    """The operations of many threads."""

    operations: list[Operation] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, kind: Kind, name: str, label: str = "", ttl_seconds: float = 0.0) -> Operation:
        """Note an operation before it is sent: what is not noted could happen unseen."""
        now = time.monotonic()
        operation = Operation(kind, name, label, ttl_seconds, now, now)
        with self._lock:
            self.operations.append(operation)
        return operation

    def nobody_is_left(self) -> None:
        """The server is dead: what was not answered has happened by now or never will. A lost look does not matter."""
        now = time.monotonic()
        with self._lock:
            self.operations = [one for one in self.operations if one.kind != "get" or one.outcome is not None]
            for operation in self.operations:
                operation.returned_at = min(operation.returned_at, now)

    def by_name(self) -> dict[str, list[Operation]]:
        """The operations of each name, in the order of their calls."""
        found: dict[str, list[Operation]] = defaultdict(list)
        for operation in sorted(self.operations, key=lambda one: one.called_at):
            found[operation.name].append(operation)
        return dict(found)


# --- From outside ----------------------------------------------------------------------------------------------------


def check_tokens(operations: Iterable[Operation]) -> list[str]:
    """Complaints about what clients alone can see (I1, I2, I3)."""
    everything = list(operations)
    grants = [one for one in everything if one.outcome is not None and one.outcome.what == "granted"]
    complaints = _token_order(grants)
    by_name: dict[str, list[Operation]] = defaultdict(list)
    for operation in everything:
        by_name[operation.name].append(operation)
    for same_name in by_name.values():
        complaints += _lives(same_name)
    return complaints


def _token_order(grants: Sequence[Operation]) -> list[str]:
    complaints: list[str] = []
    latest: Operation | None = None
    before: Operation | None = None
    for grant in sorted(grants, key=lambda one: _said(one).token):
        if before is not None and _said(before).token == _said(grant).token:
            complaints.append(f"token used twice: {before} and {grant}")
        if latest is not None and grant.returned_at < latest.called_at:
            complaints.append(f"token order: {grant} was over before {latest} began")
        if latest is None or grant.called_at > latest.called_at:
            latest = grant
        before = grant
    return complaints


@dataclass(slots=True)
class _LeaseSpan:
    """What is known of one lease: it surely lived from `since` to `until` unless somebody asked for its release."""

    since: float
    until: float
    release_called_at: float = math.inf
    over_at: float = math.inf
    """It had surely ended by then."""


def _lives(operations: Sequence[Operation]) -> list[str]:
    spans = _spans_of(operations)
    complaints: list[str] = []
    for operation in operations:
        if operation.outcome is None:
            continue
        seen = _seen_holder(operation)
        for label, span in spans.items():
            ends = min(span.until - SLACK_SECONDS, span.release_called_at)
            if label != seen and _looked(operation, label) and span.since < operation.called_at:
                if operation.returned_at < ends:
                    complaints.append(f"early end of {label}, which lives until {ends:.4f}: {operation}")
            elif label == seen and operation.called_at > span.over_at:
                complaints.append(f"{label} was over at {span.over_at:.4f}: {operation}")
    return complaints


def _spans_of(operations: Sequence[Operation]) -> dict[str, _LeaseSpan]:
    spans = {
        one.label: _LeaseSpan(one.returned_at, one.sent_at + _said(one).left_seconds)
        for one in operations
        if one.outcome is not None and one.outcome.what == "granted"
    }
    grants = [one for one in operations if one.outcome is not None and one.outcome.what == "granted"]
    tokens = {one.label: _said(one).token for one in grants}
    for one in operations:
        span = spans.get(one.label)
        if span is not None and one.kind == "renew" and one.outcome is not None and one.outcome.what == "done":
            span.until = max(span.until, one.sent_at + one.outcome.left_seconds)
        if span is not None and one.kind == "release":
            if one.outcome is None or one.outcome.what == "done":
                span.release_called_at = min(span.release_called_at, one.called_at)
            if one.outcome is not None and one.outcome.what == "done":
                span.over_at = min(span.over_at, one.returned_at)
    for label, span in spans.items():
        later = (grant.returned_at for grant in grants if _said(grant).token > tokens[label])
        span.over_at = min(span.over_at, min(later, default=math.inf))
    return spans


def _looked(operation: Operation, label: str) -> bool:
    """Does the answer say who holds the name, or whether this lease does?"""
    what = _said(operation).what
    if what == "gone":
        return operation.label == label
    return what in {"granted", "held", "free"}


def _seen_holder(operation: Operation) -> str | None:
    """Whom the answer shows as the holder. A released lease had it until then, which is no sight of it after."""
    outcome = _said(operation)
    match outcome.what:
        case "granted" | "held":
            return outcome.label
        case "done" if operation.kind == "renew":
            return operation.label
        case _:
            return None


def _said(operation: Operation) -> Outcome:
    assert operation.outcome is not None
    return operation.outcome


# --- Against the journal ---------------------------------------------------------------------------------------------

Record: TypeAlias = Mapping[str, Any]


def check_witness(operations: Iterable[Operation], records: Iterable[Record]) -> list[str]:
    """Complaints about answers that differ from the journal, or a journal that differs from what was asked (I1–I6).

    `records` are those of a journal's dump, from its first on; renewals may be missing.
    """
    return _Witness(list(operations)).hear(records)


class _Witness:
    def __init__(self, operations: Sequence[Operation]) -> None:
        self._operations = operations
        self._names = {one.name for one in operations}
        self._claims = {one.label: one for one in operations if one.kind == "acquire"}
        self._releases: dict[str, list[Operation]] = defaultdict(list)
        for one in operations:
            if one.kind == "release":
                self._releases[one.label].append(one)
        self._live: dict[str, Record] = {}
        self._until_ms: dict[str, int] = {}
        self._granted: dict[str, Record] = {}
        self._released: set[str] = set()
        self._seq = self._at_ms = self._token = 0
        self._latest_call = -math.inf
        self._complaints: list[str] = []

    def hear(self, records: Iterable[Record]) -> list[str]:
        for record in records:
            if record["seq"] <= self._seq or record["at_ms"] < self._at_ms:
                self._complain("the journal goes backwards at", record)
            self._seq, self._at_ms = record["seq"], record["at_ms"]
            match record["event"]:
                case "granted":
                    self._on_grant(record)
                case "renewed":
                    self._on_renewal(record)
                case "ended":
                    self._on_end(record, record)
                case "session_ended":
                    for ended in record["leases"]:
                        self._on_end(record, ended)
                case _:
                    pass
        self._compare_answers()
        return self._complaints

    def _on_grant(self, record: Record) -> None:
        lease, name = record["lease"], record["name"]
        if name in self._live:
            self._complain("a name is granted while it is held:", record)
        if lease["token"] <= self._token:
            self._complain("a token does not rise:", record)
        self._token = lease["token"]
        self._live[name] = lease
        self._until_ms[lease["lease_id"]] = lease["until_ms"]
        if name not in self._names:
            return
        claim = self._claims.get(lease["owner"])
        if claim is None or claim.name != name:
            self._complain("a grant that nobody asked for:", record)
            return
        if lease["owner"] in self._granted:
            self._complain("one claim was granted twice:", record)
        self._granted[lease["owner"]] = record
        self._in_real_order(claim.called_at, claim.returned_at, record)

    def _on_renewal(self, record: Record) -> None:
        live = self._live.get(record["name"])
        if live is None or live["lease_id"] != record["lease_id"]:
            self._complain("a renewal of what does not live:", record)
        self._until_ms[record["lease_id"]] = record["until_ms"]

    def _on_end(self, record: Record, ended: Record) -> None:
        live = self._live.pop(ended["name"], None)
        if live is None or live["lease_id"] != ended["lease_id"]:
            self._complain("an end of what does not live:", record)
            return
        if ended["how"] == "expired" and record["at_ms"] < self._until_ms[ended["lease_id"]]:
            self._complain(f"an early end, {self._until_ms[ended['lease_id']]} was promised:", record)
        if ended["name"] not in self._names or ended["how"] != "released":
            return
        label = live["owner"]
        self._released.add(label)
        asked = [one for one in self._releases[label] if one.outcome is None or one.outcome.what == "done"]
        if not asked:
            self._complain("a release that nobody asked for:", record)
            return
        self._in_real_order(min(one.called_at for one in asked), max(one.returned_at for one in asked), record)

    def _in_real_order(self, called_at: float, returned_at: float, record: Record) -> None:
        """What was over before another began must stand before it."""
        if returned_at < self._latest_call:
            self._complain("the journal's order is not that of real time:", record)
        self._latest_call = max(self._latest_call, called_at)

    def _compare_answers(self) -> None:
        for claim in self._claims.values():
            record = self._granted.get(claim.label)
            match claim.outcome:
                case None:
                    continue
                case Outcome(what="granted", token=token, lease_id=lease_id):
                    if record is None:
                        self._complain(f"an acknowledged grant is not in the journal: {claim}")
                    elif (record["lease"]["token"], record["lease"]["lease_id"]) != (token, lease_id):
                        self._complain(f"another lease was acknowledged than granted: {claim}", record)
                case Outcome(what="ended"):
                    if record is None:
                        self._complain(f"a claim is said to have ended that never was: {claim}")
                case _:
                    if record is not None:
                        self._complain(f"a refused claim was granted: {claim}", record)
        for label, releases in self._releases.items():
            if label not in self._released and any(one.outcome and one.outcome.what == "done" for one in releases):
                self._complain(f"an acknowledged release is not in the journal: {releases[0]}")

    def _complain(self, text: str, record: Record | None = None) -> None:
        self._complaints.append(text if record is None else f"{text} {dict(record)}")


# --- By search -------------------------------------------------------------------------------------------------------

State: TypeAlias = tuple[str | None, int, int, float]
"""Who holds the name, its token (0: not known), the highest token seen, and until when it cannot end by itself."""
FREE: State = (None, 0, 0, 0.0)


def check_search(operations: Iterable[Operation], *, steps_max: int = SEARCH_STEPS_MAX) -> bool | None:
    """Is there an order of one name's operations that a correct lock could have answered so (I7)? None: undecided.

    Depth first over the orders that real time allows, without trying one set of done operations in one state twice.
    """
    ops = sorted(operations, key=lambda one: one.called_at)
    wanted = sum(1 for one in ops if one.returned_at < math.inf)
    seen: set[tuple[int, int, State]] = set()
    stack: list[tuple[int, int, int, State]] = [(0, 0, 0, FREE)]
    steps = 0
    while stack:
        low, mask, done, state = stack.pop()
        while mask & 1:
            low, mask = low + 1, mask >> 1
        if done == wanted:
            return True
        if (low, mask, state) in seen:
            continue
        seen.add((low, mask, state))
        # The one that returns first is pushed last and so tried first: mostly that is how it was.
        for index in sorted(_may_be_next(ops, low, mask), key=lambda at: -ops[at].returned_at):
            steps += 1
            if steps > steps_max:
                return None
            with_it, is_wanted = mask | 1 << (index - low), ops[index].returned_at < math.inf
            stack.extend((low, with_it, done + is_wanted, after) for after in _after(state, ops[index]))
    return False


def _may_be_next(ops: Sequence[Operation], low: int, mask: int) -> list[int]:
    """Those not done that were called before any of the others had returned."""
    first_return = math.inf
    found: list[int] = []
    index = low
    while index < len(ops) and ops[index].called_at <= first_return:
        if not mask & 1:
            found.append(index)
            first_return = min(first_return, ops[index].returned_at)
        index, mask = index + 1, mask >> 1
    return [index for index in found if ops[index].called_at <= first_return]


def _after(state: State, one: Operation) -> list[State]:
    """What a correct lock may be after it answered so. Nothing: it could not have. An unknown outcome forks."""
    holder, _, last, until = state
    can_be_free = holder is None or one.returned_at + SLACK_SECONDS >= until
    nobody: State = (None, 0, last, 0.0)
    match one.kind:
        case "acquire":
            return _after_claim(state, one, can_be_free=can_be_free)
        case "get":
            return _after_look(state, one, can_be_free=can_be_free)
        case _:
            if one.outcome is not None and one.outcome.what == "refused":
                return [state]
            if one.outcome is not None and one.outcome.what == "gone":
                if holder != one.label:
                    return [state]
                return [nobody] if can_be_free else []
            happened = [nobody if one.kind == "release" else _longer(state, one)] if holder == one.label else []
            return happened if one.outcome is not None else [state, *happened]


def _after_claim(state: State, one: Operation, *, can_be_free: bool) -> list[State]:
    holder, _, last, _ = state
    unheard: State = (one.label, 0, last, one.called_at + one.ttl_seconds)
    match one.outcome:
        case None:
            return [state, unheard] if can_be_free else [state]
        case Outcome(what="granted", token=token, left_seconds=left_seconds):
            if not can_be_free or token <= last:
                return []
            return [(one.label, token, token, one.sent_at + left_seconds)]
        case Outcome(what="ended"):
            is_over = one.returned_at + SLACK_SECONDS >= one.called_at + one.ttl_seconds
            return [unheard] if can_be_free and is_over else []
        case Outcome(what="held", label=label):
            return [state] if holder == label != one.label else []
        case _:
            return [state]


def _after_look(state: State, one: Operation, *, can_be_free: bool) -> list[State]:
    holder, token, last, until = state
    seen = _said(one)
    if seen.what == "free":
        return [(None, 0, last, 0.0)] if can_be_free else []
    if holder != seen.label:
        return []
    if token == 0 and seen.token > last:
        return [(holder, seen.token, seen.token, until)]
    return [state] if token == seen.token else []


def _longer(state: State, one: Operation) -> State:
    holder, token, last, until = state
    left_seconds = one.ttl_seconds if one.outcome is None else one.outcome.left_seconds
    return holder, token, last, max(until, one.sent_at + left_seconds)


# --- All together ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the judges say."""

    complaints: list[str]
    operations: int
    names: int
    undecided: int


def judge(history: History, records: Iterable[Record]) -> Verdict:
    """Ask all three."""
    by_name = history.by_name()
    complaints = check_tokens(history.operations) + check_witness(history.operations, records)
    undecided = 0
    for name, operations in by_name.items():
        assert len(operations) <= OPERATIONS_PER_NAME_MAX, f"{name} has {len(operations)} operations"
        found = check_search(operations)
        undecided += found is None
        if found is False:
            lines = "\n".join(f"  {one}" for one in operations)
            complaints.append(f"no order explains what happened to {name}:\n{lines}")
    return Verdict(complaints, len(history.operations), len(by_name), undecided)
