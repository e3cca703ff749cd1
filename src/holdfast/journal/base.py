"""The interface of journals: one protocol, its errors, its values. One contract suite checks every implementation.

A journal has one writer. What `append` returned from is durable; what it raised `JournalUnavailableError` from did not
happen; after `OutcomeUnknownError` nothing in this process can know, so the process must end and recovery tell.

Some stores are shared: several nodes see them, and one of these leads (`SharedJournal`). Its leadership can be taken
from it unnoticed. So every write names the term, and the store refuses it once that is over (`DeposedError`). Answers
without a record need a proof first (`confirm`). There a term ends, and not the process.
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
"""The table of the one value that changes with each `archive`. `open` yields it first."""


class JournalError(Exception):
    """The journal cannot do what was asked. The text says which operation, on what, and what to do now."""

    def __init__(self, problem: str, *ways: str) -> None:
        """`ways` say what can be done: one follows the problem on its line, several are listed below it."""
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
    """Another process is the writer."""


class JournalDamagedError(JournalError):
    """The stored bytes cannot be those that were written. Nothing is served from them."""


class JournalLostError(JournalError):
    """The store knows of a journal that is missing, or of one that had come further. Nothing is begun anew."""


class JournalTooNewError(JournalDamagedError):
    """The stored bytes are undamaged, but of a format that this version does not know."""


class DeposedError(JournalError):
    """Another writer leads: this one may neither write nor answer (I9). Nothing of this batch ever happens.

    If an answer of the store was lost before that was detected, it is an `OutcomeUnknownError` instead.
    """


class Values(msgspec.Struct, frozen=True):
    """Some rows of one table of the state, in their order. The journal does not interpret them."""

    table: str
    rows: Sequence[tuple[bytes, bytes]]


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
    """What `open` found: the epoch, the archived state and the records since."""

    epoch: int
    values: Iterable[Values]
    """All archived values, in the order of each table. To be read once."""
    records: Iterator[Record]
    """Every record that is not archived, in order. To be read once, after the values, before an append."""
    was_closed: bool = True
    """Whether the last writer closed the journal. If not, it was killed, or the power failed."""
    now_ms: int = 0
    """The authority time that the last term may have answered with, where it is later than the last record's."""
    must_jump: bool = False
    """Whether the store may have lost records since they were answered. Then the first record of this term is
    `Restored`, with a fencing token beyond all earlier ones; the journal asks for it until it was appended."""
    why_jump: str = ""
    """Why it must, although no record need be lost. Empty: records are missing, or it is not known."""
    key: bytes | None = None
    """The authority's key, if the store keeps it. None: a file alongside the journal does."""


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """The leadership of a shared store, as one read found it. Any node may read it."""

    authority: str
    """The id of the authority: made with the store, and never changed."""
    epoch: int
    """Rises by one with every term."""
    tenure: str
    """32 random hexadecimal digits of this term. A store that went back can repeat an epoch, but never these."""
    beat: int
    """Rises with every write of the leader."""
    is_held: bool
    """Whether there is a leader. One that resigned leaves its name."""
    node: str
    process: str
    """32 random hexadecimal digits of the leading process."""
    url: str
    """Where the other nodes reach the leading node."""
    last_seq: int
    now_ms: int
    since_wall_ms: int
    """When the term began, by the clock of that node: for people."""
    format: int
    """A node that does not know it can neither lead nor read the store."""
    version: str
    jumps: int = 0
    """How often the store lost records, and tokens jumped: after another loss it may have a lower epoch."""
    wants_jump: bool = False
    """Whether an operator said that the store was restored: earlier observations are void."""
    is_behind: bool = False
    """Whether this node saw more than there is, and may go on nevertheless (`after_loss`)."""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """One node, as it reported itself to the store."""

    node: str
    process: str
    url: str
    version: str
    format_max: int
    """The newest record format that it knows."""
    tokens: str
    """A digest of its static tokens: nodes should have the same."""
    seen_ms_ago: int = 0
    """How long ago it last reported, by the store's clock."""


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which records are wanted, newest first. Renewals and ticks have no history value, and may be missing."""

    name: str | None = None
    before_seq: int | None = None
    since_wall_ms: int | None = None
    until_wall_ms: int | None = None
    owner: str | None = None
    badly: bool = False
    """Only ends of a lease that are `ended_badly`."""
    limit: int = 100


class HistoryPage(msgspec.Struct, frozen=True):
    """Matching records, newest first. A search has a budget: a page may be empty and have a next one."""

    records: list[Record]
    next_before: int | None
    """Everything from this number on was searched. None: everything."""


class HeldQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Who held what, as of a record: by name, from the one after `after` on."""

    seq: int
    after: str | None = None
    prefix: str = ""
    owner: str | None = None
    session: str | None = None
    labels: frozenset[tuple[str, str]] = frozenset()
    limit: int = 100


class Held(msgspec.Struct, frozen=True):
    """A name that was held: the lease as it was granted, and the number of its record.

    What renewals changed since (deadline, note, metadata) is not known: they are not kept.
    """

    name: str
    lease: Lease
    granted_seq: int
    """0 for a grant that is older than all records."""


class HeldPage(msgspec.Struct, frozen=True):
    """Some of the names that were held, in order. It may be empty and have a next one, as a `HistoryPage`."""

    held: list[Held]
    next_after: str | None
    """The name to go on after. None: there are no more."""


class Keeping(msgspec.Struct, frozen=True, kw_only=True):
    """How much history is kept. Over the last two, the oldest of the principal with the most goes first."""

    wall_ms: int = 30 * 86_400_000
    records_max: int = 10_000_000
    bytes_max: int = 4 * 2**30


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the store, with a text for people."""

    takes_claims: bool
    size_bytes: int
    storage: str
    text: str = "ok"
    free_bytes: int | None = None
    """The free space of its disk; None if it has none."""


class Watch(Protocol):
    """Is notified before and after every call to a store that can hang."""

    def enter(self, what: str) -> int:
        """Return the number of this call."""

    def leave(self, number: int) -> None: ...


class _Nobody:
    """Watches nothing."""

    def enter(self, what: str) -> int:  # noqa: ARG002 - nobody listens
        return 0

    def leave(self, number: int) -> None:
        pass


NOBODY = _Nobody()


@contextmanager
def watched(watch: Watch, what: str) -> Iterator[None]:
    """Notify a watch of the block."""
    number = watch.enter(what)
    try:
        yield
    finally:
        watch.leave(number)


class Tail(msgspec.Struct, frozen=True):
    """A part of a snapshot: some records that are not archived, in order."""

    records: Sequence[Record]


class History(msgspec.Struct, frozen=True):
    """Some archived records with history value, oldest first."""

    records: Sequence[Record]


Part = Tail | Values | History


class Snapshot(Protocol):
    """All that a journal holds at one instant. The tail must be read first, then the values, then the history."""

    last_seq: int
    upto: int
    """Up to which number the records are archived."""
    pruned: int
    """Up to which number the history is incomplete."""

    def tail(self) -> AsyncIterator[Sequence[Record]]:
        """Yield every record that is not archived, in order, some at a time."""

    def values(self) -> AsyncIterator[Values]:
        """Yield the archived state, as `open` does. The head is the only row of the table `HEAD`, and first."""

    def history(self) -> AsyncIterator[Sequence[Record]]:
        """Yield the archived records with history value, oldest first."""


class StoreWriter(Protocol):
    """Fills an empty store with the content of a snapshot. The store counts for nothing until that is complete."""

    async def put(self, part: Part) -> None:
        """Write the next part, in the order of a snapshot."""

    async def end(self, source: Snapshot) -> None:
        """Complete the copy."""


class Journal(Protocol):
    """A durable, totally ordered list of records with one writer.

    One that can hang notifies a `Watch` around each call of its own: only it knows where one begins and ends.
    """

    @property
    def is_shared(self) -> bool:
        """Whether another node can take over. Then it is a `SharedJournal`, and its `append` is not an `AtOnce`."""

    takes_claims: bool
    """False while new claims of any principal are refused: there is only room for ending and keeping leases.

    It is read for every request. While it is false, `why_no_claims` tells whose are refused.
    """

    async def open(self) -> Recovered:
        """Become the writer and return what is stored. The writer may call it again, to read everything anew.

        Raises `JournalLockedError` if there is another writer.
        """

    def append(self, batch: Sequence[Record]) -> Awaitable[None]:
        """Make a batch durable, all or nothing. Nothing happens, and nothing is raised, before it is awaited.

        Usually an `async def`. One that waits for nothing is marked with `at_once`, and runs without a task.

        Raises `JournalUnavailableError` if nothing of it happened, `OutcomeUnknownError` if that cannot be known,
        `DeposedError` if there is another leader.
        A batch whose first number does not follow the last durable one is refused: a gap could never be read again.
        """

    async def archive(self, upto: int, head: bytes, changes: Iterable[Changes], wall_ms: int) -> None:
        """Replace every record up to `upto` by the archive: the state as of then, and what has history value.

        `upto` ends a batch that `append` returned from, else it is refused: the archive is never ahead of the journal.
        `head` is the one value that always changes; `changes` are all others since the last time. They are consumed
        piece by piece, while appends go on. When it returns, the archive is durable, and its records are gone from the
        tail. If it raises `JournalUnavailableError`, nothing of it counts: the same changes, with those since, are
        passed again later. One that reaches no further than the last only prunes. Cannot run twice at the same time.

        History is dropped when it is older than is kept at `wall_ms`, or when there is too much of it: then the oldest
        of the principal (`principal_of`) that has left the most goes first. Age alone never drops the newest: it says
        since when nothing happened.
        """

    def snapshot(self) -> AbstractAsyncContextManager[Snapshot]:
        """Return the content at this instant, for a backup. Appends and archiving go on meanwhile."""

    async def history(self, query: HistoryQuery) -> HistoryPage:
        """Return matching records, newest first. The next page has `before_seq` set to `next_before`.

        All pages together have each record once. A journal may end a page early, so that no search takes long.
        """

    async def follow(self, after_seq: int, limit: int) -> Sequence[Record]:
        """Return the first records with history value after a number, oldest first. Empty: there are no more."""

    async def last_by(self, wall_ms: int) -> int:
        """Return the number of the last record with history value whose wall time is not later; 0 if there is none.

        Where the wall clock was set back, the order of the journal counts: it is the last of all that qualify.
        """

    async def held(self, query: HeldQuery) -> HeldPage:
        """Return who held what, once that record was durable. It is exact for what follows `history_begins_after`.

        A lease that is older than the kept history is known while it lives, and until its end is forgotten.
        """

    @property
    def tail_bytes(self) -> int:
        """The size of the records that are not archived: those that a start would replay."""

    @property
    def history_begins_after(self) -> int:
        """Up to which number history is pruned: what follows is complete."""

    def health(self) -> Health:
        """Return the state of the store, without waiting for anything."""

    def why_no_claims(self, principal: str) -> str | None:
        """Return why new claims of a principal are refused now, before they are decided; None if they are accepted."""

    async def close(self) -> None:
        """Release the journal to the next writer."""


class SharedJournal(Journal, Protocol):
    """A journal in a store that several nodes see. One of them leads; every other reads, and may take over."""

    async def look(self) -> Seat:
        """Return who leads. Any node may ask.

        Raises `JournalUnavailableError` if the store cannot be asked, `JournalLostError` if it has no authority or
        another than before, or went back in time; `JournalTooNewError` if this version cannot read it.
        """

    def depose(self, seat: Seat) -> None:
        """Let `open` take over from a leader too, if its seat is still just as it was seen.

        Without this, `open` only leads if nobody does. One journal has one term: the next needs another journal.
        """

    async def confirm(self, now_ms: int) -> None:
        """Prove by a write that this node leads, and that everything is durable that `append` returned from.

        `now_ms` is the time of the latest answer that rests on it: the next leader goes on after it.
        Raises as `append` does, and `JournalLostError` if the store lost a record that was durable.
        """

    def hurry(self, seconds: float) -> None:
        """Settle no write for longer than so many seconds from now: the leader is about to end.

        What is not known by then is `OutcomeUnknownError`, as ever.
        """

    async def key(self) -> bytes:
        """Return the authority's key, which all nodes share. Any node may ask."""

    async def report(self, peer: Peer) -> None:
        """Let other nodes see this one."""

    async def peers(self) -> Sequence[Peer]:
        """Return the nodes that reported themselves, the newest first. Any node may ask."""


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
