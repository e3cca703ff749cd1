"""The fence in a table, on real SQLite files with several connections, threads and processes."""

from __future__ import annotations

import pickle
import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.fencing import TOKEN_MAX, CannotFence, SqlFence, StaleToken, parse_token
from holdfast.fencing._sql import ParamStyle

Connect = Callable[..., sqlite3.Connection]
Values = tuple[str | int, ...] | dict[str, str | int]

WORKER = """
import sqlite3, sys
from holdfast.fencing import SqlFence, StaleToken

file, first, step, rounds = sys.argv[1], *map(int, sys.argv[2:])
connection = sqlite3.connect(file, timeout=60)
refused = 0
for token in range(first, first + step * rounds, step):
    try:
        with connection, SqlFence().guard(connection, f"job/{token % 3}", token):
            connection.execute("INSERT INTO written (resource, token) VALUES (?, ?)", (f"job/{token % 3}", token))
    except StaleToken:
        refused += 1
print(refused)
"""


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    """Opens connections to one file in WAL that has a table of fences and one to write to."""
    opened: list[sqlite3.Connection] = []

    def connect(timeout: float = 60, **options: Any) -> sqlite3.Connection:  # noqa: ANN401 - passed on as they are
        options = {"check_same_thread": False, **options}
        opened.append(sqlite3.connect(tmp_path / "data.sqlite3", timeout=timeout, **options))
        return opened[-1]

    first = connect()
    first.execute("PRAGMA journal_mode = WAL")
    first.execute("CREATE TABLE written (id INTEGER PRIMARY KEY, resource TEXT, token INTEGER)")
    SqlFence().create(first)
    yield connect
    for connection in opened:
        connection.close()


def write(connection: sqlite3.Connection, token: int, resource: str = "reports/7") -> None:
    with connection, SqlFence().guard(connection, resource, token):
        connection.execute("INSERT INTO written (resource, token) VALUES (?, ?)", (resource, token))


def written(connection: sqlite3.Connection) -> list[int]:
    return [token for (token,) in connection.execute("SELECT token FROM written ORDER BY id")]


# --- What it promises ------------------------------------------------------------------------------------------------


@settings(deadline=None)  # A machine is as busy as it is.
@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 6) | st.integers(0, TOKEN_MAX)), max_size=12))
def test_passes_exactly_the_greatest_so_far(steps: list[tuple[str, int]]) -> None:
    """A token passes if and only if it is not smaller than every token that passed for its resource before."""
    fence, greatest = SqlFence(), {"a": -1, "b": -1}
    with closing(sqlite3.connect(":memory:")) as connection:
        fence.create(connection)
        for resource, token in steps:
            if token < greatest[resource]:
                with pytest.raises(StaleToken) as refused, connection:
                    fence.check(connection, resource, token)
                assert refused.value.current == greatest[resource]
            else:
                with connection:
                    fence.check(connection, resource, token)
                greatest[resource] = token


def test_a_paused_owner_is_refused(connect: Connect) -> None:
    """An owner that slept past its lease cannot write after the next one has, and learns whose token it met."""
    ana, ben = connect(), connect()
    write(ana, 4)
    write(ben, 9)
    with pytest.raises(StaleToken) as refused:
        write(ana, 4)
    assert (refused.value.resource, refused.value.fencing_token, refused.value.current) == ("reports/7", 4, 9)
    assert written(ana) == [4, 9]


def test_raising_first_keeps_the_last_owner_out(connect: Connect) -> None:
    """Once the fence is raised, an older token is refused although nothing has been written yet."""
    ana, ben = connect(), connect()
    with ben:
        SqlFence().check(ben, "reports/7", 9)
    with pytest.raises(StaleToken):
        write(ana, 4)


def test_other_owners_wait_for_the_transaction(connect: Connect) -> None:
    """While the owner's transaction is open no other token passes, older or newer; after its commit the newer does."""
    ana, ben = connect(), connect(timeout=0)
    with ana, SqlFence().guard(ana, "reports/7", 4):
        for token in (3, 9):
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                write(ben, token)
    write(ben, 9)
    with pytest.raises(StaleToken):
        write(ana, 4)


def test_a_rollback_takes_fence_and_write_back(connect: Connect) -> None:
    """Fence and write are one: rolled back together, neither is there."""
    ana, ben = connect(), connect()

    def fail() -> None:
        with ana, SqlFence().guard(ana, "reports/7", 9):
            ana.execute("INSERT INTO written (token) VALUES (9)")
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    write(ben, 4)
    assert written(ben) == [4]


def test_a_crash_before_the_commit_leaves_neither(connect: Connect, tmp_path: Path) -> None:
    """A process that dies between its write and its commit leaves the old data and the old fence."""
    script = """
import os, sqlite3, sys
from holdfast.fencing import SqlFence
connection = sqlite3.connect(sys.argv[1])
with SqlFence().guard(connection, "reports/7", 9):
    connection.execute("INSERT INTO written (token) VALUES (9)")
    os._exit(7)
"""
    assert subprocess.run([sys.executable, "-c", script, tmp_path / "data.sqlite3"], check=False).returncode == 7
    write(connect(), 4)
    assert written(connect()) == [4]


def test_never_commits_by_itself(connect: Connect) -> None:
    """The guard leaves the transaction to its caller, with and without `with`."""
    ana, ben = connect(), connect()
    with SqlFence().guard(ana, "reports/7", 9):
        ana.execute("INSERT INTO written (token) VALUES (9)")
    assert ana.in_transaction
    assert written(ben) == []
    ana.commit()
    assert written(ben) == [9]


def test_processes_write_in_the_order_of_their_tokens(connect: Connect, tmp_path: Path) -> None:
    """Four processes with interleaved tokens: what was written to a resource never goes back to an older owner."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, tmp_path / "data.sqlite3", str(first), "4", "60"], stdout=subprocess.PIPE
        )
        for first in range(1, 5)
    ]
    refused = [int(worker.communicate()[0]) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0, 0]
    rows = connect().execute("SELECT resource, token FROM written ORDER BY id").fetchall()
    assert len(rows) + sum(refused) == 240
    for resource in ("job/0", "job/1", "job/2"):
        tokens = [token for name, token in rows if name == resource]
        assert tokens == sorted(tokens)


def test_threads_add_a_resource_once(connect: Connect) -> None:
    """Of threads that all meet a new resource at once, the last to pass has the greatest token of those that did."""
    barrier = threading.Barrier(6)
    refused: list[int] = []

    def work(token: int) -> None:
        connection = connect()
        barrier.wait()
        try:
            write(connection, token, "new")
        except StaleToken as stale:
            refused.append(stale.fencing_token)

    threads = [threading.Thread(target=work, args=(token,)) for token in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tokens = written(connect())
    assert tokens == sorted(tokens)
    assert sorted(tokens + refused) == list(range(6))


# --- Transactions ----------------------------------------------------------------------------------------------------


def test_autocommit_is_refused(connect: Connect) -> None:
    """A connection that commits every statement is refused with what to do, but not inside a transaction."""
    connection = connect(isolation_level=None)
    with pytest.raises(CannotFence, match="turn autocommit off"):
        SqlFence().check(connection, "reports/7", 4)
    connection.execute("BEGIN")
    SqlFence().check(connection, "reports/7", 4)
    connection.execute("COMMIT")
    with pytest.raises(StaleToken):
        write(connect(), 3)


@pytest.mark.parametrize("setter", [False, True])
def test_autocommit_of_other_drivers_is_refused(connect: Connect, setter: bool) -> None:
    """`autocommit` counts whether it is an attribute, as in psycopg, or a setter beside a getter, as in PyMySQL."""

    class Driver(Shim):
        autocommit: object = (lambda self, value: None) if setter else True

        def get_autocommit(self) -> bool:
            return True

    with pytest.raises(CannotFence, match="turn autocommit off"):
        SqlFence().check(Driver(connect(), "qmark"), "reports/7", 4)


@pytest.mark.parametrize(("status", "allowed"), [(0, False), (2, True)])
def test_a_transaction_block_of_psycopg_is_seen(connect: Connect, status: int, allowed: bool) -> None:
    """An autocommit connection of psycopg passes inside a transaction block, and only there."""

    class Driver(Shim):
        autocommit = True

        class info:  # noqa: N801 - its name upstream
            transaction_status = status

    driver = Driver(connect(), "qmark")
    if allowed:
        SqlFence().check(driver, "reports/7", 4)
    else:
        with pytest.raises(CannotFence):
            SqlFence().check(driver, "reports/7", 4)


def test_a_refusal_leaves_nothing_locked(connect: Connect) -> None:
    """A refused owner that does nothing more does not keep the file locked for the others."""
    ana, ben = connect(), connect(timeout=0)
    write(ben, 9)
    with pytest.raises(StaleToken):
        SqlFence().check(ana, "reports/7", 4)
    assert not ana.in_transaction
    write(ben, 9)


def test_a_refusal_keeps_the_callers_transaction(connect: Connect) -> None:
    """A transaction that the caller began is the caller's to end, also after a refusal."""
    ana = connect()
    write(ana, 9)
    ana.execute("INSERT INTO written (token) VALUES (0)")
    with pytest.raises(StaleToken):
        SqlFence().check(ana, "reports/7", 4)
    assert ana.in_transaction


@pytest.mark.parametrize("error", [sqlite3.IntegrityError, sqlite3.DatabaseError])
@pytest.mark.parametrize(("rival", "passes"), [(3, True), (4, True), (5, False)])
def test_a_rival_adds_the_resource_first(
    connect: Connect, rival: int, passes: bool, error: type[sqlite3.DatabaseError]
) -> None:
    """Who meets a rival at the primary key looks again, keeps its transaction, and is judged by the rival's token."""

    class Rivalled(Shim):
        def execute(self, cursor: sqlite3.Cursor, sql: str, values: Values) -> None:
            if sql == "SAVEPOINT holdfast_fence":  # After the look, before the row: where a rival slips in.
                cursor.execute("INSERT INTO holdfast_fence VALUES ('reports/7', ?, 1)", (rival,))
            try:
                super().execute(cursor, sql, values)
            except sqlite3.IntegrityError as raised:
                raise error(*raised.args) from None

    connection = connect()
    connection.execute("INSERT INTO written (token) VALUES (1)")
    driver = Rivalled(connection, "qmark")
    if passes:
        SqlFence().check(driver, "reports/7", 4)
    else:
        with pytest.raises(StaleToken) as refused:
            SqlFence().check(driver, "reports/7", 4)
        assert refused.value.current == 5
    connection.commit()
    assert written(connection) == [1]
    assert connection.execute("SELECT token FROM holdfast_fence").fetchall() == [(max(rival, 4),)]


def test_a_broken_insert_is_shown(connect: Connect) -> None:
    """An error that no rival explains reaches the caller as it is, and the connection can go on."""
    connection = connect()
    connection.execute(
        "CREATE TRIGGER full BEFORE INSERT ON holdfast_fence BEGIN SELECT no_such_column FROM holdfast_fence; END"
    )
    with pytest.raises(sqlite3.OperationalError, match="no_such_column"):
        SqlFence().check(connection, "reports/7", 4)
    assert not connection.in_transaction


def test_invisible_row_is_refused(connect: Connect) -> None:
    """Where the fence is neither passed nor in the way, the snapshot is too old to tell: nothing may be written."""

    class Blind(Shim):
        def execute(self, cursor: sqlite3.Cursor, sql: str, values: Values) -> None:
            super().execute(cursor, sql.replace("WHERE resource", "WHERE 0 AND resource"), values)

    write(connect(), 3)
    with pytest.raises(CannotFence, match="run the transaction again"):
        SqlFence().check(Blind(connect(), "qmark"), "reports/7", 4)


# --- Drivers ---------------------------------------------------------------------------------------------------------


class Shim:
    """A driver of another paramstyle, over a real connection; it keeps what it was asked."""

    def __init__(self, connection: sqlite3.Connection, style: str) -> None:
        self.connection = connection
        self.style = style
        self.asked: list[tuple[str, Values]] = []
        self.commit, self.rollback = connection.commit, connection.rollback

    def cursor(self) -> ShimCursor:
        return ShimCursor(self, self.connection.cursor())

    def execute(self, cursor: sqlite3.Cursor, sql: str, values: Values) -> None:
        self.asked.append((sql, values))
        match self.style:
            case "format":
                sql = sql.replace("%s", "?")
            case "pyformat":
                sql = re.sub(r"%\((\w+)\)s", r":\1", sql)
            case "numeric":
                # Several Pythons warn of numbered parameters in sqlite3, so each value is passed where it is used.
                assert isinstance(values, tuple)
                values = tuple(values[int(number) - 1] for number in re.findall(r":(\d)", sql))
                sql = re.sub(r":\d", "?", sql)
        cursor.execute(sql, values)


class ShimCursor:
    def __init__(self, shim: Shim, cursor: sqlite3.Cursor) -> None:
        self.shim, self.real = shim, cursor
        self.fetchone, self.close = cursor.fetchone, cursor.close

    def execute(self, sql: str, values: Values = ()) -> None:
        self.shim.execute(self.real, sql, values)

    @property
    def rowcount(self) -> int:
        return self.real.rowcount


paramstyle = "qmark"  # What a driver's module says: SqlFence finds it here for a Shim.


@pytest.mark.parametrize(
    ("style", "update", "values"),
    [
        ("qmark", "token = ?, passed = passed + 1 WHERE resource = ? AND token <= ?", (4, "r", 4)),
        ("format", "token = %s, passed = passed + 1 WHERE resource = %s AND token <= %s", (4, "r", 4)),
        ("numeric", "token = :1, passed = passed + 1 WHERE resource = :2 AND token <= :1", (4, "r")),
        (
            "named",
            "token = :token, passed = passed + 1 WHERE resource = :resource AND token <= :token",
            {"resource": "r", "token": 4},
        ),
        (
            "pyformat",
            "token = %(token)s, passed = passed + 1 WHERE resource = %(resource)s AND token <= %(token)s",
            {"resource": "r", "token": 4},
        ),
    ],
)
def test_speaks_every_paramstyle(connect: Connect, style: ParamStyle, update: str, values: object) -> None:
    """Each paramstyle of PEP 249 gets its own placeholders and the values in the shape it wants, and works."""
    driver, fence = Shim(connect(), style), SqlFence(paramstyle=style)
    fence.check(driver, "r", 4)
    fence.check(driver, "r", 5)
    with pytest.raises(StaleToken):
        fence.check(driver, "r", 4)
    assert driver.asked[0] == (f"UPDATE holdfast_fence SET {update}", values)


def test_finds_the_paramstyle(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """The paramstyle comes from the module of the connection's class, or of one it is derived from, or is asked for."""

    class Derived(sqlite3.Connection):
        pass

    write(connect(factory=Derived), 4)
    driver = Shim(connect(), "format")
    monkeypatch.setattr(sys.modules[__name__], "paramstyle", "format")
    SqlFence().check(driver, "b", 4)
    monkeypatch.delattr(sys.modules[__name__], "paramstyle")
    with pytest.raises(CannotFence, match="pass paramstyle="):
        SqlFence().check(driver, "c", 4)


def test_rows_may_be_mappings(connect: Connect) -> None:
    """The fence reads rows whatever the connection makes of them."""
    connection = connect()
    write(connection, 9)
    for factory in (sqlite3.Row, lambda cursor, row: {cursor.description[0][0]: row[0]}, None):
        connection.row_factory = factory
        with pytest.raises(StaleToken) as refused:
            write(connection, 4)
        assert refused.value.current == 9


def test_an_unknown_number_of_rows_is_refused(connect: Connect) -> None:
    """A driver that does not count rows cannot say that the fence was passed, so nothing passes."""

    class Counting(ShimCursor):
        rowcount = -1

    class Driver(Shim):
        def cursor(self) -> ShimCursor:
            return Counting(self, self.connection.cursor())

    with pytest.raises(CannotFence, match="how many rows"):
        SqlFence().check(Driver(connect(), "qmark"), "r", 4)


# --- Words -----------------------------------------------------------------------------------------------------------


def test_the_table_has_a_name_of_your_choice(connect: Connect) -> None:
    """Fences of two tables know nothing of each other, and making one twice is harmless."""
    connection, other = connect(), SqlFence("main.fences_of_ours")
    other.create(connection)
    other.create(connection)
    write(connection, 9)
    with connection:
        other.check(connection, "reports/7", 4)
    for name in ("", "a b", "a;b", "a.b.c", "1a", 'a"', "a" * 64, "fence\n"):
        with pytest.raises(ValueError, match="table"):
            SqlFence(name)
    with pytest.raises(ValueError, match="paramstyle"):
        SqlFence(paramstyle="dollar")  # type: ignore[arg-type] # what a user may write


@pytest.mark.parametrize("token", [True, "4", 4.0, None, -1, TOKEN_MAX + 1])
def test_only_tokens_are_tokens(connect: Connect, token: Any) -> None:  # noqa: ANN401 - what a user may pass
    """A token is a whole number from 0 to 2^53−1; True is none."""
    with pytest.raises((TypeError, ValueError), match=r"pass claim\.fencing_token"):
        SqlFence().check(connect(), "r", token)


@pytest.mark.parametrize("resource", ["", "a" * 257, "a\0b", "\ud800", 7])
def test_only_names_are_resources(connect: Connect, resource: Any) -> None:  # noqa: ANN401 - what a user may pass
    """A resource is named by 1 to 256 characters that every database can keep."""
    with pytest.raises((TypeError, ValueError), match="a resource"):
        SqlFence().check(connect(), resource, 4)


def test_tokens_are_read_from_text() -> None:
    """A header's or a variable's text is a token if it is digits and nothing else."""
    assert parse_token("41") == 41
    assert parse_token(str(TOKEN_MAX)) == TOKEN_MAX
    for text in ("", "-1", "+1", " 1", "1\n", "1_0", "٤", "0x1", "4.0", str(TOKEN_MAX + 1), "1" * 17):
        with pytest.raises(ValueError, match="a fencing token is"):
            parse_token(text)


def test_a_refusal_travels(connect: Connect) -> None:
    """StaleToken is an error of Holdfast, says what to do next, and survives the way between processes."""
    write(connect(), 9)
    with pytest.raises(StaleToken) as refused:
        write(connect(), 4)
    stale = pickle.loads(pickle.dumps(refused.value))
    assert type(stale) is StaleToken
    assert isinstance(stale, HoldfastError)
    assert (stale.resource, stale.fencing_token, stale.current) == ("reports/7", 4, 9)
    assert str(stale) == (
        "fencing token 4 is too old for reports/7, which has seen 9: "
        "you no longer own the job, so stop, and claim it again if it still needs doing"
    )
