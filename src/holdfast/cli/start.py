"""Where the `holdfast` command begins: Ctrl-C ends it quietly from here on, also while the rest is imported.

It imports next to nothing before that is so. An interrupt in the middle of an import would end in a traceback.
"""

import os
import signal
import sys

INTERRUPTED = 130


def main() -> None:
    """Import the command line, run it, and leave with its exit code."""
    before = signal.getsignal(signal.SIGINT)
    # One that was started with interrupts ignored, as by `nohup`, goes on ignoring them.
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)
    if sys.argv[1:2] == ["guard"] and _is_check(sys.argv[2:]):
        return
    from holdfast.cli.main import main as run

    try:
        signal.signal(signal.SIGINT, before)
        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _is_check(arguments: list[str]) -> bool:
    """Run a check of the guard, which ends the process; return False for everything else, help too.

    It comes before every call of a tool, so it imports next to nothing.
    """
    if "-h" in arguments or "--help" in arguments:
        return False
    if arguments[:1] == ["hook"]:
        from holdfast.guard.hook import run
    elif arguments[:1] == ["git"] and arguments[1:2] in (["pre-commit"], ["pre-push"]):
        from holdfast.guard.githooks import run
    else:
        return False
    run()
    return True


def _end(*_: object) -> None:
    # Nothing was begun: there is nothing to tidy up.
    os._exit(INTERRUPTED)
