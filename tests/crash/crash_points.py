"""Lets an authority start, work and stop on a directory, and dies before the n-th thing that it does to the disk.

Run as a program of its own, `python -m tests.crash.crash_points TEMPLATE FOLDER`: for n from 1 on it forks a child that
dies there, and another that must be able to start on what is left. A line of JSON for each: the files that were there,
and what the second one said; the last is of a child that did not have to die. TEMPLATE is a directory to begin with; if
it does not exist, it is a first start that is looked at, else also the work after it.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType

import apsw

from holdfast.api.auth.secrets import KEY_FILE, AuthorityKey
from holdfast.core.commands import Acquire
from holdfast.core.values import Limits, Terms
from holdfast.engine.archiver import ArchivePolicy
from holdfast.engine.build import Retention, build
from holdfast.engine.ids import new_uuid

DEATHS_MAX = 2_000
TOUCHES = {"open", "write", "fsync", "replace", "rename", "unlink", "mkdir", "posix_fallocate"}


async def work(directory: Path, *, only_start: bool = False) -> None:
    """Do what a server does to its directory: start, load the key, serve, write a snapshot, stop."""
    engine = build(
        directory,
        Limits(),
        version="test",
        retention=Retention(),
        witnesses=(KEY_FILE,),
        archive_policy=ArchivePolicy(records=1_000, size_bytes=2**20),
        disk_reserve_bytes=4_096,
        tail_bytes_max=2**32,
        disk_hang_ms=60_000,
    )
    await engine.start()
    try:
        AuthorityKey.load(directory)
        if only_start:
            return
        for job in range(3):
            terms = Terms(principal="ana", ttl_ms=60_000)
            await engine.ask(Acquire(name=f"{os.getpid()}/{job}", lease_id=new_uuid(), terms=terms))
        await engine.archive()
    finally:
        await engine.stop()


def die_before(number: int) -> None:
    """Die, as by kill -9, before the n-th call into the disk or the store from now on."""
    seen = 0

    def look(_frame: FrameType, event: str, called: object) -> None:
        nonlocal seen
        if event == "c_call" and _touches_the_disk(called):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(look)


def _touches_the_disk(called: object) -> bool:
    if isinstance(getattr(called, "__self__", None), apsw.Connection | apsw.Cursor | io.BufferedWriter):
        return True
    return getattr(called, "__module__", "") == "posix" and getattr(called, "__name__", "") in TOUCHES


def in_a_child(directory: Path, number: int | None, *, only_start: bool) -> tuple[int, str]:
    """Work in a forked process and return how that ended: its status, and what it complained of."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        complaint, code = "", 0
        try:
            if number is not None:
                die_before(number)
            asyncio.run(work(directory, only_start=only_start))
        except BaseException as error:  # noqa: BLE001 - told to the one who asks
            complaint, code = repr(error), 1
        sys.setprofile(None)
        os.write(writing, complaint.encode())
        os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as death:
        complaint = death.read().decode()
    return os.waitpid(child, 0)[1], complaint


def main() -> None:
    """Let children die, one place after another, until one lives."""
    template, folder = Path(sys.argv[1]), Path(sys.argv[2])
    for number in range(1, DEATHS_MAX):
        directory = folder / str(number)
        if template.exists():
            shutil.copytree(template, directory)
        status, complaint = in_a_child(directory, number, only_start=not template.exists())
        files = sorted(path.name for path in directory.iterdir()) if directory.exists() else []
        again, second = in_a_child(directory, None, only_start=True)
        death = {"died": os.WIFSIGNALED(status), "said": complaint, "files": files, "again": again, "then": second}
        print(json.dumps(death))
        shutil.rmtree(directory)
        if not death["died"]:
            return


if __name__ == "__main__":
    main()
