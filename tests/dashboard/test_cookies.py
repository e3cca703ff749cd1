"""The cookie of the page: what it says, whose it is, how long it is good, and under which name a browser keeps it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.auth import secrets
from holdfast.api.auth.auth import Auth, StaticTokens
from holdfast.api.auth.secrets import LIFE_SECONDS, LIFETIME_MS, SIGNED_IN_MS_MAX, AuthorityKey, Cookie
from holdfast.core.state import State
from holdfast.http.messages import COOKIE, clear_cookie, cookie_credential, request_from, set_cookie
from holdfast.wire.problems import Problem

KEY = AuthorityKey(b"k" * 32)
OTHER_KEY = AuthorityKey(b"o" * 32)
NOW_MS = 1_800_000_000_000
ANA = Cookie("ana", NOW_MS, NOW_MS, is_https=False)
TOKEN, NEXT_TOKEN = "ana:0123456789abcdef-ana:read+admin", "ana:fedcba9876543210-ana:read"


def auth_of(tokens: str = TOKEN, key: AuthorityKey = KEY) -> Auth:
    return Auth(StaticTokens.parse(tokens), key)


def value_of(cookie: Cookie = ANA, tokens: str = TOKEN, key: AuthorityKey = KEY) -> str:
    owner = auth_of(tokens).static.of(cookie.principal)
    assert owner is not None
    return secrets.sign(key, cookie, owner.digest)


def shown(value: str) -> bytes:
    return COOKIE + value.encode()


def refusal_of(auth: Auth, value: str, wall_ms: int = NOW_MS) -> Problem:
    with pytest.raises(Problem) as raised:
        auth.identify(shown(value), State(), wall_ms)
    assert (raised.value.status, raised.value.code) == (401, "authentication_required")
    return raised.value


def test_cookie_identifies_its_principal() -> None:
    """A cookie stands for the token it was made for, with its name and scopes, and is told from the token itself."""
    caller = auth_of().identify(shown(value_of()), State(), NOW_MS)
    assert (caller.principal, caller.scopes, caller.cookie) == ("ana", frozenset({"read", "admin"}), ANA)
    assert caller.secret == "signed in at the page"


def test_a_cookie_of_a_neighbour_does_not_hide_ours() -> None:
    """Over plain http another server on the host can set one of our name, which browsers send first: ours is found."""
    auth, value = auth_of(), value_of()
    sent = b"; ".join(
        b"holdfast-7420=" + each for each in (b"p.eA.x", value_of(key=OTHER_KEY).encode(), value.encode())
    )
    authorization = cookie_credential({b"host": b"127.0.0.1:7420", b"cookie": sent})
    assert auth.identify(authorization, State(), NOW_MS).principal == "ana"


def test_cookie_expires_after_twelve_hours_without_use() -> None:
    """It is good to the last millisecond of its life, and not beyond; one that was renewed counts from then."""
    auth, value = auth_of(), value_of()
    assert auth.identify(shown(value), State(), NOW_MS + LIFETIME_MS - 1).principal == "ana"
    assert "12 hours" in refusal_of(auth, value, NOW_MS + LIFETIME_MS).details
    renewed = ANA.renewed(NOW_MS + LIFETIME_MS - 1)
    assert auth.identify(shown(value_of(renewed)), State(), NOW_MS + LIFETIME_MS).cookie == renewed


def test_renewing_has_an_end() -> None:
    """However often it is renewed, a sign-in is over after thirty days."""
    late = ANA.renewed(NOW_MS + SIGNED_IN_MS_MAX - 1)
    assert auth_of().identify(shown(value_of(late)), State(), NOW_MS + SIGNED_IN_MS_MAX - 1).cookie == late
    refusal_of(auth_of(), value_of(late), NOW_MS + SIGNED_IN_MS_MAX)


@pytest.mark.parametrize("field", ["made_ms", "signed_in_ms"])
def test_cookie_from_a_clock_that_was_ahead_is_refused(field: str) -> None:
    """Made, or signed in for, more than a minute after now, it would outlive its end by as much."""
    auth = auth_of()
    for ahead_ms in (60_001, LIFETIME_MS, 2 * SIGNED_IN_MS_MAX):
        refusal_of(auth, value_of(msgspec.structs.replace(ANA, **{field: NOW_MS + ahead_ms})))
    set_back = msgspec.structs.replace(ANA, **{field: NOW_MS + 60_000})
    assert auth.identify(shown(value_of(set_back)), State(), NOW_MS).principal == "ana"


def test_cookie_is_renewed_after_ten_minutes() -> None:
    """A young one is left as it is; one that is older, or from a clock that was set back, is made anew."""
    assert not ANA.needs_renewal(NOW_MS + 599_999)
    assert ANA.needs_renewal(NOW_MS + 600_000)
    assert ANA.needs_renewal(NOW_MS - 1)


def test_cookie_ends_with_its_token() -> None:
    """When another token has the name, or none, the cookie of the old one says that it is over."""
    assert "revoked, replaced" in refusal_of(auth_of(NEXT_TOKEN), value_of()).details
    assert "revoked, replaced" in refusal_of(auth_of("ben:0123456789abcdef-ben"), value_of()).details


def test_cookie_of_another_server_is_unauthenticated() -> None:
    """A cookie of another server on the same host is no guess: whoever has it is a stranger, and is not counted."""
    assert "none of this server's" in refusal_of(auth_of(), value_of(key=OTHER_KEY)).details


@given(at=st.integers(0), change=st.integers(1, 63))
def test_changed_cookie_is_rejected(at: int, change: int) -> None:
    """With any character replaced by another it lets nobody in."""
    value, letters = value_of(), "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    index = at % len(value)
    other = letters[(letters.find(value[index]) + change) % len(letters)]
    refusal_of(auth_of(), value[:index] + other + value[index + 1 :])


@given(st.binary(max_size=300))
def test_malformed_cookie_is_rejected(nonsense: bytes) -> None:
    """Whatever stands in its place: a refusal that says to sign in, and nothing else."""
    with pytest.raises(Problem) as raised:
        auth_of().identify(COOKIE + nonsense, State(), NOW_MS)
    assert raised.value.status == 401


@pytest.mark.parametrize(
    ("change", "what"),
    [({"principal": "ben"}, "whose"), ({"made_ms": NOW_MS + 1}, "when"), ({"is_https": True}, "over what")],
)
def test_cookie_payload_is_signed(change: dict[str, object], what: str) -> None:
    """Whose it is, when it was made and over what it was given cannot be changed: each is under the signature."""
    tokens = f"{TOKEN},ben:0123456789abcdef-ben"
    lie = secrets.sign(OTHER_KEY, msgspec.structs.replace(ANA, **change), "").split(".")
    refusal_of(auth_of(tokens), ".".join([*lie[:2], value_of().split(".")[2]]))


def test_the_field_of_a_form_is_of_one_sign_in() -> None:
    """It stays the same when the cookie is renewed, and is another for another sign-in, token or principal."""
    field = secrets.form_token(KEY, ANA, "digest")
    assert field == secrets.form_token(KEY, ANA.renewed(NOW_MS + 1), "digest")
    again = Cookie("ana", NOW_MS + 1, NOW_MS + 1, is_https=False)
    ben = Cookie("ben", NOW_MS, NOW_MS, is_https=False)
    others = {
        secrets.form_token(KEY, again, "digest"),
        secrets.form_token(KEY, ben, "digest"),
        secrets.form_token(KEY, ANA, "next"),
        secrets.form_token(OTHER_KEY, ANA, "digest"),
    }
    assert len(others | {field}) == 5


# In a head.


def head(cookie: bytes, host: bytes = b"holdfast.test", **more: bytes) -> dict[bytes, bytes]:
    return {b"host": host, b"cookie": cookie, **{name.encode(): value for name, value in more.items()}}


def authorization(fields: dict[bytes, bytes]) -> bytes | None:
    return request_from(b"GET", b"/", b"", fields, b"").authorization


def test_a_token_counts_before_a_cookie() -> None:
    """A request with a token is that token's, whatever cookie comes along."""
    assert authorization(head(b"holdfast=p.a.b", authorization=b"Bearer x")) == b"Bearer x"
    assert authorization(head(b"holdfast=p.a.b")) == b"Cookie p.a.b"
    assert authorization({b"host": b"holdfast.test"}) is None


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        (b"holdfast=p.a.b", b"p.a.b"),
        (b"x=1; holdfast=p.a.b; y=2", b"p.a.b"),
        (b"x=1, holdfast=p.a.b", b"p.a.b"),
        (b"holdfast=p.a.b; __Host-holdfast=s.c.d", b"s.c.d"),
        (b"holdfast=s.a.b", None),
        (b"__Host-holdfast=p.a.b", None),
        (b"xholdfast=p.a.b", None),
        (b"holdfast-7420=p.a.b", None),
        (b"holdfast=", None),
        (b"holdfast", None),
        (b"holdfast=p." + b"a" * 300, None),
        (b"holdfast=p.a.b; " + b"x" * 20_000, None),
    ],
)
def test_cookie_is_found_by_its_name(sent: bytes, found: bytes | None) -> None:
    """It is found among others, the safe one first; one under the name of the other kind is none."""
    assert authorization(head(sent)) == (None if found is None else b"Cookie " + found)


def test_servers_on_one_host_have_cookies_of_their_own() -> None:
    """The port is part of the name: browsers send the cookies of a host to all of its ports."""
    sent = b"holdfast-7420=p.a.b; holdfast-7421=p.c.d; holdfast=p.e.f"
    assert authorization(head(sent, b"localhost:7420")) == b"Cookie p.a.b"
    assert authorization(head(sent, b"[::1]:7421")) == b"Cookie p.c.d"
    assert authorization(head(sent, b"localhost")) == b"Cookie p.e.f"
    assert authorization(head(sent, b"[::1]")) == b"Cookie p.e.f"
    name, field = set_cookie({b"host": b"localhost:7420"}, "value", LIFE_SECONDS, is_https=ANA.is_https)
    assert (name, field.partition(b"=")[0]) == (b"set-cookie", b"holdfast-7420")


def test_how_it_is_given() -> None:
    """No script reads it, no other site sends it, and over https it is a cookie of this very host, for https alone."""
    _, plain = set_cookie({b"host": b"a"}, "value", LIFE_SECONDS, is_https=ANA.is_https)
    assert plain == b"holdfast=value; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict"
    safe = msgspec.structs.replace(ANA, is_https=True)
    _, over_https = set_cookie({b"host": b"a"}, "value", LIFE_SECONDS, is_https=safe.is_https)
    assert over_https == b"__Host-holdfast=value; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict; Secure"
    _, forgotten = clear_cookie({b"host": b"a"}, is_https=False)
    assert forgotten == b"holdfast=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict"
