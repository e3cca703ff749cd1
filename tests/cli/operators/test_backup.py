"""`holdfast backup` and `holdfast restore`: of a server that runs, of a directory, and what is said when it fails."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import msgspec
import pytest

from holdfast.journal.backup import HEAD, KEY, RECORDS, ROWS, TAIL, About, BackupWriter, frames, values_in
from holdfast.journal.codec import decode_batch
from holdfast.journal.interface import HistoryPart, TailPart
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.server import ServerProcess

Run = Callable[..., subprocess.CompletedProcess[str]]


def of(server: ServerProcess, token: str = callers.OPERATOR) -> dict[str, str]:
    return {"HOLDFAST_URL": server.url, "HOLDFAST_TOKEN": token}


def test_backup_is_restored_by_a_second_command(server: ServerProcess, holdfast: Run, tmp_path: Path) -> None:
    """From a running server to one on a new directory: the file is private, and both say what they did."""
    job = unique("job-")
    Api.of(server, callers.ALICE).acquired(job, owner="ana", ttl_seconds=600)
    done = holdfast("backup", "it.backup", **of(server))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("it.backup is whole and on the disk: ") and " as of record " in done.stdout
    assert "holds the server's key" in done.stderr
    assert (tmp_path / "it.backup").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir() if "backup" in path.name] == ["it.backup"]

    looked = holdfast("doctor", "--data", "it.backup")
    assert looked.returncode == 0 and "backup      whole: " in looked.stdout, looked.stdout

    done = holdfast("restore", "it.backup", "--data", "data")
    assert done.returncode == 0, done.stderr
    assert "1 live on, the longest for " in done.stdout and ": their time stood still" in done.stdout
    assert job in done.stdout and "fencing tokens  go on after 4" in done.stdout
    assert "learn that with their next request" in " ".join(done.stderr.split())
    looked = holdfast("doctor", "--data", "data")
    assert looked.returncode == 0 and re.search(r"restored \d+ s ago from a backup of", looked.stdout), looked.stdout
    with ServerProcess.start(tmp_path / "data", tokens=callers.TOKENS) as again:
        assert Api.of(again, callers.ALICE).status(job).json()["owner"] == "ana"


def test_json_output_has_the_same_facts(server: ServerProcess, holdfast: Run) -> None:
    """A program reads how much there is, and where the counters go on."""
    made = json.loads(holdfast("backup", "it", "--json", **of(server)).stdout)
    assert set(made) == {"status", "file", "size_bytes", "records", "seq", "fencing_token", "made_at", "version"}
    restored = json.loads(holdfast("restore", "it", "--data", "data", "--beyond", 10**12, "--json").stdout)
    assert restored["fencing_token"] == 10**12
    assert {"data", "made_at", "seq", "records", "leases", "sessions", "tokens", "waiting"} < set(restored)


def test_unreadable_target_is_reported(server: ServerProcess, holdfast: Run) -> None:
    """A name that the system refuses to look at is one that cannot be written, and no error of the program."""
    done = holdfast("backup", "b" * 300, **of(server))
    assert done.returncode == 2, done.stderr
    assert "cannot be written: File name too long. There is no backup" in done.stderr


def test_existing_file_is_not_replaced(server: ServerProcess, holdfast: Run, tmp_path: Path) -> None:
    """Not without --force: the last good backup may be the only one."""
    (tmp_path / "it").write_text("precious")
    done = holdfast("backup", "it", **of(server))
    assert done.returncode == 64 and "it is there already" in done.stderr and "--force" in done.stderr
    assert (tmp_path / "it").read_text() == "precious"
    assert holdfast("backup", "it", "--force", **of(server)).returncode == 0
    assert holdfast("doctor", "--data", "it").returncode == 0


def test_refusal_leaves_no_file(server: ServerProcess, holdfast: Run, tmp_path: Path) -> None:
    """A token that may not, and a server that is not there, are said as everywhere, and leave nothing."""
    done = holdfast("backup", "it", **of(server, callers.ALICE))
    assert done.returncode == 77 and "admin" in done.stderr
    done = holdfast("backup", "it", HOLDFAST_URL="http://127.0.0.1:1", HOLDFAST_TOKEN=callers.OPERATOR)
    assert done.returncode == 69
    assert not [path for path in tmp_path.iterdir() if path.is_file()]


def test_backup_of_a_stopped_server(holdfast: Run, tmp_path: Path) -> None:
    """With --data, of a directory that no server has open; of one that a server has, it says so."""
    data = tmp_path / "data"
    with ServerProcess.start(data, tokens=callers.TOKENS) as own:
        Api.of(own, callers.ALICE).acquired("job", owner="ana", ttl_seconds=600)
        done = holdfast("backup", "it", "--data", data)
        assert done.returncode == 2 and "a server has" in done.stderr, done.stderr
        assert not (tmp_path / "it").exists()
        own.terminate()
    done = holdfast("backup", "it", "--data", data, "--json")
    assert done.returncode == 0, done.stderr
    restored = json.loads(holdfast("restore", "it", "--data", "new", "--json").stdout)
    assert [lease["name"] for lease in restored["leases"]] == ["job"]
    done = holdfast("backup", "other", "--data", tmp_path)
    assert done.returncode == 2 and "authority.key cannot be read" in done.stderr


class _Cut(BaseHTTPRequestHandler):
    """Sends a part of a backup and hangs up in good order."""

    full_body = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.full_body) // 2))
        self.end_headers()
        self.wfile.write(self.full_body[: len(self.full_body) // 2])

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name upstream
        """Keep the tests quiet."""


def test_truncated_download_leaves_no_backup(server: ServerProcess, holdfast: Run, tmp_path: Path) -> None:
    """An answer that ends in good order, but short of its end, leaves no file."""
    _Cut.full_body = Api.of(server, callers.OPERATOR).get("/backup").body
    with HTTPServer(("127.0.0.1", 0), _Cut) as cutting:
        thread = Thread(target=cutting.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{cutting.server_port}"
        done = holdfast("backup", "it", HOLDFAST_URL=url, HOLDFAST_TOKEN=callers.OPERATOR)
        thread.join()
    assert done.returncode == 2
    assert "is not a whole backup: it breaks off" in done.stderr and "There is no backup" in done.stderr
    assert not [path for path in tmp_path.iterdir() if path.is_file()]


def test_full_disk_leaves_no_file(server: ServerProcess, tmp_path: Path) -> None:
    """The error is said in words, and nothing half is left. A limit on the size of files stands for a small disk."""
    full_body = Api.of(server, callers.OPERATOR).get("/backup").body
    limited = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({len(full_body) // 2}, {len(full_body) // 2}));"
        "from holdfast.cli.main import main; main()"
    )
    command = [sys.executable, "-B", "-c", limited, "backup", "it"]
    environment = {**os.environ, **of(server), "XDG_CONFIG_HOME": str(tmp_path)}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "it cannot be written: File too large. There is no backup, and nothing is left of it" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", [b"", b"not a backup", b"holdfast backup\nbut only its beginning"])
def test_other_files_are_not_restored(content: bytes, holdfast: Run, tmp_path: Path) -> None:
    """It is said, and no directory is made."""
    (tmp_path / "it").write_bytes(content)
    done = holdfast("restore", "it", "--data", "data")
    assert done.returncode == 2 and "backup" in done.stderr
    assert not (tmp_path / "data").exists()
    assert holdfast("doctor", "--data", "it").returncode == 2


def test_restore_refuses_a_directory_in_use(server: ServerProcess, holdfast: Run) -> None:
    """A server's own directory is refused, with what to do."""
    assert holdfast("backup", "it", **of(server)).returncode == 0
    before = sorted(path.name for path in server.data.iterdir())
    done = holdfast("restore", "it", "--data", server.data)
    assert done.returncode == 2
    assert "is not empty" in done.stderr and "Name another directory with --data" in done.stderr
    assert sorted(path.name for path in server.data.iterdir()) == before


def test_restore_goes_where_serve_would_look(server: ServerProcess, holdfast: Run, tmp_path: Path) -> None:
    """Without --data it is the directory of the settings."""
    assert holdfast("backup", "it", **of(server)).returncode == 0
    done = holdfast("restore", "it", HOLDFAST_DATA=str(tmp_path / "own"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "own" / "journal.sqlite3").is_file()


def test_file_readable_by_others_is_reported(server: ServerProcess, holdfast: Run, tmp_path: Path) -> None:
    """It holds the server's key."""
    assert holdfast("backup", "it", **of(server)).returncode == 0
    (tmp_path / "it").chmod(0o644)
    assert "chmod 600 'it'" in holdfast("restore", "it", "--data", "data").stderr
    assert "warn  access" in holdfast("doctor", "--data", "it").stdout


@pytest.mark.parametrize("wall_ms", [253_402_300_800_000, 10**18])
def test_backup_with_a_wrong_clock_is_restored(
    server: ServerProcess, holdfast: Run, tmp_path: Path, wall_ms: int
) -> None:
    """A server whose wall clock was beyond the year 9999 made a whole backup: the time it shows stops nobody."""
    assert holdfast("backup", "good", **of(server)).returncode == 0
    writer = BackupWriter()
    pieces: list[bytes] = []
    about: About | None = None
    for kind, body in frames([(tmp_path / "good").read_bytes()], "it"):
        if kind == HEAD:
            about = msgspec.structs.replace(msgspec.json.decode(body, type=About), wall_ms=wall_ms)
        elif kind == KEY:
            assert about is not None
            pieces.append(writer.begin(about, body))
        elif kind == ROWS:
            pieces += writer.put(values_in(body))
        elif kind in {TAIL, RECORDS}:
            pieces += writer.put((TailPart if kind == TAIL else HistoryPart)(list(decode_batch(body))))
    (tmp_path / "mad").write_bytes(b"".join([*pieces, *writer.end()]))
    for said in (holdfast("doctor", "--data", "mad"), holdfast("restore", "mad", "--data", "of-mad")):
        assert said.returncode == 0 and "9999-12-31" in said.stdout, said.stdout + said.stderr
    assert holdfast("doctor", "--data", "of-mad").returncode == 0
