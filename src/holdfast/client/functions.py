"""The module-level functions: the methods of a client that the environment configures."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import partial
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, overload

from holdfast.client import base, config
from holdfast.client.base import Skipping
from holdfast.client.options import ClaimOptions, check_names, takes_options
from holdfast.client.sync import Holdfast

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")

_known: dict[tuple[int, config.Target], Holdfast] = {}


def default_client() -> Holdfast:
    """Return the client of this process for the server that the environment names now."""
    target = config.find(url=None, token_file=None, environment=os.environ)
    key = (os.getpid(), target)
    client = _known.get(key)
    if client is None:
        # A fork or another server: the old client is not needed again. No lock, which a fork could inherit locked: of
        # two concurrent threads one makes a client in vain, which has opened nothing.
        _known.clear()
        client = _known.setdefault(key, Holdfast())
    return client


def _function(method: Callable[Concatenate[Holdfast, P], R]) -> Callable[P, R]:
    def function(*args: P.args, **kwargs: P.kwargs) -> R:
        return method(default_client(), *args, **kwargs)

    signature = inspect.signature(method)
    function.__name__ = function.__qualname__ = method.__name__
    function.__doc__ = method.__doc__
    own = list(signature.parameters.values())[1:]
    function.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
    return function


claim = _function(Holdfast.claim)
claim_any = _function(Holdfast.claim_any)
claim_all = _function(Holdfast.claim_all)
session = _function(Holdfast.session)
claim_job = _function(Holdfast.claim_job)
heartbeat_job = _function(Holdfast.heartbeat_job)
release_job = _function(Holdfast.release_job)
get_job_owner = _function(Holdfast.get_job_owner)
list_claimed_jobs = _function(Holdfast.list_claimed_jobs)


@overload
def exclusive(
    job_id: str, *, remember: float | None = None, skip: Literal[False] = False, **options: Unpack[ClaimOptions]
) -> Callable[[F], F]: ...
@overload
def exclusive(
    job_id: str, *, remember: float | None = None, skip: Literal[True], **options: Unpack[ClaimOptions]
) -> Skipping: ...
@takes_options(ClaimOptions)
def exclusive(
    job_id: str, *, remember: float | None = None, skip: bool = False, **options: Unpack[ClaimOptions]
) -> Callable[[F], F] | Skipping:
    check_names(options, ClaimOptions)

    def decorate(function: F) -> F:
        manage: Callable[[str], Any] = partial(claim, **options)
        if awaits := inspect.iscoroutinefunction(function):
            from holdfast.client.aio import claim_alone  # noqa: PLC0415 - it needs aiohttp

            manage = claim_alone(**options)
        return base.exclusively(job_id, manage, remember=remember, skip=skip, awaits=awaits)(function)

    return decorate


exclusive.__doc__ = Holdfast.exclusive.__doc__
