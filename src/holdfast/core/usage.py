"""Fair-share eviction of retained state: everything kept after its use is charged to whoever left it (C5).

Each entry is in an *account*: of a principal, and of a session if it was bound to one. Over a limit, the largest
accounts are cut down to one level (`water_fill`), first between the principals, then between the accounts of each. The
oldest entries go first; a principal within its part of the limit loses nothing. An eviction checks every principal but
frees many entries, so it is rare, and adding and removing costs a few sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TypeVar

import msgspec

from holdfast.core.values import Done, EndedLease, EndedSession, LastEnd, Remembered, Slot, UsedKey

K = TypeVar("K", str, str | None)

ENTRY_BYTES = 256  # weight of an entry without its texts: about what its objects take


class Account(msgspec.Struct):
    """The entries of one principal, or of one of its sessions."""

    items: dict[str, int] = msgspec.field(default_factory=dict)  # oldest first; weight 0 only keeps a position
    weight: int = 0


class PrincipalUsage(msgspec.Struct):
    accounts: dict[str | None, Account] = msgspec.field(default_factory=dict)
    weight: int = 0


EMPTY_ACCOUNT = Account()
EMPTY_USAGE = PrincipalUsage()


class UsageLedger(msgspec.Struct):
    principals: dict[str, PrincipalUsage] = msgspec.field(default_factory=dict)
    weight: int = 0

    def put(self, principal: str, session: str | None, item: str, weight: int) -> None:
        if (usage := self.principals.get(principal)) is None:
            usage = self.principals[principal] = PrincipalUsage()
        if (account := usage.accounts.get(session)) is None:
            account = usage.accounts[session] = Account()
        account.items[item] = weight
        account.weight += weight
        usage.weight += weight
        self.weight += weight

    def take(self, principal: str, session: str | None, item: str) -> None:
        usage = self.principals[principal]
        account = usage.accounts[session]
        weight = account.items.pop(item)
        account.weight -= weight
        usage.weight -= weight
        self.weight -= weight
        if not account.items:
            del usage.accounts[session]
            if not usage.accounts:
                del self.principals[principal]

    def principal_usage(self, principal: str) -> PrincipalUsage:
        return self.principals.get(principal, EMPTY_USAGE)

    def account(self, principal: str, session: str | None) -> Account:
        usage = self.principals.get(principal)
        return EMPTY_ACCOUNT if usage is None else usage.accounts.get(session, EMPTY_ACCOUNT)


def _by_weight(members: Mapping[K, Account | PrincipalUsage]) -> dict[int, list[K]]:
    levels: dict[int, list[K]] = {}
    for who, member in members.items():
        if member.weight:
            levels.setdefault(member.weight, []).append(who)
    return levels


def water_fill(levels: Mapping[int, list[K]], wanted: int, floor: int) -> Iterator[tuple[K, int]]:
    """Yield who gives how much, `wanted` in all: accounts are cut down to one fill level, never below `floor`."""
    above: list[int] = sorted((level for level in levels if level > floor), reverse=True)
    those: list[tuple[K, int]] = []
    fill_level, rest, given = floor, 0, 0
    for level, below in zip(above, [*above[1:], floor], strict=False):
        # Each gives at least one, so no more than `wanted` of them are asked.
        those.extend((who, level) for who in islice(levels[level], wanted - len(those)))
        more = (level - below) * len(those)
        if given + more >= wanted:
            each, rest = divmod(wanted - given, len(those))
            fill_level = level - each
            break
        given += more
    for entry_id, (who, had) in enumerate(those):
        if amount := had - fill_level + (entry_id < rest):
            yield who, amount


def planned_evictions(ledger: UsageLedger, limit: int) -> Iterator[tuple[str, str | None, int]]:
    """Yield whose oldest go when there is more than `limit`: principal, session, weight."""
    # A little more than necessary: removing the first of a long dictionary one by one is slow.
    wanted = ledger.weight - limit + limit // 100
    for principal, amount in water_fill(_by_weight(ledger.principals), wanted, limit // len(ledger.principals)):
        usage = ledger.principals[principal]
        floor = max(0, usage.weight - amount) // len(usage.accounts)
        for session, part in water_fill(_by_weight(usage.accounts), amount, floor):
            yield principal, session, part


def half_of(limit: int) -> int:
    """Return what one session may use of its principal's limit."""
    return (limit + 1) // 2


def exceeded(limit: int, wanted: int, of_principal: int, of_session: int | None) -> int | None:
    """Return the limit that so many more would exceed, or None. `of_session` is None for what is not bound to one."""
    if of_principal + wanted > limit:
        return limit
    if of_session is not None and of_session + wanted > half_of(limit):
        return half_of(limit)
    return None


def quota_message(what: str, *, of_session: bool) -> str:
    return f"This session may {what}, half of what its token may" if of_session else f"This access token may {what}"


# What things weigh: their texts, one byte for a character of ASCII and four for any other, as they may be in memory.


def _size_of(text: str) -> int:
    return len(text) if text.isascii() else 4 * len(text)


def weight_of_name(name: str, slot: Slot) -> int:
    weight = ENTRY_BYTES + _size_of(name)
    return weight if slot.last_end is None else weight + _weight_of_end(slot.last_end)


def _weight_of_end(end: LastEnd) -> int:
    weight = 0 if end.owner is None else _size_of(end.owner)
    if end.note is not None:
        weight += _size_of(end.note)
    if end.reason is not None:
        weight += _size_of(end.reason)
    if end.whose is not None:
        weight += _size_of(end.whose)
    return weight


def weight_of_done(name: str, done: Done) -> int:
    return ENTRY_BYTES + _size_of(name) + _size_of(done.owner or "") + _size_of(done.result or "")


def weight_of_remembered(entry_id: str, entry: Remembered) -> int:
    """Return the weight of an entry of the retry memory. Ids and keys are ASCII. Each key has a memo of its own."""
    weight = ENTRY_BYTES + len(entry_id)
    if entry.key is not None:
        weight += ENTRY_BYTES + len(entry.key)
    # Leases first, since most are: a failed isinstance is slower.
    if isinstance(entry, EndedLease):
        weight += _size_of(entry.name) + _weight_of_end(entry.end)
    elif isinstance(entry, UsedKey):
        return weight
    return weight if entry.end_key is None else weight + ENTRY_BYTES + len(entry.end_key)


# Whose things are.


def account_of_name(slot: Slot) -> tuple[str, str | None]:
    return slot.left_by or "", slot.left_in


def account_of_remembered(entry: Remembered) -> tuple[str, str | None]:
    if isinstance(entry, EndedLease):
        return entry.principal, entry.session if entry.bound else None
    if isinstance(entry, EndedSession):
        return entry.principal, None
    return entry.principal, entry.session
