"""Coming back to one's place in the line writes what is new, and never the names again (W3)."""

from holdfast.core.commands import ClaimAll, Command
from holdfast.core.decide import decide
from holdfast.core.events import Event, Joined, Record, TicketReassigned, names_of
from holdfast.core.evolve import evolve
from holdfast.core.state import State
from holdfast.core.values import Instant, Limits
from holdfast.journal.codec import decode_batch, encode_batch
from tests.support.commands import acquire, claim_all

NAMES = tuple(f"job/{'x' * 100}/{number:04}" for number in range(1_000))
LIMITS = Limits(leases_per_principal_max=10_000)


def ask(state: State, command: Command) -> list[Event]:
    """Decide a command, and let what it made take effect as it would be read from the disk."""
    events = list(decide(state, command, Instant(1_000, 1_000), LIMITS).events)
    for event in events:
        (record,) = decode_batch(encode_batch([Record(state.seq + 1, 1_000, 1_000, event)]))
        assert record.event == event
        evolve(state, record)
    return events


def want(order: int, key: str | None = None, ticket: str | None = None) -> ClaimAll:
    """A claim of all the names, in one order or another."""
    names = NAMES[order:] + NAMES[:order]
    return claim_all(
        names=names, lease_ids=tuple(f"L{order}-{name}" for name in names), principal="p", owner="ben", ttl_ms=60_000,
        wait_ms=50_000, new_ticket=f"t{order}", key=key, fingerprint=f"f{order}" if key else "", ticket=ticket,
    )  # fmt: skip


def test_resumed_wait_writes_only_changed_terms() -> None:
    """A place of 1,000 names is written once. Its holder may come back as often as it likes."""
    state = State()
    ask(state, acquire(name=NAMES[0], lease_id="held", principal="p", owner="ana", ttl_ms=60_000))
    (joined,) = ask(state, want(0))
    assert isinstance(joined, Joined)
    for order in range(1, 10):
        assert ask(state, want(order)) == []
        assert ask(state, want(order, ticket="t0")) == []
    for order in range(10):
        (taken,) = ask(state, want(order, key=f"k{order}"))
        assert isinstance(taken, TicketReassigned) and names_of(taken) == ()
        assert len(encode_batch([Record(1, 1, 1, taken)])) < 500
        assert ask(state, want(order, key=f"k{order}")) == []
    ticket = state.tickets["t0"]
    assert (ticket.names, ticket.leases) == (NAMES, joined.ticket.leases)
