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
    from holdfast.cli.main import main as run

    try:
        signal.signal(signal.SIGINT, before)
        run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _end(*_: object) -> None:
    # Nothing was begun: there is nothing to tidy up.
    os._exit(INTERRUPTED)
