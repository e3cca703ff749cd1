"""Puts the settings of one server together: command line, environment, file, defaults. The first that speaks wins.

A file that is read because it lies in the working directory may be somebody else's: of a cloned project, of /tmp. It
may set numbers and switches, and nothing that says who gets in or where: see `named_file_only`.
"""

from __future__ import annotations

import difflib
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.config.addresses import HOW, has_password, is_for_all, parse_address
from holdfast.config.table import NAMES, PREFIX, TABLE, Setting, Settings, default_data, home_of
from holdfast.errors import SettingsError
from holdfast.privatefiles import NotOursError, read_ours

FILE_NAME = "holdfast.toml"
FILE_BYTES_MAX = 1_048_576
OCTOSTORE_VARIABLES = frozenset({"STATIC_TOKENS", "STATIC_TOKENS_FILE"})
"""Of OctoStore, and of nobody else. `BIND_ADDR` and `DATABASE_URL` are other programs' too."""
OTHER_VARIABLES = frozenset(
    PREFIX + name
    for name in (
        "ALLOW_INSECURE_HTTP",
        "ATTEMPTS",
        "CA_FILE",
        "CONFIG",
        "FAILPOINTS",
        "FENCING_TOKEN",
        "GUARD_HOST_PID",
        "JOB",
        "JOBS",
        "LEASE",
        "LINE",
        "OWNER",
        "PREVIOUS_ENDED",
        "PREVIOUS_NOTE",
        "PREVIOUS_OWNER",
        "PROOF",
        "RLOCK_STANDALONE",
        "SEED",
        "SESSION",
        "TESTING",
        "TOKEN",
        "TOKEN_FILE",
        "URL",
    )
)
"""Variables that are not settings of the server: of clients, of commands in `holdfast run`, of tests."""
SERVICE_VARIABLE = re.compile(r"\w+_SERVICE_(HOST|PORT)(_\w+)?|\w+_PORT(_[0-9]+_(TCP|UDP)(_(ADDR|PORT|PROTO))?)?")
"""What Kubernetes and Docker tell a container of a service that is called `holdfast`."""


class Loaded(msgspec.Struct, frozen=True):
    settings: Settings
    file: Path | None


def load(*, overrides: Mapping[str, str], environment: Mapping[str, str], file: Path | None) -> Loaded:
    """Put the settings together. `file` is from HOLDFAST_CONFIG if None, else `holdfast.toml` if that exists."""
    home = home_of(environment)
    read = _file_of(file, environment)
    values = {} if read is None else _from_file(read, home)
    for row in TABLE:
        # An empty variable counts as not set, as a compose file leaves them.
        if text := environment.get(row.variable):
            values[row.name] = row.from_text(text, row.variable, Path(), home)
    for name, text in overrides.items():
        origin = "command line"
        row = _row(name, origin)
        values[row.name] = row.from_text(text, origin, Path(), home)
        if row.name == "store" and has_password(text):
            problem = "there is a password in it, and every user of this machine can read command lines"
            raise SettingsError(row.name, origin, problem, HOW)
    values.setdefault("data", default_data(environment))
    settings = _within_max_ttl(Settings(**values), values)
    if settings.store and not settings.advertise and is_for_all(parse_address(settings.listen)[0]):
        problem = f"other nodes cannot reach this one at {settings.listen}: say where they can"
        raise SettingsError("advertise", "settings", problem, NAMES["advertise"].allowed)
    return Loaded(settings, None if read is None else read.path)


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
    """One sentence for each HOLDFAST_ variable that means nothing: most likely a typo. One for all of OctoStore."""
    known = {row.variable for row in TABLE} | OTHER_VARIABLES
    strange = (name for name in sorted(environment) if name.startswith(PREFIX) and name not in known)
    # Compared without what all of them begin with: it would make every name near to every other.
    names = {name.removeprefix(PREFIX): name for name in known}
    return [
        *_of_octostore(environment),
        *(
            f"the environment variable {name} is not known and was ignored{_nearest(name.removeprefix(PREFIX), names)}"
            for name in strange
            if not SERVICE_VARIABLE.fullmatch(name)
        ),
    ]


def _of_octostore(environment: Mapping[str, str]) -> list[str]:
    found = [name for name in sorted(environment) if name.startswith("OCTOSTORE_") or name in OCTOSTORE_VARIABLES]
    return [f"variables of OctoStore are not read: {', '.join(found)}; docs/guide/octostore.md says ours"] * bool(found)


class _File(msgspec.Struct, frozen=True):
    path: Path
    content: bytes
    is_named: bool
    """Whether somebody said its name; else it only lay there."""


def _file_of(file: Path | None, environment: Mapping[str, str]) -> _File | None:
    named_by = "--config"
    if file is None and (named := environment.get(PREFIX + "CONFIG")):
        file, named_by = Path(named), PREFIX + "CONFIG"
    if file is None:
        return _found()
    try:
        return _File(file.absolute(), file.read_bytes(), is_named=True)
    except OSError as error:
        raise SettingsError("configuration file", named_by, f"cannot read {file}: {error.strerror}") from None


def _found() -> _File | None:
    """Read the file of the working directory, if there is one and nobody else could have put it there."""
    file = Path(FILE_NAME).absolute()
    try:
        # A group may write to it: with a umask of 002 every file is so, and the group is the user's own.
        return _File(file, read_ours(file, FILE_BYTES_MAX, closed=stat.S_IWOTH), is_named=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        problem = f"cannot read {file}: {error.strerror}"
    except NotOursError as error:
        problem = f"{error}. If you trust it, name it: --config {FILE_NAME}"
    raise SettingsError("configuration file", "working directory", problem)


def _from_file(file: _File, home: Path) -> dict[str, Any]:
    origin = str(file.path)
    if len(file.content) > FILE_BYTES_MAX:
        raise SettingsError("configuration file", origin, f"has more than {FILE_BYTES_MAX} bytes")
    try:
        lines = tomllib.loads(file.content.decode())
    except ValueError as error:  # Both what is not TOML and what is not UTF-8.
        raise SettingsError("configuration file", origin, f"is not TOML: {error}") from None
    values: dict[str, Any] = {}
    for name, value in lines.items():
        row = _row(name, origin)
        if row.named_file_only and not file.is_named:
            problem = (
                "a file that was found in the working directory, and that nobody named, may not set this. If you trust"
                f" it, name it: --config {FILE_NAME}. Else take the line out; {row.variable} can set it too"
            )
            raise SettingsError(name, origin, problem)
        if row.name in values:
            raise SettingsError(name, origin, f"it is another name for {row.name}: leave one of them out")
        # A path in the file means the same wherever the server is started.
        values[row.name] = row.from_toml(value, origin, file.path.parent, home)
    return values


def _row(name: str, origin: str) -> Setting:
    if name not in NAMES:
        more = _nearest(name, NAMES) or "; `holdfast serve --help` lists all of them"
        raise SettingsError(f"{name!r:.100}", origin, f"there is no such setting{more}")
    return NAMES[name]


def _nearest(name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    if not near:
        return ""
    written = known[near[0]]
    return f"; did you mean {written if isinstance(written, str) else near[0]}?"
