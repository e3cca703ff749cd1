"""The real core against the naive one under commands drawn by Hypothesis, in both settings of `reentrant`."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from msgspec.structs import replace

from holdfast.core.commands import (
    Acquire,
    ClaimAll,
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
from tests.core.naive import Claim
from tests.core.pair import SMALL, Pair
from tests.scenarios.player import durable, replay
from tests.support import proof
from tests.support.commands import acquire, altered, claim_all, claim_any

SETTINGS = settings(
    max_examples=proof.count("core: examples of 100 steps, each setting"),
    stateful_step_count=100,
    deadline=None,
    derandomize=False,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)

PRINCIPALS = st.sampled_from(["ana", "ben"])
OWNERS = st.sampled_from([None, "x", "x", "y"])
NAMES = st.sampled_from("abcde")
KEYS = st.sampled_from([None] * 5 + ["k1", "k2", "k3", "k4", "k5"])
TTLS_MS = st.sampled_from([20_000, 12_000, 5_000, 5_001, 2_500, 1_000, 1])
DELAYS_MS = st.sampled_from([0, 0, 0, 1, 1_500, 30_000])
SESSION_TTLS_MS = st.sampled_from([60_000, 11_000, 10_000, 0])
WHICH = st.sampled_from([0, 0, 0, 1, 1, 2, 3])
"""Counted back from the newest."""
NOTES = st.sampled_from([None, None, "n1", ""])
SELDOM = st.sampled_from([False] * 7 + [True])
HALF = st.booleans()
SEVERAL = st.lists(NAMES, min_size=1, max_size=3, unique=True).map(tuple)
WAITS_MS = st.sampled_from([50_000, 50_000, 50_000, 0])
REMEMBER_MS = st.sampled_from([0, 0, 0, 2_000, 100_000])


NEVER = Claim("f", "unknown", 0, "ana", None, None, False, 1, 1, 0, None, 0, 0)
"""A claim that nobody ever made."""


class CoreMachine(RuleBasedStateMachine):
    reentrant = "resume"

    @initialize()
    def begin(self) -> None:
        self.pair = Pair(replace(SMALL, reentrant=self.reentrant))
        self.made = 0
        self.last: Acquire | Release | None = None
        self.waits: dict[str, Acquire | ClaimAll] = {}
        """What was asked at each place."""

    def fresh(self, letter: str) -> str:
        self.made += 1
        return f"{letter}{self.made}"

    def session(self, principal: str, back: int, stray: bool) -> str:
        """The principal's newest living session but `back`, made if there is none, or if `stray` any, by anybody."""
        runs = [run for run in self.pair.naive.runs if stray or (not run.how and run.principal == principal)]
        if not runs:
            self.pair.ask(OpenSession(principal=principal, session_id=self.fresh("s"), ttl_ms=11_000))
            runs = self.pair.naive.runs
        return runs[-1 - back % len(runs)].session_id

    def proof(self, back: int, stray: bool) -> Claim:
        """The newest living claim but `back`, made if there is none, or if `stray` any that ever was."""
        claims = [claim for claim in self.pair.naive.claims if stray or not claim.how]
        if not claims:
            lease_id = self.fresh("L")
            asked = acquire(name="f", principal="ana", lease_id=lease_id, ttl_ms=9_000, session=None)
            self.pair.ask(altered(asked, session=self.session("ana", back, stray=False), bound=True) if back else asked)
            claims = self.pair.naive.claims
        return claims[-1 - back % len(claims)] if claims else NEVER

    @rule(
        name=NAMES, principal=PRINCIPALS, owner=OWNERS, ttl_ms=TTLS_MS, delay_ms=DELAYS_MS, resume=SELDOM, key=KEYS,
        kind=st.sampled_from(["bound", "plain", "counted"]), back=WHICH, stray=SELDOM,
    )  # fmt: skip
    def acquire(
        self, name: str, principal: str, owner: str | None, ttl_ms: int, delay_ms: int, resume: bool, key: str | None,
        kind: str, back: int, stray: bool,
    ) -> None:  # fmt: skip
        session = None if kind == "plain" else self.session(principal, back, stray)
        self.last = acquire(
            name=name,
            principal=principal,
            lease_id=self.fresh("L"),
            ttl_ms=ttl_ms,
            owner=owner,
            metadata=owner,
            session=session,
            bound=kind == "bound",
            delay_ms=delay_ms,
            resume=resume,
            key=key,
        )
        self.pair.ask(self.last)

    @rule(back=WHICH, owner=OWNERS, ttl_ms=TTLS_MS, key=KEYS)
    def acquire_own(self, back: int, owner: str | None, ttl_ms: int, key: str | None) -> None:
        """Ask for a lease that lives, as its holder or as somebody who is nearly its holder."""
        claim = self.proof(back, stray=False)
        taken_up = claim.offered and back == 0
        session = claim.session
        if taken_up or (claim.bound and back == 1):
            session = self.session(claim.principal, 0, stray=False)
        self.last = acquire(
            name=claim.name,
            principal=claim.principal,
            lease_id=self.fresh("L"),
            ttl_ms=ttl_ms,
            owner=claim.owner if back < 2 else owner,
            session=session,
            bound=claim.bound or taken_up,
            resume=True,
            key=key,
        )
        self.pair.ask(self.last)

    @rule()
    def repeat(self) -> None:
        """Send the last acquire or release again, as after a lost reply (C5)."""
        if isinstance(self.last, Acquire):
            self.pair.ask(altered(self.last, lease_id=self.fresh("L")))
        elif self.last is not None:
            self.pair.ask(self.last)

    @rule(
        name=NAMES, names=st.none() | SEVERAL, principal=PRINCIPALS, owner=OWNERS, ttl_ms=TTLS_MS, delay_ms=DELAYS_MS,
        wait_ms=WAITS_MS, redo=SELDOM, key=KEYS, kind=st.sampled_from(["plain", "plain", "bound", "counted"]),
        back=WHICH,
    )  # fmt: skip
    def wait(
        self, name: str, names: tuple[str, ...] | None, principal: str, owner: str | None, ttl_ms: int, delay_ms: int,
        wait_ms: int, redo: bool, key: str | None, kind: str, back: int,
    ) -> None:  # fmt: skip
        """Wait for one name, or for all of several."""
        more = {
            "principal": principal,
            "owner": owner,
            "ttl_ms": ttl_ms,
            "delay_ms": delay_ms,
            "wait_ms": wait_ms,
            "redo": redo,
            "key": key,
            "session": None if kind == "plain" else self.session(principal, back, stray=False),
            "bound": kind == "bound",
            "new_ticket": self.fresh("t"),
        }
        if names is None:
            self.stand(acquire(name=name, lease_id=self.fresh("L"), **more))
        else:
            self.stand(claim_all(names=names, lease_ids=tuple(self.fresh("L") for _ in names), **more))

    def stand(self, asked: Acquire | ClaimAll) -> None:
        answer = self.pair.ask(asked)
        if answer[0] == "later":
            self.waits[str(answer[1])] = asked

    @rule(back=WHICH, with_key=HALF, stray=SELDOM, owner=OWNERS)
    def resume_wait(self, back: int, with_key: bool, stray: bool, owner: str | None) -> None:
        """Ask again for a place one has, with its ticket, with its key, or as somebody else."""
        if not self.waits:
            return
        known = [ticket_id for ticket_id in self.waits if stray or self.pair.naive.queue.find(ticket_id)]
        if known:
            ticket_id = known[-1 - back % len(known)]
            asked = self.waits[ticket_id]
            fresh = {"new_ticket": self.fresh("t"), "ticket": None if with_key else ticket_id}
            if stray:
                fresh["owner"] = owner
            if isinstance(asked, Acquire):
                self.stand(altered(asked, lease_id=self.fresh("L"), **fresh))
            else:
                self.stand(altered(asked, lease_ids=tuple(self.fresh("L") for _ in asked.names), **fresh))

    @rule(back=WHICH, leave=SELDOM)
    def go(self, back: int, leave: bool) -> None:
        """Stop waiting: by the wire, or for good."""
        entries = self.pair.naive.queue.entries
        if entries:
            entry = entries[-1 - back % len(entries)]
            if leave:
                self.pair.ask(Leave(ticket_id=entry.ticket_id, principal="ana"))
            else:
                self.pair.detach(entry.ticket_id)

    @rule(names=SEVERAL, principal=PRINCIPALS, owner=OWNERS, ttl_ms=TTLS_MS, redo=SELDOM, key=KEYS)
    def claim_any(
        self, names: tuple[str, ...], principal: str, owner: str | None, ttl_ms: int, redo: bool, key: str | None
    ) -> None:
        lease_id = self.fresh("L")
        self.pair.ask(
            claim_any(
                names=names, principal=principal, lease_id=lease_id, ttl_ms=ttl_ms, owner=owner, redo=redo, key=key
            )
        )

    @rule(
        back=WHICH, stray=SELDOM, other_principal=SELDOM, to=st.sampled_from("xyz"), ttl_ms=st.none() | TTLS_MS,
        key=KEYS, how=st.sampled_from(["token", "secret", "operator"]),
    )  # fmt: skip
    def transfer(
        self, back: int, stray: bool, other_principal: bool, to: str, ttl_ms: int | None, key: str | None, how: str
    ) -> None:
        proof = self.proof(back, stray)
        self.pair.ask(
            Transfer(
                name=proof.name,
                principal="op" if how == "operator" else self.asker(proof, other_principal),
                lease_id=None if how == "operator" else proof.lease_id,
                new_lease_id=self.fresh("L"),
                to_owner=to,
                ttl_ms=ttl_ms,
                as_session=proof.session if how == "secret" else None,
                key=key,
            )
        )

    @rule(name=NAMES, reopen=HALF, key=KEYS)
    def operate(self, name: str, reopen: bool, key: str | None) -> None:
        """What an operator does: end a lease, or let finished work be done again."""
        if reopen:
            self.pair.ask(Reopen(name=name, principal="op", key=key))
        else:
            self.pair.ask(Revoke(name=name, principal="op", reason="r", key=key))

    @rule(
        back=WHICH, stray=SELDOM, ttl_ms=st.none() | TTLS_MS, note=NOTES, metadata=NOTES, key=KEYS,
        other_principal=SELDOM, as_session=st.sampled_from([None, None, "own", "other"]),
    )  # fmt: skip
    def renew(
        self, back: int, stray: bool, ttl_ms: int | None, note: str | None, metadata: str | None, key: str | None,
        other_principal: bool, as_session: str | None,
    ) -> None:  # fmt: skip
        proof = self.proof(back, stray)
        self.pair.ask(
            Renew(
                name=proof.name,
                principal=self.asker(proof, other_principal),
                lease_id=proof.lease_id,
                ttl_ms=ttl_ms,
                note=note,
                metadata=metadata,
                as_session=self.secret(proof, as_session),
                key=key,
            )
        )

    @rule(
        back=WHICH, stray=SELDOM, failed=HALF, remember_ms=REMEMBER_MS, key=KEYS, other_principal=SELDOM,
        as_session=st.sampled_from([None, None, None, "own", "other"]),
    )  # fmt: skip
    def release(
        self,
        back: int,
        stray: bool,
        failed: bool,
        remember_ms: int,
        key: str | None,
        other_principal: bool,
        as_session: str | None,
    ) -> None:
        proof = self.proof(back, stray)
        self.last = Release(
            name=proof.name,
            principal=self.asker(proof, other_principal),
            lease_id=proof.lease_id,
            failed=failed and not remember_ms,
            done=bool(remember_ms),
            remember_ms=remember_ms,
            result="r" if remember_ms else None,
            as_session=self.secret(proof, as_session),
            key=key,
        )
        self.pair.ask(self.last)

    def asker(self, proof: Claim, other_principal: bool) -> str:
        return {"ana": "ben", "ben": "ana"}[proof.principal] if other_principal else proof.principal

    def secret(self, proof: Claim, as_session: str | None) -> str | None:
        return {"own": proof.session, "other": self.session(proof.principal, 0, stray=True)}.get(as_session or "")

    @rule(principal=PRINCIPALS, ttl_ms=SESSION_TTLS_MS, key=KEYS)
    def open_session(self, principal: str, ttl_ms: int, key: str | None) -> None:
        self.pair.ask(OpenSession(principal=principal, session_id=self.fresh("s"), ttl_ms=ttl_ms, key=key))

    @rule(principal=PRINCIPALS, back=WHICH, stray=SELDOM)
    def keep_session(self, principal: str, back: int, stray: bool) -> None:
        self.pair.ask(KeepSession(principal=principal, session_id=self.session(principal, back, stray)))

    @rule(principal=PRINCIPALS, back=WHICH, stray=SELDOM)
    def renew_session(self, principal: str, back: int, stray: bool) -> None:
        self.pair.ask(RenewSession(principal=principal, session_id=self.session(principal, back, stray)))

    @rule(principal=PRINCIPALS, back=WHICH, stray=SELDOM, key=KEYS)
    def end_session(self, principal: str, back: int, stray: bool, key: str | None) -> None:
        self.pair.ask(EndSession(principal=principal, session_id=self.session(principal, back, stray), key=key))

    @rule(by_ms=st.sampled_from([0, 1, 500, 999, 1_000, 1_000, 3_000, 30_000]))
    def advance(self, by_ms: int) -> None:
        self.pair.advance(by_ms)

    @rule(which=st.integers(0, 3), off_ms=st.sampled_from([-1, 0, 0, 1]), expire_now=HALF)
    def advance_to_a_deadline(self, which: int, off_ms: int, expire_now: bool) -> None:
        """Go to a moment at which something ends, opens or is forgotten, or just beside it."""
        naive = self.pair.naive
        ends = [claim.until for claim in naive.claims if not claim.how] + [
            run.until for run in naive.runs if not run.how
        ]
        opens = [claim.at + claim.delay for claim in naive.claims if claim.how and claim.delay]
        forgets = [at + self.pair.limits.retry_memory_ms for _, at, _ in naive.memory()]
        finished = [claim.done_until for claim in naive.claims if claim.done_until]
        coming = sorted({ms for ms in ends + opens + forgets + finished if ms >= self.pair.now_ms})
        if which < len(coming):
            by_ms = max(0, coming[which] + off_ms - self.pair.now_ms)
            self.pair.now_ms += by_ms
            if expire_now:
                self.pair.advance(0)

    @rule(off_ms=st.sampled_from([-1, 0, 0, 1]), how=st.sampled_from(["one", "any", "all", "reopen"]))
    def ask_when_finished_work_is_forgotten(self, off_ms: int, how: str) -> None:
        """Ask for a name at the very moment at which its work is no longer remembered as done, or just beside it."""
        now_ms = self.pair.now_ms
        soon = [(claim.done_until, claim.name) for claim in self.pair.naive.claims if claim.done_until > now_ms]
        at_ms, name = min(soon, default=(0, ""))
        if not now_ms < at_ms <= now_ms + 3_000:
            return
        self.pair.now_ms = max(now_ms, at_ms + off_ms)
        asked: dict[str, object] = {"principal": "ben", "ttl_ms": 5_000}
        match how:
            case "one":
                self.pair.ask(acquire(name=name, lease_id=self.fresh("L"), **asked))
            case "any":
                self.pair.ask(claim_any(names=(name,), lease_id=self.fresh("L"), **asked))
            case "all":
                self.pair.ask(claim_all(names=(name,), lease_ids=(self.fresh("L"),), **asked))
            case _:
                self.pair.ask(Reopen(name=name, principal="op"))

    @rule(seldom=SELDOM)
    def restart(self, seldom: bool) -> None:
        if seldom:
            self.pair.restart()

    def teardown(self) -> None:
        if hasattr(self, "pair"):
            assert durable(replay(self.pair.records)) == durable(self.pair.core)


class HolderMachine(CoreMachine):
    reentrant = "holder"


def test_core_agrees_with_the_naive_model() -> None:
    """Whatever is asked, the core answers as the rules say, also those in line; I1, I2, I3, I8, I10, I11, I12,
    I13, I14, I15 hold at every step, and so do L5, L7, L8, W1–W5, D1, D2, M1 and M2."""
    run_state_machine_as_test(CoreMachine, settings=SETTINGS)


def test_core_agrees_with_the_naive_model_when_holders_reenter() -> None:
    """The same where an equal holder gets its lease unasked (C4)."""
    run_state_machine_as_test(HolderMachine, settings=SETTINGS)
