"""Holdfast gives every job one live owner.

The public names are loaded when first used, so that a command which needs one of them does not pay for the others.
"""

from importlib import import_module

__all__ = ["__version__"]

__version__ = "0.1.0"

# Each public name and the module it lives in; a name belongs here and in __all__, and a test compares the two.
_HOMES: dict[str, str] = {}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # The next use finds it without coming back here.
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
