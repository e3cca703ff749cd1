"""A language model that follows a script, on loopback, for agent hosts that run headless.

The server keeps no position: the number of tool results in a request says which step of the script is next. A prompt
selects its script by a marker in its text, so that two agents, or an agent and its subagent, each follow their own.

A step is a tool call, a call that is repeated until it succeeds, or a function that the model runs between
two calls. Such a function can look at the state of the world, wait at a barrier for another agent, or kill the host. It
runs once, even if the host repeats a request.
"""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from tests.hosts.dialects import DIALECTS, Dialect, Json, Reply, ToolCall


@dataclass(frozen=True)
class Until:
    """A call that the model repeats until its result contains `text`.

    Hosts start MCP servers while the first turn runs, and reject calls of their tools until these respond.
    """

    call: ToolCall
    text: str


Step = ToolCall | Until | Callable[[], None]
Script = Sequence[Step]
DONE = "All done."
REPEATS_MAX = 60
REPEAT_SECONDS = 0.25
# Hosts also ask for titles and routing decisions, without tools. One answer suits all of them.
_SIDE_ANSWER = json.dumps(
    {"title": "x", "reasoning": "x", "model_choice": "flash", "complexity_reasoning": "x", "complexity_score": 5}
)


@dataclass(frozen=True)
class Turn:
    """One request for a turn of the model, in the words of the host."""

    marker: str
    tools: list[str]
    results: list[str]
    body: Json


class ScriptedModel:
    """The server. Use it as a context manager."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.errors: list[BaseException] = []
        self._scripts: dict[str, Script] = {}
        self._ran: set[tuple[str, int]] = set()
        self._repeats: dict[tuple[str, int], int] = {}
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.model = self
        self._thread = threading.Thread(target=self._server.serve_forever, name="scripted-model", daemon=True)

    @property
    def url(self) -> str:
        """The address without a path."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def follow(self, scripts: Mapping[str, Script]) -> None:
        """Follow these scripts from now on, by marker, and forget earlier turns."""
        with self._lock:
            self._scripts = dict(scripts)
            self._ran.clear()
            self._repeats.clear()
            self.turns.clear()
            self.errors.clear()

    def results(self, marker: str) -> list[str]:
        """Return the tool results that the agent with this marker has reported."""
        with self._lock:
            return max((turn.results for turn in self.turns if turn.marker == marker), key=len, default=[])

    def answer(self, dialect: Dialect, path: str, body: Json) -> Reply:
        """Return the next turn for a request."""
        tools, results, prompt = dialect.tools(body), dialect.results(body), dialect.prompt(body)
        if not tools:
            return dialect.reply(path, body, [], _SIDE_ANSWER)
        with self._lock:
            # The last marker in a prompt decides: a subagent may see the prompt of its parent first.
            found = [marker for marker in self._scripts if marker in prompt]
            marker = max(found, key=prompt.rfind, default="")
            script = self._scripts.get(marker, ())
            turn = Turn(marker, tools, results, body)
            self.turns.append(turn)
        call = self._advance(marker, script, turn)
        return dialect.reply(path, body, [call.filled(results)] if call else [], DONE)

    def _advance(self, marker: str, script: Script, turn: Turn) -> ToolCall | None:
        """Run the functions that are due, and return the next call."""
        done = len(turn.results)
        for index, step in enumerate(script):
            if isinstance(step, Until):
                repeats = self._repeats_of(marker, index, done, is_over=done > 0 and step.text in turn.results[-1])
                if repeats is None:
                    threading.Event().wait(REPEAT_SECONDS if done else 0)
                    return step.call
                done -= repeats
            elif isinstance(step, ToolCall):
                if done == 0:
                    return step
                done -= 1
            elif done == 0 and self._is_first(marker, index):
                try:
                    step()
                except BaseException as error:  # noqa: BLE001 - the test raises it again
                    self.errors.append(error)
        return None

    def _repeats_of(self, marker: str, index: int, done: int, *, is_over: bool) -> int | None:
        """Return how many results a repeated call had, or None if it must be repeated again."""
        with self._lock:
            repeats = self._repeats.get((marker, index))
            if repeats is None and (is_over or done >= REPEATS_MAX):
                repeats = self._repeats[marker, index] = done
            return repeats

    def _is_first(self, marker: str, index: int) -> bool:
        with self._lock:
            is_first = (marker, index) not in self._ran
            self._ran.add((marker, index))
            return is_first


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    model: ScriptedModel

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore a host that was killed in the middle of a request."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the standard library
        """Write no log: the turns are kept instead."""

    def do_GET(self) -> None:
        models = {"object": "list", "data": [{"id": "scripted", "object": "model"}], "models": []}
        is_list = self.path.partition("?")[0].endswith("/models")
        self._send(Reply(json.dumps(models if is_list else {}).encode()), 200 if is_list else 404)

    def do_HEAD(self) -> None:
        self._send(Reply(b""))

    def do_POST(self) -> None:
        path, body = self.path.partition("?")[0], self._read()
        if path.endswith(("/count_tokens", ":countTokens")):
            self._send(Reply(json.dumps({"input_tokens": 10, "totalTokens": 10}).encode()))
            return
        dialect = next((each for each in DIALECTS if each.matches(path)), None)
        if dialect is None:
            self._send(Reply(b"{}"), 404)
        else:
            self._send(self.server.model.answer(dialect, path, body))

    def _read(self) -> Json:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            data = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            data = gzip.decompress(data)
        body = json.loads(data or b"{}")
        return body if isinstance(body, dict) else {}

    def _send(self, reply: Reply, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/event-stream" if reply.is_stream else "application/json")
        self.send_header("Content-Length", str(len(reply.content)))
        self.end_headers()
        self.wfile.write(reply.content)
