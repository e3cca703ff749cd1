"""The exceptions: one tree, and each can travel between processes."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import errors

AT = datetime(2026, 1, 1, tzinfo=UTC)
HELD = errors.JobHeld("b", job_id="k")

EXAMPLES = [
    errors.HoldfastError("a"),
    errors.SettingsError("listen", "--config", "'x' cannot be used", "host:port"),
    errors.ServerError("a"),
    errors.Unreachable("http://host", "connection refused", was_sent=False),
    errors.Unreachable("https://host", "its certificate is not trusted", "name it"),
    errors.Refused(404, "not_found", "Resource not found", "Look elsewhere.", "r-1"),
    errors.NotAllowed(401, "authentication_failed", "Authentication failed"),
    errors.Deadlock(409, "deadlock", "Deadlock", "Do not wait.", "r-1", cycle=["a", "b"]),
    errors.JobHeld("a", job_id="j", owner="o", note="n", claimed_at=AT, waiting=2, retry_after=1.5, others=[HELD]),
    errors.NotInTime("a", job_id="j", owner="o"),
    errors.JobDone("a", job_id="j", owner="o", fencing_token=5, completed_at=AT, result="r"),
    errors.LeaseLost("a", job_id="j", fencing_token=5, reason="revoked", by="op", why="because"),
    errors.LeaseReleased("a"),
    errors.StaleToken("a", resource="r", fencing_token=4, current=5),
    errors.CannotFence("a"),
]


def test_every_public_exception_is_tried() -> None:
    """Every public exception is in the tree under `HoldfastError`, drawn on top of its file, and tried here."""
    assert {type(example).__name__ for example in EXAMPLES} == set(errors.__all__)
    for example in EXAMPLES:
        assert isinstance(example, errors.HoldfastError)
        assert type(example).__name__ in (errors.__doc__ or "")


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_exceptions_travel_between_processes(error: errors.HoldfastError) -> None:
    """An exception that was pickled is the same afterwards."""
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), shown(again)) == (type(error), str(error), shown(error))


def shown(error: errors.HoldfastError) -> dict[str, Any]:
    """What an exception carries; exceptions in it as text, because no two are equal."""
    return {name: str(value) if name == "others" else value for name, value in vars(error).items()}


def test_each_except_clause_has_its_exception() -> None:
    """Held, lost, unreachable and refused are four different exceptions; not in time is a kind of held."""
    four = [errors.JobHeld, errors.LeaseLost, errors.Unreachable, errors.Refused]
    assert not [(a, b) for a in four for b in four if a is not b and issubclass(a, b)]
    assert issubclass(errors.NotInTime, errors.JobHeld)
