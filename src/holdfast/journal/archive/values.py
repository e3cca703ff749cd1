"""The state in the archive: a row for each value, in the order of its table. Nobody here looks into a value.

Each row has a checksum over its table, its key and its value. How many rows there are, and the sum of their checksums,
is kept beside them: so a start that reads every row knows that it has read what was written, and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

import apsw

from holdfast.journal.archive.file import places_of
from holdfast.journal.base import HEAD, Values

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.journal.base import Changes
    from holdfast.journal.store import Store

READ_ROWS = 1_024
HEAD_NUMBER = 0


def checksum_of(number: int, key: bytes, value: bytes) -> int:
    """Return the checksum of a row."""
    return crc32(value, crc32(key, number))


class StateRows:
    """Changes the rows, inside a transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._numbers: dict[str, int] = {name: number for number, name in store.some("read_tables")}
        self._last_places: dict[int, int] = {}
        self._rows = store.meta("state_rows")
        self._sum = store.meta("state_sum")

    def change(self, changes: Changes) -> None:
        """Put some changes in place. What does not fit what is there is damage, and refused."""
        number = self._number_of(changes.table)
        self._drop(number, changes.gone)
        self._change(number, changes.changed)
        self._add(number, changes.new)

    def set_head(self, head: bytes) -> None:
        """Set the one value that changes each time."""
        number = self._number_of(HEAD)
        row = (HEAD.encode(), head)
        if self._place_of(number, row[0]) is None:
            self._add(number, [row])
        else:
            self._change(number, [row])

    def write_totals(self) -> None:
        """Write how many rows there are, and the sum of their checksums."""
        self._store.do("write_meta", [("state_rows", self._rows), ("state_sum", self._sum)])

    def _drop(self, number: int, keys: Sequence[bytes]) -> None:
        places = [self._place_or_refuse(number, key) for key in keys]
        self._store.do("drop_value", [(place,) for place, _ in places])
        self._rows -= len(places)
        self._sum -= sum(checksum for _, checksum in places)

    def _change(self, number: int, rows: Sequence[tuple[bytes, bytes]]) -> None:
        changed = []
        for key, value in rows:
            place, before = self._place_or_refuse(number, key)
            checksum = checksum_of(number, key, value)
            changed.append((value, checksum, place))
            self._sum += checksum - before
        self._store.do("change_value", changed)

    def _add(self, number: int, rows: Sequence[tuple[bytes, bytes]]) -> None:
        place = self._last_place_of(number)
        added = []
        for key, value in rows:
            place += 1
            checksum = checksum_of(number, key, value)
            added.append((place, number, key, value, checksum))
            self._sum += checksum
        try:
            self._store.do("write_value", added)
        except apsw.ConstraintError as error:
            raise self._store.damaged(f"a value that is new to the table {self._name_of(number)} is there") from error
        self._last_places[number] = place
        self._rows += len(added)

    def _place_of(self, number: int, key: bytes) -> tuple[int, int] | None:
        return self._store.one("read_place", (number, key))

    def _place_or_refuse(self, number: int, key: bytes) -> tuple[int, int]:
        found = self._place_of(number, key)
        if found is None:
            raise self._store.damaged(f"a value of the table {self._name_of(number)} that changed is not there")
        return found

    def _last_place_of(self, number: int) -> int:
        if number not in self._last_places:
            first, behind = places_of(number)
            found = self._store.one("read_last_place", (first, behind))
            self._last_places[number] = first if found is None or found[0] is None else found[0]
        return self._last_places[number]

    def _number_of(self, table: str) -> int:
        number = self._numbers.get(table)
        if number is None:
            number = HEAD_NUMBER if table == HEAD else max(self._numbers.values(), default=HEAD_NUMBER) + 1
            self._store.do("write_table", [(number, table)])
            self._numbers[table] = number
        return number

    def _name_of(self, number: int) -> str:
        return next((name for name, each in self._numbers.items() if each == number), "")


def read_values(store: Store) -> Iterator[Values]:
    """Yield all values, some of a table at a time, the head first. Raises for rows that are not those written."""
    count = total = 0
    for number, table in store.some("read_tables"):
        place, behind = places_of(number)
        while rows := store.some("read_state_after", (place, behind, READ_ROWS)):
            place = rows[-1][0]
            try:
                checksums = [crc32(value, crc32(key, number)) for _, key, value, _ in rows]
            except TypeError:
                checksums = []
            if checksums != [row[3] for row in rows]:
                raise store.damaged(f"a value of the table {table} is not the one that was written")
            count += len(rows)
            total += sum(checksums)
            yield Values(table, [(key, value) for _, key, value, _ in rows])
    if (count, total) != (store.meta("state_rows"), store.meta("state_sum")):
        raise store.damaged("the values are not those that were written")
