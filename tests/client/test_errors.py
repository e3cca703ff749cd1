"""The exceptions: one tree, and each can travel between processes."""

from __future__ import annotations

import pickle

import pytest

from holdfast import errors

EXAMPLES = [
    errors.HoldfastError("a"),
    errors.SettingsError("listen", "--config", "'x' cannot be used", "host:port"),
    errors.ServerError("a"),
    errors.Unreachable("http://host", "connection refused"),
    errors.Refused(404, "not_found", "Resource not found", "Look elsewhere.", "r-1"),
    errors.NotAllowed(401, "authentication_failed", "Authentication failed"),
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
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
