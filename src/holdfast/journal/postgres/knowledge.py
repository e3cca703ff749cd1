"""What this process knows of the store, over all its tenures: so a store that went back in time is found out (N-21).

A store can lose what it once had: a standby that lagged behind was promoted, a disk or a database was restored. Numbers
that were seen once cannot become smaller in any other way. After such a loss a record `Restored` lets tokens go on
beyond all that were given out, and the store counts these records (`jumps`): who meets a higher count learns anew.
"""

from __future__ import annotations

from typing import NamedTuple

from holdfast.journal.base import JournalLostError

RESTORED = "If it was restored on purpose, run: holdfast store restored"
OTHER_STORE = "Check the setting `store`, or restart this node to serve what is there"


class Noted(NamedTuple):
    """A seat, as far as a loss can be told from it."""

    jumps: int
    epoch: int
    tenure: str
    last_seq: int


class Knowledge:
    """The highest that was seen. One for a process: each journal of it is given the same."""

    def __init__(self) -> None:
        self.authority: str | None = None
        self.epoch = 0
        self.tenure = ""
        self.last_seq = 0
        """A record that was durable."""
        self.jumps = 0
        """How often tokens jumped, as of the last look."""

    def noted(self) -> Noted:
        """Return what is known by now: for whoever asks the store, and compares the answer with what was known then."""
        return Noted(self.jumps, self.epoch, self.tenure, self.last_seq)

    def learn(self, authority: str, seen: Noted, noted: Noted) -> str | None:
        """Take note of a seat that was seen. Return what was lost since the last time, if anything; it is not noted.

        `noted` is what was known before the store was asked: it may have shown the seat before a write that was
        answered first. Raises `JournalLostError` if it is another authority.
        """
        if self.authority is None:
            self.authority = authority
        if self.authority != authority:
            raise JournalLostError(
                f"the store has the authority {authority}, and it was {self.authority} before", OTHER_STORE
            )
        loss = _lost(seen, noted)
        if loss is None and (seen.jumps, seen.epoch, seen.last_seq) >= (self.jumps, self.epoch, self.last_seq):
            self.jumps, self.epoch, self.tenure, self.last_seq = seen
        return loss

    def none_is_there(self, where: str) -> JournalLostError:
        """Make the error for a store that has nothing any more."""
        return JournalLostError(f"{where} has no authority, and {self.authority} was there", OTHER_STORE)


def _lost(seen: Noted, noted: Noted) -> str | None:
    if seen.jumps > noted.jumps:
        return None
    if seen.jumps < noted.jumps:
        return f"its tokens jumped {seen.jumps} times, and {noted.jumps} were known before"
    if seen.last_seq < noted.last_seq:
        return f"its last record is {seen.last_seq}, and {noted.last_seq} was durable"
    if seen.epoch < noted.epoch:
        return f"its tenure is {seen.epoch}, and {noted.epoch} was seen"
    if seen.epoch == noted.epoch and noted.tenure not in {"", seen.tenure}:
        return f"its tenure {seen.epoch} is another than the one that was seen"
    return None


def went_back(where: str, what: str) -> JournalLostError:
    """Make the error of a store that lost what it had."""
    return JournalLostError(f"{where} went back in time: {what}. Nothing is served", RESTORED)
