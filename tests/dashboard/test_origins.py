"""What changes something by the cookie comes from a page of ours, and shows it: against forms and scripts of others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.api.auth import secrets
from holdfast.api.auth.auth import Caller
from holdfast.api.auth.origins import Origins
from holdfast.api.auth.secrets import AuthorityKey, Cookie
from holdfast.config import Settings
from holdfast.http.messages import Request, request_from
from holdfast.http.proxies import Proxies
from holdfast.server.components import OPERATIONS
from holdfast.wire.problems import Problem
from tests.support import callers
from tests.support.api import Api, lock_path
from tests.support.checks import refused, unique
from tests.support.server import ServerProcess
from tests.support.visitor import Visitor, page_of

KEY = AuthorityKey(b"k" * 32)
COOKIE = Cookie("ana", 1, 1, is_https=False)
ANA = Caller("ana", frozenset({"read", "admin"}), digest="d", cookie=COOKIE)
OWN = b"http://127.0.0.1:7420"


def origins(**settings: object) -> Origins:
    known = Settings(**settings)  # type: ignore[arg-type]
    return Origins(known, Proxies(known.trusted_proxies), KEY)


def request(
    method: bytes = b"POST",
    path: bytes = b"/locks/a/revoke",
    body: bytes = b"",
    **headers: bytes,
) -> Request:
    fields = {b"host": b"127.0.0.1:7420", **{name.replace("_", "-").encode(): headers[name] for name in headers}}
    return request_from(method, path, b"", fields, body, "127.0.0.1")


# Where from.


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"sec_fetch_site": b"same-origin"}, True),
        ({"sec_fetch_site": b"same-origin", "origin": b"https://rewritten.by.a.proxy"}, True),
        ({"sec_fetch_site": b"same-site"}, False),
        ({"sec_fetch_site": b"cross-site", "origin": OWN}, False),
        ({"sec_fetch_site": b"none", "origin": OWN}, False),
        ({"origin": OWN}, True),
        ({"origin": b"http://127.0.0.1:7421"}, False),
        ({"origin": b"https://127.0.0.1:7420"}, False),
        ({"origin": b"http://127.0.0.1"}, False),
        ({"origin": b"http://127.0.0.1:7420.evil.example"}, False),
        ({"origin": b"http://evil.example"}, False),
        ({"origin": b""}, False),
        ({"origin": b"null"}, None),
        ({}, None),
    ],
)
def test_request_origin_is_classified(headers: dict[str, bytes], expected: bool | None) -> None:
    """What the browser says of the site counts; where it says nothing, the origin must be the very address asked."""
    assert origins().is_same_origin(request(**headers)) is expected


def test_the_scheme_is_part_of_the_origin() -> None:
    """Behind a proxy that speaks https, and is trusted, a page over https is ours, and one over http is not."""
    proxied = origins(trusted_proxies="127.0.0.1")
    https = {"x_forwarded_proto": b"https"}
    assert proxied.is_same_origin(request(origin=b"https://127.0.0.1:7420", **https)) is True
    assert proxied.is_same_origin(request(origin=OWN, **https)) is False
    assert origins().is_same_origin(request(origin=b"https://127.0.0.1:7420", **https)) is False


def test_the_public_address_is_ours_too() -> None:
    """A proxy may call us by another name than the browser called it: the public address is the one in the browser."""
    known = origins(public_url="https://Locks.example/holdfast")
    assert known.is_same_origin(request(origin=b"https://locks.example")) is True
    assert known.is_same_origin(request(origin=b"https://locks.example.evil")) is False


def test_forwarded_request_has_scheme_of_first_node() -> None:
    """Of a request that a follower passed on, the scheme is what the client spoke with that node."""
    passed_on = request(origin=b"https://127.0.0.1:7420")
    passed_on.scheme = "https"
    assert origins().is_same_origin(passed_on) is True and origins().is_https(passed_on)


# Who wrote it.

PAGE = {"origin": OWN, "x_holdfast_page": b"1"}
FIELD = secrets.form_token(KEY, COOKIE, "d").encode()
FORM = {"content_type": b"application/x-www-form-urlencoded; charset=utf-8"}


@pytest.mark.parametrize(
    "asked",
    [
        request(**PAGE),
        request(b"DELETE", b"/tokens/a", **PAGE),
        request(b"GET", b"/locks"),
        request(b"HEAD", b"/locks", sec_fetch_site=b"same-origin", sec_fetch_mode=b"cors"),
        request(b"GET", b"/", sec_fetch_site=b"none", sec_fetch_mode=b"navigate"),
        request(b"GET", b"/ui/jobs/a", sec_fetch_site=b"same-site", sec_fetch_mode=b"navigate"),
        request(path=b"/ui/jobs/a/revoke", body=b"reason=x&form_token=" + FIELD, origin=OWN, **FORM),
        request(path=b"/ui/jobs/a/revoke", body=b"form_token=" + FIELD, origin=b"null", **FORM),
        request(path=b"/ui/jobs/a/revoke", body=b"form_token=" + FIELD, **FORM),
    ],
)
def test_requests_of_our_pages_are_accepted(asked: Request) -> None:
    """Scripts show the header, forms the field; a form may come from nowhere. Looks need neither."""
    origins().check(asked, ANA)


@pytest.mark.parametrize(
    "asked",
    [
        request(b"GET", b"/ui/live", sec_fetch_site=b"same-site", sec_fetch_mode=b"no-cors"),
        request(b"GET", b"/ui/live", sec_fetch_site=b"same-site", sec_fetch_mode=b"navigate"),
        request(b"GET", b"/events", sec_fetch_site=b"same-site", sec_fetch_mode=b"navigate"),
        request(b"GET", b"/backup", sec_fetch_site=b"cross-site", sec_fetch_mode=b"navigate"),
        request(b"GET", b"/", sec_fetch_site=b"same-site", sec_fetch_mode=b"navigate", sec_fetch_dest=b"iframe"),
        request(b"GET", b"/locks", sec_fetch_site=b"cross-site", sec_fetch_mode=b"no-cors"),
        request(b"GET", b"/locks", sec_fetch_site=b"same-site"),
        request(origin=OWN),
        request(x_holdfast_page=b"1"),
        request(origin=b"null", x_holdfast_page=b"1"),
        request(origin=b"http://evil.example", x_holdfast_page=b"1"),
        request(origin=OWN, x_holdfast_page=b"0"),
        request(sec_fetch_site=b"same-site", x_holdfast_page=b"1"),
        request(b"DELETE", b"/tokens/a"),
        request(b"PUT", b"/ui/jobs/a", origin=OWN),
        request(body=b"form_token=" + FIELD, origin=OWN, **FORM),
        request(path=b"/ui/jobs/a/revoke", body=b"form_token=" + FIELD, origin=b"http://evil.example", **FORM),
        request(path=b"/ui/jobs/a/revoke", body=b"form_token=" + FIELD, sec_fetch_site=b"cross-site", **FORM),
        request(path=b"/ui/jobs/a/revoke", body=b"form_token=" + FIELD, origin=OWN, content_type=b"text/plain"),
        request(path=b"/ui/jobs/a/revoke", body=b"form_token=x", origin=OWN, **FORM),
        request(path=b"/ui/jobs/a/revoke", body=b"reason=x", origin=OWN, **FORM),
        request(path=b"/ui/jobs/a/revoke", origin=OWN, **FORM),
    ],
)
def test_cross_origin_requests_are_refused(asked: Request) -> None:
    """Without both halves it is refused, whichever is missing: no other site can have both, or load our data."""
    with pytest.raises(Problem) as raised:
        origins().check(asked, ANA)
    assert (raised.value.status, raised.value.code) == (403, "forbidden")


def test_plain_cookie_is_rejected_over_https() -> None:
    """Anybody on the way may plant a cookie over plain http: where https is spoken it signs nobody in."""
    proxied = origins(trusted_proxies="127.0.0.1")
    with pytest.raises(Problem) as raised:
        proxied.check(request(b"GET", x_forwarded_proto=b"https"), ANA)
    assert raised.value.status == 401
    proxied.check(request(b"GET", x_forwarded_proto=b"http"), ANA)


# At a real server.


@pytest.fixture
def visitor(server: ServerProcess) -> Visitor:
    """Somebody with all rights, signed in."""
    visitor = Visitor(server)
    visitor.sign_in(callers.OPERATOR)
    return visitor


def test_a_page_of_ours_may_use_the_api(visitor: Visitor, alice: Api) -> None:
    """What scripts of the page ask is answered by the same API as everybody's: claims, ends, tokens, lists."""
    name = unique()
    alice.acquired(name)
    assert visitor.ask("POST", f"{lock_path(name)}/revoke", {"reason": "from the page"}).status == 204
    assert visitor.ask("POST", f"{lock_path(name)}/acquire", {"ttl_seconds": 60}).json()["status"] == "acquired"
    assert visitor.ask("GET", "/locks").status == 200


def changing() -> list[tuple[str, str]]:
    """Every route that changes something and asks who does it by a token or a cookie."""
    return [
        (row.method, row.path)
        for row in OPERATIONS
        if row.method != "GET" and row.scope is not None and "gateway" not in str(row.reader)
    ]


@pytest.mark.parametrize(("method", "path"), changing())
def test_every_route_refuses_cross_origin_requests(server: ServerProcess, method: str, path: str) -> None:
    """With the cookie and only one half, or from another origin, every route that changes something refuses."""
    visitor = Visitor(server)
    visitor.sign_in(callers.OPERATOR)
    where = path.replace("{name}", "n").replace("{id}", "00000000-0000-0000-0000-000000000001")
    body = b"{}" if not where.startswith("/ui/") else b"reason=x"
    kind = {"Content-Type": "application/json" if body == b"{}" else "application/x-www-form-urlencoded"}
    for said in (
        {"Origin": "", "X-Holdfast-Page": ""},
        {"X-Holdfast-Page": ""},
        {"Origin": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        answer = visitor.ask(method, where, body, headers={**kind, **said})
        # What is wrong with the body may be told first: it is read before anybody is asked who they are.
        assert answer.status in {400, 403, 422}, (said, answer)
        if answer.status != 403:
            assert re.search(r'"code":"invalid_\w+"', answer.text), answer


def test_a_token_needs_no_origin(operator: Api, alice: Api) -> None:
    """Programs with a token are asked for nothing of this, from wherever they say to come."""
    name = unique()
    alice.acquired(name)
    said = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
    assert operator.post(f"{lock_path(name)}/revoke", {"reason": "x"}, headers=said).status == 204


def test_rights_are_those_of_the_token(server: ServerProcess, alice: Api) -> None:
    """Who signed in with a token that may only read changes nothing, with whatever headers."""
    name = unique()
    alice.acquired(name)
    reader = Visitor(server)
    reader.sign_in(callers.READER)
    problem = refused(reader.ask("POST", f"{lock_path(name)}/revoke", {"reason": "x"}), 403, "forbidden")
    assert "'admin'" in problem["details"]
    refused(reader.ask("POST", f"{lock_path(name)}/acquire", {}), 403, "forbidden")
    assert reader.ask("GET", lock_path(name)).json()["status"] == "held"


def test_a_large_body_by_cookie_is_asked_for_its_origin_before_it_is_read(visitor: Visitor) -> None:
    """A body over 16 KiB is taken from a page of ours, and from nobody else who has the cookie."""
    fields = {"all": [f"{'n' * 60}-{number}" for number in range(400)]}
    refused(visitor.ask("POST", "/claims", fields, headers={"Origin": "http://evil.example"}), 403, "forbidden")


def test_sign_out_needs_the_field(visitor: Visitor) -> None:
    """A page of another site cannot sign our reader out; a page of ours can."""
    assert visitor.send("/ui/sign-out", {}).status == 403
    assert visitor.send("/ui/sign-out", {"form_token": "x"}, headers={"Origin": "http://evil.example"}).status == 403
    assert visitor.cookies
    field = visitor.form_token()
    assert visitor.send("/ui/sign-out", {"form_token": field}).status == 303
    assert not visitor.cookies
    assert "Access token" in page_of(visitor.get("/")).text


def test_the_field_of_another_sign_in_is_refused(server: ServerProcess, visitor: Visitor, tmp_path: Path) -> None:
    """A field that somebody else has read in a page of their own does not help them with ours."""
    other = Visitor(server)
    other.sign_in(callers.ALICE)
    answer = visitor.send("/ui/sign-out", {"form_token": other.form_token()})
    assert answer.status == 403 and "not of your sign-in" in page_of(answer).text
