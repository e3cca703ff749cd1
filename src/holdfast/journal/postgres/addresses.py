"""A store's URL as one URL for each of its servers: hosts are tried one by one, each with its own time limit.

asyncpg takes several hosts too, and has one time limit for all of them: the first that does not answer would use it up.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import parse_qs, quote, urlunsplit

from holdfast.settings.addresses import ESCAPES, is_torn, split_url

SCHEMES = ("postgresql", "postgres")
PORT = "5432"


class Address(NamedTuple):
    """One server."""

    url: str
    """With all that is needed to connect. It may have a password: it is never shown."""
    where: str
    """Host and port, for people."""


def addresses(url: str) -> list[Address]:
    """Return the servers of a URL, in its order. Raises `ValueError`, without the URL in its text."""
    if is_torn(url):
        raise ValueError(f"the URL of the store cannot be read: {ESCAPES}")
    parts = split_url(url)
    if parts.scheme not in SCHEMES:
        raise ValueError("the URL of the store does not begin with postgresql://")
    user, at, hosts = parts.netloc.rpartition("@")
    fields = parse_qs(parts.query, keep_blank_values=True)
    by_field = [host for value in fields.pop("host", []) for host in value.split(",") if host]
    ports = [port for value in fields.pop("port", []) for port in value.split(",")]
    fields.pop("target_session_attrs", None)
    if by_field and hosts:
        raise ValueError("the URL of the store names hosts twice: before the path, and as host=")
    query = [f"{name}={quote(value)}" for name, values in fields.items() for value in values]
    if hosts:
        return [
            Address(urlunsplit((parts.scheme, f"{user}{at}{host}", parts.path, "&".join(query), "")), _shown(host))
            for host in hosts.split(",")
        ]
    found = []
    for number, host in enumerate(by_field or ["localhost"]):
        port = ports[min(number, len(ports) - 1)] if ports else PORT
        all_fields = "&".join([*query, f"host={quote(host, safe='')}", f"port={quote(port)}"])
        found.append(
            Address(urlunsplit((parts.scheme, f"{user}{at}", parts.path or "/", all_fields, "")), f"{host}:{port}")
        )
    return found


def _shown(host: str) -> str:
    has_port = ":" in host.rpartition("]")[2]
    return host if has_port else f"{host}:{PORT}"
