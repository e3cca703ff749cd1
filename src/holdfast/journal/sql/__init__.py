"""Reads the named statements of an `.sql` file beside this one."""

from __future__ import annotations

import re
from importlib.resources import files

_NAMED = re.compile(r"^-- name: (\w+)\n(?:--[^\n]*\n)*(.*?)(?=^-- name: |\Z)", re.MULTILINE | re.DOTALL)


def load(file: str) -> dict[str, str]:
    """Return the statements of a file by name."""
    text = files(__name__).joinpath(file).read_text(encoding="utf-8")
    return {name: " ".join(sql.split()) for name, sql in _NAMED.findall(text)}
