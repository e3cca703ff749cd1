"""What the clients for threads and coroutines share: configuration, the verbs that claim, and `exclusive`.

The type variables are for what these verbs return: `Holdfast` returns the claim, `AsyncHoldfast` an `Acquiring`, which
can be awaited or entered. All other operations are declared in `client/queries.py`.
"""

from __future__ import annotations

import inspect
import logging
import os
import string
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial, wraps
from pathlib import Path
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

import msgspec

from holdfast.client import claim_flows, clock, config, lease_flows, requests
from holdfast.client.effects import ANSWER_SECONDS, RETRY_SECONDS, Cleanup, Flow, Policy, acquisition
from holdfast.client.event_flows import Follower, OnAway
from holdfast.client.options import (
    ClaimAllOptions,
    ClaimAnyOptions,
    ClaimJobOptions,
    ClaimOptions,
    ClaimRequest,
    check_names,
    claim_request,
    takes_options,
)
from holdfast.client.queries import TTL_SECONDS, Operations
from holdfast.client.records import JobClaim, Metadata, plain_labels
from holdfast.client.requests import integer_seconds, names, patience
from holdfast.errors import JobDone, JobHeld

log = logging.getLogger("holdfast.client")

JOB_TTL_SECONDS = 120.0  # For callers that renew themselves: rarely, if they are agents.
ANSWER_SECONDS_MIN = 3.0  # The least time for one of several addresses to answer, if `answer_seconds` allows it.

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
AnyClaim = TypeVar("AnyClaim")  # `Claim` or `AsyncClaim`.
AnyClaims = TypeVar("AnyClaims")  # `Claims` or `AsyncClaims`.
AnySession = TypeVar("AnySession")  # `Session` or `AsyncSession`.
ClaimResult = TypeVar("ClaimResult")  # What the verbs for one claim return: the claim, or an `Acquiring`.
ClaimsResult = TypeVar("ClaimsResult")  # The same for several claims.
EventsResult = TypeVar("EventsResult")  # What `events` returns, to iterate over.
SessionResult = TypeVar("SessionResult")  # The same for a session.


class Client(
    Operations, ABC, Generic[AnyClaim, AnyClaims, AnySession, ClaimResult, ClaimsResult, SessionResult, EventsResult]
):
    """A client of one server: its configuration and its operations. The token is never shown."""

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        allow_insecure_http: bool | None = None,
        owner: str | None = None,
        answer_seconds: float = ANSWER_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Find the server and the token; nothing is sent yet. Raises `SettingsError`.

        Defaults come from HOLDFAST_URL, HOLDFAST_TOKEN and HOLDFAST_TOKEN_FILE, else from the user's client.toml. So do
        `ca_file` (HOLDFAST_CA_FILE), the certificates to trust instead of the system's, and `allow_insecure_http`
        (HOLDFAST_ALLOW_INSECURE_HTTP), without which no token goes to another machine over plain HTTP. `owner` is the
        default owner of claims; without any, each thread or task gets one of the form host:pid:random. An answer may
        take `answer_seconds`; requests that get none are retried for `retry_seconds`.

        `url` may list the nodes of one server, separated by commas. If one does not answer or knows no leader, the next
        is asked; a silent one gets only its share of `answer_seconds`.
        """
        self._environment = os.environ if environment is None else environment
        self._target = config.find(
            url=url,
            token=token,
            token_file=None if token_file is None else Path(token_file),
            environment=self._environment,
            ca_file=None if ca_file is None else Path(ca_file),
            allow_insecure_http=allow_insecure_http,
        )
        config.warn_if_insecure(self._target)
        self._owner = owner
        answer_seconds = patience(answer_seconds, "answer_seconds", allow_zero=False)
        addresses = len(self._target.addresses)
        self._policy = Policy(
            self._target.url,
            max(answer_seconds / addresses, min(answer_seconds, ANSWER_SECONDS_MIN)),
            patience(retry_seconds, "retry_seconds", allow_zero=True),
            token_file=None if self._target.token_file is None else str(self._target.token_file),
            addresses=addresses,
        )
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None:
        """Create the transport; nothing is sent yet."""

    @abstractmethod
    def _enter(self, flow: Callable[[Cleanup], Flow[Any]], kind: str, on_lost: Callable[[Any], object] | None) -> Any:  # noqa: ANN401
        """Run a flow that obtains a `claim`, `claim_flows` or a `session`, and return the object that keeps it."""

    _awaits: bool  # Whether it is a client for coroutines.

    @property
    def url(self) -> str:
        """The server's address, or several separated by commas."""
        return self._target.url

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which a child process reaches the same server in the same way; never the token."""
        return self._target.environment

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._target.url}>"

    def _named(self, request: ClaimRequest) -> ClaimRequest:
        """Set the default owner: the client's, else that of the calling thread or task."""
        if request.owner:
            return request
        return msgspec.structs.replace(request, owner=self._owner or requests.owner_of(self._worker()))

    def _claiming(
        self, how: Callable[..., Flow[T]], jobs: str | Sequence[str], request: ClaimRequest, cleanup: Cleanup
    ) -> Flow[T]:
        return how(jobs, self._named(request), self._policy, cleanup)

    @takes_options(ClaimOptions)
    def claim(
        self,
        job_id: str,
        *,
        session: str | None = None,
        on_lost: Callable[[AnyClaim], object] | None = None,
        **options: Unpack[ClaimOptions],
    ) -> ClaimResult:
        """Claim a job and keep it renewed: `with holdfast.claim("github-issue-1842") as claim:`.

        Raises `JobHeld`, `NotInTime`, `JobDone`, `Deadlock`.

        `ttl` is the life of the lease in seconds (the server's default, which is 60), `wait` how long to stand in line
        for it. `owner` is the name that others see, `metadata` what they see with it, `labels` what they find it by.
        `resume` asks for one's own live claim back, `redo` claims a job although it is done. `lock_delay` keeps the job
        closed for so many seconds after any end. `session` is the id of a session that the claim ends with. `on_wait`
        is called with the queue position every few seconds. `on_lost` is called when the claim is lost: by
        `Holdfast` in a thread of its own, by `AsyncHoldfast` on the event loop, which awaits what it returns.
        """
        request = claim_request(options, ClaimOptions, session)
        got: ClaimResult = self._enter(partial(self._claiming, claim_flows.claim, job_id, request), "claim", on_lost)
        return got

    @takes_options(ClaimAnyOptions)
    def claim_any(
        self,
        job_ids: Sequence[str],
        *,
        session: str | None = None,
        on_lost: Callable[[AnyClaim], object] | None = None,
        **options: Unpack[ClaimAnyOptions],
    ) -> ClaimResult:
        """Claim the first free job of a list and keep it renewed: how a worker takes work from a backlog.

        Finished jobs are skipped. Raises `JobHeld` with `others`, or `JobDone` when only finished ones are left. With
        `wait` it polls; there is no queue for this. The options are those of `claim`.
        """
        request = claim_request(options, ClaimAnyOptions, session)
        got: ClaimResult = self._enter(
            partial(self._claiming, claim_flows.claim_any, names(job_ids), request), "claim", on_lost
        )
        return got

    @takes_options(ClaimAllOptions)
    def claim_all(
        self,
        job_ids: Sequence[str],
        *,
        session: str | None = None,
        on_lost: Callable[[AnyClaims], object] | None = None,
        **options: Unpack[ClaimAllOptions],
    ) -> ClaimsResult:
        """Claim every job of a list or none, and keep all of them renewed. Options and exceptions as of `claim`."""
        request = claim_request(options, ClaimAllOptions, session)
        got: ClaimsResult = self._enter(
            partial(self._claiming, claim_flows.claim_all, names(job_ids), request), "claims", on_lost
        )
        return got

    @overload
    def exclusive(
        self,
        job_id: str,
        *,
        remember: float | None = None,
        skip: Literal[False] = False,
        **options: Unpack[ClaimOptions],
    ) -> Callable[[F], F]: ...
    @overload
    def exclusive(
        self, job_id: str, *, remember: float | None = None, skip: Literal[True], **options: Unpack[ClaimOptions]
    ) -> Skipping: ...
    @takes_options(ClaimOptions)
    def exclusive(
        self, job_id: str, *, remember: float | None = None, skip: bool = False, **options: Unpack[ClaimOptions]
    ) -> Callable[[F], F] | Skipping:
        """Let a function run only while this job is ours; a coroutine function, if the client is `AsyncHoldfast`.

        `{date}` in `job_id` is today's date (UTC), `{name}` any argument of the call. With `remember` the job counts as
        done for so many seconds once the function has returned. Raises `JobHeld` or `JobDone` instead of calling it;
        with `skip` it returns None and logs the reason. The other options are those of `claim`.
        """
        check_names(options, ClaimOptions)
        claim = partial(self.claim, **options)
        return exclusively(job_id, claim, remember=remember, skip=skip, awaits=self._awaits)

    @acquisition
    @takes_options(ClaimJobOptions)
    def claim_job(
        self,
        cleanup: Cleanup,
        job_id: str,
        owner: str | None = None,
        metadata: Metadata = None,
        ttl: float | None = JOB_TTL_SECONDS,
        *,
        session: str | None = None,
        **options: Unpack[ClaimJobOptions],
    ) -> Flow[JobClaim]:
        """Claim a job and leave it to the caller to renew. Options and exceptions as of `claim`."""
        request = claim_request(options, ClaimJobOptions, session, owner=owner, metadata=metadata, ttl=ttl)
        return (yield from self._claiming(claim_flows.claim, job_id, request, cleanup)).claim

    @acquisition
    @takes_options(ClaimAnyOptions, ttl=JOB_TTL_SECONDS)
    def claim_any_job(
        self,
        cleanup: Cleanup,
        job_ids: Sequence[str],
        *,
        session: str | None = None,
        **options: Unpack[ClaimAnyOptions],
    ) -> Flow[JobClaim]:
        """Claim the first free job of a list and leave it to the caller to renew. Raises as `claim_any`."""
        request = claim_request(options, ClaimAnyOptions, session, ttl=JOB_TTL_SECONDS)
        return (yield from self._claiming(claim_flows.claim_any, names(job_ids), request, cleanup)).claim

    @acquisition
    @takes_options(ClaimAllOptions, ttl=JOB_TTL_SECONDS)
    def claim_all_jobs(
        self,
        cleanup: Cleanup,
        job_ids: Sequence[str],
        *,
        session: str | None = None,
        **options: Unpack[ClaimAllOptions],
    ) -> Flow[list[JobClaim]]:
        """Claim every job of a list or none, and leave it to the caller to renew each. Raises as `claim_all`."""
        request = claim_request(options, ClaimAllOptions, session, ttl=JOB_TTL_SECONDS)
        return [
            got.claim for got in (yield from self._claiming(claim_flows.claim_all, names(job_ids), request, cleanup))
        ]

    def session(
        self,
        name: str | None = None,
        *,
        ttl: float = TTL_SECONDS,
        metadata: Metadata = None,
        on_lost: Callable[[AnySession], object] | None = None,
    ) -> SessionResult:
        """Open a session and keep it alive: claims made through it all end with it.

        `name` is what others see of it, and `metadata` what they see with it. `ttl` is its life in seconds if this
        process dies. `on_lost` is called when the session is lost: by `Holdfast` in a thread of its own, by
        `AsyncHoldfast` on the event loop, which awaits what it returns.
        """
        options: dict[str, Any] = {"name": name, "ttl_seconds": integer_seconds(ttl), "metadata": metadata}
        got: SessionResult = self._enter(partial(lease_flows.open_session, self._policy, **options), "session", on_lost)
        return got

    def events(
        self,
        prefix: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        after: int | None = None,
        on_away: OnAway | None = None,
    ) -> EventsResult:
        """Follow all events except renewals, for ever, reconnecting as needed.

        `after` is the `seq` of the last event you have seen; without it, only new events come. An event `resync` stands
        for those that the server no longer keeps. `on_away` is called with the reason if the server is away, and with
        None when it is back.
        """
        return self._follow(Follower(self._policy, prefix, after, plain_labels(labels), on_away))

    @abstractmethod
    def _follow(self, follower: Follower) -> EventsResult:
        """Return an iterator of the events."""


class ClaimingSession(ABC, Generic[AnyClaim, AnyClaims, ClaimResult, ClaimsResult]):
    """The part of a session that claims: its claims end with it."""

    _claimer: Client[AnyClaim, AnyClaims, Any, ClaimResult, ClaimsResult, Any, Any]
    _record: Any  # Not `session_id: Any`, which editors would show for the `str` of the sessions.

    @abstractmethod
    def _adopt(self, got: T) -> T:
        """Register a claim or several, so that they are not renewed after the session's end."""

    @takes_options(ClaimOptions)
    def claim(
        self, job_id: str, *, on_lost: Callable[[AnyClaim], object] | None = None, **options: Unpack[ClaimOptions]
    ) -> ClaimResult:
        """Claim a job for this session, as the client's `claim`."""
        return self._adopt(self._claimer.claim(job_id, session=self._record.session_id, on_lost=on_lost, **options))

    @takes_options(ClaimAnyOptions)
    def claim_any(
        self,
        job_ids: Sequence[str],
        *,
        on_lost: Callable[[AnyClaim], object] | None = None,
        **options: Unpack[ClaimAnyOptions],
    ) -> ClaimResult:
        """Claim the first free job of a list for this session, as the client's `claim_any`."""
        session_id = self._record.session_id
        return self._adopt(self._claimer.claim_any(job_ids, session=session_id, on_lost=on_lost, **options))

    @takes_options(ClaimAllOptions)
    def claim_all(
        self,
        job_ids: Sequence[str],
        *,
        on_lost: Callable[[AnyClaims], object] | None = None,
        **options: Unpack[ClaimAllOptions],
    ) -> ClaimsResult:
        """Claim every job of a list or none for this session, as the client's `claim_all`."""
        session_id = self._record.session_id
        return self._adopt(self._claimer.claim_all(job_ids, session=session_id, on_lost=on_lost, **options))


class Skipping(Protocol):
    """A decorator whose function may be skipped: then it returns None."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R | None]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | None]: ...


def exclusively(
    job_id: str, claim: Callable[[str], Any], *, remember: float | None, skip: bool, awaits: bool
) -> Callable[[F], F]:
    """Return the decorator for an ordinary or a coroutine function. `claim` returns a context manager."""

    def decorate(function: F) -> F:
        if inspect.iscoroutinefunction(function) is not awaits:
            one, other = ("coroutine", "Holdfast") if awaits else ("ordinary", "AsyncHoldfast")
            raise TypeError(f"this is for {one} functions; take {other}.exclusive for the others")
        signature = _checked(job_id, function)
        work: Callable[..., Any] = function

        def note(reason: Exception) -> None:
            log.info("%s was not called: %s", function.__qualname__, reason)

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever the function takes and gives
            try:
                held = claim(_name(job_id, signature, args, kwargs))
            except (JobHeld, JobDone) as reason:
                if not skip:
                    raise
                return note(reason)
            with held:
                result = work(*args, **kwargs)
                if remember is not None:
                    held.done(remember=remember)
            return result

        @wraps(function)
        async def run_async(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the same
            async with AsyncExitStack() as stack:
                try:
                    held = await stack.enter_async_context(claim(_name(job_id, signature, args, kwargs)))
                except (JobHeld, JobDone) as reason:
                    if not skip:
                        raise
                    return note(reason)
                result = await work(*args, **kwargs)
                if remember is not None:
                    await held.done(remember=remember)
            return result

        return cast("F", run_async if awaits else run)

    return decorate


def _checked(job_id: str, function: Callable[..., Any]) -> inspect.Signature:
    """Return the function's signature, and reject a template with unknown names now instead of at the first call."""
    signature = inspect.signature(function)
    for _, field, _, _ in string.Formatter().parse(job_id):
        name = None if field is None else field.partition(".")[0].partition("[")[0]
        if name is not None and name != "date" and name not in signature.parameters:
            known = ", ".join(["date", *signature.parameters])
            raise ValueError(f"{job_id!r} names {name!r}; known are {known}")
    return signature


def _name(job_id: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    today = datetime.fromtimestamp(clock.wall_ms() / 1_000, UTC).date().isoformat()
    return job_id.format(**{"date": today, **bound.arguments})
