"""Fixtures for tests of a running server; see `tests/support/server_fixtures.py`."""

from tests.support.server_fixtures import (
    alice,
    bob,
    carol,
    dave,
    name,
    nobody,
    nothing_changes,
    one_server,
    operator,
    server,
    server_settings,
    standing_lease,
    store_of_nodes,
)

__all__ = [
    "alice",
    "bob",
    "carol",
    "dave",
    "name",
    "nobody",
    "nothing_changes",
    "one_server",
    "operator",
    "server",
    "server_settings",
    "standing_lease",
    "store_of_nodes",
]
