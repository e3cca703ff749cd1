"""Leadership of a store: reads the row that says who leads, and acquires it. One write makes a leader.

The write that takes the leadership (N-2) names what was seen. Records are read only after it has returned, on the
connection that took it: no other node can add one any more, and durable ones are visible, because a takeover waits for
transactions that hold the row, and for replicas.

**A store that went back in time** is recognised by what this process knows of it (`RollbackDetector`, N-21): a number
becomes smaller only if a lagging standby was promoted, or a disk or database restored. After such a loss a record
`Restored` raises tokens beyond all that were given out. The store counts these records (column `jumps`): a node that
meets a higher count forgets what it knew.

The first node that finds no tables makes them, in one transaction (N-6). A secret that only the nodes have seals the
authority's key: a tag, which is an HMAC of the key, and the key XORed with an HMAC of the tag. So the same key is
stored the same way each time, and a wrong secret or a changed byte is detected.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

from holdfast.journal.codec import FORMAT
from holdfast.journal.interface import (
    JournalDamagedError,
    JournalError,
    JournalLockedError,
    JournalLostError,
    JournalTooNewError,
    JournalUnavailableError,
    Leadership,
)
from holdfast.journal.postgres.connection import RefusedError, identity_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.journal.interface import Peer
    from holdfast.journal.postgres.connection import PgClient, PgConnection, Row, Server, ServerIdentity, Servers

log = logging.getLogger("holdfast.journal")

RESTORED = "If it was restored on purpose, run: holdfast store restored"
OTHER_STORE = "Check the setting `store`, or restart this node to serve what is there"


class RollbackDetector(msgspec.Struct, eq=False):
    """The highest numbers that were seen of a store, shared by all journals of a process."""

    authority: str | None = None
    epoch: int = 0
    term_id: str = ""
    last_seq: int = 0
    token_gaps: int = 0

    def observe(self, seen: RollbackDetector, known: RollbackDetector) -> str | None:
        """Note a leadership that was read. Return what the store lost, if anything; then it is not noted.

        `known` is what was known before the read: a write may have been answered meanwhile. Raises `JournalLostError`
        if it is another authority.
        """
        if self.authority is None:
            self.authority = seen.authority
        if self.authority != seen.authority:
            raise JournalLostError(
                f"the store has the authority {seen.authority}, and it was {self.authority} before", OTHER_STORE
            )
        loss = _lost(seen, known)
        if loss is None and (seen.token_gaps, seen.epoch, seen.last_seq) >= (
            self.token_gaps,
            self.epoch,
            self.last_seq,
        ):
            self.token_gaps, self.epoch, self.term_id, self.last_seq = (
                seen.token_gaps,
                seen.epoch,
                seen.term_id,
                seen.last_seq,
            )
        return loss


def _lost(seen: RollbackDetector, known: RollbackDetector) -> str | None:
    if seen.token_gaps > known.token_gaps:
        return None
    if seen.token_gaps < known.token_gaps:
        return f"its tokens jumped {seen.token_gaps} times, and {known.token_gaps} were known before"
    if seen.last_seq < known.last_seq:
        return f"its last record is {seen.last_seq}, and {known.last_seq} was durable"
    if seen.epoch < known.epoch:
        return f"its tenure is {seen.epoch}, and {known.epoch} was seen"
    if seen.epoch == known.epoch and known.term_id not in {"", seen.term_id}:
        return f"its tenure {seen.epoch} is another than the one that was seen"
    return None


def rollback_error(where: str, what: str) -> JournalLostError:
    return JournalLostError(f"{where} went back in time: {what}. Nothing is served", RESTORED)


KEY_BYTES = 32
PLAIN, SEALED = b"\x00", b"\x01"


def seal(key: bytes, secret: bytes | None) -> bytes:
    if len(key) != KEY_BYTES:
        raise ValueError(f"the authority's key has {len(key)} bytes instead of {KEY_BYTES}")
    if secret is None:
        return PLAIN + key
    tag = _mac(secret, b"tag", key)
    return SEALED + tag + _xor(key, _mac(secret, b"key", tag))


def unseal(stored: bytes, secret: bytes | None) -> bytes:
    """Return the key. Raises `JournalError` for a secret that is missing, not needed, or another."""
    kind, rest = stored[:1], stored[1:]
    if kind == PLAIN and len(rest) == KEY_BYTES:
        if secret is not None:
            raise JournalError(
                "the authority's key in the store is not sealed, and store_secret_file is set",
                "Leave store_secret_file out: a key is sealed when its store is made, and only then",
            )
        return rest
    if kind != SEALED or len(rest) != 2 * KEY_BYTES:
        raise JournalError("the authority's key in the store is not one that this version knows")
    if secret is None:
        raise JournalError("the authority's key in the store is sealed", "Set store_secret_file, as on the other nodes")
    tag, hidden = rest[:KEY_BYTES], rest[KEY_BYTES:]
    key = _xor(hidden, _mac(secret, b"key", tag))
    if not hmac.compare_digest(tag, _mac(secret, b"tag", key)):
        raise JournalError(
            "the authority's key in the store was sealed with another secret",
            "Use the store_secret_file of the other nodes",
        )
    return key


def _mac(secret: bytes, purpose: bytes, data: bytes) -> bytes:
    return hmac.digest(secret, b"holdfast " + purpose + b" " + data, "sha256")


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


SCHEMA_VERSION = 1
NOT_THERE = frozenset({"42P01", "3F000"})  # PostgreSQL's errors if the table, or its schema, does not exist.
CREATE_SECONDS = 30.0
UPGRADE = "Start that version"


class NewAuthority(msgspec.Struct, frozen=True):
    authority: str
    key: bytes
    wall_ms: int


async def create(client: PgClient, schema: str, new_authority: NewAuthority, secret: bytes | None) -> None:
    """Make schema, tables, leadership, authority and key in one transaction; nothing if another node was first."""
    connection = await client.exclusive()
    try:
        async with asyncio.timeout(CREATE_SECONDS):
            await connection.ask("begin", seconds=None)
            await connection.ask("lock_creation", seconds=None)
            if not (await connection.ask("has_leadership", schema, seconds=None))[0][0]:
                await create_tables(connection, schema, new_authority, secret, client.server.identity)
            await connection.ask("commit", seconds=None)
    except BaseException:
        # Closing the connection ends the transaction.
        client.drop()
        raise


async def create_tables(
    connection: PgConnection, schema: str, new_authority: NewAuthority, secret: bytes | None, identity: ServerIdentity
) -> None:
    if not (await connection.ask("has_schema", schema, seconds=None))[0][0]:
        await connection.ask("create_schema", seconds=None)
    await connection.script("create")
    await connection.script("create_archive")
    authority = (new_authority.authority, seal(new_authority.key, secret), new_authority.wall_ms, SCHEMA_VERSION)
    await connection.ask("write_authority", *authority, seconds=None)
    identity_values = (identity.system_id, identity.timeline, identity.database_oid, f"{schema}.seat")
    await connection.ask("create_leadership", new_authority.authority, FORMAT, *identity_values, seconds=None)


async def read_leadership(client: PgClient, where: str) -> Row | None:
    """Return the leadership's row; None if there are no tables. Raises if it is incomplete, or not for this version."""
    try:
        row = await client.one("read_leadership")
    except RefusedError as error:
        if error.sqlstate in NOT_THERE:
            return None
        raise
    if row is None:
        raise JournalDamagedError(f"{where}: there are tables, and no seat or no authority in them")
    version = row["schema_version"]
    if version != SCHEMA_VERSION:
        raise JournalTooNewError(
            f"{where} has tables of version {version}, and this version of Holdfast knows {SCHEMA_VERSION}", UPGRADE
        )
    if row["made_as"] != row["authority"]:
        raise JournalDamagedError(f"{where}: the seat is of another authority than the key")
    if row["format"] > FORMAT:
        raise JournalTooNewError(
            f"{where} has records of format {row['format']}, and this version of Holdfast reads up to {FORMAT}", UPGRADE
        )
    return row


def leadership_of(row: Row, *, is_rolled_back: bool = False) -> Leadership:
    fields = {name: row[name] for name in Leadership.__struct_fields__ if name not in {"is_held", "is_rolled_back"}}
    return Leadership(**fields, is_held=row["held"], is_rolled_back=is_rolled_back)


BLOCKED_SECONDS = 1.0  # After so long a takeover ends the sessions that block it (N-3).
NO_HEARTBEAT = -1  # A heartbeat that no leadership has, so a held leadership is not taken.


class WriterTerm(msgspec.Struct, eq=False):
    """One leader term: what every fenced statement names, and how far it is durable."""

    term_id: str
    epoch: int = 0
    last_seq: int = 0
    now_ms: int = 0  # The leadership's time when it was taken, or confirmed last.
    needs_token_gap: bool = False  # Whether the next batch begins with `Restored`, and brings this server's identity.
    token_gap_reason: str = ""  # For people, where no record need be lost.

    def end(self) -> None:
        """Change the name, for the next term of this journal if there is one: no two have the same."""
        self.term_id = sha256(self.term_id.encode()).hexdigest()[: len(self.term_id)]


class LeadershipTable(msgspec.Struct, eq=False):
    servers: Servers
    client: PgClient
    rollback_detector: RollbackDetector
    allow_data_loss: bool  # Go on after a data loss, with a jump of the tokens (N-23).
    new_authority: NewAuthority | None  # For making an authority where there is none; None: none is made.
    secret: bytes | None

    __repr__ = object.__repr__  # Without the secret.

    async def read(self) -> Leadership:
        row, loss = await self._read_allowed()
        return leadership_of(row, is_rolled_back=loss is not None)

    async def acquire(
        self, seen: Leadership | None, me: Peer, term: WriterTerm, wall_ms: int, seconds: float
    ) -> tuple[PgConnection, Server, bool]:
        """Take the leadership: if it is free, or as it was seen. Raises `JournalLockedError` if another node has it.

        Returns the connection that took it, its server, and whether the leadership was held.
        """
        row, loss = await self._read_allowed()
        is_lost = loss is not None
        rollback_detector, allow_data_loss = (
            self.rollback_detector,
            self.allow_data_loss or (is_lost and row["wants_jump"]),
        )
        epoch, before, heartbeat = (row["epoch"], row["tenure"], NO_HEARTBEAT)
        if seen is not None:
            epoch, before, heartbeat = seen.epoch, seen.term_id, seen.heartbeat
        connection, server = await self.servers.connect()
        self.servers.must_be = server
        values = (
            *(epoch, before, term.term_id, heartbeat),
            *(me.node, me.process, me.url, me.version, wall_ms, FORMAT),
            *(row["authority"], allow_data_loss, rollback_detector.last_seq, *msgspec.structs.astuple(server.identity)),
        )
        try:
            rows = await self._acquire(connection, values, seconds)
            if not rows:
                raise self._why_not(*await self._read_and_observe(), epoch, before, server.identity)
        except BaseException:
            connection.drop()
            self.servers.must_be = None
            raise
        found = rows[0]
        term.epoch, term.last_seq, term.now_ms = found["epoch"], found["last_seq"], found["now_ms"]
        term.needs_token_gap = found["needs_token_gap"] or is_lost
        term.token_gap_reason = "" if is_lost else _token_gap_reason(row, server.identity)
        rollback_detector.epoch, rollback_detector.term_id, rollback_detector.last_seq = (
            term.epoch,
            term.term_id,
            term.last_seq,
        )
        rollback_detector.token_gaps = found["jumps"]
        return connection, server, found["was_held"]

    async def _acquire(self, connection: PgConnection, values: Sequence[object], seconds: float) -> Sequence[Row]:
        task = asyncio.create_task(connection.ask("acquire_leadership", *values, seconds=seconds))
        try:
            while not task.done():
                await asyncio.wait((task,), timeout=BLOCKED_SECONDS)
                if not task.done():
                    await self._end_blockers(connection.pid)
            return task.result()
        finally:
            if not task.done():
                # It closes the socket without sending anything.
                task.cancel()

    async def _end_blockers(self, pid: int) -> None:
        try:
            for blocker, is_ended in await self.client.rows("end_blockers", pid, seconds=BLOCKED_SECONDS):
                log.warning("a session that kept the seat was %s: %d", "ended" if is_ended else "not ended", blocker)
        except JournalUnavailableError as error:
            log.warning("who keeps the seat cannot be ended: %s", error)

    async def _read_allowed(self) -> tuple[Row, str | None]:
        """Return the leadership's row, and what was lost if this node may go on nevertheless."""
        row, loss = await self._read_and_observe()
        if loss and not (self.allow_data_loss or row["wants_jump"]):
            raise rollback_error(self._where, loss)
        return row, loss

    async def _read_and_observe(self) -> tuple[Row, str | None]:
        """Return the leadership's row, and what was lost. Anything learned after the read began is ignored."""
        known = msgspec.structs.replace(self.rollback_detector)
        row = await self._read()
        seen = RollbackDetector(row["authority"], row["epoch"], row["tenure"], row["last_seq"], row["jumps"])
        return row, self.rollback_detector.observe(seen, known)

    async def _read(self) -> Row:
        row = await read_leadership(self.client, self._where)
        if row is not None:
            return row
        if self.rollback_detector.authority is not None:
            problem = f"{self._where} has no authority, and {self.rollback_detector.authority} was there"
            raise JournalLostError(problem, OTHER_STORE)
        if self.new_authority is None:
            raise JournalUnavailableError(
                f"{self._where} has no store of Holdfast", "Run: holdfast store init, or start a node with it"
            )
        await create(self.client, self.servers.schema, self.new_authority, self.secret)
        # The identity of the leadership's own table are read on the next connection.
        self.client.drop()
        row = await read_leadership(self.client, self._where)
        if row is None:
            raise JournalUnavailableError(f"{self._where} has no store of Holdfast any more")
        is_ours = row["authority"] == self.new_authority.authority
        whose = "it was made now" if is_ours else "another node made it at the same time"
        log.warning("%s had no store of Holdfast: %s, as authority %s", self._where, whose, row["authority"])
        return row

    def _why_not(self, row: Row, loss: str | None, epoch: int, term_id: str, identity: ServerIdentity) -> JournalError:
        now = leadership_of(row)
        if (now.epoch, now.term_id) == (epoch, term_id):
            if loss is not None:
                return rollback_error(self._where, loss)
            if identity_of(row) != identity:
                return rollback_error(
                    self._where,
                    "it is on another server or timeline, or was restored, and records that were answered may be gone",
                )
            if not now.is_held:
                return JournalLockedError(
                    f"open: a node that is still there cannot read format {FORMAT}, which this one would write",
                    "Upgrade every node first",
                )
        return JournalLockedError(f"open: {now.node or 'another node'} has the seat (epoch {now.epoch})")

    @property
    def _where(self) -> str:
        return f"the schema {self.servers.schema} at {self.servers.where}"


def _token_gap_reason(row: Row, identity: ServerIdentity) -> str:
    if row["wants_jump"]:
        return "an operator said that the store was restored from a backup"
    before = identity_of(row)
    is_same_store = msgspec.structs.replace(before, timeline=identity.timeline) == identity
    if row["has_standby"] and before.timeline != identity.timeline and is_same_store:
        return (
            f"the store was promoted (timeline {before.timeline} to {identity.timeline}): tokens jump in case something"
            " was lost; if it was the synchronous standby that its last record waited for, nothing was"
        )
    return ""
