"""What commands do with a store that nodes share, without a node.

A store is named by its address and the schema in it. All functions raise `JournalError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import msgspec

from holdfast.config import load
from holdfast.config.addresses import ESCAPES, is_torn, shown
from holdfast.engine.build import store_secret
from holdfast.engine.clock import SystemClock
from holdfast.engine.ids import new_secret
from holdfast.errors import SettingsError
from holdfast.journal.interface import JournalError, JournalUnavailableError, Leadership, Peer
from holdfast.journal.postgres.admin import Contents, Facts, PostgresWriter, StoreAdmin, open_writer
from holdfast.journal.postgres.leadership import NewAuthority

ROUND_TRIPS = 20
KEY_BYTES = 32
CHECK_CONNECTION = (
    "Check that the database runs, and the address, the role and its password (PGPASSFILE, else ~/.pgpass)"
)

T = TypeVar("T")


class StoreAddress(msgspec.Struct, frozen=True):
    """The address of a store, and the secret that its key is sealed with."""

    url: str
    schema: str
    secret: bytes | None = None
    watch_seconds: float = 3.0

    @property
    def shown(self) -> str:
        return shown(self.url)

    def __repr__(self) -> str:
        return f"StoreAddress({self.shown!r}, {self.schema!r})"


def named(url: str | None, environment: Mapping[str, str]) -> StoreAddress:
    """Return the store named on the command line or else in the settings. Raises `SettingsError`."""
    overrides = {} if url is None else {"store": url}
    settings = load(overrides=overrides, environment=environment, file=None).settings
    if not settings.store:
        raise SettingsError("store", "command line", "no store is named", "postgresql://user@host/database")
    return StoreAddress(
        settings.store,
        settings.store_schema,
        store_secret(settings.store_secret_file),
        watch_seconds=settings.takeover_seconds + 1.0,
    )


def roster(address: StoreAddress) -> tuple[Leadership, Sequence[Peer]]:
    return _ask(address, lambda store: store.roster())


def facts(address: StoreAddress) -> tuple[Facts, float]:
    async def query(store: StoreAdmin) -> tuple[Facts, float]:
        clock = SystemClock()
        found = await store.facts(address.watch_seconds)
        began_ms = clock.monotonic_ms()
        await store.ping(ROUND_TRIPS)
        return found, (clock.monotonic_ms() - began_ms) / ROUND_TRIPS

    return _ask(address, query)


def contents(address: StoreAddress, tell: Callable[[int], None]) -> Contents:
    return _ask(address, lambda store: store.read(tell))


def init(address: StoreAddress) -> tuple[str, bool]:
    new_authority = NewAuthority(new_secret(16).hex(), new_secret(KEY_BYTES), SystemClock().wall_ms())
    found = _ask(address, lambda store: store.init(new_authority, address.secret))
    return (new_authority.authority, True) if found is None else (found.authority, False)


def restored(address: StoreAddress) -> int:
    """Let the next leader begin with `Restored`; return its epoch. Raises `JournalLockedError` for a live one."""
    return _ask(address, lambda store: store.restored(new_secret(16).hex(), address.watch_seconds))


def filled(address: StoreAddress) -> AbstractAsyncContextManager[PostgresWriter]:
    return open_writer(_checked(address), address.schema, address.secret, new_secret(16).hex(), SystemClock().wall_ms())


def _ask(address: StoreAddress, what: Callable[[StoreAdmin], Awaitable[T]]) -> T:
    async def ask() -> T:
        store = StoreAdmin(_checked(address), address.schema)
        try:
            return await what(store)
        except JournalUnavailableError as error:
            raise JournalUnavailableError(error.problem, *(error.remedies or (CHECK_CONNECTION,))) from error
        finally:
            await store.close()

    return asyncio.run(ask())


def _checked(address: StoreAddress) -> str:
    if not address.url.startswith(("postgresql://", "postgres://")):
        raise JournalError(f"{address.shown} is no address of a store", "Write it as postgresql://user@host/database")
    if is_torn(address.url):
        raise JournalError(f"the address of the store cannot be used: {ESCAPES}")
    return address.url
