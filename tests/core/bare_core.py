"""The core as the engine drives it, and nothing else: so that what a command costs is what the core costs."""

from holdfast.core import outcomes
from holdfast.core.commands import ClaimAll, Command
from holdfast.core.decide import decide, next_due, next_grant
from holdfast.core.decision import Due
from holdfast.core.events import Event, Record
from holdfast.core.evolve import evolve
from holdfast.core.state import State
from holdfast.core.values import Instant, Limits
from tests.support.commands import acquire, claim_all
from tests.support.steps import count_steps

FAR_MS = 1_000_000


class Core:
    def __init__(self) -> None:
        self.state, self.now, self.limits = State(), Instant(0, 0), Limits()
        self.notices: dict[str, object] = {}
        """What those in line were told, by ticket."""
        self.made = 0

    def ask(self, command: Command) -> object:
        """Decide a command, with all that comes of it; return its answer."""
        self.expire_due()
        decision = decide(self.state, command, self.now, self.limits)
        for event in decision.events:
            self.record(event)
        if isinstance(decision.answer, outcomes.MustWait):
            self.state.attach(decision.answer.ticket_id)
        if decision.interest is not None:
            self.state.connected.add_interest(*decision.interest)
        while (due := next_grant(self.state, self.now, self.limits)) is not None:
            self.happen(due)
        return decision.answer

    def expire_due(self) -> None:
        while (due := next_due(self.state, self.now, self.limits)) is not None:
            self.happen(due)

    def happen(self, due: Due) -> None:
        self.record(due.event)
        self.notices.update(due.notices)

    def record(self, event: Event) -> None:
        evolve(self.state, Record(self.state.seq + 1, self.now.ms, self.now.wall_ms, event))

    def steps(self, command: Command) -> int:
        """Ask, and return how many lines of the core it took."""
        return count_steps(lambda: self.ask(command))

    # What is often asked.

    def hold(self, *names: str, owner: str | None = None, session: str | None = None, principal: str = "p") -> None:
        """Claim names, one by one; the lease of `a` has the id `L-a`."""
        for name in names:
            claim = acquire(name=name, principal=principal, owner=owner, lease_id=f"L-{name}", ttl_ms=FAR_MS,
                            session=session, bound=session is not None)  # fmt: skip
            answer = self.ask(claim)
            assert isinstance(answer, outcomes.Acquired), answer

    def want(self, name: str, owner: str) -> object:
        """Wait for a name; the ticket is called after both."""
        ticket = f"t-{owner}-{name}"
        return self.ask(
            acquire(name=name, principal="p", owner=owner, lease_id=f"L-{owner}-{name}", ttl_ms=FAR_MS, wait_ms=50_000,
                    new_ticket=ticket)
        )  # fmt: skip

    def want_all(self, names: tuple[str, ...], owner: str | None = None, principal: str = "p") -> ClaimAll:
        """A claim of all of several names that waits, with a ticket `t1`, `t2`, …."""
        self.made += 1
        lease_ids = tuple(f"{self.made}-{name}" for name in names)
        return claim_all(names=names, principal=principal, owner=owner, lease_ids=lease_ids, ttl_ms=FAR_MS,
                         wait_ms=50_000, new_ticket=f"t{self.made}")  # fmt: skip
