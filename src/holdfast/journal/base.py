"""The seam to durability: one protocol, its errors, its values. Every backend keeps it and one suite checks it.

A journal has one writer. What `append` returned from is durable; what it raised `JournalUnavailableError` from did not
happen; after `OutcomeUnknownError` nobody in this process can know, so the process must end and recovery tell.

Some stores are shared: several nodes see them, and one of these has the writer's seat (`SharedJournal`). There a seat
can be taken from one that still believes to have it. So every write names the tenure, and the store refuses it once
that is over (`DeposedError`). Who answers without a record proves its seat first (`confirm`). There a tenure ends, and
not the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from holdfast.core.events import Record

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator
    from contextlib import AbstractAsyncContextManager

    from holdfast.core.values import Lease


RESTORE = "Restore the directory from a backup"
HEAD = "head"
"""The table of the one value that `archive` is given each time. `open` gives it first."""


class JournalError(Exception):
    """The journal cannot do what was asked. The text says which operation, on what, and what to do now."""

    def __init__(self, problem: str, *ways: str) -> None:
        """`ways` are what can be done, each a sentence of its own: one stands behind the problem, several below it."""
        several = len(ways) > 1
        super().__init__(
            "\n  - ".join((f"{problem}. Do one of these:", *ways)) if several else ". ".join((problem, *ways))
        )
        self.problem = problem
        self.ways = ways

    @property
    def in_one_line(self) -> str:
        """The text without line breaks, for commands: each of their errors is one line."""
        return ". ".join((self.problem, *self.ways))


class JournalUnavailableError(JournalError):
    """The append is known to have failed: nothing of the batch happened or ever will."""


class OutcomeUnknownError(JournalError):
    """The append may or may not be durable. Only a restart can tell."""


class JournalLockedError(JournalError):
    """Somebody else has the writer's seat."""


class JournalDamagedError(JournalError):
    """What is stored cannot be what was written. Nothing is served from it."""


class JournalLostError(JournalError):
    """The store knows of a journal that is not there, or of one that had come further. Nothing is begun anew."""


class JournalTooNewError(JournalDamagedError):
    """What is stored is whole, and was written in a way that this version does not know."""


class DeposedError(JournalError):
    """Another writer took the seat: this one may neither write nor answer (I9). Nothing of this batch ever happens.

    If an answer of the store was lost before that was found out, it is an `OutcomeUnknownError` instead.
    """


class Values(msgspec.Struct, frozen=True):
    """Some rows of one table of the state, in their order. The journal keeps them and does not look into them."""

    table: str
    rows: Sequence[tuple[bytes, bytes]]
    """Keys and values."""


class Changes(msgspec.Struct, frozen=True, array_like=True, tag="changes"):
    """Some of the changes of one table of the state since the last step. It is sent to the archivist as it is.

    All rows that are gone from a table come before those that changed, and these before the new ones.
    """

    table: str
    gone: Sequence[bytes] = ()
    """Keys that were archived and are to go. One that is also new moves behind all others."""
    changed: Sequence[tuple[bytes, bytes]] = ()
    """Keys that are archived, and their values now. They keep their places."""
    new: Sequence[tuple[bytes, bytes]] = ()
    """Keys that are not archived, or are gone, and their values: behind all others, in this order."""


class Recovered(msgspec.Struct, frozen=True):
    """What `open` found: the number of this tenure, the archived state and the records since."""

    epoch: int
    values: Iterable[Values]
    """Every value that `archive` was given and that is not gone, in the order of each table. To be read once."""
    records: Iterator[Record]
    """Every record after those that are archived, in order. To be read once, after the values, before an append."""
    was_closed: bool = True
    """Whether the one who had the seat before gave it back. If not, it was killed, or the power failed."""
    now_ms: int = 0
    """The authority time that the tenure before may have answered with, where it is later than the last record's."""
    must_jump: bool = False
    """Whether the store may have lost records since they were answered. Then the first record of this tenure is
    `Restored`, with a fencing token beyond all that were given out; the journal asks for it until it was appended."""
    why_jump: str = ""
    """Why it must, where it need not have lost any. Empty: what it has shows a loss, or nobody knows."""
    key: bytes | None = None
    """The authority's key, where the store keeps it. None: a file beside the journal does."""


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """The writer's seat of a shared store, as one look found it. Any node may look."""

    authority: str
    """The id of the authority: made with the store, and never changed."""
    epoch: int
    """Rises by one with every tenure."""
    tenure: str
    """32 random hexadecimal digits of this tenure. A store that went back can repeat an epoch, and never these."""
    beat: int
    """Rises with every write under the seat."""
    is_held: bool
    """Whether somebody has it. Who gave it back leaves its name there."""
    node: str
    """The name of the node that has it."""
    process: str
    """32 random hexadecimal digits of the process that has it."""
    url: str
    """Where the other nodes reach that node."""
    last_seq: int
    now_ms: int
    since_wall_ms: int
    """When the tenure began, by the clock of that node: for people."""
    format: int
    """A node that does not know it can neither take the seat nor read what is stored."""
    version: str
    """Of Holdfast, on the node that has the seat."""
    jumps: int = 0
    """How often the store lost records, and tokens jumped: a store that did so once more may have a lower epoch."""
    wants_jump: bool = False
    """Whether an operator said that the store was restored: what was seen before counts no more."""
    is_behind: bool = False
    """Whether this node saw more than there is, and may go on all the same (`after_loss`)."""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """One node, as it told the store of itself."""

    node: str
    process: str
    url: str
    version: str
    format_max: int
    """The newest format that it knows."""
    tokens: str
    """A digest of its static tokens: nodes are meant to have the same."""
    seen_ms_ago: int = 0
    """How long ago it last told so, by the store's own clock."""


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which records are wanted, newest first. Renewals and ticks may be missing: they have no history value."""

    name: str | None = None
    before_seq: int | None = None
    since_wall_ms: int | None = None
    until_wall_ms: int | None = None
    owner: str | None = None
    badly: bool = False
    """Only what ended a lease badly (`ended_badly`)."""
    limit: int = 100


class HistoryPage(msgspec.Struct, frozen=True):
    """What one look at the history found, newest first. A look has a budget: it may find nothing and have a next."""

    records: list[Record]
    next_before: int | None
    """Everything from this number on was looked at. None: everything at all."""


class HeldQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Who held what, as of a record. Names in their order, from the one after `after` on."""

    seq: int
    after: str | None = None
    prefix: str = ""
    owner: str | None = None
    session: str | None = None
    labels: frozenset[tuple[str, str]] = frozenset()
    limit: int = 100


class Held(msgspec.Struct, frozen=True):
    """A name that was held: the lease as it was granted, and the number of the record that began it.

    What renewals changed since, its deadline, note and metadata, is not known: they are not kept.
    """

    name: str
    lease: Lease
    granted_seq: int
    """0 for one that is older than all numbers."""


class HeldPage(msgspec.Struct, frozen=True):
    """Some of the names that were held, in their order. A look has a budget: it may find nothing and have a next."""

    held: list[Held]
    next_after: str | None
    """The name to go on after. None: there are no more."""


class Keeping(msgspec.Struct, frozen=True, kw_only=True):
    """How much history is kept. Over the last two, the eldest of whoever has left the most goes first."""

    wall_ms: int = 30 * 86_400_000
    records_max: int = 10_000_000
    bytes_max: int = 4 * 2**30


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """How the store is: whether it takes anybody's new claims, its size, and a word for people."""

    takes_claims: bool
    size_bytes: int
    storage: str
    text: str = "ok"
    free_bytes: int | None = None
    """What is left on its disk; None if it has none."""


class Watch(Protocol):
    """Hears of every call to a store that can hang, before and after: whoever calls it cannot say so any more."""

    def enter(self, what: str) -> int:
        """Know that something begins that can hang; return the number of this very call."""

    def leave(self, number: int) -> None:
        """Know that it is over."""


class _Nobody:
    """Watches nothing."""

    def enter(self, what: str) -> int:  # noqa: ARG002 - nobody listens
        return 0

    def leave(self, number: int) -> None:
        pass


NOBODY = _Nobody()


@contextmanager
def watched(watch: Watch, what: str) -> Iterator[None]:
    """Say before and after the block that it can hang."""
    number = watch.enter(what)
    try:
        yield
    finally:
        watch.leave(number)


class Tail(msgspec.Struct, frozen=True):
    """Some records that are not archived, in order."""

    records: Sequence[Record]


class History(msgspec.Struct, frozen=True):
    """Some archived records with history value, oldest first."""

    records: Sequence[Record]


Part = Tail | Values | History
"""A part of all that a journal holds."""


class Snapshot(Protocol):
    """All that a journal holds at one instant. The tail is to be read first, then the values, then the history."""

    last_seq: int
    upto: int
    """Up to which number the records are archived."""
    pruned: int
    """Up to which number the history is not whole."""

    def tail(self) -> AsyncIterator[Sequence[Record]]:
        """Yield every record that is not archived, in order, some at a time."""

    def values(self) -> AsyncIterator[Values]:
        """Yield the archived state, as `open` gives it. The head is the only row of the table `HEAD`, and first."""

    def history(self) -> AsyncIterator[Sequence[Record]]:
        """Yield the archived records with history value, oldest first."""


class StoreWriter(Protocol):
    """Fills an empty store with all that a snapshot holds. The store counts for nothing until that is over."""

    async def put(self, part: Part) -> None:
        """Take the next part, in the order of a snapshot."""

    async def end(self, source: Snapshot) -> None:
        """Take note that this was all, and how far the source reaches."""


class Journal(Protocol):
    """A durable, totally ordered list of records with one writer.

    One that can hang says so to a `Watch`, around each call of its own: only it knows where one begins and ends.
    """

    @property
    def is_shared(self) -> bool:
        """Whether another node can take the seat. Then it is a `SharedJournal`, and its `append` is no `AtOnce`."""

    takes_claims: bool
    """False while new claims of anybody are refused: for them there is only room for what ends or keeps leases.

    It is looked at for every request. While it is false, `why_no_claims` tells whose are refused.
    """

    async def open(self) -> Recovered:
        """Take the writer's seat and tell what is there. Called again by the one who has it, it reads anew.

        Raises `JournalLockedError` if another has it, or came first.
        """

    def append(self, batch: Sequence[Record]) -> Awaitable[None]:
        """Make a batch durable, all or nothing. Nothing is done, and nothing raised, before it is awaited.

        Most are an `async def`. One that waits for nobody is marked with `at_once`, and then done without a task.

        Raises `JournalUnavailableError` if nothing of it happened, `OutcomeUnknownError` if that cannot be known,
        `DeposedError` if another has the seat.
        A batch whose first number does not follow the last durable one is refused: a gap could never be read again.
        """

    async def archive(self, upto: int, head: bytes, changes: Iterable[Changes], wall_ms: int) -> None:
        """Let the archive stand for every record up to `upto`: the state as of then, and what has history value.

        `upto` ends a batch that `append` returned from, else it is refused: the archive is never ahead of the journal.
        `head` is the one value that always changes; `changes` are all others since the last time. They are taken piece
        by piece, and appends go on meanwhile. When it returns, the archive is durable, and what it stands for is gone
        from the tail. If it raises `JournalUnavailableError`, nothing of it counts: the same changes, with those since,
        are given again some time later. One that reaches no further than the last is not written. Cannot run twice at
        once.

        History is dropped when it is older than is kept at `wall_ms`, or when there is too much of it: then the eldest
        of whoever has left the most (`principal_of`) goes first. Age alone never drops the newest: it says since when
        nothing happened.
        """

    def snapshot(self) -> AbstractAsyncContextManager[Snapshot]:
        """Give all that there is at this instant: for a backup. Appends and archiving go on meanwhile."""

    async def history(self, query: HistoryQuery) -> HistoryPage:
        """Return records asked for, newest first, and where to go on: with `before_seq` set to `next_before`.

        Pages together have each record once. A journal may end a page early, so that no search takes long.
        """

    async def follow(self, after_seq: int, limit: int) -> Sequence[Record]:
        """Return the first records with history value after a number, oldest first. None at all: there are no more."""

    async def last_by(self, wall_ms: int) -> int:
        """Return the number of the last record with history value whose wall time is not later; 0 if there is none.

        Where the wall clock was set back, the order of the journal counts: it is the last of all that qualify.
        """

    async def held(self, query: HeldQuery) -> HeldPage:
        """Return who held what, once that record was durable. It is exact for what follows `history_begins_after`.

        A lease that is older than the kept history is known for as long as it lives, and until its end is forgotten.
        """

    @property
    def tail_bytes(self) -> int:
        """How many bytes the records have that are not archived: those that a start would replay."""

    @property
    def history_begins_after(self) -> int:
        """Up to which number history is no longer kept: what follows it is there without a gap."""

    def health(self) -> Health:
        """Tell how the store is, without waiting for anything."""

    def why_no_claims(self, principal: str) -> str | None:
        """Say why new claims of a principal are refused now, before they are decided; None if they are taken.

        One that has the same room for all says what `health` says.
        """

    async def close(self) -> None:
        """Give the seat back."""


class SharedJournal(Journal, Protocol):
    """A journal in a store that several nodes see. One of them has the seat; every other looks, and may take it."""

    async def look(self) -> Seat:
        """Tell who has the seat. Needs no seat.

        Raises `JournalUnavailableError` if the store cannot be asked, `JournalLostError` if it has no authority or
        another than before, or went back in time; `JournalTooNewError` if this version cannot read it.
        """

    def depose(self, seat: Seat) -> None:
        """Let `open` take the seat also from the one who has it, if it is still just as it was seen.

        Without this, `open` takes it only from nobody. One journal has one tenure: the next needs another journal.
        """

    async def confirm(self, now_ms: int) -> None:
        """Prove by a write that the seat is ours, and that all is durable that `append` returned from.

        `now_ms` is the time of the latest answer that rests on it: whoever takes the seat next goes on after it.
        Raises as `append` does, and `JournalLostError` if the store lost a record that was durable.
        """

    def hurry(self, seconds: float) -> None:
        """Let no write be asked about for longer than so many seconds from now: whoever has the seat is about to end.

        What is not known by then is `OutcomeUnknownError`, as ever.
        """

    async def key(self) -> bytes:
        """Return the authority's key, which all nodes share. Needs no seat."""

    async def report(self, peer: Peer) -> None:
        """Let others see that this node is there. Needs no seat."""

    async def peers(self) -> Sequence[Peer]:
        """Return the nodes that told of themselves, the newest first. Needs no seat."""


class AtOnce:
    """The `append` of a journal that waits for nothing: `now` does it in the call, and so does awaiting it.

    The caller needs no task, which the loop would have to start, wake and end.
    """

    __slots__ = ("now",)

    def __init__(self, append: Callable[[], None]) -> None:
        self.now = append

    def __await__(self) -> Generator[None, None, None]:
        self.now()
        yield from ()


J = TypeVar("J")


def at_once(append: Callable[[J, Sequence[Record]], None]) -> Callable[[J, Sequence[Record]], Awaitable[None]]:
    """Make the `append` of a journal that waits for nothing: on its own disk, or in memory."""

    @wraps(append)
    def begin(journal: J, batch: Sequence[Record]) -> Awaitable[None]:
        return AtOnce(partial(append, journal, batch))

    return begin
