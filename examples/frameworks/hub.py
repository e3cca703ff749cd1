"""What the agents of the story change: a web service behind a fence for each issue.

It keeps the steps that were done and those that were refused, and it can let a request wait, as if that were long on
the way.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import holdfast
from examples.frameworks.stage import SECONDS_MAX, job_of
from holdfast.fencing import TOKEN_HEADER, FencedWSGI, MemoryFence

TOKEN_VARIABLE = "HTTP_" + TOKEN_HEADER.upper().replace("-", "_")


@dataclass(frozen=True)
class Effect:
    """One request of an agent."""

    issue: str
    step: str
    agent: str
    token: int


@dataclass(frozen=True)
class Hold:
    """A request that waits between its sender and the fence."""

    arrived: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)
    answered: threading.Event = field(default_factory=threading.Event)


class Hub:
    """The service. A token counts only if the server of Holdfast says that it is current."""

    def __init__(self, client: holdfast.Holdfast) -> None:
        self.url = ""
        self.accepted: list[Effect] = []
        self.refused: list[Effect] = []
        self._holds: dict[tuple[str, str], Hold] = {}
        self._guarded = FencedWSGI(
            self._keep,
            MemoryFence(),
            resource=lambda environ: _issue_and_step(environ)[0],
            is_current=lambda issue, token: client.check(job_of(issue), token),
        )

    def hold(self, issue: str, step: str) -> Hold:
        """Let the next such request wait."""
        return self._holds.setdefault((issue, step), Hold())

    @contextmanager
    def serving(self) -> Iterator[None]:
        with make_server("127.0.0.1", 0, self._on_the_way, _Threads, _Quiet) as running:
            self.url = f"http://127.0.0.1:{running.server_port}"
            threading.Thread(target=running.serve_forever, daemon=True).start()
            yield
            running.shutdown()

    def _on_the_way(self, environ: MutableMapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Take all of the request from its sender, who may die now, and let it wait if it shall."""
        environ["hub.agent"] = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])).decode()
        hold = self._holds.pop(_issue_and_step(environ), None)
        if hold:
            hold.arrived.set()
            hold.go.wait(SECONDS_MAX)

        def answer(status: str, *more: Any) -> Any:  # noqa: ANN401  # Both are the web server's own.
            if not status.startswith("204"):
                self.refused.append(_effect(environ))
            return start_response(status, *more)

        try:
            return self._guarded(environ, answer)
        finally:
            if hold:
                hold.answered.set()

    def _keep(self, environ: MutableMapping[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        self.accepted.append(_effect(environ))
        start_response("204 No Content", [])
        return []


def _issue_and_step(environ: MutableMapping[str, Any]) -> tuple[str, str]:
    _, _, issue, step = environ["PATH_INFO"].split("/")
    return issue, step


def _effect(environ: MutableMapping[str, Any]) -> Effect:
    return Effect(*_issue_and_step(environ), environ["hub.agent"], int(environ.get(TOKEN_VARIABLE, 0)))


class _Threads(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing; the agents do."""
