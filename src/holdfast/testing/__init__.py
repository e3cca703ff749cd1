"""What a test of a program that uses Holdfast, or of a journal for it, can count on.

The names are loaded when first used: `server` needs only the client, the others need the extra `server`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.testing.clock import ManualClock
    from holdfast.testing.contract import BrokenPromiseError, Place, check_journal
    from holdfast.testing.journals import FlakyJournal
    from holdfast.testing.scenarios import Played, ScenarioError, play
    from holdfast.testing.server_process import RunningServer, ServerFailedError, server

__all__ = [
    "BrokenPromiseError",
    "FlakyJournal",
    "ManualClock",
    "Place",
    "Played",
    "RunningServer",
    "ScenarioError",
    "ServerFailedError",
    "check_journal",
    "play",
    "server",
]

# Each public name and the module it lives in.
_HOMES: dict[str, str] = {
    "ManualClock": "clock",
    "BrokenPromiseError": "contract",
    "Place": "contract",
    "check_journal": "contract",
    "FlakyJournal": "journals",
    "Played": "scenarios",
    "ScenarioError": "scenarios",
    "play": "scenarios",
    "RunningServer": "server_process",
    "ServerFailedError": "server_process",
    "server": "server_process",
}


if not TYPE_CHECKING:  # A type checker that saw this would take every misspelt name for an object.

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value  # The next use finds it without coming back here.
        return value
