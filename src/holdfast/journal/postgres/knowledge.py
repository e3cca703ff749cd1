"""What this process knows of the store, over all its tenures: so a store that went back in time is found out (N-21).

A store can lose what it once had: a standby that lagged behind was promoted, a disk or a database was restored. Numbers
that were seen once cannot become smaller in any other way. After such a loss a record `Restored` lets tokens go on
beyond all that were given out, and the store counts these records (`jumps`): who meets a higher count learns anew.
"""

from __future__ import annotations

from holdfast.journal.base import JournalLostError

RESTORED = "If it was restored on purpose, run: holdfast store restored"
OTHER_STORE = "Check the setting `store`, or restart this node to serve what is there"


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

    def learn(self, *, authority: str, epoch: int, tenure: str, last_seq: int, jumps: int) -> str | None:
        """Take note of a seat that was seen. Return what was lost since the last time, if anything; it is not noted.

        Raises `JournalLostError` if it is another authority.
        """
        if self.authority is None:
            self.authority = authority
        if self.authority != authority:
            raise JournalLostError(
                f"the store has the authority {authority}, and it was {self.authority} before", OTHER_STORE
            )
        if jumps > self.jumps:
            self.jumps, self.epoch, self.tenure, self.last_seq = jumps, epoch, tenure, last_seq
            return None
        if jumps < self.jumps:
            return f"it knows of {jumps} losses, and {self.jumps} were known before"
        if last_seq < self.last_seq:
            return f"its last record is {last_seq}, and {self.last_seq} was durable"
        if epoch < self.epoch:
            return f"its tenure is {epoch}, and {self.epoch} was seen"
        if epoch == self.epoch and self.tenure not in {"", tenure}:
            return f"its tenure {epoch} is another than the one that was seen"
        self.epoch, self.tenure, self.last_seq = epoch, tenure, last_seq
        return None

    def none_is_there(self, where: str) -> JournalLostError:
        """Make the error for a store that has nothing any more."""
        return JournalLostError(f"{where} has no authority, and {self.authority} was there", OTHER_STORE)


def went_back(where: str, what: str) -> JournalLostError:
    """Make the error of a store that lost what it had."""
    return JournalLostError(f"{where} went back in time: {what}. Nothing is served", RESTORED)
