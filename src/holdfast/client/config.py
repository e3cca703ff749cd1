"""Which server and token to use: from the arguments, else the environment, else the user's `client.toml`.

The settings in `client.toml` are for the server named there, or for the default one: its token, its CA and its plain
HTTP are never used for another server. A URL may list the nodes of one authority, separated by commas. The token goes
to all of them, so `client.toml` counts only if it names them all.

TLS trust is also set up here, for both transports.
"""

from __future__ import annotations

import ipaddress
import logging
import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import msgspec

from holdfast import clientconfig
from holdfast.clientconfig import ClientConfig
from holdfast.errors import SettingsError

DEFAULT_URL = "http://127.0.0.1:7420"
GIVEN_FILE = "the given token file"
CA_VARIABLE = "HOLDFAST_CA_FILE"
INSECURE_VARIABLE = "HOLDFAST_ALLOW_INSECURE_HTTP"
ADDRESSES_MAX = 16  # Each may cost a try, so an endless list would be an endless wait.

_SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_warned_servers: set[str] = set()  # The servers for which the plain HTTP warning was logged.

log = logging.getLogger("holdfast.client")


class Target(msgspec.Struct, frozen=True):
    """A server and its credentials. `…_origin` says where each came from."""

    url: str  # Its address, or those of its nodes separated by commas.
    url_origin: str
    token: str | None
    token_origin: str
    token_file: Path | None = None  # Read again when the server refuses the token: it may have been rotated.
    ca_file: Path | None = None  # The certificates to trust instead of the system's.
    is_insecure: bool = False  # Whether the token travels unencrypted to another machine, as was allowed.

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(self.url.split(","))

    @property
    def unencrypted(self) -> tuple[str, ...]:
        """The addresses on other machines that use plain HTTP."""
        return tuple(each for each in self.addresses if each.startswith("http://") and not is_loopback(each))

    def at(self, address: str) -> Target:
        return msgspec.structs.replace(self, url=address)

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which a child process reaches the same server in the same way; never the token."""
        found = {"HOLDFAST_URL": self.url}
        if self.ca_file is not None:
            found[CA_VARIABLE] = str(self.ca_file.absolute())
        if self.is_insecure:
            found[INSECURE_VARIABLE] = "1"
        return found

    def __repr__(self) -> str:  # Everything but the token.
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
    """Determine the target. Raises `SettingsError` for unusable settings."""
    stored = clientconfig.read(environment)
    config_file = str(clientconfig.client_config_dir(environment) / clientconfig.CONFIG_NAME)
    named = ((url, "the given url"), (environment.get("HOLDFAST_URL"), "HOLDFAST_URL"), (stored.url, config_file))
    text, url_origin = next(((text, origin) for text, origin in named if text), (DEFAULT_URL, "the default"))
    found = _checked_urls(text, url_origin)
    known = {_origin(urlsplit(each)) for each in _checked_urls(stored.url or DEFAULT_URL, config_file)}
    if not known.issuperset(_origin(urlsplit(each)) for each in found):
        stored = ClientConfig()
    token, token_origin, file = _find_token(token, token_file, environment)
    if token is None and file is None and stored.token_file is not None:
        token_origin, file = config_file, stored.token_file
    if file is not None:
        token = clientconfig.read_token(file, "" if token_origin == GIVEN_FILE else token_origin)
    is_tls = any(each.startswith("https://") for each in found)
    trusted = _find_ca(ca_file, environment, stored, config_file) if is_tls else None
    target = Target(",".join(found), url_origin, token, token_origin, file, trusted)
    if allow_insecure_http is None:
        allow_insecure_http = _is_allowed(environment, stored)
    if target.token is None or not target.unencrypted:
        return target
    if allow_insecure_http:
        return msgspec.structs.replace(target, is_insecure=True)
    problem = (
        f"the access token would travel to {', '.join(target.unencrypted)} unencrypted; use https://, or a tunnel to a"
        f" loopback address; if that is meant, set {INSECURE_VARIABLE}=1"
    )
    raise SettingsError("url", target.url_origin, problem)


def warn_if_insecure(target: Target) -> None:
    """Warn once per process that a token travels unencrypted. Without logging setup this goes to stderr."""
    new = [each for each in target.unencrypted if each not in _warned_servers] if target.is_insecure else []
    if new:
        _warned_servers.update(new)
        text = "holdfast: the access token travels to %s unencrypted, as was allowed: whoever is on the way can use it"
        log.warning(text, ", ".join(new))


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _find_token(
    token: str | None, token_file: Path | None, environment: Mapping[str, str]
) -> tuple[str | None, str, Path | None]:
    """Return the token, its origin, and the file to read it from, if any."""
    if token is not None:
        return _checked_token(token, "the given token"), "the given token", None
    if token_file is not None:
        return None, GIVEN_FILE, token_file
    if text := environment.get("HOLDFAST_TOKEN", "").strip():
        return _checked_token(text, "HOLDFAST_TOKEN"), "HOLDFAST_TOKEN", None
    if named := environment.get("HOLDFAST_TOKEN_FILE"):
        return None, "HOLDFAST_TOKEN_FILE", Path(named).expanduser()
    return None, "nowhere", None


def _find_ca(given: Path | None, environment: Mapping[str, str], stored: ClientConfig, config_file: str) -> Path | None:
    """Return the file with the certificates to trust, if any. It is checked before anything is sent."""
    named = environment.get(CA_VARIABLE)
    file, origin = given, "the given ca_file"
    if file is None:
        file, origin = (Path(named).expanduser(), CA_VARIABLE) if named else (stored.ca_file, config_file)
    if file is None:
        return None
    try:
        content = file.read_bytes()
    except OSError as error:
        raise SettingsError("ca_file", origin, f"{file} cannot be read: {error.strerror}") from None
    if b"-----BEGIN CERTIFICATE-----" not in content:
        raise SettingsError("ca_file", origin, f"{file} holds no certificate", "a file of certificates in PEM")
    return file


def _is_allowed(environment: Mapping[str, str], stored: ClientConfig) -> bool:
    text = environment.get(INSECURE_VARIABLE, "").strip().lower()
    if text and text not in _SWITCH:
        raise SettingsError("allow_insecure_http", INSECURE_VARIABLE, f"{text!r:.100} cannot be used", "1 or 0")
    return _SWITCH[text] if text else stored.allow_insecure_http


def _checked_token(text: str, origin: str) -> str:
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise SettingsError("token", origin, "this is not an access token", "printable ASCII without blanks")
    return text


def _checked_urls(text: str, origin: str) -> list[str]:
    found = list(dict.fromkeys(_checked_url(each.strip() if "," in text else each, origin) for each in text.split(",")))
    if len(found) > ADDRESSES_MAX:
        raise SettingsError("url", origin, f"these are {len(found)} addresses", f"at most {ADDRESSES_MAX}")
    return found


def _checked_url(text: str, origin: str) -> str:
    allowed = "http://host:port or https://host:port, or several of them with commas in between"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise SettingsError("url", origin, f"not an address: {error}", allowed) from None
    if parts.username is not None or parts.password is not None:
        problem = "an address may not hold a password; put the access token into HOLDFAST_TOKEN_FILE"
        raise SettingsError("url", origin, problem)
    is_plain = text.isascii() and text.isprintable() and " " not in text
    usable = parts.scheme in {"http", "https"} and parts.hostname and not parts.query and not parts.fragment
    if not is_plain or not usable or port == 0:
        raise SettingsError("url", origin, f"{text!r:.200} cannot be used", allowed)
    # Lower case from here on: the scheme decides whether a token may be sent.
    return parts.scheme + text[len(parts.scheme) :].rstrip("/")


def _origin(parts: SplitResult) -> tuple[str, str | None, int]:
    return parts.scheme, parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)


def context_for(target: Target) -> ssl.SSLContext | None:
    """Return the TLS context for a server; None for plain HTTP. Raises `SettingsError`.

    It trusts only the certificates in `ca_file`; without one, those of the system or of SSL_CERT_FILE. Verification
    cannot be turned off. Made once per client, because reading the CAs takes a while.
    """
    if not target.url.startswith("https://"):
        return None
    try:
        return ssl.create_default_context(cafile=target.ca_file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or "it cannot be read"
        problem = f"its certificates cannot be used: {reason.lower().replace('_', ' ')}"
        raise SettingsError("ca_file", str(target.ca_file), problem, "a file of certificates in PEM") from None
