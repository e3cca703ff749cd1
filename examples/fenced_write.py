"""A worker that slept through the end of its lease wants to write to a database, and the database refuses it.

    python examples/fenced_write.py

It starts two workers. A claims the job and is paused just before it writes: a full disk, a closed laptop. Its lease
ends, B takes over and writes. Then A is woken up. It was in the middle of its work and does not look at its claim;
but its fencing token is older than the one that the database has seen.

The server is found by HOLDFAST_URL and HOLDFAST_TOKEN or HOLDFAST_TOKEN_FILE; without them, what `make run` set up is.
"""

import argparse
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import holdfast
from holdfast.fencing import SqlFence, StaleToken

FENCE = SqlFence()


def work(name: str, arguments: argparse.Namespace) -> None:
    """Claim the job and write the report. This is all that a program of your own needs."""
    try:
        with (
            closing(sqlite3.connect(arguments.database)) as connection,
            holdfast.claim(arguments.job, ttl=arguments.ttl, wait=60, owner=name) as claim,
        ):
            say(name, f"the job is mine, with token {claim.fencing_token}")
            if name == "A":
                os.kill(os.getpid(), signal.SIGSTOP)  # Nothing of this process runs from here until it is woken up.
            with connection, FENCE.guard(connection, "reports/7", claim.fencing_token):
                connection.execute("UPDATE report SET body = ? WHERE id = 7", (f"written by {name}",))
            say(name, "written")
    except StaleToken as stale:
        say(name, f"refused: {stale}")


def tell_the_story(arguments: argparse.Namespace) -> None:
    with closing(sqlite3.connect(arguments.database)) as connection:
        FENCE.create(connection)
        with connection:
            connection.execute("CREATE TABLE report (id INTEGER PRIMARY KEY, body TEXT)")
            connection.execute("INSERT INTO report VALUES (7, 'empty')")
        paused = start("A", arguments)
        try:
            _, status = os.waitpid(paused.pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                sys.exit("A ended before it could be paused")
            say("story", "A is paused, and so are its heartbeats")
            start("B", arguments).wait()
            say("story", "A wakes up")
            paused.send_signal(signal.SIGCONT)
            paused.wait()
        finally:
            paused.kill()
        (body,) = connection.execute("SELECT body FROM report").fetchone()
        say("story", f"the report was {body}")


def start(name: str, arguments: argparse.Namespace) -> subprocess.Popen[bytes]:
    options = ["--job", arguments.job, "--ttl", str(arguments.ttl), "--database", str(arguments.database)]
    return subprocess.Popen([sys.executable, __file__, *options, "--worker", name])


def say(who: str, text: str) -> None:
    print(f"{who}: {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Show that a fenced database refuses an owner from the past.")
    parser.add_argument("--job", default="write-report-7")
    parser.add_argument("--ttl", type=float, default=3, help="how long the job stays with a worker that is paused")
    parser.add_argument("--database", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker, arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        arguments.database = Path(folder) / "reports.sqlite3"
        tell_the_story(arguments)


if __name__ == "__main__":
    main()
