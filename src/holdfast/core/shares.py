"""Whose share it is: what is kept after its use, counted against whoever left it (C5).

The retry memory and the names that nobody holds have limits for all together. So that one user cannot flush what is
kept for another, each thing stands in an *account*: of a principal, and of a session if it was bound to one.

    Shares ─┬─ ana ─┬─ (plain)     a1 a2 a3 a4 a5       ana has 7, ben has 2. Over a limit ana gives first,
            │       └─ session 7   a6 a7                of ana's accounts the plain one, and there a1, the eldest.
            └─ ben ─── (plain)     b1 b2

Over a limit those who have most are lowered to one level, as water runs off (`spread`): whoever has no more than its
part of the limit gives nothing. First it runs off between the principals, then between the accounts of each.

Who has most is known without a search: a `Ranking` keeps everybody under the level that it has. Numbers are ranked
exactly, bytes to the nearest 4 KiB. All this is a function of what is durable, in the order of its dictionaries, so
that a restart builds the same.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.values import EndedLease, EndedSession

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.core.values import Done, Remembered, Slot

ENTRY_BYTES = 64
"""What each thing counts beside its texts."""
LEVEL_BITS = 12
LEVEL_BYTES = 1 << LEVEL_BITS
"""How exactly bytes are ranked."""


class Ranking(msgspec.Struct):
    """Who has how much: everybody stands under its level, and nobody under 0."""

    levels: dict[int, dict[str | None, None]] = msgspec.field(default_factory=dict)

    def move(self, who: str | None, old: int, new: int) -> None:
        """Let somebody change its level."""
        levels = self.levels
        those = None
        if old:
            those = levels[old]
            if len(those) == 1:
                del levels[old]
            else:
                del those[who]
                those = None
        if new:
            level = levels.get(new)
            if level is not None:
                level[who] = None
            else:
                # Whoever stands alone takes its level along.
                levels[new] = {who: None} if those is None else those


class Account(msgspec.Struct):
    """The things of one principal, or of one of its sessions, eldest first. Of finished names only the order counts."""

    items: dict[str, None] = msgspec.field(default_factory=dict)
    number: int = 0
    weight: int = 0


class Purse(msgspec.Struct):
    """The accounts of one principal: its plain one, under None, and those of its sessions."""

    accounts: dict[str | None, Account] = msgspec.field(default_factory=dict)
    number: int = 0
    weight: int = 0
    by_number: Ranking = msgspec.field(default_factory=Ranking)
    by_weight: Ranking = msgspec.field(default_factory=Ranking)


NOTHING = Account()
EMPTY_PURSE = Purse()


class Shares(msgspec.Struct):
    """Everything of one kind that is kept, by whose it is."""

    purses: dict[str, Purse] = msgspec.field(default_factory=dict)
    number: int = 0
    weight: int = 0
    by_number: Ranking = msgspec.field(default_factory=Ranking)
    by_weight: Ranking = msgspec.field(default_factory=Ranking)

    def enter(self, principal: str, session: str | None, item: str) -> None:
        """Put a thing behind all others of its account. It counts for nothing yet."""
        purse = self.purses.get(principal)
        if purse is None:
            purse = self.purses[principal] = Purse()
        account = purse.accounts.get(session)
        if account is None:
            account = purse.accounts[session] = Account()
        account.items[item] = None

    def leave(self, principal: str, session: str | None, item: str) -> None:
        """Take a thing out that counts for nothing any more, and with the last one the account."""
        purse = self.purses[principal]
        items = purse.accounts[session].items
        del items[item]
        if not items:
            del purse.accounts[session]
            if not purse.accounts:
                del self.purses[principal]

    def count(self, principal: str, session: str | None, by: int, weight: int) -> None:
        """Let an account have so many more, or fewer, with this weight in bytes."""
        purse = self.purses[principal]
        _rank(purse, session, purse.accounts[session], by, weight)
        _rank(self, principal, purse, by, weight)
        self.number += by
        self.weight += weight

    def purse(self, principal: str) -> Purse:
        """Return the accounts of a principal; none if it has nothing."""
        return self.purses.get(principal, EMPTY_PURSE)

    def account(self, principal: str, session: str | None) -> Account:
        """Return an account; an empty one if it has nothing."""
        purse = self.purses.get(principal)
        return NOTHING if purse is None else purse.accounts.get(session, NOTHING)


def _rank(above: Purse | Shares, who: str | None, member: Account | Purse, by: int, weight: int) -> None:
    number, before = member.number, member.weight
    above.by_number.move(who, number, number + by)
    member.number = number + by
    member.weight = after = before + weight
    # Looked at first, because it is seldom so: the level in bytes changes.
    if before >> LEVEL_BITS != after >> LEVEL_BITS or not before or not after:
        above.by_weight.move(who, _level(before), _level(after))


def _level(weight: int) -> int:
    return (weight >> LEVEL_BITS) + 1 if weight else 0


def spread(ranking: Ranking, wanted: int, floor: int) -> Iterator[tuple[str | None, int]]:
    """Yield who gives how many levels, so that `wanted` are given in all and those who have most give first.

    Everybody above the water gives, and all of them end at one level, never below `floor`. There are few levels,
    however many stand under them: to fill n levels with somebody takes n²/2 things.
    """
    levels = sorted((level for level in ranking.levels if level > floor), reverse=True)
    those: list[tuple[str | None, int]] = []
    water, rest, given = floor, 0, 0
    for level, below in zip(levels, [*levels[1:], floor], strict=False):
        # Each gives one level at least, so no more than that many are ever asked.
        those.extend((who, level) for who in islice(ranking.levels[level], wanted - len(those)))
        more = (level - below) * len(those)
        if given + more >= wanted:
            each, rest = divmod(wanted - given, len(those))
            water = level - each
            break
        given += more
    for place, (who, had) in enumerate(those):
        if gives := had - water + (place < rest):
            yield who, gives


def givers(shares: Shares, limit: int, most: int, *, in_bytes: bool) -> Iterator[tuple[str, str | None, int]]:
    """Yield whose eldest go, since there are more than `limit`: principal, session, how many or how many bytes.

    A little more goes than must, from those who are over their share: taking the first of a long dictionary one by one
    is slow. At most `most` are told to go, or as many levels of bytes.
    """
    unit = LEVEL_BYTES if in_bytes else 1
    over = (shares.weight if in_bytes else shares.number) - limit
    wanted = min(-(-over // unit) + min(limit // 100 // unit, most // 2), most)
    ranking = shares.by_weight if in_bytes else shares.by_number
    for who, gives in spread(ranking, wanted, limit // len(shares.purses) // unit):
        principal = str(who)
        purse = shares.purses[principal]
        keeps = (purse.weight if in_bytes else purse.number) - gives * unit
        inside = purse.by_weight if in_bytes else purse.by_number
        for session, part in spread(inside, gives, max(0, keeps) // len(purse.accounts) // unit):
            yield principal, session, part * unit


def half_of(limit: int) -> int:
    """Return what one session may use of its principal's limit: half of it, so that no run can spend its siblings'."""
    return (limit + 1) // 2


def exceeded(limit: int, wanted: int, of_principal: int, of_session: int | None) -> int | None:
    """Return the limit that so many more would pass, or None.

    A principal may have `limit`, and each of its sessions half of that. `of_session` is None for what is bound to none.
    """
    if of_principal + wanted > limit:
        return limit
    if of_session is not None and of_session + wanted > half_of(limit):
        return half_of(limit)
    return None


# What things weigh: their texts, one byte for a character of ASCII and four for any other, as they may be in memory.


def weight_of_text(*texts: str | None) -> int:
    """Return the bytes that texts take at most."""
    weight = 0
    for text in texts:
        if text is not None:
            weight += len(text) if text.isascii() else 4 * len(text)
    return weight


def weight_of_name(name: str, slot: Slot) -> int:
    """Return what a name that nobody holds counts."""
    end = slot.last_end
    if end is None:
        return ENTRY_BYTES + weight_of_text(name)
    return ENTRY_BYTES + weight_of_text(name, end.owner, end.note, end.reason)


def weight_of_done(name: str, done: Done) -> int:
    """Return what a name that is remembered as done counts."""
    return ENTRY_BYTES + weight_of_text(name, done.owner, done.result)


def weight_of_remembered(place: str, thing: Remembered) -> int:
    """Return what an entry of the retry memory counts."""
    if isinstance(thing, EndedLease):
        end = thing.end
        return ENTRY_BYTES + weight_of_text(
            place, thing.name, end.owner, end.note, end.reason, thing.key, thing.end_key
        )
    if isinstance(thing, EndedSession):
        return ENTRY_BYTES + weight_of_text(place, thing.key, thing.end_key)
    return ENTRY_BYTES + weight_of_text(place, thing.key)


# Whose things are.


def account_of_name(slot: Slot) -> tuple[str, str | None]:
    """Return who left a name. Records of format 2 do not say it: then it is whoever released it, or nobody."""
    if slot.left_by is not None:
        return slot.left_by, slot.left_in
    end = slot.last_end
    return (end.by, None) if end is not None and end.how == "released" and end.by is not None else ("", None)


def account_of_remembered(thing: Remembered) -> tuple[str, str | None]:
    """Return who left an entry of the retry memory."""
    if isinstance(thing, EndedLease):
        return thing.principal, thing.session if thing.bound else None
    if isinstance(thing, EndedSession):
        return thing.principal, None
    return thing.principal, thing.session
