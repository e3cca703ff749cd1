"""Entry point of the `holdfast` command: before anything heavy is imported, Ctrl-C ends it without a traceback."""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

INTERRUPTED = 130
UNEXPECTED = 70


def main() -> None:
    before = signal.getsignal(signal.SIGINT)
    # Ignored interrupts stay ignored.
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    if sys.argv[1:2] == ["guard"] and _is_check(sys.argv[2:]):
        return
    try:
        from holdfast.cli.main import main as run
    except Exception as error:  # noqa: BLE001 - the same as below
        _fail(f"cannot start: {type(error).__name__}: {error}; install holdfast-jobs again")
    try:
        signal.signal(signal.SIGINT, before)
        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - Python's own exit code would say "held by another"
        _fail(f"unexpected {type(error).__name__}: {error}; please report this")


def _fail(text: str) -> NoReturn:
    """End with a line, if it can still be written: standard error may be what failed."""
    import contextlib

    with contextlib.suppress(OSError):
        os.write(2, f"holdfast: {text}\n".encode("utf-8", "backslashreplace"))
    sys.stderr = None  # Python 3.14 exits with 120 if it cannot flush it.
    sys.exit(UNEXPECTED)


def _is_check(arguments: list[str]) -> bool:
    """Run a check of the guard, which ends the process; return False for everything else, help too.

    Hosts run it before every call of a tool, so it imports next to nothing.
    """
    if "-h" in arguments or "--help" in arguments:
        return False
    if arguments[:1] == ["hook"]:
        from holdfast.agents.guard.hook import run
    elif arguments[:1] == ["git"] and arguments[1:2] in (["pre-commit"], ["pre-push"]):
        from holdfast.agents.guard.githooks import run
    else:
        return False
    run()
    return True


def _end(*_: object) -> None:
    # There is nothing to clean up yet.
    os._exit(INTERRUPTED)
