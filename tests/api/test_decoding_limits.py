"""What is read costs no more than a legal request: values are counted before they are parsed, and a field that stands
twice is found without a second parse.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from holdfast.api.decoding import _QUOTES_OF_ONE_KEY, TARGET_BYTES_MAX, BodyReader, body_bytes_max
from holdfast.config import Settings
from holdfast.http.messages import SMALL_BODY_BYTES, request_from
from holdfast.server.components import OPERATIONS
from holdfast.wire.problems import Problem
from holdfast.wire.requests import (
    AcquireBody,
    ClaimsBody,
    ReleaseBody,
    RenewBody,
    RevokeBody,
    TransferBody,
    field_names,
)
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import refused
from tests.support.server import ServerProcess

ROW = next(row for row in OPERATIONS if row.path == "/claims")
TEXTS_MAX = 1_024 + 2 * Settings().names_per_call_max
FIELDS = field_names(ClaimsBody)
PAD = b" " * SMALL_BODY_BYTES
BROKEN = b"]]}"
"""At the end of a body that must not be parsed up to there."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The server of this file."""
    data = tmp_path_factory.mktemp("bounds") / "data"
    with ServerProcess.start(data, tokens=callers.TOKENS) as process:
        yield process
        assert process.is_running(), process.log


def _read(body: bytes, *, ignore_unknown: bool = False) -> Any:  # noqa: ANN401 - the body, or why not
    settings = Settings(unknown_fields="ignore" if ignore_unknown else "refuse")
    reader = BodyReader(ClaimsBody, body_bytes_max(ROW, settings), settings)
    try:
        return reader.read(request_from(b"POST", b"/claims", b"", {b"content-type": b"application/json"}, body))
    except Problem as problem:
        return problem.status, problem.details


EXPENSIVE = {
    "texts": b'{"any": [' + b'"a",' * 50_000,
    "empty texts": b'["' + b'","' * 50_000,
    "texts that end with a backslash": b"[" + b'"\\\\",' * 50_000,
    "texts of escaped quotes": b"[" + b'"\\"",' * 50_000,
    "numbers": b'{"any": [' + b"0," * 50_000,
    "lists": b'{"acl": [' + b"[]," * 50_000,
    "deep lists": (b"[" * 900 + b"]" * 900 + b",") * 50,
    "objects": b"[" + b"{}," * 50_000,
    "fields": b"{" + b",".join(b'"%d": 0' % number for number in range(20_000)),
    "labels": b'{"labels": {' + b",".join(b'"%d": ""' % number for number in range(20_000)),
    "a field twice": b"{" + b'"owner": "",' * 20_000,
    "brackets": b"[" * 50_000,
}


@pytest.mark.parametrize("start", EXPENSIVE.values(), ids=list(EXPENSIVE))
def test_values_are_counted_before_they_are_parsed(server: ServerProcess, start: bytes) -> None:
    """A large body with more values than a legal one is 422 and says how many there may be, although it is broken JSON
    at its end, and has a field twice: nobody came that far.
    """
    body = start + BROKEN
    assert len(body) > SMALL_BODY_BYTES
    details = refused(Api.of(server, callers.ALICE).post("/claims", body), 422, "invalid_input")["details"]
    assert details == f"The body has more values than this request can have: at most {TEXTS_MAX} texts."


def test_as_many_values_as_may_be() -> None:
    """A claim of as many names as one may have, with every field, 16 labels and signs in its texts, is read."""
    names = [f"a:{'[{,:' * 20}{number}" for number in range(1_000)]
    terms = {"metadata": '"\\[{,:' * 100, "labels": {f"key-{number}": '{["' for number in range(16)}, "owner": "\\"}
    body = {"all": names, "ttl_seconds": 60, "wait_seconds": 1.5, "redo": False, "ephemeral": False, **terms}
    for ignore_unknown in (False, True):
        read = _read(json.dumps(body, indent=1).encode() + PAD, ignore_unknown=ignore_unknown)
        assert read.all == names and read.metadata == terms["metadata"] and read.labels == terms["labels"]


def test_unknown_values_fit_the_limit() -> None:
    """Where unknown fields are ignored, a large body may have a thousand values in them; not any number."""
    fits = {
        "all": [f"name-{number}" for number in range(1_000)],
        "other": [{"a": str(number)} for number in range(500)],
    }
    assert _read(json.dumps(fits).encode() + PAD, ignore_unknown=True).all == fits["all"]
    more = fits | {"other": [{"a": str(number)} for number in range(5_000)]}
    status, details = _read(json.dumps(more).encode() + PAD, ignore_unknown=True)
    assert status == 422 and "more values" in details


def test_long_numbers_are_not_computed() -> None:
    """Numbers of thousands of digits are refused for their size, without a look at their value."""
    many = b'{"ttl_seconds": [' + b",".join([b"9" * 4_299] * 300) + b"]}"
    assert _read(many)[0] == 422
    assert _read(b'{"own\\u0065r": "a", "ttl_seconds": ' + b"9" * 50_000 + b"}")[0] == 422


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b",".join([b"{}"] * 5_000) + b"]",
        b"[" + b",".join([b"1"] * 8_000) + b"]",
        b'{"x": [' + b",".join([b"{}"] * 5_000) + b"]}",
        b'{"ttl_seconds": "' + b"\\u0041" * 2_000 + b'"}',
    ],
)
def test_invalid_bodies_are_not_parsed_by_json(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    """Strangers may send small bodies: `json` would take a hundred times as long to say that a type is wrong."""
    monkeypatch.setattr(json, "loads", lambda *_args, **_options: pytest.fail("parsed by json"))
    assert len(body) <= SMALL_BODY_BYTES and _read(body)[0] == 422


# Fields that stand twice.

ESCAPED = some.sampled_from([False, True])
WORDS = some.text(alphabet='a"\\/{}[],: \u00e9\n', max_size=6)
LABEL_KEYS = some.sampled_from(["owner", "any", "a", "b", "labels", "x/y"])


def _text(text: str, *, escaped: bool) -> str:
    """A text as JSON; its first character as an escape if that is wanted."""
    written = json.dumps(text, ensure_ascii=False)
    return f'"\\u{ord(text[0]):04x}{written[2:]}' if escaped and text and text[0] not in '"\\\n' else written


@given(
    keys=some.lists(some.tuples(some.sampled_from(["owner", "metadata", "any", "labels"]), ESCAPED), max_size=5),
    labels=some.lists(some.tuples(LABEL_KEYS, ESCAPED, WORDS), max_size=4),
    words=WORDS,
    padded=ESCAPED,
    gap=some.sampled_from(["", " ", "\n\t"]),
)
def test_a_field_twice_is_found_and_nothing_else(
    keys: list[tuple[str, bool]], labels: list[tuple[str, bool, str]], words: str, padded: bool, gap: str
) -> None:
    """A known field twice, or a label twice, is 400, however it is written; the same word elsewhere is not."""
    inner = ",".join(
        f"{_text(key, escaped=marked)}{gap}:{_text(value, escaped=marked)}" for key, marked, value in labels
    )
    values = {
        "owner": _text(words, escaped=False),
        "metadata": _text(f"owner{words}", escaped=True),
        "any": f'["any", "owner", {_text(words, escaped=True)}]',
        "labels": "{" + inner + "}",
    }
    body = "{" + ",".join(f"{_text(key, escaped=marked)}{gap}:{values[key]}" for key, marked in keys) + "}"
    read = _read(body.encode() + (PAD if padded else b""))
    seen = [key for key, _ in keys]
    inside = [key for key, _, _ in labels] if "labels" in seen else []
    if len(set(seen)) < len(seen) or len(set(inside)) < len(inside):
        assert read[0] == 400 and "stands twice" in read[1]
    else:
        assert not isinstance(read, tuple), read
        assert read.owner == (words if "owner" in seen else None)


def test_ignored_fields_may_have_fields_of_the_same_name() -> None:
    """Where unknown fields are ignored, a known word may be in several objects below one; none may be there twice."""
    body = b'{"any": ["a"], "x": [{"owner": 1}, {"owner": 2}], "owner": "b"}'
    assert _read(body, ignore_unknown=True).any == ["a"]
    status, details = _read(b'{"any": ["a"], "x": 1, "x": 2}', ignore_unknown=True)
    assert status == 400 and "stands twice" in details


# Paths and queries.


@pytest.mark.parametrize(
    "target",
    [
        "/locks/" + "%41" * 10_000,
        "/locks/" + "%" * 20_000,
        "/sessions/" + "%7b" * 10_000,
        "/locks?" + "label=a:b&" * 2_000 + "limit=1",
        "/locks?prefix=" + "%" * 20_000,
        "/locks/list?secret=" + "%41" * 10_000,
    ],
)
def test_a_long_path_or_query_is_not_decoded(server: ServerProcess, target: str) -> None:
    """A path or a query of more than 16 KiB is 431."""
    assert len(target) > TARGET_BYTES_MAX
    assert Api.of(server, callers.ALICE).get(target).status == 431


@pytest.mark.parametrize("body", [AcquireBody, RenewBody, ReleaseBody, TransferBody, RevokeBody])
@pytest.mark.parametrize("ignore_unknown", [True, False])
def test_a_field_that_stands_twice_is_found_however_few_quotes_there_are(
    body: type[msgspec.Struct], *, ignore_unknown: bool
) -> None:
    """Bodies with so few quotes that no field can stand twice in a good one are not searched. Whatever a body is, it
    gets the same answer as if all were.
    """
    chance = random.Random(f"{body.__name__} {ignore_unknown}")
    reader = BodyReader(body, SMALL_BODY_BYTES, Settings(unknown_fields="ignore" if ignore_unknown else "refuse"))
    quotes = (reader._quotes_of_each_once, _QUOTES_OF_ONE_KEY)
    keys = [*field_names(body), "lease_id", "colour", "lease_\\u0069d"]
    values = ['"a"', '"b"', "1", "null", "true", '"done"', '""', "[]", "{}", '"\\""', "x", "01"]
    seen = set()
    for _ in range(3_000):
        pairs = [f'"{chance.choice(keys)}": {chance.choice(values)}' for _ in range(chance.choice([0, 1, 1, 2, 2, 3]))]
        sent = f"{{{', '.join(pairs)}}}{chance.choice(['', '', '', '}'])}".encode()
        answers = []
        for reader._quotes_of_each_once in quotes:
            answers.append(_answer_of(reader, sent))
        assert answers[0] == answers[1], sent
        seen.add(type(answers[0]))
    assert len(seen) == 2


def _answer_of(reader: BodyReader, body: bytes) -> object:
    try:
        return reader.read(request_from(b"POST", b"/", b"", {b"content-type": b"application/json"}, body))
    except Problem as problem:
        # What is wrong with broken JSON each of the two parsers says in its own words.
        return problem.status, problem.details.partition("The body is not JSON")[:2]
