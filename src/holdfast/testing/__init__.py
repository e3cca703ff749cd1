"""For tests of programs that use Holdfast: a real server, fixtures (`pytest_plugin`) and a manual clock.

The server is imported on first use, so that the pytest plugin costs nothing if no test needs it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from holdfast.testing.clock import ManualClock

if TYPE_CHECKING:
    from holdfast.testing.server_process import RunningServer, ServerFailedError, server

__all__ = ["ManualClock", "RunningServer", "ServerFailedError", "server"]

if not TYPE_CHECKING:  # A type checker that saw this would accept every misspelt name.

    def __getattr__(name: str) -> object:
        if name not in __all__:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        return getattr(import_module("holdfast.testing.server_process"), name)
