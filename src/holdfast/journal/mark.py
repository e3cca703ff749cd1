"""The mark: what a data directory knows of its journal, so that one that is lost or went back is not taken for new.

A journal cannot tell by itself that it is the wrong one. If its file is gone, a server would begin anew: fencing tokens
from 1 on, given a second time, and nobody told. So a small file beside it says which journal it was and how far it had
come. It is written after the journal is durable, and never before: at every start, after every snapshot, at the end.
So it may lag behind and is never ahead, whenever the process ends.

Other files can be witnesses too: those that are made only after a journal. Directories of releases without a mark have
those, and get their mark at the next start. To remove the mark says: this journal is to count from now on.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import msgspec

from holdfast.journal.base import JournalError, JournalLostError
from holdfast.privatefiles import NotOursError, read_ours, reason_of, replace

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FILE = "journal.mark"
RESTORING = ".restoring"
"""A folder that a restore makes before all else, and removes when all is done."""
ARCHIVE = "archive.sqlite3"
"""What goes with the journal. It tells of one by itself only if it stands for records (`tail/opening.py`)."""
SIZE_BYTES_MAX = 4_096

_TWICE = "fencing tokens that were given would be given a second time"
PUT_BACK = "Put the journal back, with its -wal, or restore a backup"
_STOP = "stop the workers, reset the fences that they write to"


class Mark(msgspec.Struct, frozen=True):
    """Which journal, and how far it has come."""

    identity: int
    """A number of its own; 0 for one that has none: of an earlier release."""
    epoch: int
    last_seq: int


def write(directory: Path, mark: Mark) -> None:
    """Leave the mark, as a whole. A power cut may bring the one before back: that one is true too. Raises `OSError`."""
    replace(directory / FILE, msgspec.json.encode(mark) + b"\n")


def check(journal: Path, found: Mark | None, witnesses: Sequence[str]) -> None:
    """Raise `JournalLostError` if the directory knows of more than was found in it; None is no journal, or no start.

    `witnesses` are names of files that are only there after a journal.
    """
    known = _read(journal.parent)
    if found is None:
        if (journal.parent / RESTORING).exists():
            problem = f"{journal} is missing: a restore broke off there, and {RESTORING} is what it left"
            raise JournalLostError(problem, f"Remove all that is in {journal.parent}, and restore the backup again")
        names = [name for name in (*witnesses, FILE) if (journal.parent / name).exists()]
        if names:
            raise _lost(journal, known, names)
    elif known is not None:
        _compare(journal, known, found)


def _read(directory: Path) -> Mark | None:
    path = directory / FILE
    try:
        return msgspec.json.decode(read_ours(path, SIZE_BYTES_MAX), type=Mark)
    except FileNotFoundError:
        return None
    except NotOursError as error:
        raise JournalError(str(error)) from error
    except OSError as error:
        raise JournalError(f"{path} cannot be read: {reason_of(error)}") from error
    except msgspec.MsgspecError as error:
        way = f"If the journal beside it is the newest, remove {path} and start again"
        raise JournalError(f"{path} is damaged: {error}", way) from error


def _lost(journal: Path, known: Mark | None, names: Sequence[str]) -> JournalLostError:
    state = "is missing"
    with contextlib.suppress(OSError):
        state = f"has {journal.stat().st_size} bytes and no record"
    there = f"{' and '.join(names)} {'are' if len(names) > 1 else 'is'} there"
    least = "" if known is None else f" (up to record {known.last_seq}, at least)"
    moved = " and ".join((*names, ARCHIVE) if journal.with_name(ARCHIVE).exists() else names)
    return JournalLostError(
        f"{journal} {state}, but {there}: this directory had a journal{least}. If the server began anew, {_TWICE}",
        PUT_BACK,
        all_is_new(moved),
    )


def all_is_new(files: str) -> str:
    """Return how to begin anew where a journal is lost for good."""
    return (
        f"If it is lost for good: {_STOP}, move {files} out of the directory and start again. All is new then:"
        " fencing tokens begin at 1, and no lease, session or token of before is known"
    )


def _compare(journal: Path, known: Mark, found: Mark) -> None:
    accept = f"If this journal is to count from now on: {_STOP}, remove {journal.with_name(FILE)} and start again"
    if known.identity not in {0, found.identity}:
        problem = f"{journal} is another journal than the one that was here, and {_TWICE}"
        raise JournalLostError(problem, "Put the right one back, with its -wal", accept)
    if found.epoch < known.epoch or found.last_seq < known.last_seq:
        problem = (
            f"{journal} has gone back in time: it ends with record {found.last_seq} of start {found.epoch}, and it had"
            f" come to record {known.last_seq} of start {known.epoch}; {_TWICE}"
        )
        raise JournalLostError(problem, "Put the newest back, with its -wal", accept)
