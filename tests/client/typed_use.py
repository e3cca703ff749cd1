"""What a user writes, as a type checker sees it. Nothing here is run: `make check` lets mypy read it, strictly."""

from __future__ import annotations

from typing import assert_type

import holdfast
from holdfast import AsyncClaim, AsyncHoldfast, Claim, Claims, Holdfast, JobClaim, JobOwner, Session


@holdfast.exclusive("nightly-{date}", ttl=300, remember=3_600)
def one_or_error(customer: int) -> str:
    return str(customer)


@holdfast.exclusive("nightly-{date}", skip=True)
def one_or_none(customer: int) -> str:
    return str(customer)


@holdfast.exclusive("nightly-{date}", skip=True)
async def awaited_or_none(customer: int) -> str:
    return str(customer)


@AsyncHoldfast().exclusive("nightly-{date}")
async def awaited_or_error() -> int:
    return 1


def use_in_threads(client: Holdfast) -> None:
    with holdfast.claim("a", ttl=5, wait=3, metadata={"model": "m"}) as claim:
        assert_type(claim, Claim)
        assert_type(claim.fencing_token, int)
        claim.raise_if_lost(1)  # type: ignore[call-arg]
    with client.claim_all(["a", "b"], on_lost=lambda claims: claims.fencing_tokens) as claims:
        assert_type(claims, Claims)
    with client.session("run") as session, session.claim_any(["a"], owner="me") as claim:
        assert_type(session, Session)
        assert_type(session.session_id, str)
    assert_type(client.claim_any_job(["a"], session="s", ttl=5), JobClaim)
    assert_type(client.claim_all_jobs(["a", "b"], wait=1), list[JobClaim])
    assert_type(client.open_session("run", ttl=30).environment, dict[str, str])
    client.claim_job("a", "me", {"model": "m"}, 5, wait=1, lock_delay=3, session="s")
    assert_type(holdfast.get_job_owner("a"), JobOwner | None)
    assert_type(one_or_error(1), str)
    assert_type(one_or_none(1), str | None)
    holdfast.claim("a", timeout=3)  # type: ignore[call-arg]
    client.claim_any(["a"], resume=True)  # type: ignore[call-arg]
    client.claim_job("a", timeout=3)  # type: ignore[call-arg]
    holdfast.no_such_name  # type: ignore[attr-defined]  # noqa: B018 - that it is refused is the point


async def use_in_coroutines() -> None:
    async with AsyncHoldfast() as client, client.claim("a", ttl=5) as claim:
        assert_type(claim, AsyncClaim)
        assert_type(await client.claim("b"), AsyncClaim)
    assert_type(await awaited_or_none(1), str | None)
    assert_type(await awaited_or_error(), int)
