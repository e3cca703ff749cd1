"""Runs a server for as long as its test run lives: `python -m holdfast.testing.guard FOLDER COMMAND…`.

A separate process, because a test run can be killed without a chance to clean up. Standard input is a pipe that the
starter keeps open. When it is closed or the starter is dead, the guard stops the server and removes FOLDER. When the
server ends by itself, the guard ends with its exit code and leaves FOLDER alone.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import threading

STOP_SECONDS_MAX = 15.0


def main() -> int:
    folder, *command = sys.argv[1:]
    starter = os.getppid()
    # SIGTERM goes to the whole group: the server ends, and the guard waits for it. Not SIG_IGN, which the server would
    # inherit.
    signal.signal(signal.SIGTERM, lambda *_: None)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - the command of our own starter
    unwanted = threading.Event()

    def stop_when_unwanted() -> None:
        # The parent's pid is checked too, because a forked process may keep the pipe open.
        while not select.select([0], [], [], 1.0)[0] and os.getppid() == starter:
            pass
        unwanted.set()
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()

    threading.Thread(target=stop_when_unwanted, daemon=True).start()
    code = process.wait()
    if unwanted.is_set():
        shutil.rmtree(folder, ignore_errors=True)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
