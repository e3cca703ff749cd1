"""A shell of one job, for tests of terminals: TERMINAL COMMAND…

It leads the session, has the terminal, and gives it to its job. It takes `fg` and `bg` on standard input, and says on
standard output `stopped` and `ended N`, and before that if the job did not give the terminal back. When the terminal
goes away it passes SIGHUP on and ends, as shells do. With DIRECT there is no shell: it becomes the command.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import subprocess
import sys
import termios


def main(name: str, *command: str) -> None:
    """Run the job to its end."""
    terminal = os.open(name, os.O_RDWR | os.O_NOCTTY)
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    if os.environ.pop("DIRECT", None):
        for number in range(3):
            os.dup2(terminal, number)
        os.execv(command[0], command)

    def become_foreground() -> None:
        os.setpgid(0, 0)
        give(terminal, os.getpid())

    output = subprocess.PIPE if os.environ.pop("PIPED", None) else terminal
    job = subprocess.Popen(
        command,
        stdin=terminal,
        stdout=output,
        stderr=terminal,
        preexec_fn=become_foreground,  # noqa: PLW1509 - there is one thread
    )

    def hang_up(*_: object) -> None:
        os.killpg(job.pid, signal.SIGHUP)
        os._exit(129)

    signal.signal(signal.SIGHUP, hang_up)
    while True:
        pid, status = os.waitpid(job.pid, os.WNOHANG | os.WUNTRACED)
        if pid:
            has_stored = os.tcgetpgrp(terminal) not in {job.pid, os.getpgrp()}
            give(terminal, os.getpgrp())
            if has_stored:
                say("the terminal was not given back")
        if pid and os.WIFSTOPPED(status):
            say("stopped")
        elif pid:
            job.returncode = os.waitstatus_to_exitcode(status)
            say(f"ended {job.returncode}")
            return
        if select.select([0], [], [], 0.02)[0]:
            word = os.read(0, 64).decode().strip()
            if word == "fg":
                give(terminal, job.pid)
            os.killpg(job.pid, signal.SIGCONT)


def give(terminal: int, group: int) -> None:
    """Change the terminal's owner although we may be in the background."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
    os.tcsetpgrp(terminal, group)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTTOU})


def say(text: str) -> None:
    """Tell the test."""
    os.write(1, f"{text}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
