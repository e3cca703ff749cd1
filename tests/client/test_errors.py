"""The exceptions: one tree, and each can travel between processes."""

from __future__ import annotations

import copy
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

SECOND_BASES: list[tuple[type[errors.HoldfastError], type[Exception]]] = [
    (errors.NotInTime, TimeoutError),
    (errors.Unreachable, ConnectionError),
    (errors.NotAllowed, PermissionError),
    (errors.SettingsError, ValueError),
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


@pytest.mark.parametrize(("kind", "builtin"), SECOND_BASES, ids=lambda each: each.__name__)
def test_exceptions_with_a_second_base_are_handled_as_that(
    kind: type[errors.HoldfastError], builtin: type[Exception]
) -> None:
    """Code that knows nothing of Holdfast handles four of them; no other is a built-in kind, and the tree says so."""
    examples = [example for example in EXAMPLES if isinstance(example, kind)]
    assert examples and all(isinstance(example, builtin) for example in examples)
    assert [type(each) for each in EXAMPLES if isinstance(each, builtin)] == [type(each) for each in examples]
    assert f"({builtin.__name__})" in (errors.__doc__ or "")
    with pytest.raises(builtin):
        raise examples[0]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_exceptions_have_one_argument_and_no_errno(error: errors.HoldfastError) -> None:
    """The text is the only argument, and no exception claims that a call of the system failed."""
    assert len(error.args) == 1 and str(error) == error.args[0]
    assert repr(error) == f"{type(error).__name__}({error.args[0]!r})"
    if isinstance(error, OSError):
        assert (error.errno, error.strerror, error.filename, error.filename2) == (None, None, None, None)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_exceptions_can_be_copied(error: errors.HoldfastError, duplicate: Any) -> None:  # noqa: ANN401 - a function
    """A copy has the text and everything that the exception carries."""
    again = duplicate(error)
    assert (type(again), str(again), shown(again)) == (type(error), str(error), shown(error))


@pytest.mark.parametrize("name", ["errno", "strerror", "filename", "args", "no_such_detail"])
def test_details_are_those_of_the_class(name: str) -> None:
    """What `OSError` has is no detail of ours: it would name a call or a file that has nothing to do with the error."""
    details: dict[str, Any] = {name: 2}
    with pytest.raises(TypeError):
        errors.NotInTime("a", **details)
    with pytest.raises(TypeError):
        errors.NotAllowed(403, "forbidden", "Forbidden", **details)


def test_a_not_allowed_names_its_token_file_only_in_its_text() -> None:
    """`filename` is for files that could not be opened, and this one was read."""
    error = errors.NotAllowed(401, "authentication_failed", "Unknown token.", token_file="/tokens/ci")
    assert "/tokens/ci" in str(error) and error.filename is None
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_exceptions_keep_their_cause_and_are_found_in_groups() -> None:
    """`raise … from` keeps the cause, and `except*` selects by either base."""
    cause = ConnectionResetError(104, "Connection reset by peer")
    unreachable = errors.Unreachable("http://host", "connection reset by peer")
    with pytest.raises(ConnectionError) as caught:
        raise unreachable from cause
    assert caught.value is unreachable and unreachable.__cause__ is cause
    group = ExceptionGroup("several", [unreachable, errors.NotInTime("late", job_id="j"), errors.JobDone("done")])
    late, _ = group.split(TimeoutError)
    assert late is not None and [type(each) for each in late.exceptions] == [errors.NotInTime]
    ours, rest = group.split(errors.HoldfastError)
    assert ours is not None and rest is None and len(ours.exceptions) == 3
