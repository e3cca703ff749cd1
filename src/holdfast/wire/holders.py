"""How people are shown a claim that names no owner: `(access token ci-runner, issue=1842)`.

The access token comes first, because every record knows it. Metadata is shown only where all of it is shown too: of a
live claim. Clients may send any text as metadata, so it is never parsed whole (what is nested is shown as `{…}`),
nothing here raises, and these words prove nothing: an owner may call itself the same. Programs read the fields: `owner`
is null for a claim that named none, and only then `shown_as` is there.
"""

from __future__ import annotations

import re

import msgspec

METADATA_CHARS_MAX = 40

_TEXT = r'"(?:[^"\\]|\\.)*"'
# The first key of an object and its value, or how the value begins if it is nested.
_FIRST_FIELD = re.compile(rf"\s*\{{\s*({_TEXT})\s*:\s*({_TEXT}|[{{\[]|[^\s,}}\]]+)", re.DOTALL)
_NO_FIELD = re.compile(r"\s*\{\s*\}")
_NESTED = {"{": "{…}", "[": "[…]"}


def shown_as(token_name: str | None, metadata: str | None = None) -> str:
    """Return how people are shown a claim without an owner. `token_name` is None where it is not known."""
    whose = "no owner given" if token_name is None else f"access token {token_name}"
    first = _first_of(metadata) if metadata else ""
    return f"({whose}, {first})" if first else f"({whose})"


def _first_of(metadata: str) -> str:
    """Return the first field of metadata as key=value, or the beginning of its first line if it is plain text."""
    if _NO_FIELD.match(metadata):
        return ""
    field = _FIRST_FIELD.match(metadata)
    try:
        text = f"{_as_text(field[1])}={_as_text(field[2])}" if field else _first_line(metadata)
    except msgspec.MsgspecError:
        text = _first_line(metadata)
    return text if len(text) <= METADATA_CHARS_MAX else text[: METADATA_CHARS_MAX - 1] + "…"


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _as_text(value: str) -> str:
    return msgspec.json.decode(value, type=str) if value.startswith('"') else _NESTED.get(value, value)
