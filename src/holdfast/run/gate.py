"""Start barrier: waits until the command is guarded, then becomes the command.

Run as a script: GO STATUS LC_CTYPE COMMAND…, where GO and STATUS are file descriptors. The gate writes `r` to STATUS
when it is ready. A byte on GO starts the command; the end of GO means that the starter is dead, and nothing starts. If
the command cannot start, the errno follows on STATUS and the exit code is that of a shell. Standard library only.
"""

from __future__ import annotations

import errno
import os
import signal
import sys

NEVER_BEGAN = 125
CANNOT_RUN = 126
NOT_FOUND = 127


def main(arguments: list[str]) -> int:
    go, status = int(arguments[0]), int(arguments[1])
    for pipe in (go, status):
        os.set_inheritable(pipe, False)
    # Undo what Python ignores for itself. An ignored SIGINT came from outside and stays.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    environment = dict(os.environ)
    environment.pop("LC_CTYPE", None)  # Python may have set it for itself.
    if arguments[2]:
        environment["LC_CTYPE"] = arguments[2]
    os.write(status, b"r")
    if not os.read(go, 1):
        return NEVER_BEGAN
    command = arguments[3:]
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - no shell is the point
    except OSError as error:
        os.write(status, str(error.errno).encode())
        return NOT_FOUND if error.errno in {errno.ENOENT, errno.ENOTDIR} else CANNOT_RUN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
