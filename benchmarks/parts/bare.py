"""Claim and release by a bare socket: the least that any client in Python can do, with the keys that ours sends."""

from __future__ import annotations

import json
import socket
from typing import Any

from benchmarks.load.generator import split_answer
from benchmarks.load.scripts import Wire

_READ_BYTES = 65_536
_OK = 200


class BareSocket:
    """One kept connection: one `sendall` for each request, and one `recv` for nearly every answer."""

    def __init__(self, port: int, authorization: str, owner: str = "bench") -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._wire = Wire(port, authorization, as_client=True)
        self._claim = json.dumps({"ttl_seconds": 60, "owner": owner}).encode()

    def acquire(self, name: str) -> str:
        """Claim a name; return its lease id."""
        answer = self._ask(b"/locks/%b/acquire" % name.encode(), self._claim)
        if answer["status"] != "acquired":
            raise OSError(f"{name} was not granted: {answer}")
        lease: str = answer["lease_id"]
        return lease

    def release(self, name: str, lease_id: str) -> None:
        self._ask(b"/locks/%b/release" % name.encode(), json.dumps({"lease_id": lease_id}).encode())

    def close(self) -> None:
        self._sock.close()

    def _ask(self, path: bytes, body: bytes) -> Any:  # noqa: ANN401 - JSON
        self._sock.sendall(self._wire.post(path, body))
        data = self._sock.recv(_READ_BYTES)
        while (answer := split_answer(data)) is None:
            more = self._sock.recv(_READ_BYTES)
            if not more:
                raise OSError("the server hung up")
            data += more
        status, content = answer
        if status != _OK:
            raise OSError(f"{status} {content[:200].decode(errors='replace')}")
        return json.loads(content)
