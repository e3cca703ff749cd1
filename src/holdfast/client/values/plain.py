"""Answers in the form that a Holdfast server gives them, read at once from their bytes. Knows no socket.

`http.client` reads every form that HTTP allows: chunks, no length at all, several answers for one question. That took
half of all that the client did for a claim. Nearly all answers have one form, which is read here:

    HTTP/1.1 200 OK                                    not 204 or 304, nor below 200
    content-type: application/json                     whole lines of name: value, in whatever order
    content-length: 4                                  once
    x-request-id: req_…                                no transfer-encoding, no connection but keep-alive

    null                                               as many bytes as were said, and not one more

What is in doubt is not plain. Then `http.client` reads the answer from its first byte, so nothing is understood in two
ways. A test compares the two over many forms of heads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from email.message import Message
from functools import cached_property
from http.client import parse_headers
from io import BytesIO

from holdfast.client.values.answer import Answer

# One pass, and never a step back (`++`): what a server may send of a head costs no more than its length.
_FIELD = rb"""
    (?! (?i: content-length | transfer-encoding | connection (?! :\ keep-alive\r\n ) ) )
    [!\#$%&'*+.^_`|~0-9A-Za-z-]++ : [^\r]*+ \r\n
"""
_PLAIN = re.compile(
    rb"""
    HTTP/1\.1\ (?! 204 | 304 ) ([2-5][0-9][0-9])\ [^\r]*+ \r\n
    ( (?: %(field)b ){0,40}+ (?i: content-length ) :\ ([0-9]{1,9}) \r\n (?: %(field)b ){0,40}+ \r\n )
    """
    % {b"field": _FIELD},
    re.VERBOSE,
)


class Fields(Mapping[str, str]):
    """The fields of a head. Nobody looks at those of most answers, so they are read when somebody does."""

    def __init__(self, lines: bytes) -> None:
        self._lines = lines

    @cached_property
    def _read(self) -> Message:
        return parse_headers(BytesIO(self._lines))

    def __getitem__(self, name: str) -> str:
        value: str | None = self._read[name]
        if value is None:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._read.keys())

    def __len__(self) -> int:
        return len(self._read)


def plain_answer(heard: bytes) -> Answer | None:
    """Return the answer in these bytes, if it is plain and they are all of it. The connection can be used again."""
    found = _PLAIN.match(heard)
    if found is None:
        return None
    status, lines, length = found.groups()
    begins = found.end()
    # A line feed alone ends a line too, for `http.client`. To look for it here is quicker than in the pattern.
    if len(heard) != begins + int(length) or lines.count(b"\n") != lines.count(b"\r"):
        return None
    return Answer(int(status), Fields(lines), heard[begins:])
