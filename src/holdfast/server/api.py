"""The API: every route that is one request and one reply. `handle` is all that the two doors know of it.

Each handler reads the request in the wire's order, submits a command, and renders the outcome when it is durable. What
is refused before anything was decided is answered at once; who may do what rests on the state, so that waits its turn.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from holdfast.core.commands import KeepSession
from holdfast.core.values import BadNameError, parse_name
from holdfast.engine.build import JournalError
from holdfast.server import render
from holdfast.server.access.secrets import SESSION_PREFIX
from holdfast.server.doors.request import BodyReader, Request, read_key
from holdfast.wire import requests
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import UnionType

    from holdfast.core.commands import Command
    from holdfast.core.state import State
    from holdfast.core.values import Moment
    from holdfast.engine.engine import Engine
    from holdfast.engine.waiters import Waiter
    from holdfast.server.access.auth import Auth, Caller
    from holdfast.server.doors.request import Reply
    from holdfast.settings import Settings

    Answered = tuple[int, bytes, tuple[tuple[bytes, bytes], ...]]

T = TypeVar("T")

RESERVED_PREFIX = "__election/"
_BEARER_OF_SESSION = f"Bearer {SESSION_PREFIX}".encode()

BUG = "This is a bug of ours: report it with the request id."

log = logging.getLogger("holdfast.server")

encode = msgspec.json.Encoder().encode


class Counters:
    """What happened since the process started."""

    __slots__ = ("acquires", "releases")

    def __init__(self) -> None:
        self.acquires = 0
        self.releases = 0


class Api:
    """What the handlers share."""

    def __init__(self, engine: Engine, auth: Auth, settings: Settings) -> None:
        self.engine = engine
        self.auth = auth
        self.settings = settings
        self.counters = Counters()
        self._tasks: set[asyncio.Task[None]] = set()
        self.started_ms = engine.clock.monotonic_ms()
        ignore = settings.unknown_fields == "ignore"
        self.acquire_body = BodyReader(requests.AcquireBody, ignore_unknown=ignore)
        self.renew_body = BodyReader(requests.RenewBody, ignore_unknown=ignore)
        self.release_body = BodyReader(requests.ReleaseBody, ignore_unknown=ignore)
        self.session_body = BodyReader(requests.SessionBody, ignore_unknown=ignore)
        self.token_body = BodyReader(requests.TokenBody, ignore_unknown=ignore)
        self.claims_body = BodyReader(requests.ClaimsBody, ignore_unknown=ignore)
        self.transfer_body = BodyReader(requests.TransferBody, ignore_unknown=ignore)
        self.check_body = BodyReader(requests.CheckBody, ignore_unknown=ignore)
        self.revoke_body = BodyReader(requests.RevokeBody, ignore_unknown=ignore)
        self.reopen_body = BodyReader(requests.ReopenBody, ignore_unknown=ignore)

    def identify(self, request: Request, scope: str) -> Caller:
        """Return who asks, as of this turn. A call made with a session's secret keeps that session alive (S1)."""
        engine = self.engine
        now = engine.turn()
        if now is None:
            raise Problem("storage_unavailable", engine.why_not_serving(), retry_after_ms=render.RETRY_LATER_MS)
        request.late = True
        caller = self.auth.identify(request.authorization, engine.state, now.wall_ms)
        caller.may(scope)
        if caller.via is not None:
            engine.submit(KeepSession(principal=caller.principal, session_id=caller.via), _ignore)
        return caller

    def is_still_let_in(self, authorization: bytes | None) -> bool:
        """Tell whether one who was let in before would be again: a stream outlives the token that opened it."""
        try:
            self.auth.identify(authorization, self.engine.state, self.engine.clock.wall_ms())
        except Problem:
            return False
        return True

    def name_for(self, text: str, caller: Caller) -> str:
        """Return the name if it is one and the caller may touch it."""
        try:
            name = parse_name(text)
        except BadNameError as error:
            raise Problem("invalid_lock_name", f"Bad name: {error}.") from None
        if name.startswith(RESERVED_PREFIX):
            raise Problem("forbidden", f"Names that start with {RESERVED_PREFIX!r} are reserved.")
        caller.may_touch(name)
        return name

    def ask(
        self,
        command: Command,
        request: Request,
        reply: Reply,
        wanted: type[T] | UnionType,
        shown: Callable[[T, Moment], Answered],
    ) -> None:
        """Submit a command; show the answer that is wanted, and refuse with any other."""

        def answer(outcome: Any, now: Moment) -> None:  # noqa: ANN401 - narrowed by `wanted`
            if isinstance(outcome, wanted):
                reply(*shown(outcome, now))
            else:
                refuse(render.problem(outcome), request, reply)

        self.engine.submit(command, answer)

    def read(self, view: Callable[[State, Moment], Answered], request: Request, reply: Reply) -> None:
        """Answer from the state, once what it shows is durable."""

        def answer(outcome: object, _: Moment) -> None:
            if isinstance(outcome, tuple):
                reply(*outcome)
            else:
                refuse(render.problem(outcome), request, reply)

        self.engine.read(view, answer)

    def wait(self, waiter: Waiter, request: Request) -> None:
        """Let the door say when the one who waits is gone."""
        request.gone = lambda: self.engine.step_away(waiter)

    def answer_later(self, look: Callable[[], Coroutine[Any, Any, Answered]], request: Request, reply: Reply) -> None:
        """Answer with what a look at the journal finds, which takes its time."""

        async def answer() -> None:
            try:
                answered = await look()
            except JournalError as error:
                problem = Problem("storage_unavailable", f"{error}. Try again.", retry_after_ms=render.RETRY_LATER_MS)
                refuse(problem, request, reply)
            except Exception:
                log.exception("a bug while answering %s", request.request_id)
                refuse(Problem("internal_error", BUG), request, reply)
            else:
                reply(*answered)

        task = asyncio.get_running_loop().create_task(answer())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def refuse(self, problem: Problem, request: Request, reply: Reply) -> None:
        """Refuse; if the refusal rests on the state, not before that is durable."""
        if request.late:
            self.read(
                lambda _state, _now: (problem.status, problem.body(request.request_id), problem.headers()),
                request,
                reply,
            )
        else:
            refuse(problem, request, reply)


def nothing(_outcome: object, _now: Moment) -> Answered:
    """Show that it is done, and nothing else."""
    return 204, b"", ()


def refuse(problem: Problem, request: Request, reply: Reply) -> None:
    """Refuse at once."""
    reply(problem.status, problem.body(request.request_id), problem.headers())


def fingerprint(request: Request, item: str, body: object) -> tuple[str | None, str]:
    """Return the idempotency key and what the request comes to: another request may not use the key again (C5).

    What another session's secret asks is another request, or two runs that use one key would both hear that they own it
    (S3). Whether the secret is right is looked at before the key is.
    """
    key = read_key(request)
    if key is None:
        return None, ""
    content = encode((request.method, item, body))
    authorization = request.authorization
    if authorization is not None and authorization.startswith(_BEARER_OF_SESSION):
        content += authorization[len(_BEARER_OF_SESSION) :].partition(b"_")[0]
    return key, hashlib.blake2b(content, digest_size=12).hexdigest()


def _ignore(outcome: object, now: Moment) -> None:
    """Let the outcome be: it is a side effect of another request."""
