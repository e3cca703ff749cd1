"""Minimal client for the guard: finds server and token, and sends one request at a time.

It follows the client's rules (`client/config.py`; a test compares them): HOLDFAST_URL, else `client.toml`, else the
default. The token of `client.toml` is sent only to the server named there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

from holdfast.client import minihttp
from holdfast.client.minihttp import Address, LostError, UnreachableError
from holdfast.privatefiles import NotOursError, read_ours

DEFAULT_URL = "http://127.0.0.1:7420"
TOKEN_BYTES_MAX = 4_096
_SWITCH = frozenset({"1", "true", "yes", "on"})
_UNAVAILABLE_STATUSES = frozenset({502, 503, 504})
_SAFE = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."


class UnavailableError(Exception):
    """The server is unreachable or unavailable; the request may or may not have taken effect."""


class RefusedError(Exception):
    """The server refused, or the configuration is unusable. Waiting does not help; the text says what would."""


class Server:
    def __init__(self, urls: str, origin: str, ca_file: str, bearer: str) -> None:
        self.urls, self.ca_file, self.bearer = urls, ca_file, bearer
        try:
            self.addresses: list[Address] = minihttp.addresses(urls, origin, ca_file)
        except UnreachableError as error:
            raise RefusedError(str(error)) from None

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        key: str = "",
        seconds: float = minihttp.SECONDS_MAX,
    ) -> tuple[int, dict[str, object]]:
        headers = f"Authorization: Bearer {self.bearer}\r\n" + (f"Idempotency-Key: {key}\r\n" if key else "")
        content = b"" if body is None else json.dumps(body).encode()
        try:
            status, answer, _ = minihttp.ask(self.addresses, method, path, headers, content, seconds=seconds)
        except (LostError, UnreachableError) as error:
            raise UnavailableError(str(error)) from None
        if status in _UNAVAILABLE_STATUSES:
            raise UnavailableError(f"it answers that it cannot serve now (HTTP {status})")
        try:
            found = json.loads(answer) if answer else {}
        except (ValueError, RecursionError):
            found = None
        found = {} if found is None and status == 200 else found  # noqa: PLR2004 - the answer to a release
        if not isinstance(found, dict):
            raise RefusedError(f"another program answers at {self.urls} (HTTP {status}); look at HOLDFAST_URL")
        return status, found


def refusal(status: int, reply: Mapping[str, object]) -> RefusedError:
    words = str(reply.get("details") or reply.get("error") or "it gave no reason").rstrip(".")
    hint = "; look at HOLDFAST_TOKEN and HOLDFAST_TOKEN_FILE, or ask `holdfast doctor`" if status in {401, 403} else ""
    return RefusedError(f"the server refused (HTTP {status}): {words}{hint}")


def found_by(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the inputs that determine the server: the variable, and a fingerprint of `client.toml`."""
    try:
        stored = os.stat(minihttp.file_of(environment))
    except OSError:
        return environment.get("HOLDFAST_URL", ""), ""
    return environment.get("HOLDFAST_URL", ""), f"{stored.st_ino}:{stored.st_mtime_ns}:{stored.st_size}"


def find(environment: Mapping[str, str]) -> Server:
    try:
        stored = minihttp.StoredConfig(environment)
    except ValueError as error:
        raise RefusedError(str(error)) from None
    named = environment.get("HOLDFAST_URL", "")
    origin = "HOLDFAST_URL" if named else stored.file if stored.url else "the default"
    server = Server(named or stored.url or DEFAULT_URL, origin, "", "")
    known = {each.endpoint for each in Server(stored.url or DEFAULT_URL, stored.file, "", "").addresses}
    is_stored_server = known.issuperset(each.endpoint for each in server.addresses)
    ca_file = os.path.expanduser(environment.get("HOLDFAST_CA_FILE", "")) or (
        stored.ca_file if is_stored_server else ""
    )
    switch = environment.get("HOLDFAST_ALLOW_INSECURE_HTTP", "").strip().lower()
    allowed = switch in _SWITCH if switch else is_stored_server and stored.allow_insecure_http
    open_ones = [each.authority for each in server.addresses if not each.is_private]
    if open_ones and not allowed:
        raise RefusedError(
            f"the access token would travel to {', '.join(open_ones)} unencrypted; use https://, or set"
            " HOLDFAST_ALLOW_INSECURE_HTTP=1 if that is meant"
        )
    return Server(server.urls, origin, ca_file, _token(environment, stored.token_file if is_stored_server else ""))


def _token(environment: Mapping[str, str], stored_file: str) -> str:
    token = environment.get("HOLDFAST_TOKEN", "").strip()
    file = os.path.expanduser(environment.get("HOLDFAST_TOKEN_FILE", "")) or stored_file
    if not token and file:
        try:
            token = read_ours(file, TOKEN_BYTES_MAX, root_shares=True).decode("ascii", "replace").strip()
        except OSError as error:
            raise RefusedError(f"the token file {file} cannot be read: {error.strerror}") from None
        except NotOursError as error:
            raise RefusedError(f"the token file {error}") from None
    if not token:
        raise RefusedError("there is no access token; set HOLDFAST_TOKEN_FILE, or `token_file` in client.toml")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise RefusedError("what is given as the access token is none: it has blanks or other characters in it")
    return token


def quoted(name: str) -> str:
    """Percent-encode a name as one path segment (N2); a lone surrogate becomes `?`, which the server refuses."""
    return "".join(chr(byte) if chr(byte) in _SAFE else f"%{byte:02X}" for byte in name.encode("utf-8", "replace"))
