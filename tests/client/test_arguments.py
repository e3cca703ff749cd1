"""What callers get wrong: they are told what to do instead, nothing is sent in vain, and nothing is left behind."""

# ruff: noqa: PT012 - a block that raises in the end is what many of these tests are about.

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast, LeaseReleased, NotInTime, Refused, SettingsError
from holdfast import exclusive as holdfast_exclusive
from holdfast.client.requests import integer_seconds, job_path, patience, wait_seconds
from tests.client.both import Either
from tests.support.checks import unique


@pytest.mark.parametrize("given", [math.inf, math.nan, -1, -0.5])
def test_spans_have_an_end(given: float) -> None:
    """A span that the wire cannot carry is refused by its name before anything is sent."""
    with pytest.raises(ValueError, match=r"remember is .*give a number of seconds"):
        integer_seconds(given, "remember")


@pytest.mark.parametrize("given", ["60", None, True, [60]])
def test_spans_are_numbers(given: Any) -> None:  # noqa: ANN401 - anything
    """What is no number is called so by its name."""
    with pytest.raises(TypeError, match=r"ttl is .*give a number of seconds"):
        integer_seconds(given)


def test_waits_may_be_without_end() -> None:
    """A wait may be left out, be nothing, or never end; one that makes no sense is refused."""
    assert [wait_seconds(each) for each in (None, 0, 0.01, math.inf)] == [0, 0, 0.01, math.inf]
    for nonsense in (-1, math.nan):
        with pytest.raises(ValueError, match=r"math\.inf for ever"):
            wait_seconds(nonsense)
    with pytest.raises(TypeError, match="wait is"):
        wait_seconds("5")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "error"),
    [(0, ValueError), (-1, ValueError), (math.nan, TypeError), (2.5, TypeError), ("5", TypeError), (True, TypeError)],
)
def test_limit_must_be_an_integer(open_client: Callable[..., Either], given: object, error: type[Exception]) -> None:
    """A limit that would list nothing, or is none, is refused before anything is sent."""
    nowhere = open_client(url="http://127.0.0.1:9", retry_seconds=0)
    said = r"limit is .*; give a whole number of at least 1"
    with pytest.raises(error, match=said):
        nowhere.list_claimed_jobs(limit=given)
    with pytest.raises(error, match=said):
        nowhere.history("job", limit=given)


@pytest.mark.parametrize(
    ("method", "words", "option"),
    [
        ("claim", ["j"], "session"),
        ("claim_any", [["j"]], "session"),
        ("claim_all", [["j"]], "session"),
        ("claim_job", ["j"], "session"),
        ("claim_any_job", [["j"]], "session"),
        ("claim_all_jobs", [["j"]], "session"),
        ("list_claimed_jobs", [], "session"),
        ("end_session", [], "session_id"),
    ],
)
def test_a_session_is_named_by_its_id(
    either: Either, open_client: Callable[..., Either], method: str, words: list[Any], option: str
) -> None:
    """A session in place of its id is refused before anything is sent: its secret stays where it is."""
    nowhere = open_client(url="http://127.0.0.1:9", retry_seconds=0)
    opened = either.open_session()
    with pytest.raises(TypeError, match=r"session is of the type OpenedSession; give .* its \.session_id"):
        getattr(nowhere, method)(*words, **{option: opened})


@pytest.mark.parametrize("given", ["", None, 5, "\ud800"])
def test_empty_job_name_is_refused(given: Any) -> None:  # noqa: ANN401 - anything
    """What can be no name at all is refused before anything is sent."""
    with pytest.raises(ValueError, match="names no job"):
        job_path(given)


@pytest.mark.parametrize(("seconds", "allow_zero"), [(0, False), (-1, True), (math.nan, True)])
def test_patience_is_a_span(seconds: float, *, allow_zero: bool) -> None:
    """A client that could never hear an answer is not made."""
    with pytest.raises(SettingsError, match=r"answer_seconds.*allowed: a number of seconds"):
        patience(seconds, "answer_seconds", allow_zero=allow_zero)
    assert patience(math.inf, "retry_seconds", allow_zero=True) == math.inf


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"ttl": math.inf}, ValueError, "ttl is inf"),
        ({"ttl": -1}, ValueError, "ttl is -1"),
        ({"ttl": 0}, Refused, "1 to 86400"),
        ({"wait": -1}, ValueError, "wait is -1"),
        ({"lock_delay": math.nan}, ValueError, "lock_delay is nan"),
        ({"metadata": {"a": object()}}, TypeError, "cannot be written as JSON"),
        ({"metadata": ["a"]}, TypeError, "give text, or a mapping"),
        ({"metadata": "x" * 1_025}, Refused, "at most 1024 characters"),
        ({"owner": "x" * 129}, Refused, "1 to 128 characters"),
        ({"owner": "\ud800"}, ValueError, "cannot be sent"),
    ],
)
def test_invalid_claim_names_the_problem(
    either: Either, job: str, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    """An argument that cannot be used is named, with what is allowed; the job stays free."""
    with pytest.raises(error, match=text) as caught:
        either.claim(job, **options)
    assert caught.value.args
    assert either.job(job).status == "free"


@pytest.mark.parametrize(
    "words", [{"outcome": "bogus"}, {"result": "x" * 1_025}, {"outcome": "done", "remember": math.inf}]
)
def test_refused_release_leaves_the_claim_as_it_was(either: Either, job: str, words: dict[str, Any]) -> None:
    """A release that is refused for its words leaves the claim ours and renewed; the block still gives it back."""
    with pytest.raises((Refused, ValueError)), either.claim(job) as claim:
        with pytest.raises((Refused, ValueError)):
            claim.release(**words)
        claim.raise_if_lost()
        assert not claim.released and claim.remaining > 0
        claim.note("still ours")
        claim.release(**words)
    assert claim.released
    assert either.get_job_owner(job) is None


def test_refused_release_of_a_group(either: Either) -> None:
    """The same for several: what was refused is given back when the block is left."""
    jobs = [unique("group"), unique("group")]
    with pytest.raises(Refused), either.claim_all(jobs) as claims:
        claims.release(outcome="bogus")
    assert [either.get_job_owner(each) for each in jobs] == [None, None]


def test_refused_transfer_leaves_the_claim_as_it_was(either: Either, job: str) -> None:
    """A transfer that is refused leaves the claim ours."""
    with either.claim(job) as claim:
        with pytest.raises(Refused):
            claim.transfer("x" * 129)
        claim.raise_if_lost()
        claim.transfer("another")
        with pytest.raises(LeaseReleased):
            claim.raise_if_lost()


def test_raising_on_wait_leaves_the_queue(either: Either, open_client: Callable[..., Either], job: str) -> None:
    """Whatever the watcher of a wait raises, one of our own exceptions too, the place in the line is given up."""

    def had_enough(update: object) -> None:
        raise NotInTime("enough")

    with open_client(owner="first").claim(job):
        with pytest.raises(NotInTime, match="enough"):
            either.claim(job, wait=30, on_wait=had_enough)
        assert either.job(job).waiting == 0


@pytest.mark.parametrize(
    ("method", "jobs", "option"),
    [
        ("claim", "j", "timeout"),
        ("claim_any", ["j"], "resume"),
        ("claim_all", ["j"], "resume"),
    ],
)
def test_unknown_option_is_refused(method: str, jobs: object, option: str) -> None:
    """An option that a claim does not have is a `TypeError`; nothing is sent."""
    client = Holdfast("http://127.0.0.1:9", environment={})
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{option}'"):
        getattr(client, method)(jobs, **{option: None})


@pytest.mark.parametrize("exclusive", [holdfast_exclusive, Holdfast("http://127.0.0.1:9", environment={}).exclusive])
def test_unknown_option_of_exclusive_is_refused_at_once(exclusive: Callable[..., Any]) -> None:
    """A decorator with an option that there is not fails where it stands, and not in the night when it is called."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'timeout'"):
        exclusive("nightly", timeout=3)
