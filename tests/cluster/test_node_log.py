"""What a node says in its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cluster.election import LOGGED_ERRORS_MAX, NodeLog
from holdfast.engine.build import JournalError
from holdfast.testing.clock import ManualClock
from tests.cluster.test_node_health import LEADERSHIP

if TYPE_CHECKING:
    import pytest


def test_alternating_errors_are_logged_once_each(caplog: pytest.LogCaptureFixture) -> None:
    """A node looks four times a second: a store that fails in two ways in turns must not fill its log."""
    node_log = NodeLog("node1", ManualClock())
    for _ in range(1_000):
        node_log.poll_failed(JournalError("refused"))
        node_log.poll_failed(JournalError("did not answer"))
    assert [record.getMessage().count("refused") for record in caplog.records] == [1, 0]
    assert "did not answer" in (node_log.trouble or "")


def test_errors_of_one_trouble_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    """An error with a number that differs each time must not fill the log either."""
    node_log = NodeLog("node1", ManualClock())
    for number in range(1_000):
        node_log.poll_failed(JournalError(f"connection {number} was reset"))
    assert len(caplog.records) == LOGGED_ERRORS_MAX


def test_end_of_an_epoch_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Why a tenure is over may say that its epoch is: then that is not said twice."""
    NodeLog("node1", ManualClock()).follows(LEADERSHIP, "epoch 1 is over: another node has the seat now")
    (message,) = caplog.messages
    assert message.endswith("its epoch 1 is over: another node has the seat now") and message.count("is over") == 1


def test_node_that_cannot_lead_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """A node tries again every few seconds: what it meets each time is said once."""
    node_log = NodeLog("node1", ManualClock())
    for _ in range(100):
        node_log.could_not_lead(JournalError("it went back in time"))
    assert ["went back" in message for message in caplog.messages] == [True]
