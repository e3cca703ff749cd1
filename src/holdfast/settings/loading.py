"""Puts the settings of one server together: command line, environment, file, defaults. The first that speaks wins."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import SettingsError
from holdfast.settings.table import NAMES, PREFIX, TABLE, Setting, Settings, default_data, home_of

FILE_NAME = "holdfast.toml"
OTHER_VARIABLES = frozenset(
    PREFIX + name
    for name in ("CONFIG", "FAILPOINTS", "PROOF", "RLOCK_STANDALONE", "SEED", "TESTING", "TOKEN", "TOKEN_FILE", "URL")
)
"""Variables that are not settings of the server."""


def load(*, overrides: Mapping[str, str], environment: Mapping[str, str], file: Path | None) -> Settings:
    """Put the settings together. `overrides` come from the command line, `file` from its `--config`.

    Without `file`, HOLDFAST_CONFIG names it; without that, `holdfast.toml` in the working directory is read if there is
    one. Raises `SettingsError` for anything that cannot be used, wherever it stands.
    """
    home = home_of(environment)
    values = _from_file(_file_of(file, environment), home)
    for row in TABLE:
        # An empty variable counts as not set, as a compose file leaves them.
        if text := environment.get(row.variable):
            values[row.name] = row.from_text(text, row.variable, Path(), home)
    for name, text in overrides.items():
        origin = "command line"
        row = _row(name, origin)
        values[row.name] = row.from_text(text, origin, Path(), home)
    values.setdefault("data", default_data(environment))
    return _within_max_ttl(Settings(**values), values)


def _within_max_ttl(settings: Settings, given: Mapping[str, object]) -> Settings:
    """Lower the defaults that are beyond the longest time; refuse what was given so."""
    most = settings.max_ttl_seconds
    for name in ("default_ttl_seconds", "resource_lock_timeout"):
        seconds = getattr(settings, name)
        if seconds > most:
            if name in given:
                allowed = f"at most max_ttl_seconds, which is {most}"
                raise SettingsError(name, "settings", f"{seconds} is too much", allowed)
            settings = msgspec.structs.replace(settings, **{name: most})
    return settings


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """One sentence for each HOLDFAST_ variable that means nothing: most likely a typo."""
    known = {row.variable for row in TABLE} | OTHER_VARIABLES
    return [
        f"the environment variable {name} is not known and was ignored{_nearest(name, known)}"
        for name in sorted(environment)
        if name.startswith(PREFIX) and name not in known
    ]


def _file_of(file: Path | None, environment: Mapping[str, str]) -> tuple[Path, str] | None:
    if file is not None:
        return file, "--config"
    if named := environment.get(PREFIX + "CONFIG"):
        return Path(named), PREFIX + "CONFIG"
    return (Path(FILE_NAME), "working directory") if Path(FILE_NAME).is_file() else None


def _from_file(found: tuple[Path, str] | None, home: Path) -> dict[str, Any]:
    if found is None:
        return {}
    file, named_by = found
    try:
        lines = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError("configuration file", named_by, f"cannot read {file}: {error.strerror}") from None
    except ValueError as error:  # Both what is not TOML and what is not UTF-8.
        raise SettingsError("configuration file", named_by, f"{file} is not TOML: {error}") from None
    values: dict[str, Any] = {}
    for name, value in lines.items():
        row = _row(name, str(file))
        if row.name in values:
            raise SettingsError(name, str(file), f"it is another name for {row.name}: leave one of them out")
        # A path in the file means the same wherever the server is started.
        values[row.name] = row.from_toml(value, str(file), file.absolute().parent, home)
    return values


def _row(name: str, origin: str) -> Setting:
    if name not in NAMES:
        raise SettingsError(f"{name!r:.100}", origin, f"there is no such setting{_nearest(name, NAMES)}")
    return NAMES[name]


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
