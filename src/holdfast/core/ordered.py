"""The held names in order, for listings by prefix. A claim pays next to nothing for it: the order is made when needed.

Claims outnumber listings by far, so what comes and goes is only noted. A listing puts the noted names in order before
it walks, some at a time, and the caller lets others have their turn in between. How long that takes depends on what
changed since the last listing, not on how many names there are: the order is a list of short sorted lists, so that a
name goes in or out by moving a few hundred others.

    _blocks   [[a, b, d], [f, g], [m, …]]      each sorted, and all of one before all of the next
    _lasts    [d, g, …]                        the last name of each block, to find the block of a name

Python compares strings by code point, which is the byte order of UTF-8.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK_NAMES = 512
"""How many names a block has, about: twice as many are split, and small neighbours are joined."""
LAST_CODE_POINT = 0x10FFFF


class OrderedNames:
    """A set of names that can be walked in order from any place."""

    def __init__(self) -> None:
        self._blocks: list[list[str]] = []
        self._lasts: list[str] = []
        self._in_blocks = 0
        self._fresh: set[str] = set()
        """Names that are in the set and in no block yet."""
        self._removed: set[str] = set()
        """Names that stand in a block and are no longer in the set."""

    def __len__(self) -> int:
        return self._in_blocks - len(self._removed) + len(self._fresh)

    def add(self, name: str) -> None:
        """Put in a name that is not there."""
        if name in self._removed:
            self._removed.discard(name)
        else:
            self._fresh.add(name)

    def remove(self, name: str) -> None:
        """Take out a name that is there."""
        if name in self._fresh:
            self._fresh.discard(name)
        else:
            self._removed.add(name)

    def build(self, order: list[str]) -> None:
        """Fill an empty set at once, with names in any order. Only for the start, when nobody waits: it sorts them."""
        order.sort()
        self._blocks = [order[place : place + BLOCK_NAMES] for place in range(0, len(order), BLOCK_NAMES)]
        self._lasts = [block[-1] for block in self._blocks]
        self._in_blocks = len(order)

    # The order.

    @property
    def unordered(self) -> int:
        """How many names came and went since the order was last made."""
        return len(self._fresh) + len(self._removed)

    def put_in_order(self, names_max: int) -> None:
        """Put some of what came and went where it belongs: at most so many names."""
        for _ in range(min(names_max, len(self._removed))):
            self._take_out(self._removed.pop())
            names_max -= 1
        for _ in range(min(names_max, len(self._fresh))):
            self._put_in(self._fresh.pop())
        # A set that was emptied keeps its room, and looking for the next to pop would take longer and longer.
        if not self._removed:
            self._removed = set()
        if not self._fresh:
            self._fresh = set()

    def walk(self, prefix: str = "", after: str = "") -> Iterator[str]:
        """Yield the names that start with `prefix` and come after `after`, in order. Not to be kept across changes.

        What is not in order yet is put there first: a caller that may not take long has done so before.
        """
        self.put_in_order(self.unordered)
        # The first place of the prefix, or the first after `after`, whichever is later.
        if after >= prefix and after:
            start, find = after, bisect_right
        else:
            start, find = prefix, bisect_left
        first = find(self._lasts, start)
        for number in range(first, len(self._blocks)):
            block = self._blocks[number]
            for place in range(find(block, start) if number == first else 0, len(block)):
                name = block[place]
                if not name.startswith(prefix):
                    return
                yield name

    def count(self, prefix: str) -> int:
        """Return how many names start with `prefix`: by place, without looking at them."""
        if not prefix:
            return len(self)
        self.put_in_order(self.unordered)
        end = _behind(prefix)
        return (self._in_blocks if end is None else self._place_of(end)) - self._place_of(prefix)

    def _place_of(self, name: str) -> int:
        """Return how many names in the blocks come before this one."""
        number = bisect_left(self._lasts, name)
        if number == len(self._blocks):
            return self._in_blocks
        return sum(map(len, self._blocks[:number])) + bisect_left(self._blocks[number], name)

    def _put_in(self, name: str) -> None:
        self._in_blocks += 1
        if not self._blocks:
            self._blocks.append([name])
            self._lasts.append(name)
            return
        number = min(bisect_left(self._lasts, name), len(self._blocks) - 1)
        block = self._blocks[number]
        insort(block, name)
        self._lasts[number] = block[-1]
        if len(block) >= 2 * BLOCK_NAMES:
            self._blocks.insert(number + 1, block[BLOCK_NAMES:])
            del block[BLOCK_NAMES:]
            self._lasts.insert(number, block[-1])

    def _take_out(self, name: str) -> None:
        self._in_blocks -= 1
        number = bisect_left(self._lasts, name)
        block = self._blocks[number]
        del block[bisect_left(block, name)]
        if block:
            self._lasts[number] = block[-1]
        else:
            del self._blocks[number], self._lasts[number]
        if len(block) < BLOCK_NAMES // 4:
            # Else a crowd that came and went would leave a crowd of small blocks.
            self._join(number - 1)
            self._join(number)

    def _join(self, number: int) -> None:
        """Join a block and the next if the two are small."""
        if 0 <= number < len(self._blocks) - 1:
            block, behind = self._blocks[number], self._blocks[number + 1]
            if len(block) + len(behind) <= BLOCK_NAMES:
                block.extend(behind)
                del self._blocks[number + 1], self._lasts[number]


def _behind(prefix: str) -> str | None:
    """Return what comes right behind all names with a prefix; None if nothing can."""
    for place in range(len(prefix) - 1, -1, -1):
        if ord(prefix[place]) < LAST_CODE_POINT:
            return prefix[:place] + chr(ord(prefix[place]) + 1)
    return None
