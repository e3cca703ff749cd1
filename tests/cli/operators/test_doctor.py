"""`holdfast doctor`: with a server, without one, and on a data directory."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast import __version__
from holdfast.cli.operators import doctor
from holdfast.journal.sqlite.inspect import inspect
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique, wait_until
from tests.support.compactor import archived_by_now
from tests.support.reverse_proxies import front
from tests.support.server import ServerProcess

NOBODY = 65_534
Run = Callable[..., subprocess.CompletedProcess[str]]


class OddServer(ThreadingHTTPServer):
    """A server that answers whatever the test wants it to, for what a real one does only when it is ill."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        now = datetime.now(UTC).isoformat()
        self.answers: dict[str, tuple[int, dict[str, Any]]] = {
            "/readyz": (200, {"status": "ok", "details": "ok"}),
            "/health": (
                200,
                {"status": "ok", "storage": "wal", "db_size_bytes": 5, "details": "ok", "disk_free_bytes": 2**40},
            ),
            "/locks?limit=1": (200, {"locks": []}),
            "/status": (200, {"status": "ok", "time": now, "version": __version__}),
        }


class _Handler(BaseHTTPRequestHandler):
    server: OddServer

    def do_GET(self) -> None:
        status, body = self.server.answers[self.path]
        payload = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(payload)))
        self.send_header("X-Request-Id", "req_odd")
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name upstream
        """Keep the tests quiet."""


@pytest.fixture
def odd() -> Iterator[OddServer]:
    with OddServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with a few records, which no server uses. Not to be changed."""
    data = tmp_path_factory.mktemp("stopped") / "data"
    with ServerProcess.start(data, tokens=callers.TOKENS, settings={"snapshot_records": 2}) as server:
        lease = Api.of(server, callers.ALICE).acquired("job/7", owner="ana")
        assert Api.of(server, callers.ALICE).release("job/7", lease["lease_id"]).status == 200
        wait_until(lambda: archived_by_now(data) > 0, seconds_max=30)
        assert server.terminate() == 0
    return data


@pytest.fixture
def copy(stopped: Path, tmp_path: Path) -> Path:
    """A copy of it that a test may spoil."""
    return Path(shutil.copytree(stopped, tmp_path / "copy"))


def checks(done: subprocess.CompletedProcess[str]) -> dict[str, tuple[str, str]]:
    """Each check's name, with its status and everything behind it."""
    lines = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    return {name: (status, text) for status, name, text in lines}


# With a server.


def test_healthy_server_is_all_ok(server: ServerProcess, holdfast: Run) -> None:
    """A healthy server with a good token is ok in everything, without colours in a pipe."""
    done = holdfast("doctor", HOLDFAST_URL=server.url, HOLDFAST_TOKEN=callers.ALICE)
    assert (done.returncode, done.stderr) == (0, "")
    found = checks(done)
    assert found["token"][1].startswith("access token accepted (from ")
    assert list(found) == ["reachable", "ready", "store", "disk", "token", "clock", "version"]
    assert {status for status, _ in found.values()} == {"ok"}, done.stdout
    assert "\x1b" not in done.stdout and callers.ALICE not in done.stdout


def test_json_for_programs(server: ServerProcess, holdfast: Run) -> None:
    """`--json` says the same to a program."""
    done = holdfast("doctor", "--json", HOLDFAST_URL=server.url, HOLDFAST_TOKEN="wrong-token-wrong")
    found = json.loads(done.stdout)
    assert (done.returncode, found["ok"]) == (2, False)
    (failed,) = [check for check in found["checks"] if check["status"] == "FAIL"]
    assert failed["name"] == "token" and "HOLDFAST_TOKEN" in failed["next"]


@pytest.mark.parametrize("token", ["", "wrong-token-wrong"])
def test_bad_token_fails(server: ServerProcess, holdfast: Run, token: str) -> None:
    """A missing or unknown token is the one thing that fails, with what to do."""
    done = holdfast("doctor", HOLDFAST_URL=server.url, HOLDFAST_TOKEN=token)
    found = checks(done)
    assert done.returncode == 2
    assert [name for name, (status, _) in found.items() if status == "FAIL"] == ["token"]
    assert "-> " in found["token"][1] and "HOLDFAST_TOKEN" in found["token"][1]


def test_unreachable_server_exits_with_69(tmp_path_factory: pytest.TempPathFactory, holdfast: Run) -> None:
    """A server that has ended is exit code 69 and one line that says how to start it."""
    server = ServerProcess.start(tmp_path_factory.mktemp("gone") / "data", tokens=callers.TOKENS)
    server.kill()
    done = holdfast("doctor", HOLDFAST_URL=server.url, HOLDFAST_TOKEN=callers.ALICE)
    assert done.returncode == 69
    assert checks(done)["reachable"][0] == "FAIL"
    assert "holdfast serve" in done.stdout and len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
def test_proxy_without_a_server_exits_with_69(tmp_path: Path, holdfast: Run, kind: str) -> None:
    """A proxy that answers for a server that is gone does not make it reachable."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        nowhere = gone.getsockname()[:2]
    with front(kind, tmp_path, nowhere) as proxy:
        done = holdfast("doctor", HOLDFAST_URL=f"http://127.0.0.1:{proxy.port}", HOLDFAST_TOKEN=callers.ALICE)
    assert done.returncode == 69
    ((name, (status, text)),) = checks(done).items()
    assert (name, status) == ("reachable", "FAIL")
    assert "and the server behind it does not -> look whether that server runs" in text


def test_another_program_exits_with_69(odd: OddServer, holdfast: Run) -> None:
    """A success that no Holdfast server would say does not count as one."""
    odd.answers["/readyz"] = (200, {})
    done = holdfast("doctor", HOLDFAST_URL=odd.url, HOLDFAST_TOKEN=callers.ALICE)
    assert (done.returncode, list(checks(done))) == (69, ["reachable"])


def test_a_server_that_is_too_busy_is_reachable(odd: OddServer, holdfast: Run) -> None:
    """A refusal in Holdfast's own words comes from a Holdfast server."""
    odd.answers["/readyz"] = (503, {"error": "Too many connections", "code": "overloaded", "details": "Try later."})
    found = checks(holdfast("doctor", HOLDFAST_URL=odd.url, HOLDFAST_TOKEN=callers.ALICE))
    assert (found["reachable"][0], found["ready"][0]) == ("ok", "FAIL")


@pytest.mark.parametrize(("free", "status"), [(2**30, "ok"), (2**30 - 1, "warn"), (2**20, "FAIL")])
def test_little_space_on_the_disk_of_a_running_server(odd: OddServer, holdfast: Run, free: int, status: str) -> None:
    """What is left on the server's disk is a line, and a warning below 1 GiB."""
    odd.answers["/health"][1]["disk_free_bytes"] = free
    found = checks(holdfast("doctor", HOLDFAST_URL=odd.url, HOLDFAST_TOKEN=callers.ALICE))
    assert found["disk"][0] == status and "free" in found["disk"][1]


def test_store_that_takes_no_writes_fails(odd: OddServer, holdfast: Run) -> None:
    """A server whose store is ill is not ready, and its own words are shown."""
    odd.answers["/readyz"] = (503, {"status": "unavailable", "details": "the disk is full"})
    odd.answers["/health"] = (503, {"status": "degraded", "details": "the disk\x1b[2J is full"})
    done = holdfast("doctor", HOLDFAST_URL=odd.url, HOLDFAST_TOKEN=callers.ALICE)
    found = checks(done)
    assert done.returncode == 2
    assert (found["ready"][0], found["store"][0], found["token"][0]) == ("FAIL", "FAIL", "ok")
    assert "the disk is full" in found["ready"][1] and "\x1b" not in done.stdout


def test_failing_compactor_is_a_warning(odd: OddServer, holdfast: Run) -> None:
    """A server that serves while its archivist fails says so in its health, and that is a warning."""
    well = odd.answers["/health"][1]
    odd.answers["/health"] = (200, {**well, "details": "the archivist has failed for 5 min: the disk is full"})
    done = holdfast("doctor", HOLDFAST_URL=odd.url, HOLDFAST_TOKEN=callers.ALICE)
    status, text = checks(done)["store"]
    assert (done.returncode, status) == (0, "warn")
    assert text.startswith("wal, 0.0 KiB; the archivist has failed for 5 min: the disk is full -> look at")


@pytest.mark.parametrize(("off_seconds", "status"), [(-60, "warn"), (60, "warn"), (2, "ok")])
def test_clock_that_is_off_is_a_warning(odd: OddServer, holdfast: Run, off_seconds: int, status: str) -> None:
    """More than five seconds between the clocks is a warning, and no failure: no lease depends on it."""
    there = datetime.now(UTC) + timedelta(seconds=off_seconds)
    odd.answers["/status"] = (200, {"time": there.isoformat(), "version": __version__})
    done = holdfast("doctor", HOLDFAST_URL=odd.url, HOLDFAST_TOKEN=callers.ALICE)
    assert done.returncode == 0
    assert checks(done)["clock"][0] == status


def test_a_slow_answer_is_no_clock_that_is_off() -> None:
    """A server may have said the time whenever it had the question: only what lies outside of that is a difference."""
    assert doctor._apart_ms(1_000, 1_000, 16_000) == 0
    assert doctor._apart_ms(16_000, 1_000, 16_000) == 0
    assert doctor._apart_ms(0, 6_000, 16_000) == 6_000, "ours is ahead"
    assert doctor._apart_ms(17_000, 1_000, 10_000) == -7_000


def test_answer_without_time_and_version_is_a_warning(odd: OddServer, holdfast: Run) -> None:
    """An answer that says neither the time nor the version is told as such."""
    odd.answers["/status"] = (404, {})
    found = checks(holdfast("doctor", HOLDFAST_URL=odd.url, HOLDFAST_TOKEN=callers.ALICE))
    assert (found["clock"][0], found["version"][0]) == ("warn", "warn")
    assert "did not say" in found["version"][1] and "same on both sides" not in found["version"][1]


def test_another_version_is_a_warning(odd: OddServer, holdfast: Run) -> None:
    """A server of another version is named with it."""
    odd.answers["/status"] = (200, {"time": datetime.now(UTC).isoformat(), "version": "0.0.1"})
    status, text = checks(holdfast("doctor", HOLDFAST_URL=odd.url, HOLDFAST_TOKEN=callers.ALICE))["version"]
    assert status == "warn" and f"0.0.1, this is {__version__}" in text


def test_token_that_may_not_read_is_a_warning(odd: OddServer, holdfast: Run) -> None:
    """A token that is known but may not read is accepted."""
    odd.answers["/locks?limit=1"] = (403, {"error": "Forbidden", "code": "forbidden"})
    done = holdfast("doctor", HOLDFAST_URL=odd.url, HOLDFAST_TOKEN=callers.ALICE)
    assert (done.returncode, checks(done)["token"][0]) == (0, "warn")


def test_a_secret_is_named(server: ServerProcess, holdfast: Run) -> None:
    """In the command of `holdfast run` or `session exec` it says that this is the secret of a claim or a session."""
    alice = Api.of(server, callers.ALICE)
    job = unique()
    asked = {"lock_name": job, "lease_id": alice.acquired(job, key=unique("key"))["lease_id"]}
    for secret, said in (
        (alice.new_session()["session_secret"], "accepted, it is the secret of a session (from"),
        (alice.post("/claims/secret", asked).json()["claim_secret"], "accepted, it is the secret of a claim, for that"),
    ):
        done = holdfast("doctor", HOLDFAST_URL=server.url, HOLDFAST_TOKEN=secret)
        status, text = checks(done)["token"]
        assert status == "ok" and said in text


# On a data directory.


def test_sound_directory_is_all_ok(stopped: Path, holdfast: Run) -> None:
    """The directory of a stopped server is sound, and looking changes nothing."""
    before = {path.name: path.read_bytes() for path in stopped.iterdir()}
    done = holdfast("doctor", "--data", stopped)
    assert done.returncode == 0, done.stdout
    found = checks(done)
    assert list(found) == ["directory", "access", "disk", "journal", "key"]
    assert {found[name][0] for name in ("directory", "access", "journal", "key")} == {"ok"}
    assert {path.name: path.read_bytes() for path in stopped.iterdir()} == before


def test_dump_is_json_lines(stopped: Path, holdfast: Run) -> None:
    """`--dump` prints every record of the journal as a line of JSON, in order, and no token."""
    done = holdfast("doctor", "--data", stopped, "--dump")
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert [record["seq"] for record in records] == sorted(record["seq"] for record in records)
    assert "job/7" in done.stdout and callers.ALICE not in done.stdout


def test_damage_is_found(copy: Path, holdfast: Run) -> None:
    """A journal with bytes that nobody wrote fails, and the advice is a backup."""
    file = copy / "journal.sqlite3"
    content = bytearray(file.read_bytes())
    content[len(content) // 2 :: 7] = b"\xa5" * len(content[len(content) // 2 :: 7])
    for damaged in (bytes(content), b"something else" * 1_000):
        file.write_bytes(damaged)
        done = holdfast("doctor", "--data", copy)
        assert done.returncode == 2, done.stdout
        status, text = checks(done)["journal"]
        assert status == "FAIL" and text.lower().count("from a backup") == 1


def test_advice_is_that_of_the_server(copy: Path, holdfast: Run) -> None:
    """What a lost or an older journal needs stands behind the arrow, and is no other backup than the one put back."""
    saved = copy.with_name("kept")
    shutil.copy(copy / "journal.sqlite3", saved)
    with ServerProcess.start(copy, tokens=callers.TOKENS) as server:
        assert server.terminate() == 0
    shutil.copy(saved, copy / "journal.sqlite3")
    text, _, advice = checks(holdfast("doctor", "--data", copy))["journal"][1].partition(" -> ")
    assert "has gone back in time" in text and "backup" not in advice
    assert f"remove {copy / 'journal.mark'} and start again" in advice
    (copy / "journal.sqlite3").unlink()
    text, _, advice = checks(holdfast("doctor", "--data", copy))["journal"][1].partition(" -> ")
    assert "is missing, but authority.key and journal.mark are there" in text
    assert "Put the journal back" in advice and "lost for good" in advice
    (copy / "journal.sqlite3").touch(0o600)
    (copy / "journal.mark").chmod(0o644)
    _, _, advice = checks(holdfast("doctor", "--data", copy))["journal"][1].partition("; ")
    assert advice == f"run: chmod 600 '{copy / 'journal.mark'}'"


def set_identity(archive: Path) -> None:
    with closing(apsw.Connection(str(archive))) as db:
        db.execute("UPDATE meta SET value = value + 1 WHERE key = 'identity'")


SPOILED_ARCHIVES: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "lost": (Path.unlink, "archive.sqlite3 is missing", "Put archive.sqlite3 back"),
    "damaged": (lambda archive: archive.write_bytes(b"something else" * 1_000), "archive.sqlite3 is damaged", "backup"),
    "another journal's": (
        set_identity,
        "archive.sqlite3 is the archive of another journal",
        "Put archive.sqlite3 back",
    ),
}


@pytest.mark.parametrize("how", SPOILED_ARCHIVES)
def test_archive_that_does_not_fit_fails(how: str, copy: Path, holdfast: Run) -> None:
    """An archive that is lost, damaged or another journal's fails, with what to do, as a server says it."""
    spoil, text, advice = SPOILED_ARCHIVES[how]
    spoil(copy / "archive.sqlite3")
    done = holdfast("doctor", "--data", copy)
    assert done.returncode == 2, done.stdout
    status, said = checks(done)["journal"]
    assert status == "FAIL" and text in said and advice in said.partition(" -> ")[2], said


def test_archive_older_than_the_journal_fails(copy: Path, holdfast: Run) -> None:
    """An older archive beside a newer journal has a hole between them."""
    shutil.copy(copy / "archive.sqlite3", copy.with_name("kept"))
    archived = inspect(copy).archived_upto
    with ServerProcess.start(copy, tokens=callers.TOKENS, settings={"snapshot_records": 2}) as server:
        for number in range(5):
            Api.of(server, callers.ALICE).acquired(f"later-{number}")
        wait_until(lambda: archived_by_now(copy) > archived, seconds_max=30)
        assert server.terminate() == 0
    shutil.copy(copy.with_name("kept"), copy / "archive.sqlite3")
    status, said = checks(holdfast("doctor", "--data", copy))["journal"]
    assert status == "FAIL" and "archive.sqlite3 has gone back in time" in said and "Put archive.sqlite3 back" in said


def test_spoiled_key_is_found(copy: Path, holdfast: Run) -> None:
    """A key that was cut fails; one that is gone is a warning."""
    (copy / "authority.key").write_bytes(b"short")
    done = holdfast("doctor", "--data", copy)
    assert (done.returncode, checks(done)["key"][0]) == (2, "FAIL")
    (copy / "authority.key").unlink()
    done = holdfast("doctor", "--data", copy)
    assert (done.returncode, checks(done)["key"][0]) == (0, "warn")


def test_files_open_to_others_are_a_warning(copy: Path, holdfast: Run) -> None:
    """A journal that other users may read is a warning with the command that helps."""
    copy.chmod(0o755)
    (copy / "journal.sqlite3").chmod(0o644)
    done = holdfast("doctor", "--data", copy)
    status, text = checks(done)["access"]
    assert (done.returncode, status) == (0, "warn")
    assert "journal.sqlite3" in text and "chmod" in text
    copy.chmod(0o700)
    assert checks(holdfast("doctor", "--data", copy))["access"] == (
        "ok",
        "yours to read and write, and nobody else's",
    )


def test_directory_that_others_may_look_into(copy: Path, holdfast: Run) -> None:
    """Of a directory that others may list, with files that they may not use, both is said."""
    copy.chmod(0o755)
    status, text = checks(holdfast("doctor", "--data", copy))["access"]
    assert status == "ok" and "others may look into the directory" in text and "nobody else's" not in text


def test_files_that_a_server_would_refuse_fail(copy: Path, holdfast: Run) -> None:
    """What no server starts on fails: a key that others may read, a directory they may write to, a linked ballast."""
    (copy / "authority.key").chmod(0o644)
    done = holdfast("doctor", "--data", copy)
    assert (done.returncode, checks(done)["access"][0]) == (2, "FAIL")
    assert "chmod 600" in checks(done)["access"][1] and "authority.key" in checks(done)["access"][1]
    (copy / "authority.key").chmod(0o600)
    copy.chmod(0o777)
    done = holdfast("doctor", "--data", copy)
    assert (done.returncode, checks(done)["access"][0]) == (2, "FAIL")
    copy.chmod(0o700)
    (copy / "ballast").unlink()
    (copy / "ballast").symlink_to(copy / "journal.sqlite3")
    done = holdfast("doctor", "--data", copy)
    assert (done.returncode, checks(done)["access"][0]) == (2, "FAIL")
    (copy / "ballast").unlink()
    assert holdfast("doctor", "--data", copy).returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can look into what is another user's")
def test_root_is_advised_to_run_as_the_owner(copy: Path, holdfast: Run) -> None:
    """Of another user's directory root is told whom to be, and not that a sound journal is to be restored."""
    for path in (copy, *copy.iterdir()):
        os.chown(path, NOBODY, -1)
    done = holdfast("doctor", "--data", copy)
    assert (done.returncode, list(checks(done))) == (2, ["directory", "access"])
    status, text = checks(done)["access"]
    assert status == "FAIL"
    assert text == (
        f"nothing was looked at: it belongs to user {NOBODY} (nobody), and you are user 0 (root)"
        " -> run this as user nobody (runuser -u nobody -- COMMAND)"
    )
    done = holdfast("backup", "--data", copy, copy.with_name("a.backup"))
    assert done.returncode == 2
    assert "run this as user nobody (runuser -u nobody -- COMMAND). There is no backup" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_with_the_wrong_owner_is_no_damage(copy: Path, holdfast: Run) -> None:
    """One file of another user in a directory of ours fails with the command that helps, and with no other."""
    os.chown(copy / "journal.mark", NOBODY, -1)
    status, text = checks(holdfast("doctor", "--data", copy))["journal"]
    assert status == "FAIL" and text.endswith(f"; run: chown 0 '{copy / 'journal.mark'}'")


def test_directory_in_use_is_a_warning(server: ServerProcess, holdfast: Run) -> None:
    """The directory of a running server is left alone, and that is said."""
    done = holdfast("doctor", "--data", server.data)
    assert (done.returncode, checks(done)["journal"][0]) == (0, "warn")
    dumped = holdfast("doctor", "--data", server.data, "--dump")
    assert (dumped.returncode, dumped.stdout) == (2, "")
    assert dumped.stderr.startswith("holdfast: ") and len(dumped.stderr.splitlines()) == 1


def test_no_directory_and_no_journal_fail(tmp_path: Path, holdfast: Run) -> None:
    """A path that is no directory, and a directory without a journal, fail with what to do; nothing is made there."""
    assert holdfast("doctor", "--data", tmp_path / "nowhere").returncode == 2
    empty = tmp_path / "empty"
    empty.mkdir()
    done = holdfast("doctor", "--data", empty)
    assert (done.returncode, checks(done)["journal"][0]) == (2, "FAIL")
    assert list(empty.iterdir()) == []
