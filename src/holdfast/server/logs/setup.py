"""Where the log of this process goes, in which form, and that its last words come out."""

from __future__ import annotations

import logging
import sys

from holdfast.server.logs.lines import HumanLines, JsonLines
from holdfast.server.logs.writer import LAST_WORDS_SECONDS, WriterHandler


def configure(log_format: str) -> None:
    """Send our logs to standard error; other libraries only speak up from a warning on."""
    human = log_format == "human" or (log_format == "auto" and sys.stderr.isatty())
    handler = WriterHandler(sys.stderr.fileno(), HumanLines() if human else JsonLines())
    handler.writer.start()
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("holdfast").setLevel(logging.INFO)
    # It warns of what others do to their connections, as often as they do it.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    # It warns with each batch of spans that nobody takes, and again with each retry.
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)


def last_words(seconds: float = LAST_WORDS_SECONDS) -> bool:
    """Wait a little until all that was logged is written. False: nobody takes it."""
    return all(handler.writer.flush(seconds) for handler in _ours())


def lines_left_out() -> int:
    """Return how many lines were left out since the start, because nobody took them in time."""
    return sum(handler.writer.left_out for handler in _ours())


def _ours() -> list[WriterHandler]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, WriterHandler)]
