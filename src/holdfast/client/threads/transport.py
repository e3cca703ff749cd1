"""The seam between flows and the network, for threads: what a transport has to do. `http.py` is the one we have.

Only `client.py` says which transport it is. Whatever takes its place keeps these promises:

- Any number of threads may use it at once, and one that waits for an answer delays no other.
- What is broken off, by an interrupt too, leaves nothing locked and no connection on which an answer is still to come.
- A forked process opens connections of its own: on inherited ones it would hear the answers of its parent.
- It sends a request once, and once more if the server did not know the token and `Bearer` has another by now. It
  retries nothing else, follows no redirect, and raises `Unreachable` if no answer came.
- It takes headers, limits and the proxy from `common/http.py`; there alone the token is written.
"""

from __future__ import annotations

from typing import Protocol

from holdfast.client.flows.effects import Open, Send
from holdfast.client.values.answer import Answer


class Stream(Protocol):
    """A response that is read bit by bit."""

    status: int

    def read(self) -> bytes:
        """Wait for the next bytes; empty at the end. Raises `Unreachable`."""

    def close(self) -> None:
        """Hang up."""


class Transport(Protocol):
    """A way to one server."""

    def send(self, request: Send) -> Answer:
        """Send one request and return its answer, whatever its status. Raises `Unreachable`."""

    def stream(self, opening: Open) -> Stream:
        """Open a response that goes on and on. Raises `Unreachable`."""

    def close(self) -> None:
        """Close the connections; the next request opens one again."""
