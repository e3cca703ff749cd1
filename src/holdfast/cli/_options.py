"""Options that several commands share, and the types of what stands on a command line."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from holdfast.client._http import Transport

SECONDS_MAX = 2**32 - 1

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
F = TypeVar("F", bound=Callable[..., Any])


class Duration(click.ParamType[int]):
    """A time with its unit: 90s, 15m, 12h, 30d, 2w. In seconds afterwards."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read it."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"([0-9]{1,10})([smhdw])", str(value))
        seconds = int(found[1]) * _UNITS[found[2]] if found else 0
        if not 1 <= seconds <= SECONDS_MAX:
            self.fail(f"{value!r} is not a time; write 90s, 15m, 12h, 30d or 2w", param, ctx)
        return seconds


def asks_server(command: F) -> F:
    """Add the options that say which server, and with which token."""
    url = click.option("--url", metavar="URL", help="The server; else HOLDFAST_URL, else your client.toml.")
    token_file = click.option(
        "--token-file",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The file with your token; else HOLDFAST_TOKEN, HOLDFAST_TOKEN_FILE, else your client.toml.",
    )
    return url(token_file(command))


def as_json(command: F) -> F:
    """Add `--json`."""
    return click.option("--json", "json", is_flag=True, help="Print JSON instead of text.")(command)


def transport(url: str | None, token_file: Path | None) -> Transport:
    """Open the way to the server that the options and the environment name. Raises `SettingsError`."""
    from holdfast.client import _config
    from holdfast.client._http import Transport

    return Transport(_config.find(url=url, token_file=token_file, environment=os.environ), environment=os.environ)
