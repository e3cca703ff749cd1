"""The statements of the seat on a real PostgreSQL, held against the store of the model: old copies, in any order.

The model in `tests/cluster/model` assumes which statements succeed and which match no row; ours must agree. N-2 adds
that a takeover names the term and the heartbeat that it saw.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from holdfast.journal.codec import FORMAT
from holdfast.journal.postgres.connection import PgConnection, Server, Servers
from tests.cluster.journals import connected, journal_at
from tests.cluster.model.world import Record, Rules, Statement, Store, carry_out
from tests.support import proof
from tests.support.postgres import new_schema, shared_url

STATEMENTS = proof.count("nodes: statements beside the model")
SECONDS_MAX = 10.0


class SeenRow(NamedTuple):
    """The seat, as somebody saw it at some time."""

    epoch: int
    term: int
    last_seq: int
    heartbeat: int


def term_id_of(number: int) -> str:
    return f"{number:032x}" if number else ""


class StoreAndModel:
    """The real store, and the model's, which are told the same."""

    def __init__(self, line: PgConnection, server: Server, authority: str, chance: random.Random) -> None:
        self._connection = line
        self._server = server
        self._authority = authority
        self._chance = chance
        self._store = Store(0, 0, 0, ())
        self._heartbeat = 0
        self._is_held = False
        self._terms = 0
        self._past = [self._now()]
        self.done: list[str] = []

    def _now(self) -> SeenRow:
        return SeenRow(self._store.epoch, self._store.term, len(self._store.log), self._heartbeat)

    async def step(self) -> str | None:
        """Send one statement that knows the seat as it is, or as it once was. A complaint, if they differ."""
        seen = self._chance.choice([self._now(), *self._past[-4:], self._chance.choice(self._past)])
        kind = self._chance.choice(["take", "append", "append", "append", "confirm", "vacate"])
        before = self._now()
        match kind:
            case "take":
                found, wanted = await self._take(seen)
            case "append":
                found, wanted = await self._append(seen)
            case "confirm":
                found, wanted = await self._confirm(seen)
            case _:
                found, wanted = await self._vacate(seen)
        self.done.append(f"{kind} as of {seen}, while it is {before}: {found}")
        self._past.append(self._now())
        return None if found == wanted else f"{self.done[-1]}; the model says {wanted}"

    async def _take(self, seen: SeenRow) -> tuple[int | None, int | None]:
        self._terms += 1
        values = (
            *(seen.epoch, term_id_of(seen.term), term_id_of(self._terms), seen.heartbeat),
            *("node", "process", "http://node", "test", 0, FORMAT),
            *(self._authority, False, 0, *msgspec.structs.astuple(self._server.identity)),
        )
        rows = await self._connection.ask("acquire_leadership", *values, seconds=SECONDS_MAX)
        wanted = None
        if seen.term == self._store.term and (not self._is_held or seen.heartbeat == self._heartbeat):
            it = Statement("take", 0, is_received=True, epoch=seen.epoch, term=self._terms)
            self._store, wanted = carry_out(self._store, it, Rules())
            self._moved(wanted, is_held=True)
        return (int(rows[0]["last_seq"]) if rows else None), wanted

    async def _append(self, seen: SeenRow) -> tuple[int | None, int | None]:
        count = self._chance.choice([1, 1, 3])
        first, last = seen.last_seq + 1, seen.last_seq + count
        values = (seen.epoch, first, last, b"body", term_id_of(seen.term), last)
        rows = await self._connection.ask("append", *values, seconds=SECONDS_MAX)
        batch = tuple(Record("noted", 0, last, seen.epoch) for _ in range(count))
        it = Statement("append", 0, True, seen.epoch, seen.term, first, batch, last)
        self._store, wanted = carry_out(self._store, it, Rules())
        self._moved(wanted)
        return (int(rows[0][0]) if rows else None), wanted

    async def _confirm(self, seen: SeenRow) -> tuple[int | None, int | None]:
        values = (seen.epoch, term_id_of(seen.term), seen.heartbeat, False)
        rows = await self._connection.ask("confirm", *values, seconds=SECONDS_MAX)
        it = Statement("confirm", 0, True, seen.epoch, seen.term, now=seen.heartbeat)
        self._store, wanted = carry_out(self._store, it, Rules())
        self._moved(wanted)
        return (int(rows[0][0]) if rows else None), wanted

    async def _vacate(self, seen: SeenRow) -> tuple[int | None, int | None]:
        """Give the seat back, by the tenure alone."""
        rows = await self._connection.ask("vacate", term_id_of(seen.term), seconds=SECONDS_MAX)
        wanted = seen.epoch if self._is_held and seen.term == self._store.term else None
        self._moved(wanted, is_held=False)
        return (int(rows[0][0]) if rows else None), wanted

    def _moved(self, result: int | None, *, is_held: bool | None = None) -> None:
        """Every write under the seat makes its beat rise."""
        if result is not None:
            self._heartbeat += 1
            self._is_held = self._is_held if is_held is None else is_held

    async def at_the_end(self) -> tuple[object, ...]:
        """The seat as the model has it."""
        return self._store.epoch, term_id_of(self._store.term), len(self._store.log), self._heartbeat, self._store.now


async def walk(seed: int, statements: int) -> list[str]:
    """Send so many; complaints."""
    url, schema = shared_url(), new_schema()
    journal = journal_at(url, schema, "reader")
    authority = (await journal.read_leadership()).authority
    line, server = await Servers(url, schema, "test").connect()
    both = StoreAndModel(line, server, authority, random.Random(seed))
    complaints = [complaint for _ in range(statements) if (complaint := await both.step())]
    async with connected(url) as db:
        row = await db.fetchrow(f"SELECT epoch, tenure, last_seq, beat, now_ms FROM {schema}.seat")
    if tuple(row) != await both.at_the_end():
        complaints.append(f"the seat is {tuple(row)}, and the model has {await both.at_the_end()}")
    await line.close()
    await journal.close()
    done = sum(not text.endswith("None") for text in both.done)
    assert statements / 10 < done < statements, f"{done} of {statements} were done: that proves nothing"
    return complaints


def test_statements_do_what_the_model_says(record_property: Callable[[str, object], None]) -> None:
    """I9, N-1 to N-3: whatever a statement knows of the seat, it is done or finds no row just as in the model."""
    seed = random.SystemRandom().getrandbits(32)
    complaints = asyncio.run(walk(seed, STATEMENTS))
    assert not complaints, f"seed {seed}: {complaints[:3]}"
    record_property("count: statements held against the model", STATEMENTS)
