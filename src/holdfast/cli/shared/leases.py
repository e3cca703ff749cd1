"""Lease ids of one user, kept between two commands: a private file for each job.

`$XDG_STATE_HOME/holdfast/leases` has a file for each address of the server and job, so that a command finds a lease by
any of them. A file lists the last lease of each owner, the newest first: several owners may work as one user, and each
is told how its own claim ended. Files are replaced as a whole, and removed when the job is released or a day after the
lease must have ended. Only the server knows whether a lease lives.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

RETAINED_AFTER_END_MS = 86_400_000
"""So long `heartbeat` can still say how a lease ended."""
OWNERS_MAX = 9


class StoredLease(msgspec.Struct, frozen=True):
    url: str
    job: str
    lease_id: str
    owner: str | None
    token: int
    until_ms: int
    """When it ends unless it is renewed, by this machine's wall clock."""

    def __repr__(self) -> str:
        """Show everything but the secret."""
        return f"StoredLease({self.job!r} at {self.url}, owner={self.owner!r}, token={self.token})"


class Leases:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._directory = state_dir(environment) / "leases"

    def store(self, stored: StoredLease, now_ms: int) -> None:
        """Keep a lease as the last one of its job, and remove those that ended long ago."""
        from holdfast import privatefiles

        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        others = [
            each
            for each in self.find(stored.url, stored.job)
            if each.owner != stored.owner and _is_needed(each, now_ms)
        ]
        for file in self._files(stored.url, stored.job):
            privatefiles.replace(file, msgspec.json.encode([stored, *others[: OWNERS_MAX - 1]]) + b"\n")
        for file, (last, *_) in self._all():
            if not _is_needed(last, now_ms):
                _remove(file)

    def find(self, url: str, job: str) -> list[StoredLease]:
        """Return the leases of a job, one for each owner, the newest first."""
        return next((stored for file in self._files(url, job) if (stored := _read(file))), [])

    def forget(self, url: str, job: str) -> None:
        stored = self.find(url, job)
        for file in self._files(f"{stored[0].url},{url}" if stored else url, job):
            _remove(file)

    def jobs(self, prefix: str = "") -> list[str]:
        """Return the names of the jobs that begin with a prefix."""
        return sorted({stored[0].job for _, stored in self._all() if stored[0].job.startswith(prefix)})

    def _files(self, url: str, job: str) -> list[Path]:
        import hashlib

        keys = (f"{address}\0{job}".encode("utf-8", "surrogateescape") for address in url.split(","))
        return [self._directory / f"{hashlib.sha256(key).hexdigest()[:32]}.json" for key in keys]

    def _all(self) -> Iterator[tuple[Path, list[StoredLease]]]:
        with contextlib.suppress(OSError):
            for file in sorted(self._directory.glob("*.json")):
                if stored := _read(file):
                    yield file, stored


def state_dir(environment: Mapping[str, str]) -> Path:
    """Return the user's folder for state. Raises `OSError` if there is none."""
    from holdfast.agents.guard.state import base_of

    folder = Path(base_of(environment)).parent
    if not folder.is_absolute():  # A container may run as a number without a home.
        raise OSError(errno.ENOENT, "there is no home directory; set HOME or XDG_STATE_HOME")
    return folder


def own() -> Leases:
    return Leases(os.environ)


def _is_needed(stored: StoredLease, now_ms: int) -> bool:
    return stored.until_ms + RETAINED_AFTER_END_MS >= now_ms


def _read(file: Path) -> list[StoredLease]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[StoredLease])
    except (OSError, msgspec.MsgspecError):
        return []


def _remove(file: Path) -> None:
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)
