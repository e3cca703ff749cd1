"""Shared by all operations: the engine, authentication, and the one place where outcomes become replies.

What is refused before anything was decided is answered immediately. Who may do what rests on the state, and so does
every outcome: they are answered when what they rest on is durable.

`RecentEvents` keeps what has no record (refused waits, ended tokens) until a restart or a change of the leader.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from holdfast.api import rendering
from holdfast.api.auth.auth import OWN_CLAIM_ONLY, Auth, Caller, TokenUses, WrongTokenError
from holdfast.api.auth.origins import Origins
from holdfast.api.auth.refusals import RefusalLog, WrongTokens
from holdfast.api.auth.secrets import ClaimId, claim_held, claim_holds
from holdfast.api.context import Envelope, Reply, RequestContext
from holdfast.api.streams import FrameCache, OpenStreams
from holdfast.config import Settings
from holdfast.core.commands import Command, KeepSession
from holdfast.core.names import BadNameError, parse_name
from holdfast.core.outcomes import Deadlock
from holdfast.core.state import State
from holdfast.core.values import Instant
from holdfast.engine.build import DeposedError, JournalError
from holdfast.engine.engine import Engine
from holdfast.engine.waiters import NotLeader
from holdfast.http.manager import RoundRobinQueue
from holdfast.http.messages import BUG, Request, ResponseParts, envelope
from holdfast.http.proxies import Proxies
from holdfast.observability.metrics import Meter
from holdfast.wire.problems import Problem

P = TypeVar("P")

Renderer: TypeAlias = "Callable[[ApiService, RequestContext, Any, Instant], ResponseParts]"

RESERVED_PREFIX = "__election/"

log = logging.getLogger("holdfast.server")


class FairLock:
    """A lock for slow reads, which are made in slices: one at a time, and waiting principals take turns."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: RoundRobinQueue[asyncio.Future[None]] = RoundRobinQueue()

    @contextlib.asynccontextmanager
    async def held_for(self, principal: str) -> AsyncIterator[None]:
        if self._is_taken:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(principal, turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._hand_over()  # It was given the turn, and will not take it.
                raise
        self._is_taken = True
        try:
            yield
        finally:
            self._hand_over()

    def _hand_over(self) -> None:
        while self._waiting:
            next_waiter = self._waiting.popleft()
            if not next_waiter.done():
                next_waiter.set_result(None)
                return
        self._is_taken = False


class ApiService:
    def __init__(self, engine: Engine, auth: Auth, settings: Settings, meter: Meter | None = None) -> None:
        self.engine = engine
        self.auth = auth
        self.settings = settings
        self.has_revoked_code = settings.reentrant != "holder"  # False: no code `revoked`, as OctoStore.
        self.meter = meter or Meter(settings, engine.clock, engine.metrics)
        self.counters = self.meter.sources.counters
        self._slow_reads = FairLock()
        self.streams = OpenStreams(settings.watches_per_principal_max)
        self.lease_watches = OpenStreams(settings.lease_watches_per_principal_max, "lease_watches")
        self.open_lease_watches: dict[str, object] = {}
        self.frames = FrameCache()
        self._parts: dict[Any, Any] = {}
        self.pages = OpenStreams(settings.watches_per_principal_max)  # Of the page, apart from `streams`.
        self.proxies = Proxies(settings.trusted_proxies)
        self.origins = Origins(settings, self.proxies, auth.key)
        self._wrong_tokens = WrongTokens(settings.wrong_tokens_per_minute_max)
        self._refusal_log = RefusalLog()
        self.refused_deadlocks: RecentEvents[tuple[str, ...]] = RecentEvents(engine.clock.wall_ms())
        self.ended_tokens: RecentEvents[str] = RecentEvents(engine.clock.wall_ms())
        self.token_uses = TokenUses(engine, auth.static)
        self._seen = self.token_uses.seen
        streams = {"watches": self.streams, "lease_watches": self.lease_watches, "pages": self.pages}
        self.meter.sources.serve(engine, streams)
        self.ended = engine.ended
        self.started_ms = engine.clock.monotonic_ms()
        self._tasks: set[asyncio.Task[None]] = set()

    def part(self, make: Callable[[Engine], P]) -> P:
        """Return what `make` makes of the engine: made at the first call, and kept as long as this service."""
        part: P | None = self._parts.get(make)
        if part is None:
            part = self._parts[make] = make(self.engine)
        return part

    def admit(self, request: Request, scope: str, own_scope: str = "") -> Caller:
        """Return the caller as of this turn, if it may ask. A session's secret keeps its session alive (S1)."""
        engine = self.engine
        now = engine.tick()
        if now is None:
            raise rendering.problem(engine.rejection())
        request.rests_on_state = True
        caller = self.auth.static_by_header.get(request.authorization)
        if caller is None:
            try:
                caller = self.auth.identify(request.authorization, engine.state, now.wall_ms)
            except WrongTokenError:
                self._count_wrong_token(request)
                raise
            if caller.cookie is not None:
                self.origins.check(request, caller)
        if request.on_known is not None:
            request.on_known(caller.principal)
        request.is_known = True
        self._seen[caller.principal] = now.wall_ms
        if scope not in caller.scopes and own_scope not in caller.scopes:
            caller.require_scope(scope)
        if caller.session is not None:
            engine.submit(KeepSession(principal=caller.principal, session_id=caller.session), _ignore)
        return caller

    def _count_wrong_token(self, request: Request) -> None:
        """Count it, and raise if there were too many: immediately, unless another node may have made the token."""
        retry_ms = self._wrong_tokens.count(self.proxies.client_of(request), self.engine.clock.monotonic_ms())
        if retry_ms:
            request.rests_on_state = self.engine.journal.is_shared
            text = "This access token is not known. Too many unknown access tokens came from your address."
            text += " A right one works at once."
            raise Problem("too_many_wrong_tokens", text, retry_after_ms=retry_ms)

    def current_caller(self, authorization: bytes | None) -> Caller | None:
        """Return who a credential is from now; None if it is not good any more: a stream may outlive its token."""
        try:
            return self.auth.identify(authorization, self.engine.state, self.engine.clock.wall_ms())
        except Problem:
            return None

    def principal_of(self, request: Request) -> str | None:
        caller = self.current_caller(request.authorization) if request.is_known else None
        return None if caller is None else caller.principal

    def _log_refusal(self, problem: Problem, request: Request, caller: Caller | None = None) -> None:
        """Log a refusal. `caller` is who it was when it asked, since a token may end while its request waits."""
        if not self._refusal_log.is_logged(problem):
            return
        if caller is None and request.is_known:
            caller = self.current_caller(request.authorization)
        principal, secret = (None, None) if caller is None else (caller.principal, caller.secret)
        client, now_ms = self.proxies.client_of(request), self.engine.clock.monotonic_ms()
        self._refusal_log.note(problem, request, principal, client, now_ms, secret=secret)

    def tick(self) -> None:
        now_ms = self.engine.clock.monotonic_ms()
        self._refusal_log.tick(now_ms)
        self.token_uses.tick(now_ms)
        self.meter.tick()

    async def end_waits(self) -> None:
        self.engine.feed.close()
        self.engine.end_waits()

    def end(self) -> None:
        self._refusal_log.end()
        self.token_uses.write()

    def name_for(self, text: str, caller: Caller, body: object = None) -> str:
        """Return the name if it is one and the caller may touch it, with what it asks in the body."""
        # What was claimed is a name, and stays one (`core.names`): it need not be looked at again.
        if text not in self.engine.state.slots:
            try:
                parse_name(text)
            except BadNameError as error:
                raise Problem("invalid_lock_name", f"{error}.") from None
        if text[0] == "_" and text.startswith(RESERVED_PREFIX):
            raise Problem("forbidden", f"Names that start with {RESERVED_PREFIX!r} are reserved.")
        if caller.prefix is not None:
            if caller.prefix:
                caller.require_touch(text)
            if caller.claim is not None:
                self._require_own(text, caller.claim, body)
        return text

    def _require_own(self, name: str, claim: ClaimId, body: object) -> None:
        """Raise unless the claim holds the name now, or asks what became of a lease that it had (L7)."""
        state = self.engine.state
        if not claim_holds(claim, name, state) and not claim_held(claim, name, getattr(body, "lease_id", None), state):
            raise Problem("forbidden", OWN_CLAIM_ONLY)

    def submit(self, context: RequestContext, command: Command, renderers: Mapping[type, Renderer]) -> None:
        context.renderers = renderers
        waiter = self.engine.submit(command, context.on_decided)
        if waiter is not None:
            context.request.on_disconnect = partial(self.engine.stop_waiting, waiter)

    def refusal_of(self, context: RequestContext, outcome: object) -> ResponseParts:
        if type(outcome) is Deadlock:
            self.record_deadlock(context, outcome)
        problem = rendering.problem(outcome, context.caller.prefix, has_revoked_code=self.has_revoked_code)
        self.counters.refuse(problem.code)
        self._log_refusal(problem, context.request, context.caller)
        return context.refusal(problem, context.request)

    def record_deadlock(self, context: RequestContext, refused: Deadlock) -> None:
        """Keep for a while that a wait was refused, for operators: no record says so."""
        clock = self.engine.clock
        principal = context.caller.principal
        self.refused_deadlocks.note(refused.path, principal, now_ms=clock.monotonic_ms(), wall_ms=clock.wall_ms())

    def internal_error(self, context: RequestContext, error: Exception) -> ResponseParts:
        self.counters.refuse("internal_error")
        log.error("a bug while answering %s", context.request.request_id, exc_info=error)
        return envelope(Problem("internal_error", BUG), context.request)

    def read(self, context: RequestContext, view: Callable[[State, Instant], ResponseParts]) -> None:
        self.engine.read(view, context.on_read)

    def refuse(self, problem: Problem, refusal: Envelope, request: Request, reply: Reply) -> None:
        """Refuse; if the refusal rests on the state, not before that is durable."""
        self.counters.refuse(problem.code)
        self._log_refusal(problem, request)
        answered = refusal(problem, request)
        if not request.rests_on_state:
            reply(request, *answered)
            return

        def answer(outcome: object, _: Instant) -> None:
            reply(request, *(answered if outcome is None else refusal(rendering.problem(outcome), request)))

        self.engine.read(lambda _state, _now: None, answer)

    def answer_slowly(self, context: RequestContext, query: Callable[[], Coroutine[Any, Any, ResponseParts]]) -> None:
        """Answer with the result of a slow read. It is cancelled if the client is gone."""

        async def answer() -> None:
            try:
                async with self._slow_reads.held_for(context.caller.principal):
                    answered = await query()
            except DeposedError as error:
                answered = context.refusal(rendering.problem(NotLeader(str(error))), context.request)
            except JournalError as error:
                problem = Problem(
                    "storage_unavailable", f"{error}. Try again.", retry_after_ms=rendering.RETRY_LATER_MS
                )
                answered = context.refusal(problem, context.request)
            except Exception as error:  # noqa: BLE001 - Whatever it is, the caller waits for an answer.
                answered = self.internal_error(context, error)
            context.answer(answered)

        task = asyncio.get_running_loop().create_task(answer())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        context.request.on_lost = task.cancel


def _ignore(outcome: object, now: Instant) -> None: ...


ENTRIES_MAX = 100
PER_PRINCIPAL_MAX = 20
RETENTION_MS = 86_400_000

T = TypeVar("T")


class Entry(msgspec.Struct, Generic[T]):
    what: T
    principal: str
    first_wall_ms: int
    last_wall_ms: int
    last_ms: int  # The last time, by the monotonic clock.
    count: int = 1


class RecentEvents(Generic[T]):
    def __init__(self, since_wall_ms: int) -> None:
        self.since_wall_ms = since_wall_ms  # When this process began to serve.
        self._entries: dict[tuple[str, T], Entry[T]] = {}  # The newest last.

    def note(self, what: T, principal: str, *, now_ms: int, wall_ms: int) -> None:
        self._forget(now_ms)
        key = (principal, what)
        entry = self._entries.pop(key, None)
        if entry is None:
            self._evict_for(principal)
            entry = Entry(what, principal, wall_ms, wall_ms, now_ms)
        else:
            entry.count, entry.last_wall_ms, entry.last_ms = entry.count + 1, wall_ms, now_ms
        self._entries[key] = entry

    def newest_first(self, now_ms: int) -> list[Entry[T]]:
        self._forget(now_ms)
        return list(reversed(self._entries.values()))

    def _forget(self, now_ms: int) -> None:
        while self._entries:
            key, oldest = next(iter(self._entries.items()))
            if now_ms - oldest.last_ms <= RETENTION_MS:
                return
            del self._entries[key]

    def _evict_for(self, principal: str) -> None:
        owned = Counter(whose for whose, _ in self._entries)
        evicted = principal if owned[principal] >= PER_PRINCIPAL_MAX else None
        if evicted is None and len(self._entries) >= ENTRIES_MAX:
            evicted = owned.most_common(1)[0][0]
        if evicted is not None:
            del self._entries[next(key for key in self._entries if key[0] == evicted)]
