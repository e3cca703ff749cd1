"""What the checks of a journal are made of: a promise, sample records, and ways to fill, reopen and read a journal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING, Any, Protocol, get_args, get_origin, get_type_hints

import msgspec

from holdfast.core.events import Event, Granted, Record, Renewed, is_history
from holdfast.core.values import Lease
from holdfast.journal.interface import HEAD, Changes, Held, HeldQuery, HistoryQuery, Journal, Retention, Values

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

WALL_MS = 1_700_000_000_000

Rows = list[tuple[bytes, bytes]]
Tables = dict[str, Rows]
"""The archived state: the rows of each table, in their order. The key of the head is the journal's own."""


class ContractError(AssertionError):
    """A journal did not keep a promise. The text says which, and what it did instead."""


class JournalFactory(Protocol):
    """Somewhere a journal keeps its records."""

    def __call__(self, *, retention: Retention) -> Journal:
        """Return another journal on the same records."""
        ...


class Check(msgspec.Struct, frozen=True):
    """One promise and how it is checked."""

    name: str
    promise: str
    run: Callable[[JournalFactory], Awaitable[None]]


def sample_events() -> list[Event]:
    """Return one event of every kind, every field of it filled."""
    return [_sample(kind, 1) for kind in get_args(Event)]


def _sample(kind: Any, number: int) -> Any:  # noqa: ANN401
    """Make a value of a type: a text that is not only ASCII, a number, a struct of such, or two of them."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind)
        return kind(**{field: _sample(hints[field], make) for make, field in enumerate(kind.__struct_fields__, number)})
    if get_origin(kind) is dict:
        return {f"kéy/{number}": f"té/{number}"}
    if get_origin(kind) is tuple and Ellipsis not in get_args(kind):
        return tuple(_sample(item, make) for make, item in enumerate(get_args(kind), number))
    match get_args(kind):
        case (item, rest) if rest is Ellipsis:
            return (_sample(item, number), _sample(item, number + 1))
        case parts if get_origin(kind) is tuple:
            return tuple(_sample(part, make) for make, part in enumerate(parts, number))
        case (optional, _):
            return _sample(optional, number)
        case _:
            return f"té/{number}" if kind is str else kind(number)


Run = Callable[[JournalFactory], Awaitable[None]]


def check_in(checks: list[Check]) -> Callable[[Run], Run]:
    """Return a decorator that puts a check into a list; its docstring is the promise."""

    def enter(run: Run) -> Run:
        checks.append(Check(run.__name__.removeprefix("_"), str(run.__doc__), run))
        return run

    return enter


def drawing(seed: int) -> Random:
    """Return where a check draws from: the same each time."""
    return Random(seed)


def expect(actual: object, expected: object, what: str) -> None:
    """Raise unless the two are equal."""
    if actual != expected:
        raise ContractError(f"{what}: {actual!r} instead of {expected!r}")


async def expect_refusal(asked: Awaitable[object], error: type[Exception], what: str) -> None:
    """Raise unless what was asked is refused with this error."""
    try:
        await asked
    except error:
        return
    raise ContractError(f"{what} was not refused with {error.__name__}")


def grant(
    seq: int,
    name: str = "job",
    wall_ms: int | None = None,
    *,
    principal: str = "ci",
    metadata: str | None = None,
) -> Record:
    """Make the record of a grant."""
    wall_ms = WALL_MS + seq if wall_ms is None else wall_ms
    lease = Lease(
        f"lease-{seq}", seq, principal, None, None, False, 1000, seq + 1000, 0, metadata, None, wall_ms, wall_ms
    )
    return Record(seq, seq, wall_ms, Granted(name, lease))


def renewal(seq: int, name: str = "job") -> Record:
    """Make the record of a renewal: one without history value."""
    return Record(seq, seq, WALL_MS + seq, Renewed(name, f"lease-{seq}", 1000, seq + 1000))


def names(count: int) -> list[str]:
    """Return names that all differ."""
    return [f"job/{number % count}" for number in range(count)]


async def filled(
    make: JournalFactory, batches: Sequence[Sequence[Record]], retention: Retention | None = None
) -> Journal:
    """Open a journal and append to it."""
    journal = make(retention=retention or Retention())
    list((await journal.open()).records)
    for batch in batches:
        await journal.append(batch)
    return journal


async def read(journal: Journal) -> tuple[Tables, list[Record]]:
    """Return the archived state and the records that a journal has."""
    recovered = await journal.open()
    return tables_of(recovered.values), list(recovered.records)


def tables_of(values: Iterable[Values]) -> Tables:
    """Put the archived state together. Raises unless the head comes first, and once."""
    tables: Tables = {}
    for each in values:
        tables.setdefault(each.table, []).extend(each.rows)
    if tables and (next(iter(tables)) != HEAD or len(tables[HEAD]) != 1):
        raise ContractError(f"the head is not the first value, or not the only one of its table: {tables!r}")
    return {table: [(b"", rows[0][1])] if table == HEAD else rows for table, rows in tables.items() if rows}


def head_at(upto: int) -> bytes:
    """Return the head that `archived` gives."""
    return b"head of %d" % upto


def slot_changes(upto: int, count: int = 1) -> Iterator[Changes]:
    """Yield so many new rows, each in a piece of its own."""
    for number in range(count):
        yield Changes("slots", new=[(b"%d/%d" % (upto, number), b"value")])


def slot_tables(*uptos: int, count: int = 1) -> Tables:
    """Return the state after `slot_changes` were archived at each of these numbers."""
    rows = [row for upto in uptos for each in slot_changes(upto, count) for row in each.new]
    return {HEAD: [(b"", head_at(uptos[-1]))], "slots": rows} if uptos else {}


async def archived(journal: Journal, upto: int, wall_ms: int = WALL_MS, *, count: int = 1) -> None:
    """Let the archive stand for the records up to a number, with some rows of that number."""
    await journal.archive(upto, head_at(upto), slot_changes(upto, count), wall_ms)


async def reopened(journal: Journal, make: JournalFactory, retention: Retention | None = None) -> Journal:
    """Close a journal, and open another on the same records."""
    await journal.close()
    return await filled(make, [], retention)


async def pages(journal: Journal, limit: int, **query: object) -> list[Record]:
    """Page through history as a caller would: each page goes on where the one before says."""
    found: list[Record] = []
    before: int | None = None
    while True:
        page = await journal.history(HistoryQuery(**{"limit": limit, "before_seq": before, **query}))  # type: ignore[arg-type]
        if len(page.records) > limit:
            raise ContractError(f"history gave {len(page.records)} records for a limit of {limit}")
        found.extend(page.records)
        if page.next_before is None:
            return found
        if before is not None and page.next_before >= before:
            raise ContractError(f"history was asked for what is before {before}, and leads to {page.next_before}")
        before = page.next_before


async def followed(journal: Journal, limit: int, after_seq: int = 0) -> list[Record]:
    """Follow a journal as a reader would: each page goes on after the last number of the one before."""
    found: list[Record] = []
    while page := await journal.follow(found[-1].seq if found else after_seq, limit):
        if len(page) > limit:
            raise ContractError(f"following gave {len(page)} records for a limit of {limit}")
        found.extend(page)
    return found


async def held_pages(journal: Journal, seq: int, limit: int = 100, prefix: str = "", **wanted: object) -> list[Held]:
    """Page through who held what as a caller would."""
    found: list[Held] = []
    after: str | None = None
    while True:
        page = await journal.held(HeldQuery(seq=seq, after=after, prefix=prefix, limit=limit, **wanted))  # type: ignore[arg-type]
        if len(page.held) > limit:
            raise ContractError(f"held gave {len(page.held)} names for a limit of {limit}")
        found.extend(page.held)
        if page.next_after is None:
            return found
        if after is not None and page.next_after <= after:
            raise ContractError(f"held was asked for what comes after {after!r}, and leads to {page.next_after!r}")
        after = page.next_after


def newest_first(records: Sequence[Record]) -> list[Record]:
    """Return what has history value, as history shows it."""
    return [record for record in reversed(records) if is_history(record.event)]
