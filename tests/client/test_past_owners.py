"""`list_claimed_jobs_at`: who had which job at a moment, for threads and coroutines."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast import PastJobOwners, Refused
from holdfast.client import queries
from tests.support.checks import moment_over, unique


def test_past_owners_are_of_one_record(either: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ANN401 - either kind
    """All pages of a moment are of one record, in order of name; what has ended since is there."""
    monkeypatch.setattr(queries, "PAGE", 2)
    prefix = unique("then") + "/"
    claims = [
        either.claim_job(f"{prefix}{number}", f"owner-{number}", ttl=600, labels={"n": str(number % 2)})
        for number in range(5)
    ]
    at = datetime.fromisoformat(moment_over())
    either.release_job(claims[1].job_id, claims[1].lease_id)
    either.claim_job(f"{prefix}0-late", "late", ttl=600)
    past = either.list_claimed_jobs_at(at, prefix)
    assert isinstance(past, PastJobOwners) and past.record > 0
    assert past.at == at
    assert [(job.job_id, job.owner, job.fencing_token, job.ttl) for job in past.jobs] == [
        (claim.job_id, claim.owner, claim.fencing_token, 600.0) for claim in claims
    ]
    assert [job.claimed_at for job in past.jobs] == [claim.claimed_at for claim in claims]
    assert len(either.list_claimed_jobs_at(at, prefix, limit=3).jobs) == 3
    assert [job.job_id for job in either.list_claimed_jobs_at(at, prefix, owner="owner-3").jobs] == [f"{prefix}3"]
    found = either.list_claimed_jobs_at(at, prefix, labels={"n": "1"}).jobs
    assert [job.job_id for job in found] == [f"{prefix}1", f"{prefix}3"]
    local = at.astimezone().replace(tzinfo=None)
    assert either.list_claimed_jobs_at(local, prefix).jobs == past.jobs
    assert either.list_claimed_jobs_at(at.isoformat(), prefix).jobs == past.jobs


def test_invalid_times_are_refused(either: Any) -> None:  # noqa: ANN401 - either kind
    """The future is refused by the server; what is no moment is not sent."""
    with pytest.raises(Refused, match="in the future"):
        either.list_claimed_jobs_at(datetime.now(UTC) + timedelta(hours=1))
    with pytest.raises(TypeError, match="give a datetime"):
        either.list_claimed_jobs_at(1_700_000_000)
    with pytest.raises(ValueError, match="limit"):
        either.list_claimed_jobs_at(datetime.now(UTC), limit=0)
