"""How people are shown a claim that names no owner. The one home of these words, for the server and for the client.

A claim may leave out `owner`. It still belongs to somebody: to the access token that asked for it, and its metadata
often says for what. So it is shown as `(access token ci-runner, issue=1842)`. The brackets say that this is no owner's
name: no owner was given. The access token comes first, because every record knows it; metadata only a live claim has.
"""

from __future__ import annotations

import msgspec

METADATA_CHARS_MAX = 40
"""How much of the metadata is shown."""


def shown_as(token_name: str | None, metadata: str | None = None) -> str:
    """Return how people are shown a claim without an owner. `token_name` is None where it is not known."""
    whose = "no owner given" if token_name is None else f"access token {token_name}"
    first = _first_field(metadata) if metadata else ""
    return f"({whose}, {first})" if first else f"({whose})"


def _first_field(metadata: str) -> str:
    """Return the first field of metadata as key=value, or the beginning of its first line if it is plain text."""
    text = metadata.strip().partition("\n")[0]
    try:
        fields = msgspec.json.decode(metadata) if text.startswith("{") else None
    except msgspec.MsgspecError:
        fields = None
    if isinstance(fields, dict):
        text = next((f"{key}={_in_words(value)}" for key, value in fields.items()), "")
    return text if len(text) <= METADATA_CHARS_MAX else text[: METADATA_CHARS_MAX - 1] + "…"


def _in_words(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
