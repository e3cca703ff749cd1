"""Commands run under a claim: how they begin, which signals they get, how they end; none outlives its claim."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.client import clock as _clock
from holdfast.run import guardian
from tests.support.checks import wait_until
from tests.support.supervised import SECONDS_MAX, Supervised, is_dead, program, state_of

# --- Beginning and ending --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137), ("kill -USR1 $$", 138)]
)
def test_exit_code_is_the_commands(tmp_path: Path, script: str, code: int) -> None:
    """The exit code is the command's own, and 128 + n for a signal, and nothing is said."""
    with Supervised(tmp_path).start(["sh", "-c", script]) as run:
        assert run.finish() == (code, "")
        assert run.outcome() == {"returncode": code, "lost": False}


def test_unknown_command_is_127(tmp_path: Path) -> None:
    """A command that is not there is one line and exit code 127."""
    with Supervised(tmp_path).start(["no-such-command", "x"]) as run:
        assert run.finish() == (127, "holdfast: no-such-command: there is no such command\n")


def test_unexecutable_command_is_126(tmp_path: Path) -> None:
    """A file that is not executable is one line and exit code 126; so is one that only a shell could read."""
    file = tmp_path / "script"
    file.write_text("echo hello\n")
    with Supervised(tmp_path).start(["./script"]) as run:
        assert run.finish() == (126, "holdfast: ./script: it cannot be run: Permission denied\n")
    file.chmod(0o755)
    with Supervised(tmp_path).start(["./script"]) as run:
        code, said = run.finish()
        assert code == 126 and "#!" in said


def test_command_inherits_its_environment(tmp_path: Path) -> None:
    """Its environment is exactly the one given, no signal is ignored for it, and open files stay open."""
    environment = {"PATH": os.environ["PATH"], "WORD": "a b\n\udcff"}
    with (tmp_path / "open").open("w") as file:
        run = Supervised(tmp_path).start(
            ["sh", "-c", f"cat /proc/self/status >/dev/fd/{file.fileno()}; exec env -0 >environment"],
            env={**os.environ, "ENVIRONMENT": json.dumps(environment)},
            pass_fds=[file.fileno()],
        )
    with run:
        assert run.finish() == (0, "")
    found = dict(line.split(b"=", 1) for line in (tmp_path / "environment").read_bytes().split(b"\0") if line)
    assert {name: found.get(os.fsencode(name)) for name in [*environment, "LC_CTYPE", "ENVIRONMENT"]} == {
        **{name: os.fsencode(value) for name, value in environment.items()},
        "LC_CTYPE": None,
        "ENVIRONMENT": None,
    }
    status = dict(line.split(":", 1) for line in (tmp_path / "open").read_text().splitlines())
    ignored = int(status["SigIgn"], 16)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTTOU, signal.SIGINT):
        assert not ignored >> (number - 1) & 1, number


@pytest.mark.parametrize("plain", ["", "1"], ids=["linux", "plain"])
def test_leftover_processes_are_stopped(tmp_path: Path, plain: str) -> None:
    """When the command ends while others of its group live on, they are gone before its exit code is returned."""
    child = program("deaf_to('SIGTERM')", "note('ready', 1)", "beat()")
    script = 'python="$1"; shift; "$python" "$@" & while [ ! -s ready ]; do sleep 0.05; done; exit 3'
    with Supervised(tmp_path).start(
        ["sh", "-c", script, "sh", *child], grace=0.3, env={**os.environ, "PLAIN": plain}
    ) as run:
        code, said = run.finish()
        assert code == 3 and "left processes behind" in said
        assert is_dead(run.pid())
        assert run.outcome() == {"returncode": 3, "lost": False}


def test_refuses_without_a_guardian(tmp_path: Path) -> None:
    """Where no guardian can be started nothing of the command runs, and the exit code says so."""
    with Supervised(tmp_path).start(
        program("note('ran', 1)"), env={**os.environ, "GUARDIAN": str(tmp_path / "none")}
    ) as run:
        code, said = run.finish()
        assert code == 70 and "the command was not run" in said
        assert not run.lines("ran")


def test_begins_nothing_without_time(tmp_path: Path) -> None:
    """A claim that is over before the command began: nothing of the command runs."""
    with Supervised(tmp_path, remaining="0 lost").start(program("note('ran', 1)")) as run:
        assert run.finish()[0] == 137
        assert run.outcome()["lost"] and not run.lines("ran")


# --- Signals ---------------------------------------------------------------------------------------------------------


def test_signals_are_passed_on(tmp_path: Path) -> None:
    """Every signal reaches the command once, in order, and the command decides what to do; the first stop is told."""
    names = [
        "SIGUSR1",
        "SIGHUP",
        "SIGUSR2",
        "SIGWINCH",
        "SIGALRM",
        "SIGINT",
        "SIGQUIT",
        "SIGTERM",
        "SIGTERM",
        "SIGCONT",
    ]
    with Supervised(tmp_path).start(
        program(
            f"record(*{names!r})",
            "note('ready', 1)",
            f"while len(open('signals').readlines() if os.path.exists('signals') else []) < {len(names)}:",
            "    time.sleep(0.02)",
            "sys.exit(9)",
        )
    ) as run:
        run.wait_for("ready")
        for count, name in enumerate(names, start=1):
            run.send(getattr(signal, name))
            run.wait_for("signals", count)
        assert run.finish() == (9, "")
        assert run.lines("signals") == names
        assert run.outcome() == {"returncode": 9, "lost": False}


def test_signal_that_kills_the_command(tmp_path: Path) -> None:
    """SIGTERM ends a command that does not catch it, and the exit code says so."""
    with Supervised(tmp_path).start(program("beat()")) as run:
        run.wait_for("beats")
        run.send(signal.SIGTERM)
        assert run.finish() == (143, "")
        assert run.outcome() == {"returncode": 143, "lost": False}


def test_ignored_signals_stay_ignored(tmp_path: Path) -> None:
    """What was started with SIGHUP ignored, as `nohup` does, ignores it, and so does its command."""
    with Supervised(tmp_path).start(
        program("note('ignores', signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)", "record('SIGUSR1')", "beat()"),
        before=["sh", "-c", 'trap "" HUP; exec "$@"', "sh"],
    ) as run:
        run.wait_for("beats")
        run.send(signal.SIGHUP)
        run.send(signal.SIGUSR1)
        run.wait_for("signals")
        run.send(signal.SIGTERM)
        assert run.finish()[0] == 143
        assert run.lines("ignores") == ["True"]


def test_stopped_command_can_be_continued(tmp_path: Path) -> None:
    """A command that somebody stopped stays supervised, and SIGCONT is passed on to it."""
    with Supervised(tmp_path).start(program("os.kill(os.getpid(), signal.SIGSTOP)", "sys.exit(4)")) as run:
        wait_until(lambda: state_of(run.pid()) == "T", seconds_max=SECONDS_MAX)
        run.send(signal.SIGCONT)
        assert run.finish() == (4, "")


# --- The claim -------------------------------------------------------------------------------------------------------


def test_sigterm_precedes_the_possible_loss(tmp_path: Path) -> None:
    """A claim that is not renewed: the command gets SIGTERM in time to end by itself, and its own exit code counts."""
    with Supervised(tmp_path).start(
        program(
            "record('SIGTERM')", "note('ready', 1)", "while not os.path.exists('signals'): beat(0.02)", "sys.exit(6)"
        ),
        grace=15,
    ) as run:
        run.wait_for("ready")
        run.hold(15.4)
        code, said = run.finish()
        assert code == 6 and "not renewed in time" in said
        assert run.outcome() == {"returncode": 6, "lost": True}


def test_late_renewal_changes_nothing(tmp_path: Path) -> None:
    """A command that was told to stop because of its claim has its grace and no more, also if the claim was saved."""
    with Supervised(tmp_path).start(
        program("signal.signal(signal.SIGTERM, lambda *_: note('signals', 'SIGTERM'))", "beat()"), grace=1
    ) as run:
        run.wait_for("beats")
        run.hold(1.4)
        run.wait_for("signals")
        run.hold(60)
        assert run.finish()[0] == 137
        assert run.lines("signals") == ["SIGTERM"]


def test_killed_before_the_deadline(tmp_path: Path) -> None:
    """A command that ignores SIGTERM is killed before the moment at which its claim could be lost."""
    with Supervised(tmp_path).start(program("deaf_to('SIGTERM')", "beat()"), grace=2) as run:
        run.wait_for("beats")
        deadline = time.monotonic() + 5
        run.hold(f"until {deadline}")
        code, said = run.finish()
        assert code == 137 and "was killed" in said
        assert run.outcome()["lost"]
        assert float(run.lines("beats")[-1]) < deadline


def test_revoked_command_has_its_grace(tmp_path: Path) -> None:
    """A claim lost while time remains: SIGTERM at once, SIGKILL after the grace."""
    with Supervised(tmp_path).start(
        program("signal.signal(signal.SIGTERM, lambda *_: note('signals', 'SIGTERM'))", "beat()"), grace=0.5
    ) as run:
        run.wait_for("beats")
        run.hold(30, lost=True)
        code, said = run.finish()
        assert code == 137 and "the claim is lost" in said
        assert run.lines("signals") == ["SIGTERM"]
        assert run.outcome() == {"returncode": 137, "lost": True}


def test_claim_lost_immediately_kills_immediately(tmp_path: Path) -> None:
    """A claim that is lost with no time left: SIGKILL without SIGTERM, to the whole group."""
    grandchild = "os.fork()"
    with Supervised(tmp_path).start(
        program(grandchild, "note('pids', os.getpid())", "record('SIGTERM')", "beat()")
    ) as run:
        run.wait_for("pids", 3)
        run.wait_for("beats", 3)
        run.hold(0, lost=True)
        assert run.finish()[0] == 137
        assert all(is_dead(pid) for pid in run.pids()) and len(set(run.pids())) == 2
        assert not run.lines("signals")


@pytest.mark.parametrize(("remaining", "code"), [(30, 143), (0, 137)])
def test_command_that_left_its_group_is_stopped(tmp_path: Path, remaining: int, code: int) -> None:
    """A command that went from its own process group into another is stopped all the same."""
    with Supervised(tmp_path).start(program("os.setpgid(0, os.getpgid(os.getppid()))", "beat()")) as run:
        run.wait_for("beats")
        run.hold(remaining, lost=True)
        assert run.finish()[0] == code
        assert run.outcome()["lost"]


@pytest.mark.parametrize(("remaining", "code"), [(30, 143), (0, 137)])
def test_stopped_command_is_stopped_for_good(tmp_path: Path, remaining: int, code: int) -> None:
    """A command that is itself stopped when its claim is lost ends all the same."""
    with Supervised(tmp_path).start(program("os.kill(os.getpid(), signal.SIGSTOP)", "beat()")) as run:
        wait_until(lambda: state_of(run.pid()) == "T", seconds_max=SECONDS_MAX)
        run.hold(remaining, lost=True)
        assert run.finish()[0] == code
        assert run.outcome()["lost"]


# --- The guardian ----------------------------------------------------------------------------------------------------


def test_stopped_supervisor_does_not_save_the_command(tmp_path: Path) -> None:
    """While the supervisor is stopped its guardian ends the command in time; continued, it reports the loss."""
    with Supervised(tmp_path, remaining=4).start(program("deaf_to('SIGTERM')", "beat()"), grace=1) as run:
        run.wait_for("beats")
        run.send(signal.SIGSTOP)
        stopped_at = wait_until(
            lambda: time.monotonic() if state_of(run.process.pid) == "T" else False, seconds_max=SECONDS_MAX
        )
        wait_until(lambda: is_dead(run.pid()), seconds_max=SECONDS_MAX)
        assert state_of(run.process.pid) == "T"
        assert float(run.lines("beats")[-1]) < stopped_at + 4
        run.send(signal.SIGCONT)
        code, said = run.finish()
        assert code == 137 and "guardian" in said
        assert run.outcome()["lost"]


def test_guardian_sends_sigterm_before_sigkill(tmp_path: Path) -> None:
    """The guardian of a stopped supervisor sends SIGTERM first, also to a command that is stopped."""
    with Supervised(tmp_path, remaining=6).start(
        program("record('SIGTERM')", "os.kill(os.getpid(), signal.SIGSTOP)", "note('ended', 1)"), grace=2
    ) as run:
        wait_until(lambda: state_of(run.pid()) == "T", seconds_max=SECONDS_MAX)
        run.send(signal.SIGSTOP)
        run.wait_for("ended")
        run.send(signal.SIGCONT)
        assert run.finish()[0] == 0
        assert run.lines("signals") == ["SIGTERM"]
        assert run.outcome() == {"returncode": 0, "lost": True}


def test_end_while_the_supervisor_is_stopped(tmp_path: Path) -> None:
    """A command that ends by itself while its supervisor is stopped was not stopped by anybody."""
    with Supervised(tmp_path, remaining=3).start(
        program("signal.signal(signal.SIGUSR1, lambda *_: sys.exit(5))", "beat()")
    ) as run:
        run.wait_for("beats")
        guardian = run.guardian()
        run.send(signal.SIGSTOP)
        os.kill(run.pid(), signal.SIGUSR1)
        wait_until(lambda: state_of(run.pid()) == "Z", seconds_max=SECONDS_MAX)
        deadline = time.monotonic() + 3
        wait_until(lambda: time.monotonic() > deadline, seconds_max=SECONDS_MAX)
        run.hold(0, lost=True)
        run.send(signal.SIGCONT)
        assert run.finish() == (5, "")
        assert run.outcome() == {"returncode": 5, "lost": False}
        assert is_dead(guardian)


@pytest.mark.parametrize("deaf", [False, True])
def test_killed_supervisor_takes_the_command_along(tmp_path: Path, deaf: bool) -> None:
    """After `kill -9` of the supervisor the command's group gets SIGTERM at once and SIGKILL after its grace."""
    how = "deaf_to('SIGTERM')" if deaf else "record('SIGTERM')"
    ending = "beat()" if deaf else "while not os.path.exists('signals'): beat(0.02)"
    with Supervised(tmp_path, remaining=600).start(program(how, ending), grace=1) as run:
        run.wait_for("beats")
        guardian = run.guardian()
        run.send(signal.SIGKILL)
        wait_until(lambda: is_dead(run.pid()) and is_dead(guardian), seconds_max=SECONDS_MAX)
        assert run.lines("signals") == ([] if deaf else ["SIGTERM"])


def test_killed_guardian_is_replaced(tmp_path: Path) -> None:
    """When the guardian is killed there is another, which knows what the first one knew."""
    with Supervised(tmp_path, remaining=6).start(program("deaf_to('SIGTERM')", "beat()"), grace=1) as run:
        run.wait_for("beats")
        first = run.guardian()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(first, number)
        os.kill(first, signal.SIGKILL)
        second = wait_until(lambda: pid if (pid := run.guardian()) != first else False, seconds_max=SECONDS_MAX)
        assert run.is_alive()
        run.send(signal.SIGKILL)
        wait_until(lambda: is_dead(run.pid()) and is_dead(second), seconds_max=SECONDS_MAX)


@pytest.mark.parametrize("kernel", ["new", "old", "none"])
def test_guardian_reaches_its_group_on_every_kernel(monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    """With and without pidfds, and signals to a group through them, it is reached and known to be gone."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, "old")

    if kernel == "old":
        monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    if kernel == "none":
        monkeypatch.delattr(os, "pidfd_open")
    with subprocess.Popen(["sleep", "600"], process_group=0) as process:
        group = guardian.GuardedGroup(process.pid)
        assert group.is_led() and group.send(0)
        assert group.send(signal.SIGKILL)
        assert process.wait(SECONDS_MAX) == -signal.SIGKILL
        assert not group.send(0)


def test_guardian_counts_from_when_it_was_said() -> None:
    """An order ages by the clock that saw more time pass, from the moment at which it was written."""
    order = guardian.Order(1, 1_000, 5_000, 10, 20, 5)
    assert order.age_ms(1_000, 5_000) == 0
    assert order.age_ms(1_010, 5_700) == 700
    assert order.age_ms(1_700, 5_010) == 700


def test_guardian_has_the_clients_clocks() -> None:
    """The guardian, which may import nothing, reads the same two clocks as the client."""
    before, found, after = _clock.now(), guardian.clocks(), _clock.now()
    assert before.monotonic_ms <= found[0] <= after.monotonic_ms
    assert before.boot_ms <= found[1] <= after.boot_ms


def test_scripts_count_on_the_standard_library_alone() -> None:
    """The guardian and the gate import nothing that was installed; a guardian that was told nothing ends."""
    for name in ("guardian.py", "gate.py"):
        script = Path(guardian.__file__).with_name(name)
        imports = [line.split()[1] for line in script.read_text().splitlines() if line.startswith(("import ", "from "))]
        assert not {"holdfast", "click", "msgspec"} & {name.partition(".")[0] for name in imports}
        if name == "guardian.py":
            done = subprocess.run(
                [sys.executable, "-I", "-S", script], stdin=subprocess.DEVNULL, check=False, timeout=60
            )
            assert done.returncode == 0
