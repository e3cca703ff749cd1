"""Labels from Python, with both clients, against a real server."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from holdfast import JobHeld, Refused
from tests.client.both import Either

INFRA = {"team": "infra", "pr": "1842"}


class Team(str, Enum):  # noqa: UP042 - shows itself as "Team.INFRA", which a StrEnum does not
    """Texts of a class of their own."""

    INFRA = "infra"


def test_claim_shows_its_labels(either: Either, job: str) -> None:
    """The claim, its owner's record and a refusal have them; without any they are an empty mapping."""
    with either.claim(job, owner="ana", labels=INFRA) as claim:
        assert claim.labels == claim.record.labels == INFRA
        assert either.get_job_owner(job).labels == INFRA
        with pytest.raises(JobHeld) as caught:
            either.claim_job(job, "ben")
        assert caught.value.labels == INFRA
    with either.claim(job) as claim:
        assert claim.labels == either.get_job_owner(job).labels == {}


def test_claims_of_several_have_labels_too(either: Either, job: str) -> None:
    """`claim_all`, `claim_any` and `claim_job` take them; a refusal of several tells those of the first in the way."""
    names = [f"{job}/{number}" for number in range(2)]
    with either.claim_all(names, labels=INFRA) as claims:
        assert [each.labels for each in claims] == [INFRA, INFRA]
        assert either.get_job_owner(names[1]).labels == INFRA
        with pytest.raises(JobHeld) as caught, either.claim_any(names):
            pass
        assert caught.value.labels == INFRA
    one = either.claim_job(job, labels={"x": "1"})
    assert one.labels == either.get_job_owner(job).labels == {"x": "1"}


def test_lists_and_events_can_be_asked_for_labels(either: Either, job: str) -> None:
    """Only what has every label that is asked for is listed and told."""
    for name, labels in (("a", INFRA), ("b", {"team": "infra"}), ("c", None)):
        either.claim_job(f"{job}/{name}", labels=labels)
    found = either.list_claimed_jobs(f"{job}/", labels={"team": "infra"})
    assert [each.job_id for each in found] == [f"{job}/a", f"{job}/b"]
    found = either.list_claimed_jobs(f"{job}/", labels={"team": "infra", "pr": "1842"})
    assert [each.job_id for each in found] == [f"{job}/a"]
    began = min(each.seq for name in "abc" for each in either.history(f"{job}/{name}")) - 1
    following = either.events(f"{job}/", labels=INFRA, after=began)
    event = next(following)
    assert (event.job_id, event.event, event.labels) == (f"{job}/a", "granted", INFRA)
    following.close()


@pytest.mark.parametrize("labels", ["team:infra", {"team": 1}, [("team", "infra")]])
def test_invalid_labels_are_refused_before_sending(either: Either, job: str, labels: Any) -> None:  # noqa: ANN401
    """A mistake of the program is a TypeError that says what to give."""
    with pytest.raises(TypeError, match="a mapping of texts to texts"):
        either.claim_job(job, labels=labels)
    with pytest.raises(TypeError, match="a mapping of texts to texts"):
        either.list_claimed_jobs(labels=labels)


def test_refused_label_key_is_reported(either: Either, job: str) -> None:
    """The server knows what a key may be; its words come through."""
    with pytest.raises(Refused, match="no key of a label"):
        either.claim_job(job, labels={"not a key": "v"})


def test_label_of_a_str_subclass_is_plain_text(either: Either, job: str) -> None:
    """The member of an enum is the same label in a claim and in a list, whatever it shows itself as."""
    either.claim_job(job, labels={"team": Team.INFRA})
    assert either.get_job_owner(job).labels == {"team": "infra"}
    assert [each.job_id for each in either.list_claimed_jobs(job, labels={"team": Team.INFRA})] == [job]
