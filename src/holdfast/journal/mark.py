"""The watermark: what a data directory knows of its journal, so that a lost or older one is not taken for new.

A journal cannot tell by itself that it is the wrong one. If its file is gone, a server would begin anew: fencing tokens
from 1 on, given a second time, unnoticed. So a small file says which journal it was and how far it had come. It is
written after the journal is durable, and never before: at every start, after every snapshot, at the end. So it may lag
behind and is never ahead, whenever the process ends.

Other files can be witnesses too: those that are only made after a journal. Removing the watermark says: this journal is
to count from now on.

**A directory that was moved** into a store that nodes share has a file that says where to. No server starts on it: two
would give out the same fencing tokens. The file is written before the store counts; moving again finds out whether it
does.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TypeVar

import msgspec

from holdfast.journal.base import JournalError, JournalLostError
from holdfast.privatefiles import NotOursError, read_ours, reason_of, replace, sync_folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

FILE = "journal.mark"
RESTORING = ".restoring"
"""A folder that a restore makes first, and removes last."""
MOVED = "journal.moved"
"""A file that a move leaves: the store counts now, and this directory does not."""
ARCHIVE = "archive.sqlite3"
"""It belongs to the journal, but only proves one if it has records (`sqlite.py`)."""
SIZE_BYTES_MAX = 4_096

T = TypeVar("T")

_TWICE = "fencing tokens that were given would be given a second time"
PUT_BACK = "Put the journal back, with its -wal, or restore a backup"
_STOP = "stop the workers, reset the fences that they write to"


class Mark(msgspec.Struct, frozen=True):
    """Which journal, and how far it has come."""

    identity: int
    """A number of its own; 0 for one that has none."""
    epoch: int
    last_seq: int


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """Where a directory was moved to."""

    to: str
    """The address of the store, without a password."""
    schema: str
    """The schema in it."""
    authority: str
    """The id of the authority that was made there."""
    is_done: bool
    """Whether the store is known to count. If not, the move was interrupted at its last step."""
    wall_ms: int


def write(directory: Path, mark: Mark) -> None:
    """Replace the watermark. A power cut may bring the old one back, which is true too. Raises `OSError`."""
    replace(directory / FILE, msgspec.json.encode(mark) + b"\n")


def check(journal: Path, found: Mark | None, witnesses: Sequence[str]) -> None:
    """Raise `JournalLostError` if the directory knows of more than was found in it; None is no journal, or no start."""
    _refuse_moved(journal.parent)
    path = journal.with_name(FILE)
    known = _decoded(path, Mark, f"If the journal beside it is the newest, remove {path} and start again")
    if found is None:
        if (journal.parent / RESTORING).exists():
            problem = f"{journal} is missing: a restore broke off there, and {RESTORING} is what it left"
            raise JournalLostError(problem, f"Remove all that is in {journal.parent}, and restore the backup again")
        names = [name for name in (*witnesses, FILE) if (journal.parent / name).exists()]
        if names:
            raise _lost(journal, known, names)
    elif known is not None:
        accept = f"If this journal is to count from now on: {_STOP}, remove {path} and start again"
        if known.identity not in {0, found.identity}:
            problem = f"{journal} is another journal than the one that was here, and {_TWICE}"
            raise JournalLostError(problem, "Put the right one back, with its -wal", accept)
        if found.epoch < known.epoch or found.last_seq < known.last_seq:
            back = f"{journal} has gone back in time: it ends with record {found.last_seq} of start {found.epoch}"
            problem = f"{back}, and it had come to record {known.last_seq} of start {known.epoch}; {_TWICE}"
            raise JournalLostError(problem, "Put the newest back, with its -wal", accept)


def leave_moved(directory: Path, moved: Moved) -> None:
    """Mark the directory as moved, durably. Raises `OSError`."""
    replace(directory / MOVED, msgspec.json.encode(moved) + b"\n")
    sync_folder(directory)


def take_moved(directory: Path) -> None:
    """Let the directory count again. Raises `OSError`."""
    (directory / MOVED).unlink(missing_ok=True)
    sync_folder(directory)


def moved_to(directory: Path) -> Moved | None:
    """Return where a directory was moved to, or was about to be. Raises `JournalError`."""
    return _decoded(directory / MOVED, Moved, "If the directory was never moved, remove it")


def _refuse_moved(directory: Path) -> None:
    moved = moved_to(directory)
    if moved is None:
        return
    count = f"If this directory is to count all the same: make sure that no node serves from there, {_STOP}, remove"
    count += f" {directory / MOVED} and start again"
    if moved.is_done:
        problem = f"{directory} was moved to {moved.to}, and counts no more: {_TWICE}"
        raise JournalLostError(problem, f"Start the server on it: holdfast serve --store {moved.to}", count)
    problem = f"a move of {directory} to {moved.to} was interrupted at its last step: nobody knows which of them counts"
    raise JournalLostError(problem, "Move it again: that finds out, and goes on from there", count)


def _decoded(path: Path, kind: type[T], way: str) -> T | None:
    try:
        return msgspec.json.decode(read_ours(path, SIZE_BYTES_MAX), type=kind)
    except FileNotFoundError:
        return None
    except NotOursError as error:
        raise JournalError(str(error)) from error
    except OSError as error:
        raise JournalError(f"{path} cannot be read: {reason_of(error)}") from error
    except msgspec.MsgspecError as error:
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
