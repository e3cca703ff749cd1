"""Tables that note what changed in them, so that archiving costs what changed and not what there is.

A table is a dictionary. Beside its rows it has three notes of what became of them since the last `take`:

    gone      keys that were there, and were taken out
    changed   keys that were there and stayed, with their values now
    new       keys that came, with their values, in the order in which they stand behind all others

A dictionary keeps its order: a value that is set again keeps its place, and one that is taken out and put in again
comes behind all others. So what was there comes first and in its order, without the gone; then comes all that is new.

`put` and `pop` write the notes, and nothing else may change a table. Methods that would go round them raise, and the
type checker refuses `table[key] = value`. That one is not refused at run time: a `__setitem__` of our own would double
what each change costs, and every claim makes several. `load` goes round the notes on purpose: what it puts in is
archived already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Never, NoReturn, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")

MUST_BE_THERE: Any = object()

_pop = dict.pop


class Notes(Generic[K, V]):
    """What became of the rows of a table within some time."""

    __slots__ = ("changed", "gone", "new")

    def __init__(self, gone: dict[K, None], changed: dict[K, V], new: dict[K, V]) -> None:
        self.gone = gone
        self.changed = changed
        self.new = new

    def __len__(self) -> int:
        return len(self.gone) + len(self.changed) + len(self.new)

    def add(self, later: Notes[K, V]) -> Iterator[None]:
        """Add what became of the rows afterwards, so that these are the notes of both times. One step for each note."""
        gone, changed, new = self.gone, self.changed, self.new
        for key in later.gone:
            if key in new:
                # It came within this time. If it was there before as well, it is among the gone.
                del new[key]
            else:
                changed.pop(key, None)
                gone[key] = None
            yield
        for key, value in later.changed.items():
            (new if key in new else changed)[key] = value
            yield
        for key, value in later.new.items():
            new[key] = value
            yield

    def let_go(self) -> Iterator[None]:
        """Forget everything, one note at each step: what nobody else has is freed by it, and that takes time."""
        for notes in (self.gone, self.changed, self.new):
            while notes:
                notes.popitem()
                yield


class Kept(dict[K, V]):
    """A dictionary that notes what changed since the last `take`."""

    __slots__ = ("changed", "gone", "new")

    def __init__(self) -> None:
        """Begin empty."""
        self.gone: dict[K, None] = {}
        self.changed: dict[K, V] = {}
        self.new: dict[K, V] = {}

    def load(self, rows: Mapping[K, V]) -> None:
        """Put in rows that are archived."""
        super().update(rows)

    def take(self) -> Notes[K, V]:
        """Return what became of the rows since the last time, and begin anew. It takes no longer for more of them."""
        notes = Notes(self.gone, self.changed, self.new)
        self.gone, self.changed, self.new = {}, {}, {}
        return notes

    def put(self, key: K, value: V) -> None:
        """Set a value. One that was there keeps its place."""
        if key in self and key not in self.new:
            self.changed[key] = value
        else:
            self.new[key] = value
        self[key] = value  # type: ignore[index, assignment] # Nobody else may.

    def pop(self, key: K, default: Any = MUST_BE_THERE) -> Any:  # noqa: ANN401 - as a dictionary's
        """Take a row out, and return its value."""
        if key in self.new:
            del self.new[key]
        elif key in self:
            self.changed.pop(key, None)
            self.gone[key] = None
        elif default is not MUST_BE_THERE:
            return default
        return _pop(self, key)

    if TYPE_CHECKING:

        def __setitem__(self, key: Never, value: Never) -> NoReturn: ...  # type: ignore[override]
        def __delitem__(self, key: Never) -> NoReturn: ...  # type: ignore[override]

    def _goes_round(self, *_: object, **__: object) -> NoReturn:
        """Refuse: what it changed would be noted nowhere."""
        raise TypeError("a table of the state is changed one row at a time, so that each change is noted")

    update = setdefault = popitem = clear = __ior__ = _goes_round
