"""The client without what only POSIX has: as much of Windows as this machine can show."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import SettingsError, clientconfig
from holdfast.client import sync_transport
from tests.support import callers
from tests.support.checks import unique
from tests.support.server import ServerProcess

WITHOUT_POSIX = """
import os, select, signal, sys, time
for name in ("pwd", "grp", "fcntl", "termios", "resource", "tty", "pty", "syslog"):
    sys.modules[name] = None
MISSING = {
    select: "poll epoll",
    os: "fork register_at_fork geteuid getuid getegid getgid uname fchmod killpg getpgrp "
        "O_NOFOLLOW O_NONBLOCK O_NOCTTY O_CLOEXEC O_DIRECTORY",
    time: "clock_gettime clock_gettime_ns CLOCK_BOOTTIME CLOCK_MONOTONIC",
    signal: "SIGHUP SIGQUIT",
}
for module, names in MISSING.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
"""
CLIENT = """
import asyncio, holdfast
job = sys.argv[1]
with holdfast.Holdfast() as client:
    with client.claim(job, ttl=30) as claim:
        claim.note("half way")
        assert claim.remaining > 0
        assert client.get_job_owner(job).note == "half way"
    assert client.get_job_owner(job) is None

async def main():
    async with holdfast.AsyncHoldfast() as client:
        async with client.claim(job, ttl=30) as claim:
            await claim.note("nearly done")
            assert (await client.get_job_owner(job)).note == "nearly done"
        assert await client.get_job_owner(job) is None

asyncio.run(main())
lease = holdfast.claim_job(job, ttl=30)
assert holdfast.heartbeat_job(job, lease.lease_id) > 0
holdfast.release_job(job, lease.lease_id)
with holdfast.fencing.MemoryFence().guard("resource", lease.fencing_token):
    pass
try:
    holdfast.fencing.FileFence("report.txt")
except holdfast.CannotFence:
    print("released")
"""


def test_client_works_without_posix(server: ServerProcess, nowhere: dict[str, str]) -> None:
    """A fresh process imports, claims, renews and releases, in every way; a fence in a file is refused."""
    command = [sys.executable, "-c", WITHOUT_POSIX + CLIENT, unique("job")]
    environment = {**os.environ, **nowhere, "HOLDFAST_URL": server.url, "HOLDFAST_TOKEN": callers.ALICE}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "released\n", "")


def test_kept_connection_is_checked_by_select_where_there_is_no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is silent is used again; one that has input, an end too, or is closed, is not."""
    monkeypatch.setattr(sync_transport, "_HAS_POLL", False)
    monkeypatch.delattr(select, "poll")
    ours, theirs = socket.socketpair()
    kept = sync_transport.Connection(ours)
    with theirs:
        assert kept.is_quiet()
        theirs.sendall(b"x")
        assert not kept.is_quiet()
        assert ours.recv(1) == b"x" and kept.is_quiet()
    assert not kept.is_quiet()
    kept.close()
    assert not kept.is_quiet()


def test_token_file_needs_a_system_with_owners(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where nobody can say who else may read a token file, it is refused as a setting."""
    file = tmp_path / "token"
    file.write_text("t" * 32)
    file.chmod(0o600)
    assert clientconfig.read_token(file) == "t" * 32
    monkeypatch.delattr(os, "geteuid")
    with pytest.raises(SettingsError) as caught:
        clientconfig.read_token(file)
    assert caught.value.setting == "token file"
