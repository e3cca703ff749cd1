"""Why a demonstration ends before its end."""


class StoppedError(Exception):
    """Somebody pressed Ctrl-C, or sent a signal that means the same."""


class FailedError(Exception):
    """It cannot go on. The text says why."""
