"""What a browser may make its user ask: only pages of ours may use our cookie, and only by one of our names.

A browser adds the cookie by itself, so the cookie does not say who wanted the request. `SameSite=Strict` keeps it away
from requests of other sites, and a change by a cookie needs both of these as well:

    where from    `Sec-Fetch-Site: same-origin`, which no page can write; without it, as over plain http, `Origin` must
                  be the address that was asked
    who wrote it  the header `X-Holdfast-Page: 1`, which no form can send and no other site may; or, in a form without a
                  script, a field that only our pages have (`cookies.form_token`). Such a form may have `Origin: null`,
                  as with `Referrer-Policy: no-referrer`

Against DNS rebinding, a name in `Host` passes only if it is one of ours. An IP address passes: no DNS is asked.
"""

from __future__ import annotations

import re
import socket
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import parse_qsl, urlsplit

from holdfast.api.auth.auth import Caller
from holdfast.api.auth.secrets import AuthorityKey, form_token, secrets_equal
from holdfast.config import Settings, parse_hosts
from holdfast.http.messages import Request
from holdfast.http.proxies import Proxies
from holdfast.wire.problems import Problem

ACCEPTED_MAX = 1_000  # How many accepted headers are cached.

_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]{1,254}))(?::[0-9]{0,5})?", re.IGNORECASE)
_LOOPBACK = frozenset({"localhost", ".localhost", "ip6-localhost", "ip6-loopback"})
FORM = b"application/x-www-form-urlencoded"
FORM_FIELD = "form_token"
FORM_FIELDS_MAX = 64
OWN_PATHS = b"/ui/"  # Forms are sent to paths below it, and nowhere else.
_SAFE_METHODS = frozenset({b"GET", b"HEAD"})
_STREAM = b"/ui/live"
_OTHER_SITES = frozenset({b"same-site", b"cross-site"})
_NOT_OURS = "This request came by the page's cookie, but not from the page: that is refused. Programs send a token."


class OwnOrigin:
    def __init__(self, settings: Settings, proxies: Proxies) -> None:
        self._own_scheme = "http" if settings.tls_cert is None else "https"
        self._proxies = proxies
        public = urlsplit(settings.public_url)
        self._public = f"{public.scheme}://{public.netloc}".lower().encode() if public.netloc else None

    def is_https(self, request: Request) -> bool:
        """Tell whether the client speaks https: with us, with a proxy that we trust, or with the node that it asked."""
        return (request.scheme or self._proxies.scheme_of(request, self._own_scheme)) == "https"

    def is_same_origin(self, request: Request) -> bool | None:
        """Tell whether a request was made by a page of ours; None if its browser says nothing of that."""
        header = request.headers.get
        site, origin = header(b"sec-fetch-site"), header(b"origin")
        if site is not None:
            return site == b"same-origin"
        if origin is None or origin == b"null":
            return None
        scheme = b"https" if self.is_https(request) else b"http"
        ours = b"%b://%b" % (scheme, header(b"host", b"").lower())
        return origin.lower() in {ours, self._public}


class Origins(OwnOrigin):
    def __init__(self, settings: Settings, proxies: Proxies, key: AuthorityKey) -> None:
        super().__init__(settings, proxies)
        self._key = key

    def check(self, request: Request, caller: Caller) -> None:
        cookie = caller.cookie
        if cookie is None:
            return
        if not cookie.is_https and self.is_https(request):
            raise Problem("authentication_required", "This sign-in was made over plain http: sign in again.")
        if request.method in _SAFE_METHODS:
            self._check_fetch(request)
            return
        is_own = self.is_same_origin(request)
        if is_own and request.headers.get(b"x-holdfast-page") == b"1":
            return
        if is_own is not False and request.path.startswith(OWN_PATHS) and is_form(request):
            sent = dict(fields_of(request)).get(FORM_FIELD, "")
            if secrets_equal(sent, form_token(self._key, cookie, caller.digest)):
                return
            raise Problem("forbidden", "This form is not of your sign-in: open the page again, and send it from there.")
        raise Problem("forbidden", _NOT_OURS)

    def _check_fetch(self, request: Request) -> None:
        """Raise if another origin loads something of ours, as a picture, a script or a frame.

        It could use up the streams, or measure response times. A link to a page of ours may be
        followed, but not to a stream or a backup.
        """
        header = request.headers.get
        if header(b"sec-fetch-site") not in _OTHER_SITES:
            return
        is_followed = header(b"sec-fetch-mode") == b"navigate" and header(b"sec-fetch-dest", b"document") == b"document"
        is_page = request.path == b"/" or request.path.startswith(OWN_PATHS)
        if not is_followed or not is_page or request.path == _STREAM:
            raise Problem("forbidden", _NOT_OURS)


def is_form(request: Request) -> bool:
    return (request.content_type or b"").split(b";", 1)[0].strip().lower() == FORM


def fields_of(request: Request) -> list[tuple[str, str]]:
    try:
        return parse_qsl(
            request.body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=FORM_FIELDS_MAX
        )
    except ValueError:
        raise Problem("invalid_input", "The body is not that of a form.") from None


class Hosts:
    def __init__(self, allowed: str, listens_on: str, called: str | None = None) -> None:
        """`allowed` is the setting `allowed_hosts`; the others are the hosts of `listen` and `public_url`."""
        machine = socket.gethostname().lower()
        own = {machine, machine.partition(".")[0], listens_on.lower(), (called or listens_on).lower()}
        self._names = parse_hosts(allowed) | _LOOPBACK | own
        self.accepted: set[bytes | None] = {None}  # Accepted. None: HTTP/1.0 has no `Host`, and no browser speaks it.

    def check(self, host: bytes) -> None:
        name = _read(host)
        if not self._is_ours(name):
            raise Problem(  # Without its port: so it can be copied into the setting.
                "misdirected",
                f"This server does not answer to the name {name!r}. If that is its name, add it to the setting"
                " allowed_hosts (HOLDFAST_ALLOWED_HOSTS) and start the server again.",
            )
        if len(self.accepted) >= ACCEPTED_MAX:
            self.accepted.clear()
        self.accepted |= {None, host}

    def _is_ours(self, name: str | None) -> bool:
        """Tell whether a name is one of ours, or below one that stands with a dot before it. None: an address."""
        if name is None or "*" in self._names or name in self._names or f".{name}" in self._names:
            return True
        labels = name.split(".")
        return any("." + ".".join(labels[start:]) in self._names for start in range(1, len(labels)))


def _read(host: bytes) -> str | None:
    found = _HOST.fullmatch(host.decode("latin-1"))
    try:
        if found is None:
            raise ValueError(host)
        if found[1] is not None:
            IPv6Address(found[1])
            return None
    except ValueError:
        raise Problem(
            "invalid_input", "The Host header is not a name or an IP address with or without a port."
        ) from None
    name: str = found[2].lower().removesuffix(".")
    try:
        IPv4Address(name)
    except ValueError:
        return name
    return None
