"""One setting: its name, what may stand there, and how a value is read wherever it was written."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from holdfast import durations
from holdfast.errors import SettingsError

PREFIX = "HOLDFAST_"

NUMBER_MAX = 1_000_000_000

_SWITCH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_NUMBER = re.compile(r"-?[0-9]+(_[0-9]+)*")


class About(msgspec.Struct, frozen=True):
    """What a field of `Settings` cannot say by its type and default."""

    help: str
    unit: str = ""
    minimum: int = 0
    maximum: int = NUMBER_MAX
    secret: bool = False
    default: str = ""
    """How the docs write a default that depends on the machine."""
    named_file_only: bool = False
    """Whether a file that nobody named may not set it, although it is a number, a switch or one of some words."""
    also: str = ""
    """A second name, which the file and the command line take as well: what another program calls it."""
    read: Callable[[str], object] | None = None
    """Reads a text that is more than any text; raises `ValueError` for what it cannot read."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    name: str
    kind: Literal["number", "switch", "choice", "path", "text"]
    default: object
    default_text: str
    unit: str
    help: str
    secret: bool
    choices: tuple[str, ...]
    minimum: int
    maximum: int
    also: str
    is_guarded: bool
    read: Callable[[str], object] | None

    @property
    def variable(self) -> str:
        """The environment variable."""
        return PREFIX + self.name.upper()

    @property
    def named_file_only(self) -> bool:
        """Whether only a file that somebody named may set it, and not one that lay in the working directory.

        What names an address, a file, a host or a caller can decide who gets in, or whose words are read. A number, a
        switch or one of two words cannot, unless its row says so.
        """
        return self.is_guarded or self.kind in {"path", "text"}

    @property
    def allowed(self) -> str:
        """What may stand there, for people."""
        match self.kind:
            case "number":
                return f"a whole number of {self.unit}, {self.minimum} to {self.maximum}"
            case "switch":
                return "true or false"
            case "choice":
                return ", ".join(self.choices[:-1]) + f" or {self.choices[-1]}"
            case "path":
                return "a path"
            case "text":
                return self.unit or "text"

    def from_text(self, text: str, origin: str, base: Path, home: Path) -> object:
        """Read a value of the command line or the environment."""
        match self.kind:
            case "number" if _NUMBER.fullmatch(text.strip()):
                return self._checked(int(text), origin)
            case "number" if self.unit == "seconds" and (seconds := durations.seconds(text)) is not None:
                return self._checked(seconds, origin)
            case "switch" if text.strip().lower() in _SWITCH:
                return _SWITCH[text.strip().lower()]
            case "number" | "switch":
                raise self._wrong(text, origin)
            case "path":
                return self._path(text, origin, base, home)
            case _:
                return self._checked(text, origin)

    def from_toml(self, value: object, origin: str, base: Path, home: Path) -> object:
        """Read a value of the file, where 60 and "60" are two different things."""
        match self.kind, value:
            case ("switch", bool()):
                return value
            case ("number", int()) if not isinstance(value, bool):
                return self._checked(value, origin)
            case ("number", str()) if self.unit == "seconds" and (seconds := _seconds_of(value)) is not None:
                return self._checked(seconds, origin)
            case ("path", str()):
                return self._path(value, origin, base, home)
            case ("choice" | "text", str()):
                return self._checked(value, origin)
            case _:
                raise self._wrong(value, origin)

    def _path(self, text: str, origin: str, base: Path, home: Path) -> Path:
        if not text or "\0" in text:
            raise self._wrong(text, origin)
        return base / (home / text[2:] if text.startswith("~/") else text)

    def _checked(self, value: object, origin: str) -> object:
        fits = True
        if isinstance(value, int):
            fits = self.minimum <= value <= self.maximum
        elif self.choices:
            fits = value in self.choices
        elif self.read is not None:
            try:
                self.read(str(value))
            except ValueError as error:
                raise SettingsError(self.name, origin, str(error), self.allowed) from None
        if not fits:
            raise self._wrong(value, origin)
        return value

    def _wrong(self, value: object, origin: str) -> SettingsError:
        shown = "this value" if self.secret else f"{_as_written(value):.200}"
        return SettingsError(self.name, origin, f"{shown} cannot be used", self.allowed)


def _seconds_of(text: str) -> int | None:
    """Read a time of the file. A number in quotes is none: 60 and "60" are two different things there."""
    return None if text.strip().isdecimal() else durations.seconds(text)


def _as_written(value: object) -> str:
    """Show a value as a file or a command line has it, and not as Python would."""
    if isinstance(value, str):
        return repr(value)
    return msgspec.json.encode(value, enc_hook=str).decode()
