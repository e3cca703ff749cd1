"""Where a user's lease ids are kept between two commands: a file for each job, readable by that user alone.

`$XDG_STATE_HOME/holdfast/leases`, keyed by server and job. A server that has several addresses has a file for each, so
that a command finds it by any of them. Written as a whole, removed when the job is given back, and
removed some time after the lease must have ended. Nothing here says that a lease lives: only the server knows.

Several owners may work as one user. The last lease of a job counts; those of other owners before it are kept beside it,
so that each of them can still be told how its own ended.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

KEPT_AFTER_END_MS = 86_400_000
"""For so long `heartbeat` can still say how a lease ended, instead of that there is none."""


FORMER_MAX = 8
"""How many leases of other owners are kept beside the last one of a job."""


class Former(msgspec.Struct, frozen=True):
    """A lease of another owner, before the last one."""

    owner: str | None
    lease_id: str
    until_ms: int

    def __repr__(self) -> str:
        """Show everything but the secret."""
        return f"Former(owner={self.owner!r})"


class KeptLease(msgspec.Struct, frozen=True):
    """A lease that was claimed from here."""

    url: str
    job: str
    lease_id: str
    owner: str | None
    token: int
    until_ms: int
    """When it ends unless it is renewed, by this machine's wall clock."""
    former: tuple[Former, ...] = ()

    def lease_id_of(self, owner: str) -> str | None:
        """Return the lease id that this owner has here, or had before another claimed the job."""
        known = [(self.owner, self.lease_id), *((each.owner, each.lease_id) for each in self.former)]
        return next((lease_id for name, lease_id in known if name == owner), None)

    def __repr__(self) -> str:
        """Show everything but the secret."""
        return f"KeptLease({self.job!r} at {self.url}, owner={self.owner!r}, token={self.token})"


class Leases:
    """The lease ids of one user."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._directory = state_dir(environment) / "leases"

    def keep(self, kept: KeptLease, now_ms: int) -> None:
        """Keep a lease in place of what was kept for this job, and forget those that ended long ago."""
        from holdfast import privatefiles

        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = msgspec.structs.replace(kept, former=self._former(kept, now_ms))
        for file in self._files(kept.url, kept.job):
            privatefiles.replace(file, msgspec.json.encode(kept) + b"\n")
        for file, other in self._all():
            if other.until_ms + KEPT_AFTER_END_MS < now_ms:
                _remove(file)

    def _former(self, kept: KeptLease, now_ms: int) -> tuple[Former, ...]:
        """Return what other owners had of this job before, the newest first."""
        last = self.find(kept.url, kept.job)
        if last is None:
            return ()
        found = (Former(last.owner, last.lease_id, last.until_ms), *last.former)
        others = [each for each in found if each.owner != kept.owner and each.until_ms + KEPT_AFTER_END_MS >= now_ms]
        return tuple(others[:FORMER_MAX])

    def find(self, url: str, job: str) -> KeptLease | None:
        """Return what is kept for a job; None if nothing is, or what is there cannot be read."""
        return next((kept for file in self._files(url, job) if (kept := _read(file)) is not None), None)

    def forget(self, url: str, job: str) -> None:
        """Remove what is kept for a job, if anything is."""
        kept = self.find(url, job)
        for file in self._files(url if kept is None else f"{kept.url},{url}", job):
            _remove(file)

    def jobs(self, prefix: str = "") -> list[str]:
        """Return the names of all jobs that something is kept for."""
        return sorted({kept.job for _, kept in self._all() if kept.job.startswith(prefix)})

    def _files(self, url: str, job: str) -> list[Path]:
        import hashlib

        keys = (f"{address}\0{job}".encode("utf-8", "surrogateescape") for address in url.split(","))
        return [self._directory / f"{hashlib.sha256(key).hexdigest()[:32]}.json" for key in keys]

    def _all(self) -> Iterator[tuple[Path, KeptLease]]:
        try:
            files = sorted(self._directory.glob("*.json"))
        except OSError:
            return
        for file in files:
            kept = _read(file)
            if kept is not None:
                yield file, kept


def state_dir(environment: Mapping[str, str]) -> Path:
    """Tell where the user's state lives. Raises `OSError` where nothing says so."""
    state = environment.get("XDG_STATE_HOME", "")
    # The XDG specification: a path that is not absolute counts as not set.
    if Path(state).is_absolute():
        return Path(state) / "holdfast"
    home = environment.get("HOME") or _home()
    return Path(home) / ".local" / "state" / "holdfast"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:  # A container may run as a number that has none.
        raise OSError(errno.ENOENT, "there is no home directory; set HOME or XDG_STATE_HOME") from error


def own() -> Leases:
    """Return those of the user who runs this."""
    return Leases(os.environ)


def _read(file: Path) -> KeptLease | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=KeptLease)
    except (OSError, msgspec.MsgspecError):
        return None


def _remove(file: Path) -> None:
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)
