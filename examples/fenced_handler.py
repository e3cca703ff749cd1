"""A worker that slept through the end of its lease calls a web service, which answers 412 and changes nothing.

    python examples/fenced_handler.py

It starts a small WSGI service behind a fence, and two workers. A claims the job and is paused just before its request.
Its lease ends, B takes over and sends its own. Then A is woken up and goes on where it was.

The server is found by HOLDFAST_URL and HOLDFAST_TOKEN or HOLDFAST_TOKEN_FILE; without them, what `make run` set up is.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import holdfast
from holdfast.fencing import TOKEN_HEADER, FencedWSGI, FolderFence

reports: dict[str, str] = {}


def service(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Keep what was sent. It knows nothing of fences: the middleware lets only the newest owner in."""
    length = int(environ["CONTENT_LENGTH"])
    reports[environ["PATH_INFO"]] = environ["wsgi.input"].read(length).decode()
    start_response("204 No Content", [])
    return []


def work(name: str, arguments: argparse.Namespace) -> None:
    """Claim the job and send the report with its token. This is all that a program of your own needs."""
    try:
        with holdfast.claim(arguments.job, ttl=arguments.ttl, wait=60, owner=name) as claim:
            say(name, f"the job is mine, with token {claim.fencing_token}")
            if name == "A":
                os.kill(os.getpid(), signal.SIGSTOP)  # Nothing of this process runs from here until it is woken up.
            connection = HTTPConnection("127.0.0.1", arguments.port, timeout=10)
            connection.request("PUT", "/reports/7", f"written by {name}", {TOKEN_HEADER: str(claim.fencing_token)})
            answer = connection.getresponse()
            say(name, f"answered {answer.status} {answer.read().decode()}")
            connection.close()
    except holdfast.LeaseLost as lost:
        say(name, f"learns what happened: {lost}")


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
    say("story", f"the report was {reports.get('/reports/7')}")


def start(name: str, arguments: argparse.Namespace) -> subprocess.Popen[bytes]:
    options = ["--job", arguments.job, "--ttl", str(arguments.ttl), "--port", str(arguments.port)]
    return subprocess.Popen([sys.executable, __file__, *options, "--worker", name])


@contextmanager
def serving(job: str) -> Iterator[int]:
    """Serve on a free port, which is given to the block. A token counts only if the server says that it is current."""
    with tempfile.TemporaryDirectory() as folder, holdfast.Holdfast() as server:
        app = FencedWSGI(service, FolderFence(folder), is_current=lambda _, token: server.check(job, token))
        with make_server("127.0.0.1", 0, app, handler_class=Quiet) as running:
            threading.Thread(target=running.serve_forever, daemon=True).start()
            yield running.server_port
            running.shutdown()


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing; the workers do."""


def say(who: str, text: str) -> None:
    print(f"{who}: {text}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Show that a fenced service refuses an owner from the past.")
    parser.add_argument("--job", default="send-report-7")
    parser.add_argument("--ttl", type=float, default=3, help="how long the job stays with a worker that is paused")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker, arguments)
        return
    with serving(arguments.job) as arguments.port:
        tell_the_story(arguments)


if __name__ == "__main__":
    main()
