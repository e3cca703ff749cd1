"""How a record of the log is written: JSON lines with fields, or lines for people. Nothing in them acts on a terminal.

All of it is ASCII. One record is one line, whatever it holds; only for people a traceback follows on lines of its own.
A record may bring fields (`extra={"fields": {…}}`): they stand in the JSON beside the message, which says the same to
people.

What looks like a secret of ours is cut out of every line here, whoever wrote it. That is the last net, and not the
rule: nobody hands a query, a header or a body to the log.
"""

from __future__ import annotations

import json
import logging
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote_from_bytes, unquote_to_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

MESSAGE_CHARS_MAX = 8_192
EXCEPTION_CHARS_MAX = 16_384
"""Of a longer traceback the end is kept: the error stands there."""
PATH_CHARS_MAX = 256

_OURS = re.compile(r"(hold[a-z]?_)[A-Za-z0-9_-]{16,}|(?i:(bearer|cookie|basic) )[A-Za-z0-9._~+/=-]{16,}")
_OURS_IN_PATH = re.compile(rb"(hold[a-z]?_)[A-Za-z0-9_-]+")
_PERCENT = ord("%")


class JsonLines(logging.Formatter):
    """One JSON object a record."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _cut(record.getMessage()),
            **fields_of(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)[-EXCEPTION_CHARS_MAX:]
        return without_secrets(json.dumps(line, default=str))


class HumanLines(logging.Formatter):
    """A line a person can read; what came from outside cannot break it."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        line = f"{_time(record)} {record.levelname.lower():8} {_escaped(_cut(record.getMessage()))}"
        if record.exc_info and record.levelno < logging.CRITICAL:
            told = self.formatException(record.exc_info)[-EXCEPTION_CHARS_MAX:].split("\n")
            line = "\n".join([line, *map(_escaped, told)])
        return without_secrets(line)


def fields_of(record: logging.LogRecord) -> Mapping[str, object]:
    """Return what a record has beside its message."""
    fields: Mapping[str, object] = getattr(record, "fields", {})
    return fields


def without_secrets(line: str) -> str:
    """Return a line in which what has the shape of an access token, or of a session's or claim's secret, is cut."""
    return _OURS.sub(lambda found: f"{found[1] or f'{found[2]} '}...", line)


def shown_path(path: bytes, chars_max: int = PATH_CHARS_MAX) -> str:
    """Return a path as it was sent, but for what looks like a secret of ours, be it percent-encoded; and cut.

    It has no blanks in it: a name cannot look like the rest of a line.
    """
    text = _OURS_IN_PATH.sub(rb"\1...", path)
    if _PERCENT in path and _OURS_IN_PATH.search(decoded := unquote_to_bytes(path)):
        text = quote_from_bytes(_OURS_IN_PATH.sub(rb"\1...", decoded)).encode()
    return text.decode("latin-1") if len(text) <= chars_max else f"{text[:chars_max].decode('latin-1')}..."


def _cut(message: str) -> str:
    return message if len(message) <= MESSAGE_CHARS_MAX else f"{message[:MESSAGE_CHARS_MAX]}..."


def _escaped(text: str) -> str:
    return text.encode("unicode_escape").decode("ascii")


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
