"""A second, naive core, written from the rules alone: lists that only grow, one line, and a scan for every question.

It shares nothing with the real one but the commands and the limits. An answer is a plain tuple. It follows the records
of the real core in one thing only, when the memory is cut (`forget`), because the rules leave that within a second.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from holdfast.core.commands import (
    Acquire,
    ClaimAll,
    ClaimAny,
    Command,
    EndSession,
    KeepSession,
    Leave,
    OpenSession,
    Release,
    Renew,
    RenewSession,
    Reopen,
    Revoke,
    Transfer,
)
from holdfast.core.values import Limits
from tests.core.naive_queue import DETACHED_MS, Queue, QueueEntry, Waiting, entry_for
from tests.support.commands import asked_by

FORGET_LATE_MS = 1_000


class Claim(NamedTuple):
    """One ownership of one name, living or ended (`how`)."""

    name: str
    lease_id: str
    token: int
    principal: str
    owner: str | None
    session: str | None
    bound: bool
    ttl: int
    until: int
    delay: int
    metadata: str | None
    since: int
    heartbeat: int
    note: str | None = None
    last_renewal: str | None = None
    how: str | None = None
    at: int = 0
    reason: str | None = None
    end_number: int = 0
    """Its place among all that ended: 1, 2, …"""
    cut: bool = False
    """Nothing about the name up to this claim is remembered."""
    done_until: int = 0
    """Until when its work is remembered as done, with this result."""
    result: str | None = None
    offered: bool = False
    """Transferred, and its new owner has not been heard of yet (L8a)."""


class Run(NamedTuple):
    session_id: str
    principal: str
    ttl: int
    until: int
    how: str | None = None
    at: int = 0
    end_number: int = 0


class Key(NamedTuple):
    """A spent key. What it made is remembered as long as that lives; `entry` and `at` if it stands for itself."""

    principal: str
    key: str
    verb: str
    asked: str
    made: str
    at: int = 0
    end_number: int = 0
    more: tuple[str, ...] = ()
    """The other leases that it made (M2)."""
    session: str | None = None
    """The session that it counts against, if what it was spent for is bound to one."""
    left: str = ""
    """The place in the line that it made and has no more."""


Account = tuple[str, str | None]
"""A principal, and one of its sessions or None."""
Cuts = tuple[tuple[str, str | None, int], ...]

Keyed = Acquire | ClaimAll | ClaimAny | EndSession | OpenSession | Release | Reopen | Revoke | Transfer


class Naive(Waiting):
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.now = 0
        self.ends = 0
        self.claims: list[Claim] = []
        self.runs: list[Run] = []
        self.keys: list[Key] = []
        self.queue = Queue()
        self.notices: list[tuple[str, tuple[object, ...]]] = []
        """What those in line were told, whether they were there or not."""
        self.forgotten: frozenset[int] = frozenset()
        """The places of those that ended and are out of the retry memory."""
        self.within_names_at = 0
        """When there were last not too many free names, or some that had to stay."""
        self.moved_back: dict[int, int] = {}
        """The ends of names that were put behind later ones, because they could not be forgotten."""

    def clone(self) -> "Naive":
        clone = Naive(self.limits)
        clone.now, clone.ends, clone.forgotten = self.now, self.ends, self.forgotten
        clone.moved_back, clone.within_names_at = self.moved_back.copy(), self.within_names_at
        clone.claims, clone.runs, clone.keys = self.claims[:], self.runs[:], self.keys[:]
        clone.queue = self.queue.clone()
        return clone

    # Questions, each by a scan.

    def live(self, name: str) -> Claim | None:
        return next((claim for claim in self.claims if claim.name == name and claim.how is None), None)

    def past(self, name: str) -> list[Claim]:
        """What is remembered of the name, the last end last."""
        claims = [claim for claim in self.claims if claim.name == name]
        while any(claim.cut for claim in claims):
            claims.pop(0)
        return sorted((claim for claim in claims if claim.how), key=lambda claim: claim.end_number)

    def attempts(self, name: str) -> int:
        count = 0
        living = self.live(name)
        for claim in [*self.past(name), *([living] if living else [])]:
            if claim.how != "transferred":
                count = 0 if claim.how == "released" and claim.reason != "failed" else count + 1
        return count

    def closed_until(self, name: str) -> int:
        return max((claim.at + claim.delay for claim in self.past(name) if claim.delay), default=0)

    def done(self, name: str) -> tuple[object, ...] | None:
        """The answer that finished work gives, if it was the last end of the name and is remembered (L5)."""
        past = self.past(name)
        if self.live(name) or not past or past[-1].done_until <= self.now:
            return None
        last = past[-1]
        return ("done", name, last.owner, last.token, last.at, last.done_until, last.result)

    def is_idle(self, name: str) -> bool:
        """Nothing keeps the name but memory."""
        return self.closed_until(name) <= self.now and not self.done(name) and not self.queue.at(name)

    def until(self, claim: Claim) -> int:
        ends = [run.until for run in self.runs if claim.bound and run.session_id == claim.session and not run.how]
        return min([claim.until, *ends])

    def lives(self, run: str | None, principal: str) -> str | None:
        """Why a session cannot be used, or None."""
        for found in self.runs:
            if found.session_id == run and found.principal == principal:
                if not found.how:
                    return None
                if found.how == "expired" and found.end_number not in self.forgotten:
                    return "session-lapsed"
        return "session-unknown"

    def free_names(self) -> list[str]:
        """Names that nobody holds and that are remembered, the oldest end first."""
        pasts = [self.past(name) for name in {claim.name for claim in self.claims} if not self.live(name)]
        lasts = [past[-1] for past in pasts if past]
        return [
            last.name for last in sorted(lasts, key=lambda last: self.moved_back.get(last.end_number, last.end_number))
        ]

    def who_left(self, name: str) -> Account:
        """Whose a free name is."""
        last = self.past(name)[-1]
        return last.principal, last.session if last.bound else None

    def memory(self) -> Iterator[tuple[int, int, Account]]:
        """The place and time of everything in the retry memory, and whose it is, the oldest first."""
        plain: Iterable[Run | Key] = chain(self.runs, self.keys)
        every = [
            *((c.end_number, c.at, (c.principal, c.session if c.bound else None)) for c in self.claims),
            *((t.end_number, t.at, (t.principal, t.session if isinstance(t, Key) else None)) for t in plain),
        ]
        return iter(
            sorted((each for each in every if each[0] and each[0] not in self.forgotten), key=lambda each: each[0])
        )

    # What happens.

    def expire_due(self, now: int) -> list[tuple[str, ...]]:
        """End what is due (T3): first sessions, each with all that is bound to it, then leases; the earliest first."""
        self.now = now
        late = [run for run in self.runs if not run.how and run.until <= now]
        late.sort(key=lambda run: (run.until, run.session_id))
        happened = [("session-expired", run.session_id, *self.end_run(run, "expired")) for run in late]
        due = [claim for claim in self.claims if not claim.how and claim.until <= now]
        for claim in sorted(due, key=lambda claim: (claim.until, claim.token)):
            self.end(claim, "expired")
            happened.append(("expired", claim.name))
        gone = [entry for entry in self.queue.entries if entry.away is not None and entry.away + DETACHED_MS <= now]
        for entry in sorted(gone, key=lambda entry: entry.away or 0):
            self.leave_queue(entry, ("ticket-gone",), is_remembered=True)
        self.grant_waiters()
        return happened

    def end(self, claim: Claim, how: str, reason: str | None = None) -> None:
        self.ends += 1
        ended = claim._replace(how=how, at=self.now, reason=reason, end_number=self.ends)
        self.claims[self.claims.index(claim)] = ended

    def end_run(self, run: Run, how: str) -> list[str]:
        bound = [claim for claim in self.claims if claim.bound and not claim.how and claim.session == run.session_id]
        for claim in sorted(bound):
            self.end(claim, "session_ended")
        for entry in [entry for entry in self.queue.entries if entry.bound and entry.session == run.session_id]:
            answer = ("session-lapsed",) if how == "expired" else ("session-unknown",)
            self.leave_queue(entry, answer, is_remembered=True)
        self.ends += 1
        self.runs[self.runs.index(run)] = run._replace(how=how, at=self.now, end_number=self.ends)
        return sorted(claim.name for claim in bound)

    def forget(self, count: int) -> None:
        """Follow a cut of the memory, if the rules allow it: what is old (C5)."""
        for _ in range(count):
            number, at, _ = next(self.memory())
            assert at + self.limits.retry_memory_ms <= self.now
            self.forgotten |= {number}
        self.free_keys()

    def evict(self, remembered: Cuts, names: Cuts) -> None:
        """Follow a cut of what is too many, if the rules allow it: only from those who have most, the eldest first."""
        for principal, session, count in remembered:
            for _ in range(count):
                assert len(list(self.memory())) > self.limits.retry_bytes_max
                self.forgotten |= {next(number for number, _, who in self.memory() if who == (principal, session))}
        check_fair([who for _, _, who in self.memory()], remembered)
        self.free_keys()
        for principal, session, looked_at in names:
            free = self.free_names()
            those = [self.who_left(name) for name in free if not self.done(name)]
            assert len(those) > self.limits.ended_bytes_max
            share = self.limits.ended_bytes_max // len({self.who_left(name)[0] for name in free})
            assert sum(who[0] == principal for who in those) > share, "it had no more than its share"
            for name in [name for name in free if self.who_left(name) == (principal, session)][:looked_at]:
                last = self.past(name)[-1]
                if self.is_idle(name):
                    self.claims[self.claims.index(last)] = last._replace(cut=True)
                else:
                    self.ends += 1
                    self.moved_back[last.end_number] = self.ends

    def free_keys(self) -> None:
        """A key is free again when all that it stands for is forgotten."""
        self.keys = [key for key in self.keys if self.stands(key)]

    def stands(self, key: Key) -> bool:
        if key.end_number:
            return key.end_number not in self.forgotten
        things = [(c.lease_id, c.how, c.end_number) for c in self.claims] + [
            (r.session_id, r.how, r.end_number) for r in self.runs
        ]
        wanted = {key.made, *key.more}
        in_line = any(key.made in entry.lease_ids for entry in self.queue.entries)
        return in_line or any(
            made in wanted and (not how or number not in self.forgotten) for made, how, number in things
        )

    def overdue(self) -> bool:
        """Whether the memory holds more or older things than the rules allow."""
        memory = list(self.memory())
        old = any(at + self.limits.retry_memory_ms + FORGET_LATE_MS < self.now for _, at, _ in memory)
        free = [name for name in self.free_names() if not self.done(name)]
        # Those who have most may have only names that must stay, for a while.
        if len(free) <= self.limits.ended_bytes_max or not all(self.is_idle(name) for name in free):
            self.within_names_at = self.now
        too_many = self.within_names_at + FORGET_LATE_MS < self.now
        return old or too_many or len(memory) > self.limits.retry_bytes_max

    # Commands.

    def ask(self, command: Command) -> tuple[object, ...]:
        match command:
            case Acquire():
                return self.spent(command, "acquire") or self.acquire(command)
            case ClaimAny():
                return self.spent(command, "acquire") or self.claim_any(command)
            case ClaimAll():
                return self.spent(command, "acquire") or self.claim_all(command)
            case Leave():
                return self.leave(command)
            case Transfer():
                return self.spent(command, "transfer") or self.transfer(command)
            case Revoke():
                return self.spent(command, "revoke") or self.revoke(command)
            case Reopen():
                return self.spent(command, "reopen") or self.reopen(command)
            case Renew():
                return self.renew(command)
            case Release():
                return self.spent(command, "release") or self.release(command)
            case OpenSession():
                return self.spent(command, "open") or self.open(command)
            case KeepSession():
                return self.keep(command)
            case RenewSession():
                return self.renew_session(command)
            case EndSession():
                return self.spent(command, "end") or self.end_session(command)
        raise AssertionError(command)

    def spent(self, command: Keyed, verb: str) -> tuple[object, ...] | None:
        """The answer to a key that was used before (C5)."""
        if isinstance(command, Acquire | ClaimAny | ClaimAll) and (bad := self.bad(command)):
            return bad
        for key in self.keys:
            if (key.principal, key.key) == (asked_by(command).principal, asked_by(command).key):
                if (key.verb, key.asked) != (verb, asked_by(command).fingerprint):
                    return ("key-conflict",)
                return self.again(command, key)
        return None

    def again(self, command: Keyed, key: Key) -> tuple[object, ...]:
        if key.left and isinstance(command, Acquire | ClaimAll):
            return self.resume_ticket(command, key.left)
        entry = next((entry for entry in self.queue.entries if key.made in entry.lease_ids), None)
        if entry is not None:
            return self.resume_wait(entry, entry)
        if isinstance(command, Acquire) or (isinstance(command, Transfer) and command.lease_id is not None):
            claim = self.live(command.name)
            if claim and claim.lease_id == key.made:
                return self.granted(claim, reacquired=isinstance(command, Acquire) and bool(key.end_number))
            return self.not_current(command.name, key.made, asked_by(command).principal)
        if isinstance(command, ClaimAny | ClaimAll):
            made = [c for c in self.claims if c.lease_id in {key.made, *key.more}]
            made.sort(key=lambda claim: command.names.index(claim.name))
            some_forgotten = any(claim.end_number in self.forgotten for claim in made)
            for claim in made:
                if claim.how and some_forgotten and claim.lease_id != key.made:
                    return ("not-current", self.live(claim.name) is not None)
                if claim.how:
                    return self.not_current(claim.name, claim.lease_id, asked_by(command).principal)
            return ("all", *((c.name, *self.granted(c, reacquired=False)) for c in made))
        if isinstance(command, OpenSession):
            return self.opened(key.made, asked_by(command).principal)
        return ("ok",)

    def spend(self, command: Keyed, verb: str, made: str, *more: str, own: bool) -> None:
        if asked_by(command).key is not None:
            self.ends += own
            entry, at = (self.ends, self.now) if own else (0, 0)
            self.keys.append(
                Key(
                    asked_by(command).principal,
                    asked_by(command).key,
                    verb,
                    asked_by(command).fingerprint,
                    made,
                    at,
                    entry,
                    more,
                    self.bound_to(command) if own else None,
                )
            )

    def bound_to(self, command: Keyed) -> str | None:
        terms = command.terms if isinstance(command, Acquire) else None
        return terms.session if terms is not None and terms.bound else None

    def bad(self, command: Acquire | ClaimAny | ClaimAll) -> tuple[object, ...] | None:
        if not 1 <= command.terms.ttl_ms <= self.limits.ttl_ms_max:
            return ("bad-ttl", self.limits.ttl_ms_max)
        return None

    def acquire(self, command: Acquire) -> tuple[object, ...]:
        name = command.name
        claim = self.live(name)
        if command.ticket is not None:
            return self.resume_ticket(command, command.ticket)
        if (done := self.done(name)) and not command.terms.redo:
            return done
        closed = claim is None and self.closed_until(name) > self.now
        if closed and not command.wait_ms:
            return ("closed", self.closed_until(name), self.previous(name))
        if command.terms.session is not None and (
            lacking := self.lives(command.terms.session, command.terms.principal)
        ):
            return (lacking,)
        if claim is not None and self.is_own(claim, command):
            if claim.bound != command.terms.bound:
                if full := self.why_too_many_leases(claim.principal, command.terms.session, 1, without=claim):
                    return full
                claim = self.take_up(claim, command)
            until = max(claim.until, self.now + command.terms.ttl_ms)
            renewed = claim._replace(ttl=command.terms.ttl_ms, until=until, heartbeat=self.now, offered=False)
            self.claims[self.claims.index(claim)] = renewed
            self.spend(command, "acquire", claim.lease_id, own=True)
            return self.granted(renewed, reacquired=True)
        if full := self.why_too_many_leases(
            command.terms.principal, command.terms.session if command.terms.bound else None, 1
        ):
            return full
        if command.wait_ms and (claim is not None or closed):
            return self.join(command)
        if claim is not None:
            return self.held_by(claim, command.terms.owner)
        self.grant(entry_for(command, self.now), taken=self.queue.own(entry_for(command, self.now)))
        self.spend(command, "acquire", command.lease_id, own=False)
        return self.granted(self.claims[-1], reacquired=False)

    def take_up(self, claim: Claim, command: Acquire) -> Claim:
        """L8a: bind a transferred claim to the session of its new owner, which waits for it no more."""
        bound = claim._replace(session=command.terms.session, bound=True)
        self.claims[self.claims.index(claim)] = bound
        if taken := self.queue.own(entry_for(command, self.now)):
            self.queue.entries.remove(taken)
            self.remember_key(taken)
        self.queue.handed.append(command.name)
        return bound

    def held_by(self, claim: Claim, owner: str | None) -> tuple[object, ...]:
        return ("held", *self.shown(claim), claim.owner is not None and claim.owner == owner)

    def grant(self, entry: QueueEntry, taken: QueueEntry | None) -> None:
        """Make a claim of every name, with rising tokens; the place it came from, or that its holder had, is gone."""
        for name, lease_id in zip(entry.names, entry.lease_ids, strict=True):
            token = max((other.token for other in self.claims), default=0) + 1
            self.claims.append(
                Claim(
                    name,
                    lease_id,
                    token,
                    entry.principal,
                    entry.owner,
                    entry.session,
                    entry.bound,
                    entry.ttl,
                    self.now + entry.ttl,
                    entry.delay,
                    entry.metadata,
                    self.now,
                    self.now,
                )
            )
            self.queue.handed.append(name)
        if taken is not None:
            self.queue.entries.remove(taken)
            if taken.lease_ids != entry.lease_ids:
                self.remember_key(taken)

    def drop_key(self, entry: QueueEntry) -> None:
        """A place that was refused leaves no memory of its key (C5)."""
        gone = (entry.principal, entry.key)
        self.keys = [key for key in self.keys if (key.principal, key.key) != gone or entry.key is None]

    def remember_key(self, entry: QueueEntry) -> None:
        """The key of a place that ended, or that another request has now, is remembered like that of a lease (C5)."""
        for number, key in enumerate(self.keys):
            if (key.principal, key.key) == (entry.principal, entry.key):
                self.ends += 1
                session = entry.session if entry.bound else None
                self.keys[number] = key._replace(
                    end_number=self.ends, at=self.now, session=session, left=entry.ticket_id
                )

    def keep_key(self, entry: QueueEntry) -> None:
        if entry.key is not None:
            self.drop_key(entry)
            first, *more = entry.lease_ids
            self.keys.append(Key(entry.principal, entry.key, "acquire", entry.asked, first, more=tuple(more)))

    def is_own(self, claim: Claim, command: Acquire) -> bool:
        """C4: who the holder is, and whether it asked for its lease."""
        if claim.bound != command.terms.bound:
            offered = claim.offered and command.resume and command.terms.bound
            return offered and (claim.principal, claim.owner) == (command.terms.principal, command.terms.owner)
        same = claim.session == command.terms.session if claim.bound else claim.principal == command.terms.principal
        if self.limits.reentrant == "holder":
            return same
        provable = claim.bound or claim.owner is not None
        return same and provable and command.resume and claim.owner == command.terms.owner

    def own_claim(self, command: Renew | Release | Transfer) -> Claim | tuple[object, ...]:
        """L3, S3: the live claim, if the caller proved that it is its own."""
        claim = self.live(command.name)
        if claim is None:
            refusal = self.not_current(command.name, command.lease_id, command.principal)
            for old in self.claims:
                if old.lease_id == command.lease_id and len(refusal) > 2 and old.how == "session_ended":
                    lacking = self.lives(old.session, command.principal)
                    return (lacking,) if lacking == "session-lapsed" else refusal
            return refusal
        foreign = claim.bound and claim.principal != command.principal
        if claim.lease_id != command.lease_id:
            refusal = self.not_current(command.name, command.lease_id, command.principal)
            return ("session-unknown",) if foreign and len(refusal) == 2 else refusal
        if foreign:
            return ("session-unknown",)
        proved = claim.principal == command.principal
        if command.as_session is not None:
            proved = claim.bound and claim.session == command.as_session
        return claim if proved else ("not-current", True)

    def renew(self, command: Renew) -> tuple[object, ...]:
        if command.ttl_ms is not None and not 1 <= command.ttl_ms <= self.limits.ttl_ms_max:
            return ("bad-ttl", self.limits.ttl_ms_max)
        claim = self.own_claim(command)
        if not isinstance(claim, Claim):
            return claim
        if command.key is not None and claim.last_renewal == command.key:
            return ("renewed", claim.token, self.until(claim))
        ttl = command.ttl_ms or claim.ttl
        until = self.now + ttl
        if command.key is not None and until < claim.until:
            until = claim.until
        note = claim.note if command.note is None else command.note
        metadata = claim.metadata if command.metadata is None else command.metadata
        renewed = claim._replace(ttl=ttl, until=until, note=note, metadata=metadata, heartbeat=self.now, offered=False)
        if command.key is not None:
            renewed = renewed._replace(last_renewal=command.key)
        self.claims[self.claims.index(claim)] = renewed
        return ("renewed", renewed.token, self.until(renewed))

    def release(self, command: Release) -> tuple[object, ...]:
        claim = self.own_claim(command)
        if not isinstance(claim, Claim):
            return claim
        self.end(claim, "released", "failed" if command.failed else None)
        self.spend(command, "release", claim.lease_id, own=False)
        if command.done and command.remember_ms:
            last = self.past(command.name)[-1]
            done = last._replace(done_until=self.now + command.remember_ms, result=command.result)
            self.claims[self.claims.index(last)] = done
            answer = self.done(command.name)
            for entry in [entry for entry in self.queue.at(command.name) if not entry.redo]:
                self.leave_queue(entry, answer or ())
        return ("ok",)

    def transfer(self, command: Transfer) -> tuple[object, ...]:
        """L8, L8a: the claim ends and begins in one step, with no delay between; only a secret keeps its session."""
        claim = self.own_claim(command) if command.lease_id is not None else self.live(command.name) or ("not-held",)
        if not isinstance(claim, Claim):
            return claim
        entry = self.claims.index(claim)
        self.end(claim, "transferred")
        self.claims[entry] = self.claims[entry]._replace(delay=0)
        ttl = command.ttl_ms or claim.ttl
        until = self.now + ttl
        if command.as_session is None and command.ttl_ms is None:
            until = self.until(claim)
        token = max(other.token for other in self.claims) + 1
        new = claim._replace(
            lease_id=command.new_lease_id, token=token, owner=command.to_owner, ttl=ttl, until=until,
            since=self.now, heartbeat=self.now, note=None, last_renewal=None,
        )  # fmt: skip
        if command.as_session is None:
            new = new._replace(session=None, bound=False, offered=True)
        self.claims.append(new)
        self.queue.handed.append(command.name)
        self.spend(command, "transfer", new.lease_id, own=command.principal != claim.principal)
        return ("ok",) if command.lease_id is None else self.granted(new, reacquired=False)

    def revoke(self, command: Revoke) -> tuple[object, ...]:
        claim = self.live(command.name)
        if claim is None:
            return ("not-held",)
        self.end(claim, "revoked", command.reason)
        self.spend(command, "revoke", claim.lease_id, own=command.principal != claim.principal)
        return ("ok",)

    def reopen(self, command: Reopen) -> tuple[object, ...]:
        if not self.done(command.name):
            return ("not-done",)
        last = self.past(command.name)[-1]
        self.claims[self.claims.index(last)] = last._replace(done_until=0)
        self.spend(command, "reopen", command.name, own=True)
        return ("ok",)

    def open(self, command: OpenSession) -> tuple[object, ...]:
        mine = [run for run in self.runs if not run.how and run.principal == command.principal]
        if len(mine) >= self.limits.sessions_per_principal_max:
            return ("too-many-sessions", self.limits.sessions_per_principal_max)
        ttl = sorted([10_000, command.ttl_ms, self.limits.session_ttl_ms_max])[1]
        self.runs.append(Run(command.session_id, command.principal, ttl, self.now + ttl))
        self.spend(command, "open", command.session_id, own=False)
        return self.opened(command.session_id, command.principal)

    def opened(self, session_id: str, principal: str) -> tuple[object, ...]:
        if lacking := self.lives(session_id, principal):
            return (lacking,)
        return next(("open", run.session_id, run.ttl, run.until) for run in self.runs if run.session_id == session_id)

    def renew_session(self, command: RenewSession) -> tuple[object, ...]:
        """S4: the session and all that is bound to it, each for another of its own ttl; none is shortened."""
        answer = self.keep(command)
        count = 0
        for entry, claim in enumerate(self.claims):
            if answer[0] == "open" and claim.bound and claim.session == command.session_id and not claim.how:
                self.claims[entry] = claim._replace(until=max(claim.until, self.now + claim.ttl), heartbeat=self.now)
                count += 1
        return (*answer, count) if count else answer

    def keep(self, command: KeepSession | RenewSession) -> tuple[object, ...]:
        for entry, run in enumerate(self.runs):
            if run.session_id == command.session_id and not self.lives(run.session_id, command.principal):
                self.runs[entry] = run._replace(until=self.now + run.ttl)
        return self.opened(command.session_id, command.principal)

    def end_session(self, command: EndSession) -> tuple[object, ...]:
        lacking = self.lives(command.session_id, command.principal)
        if lacking:
            return ("ok",) if lacking == "session-lapsed" else (lacking,)
        self.end_run(next(run for run in self.runs if run.session_id == command.session_id), "deleted")
        self.spend(command, "end", command.session_id, own=False)
        return ("ok",)

    # Answers.

    def granted(self, claim: Claim, *, reacquired: bool) -> tuple[object, ...]:
        who = ("reacquired" if reacquired else "granted", claim.lease_id, claim.token, claim.ttl, self.until(claim))
        return (*who, self.previous(claim.name), self.attempts(claim.name))

    def previous(self, name: str) -> tuple[object, ...] | None:
        past = self.past(name)
        return claim_end(past[-1]) if past else None

    def shown(self, claim: Claim) -> tuple[object, ...]:
        return (claim.owner, self.until(claim), claim.since, claim.heartbeat, claim.note, claim.metadata)

    def not_current(self, name: str, lease_id: str | None, principal: str) -> tuple[object, ...]:
        refusal = ("not-current", self.live(name) is not None)
        for claim in self.claims:
            if (claim.name, claim.lease_id, claim.principal) == (name, lease_id, principal) and claim.how:
                return (*refusal, claim_end(claim)) if claim.end_number not in self.forgotten else refusal
        return refusal


def claim_end(claim: Claim) -> tuple[object, ...]:
    """What is told of an ended claim (C7)."""
    return (claim.owner, claim.token, claim.how, claim.at, claim.note, claim.reason)


def check_fair(left: list[Account], cuts: Cuts) -> None:
    """Whoever had to give has still as much as anybody, but for one: between principals, and inside each of them."""
    have = Counter(principal for principal, _ in left)
    for principal, session, _ in cuts:
        assert have[principal] >= max(have.values(), default=0) - 1, "another principal has more"
        inside = Counter(which for who, which in left if who == principal)
        assert inside[session] >= max(inside.values(), default=0) - 1, "another of its sessions has more"
