"""`python -m benchmarks get etcd`: builds a current etcd with the Go of this machine, for the benchmark alone.

Nothing is installed: the program is put where the benchmark looks first. Where Go gets its modules from is Go's own
setting. All other peers come from the system's packages.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.progress import say
from benchmarks.systems.base import PEERS

if TYPE_CHECKING:
    from collections.abc import Sequence

ETCD = "go.etcd.io/etcd/server/v3"


def main(argv: Sequence[str] | None = None) -> int:
    """Build it; 1 if that is not possible here."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks get", description="Build a peer for the benchmark.")
    parser.add_argument("peer", choices=["etcd"])
    parser.add_argument("--version", default="latest", help="such as v3.7.3, default %(default)s")
    arguments = parser.parse_args(argv)
    go = shutil.which("go")
    if go is None:
        say("there is no `go` on the PATH; put an `etcd` on the PATH yourself")
        return 1
    PEERS.mkdir(parents=True, exist_ok=True)
    # Not `go install`: it refuses a module whose go.mod replaces others, and etcd's does.
    with tempfile.TemporaryDirectory() as folder:
        for command in (
            [go, "mod", "init", "peer"],
            [go, "get", f"{ETCD}@{arguments.version}"],
            [go, "build", "-o", str(Path(folder) / "etcd"), ETCD],
        ):
            say(" ".join(["go", *command[1:]]))
            if subprocess.run(command, cwd=folder, check=False).returncode != 0:
                return 1
        shutil.copy2(Path(folder) / "etcd", PEERS / "etcd")
    say("etcd is ready for the benchmark")
    return 0
