"""Which server, and with which token: from the arguments, else the environment, else the user's `client.toml`.

The token in `client.toml` belongs to the server named there: it is never sent to another one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import msgspec

from holdfast import clientconfig
from holdfast.errors import SettingsError

DEFAULT_URL = "http://127.0.0.1:7420"


class Target(msgspec.Struct, frozen=True):
    """A server and what to show it. `…_origin` says where each came from."""

    url: str
    url_origin: str
    token: str | None
    token_origin: str
    token_file: Path | None = None
    """Where the token was read, and will be read again when the server refuses it: it may have been rotated."""

    def __repr__(self) -> str:
        """Show everything but the token."""
        return f"Target({self.url!r} from {self.url_origin}, token from {self.token_origin})"


def find(
    *, url: str | None, token_file: Path | None, environment: Mapping[str, str], token: str | None = None
) -> Target:
    """Put the target together. Raises `SettingsError` for anything that cannot be used."""
    kept = clientconfig.read(environment)
    place = str(clientconfig.client_config_dir(environment) / clientconfig.CONFIG_NAME)
    for text, origin in ((url, "the given url"), (environment.get("HOLDFAST_URL"), "HOLDFAST_URL"), (kept.url, place)):
        if text:
            found, url_origin = _checked_url(text, origin), origin
            break
    else:
        found, url_origin = DEFAULT_URL, "the default"
    token, token_origin, file = _find_token(token, token_file, environment)
    if token is None and file is None and (kept.url is None or _same_server(kept.url, found)):
        token_origin, file = (token_origin, None) if kept.token_file is None else (place, kept.token_file)
    if file is not None:
        token = clientconfig.read_token(file)
    return _guarded(Target(found, url_origin, token, token_origin, file))


def is_loopback(url: str) -> bool:
    """Does this address never leave the machine?"""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _find_token(
    token: str | None, token_file: Path | None, environment: Mapping[str, str]
) -> tuple[str | None, str, Path | None]:
    """Return the token, where it is from, and the file to read it from if it is in one."""
    if token is not None:
        return _checked_token(token, "the given token"), "the given token", None
    if token_file is not None:
        return None, "the given token file", token_file
    if text := environment.get("HOLDFAST_TOKEN", "").strip():
        return _checked_token(text, "HOLDFAST_TOKEN"), "HOLDFAST_TOKEN", None
    if named := environment.get("HOLDFAST_TOKEN_FILE"):
        return None, "HOLDFAST_TOKEN_FILE", Path(named).expanduser()
    return None, "nowhere", None


def _checked_token(text: str, origin: str) -> str:
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise SettingsError("token", origin, "this is not a token", "printable ASCII without blanks")
    return text


def _checked_url(text: str, origin: str) -> str:
    allowed = "http://host:port or https://host:port"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise SettingsError("url", origin, f"not an address: {error}", allowed) from None
    if parts.username is not None or parts.password is not None:
        raise SettingsError("url", origin, "an address may not hold a password; put the token into HOLDFAST_TOKEN_FILE")
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment or port == 0:
        raise SettingsError("url", origin, f"{text!r:.200} cannot be used", allowed)
    if not text.isascii() or not text.isprintable() or " " in text:
        raise SettingsError("url", origin, f"{text!r:.200} cannot be used", allowed)
    return text.rstrip("/")


def _same_server(one: str, other: str) -> bool:
    return _origin(urlsplit(one)) == _origin(urlsplit(other))


def _origin(parts: SplitResult) -> tuple[str, str | None, int]:
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def _guarded(target: Target) -> Target:
    """Refuse to send a token where everyone on the way can read it."""
    if target.token is not None and target.url.startswith("http://") and not is_loopback(target.url):
        problem = f"the token would travel to {target.url} unencrypted; use https://, or a tunnel to a loopback address"
        raise SettingsError("url", target.url_origin, problem)
    return target
