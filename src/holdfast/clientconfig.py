"""The user's own client configuration: which server, and where its token is. A leaf, for client and server alike.

Two files in `$XDG_CONFIG_HOME/holdfast`: `client.toml` with `url` and `token_file`, and the token in a file of its own
that only its user can read. The server writes them at its first start, so that the next command just works. `ca_file`
and `allow_insecure_http` may stand there too: whom to trust, and whether plain HTTP will do. `url` may be several
addresses with commas in between; the server leaves such a list alone.
"""

from __future__ import annotations

import contextlib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.errors import SettingsError
from holdfast.privatefiles import NotOursError, read_ours, replace

CONFIG_NAME = "client.toml"
TOKEN_NAME = "token"  # noqa: S105 - the name of the file, not what is in it
TOKEN_BYTES_MAX = 4_096


class ClientConfig(msgspec.Struct, frozen=True):
    """What `client.toml` says; None where it says nothing."""

    url: str | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    allow_insecure_http: bool = False


def client_config_dir(environment: Mapping[str, str]) -> Path:
    config = environment.get("XDG_CONFIG_HOME", "")
    # The XDG specification: a path that is not absolute counts as not set.
    if Path(config).is_absolute():
        return Path(config) / "holdfast"
    try:
        home = Path(environment.get("HOME") or Path.home())
    except RuntimeError:
        # A container may run as a number that nobody knows: that one has no configuration.
        home = Path("/nonexistent")
    return home / ".config" / "holdfast"


def read(environment: Mapping[str, str]) -> ClientConfig:
    """Read `client.toml`; a file that is not there says nothing. Raises `SettingsError` for one that cannot be used."""
    file = client_config_dir(environment) / CONFIG_NAME
    try:
        lines = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ClientConfig()
    except OSError as error:
        raise SettingsError("client configuration", str(file), f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError("client configuration", str(file), f"is not TOML: {error}") from None
    for name, value in lines.items():
        if name not in (known := ClientConfig.__struct_fields__):
            raise SettingsError(f"{name!r:.100}", str(file), "there is no such setting", ", ".join(known))
        kind, allowed = (bool, "true or false") if name == "allow_insecure_http" else (str, "text")
        if not isinstance(value, kind) or value == "":
            raise SettingsError(name, str(file), f"{value!r:.100} cannot be used", allowed)
    for name in {"token_file", "ca_file"} & lines.keys():
        lines[name] = file.parent / Path(lines[name]).expanduser()
    return ClientConfig(**lines)


def read_token(file: Path, named_by: str = "") -> str:
    """Read a token from a file only its user can read. Raises `SettingsError`, which says what named the file."""
    origin = f"{file}, from {named_by}" if named_by else str(file)
    if not hasattr(os, "geteuid"):  # Windows
        problem = "cannot be used here: this system does not tell who else may read it"
        raise SettingsError("token file", origin, problem, "the access token itself, in HOLDFAST_TOKEN")
    try:
        content = read_ours(file, TOKEN_BYTES_MAX, root_shares=True)
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
        raise SettingsError("token file", origin, problem, "a file of yours that holds an access token") from None
    except NotOursError as error:
        raise SettingsError("token file", origin, error.problem) from None
    with contextlib.suppress(UnicodeDecodeError):
        token = content.decode("ascii").strip()
        if token and token.isprintable() and " " not in token and len(content) <= TOKEN_BYTES_MAX:
            return token
    raise SettingsError("token file", origin, "does not hold a token", "one line with nothing but the token")


def remember(url: str, token: str, environment: Mapping[str, str]) -> Path | None:
    """Make `url` and `token` the user's own, and return the token's file.

    A configuration that points to another server or to another token file, or that cannot be read, is left
    alone: then nothing is changed and None is returned. Raises `OSError` when the files cannot be written.
    """
    directory = client_config_dir(environment)
    token_file = directory / TOKEN_NAME
    try:
        known = read(environment)
    except SettingsError:
        return None
    if known.token_file not in {None, token_file} or (known.url or url).rstrip("/") != url.rstrip("/"):
        return None
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The token first: a configuration must never name a file that is not there.
    replace(token_file, f"{token}\n".encode())
    if (known.url, known.token_file) != (url, token_file):
        # What else was in it stays. JSON's strings and switches are TOML's too.
        lines: dict[str, str | bool] = {"url": url, "token_file": TOKEN_NAME}
        if known.ca_file is not None:
            lines["ca_file"] = str(known.ca_file)
        if known.allow_insecure_http:
            lines["allow_insecure_http"] = True
        text = "".join(f"{name} = {msgspec.json.encode(value).decode()}\n" for name, value in lines.items())
        replace(directory / CONFIG_NAME, text.encode())
    return token_file
