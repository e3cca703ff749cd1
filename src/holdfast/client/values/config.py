"""Which server, and with which token: from the arguments, else the environment, else the user's `client.toml`.

What stands in `client.toml` belongs to the server named there, or to the default one if none is: its token is never
sent to another one, and neither its CA nor its plain HTTP counts for another one.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import msgspec

from holdfast import clientconfig
from holdfast.clientconfig import ClientConfig
from holdfast.errors import SettingsError

DEFAULT_URL = "http://127.0.0.1:7420"
CA_VARIABLE = "HOLDFAST_CA_FILE"
INSECURE_VARIABLE = "HOLDFAST_ALLOW_INSECURE_HTTP"

_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_told: set[str] = set()
"""The servers of which it was said that they are reached without encryption."""

log = logging.getLogger("holdfast.client")


class Target(msgspec.Struct, frozen=True):
    """A server and what to show it. `…_origin` says where each came from."""

    url: str
    url_origin: str
    token: str | None
    token_origin: str
    token_file: Path | None = None
    """Where the token was read, and will be read again when the server refuses it: it may have been rotated."""
    ca_file: Path | None = None
    """The certificates to trust in place of the system's, over https."""
    is_insecure: bool = False
    """Whether the token travels unencrypted to another machine, and somebody allowed it."""

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which a child process reaches the same server in the same way; never the token."""
        found = {"HOLDFAST_URL": self.url}
        if self.ca_file is not None:
            found[CA_VARIABLE] = str(self.ca_file.absolute())
        if self.is_insecure:
            found[INSECURE_VARIABLE] = "1"
        return found

    def __repr__(self) -> str:
        """Show everything but the token."""
        return f"Target({self.url!r} from {self.url_origin}, token from {self.token_origin})"


def find(
    *,
    url: str | None,
    token_file: Path | None,
    environment: Mapping[str, str],
    token: str | None = None,
    ca_file: Path | None = None,
    allow_insecure_http: bool | None = None,
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
    if not _same_server(_checked_url(kept.url or DEFAULT_URL, place), found):
        kept = ClientConfig()
    token, token_origin, file = _find_token(token, token_file, environment)
    if token is None and file is None and kept.token_file is not None:
        token_origin, file = place, kept.token_file
    if file is not None:
        token = clientconfig.read_token(file)
    trusted = _find_ca(ca_file, environment, kept, place) if found.startswith("https://") else None
    target = Target(found, url_origin, token, token_origin, file, trusted)
    if allow_insecure_http is None:
        allow_insecure_http = _is_allowed(environment, kept)
    return _guarded(target, allowed=allow_insecure_http)


def tell_if_insecure(target: Target) -> None:
    """Say aloud, once in a process, that a token travels unencrypted. Unless logging is set up, it is on stderr."""
    if target.is_insecure and target.url not in _told:
        _told.add(target.url)
        text = "holdfast: the access token travels to %s unencrypted, as was allowed: whoever is on the way can use it"
        log.warning(text, target.url)


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


def _find_ca(given: Path | None, environment: Mapping[str, str], kept: ClientConfig, place: str) -> Path | None:
    """Return the file with the certificates to trust, if there is one. It is looked at before anything is sent."""
    named = environment.get(CA_VARIABLE)
    if given is not None:
        file, origin = given, "the given ca_file"
    elif named:
        file, origin = Path(named).expanduser(), CA_VARIABLE
    elif kept.ca_file is not None:
        file, origin = kept.ca_file, place
    else:
        return None
    try:
        content = file.read_bytes()
    except OSError as error:
        raise SettingsError("ca_file", origin, f"{file} cannot be read: {error.strerror}") from None
    if b"-----BEGIN CERTIFICATE-----" not in content:
        raise SettingsError("ca_file", origin, f"{file} holds no certificate", "a file of certificates in PEM")
    return file


def _is_allowed(environment: Mapping[str, str], kept: ClientConfig) -> bool:
    text = environment.get(INSECURE_VARIABLE, "").strip().lower()
    if text and text not in _SWITCH:
        raise SettingsError("allow_insecure_http", INSECURE_VARIABLE, f"{text!r:.100} cannot be used", "1 or 0")
    return _SWITCH[text] if text else kept.allow_insecure_http


def _checked_token(text: str, origin: str) -> str:
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise SettingsError("token", origin, "this is not an access token", "printable ASCII without blanks")
    return text


def _checked_url(text: str, origin: str) -> str:
    allowed = "http://host:port or https://host:port"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise SettingsError("url", origin, f"not an address: {error}", allowed) from None
    if parts.username is not None or parts.password is not None:
        raise SettingsError(
            "url", origin, "an address may not hold a password; put the access token into HOLDFAST_TOKEN_FILE"
        )
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment or port == 0:
        raise SettingsError("url", origin, f"{text!r:.200} cannot be used", allowed)
    if not text.isascii() or not text.isprintable() or " " in text:
        raise SettingsError("url", origin, f"{text!r:.200} cannot be used", allowed)
    # In small letters from here on: whether a token may travel is decided by the scheme.
    return parts.scheme + text[len(parts.scheme) :].rstrip("/")


def _same_server(one: str, other: str) -> bool:
    return _origin(urlsplit(one)) == _origin(urlsplit(other))


def _origin(parts: SplitResult) -> tuple[str, str | None, int]:
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def _guarded(target: Target, *, allowed: bool) -> Target:
    """Refuse to send a token where everyone on the way can read it, unless somebody says that this is meant."""
    if target.token is None or not target.url.startswith("http://") or is_loopback(target.url):
        return target
    if allowed:
        return msgspec.structs.replace(target, is_insecure=True)
    problem = (
        f"the access token would travel to {target.url} unencrypted; use https://, or a tunnel to a loopback address;"
        f" if that is meant, set {INSECURE_VARIABLE}=1"
    )
    raise SettingsError("url", target.url_origin, problem)
