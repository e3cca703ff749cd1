"""A worker that slept through the end of its lease wants to replace a file, and is refused.

    python examples/paused_file_write.py

It starts two workers. A claims the job and is paused just before it writes. Its lease ends, B takes over and writes.
Then A is woken up and goes on where it was: its fencing token is older than the one kept beside the file.

The server is found by HOLDFAST_URL and HOLDFAST_TOKEN or HOLDFAST_TOKEN_FILE; without them, what `make run` set up is.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import holdfast
from holdfast.fencing import StaleToken, fenced_write


def work(name: str, arguments: argparse.Namespace) -> None:
    """Claim the job and write the file. This is all that a program of your own needs."""
    try:
        with holdfast.claim(arguments.job, ttl=arguments.ttl, wait=60, owner=name) as claim:
            say(name, f"the job is mine, with token {claim.fencing_token}")
            if name == "A":
                os.kill(os.getpid(), signal.SIGSTOP)  # Nothing of this process runs from here until it is woken up.
            fenced_write(arguments.file, f"written by {name}\n".encode(), claim.fencing_token)
            say(name, "written")
    except StaleToken as stale:
        say(name, f"refused: {stale}")


def tell_the_story(arguments: argparse.Namespace) -> None:
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
    say("story", f"the file was {arguments.file.read_text().strip()}")


def start(name: str, arguments: argparse.Namespace) -> subprocess.Popen[bytes]:
    options = ["--job", arguments.job, "--ttl", str(arguments.ttl), "--file", str(arguments.file)]
    return subprocess.Popen([sys.executable, __file__, *options, "--worker", name])


def say(who: str, text: str) -> None:
    print(f"{who}: {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Show that a fenced file refuses an owner from the past.")
    parser.add_argument("--job", default="write-summary")
    parser.add_argument("--ttl", type=float, default=3, help="how long the job stays with a worker that is paused")
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker, arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        arguments.file = Path(folder) / "summary.txt"
        tell_the_story(arguments)


if __name__ == "__main__":
    main()
