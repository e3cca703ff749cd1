"""The fence beside a file and the folder of fences, on a real file system with several threads and processes."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.fencing import TOKEN_MAX, CannotFence, FileFence, FolderFence, StaleToken, fenced_write

WORKER = """
import sys
from holdfast.fencing import FileFence, StaleToken

file, first, step, rounds = sys.argv[1], *map(int, sys.argv[2:])
refused = 0
for token in range(first, first + step * rounds, step):
    try:
        with FileFence(file).guard(token) as held:
            before = held.path.read_bytes()
            held.write(before + b"%d\\n" % token)
    except StaleToken:
        refused += 1
print(refused)
"""

CRASH = """
import os, sys
from holdfast.fencing import FileFence

with FileFence(sys.argv[1]).guard(9) as held:
    os.fsync = lambda _: os._exit(7)
    held.write(b"new")
"""

HOLD = """
import sys
from holdfast.fencing import FolderFence

with FolderFence(sys.argv[1]).guard("job", 4):
    print("held", flush=True)
    sys.stdin.readline()
print("done", flush=True)
"""


@pytest.fixture
def report(tmp_path: Path) -> Path:
    return tmp_path / "report.txt"


def names(path: Path) -> list[str]:
    return sorted(found.name for found in path.parent.iterdir())


# --- One file --------------------------------------------------------------------------------------------------------


@settings(deadline=None)  # A disk is as slow as it is.
@given(st.lists(st.integers(0, 6) | st.integers(0, TOKEN_MAX), max_size=10))
def test_writes_exactly_the_greatest_so_far(tokens: list[int]) -> None:
    """A write succeeds if and only if its token is not smaller than every one before; else the file stays as it is."""
    with TemporaryDirectory() as folder:
        path, greatest = Path(folder, "report"), -1
        for token in tokens:
            if token < greatest:
                with pytest.raises(StaleToken) as refused:
                    fenced_write(path, b"%d" % token, token)
                assert refused.value.current == greatest
            else:
                fenced_write(path, b"%d" % token, token)
                greatest = token
            assert path.read_bytes() == b"%d" % greatest


def test_a_paused_owner_is_refused(report: Path) -> None:
    """An owner that slept past its lease changes nothing once the next one has written."""
    fenced_write(report, b"ana", 4)
    fenced_write(report, b"ben", 9)
    with pytest.raises(StaleToken) as refused:
        fenced_write(report, b"ana again", 4)
    assert (refused.value.resource, refused.value.fencing_token, refused.value.current) == (str(report), 4, 9)
    assert report.read_bytes() == b"ben"
    assert names(report) == ["report.txt", "report.txt.fence"]


def test_a_crash_leaves_old_data_and_a_raised_fence(report: Path) -> None:
    """A process that dies between the fence and the write leaves the old data, and the older owner out."""
    fenced_write(report, b"old", 4)
    assert subprocess.run([sys.executable, "-c", CRASH, report], check=False).returncode == 7
    assert report.read_bytes() == b"old"
    with pytest.raises(StaleToken):
        fenced_write(report, b"ana", 4)
    fenced_write(report, b"new", 9)
    assert report.read_bytes() == b"new"
    assert names(report) == ["report.txt", "report.txt.fence"]


def test_the_fence_is_durable_before_the_data(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fence's name, the fence, the data and its name are synced, in this order."""
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    fenced_write(report, b"new", 4)
    assert synced == [report.parent.name, "report.txt.fence", "report.txt.fence.new", report.parent.name]


def test_a_folder_is_durable_before_its_fences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of the folder is synced with each new fence, for whoever made it may have died before it did so."""
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    folder = tmp_path / "fences"
    folder.mkdir()
    monkeypatch.setattr(os, "fsync", fsync)
    for token in (4, 5):
        with FolderFence(folder).guard("job", token):
            pass
    fence = next(folder.iterdir()).name
    assert synced == [tmp_path.name, "fences", fence, fence]


@pytest.mark.parametrize("before", [None, 4])
def test_partially_written_fence_refuses_everyone(
    report: Path, monkeypatch: pytest.MonkeyPatch, before: int | None
) -> None:
    """A disk that takes half of the token: nothing is guarded, no older owner gets in, and the same one tries again."""
    if before is not None:
        fenced_write(report, b"old", before)
    real = os.pwrite
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", lambda fence, data, offset: real(fence, data[:15], offset))
        with pytest.raises(CannotFence, match="make room"):
            fenced_write(report, b"new", 19)
    assert not report.exists() or report.read_bytes() == b"old"
    if before is not None:
        with pytest.raises(StaleToken):
            fenced_write(report, b"older", before - 1)
    fenced_write(report, b"new", 19)
    assert report.read_bytes() == b"new"


def test_a_failed_write_leaves_no_trace(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails keeps the old content and removes what it had begun; the fence is up."""
    fenced_write(report, b"old", 4)
    with pytest.raises(TypeError):
        fenced_write(report, "text", 9)  # type: ignore[arg-type] # what a user may write
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", fail)
        with pytest.raises(OSError, match="full"):
            fenced_write(report, b"new", 9)
    assert report.read_bytes() == b"old"
    assert names(report) == ["report.txt", "report.txt.fence"]
    with pytest.raises(StaleToken):
        fenced_write(report, b"new", 8)


def fail(*_: object) -> None:
    raise OSError("full")


@pytest.mark.parametrize("mode", [0o640, 0o755, 0o400])
def test_keeps_the_mode(report: Path, mode: int) -> None:
    """A file that is replaced keeps its mode."""
    report.write_bytes(b"old")
    report.chmod(mode)
    fenced_write(report, b"new", 4)
    assert stat.S_IMODE(report.stat().st_mode) == mode


@pytest.mark.parametrize("bit", [stat.S_ISUID, stat.S_ISGID, stat.S_ISVTX])
def test_keeps_no_setuid_bit(report: Path, bit: int) -> None:
    """A file that is replaced keeps neither setuid nor setgid nor the sticky bit: its content is another's now."""
    report.write_bytes(b"old")
    report.chmod(0o755 | bit)
    assert report.stat().st_mode & bit, "the file system keeps such bits"
    fenced_write(report, b"new", 4)
    assert stat.S_IMODE(report.stat().st_mode) == 0o755


def test_a_new_file_has_the_usual_mode(report: Path) -> None:
    """A file that was not there is made as any other, and its fence is the owner's alone."""
    usual = report.with_name("usual")
    usual.touch()
    fenced_write(report, b"new", 4)
    assert stat.S_IMODE(report.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)
    assert stat.S_IMODE(report.with_name("report.txt.fence").stat().st_mode) == 0o600


def test_a_link_shares_the_fence_of_its_target(report: Path) -> None:
    """Through a symbolic link the same fence is met, and the link stays one."""
    link = report.with_name("link")
    link.symlink_to(report)
    fenced_write(link, b"new", 9)
    assert link.is_symlink()
    assert report.read_bytes() == b"new"
    with pytest.raises(StaleToken):
        fenced_write(report, b"old", 4)


def test_a_guard_reads_and_writes_as_one_step(report: Path) -> None:
    """Inside a guard the owner reads, writes as often as it likes or in its own way, and afterwards no more."""
    fenced_write(report, b"1", 4)
    with FileFence(report).guard(9) as held:
        held.write(held.path.read_bytes() + b"2")
        held.write(held.path.read_bytes() + b"3")
    assert report.read_bytes() == b"123"
    with FileFence(report).guard(9):
        report.write_bytes(b"by hand")
    with pytest.raises(CannotFence, match="no longer guarded"):
        held.write(b"late")
    assert report.read_bytes() == b"by hand"


def test_a_failing_block_keeps_the_fence_up(report: Path) -> None:
    """The fence stays raised whatever happens in the block, and is let go."""
    with pytest.raises(LookupError), FileFence(report).guard(9):
        raise LookupError
    with pytest.raises(StaleToken):
        fenced_write(report, b"old", 4)
    fenced_write(report, b"new", 9)


@pytest.mark.parametrize("content", [b"9", b"00000000000000009", b"000000000000000x", b"9999999999999999"])
def test_damaged_fence_refuses_everyone(report: Path, content: bytes) -> None:
    """A fence file that holds no token refuses everyone and says what to do."""
    report.with_name("report.txt.fence").write_bytes(content)
    with pytest.raises(CannotFence, match="16 digits"):
        fenced_write(report, b"new", TOKEN_MAX)
    assert not report.exists()


@pytest.mark.parametrize("token", [True, "4", -1, TOKEN_MAX + 1])
def test_only_tokens_are_tokens(report: Path, token: Any) -> None:  # noqa: ANN401 - what a user may pass
    """What is no token is refused before anything is touched."""
    with pytest.raises((TypeError, ValueError), match=r"pass claim\.fencing_token"):
        fenced_write(report, b"new", token)
    assert names(report) == []


def test_processes_write_in_the_order_of_their_tokens(report: Path) -> None:
    """Four processes that read, append and replace: no write is lost, and none follows a newer owner's."""
    report.write_bytes(b"")
    workers = [
        subprocess.Popen([sys.executable, "-c", WORKER, report, str(first), "4", "40"], stdout=subprocess.PIPE)
        for first in range(1, 5)
    ]
    refused = [int(worker.communicate()[0]) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0, 0]
    tokens = [int(line) for line in report.read_text().split()]
    assert tokens == sorted(set(tokens))
    assert len(tokens) + sum(refused) == 160


# --- A folder --------------------------------------------------------------------------------------------------------


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds `job` with token 4 until it reads a line."""
    arguments = [sys.executable, "-c", HOLD, str(tmp_path / "fences")]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_newer_owner_waits_for_the_other_process(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    """A newer owner's block begins when the older one's, in another process, is over; then the older is refused."""
    fence, passed = FolderFence(tmp_path / "fences"), threading.Event()

    def newer() -> None:
        with fence.guard("job", 9):
            passed.set()

    thread = threading.Thread(target=newer)
    thread.start()
    with fence.guard("other job", 1):
        assert not passed.is_set()
    holder.communicate("\n")
    thread.join()
    assert passed.is_set()
    with pytest.raises(StaleToken), FolderFence(tmp_path / "fences").guard("job", 4):
        pass


async def pass_async(fence: FolderFence, resource: str, token: int) -> None:
    async with fence.guard_async(resource, token):
        pass


def test_a_task_waits_without_stopping_the_loop(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    """A task that waits for another process lets the loop run, can be cancelled, and passes when it is its turn."""
    fence = FolderFence(tmp_path / "fences")

    async def main() -> None:
        cancelled = asyncio.create_task(pass_async(fence, "job", 9))
        await asyncio.sleep(0)  # One turn of the loop, in which it begins to wait.
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        waiting = asyncio.create_task(pass_async(fence, "job", 9))
        await pass_async(fence, "other job", 1)
        assert not waiting.done()
        await asyncio.to_thread(holder.communicate, "\n")
        await waiting
        with pytest.raises(StaleToken):
            await pass_async(fence, "job", 4)

    asyncio.run(main())


def test_dead_process_releases_the_lock(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    """What a killed process held is free, and the fence it raised is still up."""
    holder.kill()
    holder.wait()
    with pytest.raises(StaleToken), FolderFence(tmp_path / "fences").guard("job", 3):
        pass
    with FolderFence(tmp_path / "fences").guard("job", 4):
        pass


@settings(deadline=None)  # A disk is as slow as it is.
@given(st.lists(st.tuples(st.sampled_from(["a", "a/b", "../a"]), st.integers(0, 6)), max_size=8))
def test_a_folder_passes_exactly_the_greatest_so_far(steps: list[tuple[str, int]]) -> None:
    """A folder keeps one fence per resource, whatever its name, across objects."""
    greatest: dict[str, int] = {}
    with TemporaryDirectory() as folder:
        for resource, token in steps:
            stale = token < greatest.get(resource, 0)
            if stale:
                with pytest.raises(StaleToken), FolderFence(Path(folder, "fences")).guard(resource, token):
                    pass
            else:
                with FolderFence(Path(folder, "fences")).guard(resource, token):
                    greatest[resource] = token
        assert len(list(Path(folder).glob("fences/*"))) == len(greatest)
