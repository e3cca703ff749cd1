"""What is only remembered: the retry memory, and the names that nobody holds. How a record changes them.

A part of `evolve`, which alone calls it. `may_go` is asked by settling too, so that both mean the same names.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from holdfast.core.events import DoneFaded, Forgotten, SharesForgotten
from holdfast.core.values import EndedLease, EndedSession, SpentKey

if TYPE_CHECKING:
    from holdfast.core.state import State
    from holdfast.core.values import Memo, Remembered, Slot


def spend_key(state: State, principal: str, key: str, memo: Memo, at_ms: int, *, session: str | None = None) -> None:
    """Remember what a key made that nothing else remembers; it counts for a session if it was spent in one."""
    state.memos.put((principal, key), memo)
    remember(state, f"{principal} {key}", SpentKey(principal, key, at_ms, session))


def take_back_key(state: State, principal: str, key: str) -> None:
    """Let a key that was spent lead to something again: its request has its place back."""
    place = f"{principal} {key}"
    spent = state.remembered.pop(place, None)
    if spent is not None:
        state.index.forget(place, spent)


def remember(state: State, place: str, thing: Remembered) -> None:
    """Keep what is over in the retry memory, behind all that is there."""
    if place in state.remembered:
        state.index.forget(place, state.remembered.pop(place))
    state.remembered.put(place, thing)
    state.index.remember(place, thing)


def fade(state: State, name: str) -> None:
    """Let finished work be claimed again; the name keeps its place among the free ones."""
    slot = state.slots[name]
    if slot.done is not None:
        faded = replace(slot, done=None)
        state.slots.put(name, faded)
        state.index.fade(name, faded)


def forget_by(state: State, event: Forgotten | SharesForgotten | DoneFaded) -> None:
    """Let go what a record says is not remembered any more."""
    match event:
        case Forgotten():
            for place in list(islice(state.remembered, event.remembered)):
                _forget(state, place)
        case SharesForgotten():
            _shares_forgotten(state, event)
        case DoneFaded():
            for name in event.names:
                fade(state, name)


def _shares_forgotten(state: State, event: SharesForgotten) -> None:
    for principal, session, number in event.remembered:
        for place in list(islice(state.index.memory.account(principal, session).items, number)):
            _forget(state, place)
    for principal, session, looked_at in event.names:
        for name in list(islice(state.index.free.account(principal, session).items, looked_at)):
            slot = state.slots.pop(name)
            state.index.drop_free(name, slot)
            if not may_go(state, name, slot, state.now_ms):
                # Put behind, here and there, so that it is not looked at again before all others.
                state.slots.put(name, slot)
                state.index.add_free(name, slot)


def may_go(state: State, name: str, slot: Slot, now_ms: int) -> bool:
    """Tell whether a free name may be forgotten: nobody waits for it, it is open (I14) and not known as done (L5)."""
    is_open = slot.closed_until_ms <= now_ms and (slot.done is None or slot.done.until_ms <= now_ms)
    return is_open and name not in state.index.lines


def _forget(state: State, place: str) -> None:
    """Drop one entry of the retry memory, with the keys that lead to it."""
    thing = state.remembered.pop(place)
    state.index.forget(place, thing)
    match thing:
        case EndedLease(principal=principal, key=key, end=end, end_key=end_key):
            _forget_claim(state, principal, key)
            # It was ended by an operator's key, maybe.
            _forget_memos(state, principal if end.by is None else end.by, end_key)
        case EndedSession(principal=principal, key=key, end_key=end_key):
            _forget_memos(state, principal, key, end_key)
        case SpentKey(principal=principal, key=key):
            _forget_memos(state, principal, key)


def _forget_claim(state: State, principal: str, key: str | None) -> None:
    """Forget a key with the last of the leases it made: until then a retry must not make new ones (C5)."""
    memo = None if key is None else state.memos.get((principal, key))
    if key is None or memo is None:
        return
    if memo.leases > 1:
        # The ids would outlive what is remembered of them, and count for nobody.
        state.memos.put((principal, key), replace(memo, leases=memo.leases - 1, lease_ids=()))
    else:
        state.memos.pop((principal, key))


def _forget_memos(state: State, principal: str, *keys: str | None) -> None:
    for key in keys:
        if key is not None:
            state.memos.pop((principal, key), None)
