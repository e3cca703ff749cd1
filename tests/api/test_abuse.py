"""Bad input of every kind, over raw sockets where a client would not send it: the documented error, and nothing
changes.
"""

from __future__ import annotations

import json

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import refused, unique
from tests.support.raw import head, one, refused_or_closed, send
from tests.support.server import ServerProcess

BODY_BYTES_MAX = 2 * 1024 * 1024
TARGET = "/locks/abuse-target/acquire"
AUTHORIZED = f"Authorization: Bearer {callers.ALICE}"
JSON_HEADERS = ("Host: localhost", AUTHORIZED, "Content-Type: application/json")


# Bodies.

MALFORMED = [
    b"",
    b" ",
    b"{",
    b"}",
    b"nul",
    b"{'ttl_seconds': 5}",
    b"{ttl_seconds: 5}",
    b'{"ttl_seconds": 5,}',
    b'{"ttl_seconds": }',
    b'{"ttl_seconds" 5}',
    b'{"ttl_seconds": 05}',
    b'{"ttl_seconds": +5}',
    b'{"ttl_seconds": 0x5}',
    b'{"ttl_seconds": 5} trailing',
    b'{"ttl_seconds": 5}{"ttl_seconds": 6}',
    b'{"ttl_seconds": 5 /* five */}',
    b'{"metadata": "unfinished',
    b'{"metadata": "\\x"}',
    b'{"metadata": "\\u12"}',
    b'{"metadata": "a\nb"}',
    b'{"metadata": "\xff\xfe"}',
    b'{"metadata": "\xc0\xaf"}',
    b"\x00",
    b'{"ttl_seconds": 5}\x00',
    b"\xef\xbb\xbf{}",
    '{"ttl_seconds": 5}'.encode("utf-16"),
    b"<xml/>",
    b"ttl_seconds=5",
    b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03",
]


@pytest.mark.usefixtures("nothing_changes")
@pytest.mark.parametrize("body", MALFORMED, ids=[str(index) for index in range(len(MALFORMED))])
def test_malformed_json(alice: Api, body: bytes) -> None:
    """A body that is not JSON is 400 (or 422) `invalid_input` on every route that takes one."""
    for path in (TARGET, "/locks/abuse-standing/renew", "/locks/abuse-standing/release", "/sessions"):
        refused(alice.post(path, body), (400, 422), "invalid_input")


WRONG_TYPES: list[bytes] = [
    b"null",
    b"true",
    b"7",
    b'"text"',
    b"[]",
    b"[{}]",
    b'{"ttl_seconds": "60"}',
    b'{"ttl_seconds": [60]}',
    b'{"ttl_seconds": {"s": 60}}',
    b'{"ttl_seconds": 1.5}',
    b'{"ttl_seconds": -1}',
    b'{"ttl_seconds": true}',
    b'{"ttl_seconds": 4294967296}',
    b'{"ttl_seconds": 1e999}',
    b'{"ttl_seconds": 1e-7}',
    b'{"ttl_seconds": -0.5}',
    b'{"ttl_seconds": 9223372036854775808}',
    b'{"ttl_seconds": 1%s}' % (b"0" * 400),
    # Python itself refuses to read integers of more than 4300 digits.
    b'{"ttl_seconds": 1%s}' % (b"0" * 5000),
    b'{"ttl_seconds": 1.%s}' % (b"1" * 5000),
    b'{"lock_delay_seconds": -1}',
    b'{"lock_delay_seconds": "1"}',
    b'{"metadata": 5}',
    b'{"metadata": {"a": 1}}',
    b'{"metadata": ["a"]}',
    b'{"owner": {"a": 1}}',
    b'{"ephemeral": "yes"}',
    b'{"ephemeral": 1}',
    b'{"session_id": 5}',
    b'{"session_id": "not-a-uuid"}',
    b'{"session_id": ""}',
    b'{"resume": 1}',
    b'{"acl": {"acquire": ["user:alice"]}}',
    b'{"fencing_token": 1}',
    b'{"lease_id": "00000000-0000-0000-0000-000000000000"}',
    b'{"principal": "root"}',
    b'{"": 1}',
    b'{"__proto__": {}}',
]


@pytest.mark.usefixtures("nothing_changes")
@pytest.mark.parametrize("body", WRONG_TYPES, ids=[body[:40].decode() for body in WRONG_TYPES])
def test_wrong_types(alice: Api, body: bytes) -> None:
    """JSON of the wrong shape, huge numbers and fields that are not the caller's to set are 400 or 422."""
    refused(alice.post(TARGET, body), (400, 422), ("invalid_input", "invalid_ttl"))


@pytest.mark.usefixtures("nothing_changes")
@pytest.mark.parametrize(
    "body",
    [
        b"[" * 40_000,
        b'{"a":' * 8_000,
        b"[" * 20_000 + b"]" * 20_000,
        b'{"metadata":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
        b'{"unknown":' * 3_000 + b"1" + b"}" * 3_000,
        b'{"ttl_seconds": 5, "x": ' + b'{"y":' * 2_500 + b"1" + b"}" * 2_501,
    ],
    ids=["open-lists", "open-objects", "lists", "lists-in-a-field", "objects", "objects-beside"],
)
def test_deep_nesting(alice: Api, body: bytes) -> None:
    """JSON nested as deep as a body can be is refused like any other nonsense."""
    refused(alice.post(TARGET, body), (400, 422), "invalid_input")


@pytest.mark.usefixtures("nothing_changes")
def test_many_fields(alice: Api) -> None:
    """As many unknown fields as a body has room for are one refusal with details of a sane length."""
    body = json.dumps({f"field_{index}": index for index in range(2_000)}).encode()
    assert len(refused(alice.post(TARGET, body), 422, "invalid_input")["details"]) < 2_000


@pytest.mark.usefixtures("nothing_changes")
@pytest.mark.parametrize(
    "prefix", [b'{"a\\u0062": 1, ', b'{"owner": "owner", "ttl_seconds": 1, "ttl_seconds": 2, '], ids=["escape", "known"]
)
def test_duplicate_among_many_fields_is_found(alice: Api, prefix: bytes) -> None:
    """A duplicate at the end of many fields is found."""
    fields = b", ".join(b'"%d": 0' % index for index in [*range(1_500), 1_499])
    refused(alice.post(TARGET, prefix + fields + b"}"), (400, 422), "invalid_input")


@pytest.mark.usefixtures("nothing_changes")
def test_long_unknown_field_is_not_echoed_in_full(alice: Api) -> None:
    """A field name of 40 KB is refused without sending it back."""
    answer = alice.post(TARGET, json.dumps({"x" * 40_000: 1}).encode())
    refused(answer, (400, 422), "invalid_input")
    assert len(answer.body) < 10_000


@pytest.mark.usefixtures("nothing_changes")
def test_body_too_large_with_a_length(alice: Api) -> None:
    """A body of 2 MiB is 413, whether it is sent or only announced."""
    length = BODY_BYTES_MAX + 1
    announced = head("POST", TARGET, *JSON_HEADERS, f"Content-Length: {length}")
    refused(one(send(alice, announced + b" " * length, timeout_seconds=20)), 413, "invalid_input")
    refused(
        one(send(alice, head("POST", TARGET, *JSON_HEADERS, "Content-Length: 1000000000000"))), 413, "invalid_input"
    )


@pytest.mark.usefixtures("nothing_changes")
def test_body_too_large_in_chunks(alice: Api) -> None:
    """A chunked body of 2 MiB is 413, although nobody announced its length and it never ends."""
    start = head("POST", TARGET, *JSON_HEADERS, "Transfer-Encoding: chunked")
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    refused(one(send(alice, start + chunk * 40, timeout_seconds=20)), 413, "invalid_input")
    one_chunk = b"%x\r\n%s" % (BODY_BYTES_MAX + 1, b" " * (BODY_BYTES_MAX + 1))
    refused(one(send(alice, start + one_chunk, timeout_seconds=20)), 413, "invalid_input")


@pytest.mark.usefixtures("nothing_changes")
def test_no_body_at_all(alice: Api) -> None:
    """A POST without length, chunks or body has an empty body, which is not JSON: 400."""
    refused(one(send(alice, head("POST", TARGET, *JSON_HEADERS))), 400, "invalid_input")


def test_chunked_bodies_work(alice: Api) -> None:
    """A chunked body, in pieces, with extensions and trailers, is a body like any other."""
    body = b'5;note=x\r\n{"ttl\r\n10\r\n_seconds": 120 }\r\n0\r\nX-Trailer: 1\r\n\r\n'
    name = unique()
    start = head("POST", f"/locks/{name}/acquire", *JSON_HEADERS, "Transfer-Encoding: chunked")
    lease = one(send(alice, start + body)).json()
    assert lease["status"] == "acquired"
    assert 110_000 < lease["expires_in_ms"] <= 120_000
    alice.release(name, lease["lease_id"])


@pytest.mark.usefixtures("nothing_changes")
@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "text/plain",
        "text/json",
        "application/x-json",
        "multipart/form-data; boundary=x",
        "application/",
        "/",
        "\xff",
    ],
)
def test_wrong_content_type(alice: Api, content_type: str) -> None:
    """A body that does not say it is JSON is 415, even if it is."""
    headers = ["Host: localhost", AUTHORIZED, "Content-Length: 2"] + (
        [f"Content-Type: {content_type}"] if content_type else []
    )
    refused(one(send(alice, head("POST", TARGET, *headers) + b"{}")), 415, "invalid_input")


# Names.

BAD_NAMES = [
    "%FF",
    "a%FFb",
    "%C3",
    "%C3%28",
    "%C0%AF",
    "%ED%A0%80",
    "%F5%80%80%80",
    "e%CC%81",
    "%E1%84%92%E1%85%A1%E1%86%AB",
    "%E2%84%AB",
    "x:e%CC%81",
    "%00",
    "a%00b",
    "a%0Ab",
    "a%0D%0Ab",
    "a%1Bb",
    "a%7Fb",
    "a%C2%85b",
    "a%20b",
    "%20",
    "a%09b",
    "a%C2%A0b",
    "a%E2%80%8Bb",
    "a%E2%80%AEb",
    "a%EF%BB%BFb",
    "a%5Cb",
    "a%25b",
    "a%2Ab",
    "%F0%9F%A6%AD",
    "a%2F..%2Fb",
    "%2Fa",
    "a%2F",
    "a%2F%2Fb",
    "%2F",
    "x" * 65,
    "%C3%A9" * 33,
    "%2F".join(["y" * 64, "y" * 64, "y" * 64, "y" * 62]),
    "x" * 5_000,
    "x:" + "y" * 255,
    "http:a%20b",
    "http:a%00b",
    "http:a%0Ab",
    "http:a%C2%85b",
    "1http:x",
    "%3Ax",
    "-x:y",
    "h_t:x",
    "é%3Ax",
]


@pytest.mark.usefixtures("nothing_changes")
@pytest.mark.parametrize("name", BAD_NAMES, ids=[name[:40] for name in BAD_NAMES])
def test_bad_names(alice: Api, name: str) -> None:
    """N1: a name that is no UTF-8, not NFC, has blanks or controls, or is too long is 400 on every route, with the
    reason.
    """
    name = name.replace("é", "%C3%A9")
    codes = ("invalid_lock_name", "invalid_input")
    refused(alice.post(f"/locks/{name}/acquire", {}), 400, codes)
    refused(alice.get(f"/locks/{name}"), 400, codes)
    refused(alice.get(f"/locks/{name}/watch"), 400, codes)
    lease = {"lease_id": "00000000-0000-4000-8000-000000000000"}
    refused(alice.post(f"/locks/{name}/renew", lease), 400, codes)
    refused(alice.post(f"/locks/{name}/release", lease), 400, codes)


@pytest.mark.usefixtures("nothing_changes")
@pytest.mark.parametrize(
    "name",
    ["..", ".%2e", "%2e%2e", "a%", "a%2", "a%zz", "a%u0041", "a/../b", "a//b", "/a", "a b", "a\xff", "a\xc3\xa9\xff"],
)
def test_bad_paths_as_sent(alice: Api, name: str) -> None:
    """N2: broken escapes, raw bytes and dot segments in a path never become another name: 400 or 404."""
    for request in (
        head("POST", f"/locks/{name}/acquire", *JSON_HEADERS, "Content-Length: 2", "Connection: close") + b"{}",
        head("GET", f"/locks/{name}", "Host: localhost", AUTHORIZED, "Connection: close"),
    ):
        refused_or_closed(send(alice, request), 400, 404)


@pytest.mark.usefixtures("nothing_changes")
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/nope"),
        ("GET", "//"),
        ("GET", "/locks/"),
        ("POST", "/locks/"),
        ("POST", "/locks"),
        ("POST", "/locks/abuse-target"),
        ("POST", "/locks/abuse-target/steal"),
        ("DELETE", "/locks/abuse-standing"),
        ("PUT", "/locks/abuse-standing/acl"),
        ("GET", "/sessions/x/y/z"),
        ("GET", "/tokens/x/y"),
        ("GET", "/%2e%2e/etc/passwd"),
        ("GET", "/../../etc/passwd"),
        ("GET", "/static/../../etc/passwd"),
        ("GET", "/health%00"),
        ("GET", "/HEALTH"),
        ("GET", "/.git/config"),
        ("GET", "http://elsewhere.example/health/x"),
    ],
)
def test_unknown_routes(alice: Api, method: str, path: str) -> None:
    """A path nobody serves is 404, a known path with another method 405 with `Allow`: envelopes, never a file."""
    request = (
        head(method, path, "Host: localhost", AUTHORIZED, "Content-Type: application/json", "Content-Length: 2") + b"{}"
    )
    answer = one(send(alice, request))
    refused(answer, (400, 404, 405), ("not_found", "invalid_input", "invalid_lock_name"))
    if answer.status == 405:
        assert answer.headers.get("Allow")


@pytest.mark.usefixtures("nothing_changes")
@pytest.mark.parametrize("method", ["PATCH", "TRACE", "PROPFIND", "BREW", "get", "A" * 200])
def test_other_methods(alice: Api, method: str) -> None:
    """Methods nobody uses are refused: 405, or 400 where the parser does not know them."""
    request = head(
        method, "/locks/abuse-standing", "Host: localhost", AUTHORIZED, "Content-Length: 0", "Connection: close"
    )
    refused_or_closed(send(alice, request), 400, 405)


@pytest.mark.usefixtures("nothing_changes")
@pytest.mark.parametrize(
    "query",
    [
        "prefix=%FF",
        "prefix=%00",
        "limit=" + "9" * 5_000,
        "limit=%31%FF",
        "after=%FF",
        "prefix=a&prefix=b",
        "&&==&",
        "%",
        "on_held=409",
    ],
)
def test_odd_queries(alice: Api, query: str) -> None:
    """An odd query is answered or refused with 400, and never an accident."""
    answer = one(send(alice, head("GET", f"/locks?{query}", "Host: localhost", AUTHORIZED)))
    assert answer.status in (200, 400), answer
    if answer.status == 400:
        refused(answer, 400, "invalid_input")


@pytest.mark.usefixtures("nothing_changes")
@pytest.mark.parametrize("value", ["", " ", "x" * 10_000, "\xff", "a\tb"])
def test_odd_idempotency_keys(alice: Api, value: str) -> None:
    """An odd Idempotency-Key on a request that is refused anyway changes nothing and is no accident."""
    request = (
        head("POST", TARGET, *JSON_HEADERS, f"Idempotency-Key: {value}", "Content-Length: 18") + b'{"ttl_seconds": 0}'
    )
    refused(one(send(alice, request)), (400, 422, 431), ("invalid_input", "invalid_ttl"))


@pytest.mark.usefixtures("nothing_changes")
@pytest.mark.parametrize(
    "value",
    [
        "Bearer " + "x" * 8_000,
        "Bearer \xff\xfe",
        "Bearer a b",
        "Bearer  ",
        "\x01",
        "Bearer hold_" + "0" * 36,
        "Bearer ,",
    ],
)
def test_odd_authorization(nobody: Api, value: str) -> None:
    """An odd Authorization header is 401 (or 400), and its value is not sent back."""
    reply = send(nobody, head("GET", "/locks", "Host: localhost", f"Authorization: {value}", "Connection: close"))
    refused_or_closed(reply, 400, 401)
    assert b"x" * 100 not in reply.data


@pytest.mark.usefixtures("nothing_changes")
def test_no_accident_shows_its_inside(alice: Api, server: ServerProcess) -> None:
    """A refusal shows no stack, no path and no SQL, and abuse leaves no traceback in the log."""
    texts = [
        alice.post(TARGET, b'{"ttl_seconds": 1%s}' % (b"0" * 5000)).text,
        alice.get("/locks?limit=" + "9" * 5_000).text,
        alice.post("/sessions", b"\xff").text,
    ]
    for text in texts:
        for inside in ("Traceback", ".py", "SELECT", "msgspec", "sqlite", str(server.data)):
            assert inside not in text
    assert "Traceback" not in server.log
