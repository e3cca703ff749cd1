"""The real core and the naive one side by side: every command goes to both, and both must say the same.

After every record the invariants are checked on the records alone, and four states are compared: the one that decided,
one that was only ever told the records as bytes, one made from a picture, and an archive that is told changes (I15).
"""

from typing import Any

from msgspec.structs import replace

from holdfast.core import outcomes
from holdfast.core.commands import Command, KeepSession, Leave, Renew, RenewSession
from holdfast.core.decide import decide, next_due, next_grant
from holdfast.core.decision import Notice
from holdfast.core.events import (
    Ended,
    Event,
    Forgotten,
    Granted,
    GrantedMany,
    Record,
    Renewed,
    SessionEnded,
    SessionRenewed,
    Transferred,
    UsageEvicted,
)
from holdfast.core.evolve import event_fits, evolve
from holdfast.core.state import State
from holdfast.core.values import TOKEN_MAX, EndedLease, Instant, LastEnd, Lease, Limits
from holdfast.journal.codec import decode_batch, encode_batch
from tests.core.archive_model import Archived
from tests.core.crowd import check_queues
from tests.core.naive import Naive
from tests.scenarios.player import durable, fingerprint
from tests.support.commands import altered

WALL_MS = 5_000_000

SMALL = Limits(
    ttl_ms_max=20_000,
    session_ttl_ms_max=15_000,
    leases_per_principal_max=3,
    sessions_per_principal_max=2,
    retry_memory_ms=4_000,
    retry_bytes_max=5,
    ended_bytes_max=3,
    tickets_per_principal_max=4,
    queue_max=3,
)


class Pair:
    def __init__(self, limits: Limits = SMALL) -> None:
        self.limits = limits
        self.core = State()
        self.shadow = State()
        self.archived = Archived(self.shadow)
        self.naive = Naive(limits)
        self.records: list[Record] = []
        self.now_ms = 0
        self.held: dict[str, Lease] = {}
        """Who holds what, from the records alone."""
        self.open_at_ms: dict[str, int] = {}
        self.promised_ms: dict[str, int] = {}
        """Until when each lease was last acknowledged to live."""
        self.last_token = 0
        self.answer: object = None
        """The last answer of the core, as it was."""
        self.core_notices: list[tuple[str, tuple[object, ...]]] = []
        """What the core said to those in line since they were last compared."""

    def ask(self, command: Command) -> tuple[object, ...]:
        """Let both decide; return what both answer."""
        self.expire_due()
        if not isinstance(command, Renew | KeepSession | RenewSession | Leave):
            command = altered(command, fingerprint=fingerprint(command))
        decision = decide(self.core, command, Instant(self.now_ms, WALL_MS + self.now_ms), self.limits)
        assert decide(self.core, command, Instant(self.now_ms, WALL_MS + self.now_ms), self.limits) == decision
        for event in decision.events:
            self.record(event)
        wanted = self.naive.ask(command)
        assert plain(decision.answer) == wanted, command
        self.answer = decision.answer
        self.promise(decision.answer)
        self.hear(decision.notices)
        if isinstance(decision.answer, outcomes.MustWait):
            self.attach(decision.answer.ticket_id)
        self.grant_waiters()
        self.compare()
        return wanted

    def grant_waiters(self) -> None:
        """Let those have their turn for whom there is room, in both (W1)."""
        now = Instant(self.now_ms, WALL_MS + self.now_ms)
        while (due := next_grant(self.core, now, self.limits)) is not None:
            self.record(due.event)
            self.hear(due.notices)
        self.naive.grant_waiters()
        self.compare_notices()

    def hear(self, notices: tuple[Notice, ...]) -> None:
        for ticket_id, answer in notices:
            self.core_notices.append((ticket_id, plain(answer)))
            self.promise(answer)

    def promise(self, answer: object) -> None:
        match answer:
            case outcomes.Acquired(lease=lease, until_ms=until_ms) | outcomes.Extended(lease=lease, until_ms=until_ms):
                self.promised_ms[lease.lease_id] = until_ms
            case outcomes.AcquiredMany(claims=claims):
                for _, claim in claims:
                    self.promise(claim)

    def compare_notices(self) -> None:
        # Those who left at the same instant lapse at the same instant, in any order.
        gone = ("ticket-gone",)
        assert {i for i, answer in self.core_notices if answer == gone} == {
            i for i, a in self.naive.notices if a == gone
        }
        rest = [notice for notice in self.core_notices if notice[1] != gone]
        assert rest == [notice for notice in self.naive.notices if notice[1] != gone]
        self.core_notices, self.naive.notices = [], []

    def attach(self, ticket_id: str) -> None:
        self.core.attach(ticket_id)
        entry = self.naive.queue.find(ticket_id)
        assert entry is not None
        self.naive.queue.swap(entry, entry._replace(away=None))

    def detach(self, ticket_id: str) -> None:
        """The request that waits at a place is gone, in both (W2)."""
        entry = self.naive.queue.find(ticket_id)
        if entry is not None and entry.away is None:
            self.core.detach(ticket_id, self.now_ms)
            self.naive.queue.swap(entry, entry._replace(away=self.now_ms))

    def advance(self, by_ms: int) -> None:
        self.now_ms += by_ms
        self.expire_due()
        self.compare()

    def expire_due(self) -> None:
        """End what is due, in both (T3)."""
        wanted = self.naive.expire_due(self.now_ms)
        ends: list[tuple[object, ...]] = []
        now = Instant(self.now_ms, WALL_MS + self.now_ms)
        while (due := next_due(self.core, now, self.limits)) is not None:
            event = due.event
            self.record(event)
            self.hear(due.notices)
            match event:
                case Ended():
                    ends.append((event.how, event.name))
                case SessionEnded():
                    ends.append((f"session-{event.how}", event.session_id, *(ended.name for ended in event.leases)))
                case Forgotten():
                    self.naive.forget(event.remembered)
                case UsageEvicted():
                    self.naive.evict(event.remembered, event.names)
        assert ends == wanted
        self.compare_notices()
        assert not self.naive.overdue()
        self.judge_time()

    def judge_time(self) -> None:
        """T3a: whatever time alone has changed by now is changed by the time of the last record as well."""
        for name, slot in self.core.slots.items():
            changes = (slot.closed_until_ms, 0 if slot.done is None else slot.done.until_ms)
            assert not any(self.core.now_ms < ms <= self.now_ms for ms in changes), f"a crash would take {name} back"

    def record(self, event: Event) -> None:
        record = Record(self.core.seq + 1, self.now_ms, WALL_MS + self.now_ms, event)
        (read,) = decode_batch(encode_batch([record]))
        assert read == record
        assert event_fits(self.core, event)
        self.judge(event)
        evolve(self.core, record)
        evolve(self.shadow, read)
        self.records.append(record)

    def judge(self, event: Event) -> None:
        """Check one event against all earlier ones: I1, I2, I3, I10, I11, I14."""
        match event:
            case Granted(name=name, lease=lease):
                assert name not in self.held, "I1: a second holder"
                assert self.open_at_ms.get(name, 0) <= self.now_ms, "I14: granted while closed"
                self.judge_grant(name, lease)
            case GrantedMany(grants=grants):
                assert len({grant.name for grant in grants}) == len(grants) > 1, "M2: one record for every name"
                for grant in grants:
                    self.judge(grant)
            case Transferred(name=name, lease=lease, old_lease_id=old_lease_id):
                old = self.held[name]
                assert old.lease_id == old_lease_id
                assert old.principal == lease.principal, "L8: handed to another principal"
                assert event.by in {lease.principal, "op"}, "I11: handed over by a stranger"
                self.judge_grant(name, lease)
            case Renewed(name=name, lease_id=lease_id):
                assert self.held[name].lease_id == lease_id
                if event.session is not None:
                    assert self.held[name].offered, "L8a: only what was transferred is taken up by a session"
                    self.held[name] = replace(self.held[name], session=event.session, bound=True)
                self.held[name] = replace(self.held[name], offered=False)
            case SessionRenewed(session_id=session_id, leases=leases):
                bound = {name for name, lease in self.held.items() if lease.bound and lease.session == session_id}
                assert [renewed.name for renewed in leases] == sorted(bound), "S4: not all of a session's claims"
            case Ended():
                assert event.how in {"released", "expired", "revoked"}
                self.judge_end(event)
            case SessionEnded(session_id=session_id, how=how, leases=leases):
                bound = {name for name, lease in self.held.items() if lease.bound and lease.session == session_id}
                assert [ended.name for ended in leases] == sorted(bound), "I10: not all of a session's claims"
                for ended in leases:
                    assert ended.how == "session_ended"
                    self.judge_end(ended, by_time=how == "expired")

    def judge_grant(self, name: str, lease: Lease) -> None:
        assert self.last_token < lease.token <= TOKEN_MAX, "I2: the token did not rise"
        self.last_token = lease.token
        self.held[name] = lease

    def judge_end(self, event: Ended, *, by_time: bool = False) -> None:
        lease = self.held.pop(event.name)
        assert (lease.lease_id, lease.token) == (event.lease_id, event.token)
        if event.how == "expired" or by_time:
            assert self.promised_ms.get(event.lease_id, 0) <= self.now_ms, "I3: ended before its time"
        elif event.how == "revoked":
            assert event.by == "op" and event.reason, "I11: revoked by nobody, or for nothing"
        else:
            assert event.by == lease.principal, "I11: ended by a stranger"
        if lease.delay_ms:
            self.open_at_ms[event.name] = self.now_ms + lease.delay_ms

    def compare(self) -> None:
        """I15: what decided, what was replayed and what was thawed are one; and a bound claim has its session."""
        picture = durable(self.core)
        assert durable(self.shadow) == picture
        assert durable(State.thaw(self.core.freeze())) == picture
        self.archived.follow()
        assert {name for name, slot in self.core.slots.items() if slot.lease} == set(self.held)
        assert all(lease.session in self.core.sessions for lease in self.held.values() if lease.bound), "I10"
        check_queues(self.core)

    def restart(self) -> None:
        """Go on with what a snapshot of the replayed journal gives."""
        self.core = State.thaw(self.shadow.freeze())
        queue = self.naive.queue
        queue.entries = [entry._replace(away=self.core.now_ms) for entry in queue.entries]
        self.compare()


def plain(answer: object) -> tuple[object, ...]:
    """Write an answer of the core as the naive one would."""
    match answer:
        case outcomes.Acquired(lease=lease):
            verb = "reacquired" if answer.reacquired else "granted"
            who = (verb, lease.lease_id, lease.token, lease.ttl_ms, answer.until_ms)
            return (*who, end(answer.previous), answer.attempts)
        case outcomes.AcquiredMany(claims=claims):
            return ("all", *((name, *plain(claim)) for name, claim in claims))
        case outcomes.MustWait(ticket_id=ticket_id):
            return ("later", ticket_id)
        case outcomes.Extended(lease=lease, until_ms=until_ms):
            return ("renewed", lease.token, until_ms)
        case (
            outcomes.Released()
            | outcomes.HandedOver()
            | outcomes.SessionOver()
            | outcomes.Withdrawn()
            | outcomes.OpenAgain()
        ):
            return ("ok",)
        case outcomes.SessionOpen(session=session):
            opened = ("open", session.session_id, session.ttl_ms, session.until_ms)
            return (*opened, answer.renewed) if answer.renewed else opened
        case _:
            return refused(answer)


LIMITS: dict[type, str] = {
    outcomes.TooManyLeases: "too-many-leases",
    outcomes.TooManySessions: "too-many-sessions",
    outcomes.TooManyTickets: "too-many-tickets",
    outcomes.QueueFull: "queue-full",
}
BARE = {
    outcomes.TicketGone: "ticket-gone",
    outcomes.NotHeld: "not-held",
    outcomes.NotDone: "not-done",
    outcomes.SessionUnknown: "session-unknown",
    outcomes.SessionLapsed: "session-lapsed",
    outcomes.KeyConflict: "key-conflict",
}


def refused(answer: Any) -> tuple[object, ...]:  # noqa: ANN401 - whatever the core can answer
    if type(answer) in LIMITS:
        return (LIMITS[type(answer)], answer.limit)
    if type(answer) in BARE:
        return (BARE[type(answer)],)
    match answer:
        case outcomes.AllHeld(names=names, retry_after_ms=retry_after_ms):
            return ("all-held", retry_after_ms, *((name, *plain(obstacle)) for name, obstacle in names))
        case outcomes.Finished(name=name, done=done):
            return ("done", name, done.owner, done.token, done.wall_ms - WALL_MS, done.until_ms, done.result)
        case outcomes.Deadlock(path=path):
            return ("deadlock", len(path))
        case outcomes.QuotaExceeded():
            return ("quota-exceeded",)
        case outcomes.Held(lease=lease, until_ms=until_ms, same_owner=same_owner):
            since, heartbeat = lease.granted_wall_ms - WALL_MS, lease.beat_wall_ms - WALL_MS
            return ("held", lease.owner, until_ms, since, heartbeat, lease.note, lease.metadata, same_owner)
        case outcomes.Delayed(until_ms=until_ms, end=last):
            return ("closed", until_ms, end(last))
        case outcomes.NotCurrent(succeeded=succeeded, ended=None):
            return ("not-current", succeeded)
        case outcomes.NotCurrent(succeeded=succeeded, ended=EndedLease(end=last)):
            return ("not-current", succeeded, end(last))
        case outcomes.BadTtl(max_ms=max_ms):
            return ("bad-ttl", max_ms)
    raise AssertionError(answer)


def end(last: LastEnd | None) -> tuple[object, ...] | None:
    if last is None:
        return None
    assert last.wall_ms == WALL_MS + last.at_ms
    return (last.owner, last.token, last.how, last.at_ms, last.note, last.reason)
