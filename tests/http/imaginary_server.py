"""A server that is only imagined: it says what the naive model says must be said, to the byte, or with one bug."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from tests.http.judge import ON_EVERY_ANSWER
from tests.http.naive_api import ExpectedAnswer, NaiveApi
from tests.http.naive_http import ParsedRequest, Refusal, read


@dataclass
class Imagined:
    """What it says on one connection, answer by answer, and which names are held in the end."""

    said: list[bytes] = field(default_factory=list)
    held: list[str] = field(default_factory=list)

    @property
    def data(self) -> bytes:
        """All of it."""
        return b"".join(self.said)


def imagine(sent: bytes) -> Imagined:
    """What is said to this, and held after it."""
    api, imagined, reading = NaiveApi(), Imagined(), read(sent)
    for asked in reading.asked:
        expected = api.expected(asked)
        api.happened(asked, expected)
        if expected.may_send_continue:
            imagined.said.append(b"HTTP/1.1 100 Continue\r\n\r\n")
        imagined.said.append(_stream(asked) if expected.is_stream else _answer(asked, expected))
        if expected.grants:
            imagined.held.append(expected.grants)
        if expected.then == "closes" or expected.is_stream:
            return imagined
    if isinstance(reading.last, Refusal):
        imagined.said.append(message(min(reading.last.statuses), b"{}", closes=True))
    return imagined


def message(status: int, body: bytes, *, closes: bool = False, is_head: bool = False) -> bytes:
    """An answer with its length."""
    lines = [f"HTTP/1.1 {status} Imagined", *_usual(), f"Content-Length: {len(body)}"]
    lines += ["Connection: close"] if closes else []
    return "\r\n".join([*lines, "", ""]).encode() + (b"" if is_head else body)


def _answer(asked: ParsedRequest, expected: ExpectedAnswer) -> bytes:
    body = json.dumps(expected.body_fields).encode()
    return message(min(expected.statuses), body, closes=expected.then == "closes", is_head=asked.method == "HEAD")


def _stream(asked: ParsedRequest) -> bytes:
    """The beginning of a stream: in chunks, or until the end of the connection."""
    if asked.version == "1.0":
        return "\r\n".join(["HTTP/1.1 200 OK", *_usual(), "Connection: close", "", "data: {}\n\n"]).encode()
    head = "\r\n".join(["HTTP/1.1 200 OK", *_usual(), "Transfer-Encoding: chunked", "", ""])
    return head.encode() + b"a\r\ndata: {}\n\n\r\n"


def _usual() -> list[str]:
    return [f"{name}: {value}" for name, value in ON_EVERY_ANSWER.items()]
