"""What outlives the tail: the snapshot and the history, and how the tail becomes them, a slice at a time.

- Every slice is a transaction of its own, bounded in rows and bytes; between two of them the loop serves.
- A snapshot counts from the one write of `meta` on that names it, with the number of its parts and a checksum over all
  of them. Until then the one before it counts and every slice can be done over.
- A record is read from the tail or from the history: the tail begins after `upto`, the history ends there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from zlib import crc32

from holdfast.core.events import is_history, names_of
from holdfast.journal.base import (
    HistoryPage,
    HistoryQuery,
    JournalDamagedError,
    JournalTooNewError,
    JournalUnavailableError,
    Keeping,
    matches,
)
from holdfast.journal.codec import decode_batch, encode_batch, seal, unseal
from holdfast.journal.failpoints import failpoint
from holdfast.journal.shares import Shares

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from holdfast.core.events import Record
    from holdfast.journal.store import Row, Store

SLICE_ROWS = 128
"""How many rows one slice of a compaction touches: a few milliseconds of the loop."""
SLICE_BYTES = 256 * 1024
"""How many bytes one slice drops: large rows have many pages, and each is put on a list."""
SEARCH_BYTES = 1024 * 1024
"""How many bytes of the tail one slice of a search looks at."""
SEARCH_ROWS = 512
SEARCHED_BYTES_MAX = 16 * 1024 * 1024
"""How many bytes one search looks at before it answers with what it found and where to go on."""
DECODED_BYTES_MAX = 1024 * 1024
"""How many of them it makes records of: that costs most."""
NAMES_LEFT = "names_left_of"
"""The scalar that says which record is gone from the history and may have left names there; 0 if none."""
FOREVER = 2**62


class Archive:
    """The snapshot and the history of one store."""

    def __init__(self, store: Store, keeping: Keeping) -> None:
        self._store = store
        self._keeping = keeping
        self._shares = Shares(store)
        self.upto = store.meta("upto")
        """How far the snapshot that counts reaches."""
        self.pruned = store.meta("pruned")
        """Up to which number history was dropped."""

    def read_snapshot(self) -> list[bytes]:
        """Return the parts of the snapshot that counts; a missing or changed one means damage."""
        parts: list[bytes] = []
        checksum = 0
        for number, body in self._store.run("read_parts", (self.upto,)):
            if number != len(parts):
                raise self._store.damaged(f"part {len(parts)} of the snapshot is missing")
            try:
                parts.append(unseal(body))
            except JournalTooNewError:
                raise
            except JournalDamagedError as error:
                raise self._store.damaged(f"part {number} of the snapshot: {error}") from error
            checksum = crc32(body, checksum)
        if len(parts) != self._store.meta("parts") or checksum != self._store.meta("checksum"):
            raise self._store.damaged("the snapshot is not the one that was written")
        return parts

    # Compaction.

    async def compact(self, upto: int, snapshot: Iterable[bytes], wall_ms: int) -> None:
        """Write the snapshot, keep the history, let the snapshot count, drop what it stands for."""
        if upto > self.upto:
            self._refuse_unless_durable(upto)
            await self._drop_parts()
            failpoint("before_snapshot")
            parts, checksum = await self._write_parts(upto, snapshot)
            await self._keep_history(upto)
            failpoint("before_snapshot_counts")
            scalars = [("upto", upto), ("parts", parts), ("checksum", checksum)]
            self._store.slice(lambda: self._store.do("write_meta", scalars))
            self.upto = upto
            failpoint("after_snapshot_counts")
        await self._drop_batches()
        await self._drop_parts()
        await self._prune(wall_ms)

    async def fill(self, upto: int, snapshot: Iterable[bytes], history: Iterable[Sequence[Record]]) -> None:
        """Fill a store that is empty with what a backup holds: a snapshot, and records of before.

        `upto` may be far beyond the last of them. Readers who know a number up to there are told to look anew.
        """
        parts, checksum = await self._write_parts(upto, snapshot)
        for records in history:
            await self._keep(list(records), [(name, each.seq) for each in records for name in names_of(each.event)])
        scalars = [("upto", upto), ("parts", parts), ("checksum", checksum), ("pruned", upto)]
        self._store.slice(lambda: self._store.do("write_meta", scalars))
        self.upto = self.pruned = upto

    def _refuse_unless_durable(self, upto: int) -> None:
        last = next((last for (last,) in self._store.run("read_batch_end", (upto,))), 0)
        if last != upto:
            raise JournalUnavailableError(f"compact: no durable batch ends with record {upto}")

    async def _write_parts(self, upto: int, snapshot: Iterable[bytes]) -> tuple[int, int]:
        number = checksum = 0
        for part in snapshot:
            row = (upto, number, seal(part))
            self._store.slice(lambda row=row: self._store.do("write_part", [row]))  # type: ignore[misc]
            checksum = crc32(row[2], checksum)
            number += 1
            failpoint("mid_snapshot")
            await asyncio.sleep(0)
        return number, checksum

    async def _keep_history(self, upto: int) -> None:
        records: list[Record] = []
        names: list[Row] = []
        for looked_at, record in enumerate(self._tail_until(upto), 1):
            if is_history(record.event):
                records.append(record)
                names.extend((name, record.seq) for name in names_of(record.event))
            if len(records) + len(names) >= SLICE_ROWS:
                await self._keep(records, names)
                records, names = [], []
            elif looked_at % SLICE_ROWS == 0:
                await asyncio.sleep(0)
        await self._keep(records, names)

    async def _keep(self, records: list[Record], names: list[Row]) -> None:
        names = await self._all_but_one_slice(names)
        rows = [(record.seq, record.wall_ms, encode_batch([record])) for record in records]

        def write() -> None:
            self._store.do("write_history_name", names)
            for record, (_, _, body) in zip(records, rows, strict=True):
                self._shares.enter(record, body)
            new = self._store.do("write_history", rows)
            self._store.do("add_meta", [("history", new)])

        self._store.slice(write)
        await asyncio.sleep(0)

    async def _all_but_one_slice(self, names: list[Row]) -> list[Row]:
        """Keep names, and return what is left for the last slice: a session may end with thousands."""
        while len(names) > SLICE_ROWS:
            some, names = names[:SLICE_ROWS], names[SLICE_ROWS:]
            self._store.slice(lambda some=some: self._store.do("write_history_name", some))  # type: ignore[misc]
            await asyncio.sleep(0)
        return names

    def _tail_until(self, upto: int) -> Iterator[Record]:
        """Yield the records a snapshot will stand for; no statement stays open between two batches."""
        done = self.upto
        while batch := next(self._store.run("read_next_batch", (done, upto)), None):
            done, body = batch
            yield from decode_batch(body)

    async def _drop_batches(self) -> None:
        while rows := list(self._store.run("read_batch_sizes", (self.upto, SLICE_ROWS))):
            self._store.slice(lambda rows=rows: self._store.do("drop_batch", _first_rows(rows)))  # type: ignore[misc]
            failpoint("mid_prune")
            await asyncio.sleep(0)

    async def _drop_parts(self) -> None:
        """Drop every part of a snapshot that does not count, or no longer."""
        while rows := list(self._store.run("read_part_sizes", (self.upto, SLICE_ROWS))):
            self._store.slice(lambda rows=rows: self._store.do("drop_part", _first_rows(rows)))  # type: ignore[misc]
            await asyncio.sleep(0)

    async def _prune(self, wall_ms: int) -> None:
        """Drop what is too old; then, while there is too much, the eldest of whoever has left the most."""
        shares, keeping = self._shares, self._keeping
        await self._drop_names_left()
        while shares.has_uncounted():
            self._store.slice(lambda: shares.count_some(SLICE_ROWS))
            await asyncio.sleep(0)
        overdue_ms = wall_ms - keeping.wall_ms
        while rows := list(self._store.run("read_overdue_history", (overdue_ms, SLICE_ROWS))):
            await self._forget([seq for (seq,) in rows])
        while seqs := shares.too_many(self._store.meta("history") - keeping.records_max, SLICE_ROWS):
            await self._forget(seqs)
        while seqs := shares.too_large(keeping.bytes_max, SLICE_ROWS):
            await self._forget(seqs)

    async def _forget(self, seqs: list[int]) -> None:
        """Drop as many of these as fit into a slice, at least one.

        A record may have thousands of names. It goes with the first of them, so that none is ever there without some of
        its names, and the rest follows.
        """
        names: list[Row] = []
        for count, seq in enumerate(seqs, 1):
            names.extend((name, seq) for (name,) in self._store.run("read_history_names", (seq,)))
            if len(names) >= SLICE_ROWS:
                seqs = seqs[:count]
                break
        has_more = len(names) > SLICE_ROWS
        pruned = max(self.pruned, *seqs)
        rows = [(seq,) for seq in seqs]

        def drop() -> None:
            self._store.do("drop_history_name", names[:SLICE_ROWS])
            self._shares.drop(rows)
            gone = self._store.do("drop_history", rows)
            self._store.do("add_meta", [("history", -gone)])
            self._store.do("write_meta", [("pruned", pruned)])
            if has_more:
                # Of the last one: the others together have fewer names than a slice has rows.
                self._store.do("write_meta", [(NAMES_LEFT, seqs[-1])])

        self._store.slice(drop)
        self.pruned = pruned
        await asyncio.sleep(0)
        if has_more:
            await self._drop_names_left()

    async def _drop_names_left(self) -> None:
        """Drop the names of a record that is gone. A compaction that was cut short may have left some."""
        while seq := self._store.meta(NAMES_LEFT):
            names: list[Row] = [
                (name, seq) for (name,) in self._store.run("read_some_history_names", (seq, SLICE_ROWS))
            ]

            def drop(names: list[Row] = names) -> None:
                self._store.do("drop_history_name", names)
                if len(names) < SLICE_ROWS:
                    self._store.do("write_meta", [(NAMES_LEFT, 0)])

            self._store.slice(drop)
            await asyncio.sleep(0)

    # History.

    async def history(self, query: HistoryQuery) -> HistoryPage:
        """Search the tail, then the history, newest first. Numbers lead on, so a compaction meanwhile loses nothing."""
        spent = _Spent()
        found: list[Record] = []
        before = FOREVER if query.before_seq is None else query.before_seq
        for search in (self._search_tail, self._search_history):
            while True:
                records, reached = search(query, before, spent)
                found.extend(records)
                if len(found) >= query.limit:
                    return HistoryPage(found[: query.limit], found[query.limit - 1].seq)
                if reached == before:
                    break
                before = reached
                if spent.is_over:
                    return HistoryPage(found, before)
                await asyncio.sleep(0)
        return HistoryPage(found, None)

    def _search_tail(self, query: HistoryQuery, before: int, spent: _Spent) -> tuple[list[Record], int]:
        """Search a slice as bytes, and decode only what may match; return the number it reached down to."""
        found: list[Record] = []
        wanted = _texts_of(query)
        spent.begin_slice()
        for first, body in self._store.run("read_batches_backwards", (self.upto, before)):
            before = first
            is_decoded = all(text in body for text in wanted)
            if is_decoded:
                records = [record for record in decode_batch(body, wanted) if is_history(record.event)]
                found.extend(record for record in reversed(records) if matches(query, record))
            spent.add(len(body), is_decoded=is_decoded)
            if spent.ends_slice or len(found) >= query.limit:
                break
        return found, before

    def _search_history(self, query: HistoryQuery, before: int, spent: _Spent) -> tuple[list[Record], int]:
        """Search a slice; return the number it reached down to."""
        since = -FOREVER if query.since_wall_ms is None else query.since_wall_ms
        until = FOREVER if query.until_wall_ms is None else query.until_wall_ms
        if query.name is None:
            rows = self._store.run("read_history", (self.upto, before, SEARCH_ROWS))
        else:
            rows = self._store.run("read_history_of_name", (query.name, self.upto, before, SEARCH_ROWS))
        found: list[Record] = []
        wanted = _texts_of(query)
        spent.begin_slice()
        for seq, wall_ms, body in rows:
            before = seq
            is_decoded = since <= wall_ms <= until and all(text in body for text in wanted)
            if is_decoded:
                found.extend(record for record in decode_batch(body) if matches(query, record))
            spent.add(len(body), is_decoded=is_decoded)
            if spent.ends_slice or len(found) >= query.limit:
                break
        return found, before

    async def follow(self, after_seq: int, limit: int) -> Sequence[Record]:
        """Walk the history, then the tail, oldest first, a slice at a time.

        Numbers lead on, and each slice begins with the history, so a compaction between two of them loses nothing.
        """
        while True:
            found, reached = self._next_slice(after_seq, limit)
            if found or reached == after_seq:
                return found
            after_seq = reached
            await asyncio.sleep(0)

    def _next_slice(self, after_seq: int, limit: int) -> tuple[list[Record], int]:
        """Return what a slice holds, and the number it reached."""
        found: list[Record] = []
        looked_at = 0
        for seq, body in self._store.run("read_history_after", (after_seq, self.upto, limit)):
            found.extend(decode_batch(body))
            after_seq = seq
            looked_at += len(body)
            if looked_at >= SLICE_BYTES:
                break
        if found:
            return found, after_seq
        after_seq = max(after_seq, self.upto)
        while looked_at < SLICE_BYTES and len(found) < limit:
            batch = next(self._store.run("read_batch_after", (after_seq,)), None)
            if batch is None:
                break
            last, body = batch
            found.extend(record for record in decode_batch(body) if record.seq > after_seq and is_history(record.event))
            after_seq = last
            looked_at += len(body)
        return found[:limit], after_seq


def _texts_of(query: HistoryQuery) -> list[bytes]:
    """Return what must stand in the bytes of a record that is asked for: looking for it is cheaper than decoding."""
    return [text.encode() for text in (query.name, query.owner) if text is not None]


class _Spent:
    """What a search has cost: in all, and in this slice."""

    def __init__(self) -> None:
        self._searched = self._decoded = 0
        self._slice_searched_max = self._slice_decoded_max = 0

    def begin_slice(self) -> None:
        """Let a new slice begin."""
        self._slice_searched_max = self._searched + SEARCH_BYTES
        self._slice_decoded_max = self._decoded + SLICE_BYTES

    def add(self, size_bytes: int, *, is_decoded: bool) -> None:
        """Count what was looked at."""
        self._searched += size_bytes
        if is_decoded:
            self._decoded += size_bytes

    @property
    def ends_slice(self) -> bool:
        """Whether it is time for others."""
        return self._searched >= self._slice_searched_max or self._decoded >= self._slice_decoded_max

    @property
    def is_over(self) -> bool:
        """Whether the search has cost as much as it may."""
        return self._searched >= SEARCHED_BYTES_MAX or self._decoded >= DECODED_BYTES_MAX


def _first_rows(rows: list[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """Yield the keys of as many rows as a slice may drop, at least one. A row is a key and, last, its size in bytes."""
    size_bytes = 0
    for *key, row_bytes in rows:
        if size_bytes and size_bytes + row_bytes > SLICE_BYTES:
            return
        size_bytes += row_bytes
        yield tuple(key)
