"""Which servers are used, what they must promise, how they are reached, and that no password is ever shown."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from holdfast.journal.interface import JournalError, JournalUnavailableError
from holdfast.journal.postgres import connection
from holdfast.journal.postgres.connection import KEEPALIVE, WANTED, Servers, addresses, refuse_if_weak
from holdfast.journal.postgres.journal import PostgresJournal
from tests.journal.records import grants
from tests.journal.shared_stores import PostgresStore, make_peer, postgres_store
from tests.support.postgres import Postgres, free_port, running, shared, standby_of

GOOD = {name: min(wanted) for name, (wanted, _) in WANTED.items()}
PASSWORD = "hunter2-swordfish"


@pytest.fixture(scope="module")
def own() -> Iterator[Postgres]:
    """A server whose settings may be changed."""
    with running() as server:
        yield server


# What a server must promise.


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_server_without_durability_is_refused(own: Postgres, setting: str) -> None:
    """A server that does not sync, or can tear a page, is refused with what to set; then it is used (N-24)."""

    async def scene(store: PostgresStore) -> None:
        journal = store()
        own.configure(**{setting: "off"})
        own.reload()
        with pytest.raises(JournalUnavailableError, match=rf"{setting} = 'off'.*Set it to on in postgresql.conf"):
            await journal.read_leadership()
        own.configure(**{setting: "on"})
        own.reload()
        await journal.read_leadership()
        await journal.close()

    with postgres_store(own) as store:
        asyncio.run(scene(store))


@pytest.mark.parametrize(("setting", "value"), [*((name, "off") for name in GOOD), ("synchronous_commit", "local")])
def test_every_required_setting_is_verified(setting: str, value: str) -> None:
    """Each setting that an answer rests on is asked back, and another value of it is refused (N-24)."""
    refuse_if_weak("there", GOOD, version=160000, is_standby=False)
    with pytest.raises(JournalUnavailableError, match=f"there has {setting} = '{value}'"):
        refuse_if_weak("there", {**GOOD, setting: value}, version=160000, is_standby=False)


def test_old_server_and_standby_are_refused() -> None:
    """A server that is too old, or takes no writes, is refused (N-24)."""
    with pytest.raises(JournalUnavailableError, match="is version 12; 13 or newer"):
        refuse_if_weak("there", GOOD, version=120004, is_standby=False)
    with pytest.raises(JournalUnavailableError, match="is a standby"):
        refuse_if_weak("there", GOOD, version=160000, is_standby=True)


def test_role_cannot_weaken_a_session(own: Postgres) -> None:
    """What a role or a database sets by default does not count for our sessions (N-8, N-24)."""

    async def scene(store: PostgresStore) -> None:
        for setting in ("default_transaction_isolation = 'serializable'", "statement_timeout = '1ms'"):
            own.sql(f"ALTER ROLE postgres SET {setting}")
        own.sql("ALTER DATABASE postgres SET synchronous_commit = 'off'")
        journal = store()
        await journal.open()
        await journal.append(grants(1, 1))
        server = journal._client.server
        assert server.settings == GOOD | {"synchronous_commit": "on"}
        assert not server.is_pooled and not server.has_standby
        await journal.close()

    with postgres_store(own) as store:
        try:
            asyncio.run(scene(store))
        finally:
            own.sql("ALTER DATABASE postgres RESET ALL")
            own.sql("SET statement_timeout = 0; ALTER ROLE postgres RESET ALL")


def test_pooler_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    """A session whose process is not the one that greeted us goes through a pooler: that is said aloud (N-24)."""

    async def scene(store: PostgresStore) -> None:
        line, server = await Servers(store.url, "holdfast", "test").connect()
        assert not server.is_pooled
        await line.close()
        async with greet_as_another_server(store.server) as port:
            line, server = await Servers(store.server.url_of("postgres", port), "holdfast", "test").connect()
            assert server.is_pooled
            await line.close()

    with postgres_store() as store:
        asyncio.run(scene(store))
    assert "is behind a pooler" in caplog.text and "Connect to PostgreSQL directly" in caplog.text


@asynccontextmanager
async def greet_as_another_server(server: Postgres) -> AsyncIterator[int]:
    """Pass all on, but for the number of the process that greets: a pooler gives one of its own."""
    handled: list[asyncio.Task[None]] = []

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, changes: bool) -> None:
        while data := await source.read(65536):
            start = data.find(b"K\0\0\0\x0c") if changes else -1
            sink.write(data if start < 0 else data[: start + 5] + b"\0\0\0\x01" + data[start + 9 :])
        sink.close()
        with suppress(OSError):
            await sink.wait_closed()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(server.host, server.port)
        there, back = pump(reader, far_writer, changes=False), pump(far_reader, writer, changes=True)
        handled.extend((asyncio.ensure_future(there), asyncio.ensure_future(back)))

    listening = await asyncio.start_server(handle, "127.0.0.1", 0)
    yield listening.sockets[0].getsockname()[1]
    listening.close()
    await listening.wait_closed()
    await asyncio.gather(*handled)


# How they are reached.


def test_second_host_is_used_when_the_first_is_gone(own: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts are tried one by one, each with its own limit; one that took writes is tried first from then on (N-25)."""
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 0.4)

    async def scene() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            hosts = f"127.0.0.1:{free_port()},127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{own.port}"
            servers = Servers(f"postgresql://postgres@{hosts}/postgres", "holdfast", "test")
            line, _ = await servers.connect()
            assert line.where == servers.where == f"127.0.0.1:{own.port}"
            line.drop()

    asyncio.run(scene())


def test_silent_hosts_are_tried_last(own: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has less time than all silent hosts together take gets to the one that answers, after some tries (N-25)."""
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 0.4)
    silent_ports = 3

    async def tries_of(servers: Servers) -> int:
        for tried in range(1, 2 * silent_ports):
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    line, _ = await servers.connect()
                line.drop()
                return tried
        raise AssertionError("it never came to the one that answers")

    async def scene() -> None:
        with ExitStack() as stack:
            silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(silent_ports)]
            ports = [*(each.getsockname()[1] for each in silent), own.port]
            hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
            servers = Servers(f"postgresql://postgres@{hosts}/postgres", "holdfast", "test")
            assert await tries_of(servers) > 1
            assert servers.where == f"127.0.0.1:{own.port}"

    asyncio.run(scene())


def test_standby_is_passed_over(own: Postgres) -> None:
    """Of several hosts the one that takes writes is used, whichever stands first (N-25)."""

    async def scene(standby: Postgres) -> None:
        url = f"postgresql://postgres@127.0.0.1:{standby.port},127.0.0.1:{own.port}/postgres"
        line, _ = await Servers(url, "holdfast", "test").connect()
        assert line.where == f"127.0.0.1:{own.port}"
        line.drop()
        with pytest.raises(JournalUnavailableError, match="is a standby"):
            await Servers(standby.url, "holdfast", "test").connect()

    with standby_of(own) as standby:
        asyncio.run(scene(standby))


def test_connect_error_names_every_server() -> None:
    """If no host can be used, the error has what each of them said."""

    async def scene() -> None:
        ports = free_port(), free_port()
        url = f"postgresql://postgres@127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}/postgres"
        with pytest.raises(JournalUnavailableError) as caught:
            await Servers(url, "holdfast", "test").connect()
        assert all(f"127.0.0.1:{port} cannot be asked" in str(caught.value) for port in ports)

    asyncio.run(scene())


def test_keepalive_is_set_on_our_side() -> None:
    """The machine itself finds out that a server is gone, though nothing is sent: asyncpg sets no keepalive (N-25)."""

    async def scene() -> None:
        line, _ = await Servers(shared().url, "holdfast", "test").connect()
        found = line._db._transport.get_extra_info("socket")
        assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        for option, value in KEEPALIVE.items():
            assert found.getsockopt(socket.IPPROTO_TCP, getattr(socket, option)) == value
        await line.close()

    asyncio.run(scene())


def test_unix_socket_is_a_host_too(own: Postgres) -> None:
    """A server on this machine can be reached over its socket."""

    async def scene() -> None:
        line, _ = await Servers(own.socket_url, "holdfast", "test").connect()
        assert line.where == f"{own.folder}:{own.port}"
        await line.close()

    asyncio.run(scene())


def test_clients_follow_the_server_of_the_writer(own: Postgres) -> None:
    """A connection that reads beside a term is refused at any server but the term's: it may be an old one (N-2)."""

    async def scene(store: PostgresStore) -> None:
        leader = store()
        await leader.open()
        await leader.append(grants(1, 1))
        leader._servers._addresses = addresses(shared().url)
        leader._client.drop()
        with pytest.raises(JournalUnavailableError, match="is not the server that this tenure is at"):
            await leader.read_leadership()
        leader._servers._addresses = addresses(store.url)
        assert (await leader.read_leadership()).last_seq == 1
        await leader.close()

    with postgres_store(own) as store:
        asyncio.run(scene(store))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u@a/d", ["a:5432"]),
        ("postgresql://u@a:1,b:2,[::1]:3,[::2]/d?sslmode=require", ["a:1", "b:2", "[::1]:3", "[::2]:5432"]),
        ("postgres://u@/d?host=/run/pg&port=7", ["/run/pg:7"]),
        ("postgresql:///d?host=a,b&port=1,2", ["a:1", "b:2"]),
        ("postgresql:///d?host=a,b&port=9", ["a:9", "b:9"]),
        ("postgresql:///", ["localhost:5432"]),
    ],
)
def test_url_is_one_for_each_host(url: str, shown: list[str]) -> None:
    """A URL of several hosts is one for each of them, with all else that stood in it."""
    found = addresses(url)
    assert [address.where for address in found] == shown
    assert all(("sslmode=require" in address.url) == ("sslmode" in url) for address in found)
    assert all("target_session_attrs" not in address.url for address in found)


@pytest.mark.parametrize(
    "url", [f"mysql://u:{PASSWORD}@a/d", f"postgresql://u:{PASSWORD}@a/d?host=b", f"u:{PASSWORD}@a"]
)
def test_wrong_url_is_refused_without_showing_it(url: str) -> None:
    """A URL that cannot be used is refused when the journal is made, and its text is not repeated."""
    with pytest.raises(JournalError, match="the store cannot be used") as caught:
        PostgresJournal(url, make_peer("a"), term_id="t")
    assert PASSWORD not in str(caught.value)


# Passwords.


@pytest.mark.parametrize("port", ["closed", "open"])
def test_password_is_never_shown(port: str, caplog: pytest.LogCaptureFixture, own: Postgres) -> None:
    """Whatever goes wrong with a connection, no error and no line of the log has the password that the URL has."""

    async def scene() -> None:
        where = free_port() if port == "closed" else own.port
        url = f"postgresql://nosuch:{PASSWORD}@127.0.0.1:{where}/nosuch"
        journal = PostgresJournal(url, make_peer("a"), term_id="t")
        for asked in (journal.read_leadership, journal.open):
            with pytest.raises(JournalUnavailableError) as caught:
                await asked()
            error: BaseException | None = caught.value
            while error is not None:
                assert PASSWORD not in f"{error}{error!r}"
                error = error.__cause__ or error.__context__
        await journal.close()

    caplog.set_level(logging.DEBUG)
    asyncio.run(scene())
    assert PASSWORD not in caplog.text


def test_password_comes_from_a_file(own: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The password is read from the file that PGPASSFILE names, and a wrong one is said in words."""
    passwords = tmp_path / "passwords"
    passwords.write_text(f"127.0.0.1:*:*:secretive:{PASSWORD}\n")
    passwords.chmod(0o600)
    rules = own.data / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"host all secretive 127.0.0.1/32 scram-sha-256\n{before}")
    own.sql(f"CREATE ROLE secretive LOGIN PASSWORD '{PASSWORD}'")
    own.reload()
    url = f"postgresql://secretive@127.0.0.1:{own.port}/postgres"

    async def scene() -> None:
        monkeypatch.setenv("PGPASSFILE", str(passwords))
        line, _ = await Servers(url, "holdfast", "test").connect()
        await line.close()
        monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
        monkeypatch.setenv("PGPASSWORD", "wrong")
        with pytest.raises(JournalUnavailableError, match="password authentication failed"):
            await Servers(url, "holdfast", "test").connect()

    asyncio.run(scene())
    rules.write_text(before)
    own.reload()
