"""Becomes the command, but not before it is told to: until then the command's guard may not be standing yet.

Run as a script: GO STATUS LC_CTYPE COMMAND…, where GO and STATUS are file descriptors. It says `r` on STATUS when it is
there. A byte on GO lets the command begin; the end of GO means that whoever started it is gone, and nothing begins. If
the command cannot begin, the errno follows on STATUS and the exit code is that of a shell. Standard library only.
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
    """Wait, then become the command. Comes back only if that failed."""
    go, status = int(arguments[0]), int(arguments[1])
    for pipe in (go, status):
        os.set_inheritable(pipe, False)
    # What Python ignores for itself is not for the command. An ignored SIGINT came from outside and stays.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    environment = dict(os.environ)
    # Python may have set this one for itself.
    environment.pop("LC_CTYPE", None)
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
