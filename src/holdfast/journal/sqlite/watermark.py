"""Watermark file: detects a missing or rolled-back journal.

Without its journal a server would start with an empty one, and issue fencing tokens from 1 on a second time. So a small
file has the journal's identity and how far it had come. It is written at every start, after every archive step and at
the end, always after the journal is durable: so it may lag, and is never ahead. Other files that are only created after
a journal can be witnesses too. An operator who removes the watermark accepts the journal as it is.

**A directory that was moved** into a shared store has a file with its address. No server starts on it: two would issue
the same fencing tokens. The file is written before the store is valid; moving again finds out whether it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from holdfast.journal.interface import JournalError, JournalLostError
from holdfast.privatefiles import NotOursError, read_ours, reason_of, replace, sync_folder

FILE = "journal.mark"
RESTORING = ".restoring"  # A folder that a restore creates first and removes last.
MOVED = "journal.moved"  # A move leaves this file: now the store counts instead.
ARCHIVE = "archive.sqlite3"  # It only proves a journal if it has records (`journal.py`).
SIZE_BYTES_MAX = 4_096

T = TypeVar("T")

_TWICE = "fencing tokens that were given would be given a second time"
PUT_BACK = "Put the journal back, with its -wal, or restore a backup"
_STOP = "stop the workers, reset the fences that they write to"


class Watermark(msgspec.Struct, frozen=True):
    """A journal's identity (0: it has none), and how far it has come."""

    identity: int
    epoch: int
    last_seq: int


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    to: str  # The address of the store, without a password.
    schema: str
    authority: str  # The id of the authority that the move created.
    is_done: bool  # False while unknown: the move was interrupted at its last step.
    wall_ms: int


def write(directory: Path, watermark: Watermark) -> None:
    """Replace the watermark. It needs no sync: the old one stays true. Raises `OSError`."""
    replace(directory / FILE, msgspec.json.encode(watermark) + b"\n")


def check(journal: Path, found: Watermark | None, witnesses: Sequence[str]) -> None:
    """Raise `JournalLostError` if the directory had more than was found (None: no journal, or no start)."""
    _refuse_moved(journal.parent)
    path = journal.with_name(FILE)
    known = _decoded(path, Watermark, f"If the journal beside it is the newest, remove {path} and start again")
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


def write_moved(directory: Path, moved: Moved) -> None:
    """Mark the directory as moved, durably. Raises `OSError`."""
    replace(directory / MOVED, msgspec.json.encode(moved) + b"\n")
    sync_folder(directory)


def remove_moved(directory: Path) -> None:
    """Undo `write_moved`. Raises `OSError`."""
    (directory / MOVED).unlink(missing_ok=True)
    sync_folder(directory)


def read_moved(directory: Path) -> Moved | None:
    """Return where a directory was, or is being, moved to. Raises `JournalError`."""
    return _decoded(directory / MOVED, Moved, "If the directory was never moved, remove it")


def _refuse_moved(directory: Path) -> None:
    moved = read_moved(directory)
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


def _lost(journal: Path, known: Watermark | None, names: Sequence[str]) -> JournalLostError:
    state = "is missing"
    with contextlib.suppress(OSError):
        state = f"has {journal.stat().st_size} bytes and no record"
    there = f"{' and '.join(names)} {'are' if len(names) > 1 else 'is'} there"
    least = "" if known is None else f" (up to record {known.last_seq}, at least)"
    moved = " and ".join((*names, ARCHIVE) if journal.with_name(ARCHIVE).exists() else names)
    return JournalLostError(
        f"{journal} {state}, but {there}: this directory had a journal{least}. If the server began anew, {_TWICE}",
        PUT_BACK,
        start_over_remedy(moved),
    )


def start_over_remedy(files: str) -> str:
    """Return the remedy for a journal that is lost for good."""
    return (
        f"If it is lost for good: {_STOP}, move {files} out of the directory and start again. All is new then:"
        " fencing tokens begin at 1, and no lease, session or token of before is known"
    )
