"""How the stories of frameworks and schedulers run: processes that are heard, ended, and kept from the network."""

import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from holdfast.testing import RunningServer

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SECONDS_MAX = 120.0
"""How long anything may take; a large framework needs its time to be imported."""

SILENT = {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
    "LANGSMITH_TRACING": "false",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
    "OTEL_SDK_DISABLED": "true",
}
"""What keeps the frameworks from reporting home."""


def say(text: str) -> None:
    print(text, flush=True)


class Child:
    """A process whose output is passed on as it comes, and kept."""

    def __init__(self, command: Sequence[str | Path], environment: dict[str, str]) -> None:
        self.said = ""
        self._process = subprocess.Popen(
            [str(part) for part in command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._pass_on, daemon=True)
        self._reader.start()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def ended(self) -> int:
        """Its exit code, once it has ended and all of its output is here. One that does not end is killed."""
        try:
            code = self._process.wait(SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            say(f"  it did not end within {SECONDS_MAX:.0f} s, and was killed")
            code = self._process.wait()
        self._reader.join(SECONDS_MAX)
        return code

    def stop(self) -> int:
        """Ask it to end, and return its exit code."""
        self._process.terminate()
        return self.ended()

    def kill(self) -> None:
        """Kill it, and whatever it has started, without warning."""
        if self.is_running:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _pass_on(self) -> None:
        for line in self._process.stdout or ():
            self.said += line
            say(f"  {line.rstrip()}")


def python_of(name: str, folder: Path) -> Path:
    """The Python for an example: that of its own environment if it has a lock, else this one."""
    if not (folder / name / "requirements.txt").exists():
        return Path(sys.executable)
    python = ROOT / ".venv-examples" / name / "bin" / "python"
    if not python.exists():
        sys.exit(f"{name} is not installed. Run: make examples ARGS={name}")
    return python


def environment_of(running: RunningServer, folder: Path) -> dict[str, str]:
    """What a process needs to find the server and our files. It has no keys of models, and a home of its own."""
    ours = {name: value for name, value in running.env().items() if not name.endswith("_API_KEY")}
    paths = {"HOME": folder, "STORY_WATCH": folder / "watched", "PYTHONPATH": f"{HERE / 'watch'}{os.pathsep}{ROOT}"}
    return ours | SILENT | {name: str(value) for name, value in paths.items()}


def tried_to_leave(folder: Path) -> str:
    """What the processes wanted from other machines; watch/sitecustomize.py has refused it."""
    watched = folder / "watched"
    return watched.read_text(encoding="utf-8") if watched.exists() else ""


def without_network(module: str) -> None:
    """Start this module again where there is no network but that of the machine itself, if that is possible here."""
    if os.environ.get("STORY_NETWORK") == "none":
        with socket.socket() as any_socket:  # SIOCSIFFLAGS: lo is up (1) and running (64).
            fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", 1 | 64))
        say("There is no network here but this machine itself.")
        return
    command = [shutil.which("unshare") or "unshare", "--map-root-user", "--net"]
    try:
        tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
        problem = tried.stderr.strip() if tried.returncode else ""
    except OSError as error:
        problem = str(error)
    if not problem:
        os.environ["STORY_NETWORK"] = "none"
        os.execv(command[0], [*command, sys.executable, "-m", module, *sys.argv[1:]])
    say(f"The network cannot be cut off here ({problem}). What wants to leave this machine is refused all the same.")
