"""What a server must promise us. It is asked back after connecting: what was set may have been passed over (N-24)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from holdfast.journal.base import JournalUnavailableError

if TYPE_CHECKING:
    from holdfast.journal.postgres.driver import Line

ASK_SECONDS = 3.0
SERVER_VERSION_MIN = 130000
DIRECTLY = "Connect to PostgreSQL directly, not through a pooler: it drops what our sessions set"

log = logging.getLogger("holdfast.journal")


class Marks(msgspec.Struct, frozen=True):
    """By what a store is known that was put in the place of another (N-22): each of these then differs."""

    system_id: int
    """Of the cluster: another one was made by initdb."""
    timeline: int
    """Rises when a standby is promoted, and after a restore to a point in time."""
    database_oid: int
    table_oid: int
    """Of the seat: a restore into the same cluster makes it anew. 0: there is none yet."""


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A server, as one session saw it."""

    marks: Marks
    started: str
    """When it was started, as it writes it: two sessions with the same marks and this are at one server."""
    has_standby: bool
    """Whether a commit waits for a synchronous standby."""
    is_pooled: bool
    """Whether something between us and it moves statements between sessions."""
    version: int
    settings: dict[str, str]
    """What was asked back."""

    def is_same(self, other: Server) -> bool:
        """Tell whether two sessions are at one running server."""
        return (self.marks.system_id, self.marks.timeline, self.started) == (
            other.marks.system_id,
            other.marks.timeline,
            other.started,
        )


async def ask(line: Line, seat: str) -> Server:
    """Ask a server what it is. Raises `JournalUnavailableError` for one that does not promise enough."""
    rows = await line.ask("ask_server", seat, seconds=ASK_SECONDS)
    pids = {line.pid, int(rows[0]["pid"])}
    row = dict((await line.ask("ask_server", seat, seconds=ASK_SECONDS))[0])
    settings = {name: str(row[name]) for name in WANTED}
    refuse_if_weak(line.where, settings, version=int(row["version"]), is_standby=bool(row["is_standby"]))
    is_pooled = len({*pids, int(row["pid"])}) > 1
    if is_pooled:
        log.warning("%s is behind a pooler: nothing is promised. %s", line.where, DIRECTLY)
    return Server(
        marks=Marks(row["system_id"], row["timeline"], row["database_oid"], row["table_oid"]),
        started=row["started"],
        has_standby=bool(row["synchronous_standby_names"]),
        is_pooled=is_pooled,
        version=row["version"],
        settings=settings,
    )


ON_THE_SERVER = "Set it to on in postgresql.conf"
WANTED: dict[str, tuple[frozenset[str], str]] = {
    "synchronous_commit": (frozenset({"on", "remote_apply"}), DIRECTLY),
    "fsync": (frozenset({"on"}), ON_THE_SERVER),
    "full_page_writes": (frozenset({"on"}), ON_THE_SERVER),
    "default_transaction_isolation": (frozenset({"read committed"}), DIRECTLY),
    "statement_timeout": (frozenset({"0"}), DIRECTLY),
    "lock_timeout": (frozenset({"0"}), DIRECTLY),
    "idle_in_transaction_session_timeout": (frozenset({"2s"}), DIRECTLY),
}
"""What each setting must be, and what to do if it is not."""


def refuse_if_weak(where: str, settings: dict[str, str], *, version: int, is_standby: bool) -> None:
    """Raise if an answer of this server could be one that it forgets."""
    if is_standby:
        raise JournalUnavailableError(f"PostgreSQL at {where} is a standby: it takes no writes")
    if version < SERVER_VERSION_MIN:
        least = SERVER_VERSION_MIN // 10000
        raise JournalUnavailableError(
            f"PostgreSQL at {where} is version {version // 10000}; {least} or newer is needed"
        )
    for name, (wanted, way) in WANTED.items():
        if settings[name] not in wanted:
            raise JournalUnavailableError(
                f"PostgreSQL at {where} has {name} = {settings[name]!r}, and Holdfast needs {min(wanted)!r}", way
            )
