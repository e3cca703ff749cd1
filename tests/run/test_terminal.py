"""Commands run under a claim in a terminal: keys, stops, and a terminal that goes away."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import termios
from pathlib import Path
from typing import Self

import pytest

from tests.support.checks import wait_until
from tests.support.supervised import RUN_TESTS, SECONDS_MAX, Supervised, is_dead, program, state_of

CTRL_C, CTRL_Z = b"\x03", b"\x1a"
NOTES_TERMINAL = "note('terminal', os.tcgetpgrp(os.open('/dev/tty', os.O_RDWR)) == os.getpgrp())"


class OnTerminal(Supervised):
    """A supervisor that is the job of a shell on a terminal of its own."""

    def __init__(self, folder: Path, *, remaining: object = 60) -> None:
        super().__init__(folder, remaining=remaining)
        self.keyboard: int | None = None
        self.seen = b""

    def start_job(self, command: list[str], *, grace: float = 5, **environment: str) -> Self:
        self.keyboard, terminal = pty.openpty()
        os.set_blocking(self.keyboard, False)
        self._process = subprocess.Popen(
            [
                sys.executable,
                str(RUN_TESTS / "jobshell.py"),
                os.ttyname(terminal),
                *self.arguments(command, grace),
            ],
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **environment},
        )
        self.terminal = terminal
        return self

    def __exit__(self, *_: object) -> None:
        self.hold(0, lost=True)  # Whatever of it still runs ends.
        super().__exit__()
        self.hang_up()

    def type(self, keys: bytes) -> None:
        assert self.keyboard is not None
        os.write(self.keyboard, keys)

    def shell(self, word: str) -> None:
        """Tell the shell to continue its job."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def receives(self, text: str) -> bool:
        """Does the shell say this next?"""
        assert self.process.stdout is not None
        return self.process.stdout.readline() == f"{text}\n"

    def owner(self) -> int:
        """The process group that the terminal belongs to."""
        assert self.keyboard is not None
        return os.tcgetpgrp(self.keyboard)

    def screen(self) -> str:
        """What the terminal shows."""
        assert self.keyboard is not None
        with contextlib.suppress(OSError):
            self.seen += os.read(self.keyboard, 65_536)
        return self.seen.decode()

    def hang_up(self) -> None:
        """Take the terminal away."""
        if self.keyboard is not None:
            os.close(self.terminal)
            os.close(self.keyboard)
            self.keyboard = None


def test_keyboard_is_the_commands(tmp_path: Path) -> None:
    """The command reads from the terminal, which is its own from the first moment and given back afterwards."""
    with OnTerminal(tmp_path).start_job(program(NOTES_TERMINAL, "note('line', input())", "sys.exit(3)")) as run:
        run.wait_for("terminal")
        run.type(b"hello\n")
        assert run.receives("ended 3")
        assert run.lines("terminal") == ["True"] and run.lines("line") == ["hello"]


def test_pager_keeps_the_keyboard_until_it_is_needed(tmp_path: Path) -> None:
    """Where our output is another's input the terminal is lent only when the command asks for it."""
    with OnTerminal(tmp_path).start_job(
        program(NOTES_TERMINAL, "note('line', input())", "sys.exit(3)"), PIPED="1"
    ) as run:
        run.wait_for("terminal")
        wait_until(lambda: run.owner() == run.pid(), seconds_max=SECONDS_MAX)
        run.type(b"hello\n")
        assert run.receives("ended 3")
        assert run.lines("terminal") == ["False"] and run.lines("line") == ["hello"]


@pytest.mark.parametrize("piped", ["", "1"])
def test_ctrl_c_reaches_the_command_once(tmp_path: Path, piped: str) -> None:
    """Ctrl-C is one SIGINT for the command, whether the terminal was lent or not, and the command decides."""
    with OnTerminal(tmp_path).start_job(
        program(
            "record('SIGINT', 'SIGTERM')",
            "beat(0)",
            "note('ready', 1)",
            "while not os.path.exists('signals') or 'SIGTERM' not in open('signals').read(): time.sleep(0.02)",
            "sys.exit(5)",
        ),
        PIPED=piped,
    ) as run:
        run.wait_for("ready")
        run.type(CTRL_C)
        run.wait_for("signals")
        os.kill(supervisor_of(run), signal.SIGTERM)
        assert run.receives("ended 5")
        assert run.lines("signals") == ["SIGINT", "SIGTERM"]


def test_ctrl_c_ends_the_command(tmp_path: Path) -> None:
    """Ctrl-C ends a command that does not catch it, with the exit code of any interrupted command."""
    with OnTerminal(tmp_path).start_job(["sh", "-c", "echo $$ >pids; exec sleep 600"]) as run:
        run.pid()
        run.type(CTRL_C)
        assert run.receives("ended 130")
        assert run.outcome() == {"returncode": 130, "lost": False}


@pytest.mark.parametrize("plain", ["", "1"], ids=["linux", "plain"])
def test_ctrl_z_and_back(tmp_path: Path, plain: str) -> None:
    """Ctrl-Z stops the command and us, so that the shell sees a stopped job; `fg` brings both and the keyboard back."""
    with OnTerminal(tmp_path).start_job(
        program("note('line', input())", "note('line', input())", "sys.exit(4)"), PLAIN=plain
    ) as run:
        run.type(b"one\n")
        run.wait_for("line")
        run.type(CTRL_Z)
        assert run.receives("stopped")
        assert state_of(run.pid()) == "T" and run.owner() == run.process.pid
        run.shell("fg")
        wait_until(lambda: run.owner() == run.pid(), seconds_max=SECONDS_MAX)
        run.type(b"two\n")
        assert run.receives("ended 4")
        assert run.lines("line") == ["one", "two"]
        assert run.outcome() == {"returncode": 4, "lost": False}


def test_ctrl_z_and_on_in_the_background(tmp_path: Path) -> None:
    """After Ctrl-Z and `bg` the command works on without the terminal, stops when it needs it, and gets it by `fg`."""
    with OnTerminal(tmp_path).start_job(
        program("beat(0.1)", "while not os.path.exists('ask'): beat(0.05)", "note('line', input())")
    ) as run:
        run.wait_for("beats")
        run.type(CTRL_Z)
        assert run.receives("stopped")
        run.shell("bg")
        assert run.is_alive()
        assert run.owner() == run.process.pid
        (tmp_path / "ask").touch()
        assert run.receives("stopped")
        run.shell("fg")
        run.type(b"at last\n")
        assert run.receives("ended 0")
        assert run.lines("line") == ["at last"]


def test_claim_lost_during_ctrl_z(tmp_path: Path) -> None:
    """A stopped command whose claim is lost meanwhile is killed when we are continued, and does nothing more."""
    with OnTerminal(tmp_path, remaining=600).start_job(program("beat()")) as run:
        run.wait_for("beats")
        run.type(CTRL_Z)
        assert run.receives("stopped")
        heartbeats = run.lines("beats")
        run.hold(0, lost=True)
        run.shell("fg")
        assert run.receives("ended 137")
        assert run.lines("beats") == heartbeats
        assert run.outcome()["lost"]


def test_claim_runs_out_during_ctrl_z(tmp_path: Path) -> None:
    """A stopped command whose claim runs out while we are stopped as well is ended by the guardian."""
    with OnTerminal(tmp_path, remaining=4).start_job(program("beat()"), grace=1) as run:
        run.wait_for("beats")
        run.type(CTRL_Z)
        assert run.receives("stopped")
        supervisor = supervisor_of(run)
        wait_until(lambda: is_dead(run.pid()), seconds_max=SECONDS_MAX)
        assert state_of(supervisor) == "T"
        run.shell("fg")
        assert run.receives("ended 143")
        assert run.outcome()["lost"]


def test_background_group_may_write(tmp_path: Path) -> None:
    """On a terminal that stops whoever writes from the background we still say why the command was stopped."""
    with OnTerminal(tmp_path).start_job(program("beat()")) as run:
        run.wait_for("beats")
        settings = termios.tcgetattr(run.terminal)
        settings[3] |= termios.TOSTOP
        termios.tcsetattr(run.terminal, termios.TCSANOW, settings)
        run.hold(30, lost=True)
        assert run.receives("ended 143")
        assert "the claim is lost" in run.screen()


@pytest.mark.parametrize("ends_by_itself", [True, False])
def test_terminal_goes_away(tmp_path: Path, ends_by_itself: bool) -> None:
    """A command that ignores SIGHUP outlives its terminal, and stays supervised until it ends or its claim is lost."""
    with OnTerminal(tmp_path).start_job(
        program("deaf_to('SIGHUP')", "beat(0.1)", "while not os.path.exists('end'): beat(0.05)", "sys.exit(8)")
    ) as run:
        run.wait_for("beats")
        run.hang_up()
        run.process.wait(SECONDS_MAX)
        assert run.is_alive()
        if ends_by_itself:
            (tmp_path / "end").touch()
        else:
            run.hold(0, lost=True)
        outcome = run.outcome()
        assert outcome["returncode"] == (8 if ends_by_itself else 137)
        assert outcome["lost"] is not ends_by_itself


def test_terminal_takes_the_command_along(tmp_path: Path) -> None:
    """A command that does not ignore SIGHUP ends with its terminal."""
    with OnTerminal(tmp_path).start_job(program("beat()")) as run:
        run.wait_for("beats")
        run.hang_up()
        assert run.outcome()["returncode"] == 129


def test_ctrl_z_without_a_shell(tmp_path: Path) -> None:
    """Where nobody could continue us, as in a container, Ctrl-Z does not leave the command stopped for ever."""
    with OnTerminal(tmp_path).start_job(
        program("signal.signal(signal.SIGCONT, lambda *_: note('signals', 'SIGCONT'))", "note('line', input())"),
        DIRECT="1",
    ) as run:
        run.pid()
        wait_until(lambda: run.owner() == run.pid(), seconds_max=SECONDS_MAX)
        run.type(CTRL_Z)
        run.wait_for("signals")
        run.type(b"still here\n")
        assert run.outcome()["returncode"] == 0
        assert run.lines("line") == ["still here"]


def test_hangup_without_a_shell(tmp_path: Path) -> None:
    """Where we lead the session ourselves, the command hears once of a terminal that went away."""
    with OnTerminal(tmp_path).start_job(
        program("record('SIGHUP', 'SIGTERM')", "beat(0.1)", "while not os.path.exists('end'): beat(0.05)"), DIRECT="1"
    ) as run:
        run.wait_for("beats")
        run.hang_up()
        run.wait_for("signals")
        os.kill(supervisor_of(run), signal.SIGTERM)
        run.wait_for("signals", 2)
        (tmp_path / "end").touch()
        assert run.outcome() == {"returncode": 0, "lost": False}
        assert run.lines("signals") == ["SIGHUP", "SIGTERM"]


def test_stopped_by_hand_in_the_foreground(tmp_path: Path) -> None:
    """A command that is stopped by SIGSTOP while it has the terminal is a stopped job for the shell as well."""
    with OnTerminal(tmp_path).start_job(
        program("beat(0.1)", "os.kill(os.getpid(), signal.SIGSTOP)", "sys.exit(6)")
    ) as run:
        assert run.receives("stopped")
        run.shell("fg")
        assert run.receives("ended 6")


def supervisor_of(run: OnTerminal) -> int:
    """The process that supervises: the parent of the command."""
    return int(Path(f"/proc/{run.pid()}/stat").read_text().rpartition(")")[2].split()[1])
