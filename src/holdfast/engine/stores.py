"""What commands do with a store that nodes share, without a node.

A store is named by its address and the schema in it. All functions raise `JournalError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import msgspec

from holdfast.engine.build import store_secret
from holdfast.engine.clock import SystemClock
from holdfast.engine.ids import new_secret
from holdfast.errors import SettingsError
from holdfast.journal.base import JournalError, JournalUnavailableError, Peer, Seat
from holdfast.journal.postgres.admin import Contents, Facts, Operating, PostgresWriter, filling
from holdfast.journal.postgres.leadership import Fresh
from holdfast.settings import load
from holdfast.settings.addresses import ESCAPES, is_torn, shown

ROUND_TRIPS = 20
KEY_BYTES = 32
LOOK_AT_IT = "Check that the database runs, and the address, the role and its password (PGPASSFILE, else ~/.pgpass)"

T = TypeVar("T")


class Place(msgspec.Struct, frozen=True):
    """The address of a store, and the secret that its key is sealed with."""

    url: str
    schema: str
    secret: bytes | None = None
    watch_seconds: float = 3.0

    @property
    def shown(self) -> str:
        return shown(self.url)

    def __repr__(self) -> str:
        return f"Place({self.shown!r}, {self.schema!r})"


def named(url: str | None, environment: Mapping[str, str]) -> Place:
    """Return the store named on the command line or else in the settings. Raises `SettingsError`."""
    overrides = {} if url is None else {"store": url}
    settings = load(overrides=overrides, environment=environment, file=None).settings
    if not settings.store:
        raise SettingsError("store", "command line", "no store is named", "postgresql://user@host/database")
    return Place(
        settings.store,
        settings.store_schema,
        store_secret(settings.store_secret_file),
        watch_seconds=settings.takeover_seconds + 1.0,
    )


def roster(place: Place) -> tuple[Seat, Sequence[Peer]]:
    return _ask(place, lambda store: store.roster())


def facts(place: Place) -> tuple[Facts, float]:
    async def look(store: Operating) -> tuple[Facts, float]:
        clock = SystemClock()
        found = await store.facts(place.watch_seconds)
        began_ms = clock.monotonic_ms()
        await store.ask_nothing(ROUND_TRIPS)
        return found, (clock.monotonic_ms() - began_ms) / ROUND_TRIPS

    return _ask(place, look)


def contents(place: Place, tell: Callable[[int], None]) -> Contents:
    return _ask(place, lambda store: store.read(tell))


def init(place: Place) -> tuple[str, bool]:
    fresh = Fresh(new_secret(16).hex(), new_secret(KEY_BYTES), SystemClock().wall_ms())
    found = _ask(place, lambda store: store.init(fresh, place.secret))
    return (fresh.authority, True) if found is None else (found.authority, False)


def restored(place: Place) -> int:
    """Let the next leader begin with `Restored`; return its epoch. Raises `JournalLockedError` for a live one."""
    return _ask(place, lambda store: store.restored(new_secret(16).hex(), place.watch_seconds))


def filled(place: Place) -> AbstractAsyncContextManager[PostgresWriter]:
    return filling(_checked(place), place.schema, place.secret, new_secret(16).hex(), SystemClock().wall_ms())


def _ask(place: Place, what: Callable[[Operating], Awaitable[T]]) -> T:
    async def ask() -> T:
        store = Operating(_checked(place), place.schema)
        try:
            return await what(store)
        except JournalUnavailableError as error:
            raise JournalUnavailableError(error.problem, *(error.ways or (LOOK_AT_IT,))) from error
        finally:
            await store.close()

    return asyncio.run(ask())


def _checked(place: Place) -> str:
    if not place.url.startswith(("postgresql://", "postgres://")):
        raise JournalError(f"{place.shown} is no address of a store", "Write it as postgresql://user@host/database")
    if is_torn(place.url):
        raise JournalError(f"the address of the store cannot be used: {ESCAPES}")
    return place.url
