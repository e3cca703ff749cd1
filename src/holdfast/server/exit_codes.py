"""Why a server cannot start, and the exit codes that say so."""

from __future__ import annotations

EX_OK, EX_USAGE, EX_UNAVAILABLE, EX_IOERR, EX_TEMPFAIL = 0, 64, 69, 74, 75


class StartError(Exception):
    """The server cannot start; the text says what to do, the code how the process ends."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code
