"""The world of the model: a store, two nodes, the clients of one name, and all that is on its way between them.

Everything is a value, so that a state of the world can be compared with all that were seen before. What is not there is
not modelled: archiving, those who wait, sessions, streams, the bytes of the link.

```text
 requests ──► nodes ──► flight (statements) ──► store (seat and log) ──► inbox of the node that asked
```

A node that takes no step is a stopped node. An answer in an inbox is one that lies in a stopped node's socket. A
statement that nobody waits for any more is a *stray*: it is carried out some time later, or never.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

TTL = 2
DELAY = 1
TURN_MAX = 1
"""How far authority time moves in one turn at most, however long its node was stopped (T1)."""
TOKEN_GAP = 100
"""By how much tokens jump when the store may have lost some (N-22)."""


class Rules(NamedTuple):
    """How large the world is, and what the nodes do in it. A rule that is not as the default has it is a mutant."""

    asks: tuple[str, ...] = ("claim", "claim", "look")
    """What clients ask for, each once: `claim`, `look`, `release 0` (of what the first one got)."""
    time_max: int = 0
    epochs_max: int = 2
    retries: int = 0
    """How often a client asks again with its key what nobody knows."""
    resends: int = 0
    """How often a follower sends a request on to another leader (N-31)."""
    strays_max: int = 1
    has_standby: bool = False
    """Whether the store can fail over to a standby that lags behind."""
    has_delay: bool = False
    """Whether a name stays closed for a while after its release."""

    barrier: bool = True
    """N-15: an answer without a record waits until the seat is proven after it was decided."""
    lost: Literal["resend", "look"] = "resend"
    """N-7, N-8: what is done if the batch is not there after a lost answer: the same again, or "it did not happen"."""
    no_row: Literal["ask", "deposed"] = "ask"
    """N-7: what a second copy that finds no row means."""
    lost_and_deposed: Literal["unknown", "failed"] = "unknown"
    """N-12: what is answered if an answer of the store was lost and then the seat."""
    fence: bool = True
    """N-3: a write names its epoch, and the store compares it."""
    term: bool = True
    """N-1: a write names its tenure too."""
    time: Literal["carried", "fast"] = "carried"
    """N-17: where a new leader's time goes on."""
    timed: bool = True
    """T3a: an answer that rests on time alone has a record of that time."""
    marks: Literal["always", "takeover", "never"] = "always"
    """N-22: when a node looks whether the store is the one it knew."""
    copies: Literal["unknown", "failed"] = "unknown"
    """N-31: what a follower answers that sent a request twice, if the last copy was refused."""


class Record(NamedTuple):
    """One record of the log."""

    kind: Literal["opened", "jumped", "granted", "ended", "released", "noted"]
    of: int
    """The request that it is about; of `jumped` the timeline."""
    at: int
    epoch: int
    token: int = 0


Log: TypeAlias = tuple[Record, ...]


class Store(NamedTuple):
    """The seat and the log behind it."""

    epoch: int
    term: int
    now: int
    log: Log
    timeline: int = 0


class Statement(NamedTuple):
    """A statement on its way to the store. The store does one after another, in any order."""

    kind: Literal["take", "append", "confirm", "ask"]
    node: int
    is_received: bool
    """Whether its node still waits for the answer."""
    epoch: int
    term: int
    first: int = 0
    batch: Log = ()
    now: int = 0


class Result(NamedTuple):
    """What the store answered: the last number of the log, or none if the seat was not as the statement said."""

    kind: str
    last: int | None
    timeline: int


class Outcome(NamedTuple):
    """The words of an answer."""

    what: Literal["", "got", "ended", "held", "released", "gone", "saw"] = ""
    token: int = 0
    left: int = 0
    """How long what was got lives from now on."""
    is_new: bool = False
    """Whether it was granted to this very copy of the request."""
    is_open: bool | None = None
    """Whether a delay is over; None if nothing is said of it."""


class Answer(NamedTuple):
    """What a node wants to say, once it may."""

    request: int
    said: Outcome
    position: int
    """How many records about the name it rests on."""
    copy: int
    """To which copy of the request; −1 to one that nobody waits for."""


class PendingRequest(NamedTuple):
    """The one append or confirm that a node waits for."""

    batch: Log
    answers: tuple[Answer, ...]
    is_lost: bool
    """Whether an answer of the store to it was lost."""


class Node(NamedTuple):
    """One node. All that it believes is gone when its tenure is over."""

    mode: Literal["follows", "takes", "reads", "opens", "leads"] = "follows"
    now: int = 0
    turned_at: int = 0
    """The real time of its last turn."""
    view: Log = ()
    """The log as it believes it to be, with what is pending and what is gathered."""
    pending: PendingRequest | None = None
    records: Log = ()
    answers: tuple[Answer, ...] = ()
    """Decided since the pending batch was sent."""
    inbox: Result | None = None
    epoch: int = 0
    term: int = 0
    timeline: int = 0

    @property
    def durable(self) -> int:
        """The last number that it knows to be durable."""
        return len(self.view) - len(self.records) - (len(self.pending.batch) if self.pending else 0)


FOLLOWER = Node()


class ReportedState(NamedTuple):
    """The most that clients were told so far: what is asked after it may not say less."""

    position: int = 0
    token: int = 0
    open_at: int = -1
    """At which position a delay was said to be over; −1: at none."""


class Request(NamedTuple):
    """What one client asked for, and what it was told."""

    status: Literal["new", "sent", "answered", "unknown", "failed"] = "new"
    sent_at: int = 0
    node: int = 0
    """Whose answer counts."""
    undecided: int = 0
    """The nodes that have a copy they have not decided, one bit each."""
    retries: int = 0
    resends: int = 0
    said: Outcome = Outcome()
    after: ReportedState = ReportedState()
    """What clients had been told when it was sent."""


class World(NamedTuple):
    """Everything at one moment."""

    time: int
    store: Store
    flight: tuple[Statement, ...]
    nodes: tuple[Node, Node]
    requests: tuple[Request, ...]
    reported: ReportedState
    standby: Store | None
    """What would be promoted; None if there is no standby, or it has been."""
    terms: int


class Name(NamedTuple):
    """What a log says about the name."""

    holder: int | None = None
    until: int = 0
    token: int = 0
    closed_until: int = 0
    position: int = 0
    granted: tuple[tuple[int, int], ...] = ()
    """Each request that was ever granted, and its token."""
    timeline: int = 0


@lru_cache(maxsize=1 << 17)
def name_of(log: Log) -> Name:
    """Replay a log."""
    if not log:
        return Name()
    before, last = name_of(log[:-1]), log[-1]
    match last.kind:
        case "granted":
            return before._replace(
                holder=last.of,
                until=last.at + TTL,
                token=last.token,
                position=before.position + 1,
                granted=(*before.granted, (last.of, last.token)),
            )
        case "ended" | "released":
            return before._replace(holder=None, closed_until=last.at + DELAY, position=before.position + 1)
        case "jumped":
            return before._replace(token=before.token + TOKEN_GAP, timeline=last.of)
        case "opened" | "noted":
            return before


def start(rules: Rules) -> World:
    """Node 0 leads, node 1 follows. With a delay, the name was just released, and something else is being written."""
    log: Log = (Record("opened", 0, 0, 1),)
    if rules.has_delay:
        log += (Record("granted", 99, 0, 1, 1), Record("released", 99, 0, 1))
    store = Store(1, 1, 0, log)
    leader = Node("leads", view=log, epoch=1, term=1)
    if rules.has_delay:
        other = Record("noted", 99, 0, 1)
        leader = leader._replace(view=(*log, other), records=(other,))
    requests = tuple(Request(retries=rules.retries, resends=rules.resends) for _ in rules.asks)
    return World(0, store, (), (leader, FOLLOWER), requests, ReportedState(), store if rules.has_standby else None, 1)


def carry_out(store: Store, it: Statement, rules: Rules) -> tuple[Store, int | None]:
    """Do a statement: the store afterwards, and the last number of its log, or none if it changed nothing."""
    if it.kind == "take":
        if it.epoch != store.epoch:
            return store, None
        return store._replace(epoch=store.epoch + 1, term=it.term), len(store.log)
    is_ours = (it.epoch == store.epoch or not rules.fence) and (it.term == store.term or not rules.term)
    if not is_ours or (it.kind == "append" and it.first != len(store.log) + 1):
        return store, None
    log = store.log + it.batch
    return store._replace(log=log, now=max(store.now, it.now)), len(log)


def without_dead_strays(world: World, rules: Rules) -> World:
    """Drop the strays that can never change anything: two worlds that differ in them alone are one."""
    if not world.flight or not rules.fence:
        return world
    epoch, last, now = world.store.epoch, len(world.store.log), world.store.now
    live = tuple(it for it in world.flight if it.is_received or not _is_dead(it, epoch, last, now))
    return world if len(live) == len(world.flight) else world._replace(flight=live)


def _is_dead(it: Statement, epoch: int, last: int, now: int) -> bool:
    match it.kind:
        case "take":
            return it.epoch < epoch
        case "append":
            return it.epoch < epoch or it.first <= last
        case _:
            return it.epoch < epoch or it.now <= now
