"""A function that runs only while a job is ours: the decorator behind `exclusive`, for both kinds of functions."""

from __future__ import annotations

import inspect
import logging
import string
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from datetime import UTC, datetime
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar, cast, overload

from holdfast.client import clock
from holdfast.errors import JobDone, JobHeld

log = logging.getLogger("holdfast.client")

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")


class Skipping(Protocol):
    """A decorator whose function may be passed over: then it returns None."""

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[Any, Any, R | None]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R | None]: ...


class HeldByThread(Protocol):
    """What an ordinary function needs of its claim."""

    def __enter__(self) -> object: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def done(self, *, remember: float) -> None:
        """Give the job back as finished."""


class HeldByCoroutine(Protocol):
    """What a coroutine function needs of its claim, once it is entered."""

    async def done(self, *, remember: float) -> None:
        """Give the job back as finished."""


def for_function(
    job_id: str, claim: Callable[[str], HeldByThread], *, remember: float | None, skip: bool
) -> Callable[[F], F]:
    """Return the decorator for an ordinary function."""

    def decorate(function: F) -> F:
        if inspect.iscoroutinefunction(function):
            raise TypeError("this is for ordinary functions; take AsyncHoldfast.exclusive for coroutine functions")
        signature = _checked(job_id, function)

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever the function takes and gives
            try:
                held = claim(_name(job_id, signature, args, kwargs))
            except (JobHeld, JobDone) as reason:
                if not skip:
                    raise
                log.info("%s was not called: %s", function.__qualname__, reason)
                return None
            with held:
                result = function(*args, **kwargs)
                if remember is not None:
                    held.done(remember=remember)
            return result

        return cast("F", run)

    return decorate


def for_coroutine(
    job_id: str,
    claim: Callable[[str], AbstractAsyncContextManager[HeldByCoroutine]],
    *,
    remember: float | None,
    skip: bool,
) -> Callable[[F], F]:
    """Return the decorator for a coroutine function."""

    def decorate(function: F) -> F:
        if not inspect.iscoroutinefunction(function):
            raise TypeError("this is for coroutine functions; take Holdfast.exclusive for ordinary ones")
        signature = _checked(job_id, function)
        work = cast("Callable[..., Awaitable[Any]]", function)

        @wraps(function)
        async def run(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever the function takes and gives
            async with AsyncExitStack() as stack:
                try:
                    held = await stack.enter_async_context(claim(_name(job_id, signature, args, kwargs)))
                except (JobHeld, JobDone) as reason:
                    if not skip:
                        raise
                    log.info("%s was not called: %s", function.__qualname__, reason)
                    return None
                result = await work(*args, **kwargs)
                if remember is not None:
                    await held.done(remember=remember)
            return result

        return cast("F", run)

    return decorate


def _checked(job_id: str, function: Callable[..., Any]) -> inspect.Signature:
    """Return what the function takes. A template that names something else is refused now, not at the first call."""
    signature = inspect.signature(function)
    for _, field, _, _ in string.Formatter().parse(job_id):
        name = None if field is None else field.partition(".")[0].partition("[")[0]
        if name is not None and name != "date" and name not in signature.parameters:
            known = ", ".join(["date", *signature.parameters])
            raise ValueError(f"{job_id!r} names {name!r}; known are {known}")
    return signature


def _name(job_id: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Fill the arguments of a call into the name of its job."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    today = datetime.fromtimestamp(clock.wall_ms() / 1_000, UTC).date().isoformat()
    return job_id.format(**{"date": today, **bound.arguments})
