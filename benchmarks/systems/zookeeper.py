"""ZooKeeper, one server, as what kazoo speaks to. Its log is synced before each answer, which is its default."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

from benchmarks.systems.base import PEERS, Server
from benchmarks.systems.process import Child

_MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"
_FOLDERS = (PEERS / "zookeeper", Path("/usr/share/java"))


class ZooKeeper(Server):
    """Found as Debian installs it, in `$ZOOKEEPER_HOME`, or among what was got for the benchmark."""

    key = "zookeeper"
    title = "ZooKeeper"
    how_to_get = "apt install zookeeper, or set ZOOKEEPER_HOME to an unpacked release; it needs java"

    def missing(self) -> str | None:
        if not shutil.which("java"):
            return "no `java` on the PATH"
        return None if _jars() else "no zookeeper.jar"

    def version(self) -> str:
        names = [path.resolve().stem for path in _jars() if path.name.startswith("zookeeper")]
        found = next((name.removeprefix("zookeeper-") for name in names if any(map(str.isdigit, name))), None)
        return found or "version unknown"

    def _launch(self, folder: Path) -> Child:
        config = folder / "zoo.cfg"
        lines = {
            "tickTime": "2000",
            "dataDir": str(folder / "data"),
            "clientPort": str(self.port),
            "clientPortAddress": "127.0.0.1",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "ruok",
        }
        config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()), encoding="utf-8")
        path = os.pathsep.join(map(str, _jars()))
        return Child(["java", "-cp", path, _MAIN, str(config)], log=folder / "log")

    def _is_ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as wire:
                wire.sendall(b"ruok")
                return wire.recv(4) == b"imok"
        except OSError:
            return False


def _jars() -> list[Path]:
    """Return ZooKeeper's own jars and all that lies beside them; none if there is no ZooKeeper."""
    home = os.environ.get("ZOOKEEPER_HOME")
    for folder in (*([Path(home), Path(home) / "lib"] if home else []), *_FOLDERS):
        if list(folder.glob("zookeeper*.jar")):
            return sorted(folder.glob("*.jar"))
    return []
