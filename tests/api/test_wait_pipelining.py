"""What the fast lane does with requests behind one that waits. (Behind ASGI, reading stops until the wait is over.)"""

from __future__ import annotations

from tests.support import callers
from tests.support.api import Api, lock_path
from tests.support.checks import unique, wait_until
from tests.support.pending import payload, waiters, waiting


def test_broken_connection_drops_pipelined_requests(alice: Api, bob: Api, name: str) -> None:
    """What was sent behind a wait and not yet begun does not happen when the connection breaks."""
    alice.acquired(name)
    other = unique()
    request = waiting(bob, name, owner="ben")
    request.send(payload(f"{lock_path(other)}/acquire", callers.BOB, {}))
    request.close(reset=True)
    wait_until(lambda: waiters(alice, name) == 0)
    assert alice.status(other).json()["status"] == "free"
