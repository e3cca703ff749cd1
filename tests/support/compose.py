"""Reads a compose file, as far as ours goes: maps, lists, texts, lists in brackets, and maps that others begin with.

What it does not know, it refuses. So a file that is read here says the same to every other reader of YAML.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

Line = tuple[int, str]
_KEY = re.compile(r"([\w.<-]+):(?: +(.*))?")
_PLAIN = re.compile(r"[\w./~-][\w./:~+=-]*")


def services_of(file: Path) -> dict[str, dict[str, Any]]:
    """Return the services by name."""
    lines = [
        (len(text) - len(text.lstrip()), text.strip())
        for text in file.read_text(encoding="utf-8").splitlines()
        if text.strip() and not text.lstrip().startswith("#")
    ]
    complete = _block(lines, {})
    assert not lines, f"{file}: not understood from here on: {lines[0]}"
    services: dict[str, dict[str, Any]] = complete["services"]
    return services


def _block(lines: list[Line], known: dict[str, Any]) -> Any:  # noqa: ANN401 - YAML is whatever it is
    """Take the lines of one block off the list, and return what they say."""
    if not lines:
        return None
    depth = lines[0][0]
    if lines[0][1].startswith("- "):
        items = []
        while lines and lines[0][0] == depth and lines[0][1].startswith("- "):
            items.append(_scalar(lines.pop(0)[1][2:]))
        return items
    found: dict[str, Any] = {}
    while lines and lines[0][0] == depth:
        text = lines.pop(0)[1]
        key = _KEY.fullmatch(text)
        assert key is not None and key[1] not in found, f"not understood: {text}"
        name, value = key[1], key[2] or ""
        if name == "<<":
            found.update(known[value.removeprefix("*")])
            continue
        anchor = value.removeprefix("&") if value.startswith("&") else None
        if value and anchor is None:
            found[name] = _scalar(value)
        else:
            found[name] = _block(lines, known) if lines and lines[0][0] > depth else None
        if anchor is not None:
            known[anchor] = found[name]
    return found


def _scalar(text: str) -> Any:  # noqa: ANN401 - the same
    if text.startswith("["):
        return json.loads(text)
    assert _PLAIN.fullmatch(text) and not text.endswith(":"), f"not understood: {text}"
    return int(text) if text.isdecimal() else text
