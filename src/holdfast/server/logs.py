"""Logs: lines for people on a terminal, JSON lines everywhere else. All of it is ASCII, so nothing acts on a terminal.

One record is one line, whatever it holds; only for people a traceback follows on lines of its own.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


class _JsonLines(logging.Formatter):
    """One JSON object a record."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        line = {"time": _time(record), "level": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


class _HumanLines(logging.Formatter):
    """A line a person can read; what came from outside cannot break it."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        line = f"{_time(record)} {record.levelname.lower():8} {_escaped(record.getMessage())}"
        if record.exc_info and record.levelno < logging.CRITICAL:
            told = self.formatException(record.exc_info).split("\n")
            line = "\n".join([line, *map(_escaped, told)])
        return line


def configure(log_format: str) -> None:
    """Send our logs to standard error; other libraries only speak up from a warning on."""
    human = log_format == "human" or (log_format == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_HumanLines() if human else _JsonLines())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("holdfast").setLevel(logging.INFO)
    # It warns of what others do to their connections, as often as they do it.
    logging.getLogger("asyncio").setLevel(logging.ERROR)


def _escaped(text: str) -> str:
    return text.encode("unicode_escape").decode("ascii")


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
