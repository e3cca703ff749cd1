"""The functions of the module: the same operations, on a client that the environment configures."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar, overload

from holdfast.client.common import decorator
from holdfast.client.common.client import JOB_TTL_SECONDS, TTL_SECONDS
from holdfast.client.common.decorator import Skipping
from holdfast.client.threads.claim import Claim, Claims
from holdfast.client.threads.client import Holdfast
from holdfast.client.threads.session import Session
from holdfast.client.values import config
from holdfast.client.values.options import ClaimOptions, OnWait
from holdfast.client.values.records import JobClaim, JobOwner, Metadata

F = TypeVar("F", bound=Callable[..., Any])

_known: dict[tuple[int, config.Target], Holdfast] = {}


def default_client() -> Holdfast:
    """Return the client of this process for the server that the environment names now."""
    target = config.find(url=None, token_file=None, environment=os.environ)
    key = (os.getpid(), target)
    client = _known.get(key)
    if client is None:
        # Another process, or another server: nobody asks for the old one again. No lock, which a fork could inherit
        # locked: of two threads that come here at once one makes a client in vain, and that has opened nothing.
        _known.clear()
        client = _known.setdefault(key, Holdfast())
    return client


def claim(
    job_id: str,
    *,
    ttl: float | None = None,
    wait: float | None = None,
    owner: str | None = None,
    metadata: Metadata = None,
    labels: Mapping[str, str] | None = None,
    resume: bool = False,
    redo: bool = False,
    lock_delay: float = 0,
    on_wait: OnWait | None = None,
    on_lost: Callable[[Claim], object] | None = None,
) -> Claim:
    """Claim a job and keep it renewed: `with holdfast.claim("github-issue-1842") as claim:`.

    Raises `JobHeld`, `NotInTime`, `JobDone`, `Deadlock`.

    `ttl` is the life of the lease in seconds (the server's default, which is 60), `wait` how long to stand in line for
    it. `owner` is the name that others see, `metadata` what they see with it, `labels` what they find it by. `resume`
    asks for one's own live claim back, `redo` claims a job although it is done. `lock_delay` keeps the job closed for
    so many seconds after any end. `on_wait` is called with the place in the line every few seconds. `on_lost` is called
    when the claim is lost, in a thread of its own.
    """
    return default_client().claim(
        job_id,
        ttl=ttl,
        wait=wait,
        owner=owner,
        metadata=metadata,
        labels=labels,
        resume=resume,
        redo=redo,
        lock_delay=lock_delay,
        on_wait=on_wait,
        on_lost=on_lost,
    )


def claim_any(
    job_ids: Sequence[str],
    *,
    ttl: float | None = None,
    wait: float | None = None,
    owner: str | None = None,
    metadata: Metadata = None,
    labels: Mapping[str, str] | None = None,
    redo: bool = False,
    lock_delay: float = 0,
    on_wait: OnWait | None = None,
    on_lost: Callable[[Claim], object] | None = None,
) -> Claim:
    """Claim the first free job of a list and keep it renewed: how a worker takes work from a backlog.

    Finished jobs are passed over. Raises `JobHeld` with `others`, or `JobDone` when only finished ones are left.
    With `wait` it asks again and again; there is no line for this. The options are those of `claim`.
    """
    return default_client().claim_any(
        job_ids,
        ttl=ttl,
        wait=wait,
        owner=owner,
        metadata=metadata,
        labels=labels,
        redo=redo,
        lock_delay=lock_delay,
        on_wait=on_wait,
        on_lost=on_lost,
    )


def claim_all(
    job_ids: Sequence[str],
    *,
    ttl: float | None = None,
    wait: float | None = None,
    owner: str | None = None,
    metadata: Metadata = None,
    labels: Mapping[str, str] | None = None,
    redo: bool = False,
    lock_delay: float = 0,
    on_wait: OnWait | None = None,
    on_lost: Callable[[Claims], object] | None = None,
) -> Claims:
    """Claim every job of a list or none, and keep all of them renewed. Options and exceptions as of `claim`."""
    return default_client().claim_all(
        job_ids,
        ttl=ttl,
        wait=wait,
        owner=owner,
        metadata=metadata,
        labels=labels,
        redo=redo,
        lock_delay=lock_delay,
        on_wait=on_wait,
        on_lost=on_lost,
    )


def session(
    name: str | None = None,
    *,
    ttl: float = TTL_SECONDS,
    metadata: Metadata = None,
    on_lost: Callable[[Session], object] | None = None,
) -> Session:
    """Open a session and keep it alive: claims made through it all end with it.

    `name` is what others see of it, and `metadata` what they see with it. `ttl` is its life in seconds if this process
    dies. `on_lost` is called when the session is lost, in a thread of its own.
    """
    return default_client().session(name, ttl=ttl, metadata=metadata, on_lost=on_lost)


@overload
def exclusive(
    job_id: str,
    *,
    remember: float | None = None,
    skip: Literal[False] = False,
    ttl: float | None = None,
    wait: float | None = None,
    owner: str | None = None,
    metadata: Metadata = None,
    labels: Mapping[str, str] | None = None,
    resume: bool = False,
    redo: bool = False,
    lock_delay: float = 0,
    on_wait: OnWait | None = None,
) -> Callable[[F], F]: ...
@overload
def exclusive(
    job_id: str,
    *,
    remember: float | None = None,
    skip: Literal[True],
    ttl: float | None = None,
    wait: float | None = None,
    owner: str | None = None,
    metadata: Metadata = None,
    labels: Mapping[str, str] | None = None,
    resume: bool = False,
    redo: bool = False,
    lock_delay: float = 0,
    on_wait: OnWait | None = None,
) -> Skipping: ...
def exclusive(
    job_id: str,
    *,
    remember: float | None = None,
    skip: bool = False,
    ttl: float | None = None,
    wait: float | None = None,
    owner: str | None = None,
    metadata: Metadata = None,
    labels: Mapping[str, str] | None = None,
    resume: bool = False,
    redo: bool = False,
    lock_delay: float = 0,
    on_wait: OnWait | None = None,
) -> Callable[[F], F] | Skipping:
    """Let a function run only while this job is ours; a coroutine function too.

    `{date}` in `job_id` is today's date (UTC), `{name}` any argument of the call. With `remember` the job counts as
    done for so many seconds once the function has returned. Raises `JobHeld` or `JobDone` instead of calling it;
    with `skip` it returns None and logs the reason. The other options are those of `claim`.
    """
    options: ClaimOptions = {
        "ttl": ttl,
        "wait": wait,
        "owner": owner,
        "metadata": metadata,
        "labels": labels,
        "resume": resume,
        "redo": redo,
        "lock_delay": lock_delay,
        "on_wait": on_wait,
    }

    def decorate(function: F) -> F:
        if inspect.iscoroutinefunction(function):
            from holdfast.client.coroutines.client import claim_alone  # noqa: PLC0415 - it needs aiohttp

            manage = claim_alone(**options)
            return decorator.for_coroutine(job_id, manage, remember=remember, skip=skip)(function)
        return decorator.for_function(job_id, partial(claim, **options), remember=remember, skip=skip)(function)

    return decorate


def claim_job(
    job_id: str, owner: str | None = None, metadata: Metadata = None, ttl: float | None = JOB_TTL_SECONDS
) -> JobClaim:
    """Claim a job for `ttl` seconds; renew it with `heartbeat_job`. Raises `JobHeld` or `JobDone`."""
    return default_client().claim_job(job_id, owner, metadata, ttl)


def heartbeat_job(job_id: str, lease_id: str, *, note: str | None = None) -> float:
    """Renew a claim for its own ttl and return how many seconds it lives from now. Raises `LeaseLost`."""
    return default_client().heartbeat_job(job_id, lease_id, note=note)


def release_job(job_id: str, lease_id: str) -> None:
    """Give a claim back; a second time is harmless. Raises `LeaseLost` if it had ended in another way."""
    default_client().release_job(job_id, lease_id)


def get_job_owner(job_id: str) -> JobOwner | None:
    """Return who owns a job, since when, and how alive that one looks; None if nobody does."""
    return default_client().get_job_owner(job_id)


def list_claimed_jobs(prefix: str | None = None, *, labels: Mapping[str, str] | None = None) -> list[JobOwner]:
    """List the claimed jobs, ordered by name."""
    return default_client().list_claimed_jobs(prefix, labels=labels)
