"""OctoStore's rules for every request: request ids, the error envelope, the order of checks, content types, numbers."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import callers
from tests.support.api import Api, lock_path
from tests.support.checks import ENVELOPE, has_request_id, is_uuid, moment, refused, seconds_from_now
from tests.support.http import Answer, exchange

NO_LEASE = str(uuid.UUID(int=7))


@pytest.fixture(scope="module")
def server_settings() -> dict[str, object]:
    """OctoStore's rules."""
    return callers.OCTOSTORE_SETTINGS


def _raw_post(api: Api, path: str, body: bytes, *headers: str) -> Answer:
    """A POST written by hand, for what a client library would not send."""
    head = "\r\n".join([f"POST {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {api.token}", *headers])
    reply = exchange(api.host, api.port, head.encode() + b"\r\n\r\n" + body, timeout_seconds=20)
    answers = reply.answers()
    assert len(answers) == 1, f"expected one answer, got {reply.data[:300]!r}"
    return answers[0]


# Request ids.


def test_every_answer_carries_a_request_id(alice: Api, nobody: Api, name: str) -> None:
    """Every kind of answer, success or error, carries `X-Request-Id: req_` and 32 hex digits, a new one each time."""
    lease_id = alice.acquired(name, lock_delay_seconds=5)["lease_id"]
    session_id = alice.new_session()["session_id"]
    answers = {
        200: alice.status(name),
        201: alice.create_session(),
        204: alice.end_session(session_id),
        400: alice.acquire(name, ttl_seconds=0),
        401: nobody.status(name),
        403: alice.acquire("__election/room"),
        404: alice.get("/no/such/route"),
        405: alice.request("PUT", "/locks"),
        415: alice.post(f"{lock_path(name)}/acquire", b"{}", headers={"Content-Type": "text/plain"}),
        422: alice.acquire(name, ttl_seconds="sixty"),
    }
    released = alice.release(name, lease_id)
    answers[409] = alice.acquire(name)
    for status, answer in answers.items():
        assert answer.status == status, answer
    ids = [has_request_id(answer) for answer in [*answers.values(), released]]
    assert len(set(ids)) == len(ids)


def test_stream_carries_a_request_id(alice: Api, name: str) -> None:
    """The answer that opens an event stream carries a request id too."""
    with alice.watch_lock(name) as stream:
        assert (stream.headers.get("X-Request-Id") or "").startswith("req_")


@pytest.mark.parametrize("path", ["/health", "/no/such/route", "/locks"])
def test_callers_request_id_is_ignored(nobody: Api, path: str) -> None:
    """A request id sent by the caller is ignored; the answer has one of ours."""
    theirs = "req_" + "0" * 32
    answer = nobody.get(path, headers={"X-Request-Id": theirs})
    assert has_request_id(answer) != theirs
    assert theirs not in answer.text


# The envelope.


def test_envelope_has_exactly_its_four_fields(alice: Api, nobody: Api, name: str) -> None:
    """An error that a retry cannot help is exactly `error`, `code`, `details`, `request_id`, and has no Retry-After."""
    answers = [
        nobody.status(name),
        alice.get("/no/such/route"),
        alice.acquire(name, ttl_seconds=0),
        alice.acquire("a b"),
        alice.acquire("__election/x"),
        alice.acquire(name, ttl_seconds="x"),
        alice.session(str(uuid.uuid4())),
    ]
    for answer in answers:
        assert set(answer.json()) == ENVELOPE, answer
        assert answer.headers.get("Retry-After") is None, answer


Situation = Callable[[Api, str], Answer]
LABELS: list[tuple[str, int, str, tuple[str, ...], Situation]] = [
    (
        "no-token",
        401,
        "authentication_required",
        ("Authorization header required",),
        lambda a, n: a.get("/locks", token=None),
    ),
    (
        "unknown-token",
        401,
        "authentication_failed",
        ("Authentication failed",),
        lambda a, n: a.get("/locks", token="nobody-knows-me-1234"),
    ),
    ("reserved", 403, "forbidden", ("Forbidden",), lambda a, n: a.acquire("__election/x")),
    ("metadata", 400, "invalid_input", ("Invalid input",), lambda a, n: a.acquire(n, metadata="x" * 1025)),
    ("syntax", 400, "invalid_input", ("Invalid input",), lambda a, n: a.post(f"/locks/{n}/acquire", b"{")),
    ("method", 405, "invalid_input", ("Invalid input",), lambda a, n: a.request("PUT", "/locks")),
    ("type", 422, "invalid_input", ("Invalid input",), lambda a, n: a.acquire(n, ttl_seconds="1")),
    ("ttl", 400, "invalid_ttl", ("Invalid TTL",), lambda a, n: a.acquire(n, ttl_seconds=0)),
    ("name", 400, "invalid_lock_name", ("Invalid lock name",), lambda a, n: a.acquire("a b")),
    # OctoStore has two labels for a lease that is not current and does not say which goes where.
    ("lease", 404, "lease_not_current", ("Lease is not current", "Lock not found"), lambda a, n: a.renew(n, NO_LEASE)),
    ("route", 404, "not_found", ("Resource not found",), lambda a, n: a.get("/nowhere")),
    ("session", 404, "not_found", ("Session not found", "Resource not found"), lambda a, n: a.session(NO_LEASE)),
]


@pytest.mark.parametrize(
    ("status", "code", "labels", "situation"), [row[1:] for row in LABELS], ids=[row[0] for row in LABELS]
)
def test_label_and_code(
    alice: Api, name: str, status: int, code: str, labels: tuple[str, ...], situation: Situation
) -> None:
    """Each situation has its status, its stable code and its label."""
    assert refused(situation(alice, name), status, code)["error"] in labels


# Authentication.


@pytest.mark.parametrize(
    "value", [None, "Basic YWxpY2U6eA==", "bearer {token}", "BEARER {token}", "Token {token}", "{token}", "Bearer"]
)
def test_anything_but_bearer_counts_as_missing(alice: Api, value: str | None) -> None:
    """No `Authorization`, or one that does not start with exactly `Bearer `, is 401 `authentication_required`."""
    headers = {} if value is None else {"Authorization": value.replace("{token}", callers.ALICE)}
    refused(alice.request("GET", "/locks", token=None, headers=headers), 401, "authentication_required")


@pytest.mark.parametrize(
    "token", ["unknown-0123456789", callers.ALICE + "x", callers.ALICE[:-1], callers.ALICE.upper()]
)
def test_unknown_bearer_fails(alice: Api, token: str) -> None:
    """A bearer value nobody has is 401 `authentication_failed`, and is not repeated in the answer."""
    answer = alice.get("/locks", token=token)
    refused(answer, 401, "authentication_failed")
    assert token not in answer.text


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/locks"),
        ("GET", "/locks/a"),
        ("GET", "/locks/a/watch"),
        ("POST", "/locks/a/acquire"),
        ("POST", "/locks/a/renew"),
        ("POST", "/locks/a/release"),
        ("POST", "/sessions"),
        ("GET", f"/sessions/{NO_LEASE}"),
        ("DELETE", f"/sessions/{NO_LEASE}"),
        ("POST", f"/sessions/{NO_LEASE}/keepalive"),
    ],
)
def test_every_lock_and_session_route_wants_a_token(nobody: Api, method: str, path: str) -> None:
    """Without a token every route for locks and sessions is 401."""
    body = {"lease_id": NO_LEASE} if method == "POST" else None
    refused(nobody.request(method, path, body), 401, "authentication_required")


# The order of evaluation.


@pytest.mark.parametrize("token", [None, "unknown-0123456789"])
def test_path_and_body_come_before_the_token(alice: Api, name: str, token: str | None) -> None:
    """Path, then content type, syntax and types are judged before the token: malformed JSON with a bad token is 400."""
    path = f"{lock_path(name)}/acquire"
    refused(alice.get("/sessions/not-a-uuid", token=token), 400, "invalid_input")
    refused(alice.post("/locks/%FF/acquire", {}, token=token), 400, ("invalid_input", "invalid_lock_name"))
    refused(alice.post(path, b"{}", token=token, headers={"Content-Type": "text/plain"}), 415, "invalid_input")
    refused(alice.post(path, b"{", token=token), 400, "invalid_input")
    refused(alice.post(path, {"ttl_seconds": "x"}, token=token), 422, "invalid_input")
    refused(alice.post(f"{lock_path(name)}/renew", {}, token=token), 422, "invalid_input")


def test_content_type_then_syntax_then_types(alice: Api, name: str) -> None:
    """A body wrong in several ways is answered by the first: 415 before 400 before 422."""
    path = f"{lock_path(name)}/acquire"
    refused(alice.post(path, b'{"ttl_seconds": "x"', headers={"Content-Type": "text/plain"}), 415, "invalid_input")
    refused(alice.post(path, b'{"ttl_seconds": "x"'), 400, "invalid_input")
    refused(alice.post(path, b'{"ttl_seconds": "x"}'), 422, "invalid_input")


def test_token_comes_before_the_name_and_the_values(nobody: Api, name: str) -> None:
    """What is wrong with the name or a value is only said to those who may ask: 401 comes first."""
    refused(nobody.acquire("a b"), 401, "authentication_required")
    refused(nobody.acquire("__election/x"), 401, "authentication_required")
    refused(nobody.acquire(name, ttl_seconds=0), 401, "authentication_required")


def test_acquire_checks_in_order(alice: Api) -> None:
    """Acquire is judged in OctoStore's order: name, reserved, TTL, metadata, delay, ephemeral without session."""
    wrong: dict[str, Any] = {"ttl_seconds": 0, "metadata": "x" * 1025, "lock_delay_seconds": 31, "ephemeral": True}
    refused(alice.acquire("a b", **wrong), 400, "invalid_lock_name")
    refused(alice.acquire("__election/a", **wrong), 403, "forbidden")
    refused(alice.acquire("order", **wrong), 400, "invalid_ttl")
    for fixed, value, next_wrong in [
        ("ttl_seconds", 5, "metadata"),
        ("metadata", "m", "delay"),
        ("lock_delay_seconds", 1, "ephemeral"),
    ]:
        wrong[fixed] = value
        # The details are ours to word; that they name the field is what makes them useful.
        assert next_wrong in refused(alice.acquire("order", **wrong), 400, "invalid_input")["details"].lower()
    assert alice.status("order").json()["status"] == "free"


# Bodies.


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "application/json; charset=utf-8",
        "application/vnd.octostore+json",
        "Application/JSON",
        "application/problem+json;v=1",
    ],
)
def test_json_content_types_are_taken(alice: Api, name: str, content_type: str) -> None:
    """`application/json` and `application/*+json` are JSON, with or without parameters."""
    answer = alice.post(f"{lock_path(name)}/acquire", b"{}", headers={"Content-Type": content_type})
    assert (answer.status, answer.json()["status"]) == (200, "acquired")


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "text/plain",
        "text/json",
        "application/jsonx",
        "application/x-www-form-urlencoded",
        "application/xml",
        "json",
    ],
)
def test_other_content_types_are_415(alice: Api, name: str, content_type: str) -> None:
    """Any other content type, or none, is 415 `invalid_input`, on every route that takes a body."""
    for path in (f"{lock_path(name)}/acquire", f"{lock_path(name)}/renew", f"{lock_path(name)}/release", "/sessions"):
        refused(alice.post(path, b"{}", headers={"Content-Type": content_type}), 415, "invalid_input")


@pytest.mark.parametrize("body", [b"", b"{", b"nope", b"{} {}", b'{"ttl_seconds":}', b"{'ttl_seconds':1}"])
def test_malformed_json_is_400(alice: Api, name: str, body: bytes) -> None:
    """A body that is not JSON is 400 `invalid_input`."""
    for path in (f"{lock_path(name)}/acquire", f"{lock_path(name)}/release", "/sessions"):
        refused(alice.post(path, body), 400, "invalid_input")


@pytest.mark.parametrize("body", [b"null", b"true", b"5", b'"text"'])
def test_json_that_is_not_an_object_is_422(alice: Api, name: str, body: bytes) -> None:
    """JSON of another kind than an object is 422."""
    refused(alice.post(f"{lock_path(name)}/acquire", body), 422, "invalid_input")


@pytest.mark.parametrize("field", ["ttl_seconds", "lock_delay_seconds"])
@pytest.mark.parametrize(
    "value", [b"-1", b"1.5", b'"5"', b"4294967296", b"18446744073709551616", b"true", b"[]", b"{}"]
)
def test_integers_are_u32(alice: Api, name: str, field: str, value: bytes) -> None:
    """An integer that is negative, fractional, quoted or 2³² and more is 422."""
    refused(alice.post(f"{lock_path(name)}/acquire", b'{"%s": %s}' % (field.encode(), value)), 422, "invalid_input")


def test_largest_u32_is_a_number_like_any_other(alice: Api, name: str) -> None:
    """2³²−1 is an integer, and as a TTL out of range: 400, not 422."""
    refused(alice.acquire(name, ttl_seconds=2**32 - 1), 400, "invalid_ttl")
    refused(alice.acquire(name, lock_delay_seconds=2**32 - 1), 400, "invalid_input")
    assert alice.create_session(ttl_seconds=2**32 - 1).status == 201


@pytest.mark.parametrize("value", [-1, 1.5, "60", 2**32])
def test_session_and_renew_integers_are_u32_too(alice: Api, name: str, value: object) -> None:
    """The rule for integers holds on every route."""
    refused(alice.create_session(ttl_seconds=value), 422, "invalid_input")
    refused(alice.renew(name, NO_LEASE, ttl_seconds=value), 422, "invalid_input")


def test_optional_fields_take_null(alice: Api, name: str) -> None:
    """Every optional field accepts `null` and then has its default."""
    lease = alice.acquired(
        name, ttl_seconds=None, metadata=None, session_id=None, ephemeral=None, lock_delay_seconds=None
    )
    assert lease["metadata"] is None
    assert 55 < seconds_from_now(lease["expires_at"]) <= 61
    assert alice.renew(name, lease["lease_id"], ttl_seconds=None).status == 200
    assert alice.create_session(ttl_seconds=None).json()["keepalive_interval_secs"] == 30


def test_unknown_fields_are_ignored(alice: Api, name: str) -> None:
    """With `unknown_fields=ignore` a field nobody knows changes nothing, on every route."""
    lease = alice.acquired(name, ttl_second=5, colour="red")
    assert 55 < seconds_from_now(lease["expires_at"]) <= 61
    assert alice.renew(name, lease["lease_id"], colour="red").status == 200
    assert alice.release(name, lease["lease_id"], colour="red").status == 200
    assert alice.create_session(colour="red").status == 201


@pytest.mark.parametrize("value", ["", "x", "123", NO_LEASE + "0", "g" + NO_LEASE[1:]])
def test_uuid_fields_that_do_not_parse_are_422(alice: Api, name: str, value: str) -> None:
    """A UUID field that is not a UUID is 422."""
    refused(alice.renew(name, value), 422, "invalid_input")
    refused(alice.release(name, value), 422, "invalid_input")
    refused(alice.acquire(name, session_id=value), 422, "invalid_input")


@pytest.mark.parametrize(("method", "tail"), [("GET", ""), ("DELETE", ""), ("POST", "/keepalive")])
def test_path_ids_that_are_not_uuids_are_400(alice: Api, method: str, tail: str) -> None:
    """A session id in the path that is not a UUID is 400 `invalid_input`."""
    refused(alice.request(method, f"/sessions/not-a-uuid{tail}"), 400, "invalid_input")


def test_keepalive_needs_no_body_and_ignores_one(alice: Api) -> None:
    """Keepalive takes no body, and whatever body it gets is ignored."""
    path = f"/sessions/{alice.new_session()['session_id']}/keepalive"
    assert alice.post(path).status == 200
    assert alice.post(path, b"{not json").status == 200
    assert alice.post(path, b"hello", headers={"Content-Type": "text/plain"}).status == 200


def test_a_body_of_two_mebibytes_is_too_large(alice: Api, name: str) -> None:
    """OctoStore's largest body, 2 MiB, is 413 `invalid_input` here, with or without a Content-Length."""
    path = f"{lock_path(name)}/acquire"
    large = b"{}" + b" " * (2 * 1024 * 1024 - 2)
    answer = _raw_post(alice, path, large, "Content-Type: application/json", f"Content-Length: {len(large)}")
    refused(answer, 413, "invalid_input")
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(large), large)
    answer = _raw_post(alice, path, chunked, "Content-Type: application/json", "Transfer-Encoding: chunked")
    refused(answer, 413, "invalid_input")


# Routes and times.


@pytest.mark.parametrize(
    "path", ["/nowhere", "/lock", "/locksmith", "/sessions/a/b/c", f"/sessions/{NO_LEASE}/nothing", "/health/x"]
)
def test_unknown_routes_are_404(alice: Api, nobody: Api, path: str) -> None:
    """A path nobody serves is 404 `not_found`, with or without a token."""
    refused(alice.get(path), 404, "not_found")
    refused(nobody.get(path), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/locks", "GET"),
        ("DELETE", "/locks/a", "GET"),
        ("GET", "/locks/a/acquire", "POST"),
        ("GET", "/locks/a/renew", "POST"),
        ("DELETE", "/locks/a/release", "POST"),
        ("POST", "/locks/a/watch", "GET"),
        ("PUT", "/sessions", "POST"),
        ("PUT", f"/sessions/{NO_LEASE}", "DELETE"),
        ("GET", f"/sessions/{NO_LEASE}/keepalive", "POST"),
        ("POST", "/health", "GET"),
        ("POST", "/status", "GET"),
        ("POST", "/openapi.json", "GET"),
    ],
)
def test_wrong_method_is_405_with_allow(alice: Api, method: str, path: str, allowed: str) -> None:
    """The wrong method is 405 `invalid_input` and `Allow` names the right one."""
    answer = alice.request(method, path, {} if method in ("PUT", "POST") else None)
    refused(answer, 405, "invalid_input")
    methods = {word.strip() for word in (answer.headers.get("Allow") or "").split(",")}
    assert allowed in methods, answer
    assert method not in methods, answer


def test_empty_name_is_no_name(alice: Api) -> None:
    """`/locks//acquire` is refused. OctoStore has no route for it; ours may also call the name bad."""
    refused(alice.post("/locks//acquire", {}), (404, 400), ("not_found", "invalid_lock_name"))


def test_timestamps_are_rfc3339_in_utc(alice: Api, bob: Api, name: str) -> None:
    """Every time in an answer is RFC 3339, UTC, with `Z`."""
    lease = alice.acquired(name)
    renewed = alice.renew(name, lease["lease_id"]).json()
    session = alice.new_session()
    texts = [
        lease["expires_at"],
        bob.held(name)["expires_at"],
        renewed["expires_at"],
        alice.status(name).json()["expires_at"],
        alice.locks(prefix=name).json()["locks"][0]["expires_at"],
        session["expires_at"],
        alice.session(session["session_id"]).json()["expires_at"],
        alice.keepalive(session["session_id"]).json()["expires_at"],
    ]
    for text in texts:
        moment(text)
        assert 50 < seconds_from_now(text) < 65


def test_ids_are_uuids(alice: Api, bob: Api, name: str) -> None:
    """Lease, session and holder ids are UUIDs."""
    assert is_uuid(alice.acquired(name)["lease_id"])
    assert is_uuid(bob.held(name)["holder_id"])
    assert is_uuid(alice.new_session()["session_id"])


def test_answers_are_json(alice: Api, name: str) -> None:
    """Answers with a body say that they are JSON."""
    answers = [alice.acquire(name), alice.status(name), alice.locks(), alice.create_session()]
    assert {answer.content_type for answer in answers} == {"application/json"}


def test_escapes_in_the_path_are_decoded_once(alice: Api, name: str) -> None:
    """A name is percent-decoded exactly once, whatever the case of the digits."""
    alice.acquired(f"{name}/ä")
    assert alice.get(f"/locks/{name}%2F%C3%A4").json()["status"] == "held"
    assert alice.get(f"/locks/{name}%2f%c3%a4").json()["status"] == "held"
    refused(alice.get(f"/locks/{name}%252F%C3%A4"), 400, "invalid_lock_name")
