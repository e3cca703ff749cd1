"""Starting a keeper: a process of its own that outlives the hook, and has nothing of it open.

It inherits one thing: the file `keeper` of its owner, locked. So it has the lock from its birth to its death, and no
two are started for one owner.
"""

from __future__ import annotations

import os
import signal
import time

from holdfast.guard import state

LOCK_DESCRIPTOR = 3
_TRIES, _PAUSE_SECONDS = 5, 0.01


def start(folder: str, python: str) -> bool:
    """Start a keeper, unless one lives; whoever calls has the owner's lock. Raises `StateError`."""
    try:
        descriptor = os.open(folder + "/keeper", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise state.StateError(f"{folder}/keeper cannot be opened: {error.strerror}") from None
    try:
        if not _locked(descriptor):
            return False
        if not python:
            raise state.StateError("the keeper cannot be started: Python does not know its own program")
        child = os.fork()
        if not child:
            _become_keeper(descriptor, folder, python)
        return True
    except OSError as error:
        raise state.StateError(f"the keeper cannot be started: {error.strerror}") from None
    finally:
        os.close(descriptor)


def _locked(descriptor: int) -> bool:
    """Lock the file of the keeper, unless one lives. Who only looks whether one does has it locked for a moment."""
    for _ in range(_TRIES):
        if state.try_lock(descriptor):
            return True
        time.sleep(_PAUSE_SECONDS)
    return False


def _become_keeper(descriptor: int, folder: str, python: str) -> None:
    """Leave the host's session, terminal, files and folder, and become the keeper."""
    try:
        os.setsid()
        os.chdir("/")
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.dup2(descriptor, LOCK_DESCRIPTOR)
        nothing = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(nothing, standard)
        os.closerange(LOCK_DESCRIPTOR + 1, os.sysconf("SC_OPEN_MAX"))
        # Without the folder of the hook on the path: a module that lies in a repository is not ours.
        os.execv(python, [python, "-P", "-m", "holdfast.guard.keeper", folder])  # noqa: S606 - ours
    finally:
        os._exit(1)
