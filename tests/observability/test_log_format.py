"""Lines of the log: fields in JSON, one line a record, and nothing in them that looks like a secret of ours."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from holdfast.observability.logs import (
    EXCEPTION_CHARS_MAX,
    MESSAGE_CHARS_MAX,
    PATH_CHARS_MAX,
    JsonFormatter,
    TextFormatter,
    shown_path,
)

SECRET = "hold_Zk3fQw8LmN2pRt5vXy7bCd9eGh1jKl4nOq6sUw0yAc"


def _record(message: str, *args: object, fields: dict[str, object] | None = None) -> logging.LogRecord:
    record = logging.LogRecord("holdfast.server", logging.WARNING, "", 0, message, args, None)
    if fields is not None:
        record.fields = fields
    return record


def test_fields_stand_beside_the_message() -> None:
    """A JSON line has time, level, logger and message, and the record's own fields as they are."""
    line = json.loads(JsonFormatter().format(_record("refused %d", 403, fields={"status": 403, "client": None})))
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "warning",
        "logger": "holdfast.server",
        "message": "refused 403",
        "status": 403,
        "client": None,
    }


def test_people_get_the_message() -> None:
    """A line for people is time, level and message: the message alone says what happened."""
    line = TextFormatter().format(_record("refused %d", 403, fields={"status": 403}))
    assert line.split(maxsplit=1)[1] == "warning  refused 403"


@pytest.mark.parametrize("kind", [SECRET, SECRET.replace("hold_", "holds_"), SECRET.replace("hold_", "holdc_")])
def test_secrets_of_ours_are_cut_out_of_every_line(kind: str) -> None:
    """Whoever wrote it, and wherever it stands: in the message, a field, an exception."""
    try:
        raise ValueError(f"cannot use {kind}")
    except ValueError:
        record = logging.LogRecord(
            "x", logging.ERROR, "", 0, "about %s and Bearer %s", (kind, "a" * 20), sys.exc_info()
        )
    record.fields = {"path": f"/locks/{kind}/acquire"}
    for formatter in (JsonFormatter(), TextFormatter()):
        line = formatter.format(record)
        assert kind[8:] not in line and "a" * 20 not in line
        assert "hold" in line and "..." in line
    assert json.loads(JsonFormatter().format(record))["path"].endswith("_.../acquire")


def test_lines_are_not_too_long() -> None:
    """A message is cut, and of a traceback the end is kept."""
    try:
        raise ValueError("y" * 100_000 + " the end")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "z" * 100_000, (), sys.exc_info())
    line = json.loads(JsonFormatter().format(record))
    assert len(line["message"]) == MESSAGE_CHARS_MAX + 3
    assert len(line["exception"]) == EXCEPTION_CHARS_MAX and line["exception"].endswith(" the end")


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (b"/locks/deploy/acquire", "/locks/deploy/acquire"),
        (b"/locks/a%20b%0Ac", "/locks/a%20b%0Ac"),
        (f"/locks/{SECRET}/why".encode(), "/locks/hold_.../why"),
        (f"/locks/{SECRET.replace('o', '%6F')}/why".encode(), "/locks/hold_.../why"),
        (f"/locks/a%2F{SECRET}".encode(), "/locks/a/hold_..."),
        (b"/" + b"a" * 300, "/" + "a" * (PATH_CHARS_MAX - 1) + "..."),
    ],
)
def test_paths_are_shown_as_they_came_but_for_secrets(path: bytes, shown: str) -> None:
    """A path has no blank and no end of a line in it, is not too long, and hides a secret that took a name's place."""
    assert shown_path(path) == shown
