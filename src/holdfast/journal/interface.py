"""The interface of journals: protocols, errors and values. One contract suite checks every implementation.

A journal has one writer. A batch is durable once `append` returns, and never happens after `JournalUnavailableError`.
After `OutcomeUnknownError` only recovery can tell, so the process must end.

Several nodes share a `SharedJournal`, and one of them leads. It can lose the leadership unnoticed: so every write names
the term, and the store refuses a past one (`DeposedError`). Answers without a record need a proof first (`confirm`).
There the term ends instead of the process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial, wraps
from typing import Protocol, TypeVar

import msgspec

from holdfast.core.events import Record
from holdfast.core.values import Lease

RESTORE = "Restore the directory from a backup"
HEAD = "head"  # The table of the one value that every `archive` changes. `open` yields it first.


class JournalError(Exception):
    """An operation failed. The text names it, its object and a remedy."""

    def __init__(self, problem: str, *remedies: str) -> None:
        """One of `remedies` is appended to the problem, several are listed below it."""
        several = len(remedies) > 1
        super().__init__(
            "\n  - ".join((f"{problem}. Do one of these:", *remedies)) if several else ". ".join((problem, *remedies))
        )
        self.problem = problem
        self.remedies = remedies

    @property
    def in_one_line(self) -> str:
        """The text without line breaks: commands print errors in one line."""
        return ". ".join((self.problem, *self.remedies))


class JournalUnavailableError(JournalError):
    """The append failed for certain: no record of the batch exists or ever will."""


class OutcomeUnknownError(JournalError):
    """The append may or may not be durable. Only a restart can tell."""


class JournalLockedError(JournalError):
    """Another process is the writer."""


class JournalDamagedError(JournalError):
    """The stored bytes are not those that were written. The server serves nothing from them."""


class JournalLostError(JournalError):
    """The journal is missing or was rolled back. The server does not start an empty one instead."""


class JournalTooNewError(JournalDamagedError):
    """The stored bytes are intact, but this version does not know their format."""


class DeposedError(JournalError):
    """Another writer leads: this one may neither write nor answer (I9). No record of this batch ever exists.

    It is an `OutcomeUnknownError` instead if an answer of the store was lost before.
    """


class Values(msgspec.Struct, frozen=True):
    """Rows of one table of the state, in order. The journal does not interpret them."""

    table: str
    rows: Sequence[tuple[bytes, bytes]]


class Changes(msgspec.Struct, frozen=True, array_like=True, tag="changes"):
    """Changes to a table since the last step. Of each table, removed rows come first, then changed, then new."""

    table: str
    gone: Sequence[bytes] = ()  # Archived keys to remove. One that is also in `new` moves to the end.
    changed: Sequence[tuple[bytes, bytes]] = ()  # Archived keys with their current values. They keep their places.
    new: Sequence[tuple[bytes, bytes]] = ()  # Keys that are not archived, or removed, with their values: appended.


class Recovered(msgspec.Struct, frozen=True):
    """What `open` found: the epoch, the archived state and the records since then."""

    epoch: int
    values: Iterable[Values]  # All archived values, in the order of each table. Read them once.
    records: Iterator[Record]  # Records that are not archived, in order. Read them once, between `values` and append.
    was_closed: bool = True  # False if the last writer was killed or the power failed.
    now_ms: int = 0  # The latest authority time that the last term may have answered with, if after the last record's.
    needs_token_gap: bool = False
    """The store may have lost acknowledged records: the first record of this term must be `Restored`, with a fencing
    token beyond all earlier ones. The journal demands it until it is appended."""
    # Why, if possibly no record is lost. Empty: records are missing, or the reason is unknown.
    token_gap_reason: str = ""
    key: bytes | None = None  # The authority's key. None: a file next to the journal has it.


class Leadership(msgspec.Struct, frozen=True, kw_only=True):
    """The leadership row of a shared store. Any node may read it."""

    authority: str  # The id of the authority: created with the store, never changed.
    epoch: int  # Rises by one with every term.
    term_id: str  # 32 random hexadecimal digits of this term: a store that was rolled back can only repeat the epoch.
    heartbeat: int  # Rises with every write of the leader.
    is_held: bool  # False also after a leader resigned: its name stays.
    node: str
    process: str  # 32 random hexadecimal digits of the leading process.
    url: str  # The address of the leading node, for the other nodes.
    last_seq: int
    now_ms: int
    since_wall_ms: int  # The start of the term by the leader's clock, for display.
    format: int  # A node that does not know this format can neither lead nor read.
    version: str
    token_gaps: int = 0  # How often tokens jumped after a loss. The epoch may be lower after one.
    wants_token_gap: bool = False  # An operator declared the store restored: earlier observations are void.
    is_rolled_back: bool = False  # This node saw more than the store has, and may continue (`after_data_loss`).


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """One node, as it reported itself to the store."""

    node: str
    process: str
    url: str
    version: str
    format_max: int  # The newest record format that it knows.
    tokens: str  # A digest of its static tokens, which all nodes should share.
    seen_ms_ago: int = 0  # By the store's clock.


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A search for records, newest first. Renewals and ticks have no history value, and may be missing."""

    name: str | None = None
    before_seq: int | None = None
    since_wall_ms: int | None = None
    until_wall_ms: int | None = None
    owner: str | None = None
    badly: bool = False  # Only ends of a lease that are `ended_badly`.
    limit: int = 100


class HistoryPage(msgspec.Struct, frozen=True):
    """Matching records, newest first. A search has a budget: an empty page may have a next one."""

    records: list[Record]
    next_before: int | None  # The search covered everything from this number on. None: everything.


class HeldQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Who held what, as of record `seq`: in the order of names, those after `after`."""

    seq: int
    after: str | None = None
    prefix: str = ""
    owner: str | None = None
    session: str | None = None
    labels: frozenset[tuple[str, str]] = frozenset()
    limit: int = 100


class Held(msgspec.Struct, frozen=True):
    """A name that was held, with the lease as it was granted: later changes by renewals are not kept."""

    name: str
    lease: Lease
    granted_seq: int  # 0 for a grant that is older than all records.


class HeldPage(msgspec.Struct, frozen=True):
    """Names that were held, in order. As with `HistoryPage`, an empty page may have a next one."""

    held: list[Held]
    next_after: str | None  # Continue after this name. None: there are no more.


class Retention(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the history. Above the last two, the oldest records of the principal with the most go first."""

    wall_ms: int = 30 * 86_400_000
    records_max: int = 10_000_000
    bytes_max: int = 4 * 2**30


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the store. `text` is for people."""

    takes_claims: bool
    size_bytes: int
    storage: str
    text: str = "ok"
    free_bytes: int | None = None  # Of its disk. None: it has none.


class Watch(Protocol):
    """Notified before and after every store call that can hang."""

    def enter(self, what: str) -> int:
        """Return the number of this call."""

    def leave(self, number: int) -> None: ...


class _NoWatch:
    def enter(self, what: str) -> int:  # noqa: ARG002 - nobody listens
        return 0

    def leave(self, number: int) -> None:
        pass


NO_WATCH = _NoWatch()


@contextmanager
def watched(watch: Watch, what: str) -> Iterator[None]:
    number = watch.enter(what)
    try:
        yield
    finally:
        watch.leave(number)


class TailPart(msgspec.Struct, frozen=True):
    """Part of a snapshot: records that are not archived, in order."""

    records: Sequence[Record]


class HistoryPart(msgspec.Struct, frozen=True):
    """Part of a snapshot: archived records with history value, oldest first."""

    records: Sequence[Record]


SnapshotPart = TailPart | Values | HistoryPart


class Snapshot(Protocol):
    """The content of a journal at one instant. Read the tail first, then the values, then the history."""

    last_seq: int
    upto: int  # Records up to this number are archived.
    pruned: int  # The history is incomplete up to this number.

    def tail(self) -> AsyncIterator[Sequence[Record]]:
        """Yield the records that are not archived, in order."""

    def values(self) -> AsyncIterator[Values]:
        """Yield the archived state, as `open` does: first the head, the only row of the table `HEAD`."""

    def history(self) -> AsyncIterator[Sequence[Record]]:
        """Yield the archived records with history value, oldest first."""


class StoreWriter(Protocol):
    """Fills an empty store from a snapshot. Nothing may use the store before it is complete."""

    async def put(self, part: SnapshotPart) -> None:
        """Write the next part, in the order of a snapshot."""

    async def end(self, source: Snapshot) -> None: ...


class Journal(Protocol):
    """A durable, totally ordered list of records with one writer. It notifies a `Watch` of calls that can hang."""

    @property
    def is_shared(self) -> bool:
        """Whether another node can take over: then it is a `SharedJournal`, and its `append` no `SyncAppend`."""

    takes_claims: bool  # False: no space for new claims of some principals (`why_no_claims`). Read for every request.

    async def open(self) -> Recovered:
        """Become the writer and return the content, also a second time. Raises `JournalLockedError`."""

    def append(self, batch: Sequence[Record]) -> Awaitable[None]:
        """Make a batch durable, all or nothing. Nothing happens or is raised before it is awaited.

        Usually an `async def`; `sync_append` marks one that waits for nothing and needs no task.

        Raises `JournalUnavailableError` if it did not happen, `OutcomeUnknownError` if that cannot be known, and
        `DeposedError` if another node leads. Refuses a batch that does not follow the last durable record.
        """

    async def archive(self, upto: int, head: bytes, changes: Iterable[Changes], wall_ms: int) -> None:
        """Move the records up to `upto` into the archive: the state as of then, and the history.

        Refused unless `upto` ends a durable batch: the archive is never ahead of the journal. `head` is the one value
        that always changes, `changes` are all others since the last call, consumed piece by piece while appends go on.
        When it returns, the archive is durable, and its records are gone from the tail. After
        `JournalUnavailableError` nothing of it counts: the caller passes the same changes, with those since, again
        later. A call that reaches no further than the last only prunes. Calls must not overlap.

        History is pruned by its age at `wall_ms` and by its size (`Retention`). Age alone never drops the newest
        record: it says since when nothing happened.
        """

    def snapshot(self) -> AbstractAsyncContextManager[Snapshot]:
        """Return the content at this instant. Appends and archiving go on meanwhile."""

    async def history(self, query: HistoryQuery) -> HistoryPage:
        """Return matching records, newest first. For the next page, set `before_seq` to `next_before`.

        All pages together have each record once. A journal may end a page early to bound a search.
        """

    async def follow(self, after_seq: int, limit: int) -> Sequence[Record]:
        """Return the first records with history value after a number, oldest first. Empty: no more."""

    async def last_by(self, wall_ms: int) -> int:
        """Return the number of the last record with history value up to a wall time, or 0.

        The order of the journal decides: the wall clock may have been set back.
        """

    async def held(self, query: HeldQuery) -> HeldPage:
        """Return who held what as of a record. Exact for records after `history_begins_after`.

        An older lease is known while it lives, and until its end is pruned.
        """

    @property
    def tail_bytes(self) -> int:
        """The size of the records that are not archived, which a start replays."""

    @property
    def history_begins_after(self) -> int:
        """The number up to which history is pruned: complete after it."""

    def health(self) -> Health:
        """Return the state of the store without waiting."""

    def why_no_claims(self, principal: str) -> str | None:
        """Return why new claims of a principal are refused now; None if they are accepted."""

    async def close(self) -> None:
        """Release the journal to the next writer."""


class SharedJournal(Journal, Protocol):
    """A journal that several nodes share. One leads; the others read, and may take over."""

    async def read_leadership(self) -> Leadership:
        """Return who leads. Any node may ask.

        Raises `JournalUnavailableError` if the store does not answer, `JournalLostError` if its authority is missing or
        another, or it was rolled back, and `JournalTooNewError` if this version cannot read it.
        """

    def depose(self, leadership: Leadership) -> None:
        """Let `open` take over from this leader if nothing changed; otherwise `open` needs a vacant leadership.

        One journal object has one term: the next term needs another object.
        """

    async def confirm(self, now_ms: int) -> None:
        """Prove by a write that this node leads and that all acknowledged appends are durable.

        `now_ms` is the time of the latest answer that relies on it: the next leader continues after it.
        Raises as `append` does, and `JournalLostError` if the store lost a durable record.
        """

    def hurry(self, seconds: float) -> None:
        """Settle writes for at most so long from now: a write that is unknown then is `OutcomeUnknownError`."""

    async def key(self) -> bytes:
        """Return the authority's key, which all nodes share."""

    async def report(self, peer: Peer) -> None:
        """Publish this node to the others."""

    async def peers(self) -> Sequence[Peer]:
        """Return the nodes that reported themselves, newest first."""


class SyncAppend:
    """An `append` that waits for nothing: calling `now` does it, and so does awaiting. It needs no task."""

    __slots__ = ("now",)

    def __init__(self, append: Callable[[], None]) -> None:
        self.now = append

    def __await__(self) -> Generator[None, None, None]:
        self.now()
        yield from ()


J = TypeVar("J")


def sync_append(append: Callable[[J, Sequence[Record]], None]) -> Callable[[J, Sequence[Record]], Awaitable[None]]:
    """Decorate an `append` that waits for nothing: on a local disk, or in memory."""

    @wraps(append)
    def begin(journal: J, batch: Sequence[Record]) -> Awaitable[None]:
        return SyncAppend(partial(append, journal, batch))

    return begin
