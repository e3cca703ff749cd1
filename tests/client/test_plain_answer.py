"""Plain answers: read at once from their bytes, and never otherwise than `http.client` would read them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from http.client import HTTPException, HTTPResponse
from io import BytesIO
from itertools import product
from typing import cast

import pytest

from holdfast import Holdfast, JobHeld, Refused
from holdfast.client import sync_transport
from holdfast.client.sync_transport import plain_answer

OURS = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 4\r\nx-request-id: req_1\r\n"
    b"date: Mon, 16 Nov 2026 17:00:00 GMT\r\ncache-control: no-store\r\n\r\nnull"
)
LENGTH = "content-length: 4"
FIRST_LINES = [
    "HTTP/1.1 200 OK",
    "HTTP/1.1 404 Not Found",
    "HTTP/1.1 503 ",
    "HTTP/1.1 200",
    "HTTP/1.1 204 No Content",
    "HTTP/1.1 304 Not Modified",
    "HTTP/1.1 100 Continue",
    "HTTP/1.1 600 More",
    "HTTP/1.0 200 OK",
    "HTTP/2 200 OK",
    "http/1.1 200 OK",
    "HTTP/1.1  200 OK",
    "HTTP/1.1 2000 OK",
]
LINES = [
    LENGTH,
    "Content-Length: 4",
    "Content-Length:4",
    "content-length: 04",
    "content-length: +4",
    "content-length: 4, 4",
    "content-length: 0",
    "content-length : 4",
    "transfer-encoding: chunked",
    "Transfer-Encoding: identity",
    "Transfer-Encoding : chunked",
    "connection: close",
    "Connection: keep-alive",
    "connection: keep-alive, close",
    "connection: upgrade",
    "proxy-connection: close",
    "retry-after: 7",
    "Server: nginx",
    "x: ",
    "x:",
    "x: \x00",
    "x: \xe9",
    "x\x00y: 1",
    " folded: 1",
    "\tfolded",
    "no colon",
    ": no name",
    "two words: 1",
    "x: a\rTransfer-Encoding: chunked",
    "x: a\nTransfer-Encoding: chunked",
]


class ReceivedBytes(BytesIO):
    """Bytes that `http.client` reads as it would read a socket."""

    def makefile(self, _mode: str) -> ReceivedBytes:
        return self

    def close(self) -> None:
        """Stay open: it is asked afterwards how far it was read."""


def as_read_by_the_library(data: bytes) -> tuple[int, dict[str, str | None], bytes] | None:
    """The status, the fields and the body, if the connection can be used again after them and nothing is left over."""
    received = ReceivedBytes(data)
    response = HTTPResponse(cast("socket.socket", received), method="POST")
    try:
        response.begin()
        content = response.read()
    except (HTTPException, ValueError):
        return None
    if response.will_close or received.tell() != len(data):
        return None
    return response.status, {name.title(): response.headers[name] for name in response.headers}, content


def heads() -> Iterator[str]:
    """Every first line with up to two lines of every kind, with a good length before, between or after them."""
    some = [(), *product(LINES), *product(LINES, LINES)]
    for first, lines in product(FIRST_LINES, some):
        yield from ("\r\n".join((first, *lines[:at], LENGTH, *lines[at:])) for at in range(len(lines) + 1))
        yield "\r\n".join((first, *lines))


def test_plain_answer_equals_the_library_result() -> None:
    """Whatever head an answer has: if it is read as plain, `http.client` would have read the same, to its last byte."""
    plain = 0
    for head, blank, body in product(heads(), ["\r\n\r\n", "\n\n", "\r\n\n"], ["null", "nul", "null\r\n", "\r\n\r\n"]):
        data = (head + blank + body).encode("latin-1")
        answer = plain_answer(data)
        if answer is not None:
            plain += 1
            read = (answer.status, answer.headers, answer.body)
            assert read == as_read_by_the_library(data), data
    assert plain > 500


@pytest.mark.parametrize("cut", range(len(OURS)))
def test_a_part_is_not_plain(cut: int) -> None:
    """An answer of ours is plain when it is whole. Any less of it is not, nor is one more byte."""
    assert plain_answer(OURS[:cut]) is None
    assert plain_answer(OURS + b"x" * (cut + 1)) is None
    answer = plain_answer(OURS)
    assert answer is not None and (answer.status, answer.body) == (200, b"null")


@pytest.mark.parametrize("head", ["content-length: 0", "content-length: 0\r\nx-request-id: req_1"])
def test_an_empty_answer_is_not_plain_before_its_head_is_complete(head: str) -> None:
    """A head that is cut off is not plain, also where no body follows: the rest would be read as the next answer."""
    answer = f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode()
    assert plain_answer(answer) is not None
    assert not any(plain_answer(answer[:cut]) for cut in range(len(answer)))


def test_fields_are_found_in_title_case() -> None:
    """The fields of a plain answer are found as those of any other, however their names were sent."""
    answer = plain_answer(OURS)
    assert answer is not None
    assert (answer.headers["X-Request-Id"], answer.headers.get("Server"), len(answer.headers)) == ("req_1", None, 5)
    assert "Content-Type" in answer.headers


def test_a_long_head_costs_no_more_than_its_length() -> None:
    """A head that is nearly plain is given up after one look at each of its bytes."""
    lines = b"x: y\r\n" * 2_000
    assert plain_answer(b"HTTP/1.1 200 OK\r\n" + lines + b"content-length: 4\r\n" + lines + b"!") is None


def test_a_servers_answers_are_plain(client: Holdfast, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a server answers to claims, renewals, releases, questions and refusals is plain: nothing else reads it."""

    def read(*_: object, **__: object) -> None:
        raise AssertionError("this answer is not plain")

    monkeypatch.setattr(sync_transport, "HTTPResponse", read)
    with client.claim(job, metadata={"a": "b"}, labels={"c": "d"}) as claim:
        claim.note("begun")
        with pytest.raises(JobHeld):
            client.claim(job, owner="another")
        assert client.get_job_owner(job) is not None
    with pytest.raises(Refused):
        client.claim("no such: name")
