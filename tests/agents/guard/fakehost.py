"""A host of agents, as a program of its own: for each line of JSON it runs a command as hosts run their hooks.

That is through `sh -c`, with the input on a pipe, and it waits until both outputs are closed, as hosts do. An order
with `mcp` starts `holdfast mcp` as a child of this process, or sends it a request and returns the response.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any

_output = threading.Lock()


class _McpServer:
    """One `holdfast mcp` process and the requests to it, one after the other."""

    def __init__(self, command: str, cwd: str) -> None:
        self._lock, self._id = threading.Lock(), 0
        self._process = subprocess.Popen(
            ["sh", "-c", f"exec {command}"], cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        client = {"name": "fakehost", "version": "1"}
        self.request("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def request(self, method: str, params: dict[str, Any]) -> Any:  # noqa: ANN401 - whatever the response holds
        """Send a request and return its result."""
        with self._lock:
            self._id += 1
            self._send({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params})
            assert self._process.stdout
            for line in self._process.stdout:
                answer = json.loads(line)
                if answer.get("id") == self._id:
                    return answer.get("result") or answer["error"]
        raise EOFError("holdfast mcp has ended")

    def stop(self) -> int:
        """Close its input, as a host does, and return its exit code."""
        assert self._process.stdin
        self._process.stdin.close()
        return self._process.wait(30)


_servers: dict[str, _McpServer] = {}


def _mcp(order: dict[str, Any]) -> object:
    name = order["mcp"]
    if "command" in order:
        _servers[name] = _McpServer(order["command"], order["cwd"])
        return "started"
    if "tool" in order:
        return _servers[name].request("tools/call", {"name": order["tool"], "arguments": order["arguments"]})
    return _servers.pop(name).stop()


def _run(order: dict[str, Any]) -> None:
    if "mcp" in order:
        answer = {"id": order["id"], "code": 0, "out": json.dumps(_mcp(order)), "err": ""}
    else:
        done = subprocess.run(
            ["sh", "-c", order["command"]],
            input=order["input"].encode("utf-8", "surrogateescape"),
            cwd=order["cwd"],
            capture_output=True,
            check=False,
        )
        answer = {"id": order["id"], "code": done.returncode, "out": done.stdout.decode(), "err": done.stderr.decode()}
    with _output:
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    for line in sys.stdin:
        threading.Thread(target=_run, args=(json.loads(line),)).start()
