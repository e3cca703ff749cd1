"""Signing in at the page: with a right token, a wrong one, none; what ends it; and what strangers see."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest

from holdfast.dashboard import signin
from tests.support import callers
from tests.support.api import Api
from tests.support.checks import unique
from tests.support.server import ServerProcess, serving
from tests.support.visitor import Visitor, page_of
from tests.support.wallclock import WallClock

HOURS = 3600


@pytest.fixture(scope="module")
def server_settings() -> dict[str, object]:
    """Wrong tokens of other tests must not stand in the way."""
    return {"wrong_tokens_per_minute_max": 5, "trusted_proxies": "127.0.0.0/8", "log_requests": True}


_addresses = iter(range(1, 10_000))


@pytest.fixture
def visitor(server: ServerProcess) -> Visitor:
    """A browser at an address of its own."""
    number = next(_addresses)
    return Visitor(server, headers={"X-Forwarded-For": f"198.51.{number // 250}.{number % 250}"})


# Strangers.


def test_the_root_is_a_page_for_anyone(nobody: Api) -> None:
    """`/` without a token is 200 and HTML, for OctoStore's clients too: a field for a token, and a link to the API."""
    page = page_of(nobody.get("/"))
    assert nobody.get("/").status == 200
    assert ("form", {"class": "sign-in", "method": "post", "action": "/ui/sign-in"}) in page.tags
    assert any(tag == "a" and said.get("href") == "/docs" for tag, said in page.tags)
    field = next(said for tag, said in page.tags if tag == "input" and said.get("name") == "token")
    assert field["type"] == "password" and "required" in field


@pytest.mark.parametrize("path", ["/ui/sessions", "/ui/jobs/a", "/ui/nowhere", "/ui/"])
def test_other_pages_ask_unauthenticated_readers_to_sign_in(nobody: Api, path: str) -> None:
    """Every other page is 401 for a stranger, whether it exists or not, and shows the same field."""
    answer = nobody.get(path)
    assert answer.status == 401 and "Access token" in page_of(answer).text
    assert not answer.headers.get_all("Set-Cookie")


def test_unauthenticated_requests_read_no_state(server: ServerProcess, nobody: Api) -> None:
    """The sign-in page is the same bytes for everybody, made once: no state is looked at for it."""
    assert nobody.get("/").body == nobody.get("/").body == nobody.get("/ui/sign-in").body
    assert signin.sign_in_page(200)[1] is signin.sign_in_page(401)[1]


def test_unauthenticated_page_request_is_not_logged_as_refused(server: ServerProcess, nobody: Api) -> None:
    """Who opens a page without a token has tried nothing: the log has no refusal of it."""
    path = f"/ui/{unique()}"
    assert nobody.get(path).status == 401
    assert "refused 401" not in "\n".join(line for line in server.log.splitlines() if path in line)


# In.


def test_a_right_token_signs_in(visitor: Visitor) -> None:
    """It leads back to the list with a cookie; with the cookie every page is there, and the page says who it is for."""
    answer = visitor.sign_in(callers.READER)
    assert answer.headers["Location"] == "/"
    assert list(visitor.cookies) == [f"holdfast-{visitor.origin.rpartition(':')[2]}"]
    page = page_of(visitor.get("/"))
    assert "reader" in page.text and "Sign out" in page.text and "Access token" not in page.text
    assert visitor.get("/ui/sign-in").status == 303


def test_the_token_is_only_in_the_form(server: ServerProcess, visitor: Visitor) -> None:
    """No address, page, cookie or log has the token in it: not after signing in, and not after a mistake."""
    wrong = f"wrong-{unique()}-0123456789"
    answers = [visitor.send("/ui/sign-in", {"token": wrong}), visitor.sign_in(callers.OPERATOR)]
    answers += [visitor.get("/"), visitor.get("/ui/here"), visitor.send("/ui/sign-in", {"token": wrong})]
    output = "".join(f"{answer.text} {answer.headers}" for answer in answers) + server.log
    assert callers.OPERATOR not in output and wrong not in output


@pytest.mark.parametrize(
    ("back", "leads"),
    [
        ("/ui/jobs/a%2Fb?x=1", "/ui/jobs/a%2Fb?x=1"),
        ("/?q=prefix:a&at=now", "/?q=prefix:a&at=now"),
        ("/", "/"),
        ("", "/"),
        ("//evil.example", "/"),
        ("/\\evil.example", "/"),
        ("https://evil.example/", "/"),
        ("/ui/../../x", "/ui/../../x"),
        ("/ui//evil.example", "/ui//evil.example"),
        ("/uievil", "/"),
        ("/docs", "/"),
        ("/locks", "/"),
        ("/ui/sign-out", "/"),
        ("/ui/jobs/a\r\nSet-Cookie: x=y", "/"),
        ("/ui/jobs/é", "/"),
        ("/?q=" + "a" * 3_000, "/"),
    ],
)
def test_sign_in_redirects_to_own_page_only(visitor: Visitor, back: str, leads: str) -> None:
    """Where the reader wanted to go is kept, if it is a page of this server: never another host, never a header."""
    answer = visitor.sign_in(callers.READER, next=back)
    assert answer.headers["Location"] == leads
    assert len(answer.headers.get_all("Set-Cookie") or []) == 1


def test_the_way_back_is_in_the_page(visitor: Visitor, server: ServerProcess) -> None:
    """The sign-in page knows where it was shown, and keeps it over a mistake; without a script too."""
    asked = '/ui/jobs/a%2Fb?q="><script>'
    assert page_of(visitor.get("/ui/jobs/a%2Fb?q=x&y=1")).fields["next"] == "/ui/jobs/a%2Fb?q=x&y=1"
    again = page_of(visitor.send("/ui/sign-in", {"token": "wrong-0123456789", "next": asked}))
    assert again.fields["next"] == asked
    assert not any("<script>" in str(said) for tag, said in again.tags if tag == "script")


# Not in.


def test_sign_in_reports_and_counts_wrong_token(visitor: Visitor, server: ServerProcess) -> None:
    """It shows the field again with the reason, and counts for its address: after a few it says so."""
    for _ in range(5):
        answer = visitor.send("/ui/sign-in", {"token": "wrong-0123456789abcdef"})
        assert answer.status == 401 and "does not know the access token" in page_of(answer).text
    answer = visitor.send("/ui/sign-in", {"token": "wrong-0123456789abcdef"})
    assert answer.status == 429 and answer.headers["Retry-After"]
    page = page_of(answer)
    assert "Too many" in page.text and "Access token" in page.text
    visitor.sign_in(callers.READER)


@pytest.mark.parametrize(
    ("token", "status", "words"),
    [
        ("", 400, "Enter an access token"),
        ("   ", 400, "Enter an access token"),
        ("hold_mistyped", 401, "mistyped"),
        ("x" * 5_000, 401, "longer than any"),
        ("tökén-0123456789-…", 401, "does not know"),
        ("holds_0000_0000", 403, "secret of a session"),
        ("holdc_0000_0000", 403, "secret of a session or of a claim"),
    ],
)
def test_sign_in_rejects_malformed_token(visitor: Visitor, token: str, status: int, words: str) -> None:
    """Each mistake has its own words, on the page with the field."""
    answer = visitor.send("/ui/sign-in", {"token": token})
    assert answer.status == status and words in page_of(answer).text
    assert not visitor.cookies


def test_a_token_that_may_not_look_does_not_sign_in(tmp_path: Path) -> None:
    """Without the scope `read` there is nothing to show: the page says which scope is missing."""
    with serving(tmp_path / "data", tokens="worker:worker-0123456789abcdef:claim") as server:
        answer = Visitor(server).send("/ui/sign-in", {"token": "worker-0123456789abcdef"})
        assert answer.status == 403 and "'read'" in page_of(answer).text


@pytest.mark.parametrize(
    "said",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_sign_in_rejects_cross_origin_form(visitor: Visitor, said: dict[str, str]) -> None:
    """A form of another site cannot make our reader somebody else, even with a right token."""
    answer = visitor.send("/ui/sign-in", {"token": callers.READER}, headers=said)
    assert answer.status == 403 and "at the page itself" in page_of(answer).text
    assert not visitor.cookies


def test_only_a_form_signs_in(visitor: Visitor) -> None:
    """JSON and plain text are refused: another site could send the second without asking."""
    for kind in ("application/json", "text/plain", ""):
        answer = visitor.send("/ui/sign-in", {"token": callers.READER}, headers={"Content-Type": kind})
        assert answer.status == 415 and not visitor.cookies


# Staying.


def test_sign_in_status_names_the_principal(visitor: Visitor, nobody: Api) -> None:
    """`/ui/here` tells a page of ours whether its reader is signed in: how a link from a chat opens signed in."""
    assert nobody.get("/ui/here").json() == {"signed_in": False}
    visitor.sign_in(callers.OPERATOR)
    said = visitor.get("/ui/here").json()
    assert (said["signed_in"], said["principal"], said["scopes"]) == (True, "operator", ["read", "claim", "admin"])
    assert abs(said["server_ms"] - time.time() * 1000) < 60_000
    name = next(iter(visitor.cookies))
    last = visitor.cookies[name][-1]
    visitor.cookies[name] = visitor.cookies[name][:-1] + ("A" if last != "A" else "B")
    assert visitor.get("/ui/here").json() == {"signed_in": False}


def test_the_sign_in_page_asks_before_it_shows_its_field(nobody: Api) -> None:
    """The script that asks once is loaded before the page is drawn, and the page works without it."""
    page = page_of(nobody.get("/ui/jobs/a"))
    scripts = [said["src"] for tag, said in page.tags if tag == "script"]
    asks = next(script for script in scripts if script.endswith("/sign_in.js"))
    assert "/ui/here" in nobody.get(asks).text
    order = [tag for tag, _ in page.tags]
    assert order.index("body") > max(index for index, tag in enumerate(order) if tag == "script")


def test_a_bearer_token_reads_pages_too(alice: Api) -> None:
    """A page is shown to a token in the header, as by curl, and no cookie is given for it."""
    answer = alice.get("/")
    assert "alice" in page_of(answer).text and answer.headers.get_all("Set-Cookie") is None


def test_a_revoked_token_ends_its_sign_in(operator: Api, visitor: Visitor) -> None:
    """From the moment its token is revoked, or replaced, whoever signed in with it is out, and is told why."""
    name = unique()
    token = operator.post("/tokens", {"name": name, "scopes": ["read"]}).json()["token"]
    visitor.sign_in(token)
    assert visitor.get("/ui/here").json()["principal"] == name
    replaced = operator.post(f"/tokens/{name}/rotate", {}).json()["token"]
    answer = visitor.get("/")
    assert answer.status == 200 and "revoked, replaced" in page_of(answer).text
    assert visitor.get("/ui/nowhere").status == visitor.ask("GET", "/locks").status == 401
    visitor.sign_in(replaced)
    assert operator.delete(f"/tokens/{name}").status == 204
    assert visitor.get("/ui/here").json() == {"signed_in": False}


def test_a_stream_ends_with_its_sign_in(operator: Api, visitor: Visitor, server: ServerProcess) -> None:
    """A stream that was opened by the cookie is over when the token is."""
    name = unique()
    token = operator.post("/tokens", {"name": name, "scopes": ["read"]}).json()["token"]
    visitor.sign_in(token)
    cookie = "; ".join(f"{key}={value}" for key, value in visitor.cookies.items())
    command = ["curl", "--silent", "--no-buffer", "--max-time", "20", "--cookie", cookie, f"{server.url}/events"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as stream:
        assert stream.stdout is not None and stream.stdout.readline()
        assert operator.delete(f"/tokens/{name}").status == 204
        stream.stdout.read()
        assert stream.wait() in {0, 18}


def test_sign_in_expires_after_twelve_hours_and_is_renewed_by_use(tmp_path: Path) -> None:
    """At a real server whose clock is moved: used within twelve hours it goes on, then it is over and says so."""
    clock = WallClock(tmp_path / "shift")
    with serving(tmp_path / "data", tokens=callers.TOKENS, wrapper=clock.wrapper) as server:
        visitor = Visitor(server)
        visitor.sign_in(callers.READER)
        first = dict(visitor.cookies)
        assert visitor.get("/").headers.get_all("Set-Cookie") is None
        clock.set(11 * HOURS)
        assert visitor.get("/").headers.get_all("Set-Cookie") and visitor.cookies != first
        clock.set(13 * HOURS)
        assert visitor.get("/ui/here").json()["signed_in"] is True
        visitor.cookies = first
        answer = visitor.get("/")
        assert answer.status == 200 and "not used for 12 hours" in page_of(answer).text
        visitor.sign_in(callers.READER)
        assert "reader" in page_of(visitor.get("/")).text


# Secure.


def test_over_https_of_a_trusted_proxy_the_cookie_is_safe(server: ServerProcess) -> None:
    """A named proxy that says https gets a cookie for https alone, under the name that only its own host can set."""
    https = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "203.0.113.9"}
    visitor = Visitor(server, scheme="https", headers=https)
    answer = visitor.sign_in(callers.READER)
    field = answer.headers["Set-Cookie"]
    assert re.match(r"__Host-holdfast-\d+=s\.", field) and field.endswith("; Secure")
    assert "reader" in page_of(visitor.get("/")).text
    # A cookie that was given over plain http is not believed here.
    plain = Visitor(server)
    plain.sign_in(callers.READER)
    visitor.cookies = plain.cookies
    assert "plain http" in page_of(visitor.get("/")).text


def test_over_our_own_tls_too(tmp_path: Path) -> None:
    """With a certificate of its own the server says `Secure` by itself, whatever headers say."""
    from tests.support.reverse_proxies import make_certificate

    folder = tmp_path / "certificate"
    folder.mkdir()
    make_certificate(folder)
    settings = {"tls_cert": folder / "made.pem", "tls_key": folder / "key.pem"}
    with serving(tmp_path / "data", tokens=callers.TOKENS, settings=settings) as server:
        command = ["curl", "--silent", "--insecure", "--include", "--data", f"token={callers.READER}"]
        command += ["--header", f"Origin: {server.url}", f"{server.url}/ui/sign-in"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
        assert "HTTP/1.1 303" in answer and "set-cookie: __Host-holdfast-" in answer and "; Secure" in answer
