"""The command and its process group: started behind a gate, signalled together, ended when no member is alive.

The leader is reaped last: its pid cannot be reused before, so no signal hits an unrelated process.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from holdfast.run import gate

GATE = Path(gate.__file__).absolute()
CAN_PEEK = hasattr(os, "waitid")


class Child:
    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the gate; the command itself starts at `begin`."""
        self._command = list(command)
        self._code: int | None = None
        self._stop: int | None = None
        self._is_reaped = False
        go, self._go = os.pipe()
        self.status, status = os.pipe()
        try:
            # The command inherits our open files, as with any wrapper; these two are added.
            os.set_inheritable(go, True)
            os.set_inheritable(status, True)
            self._process = subprocess.Popen(  # noqa: S603 - running what was asked for is the purpose
                [
                    *(sys.executable, "-I", "-S", str(GATE)),
                    *(str(go), str(status), environment.get("LC_CTYPE", "")),
                    *self._command,
                ],
                env=environment,
                close_fds=False,
                process_group=0,
            )
        except BaseException:
            os.close(self._go)
            os.close(self.status)
            raise
        finally:
            os.close(go)
            os.close(status)
        self.group = self._process.pid

    def begin(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._go, b"g")

    def problem(self) -> str | None:
        """Return why the command could not start, once the process has ended; None if it could."""
        os.set_blocking(self.status, False)
        try:
            number = int(os.read(self.status, 64).removeprefix(b"r") or b"0")
        except BlockingIOError:
            return None
        name = self._command[0]
        match number:
            case 0:
                return None
            case errno.ENOENT | errno.ENOTDIR:
                return f"{name}: there is no such command"
            case errno.ENOEXEC:
                return f"{name}: it is no program and does not say on a first line #! what runs it; try: sh {name}"
            case _:
                return f"{name}: it cannot be run: {os.strerror(number)}"

    def stopped_by(self) -> int | None:
        """Return the signal that has just stopped it, once for each stop."""
        if self._code is not None:
            return None
        if not CAN_PEEK:
            self._wait()
            number, self._stop = self._stop, None
            return number
        try:
            found = os.waitid(os.P_PID, self.group, os.WSTOPPED | os.WNOHANG)
        except ChildProcessError:  # It has ended.
            return None
        return found.si_status if found is not None and found.si_code == os.CLD_STOPPED else None

    def ended_with(self) -> int | None:
        """Return its exit code as a shell would show it, once the leader has ended."""
        if self._code is None and not CAN_PEEK:
            self._wait()
        elif self._code is None:
            found = os.waitid(os.P_PID, self.group, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                self._code = found.si_status + (0 if found.si_code == os.CLD_EXITED else 128)
        return self._code

    def send(self, number: int) -> bool:
        """Send a signal to the whole group; False if it reached nobody."""
        has_reached = _send(os.killpg, self.group, number)
        # The leader may have joined another group. Until it is reaped, its pid is its own.
        if not self._is_reaped and (not has_reached or number == signal.SIGKILL):
            return _send(os.kill, self.group, number) or has_reached
        return has_reached

    def has_survivors(self) -> bool:
        """Tell whether other members of the group are alive. Called once the leader has ended."""
        alive = _alive(self.group)
        if alive is not None:
            return bool(alive)
        # Without /proc the unreaped leader would count as alive. The group keeps its number while it has members.
        self.reap()
        return self.send(0)

    def reap(self) -> None:
        """Reap the leader. From here on another process may get its pid."""
        if not self._is_reaped:
            self._is_reaped = True
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.group, 0)

    def close(self) -> None:
        """Release everything. A gate that was never opened ends."""
        os.close(self._go)
        os.close(self.status)
        self.reap()
        self._process.returncode = self._code if self._code is not None else -1

    def _wait(self) -> None:
        """Poll for ends and stops where the system has no `waitid`: this reaps the leader."""
        pid, status = os.waitpid(self.group, os.WNOHANG | os.WUNTRACED)
        if pid and os.WIFSTOPPED(status):
            self._stop = os.WSTOPSIG(status)
        elif pid:
            self._is_reaped = True
            self._code = 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _send(how: Callable[[int, int], None], target: int, number: int) -> bool:
    try:
        how(target, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _alive(group: int) -> list[int] | None:
    """List the live processes of a group; None where the system does not show them."""
    try:
        numbers = [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208 - names are wanted
    except OSError:
        return None
    if os.getpid() not in numbers:
        return None
    alive: list[int] = []
    for number in numbers:
        with contextlib.suppress(OSError):
            # After the name, which may hold anything: state, parent, group, …; the 18th is the number of threads.
            fields = Path(f"/proc/{number}/stat").read_bytes().rpartition(b")")[2].split()
            # A process whose first thread is dead may have others that work.
            if int(fields[2]) == group and (fields[0] not in {b"Z", b"X"} or int(fields[17]) > 1):
                alive.append(number)
    return alive
