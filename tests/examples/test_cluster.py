"""`make cluster`: three nodes on a PostgreSQL of their own survive the death of their leader, and end with Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.program import Program
from tests.support.server import PROJECT

Start = Callable[..., Program]


def test_cluster_survives_its_leader_and_stops_cleanly(example: Start, tmp_path: Path) -> None:
    """What it says to try works: a claim through a follower outlives the leader, and Ctrl-C leaves nothing behind."""
    cluster = example("cluster.py", "--port", 0, env={"PYTHONWARNINGS": ""})
    try:
        (leader,) = cluster.said(r"node(\d) leads \(process (\d+)\)")
        follower = cluster.said(r"HOLDFAST_URL=(\S+) holdfast claim")[0][1]
        urls = cluster.said(r"export HOLDFAST_URL=(\S+)")[0][1]
        token_file = cluster.said(r"export HOLDFAST_TOKEN_FILE=(\S+)")[0][1]
        cluster.said(r"Ctrl-C ends it all")

        def holdfast(*words: str, url: str) -> str:
            ours = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
            env = {**ours, "HOLDFAST_URL": url, "HOLDFAST_TOKEN_FILE": token_file, "XDG_STATE_HOME": str(tmp_path)}
            command = [sys.executable, "-m", "holdfast", *words]
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, cwd=PROJECT)
            assert done.returncode == 0, done.stderr
            return done.stdout

        holdfast("claim", "deploy", "--ttl", "10m", "--owner", "me", url=follower)
        assert f"node{leader[1]} leads since" in holdfast("nodes", url=urls)
        os.kill(int(leader[2]), signal.SIGKILL)
        cluster.said(rf"node{leader[1]} has ended")
        (after,) = cluster.said(r"node(\d) leads now")
        assert after[1] != leader[1]
        assert "me" in holdfast("owner", "deploy", url=urls)
        assert f"node{after[1]} leads since" in holdfast("nodes", url=urls)
        cluster.said(rf"node{leader[1]} is started again")
    finally:
        cluster.process.send_signal(signal.SIGINT)
        code = cluster.ended()
    assert code == 0 and "All has ended." in cluster.output
    assert not Path(token_file).parent.exists()
