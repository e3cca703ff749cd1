"""Settings that are addresses or names: how each is read. Raises `ValueError` for what it cannot read.

The URL of a store may contain a password. Every user of the machine can read a command line, so a password comes from
PGPASSFILE, from PGPASSWORD, or with the URL from the environment or a configuration file, and is never shown. A
password with `#`, `/` or `?` in it ends where the URL has that character, and what was meant as a name and a password
looks like a host and a port. Such a URL is refused and not shown.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

STORE_SCHEMES = ("postgresql://", "postgres://")
NO_URL = "(not a URL)"
ESCAPES = "it is no URL. In a name or a password write # as %23, / as %2F, ? as %3F, @ as %40, : as %3A and ; as %3B"
SECRET_FIELDS = frozenset({"password", "sslpassword"})
HOW = "the URL without it: the password goes into the file of PGPASSFILE (~/.pgpass), or into PGPASSWORD"

_NAME = re.compile(r"\*|\.?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")
_NODE = re.compile(r"[A-Za-z0-9_.:\[\]-]{1,100}")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")


def parse_address(text: str) -> tuple[str, int]:
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|([^\s:/\[\]@]+)):([0-9]{1,5})", text)
    if found is None or int(found[3]) > 65_535:  # noqa: PLR2004 - the largest port there is
        raise ValueError(f"{text!r} is not host:port or [IPv6]:port")
    return found[1] or found[2], int(found[3])


def is_for_all(host: str) -> bool:
    """Tell whether a host to listen on stands for all addresses of a machine: nobody can be sent there."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def parse_hosts(text: str) -> frozenset[str]:
    names = set()
    for written in filter(None, (each.strip() for each in text.split(","))):
        name = written.lower().removesuffix(".")
        if not _NAME.fullmatch(name):
            do = "write it without scheme, port and path"
            if name.startswith("*.") and _NAME.fullmatch(name[1:]):
                do = f"write {name[1:]}, which is that name and all below it"
            raise ValueError(f"{written!r:.200} is not the name of a host: {do}")
        names.add(name)
    return frozenset(names)


def parse_url(text: str) -> SplitResult | None:
    if not text:
        return None
    parts = urlsplit(text)
    plain = text.isascii() and text.isprintable() and not set(text) & set(" @?#\\\"'")
    if parts.scheme not in {"http", "https"} or not parts.hostname or not plain or parts.port == 0:
        raise ValueError(f"{text!r:.200} is not an address: write https://host:port")
    if text.endswith("/"):
        raise ValueError(f"{text!r:.200} ends with a slash: leave that out")
    return parts


def parse_networks(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """Split IP addresses and networks at their commas; an address is a network of one."""
    return tuple(_network(each.strip()) for each in text.split(",") if each.strip())


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        around = ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f"{text!r:.200} is not an IP address or a network, as 10.0.3.7 or 10.0.3.0/24") from None
    try:
        return ip_network(text)
    except ValueError:
        address = text.partition("/")[0]
        raise ValueError(f"{text} is an address in a network: write {around}, or {address} for it alone") from None


def parse_store(text: str) -> str:
    """Return the URL of a store. What is wrong with it is said without it: it may have a password in it."""
    if text and not text.startswith(STORE_SCHEMES):
        raise ValueError(f"it does not begin with {STORE_SCHEMES[0]}")
    if not text.isprintable() or " " in text:
        raise ValueError("it has a blank or a sign in it that cannot be shown")
    if is_torn(text):
        raise ValueError(ESCAPES)
    return text


def parse_node(text: str) -> str:
    """Return the name of a node. It stands in a header of every reply, so not any text will do."""
    if text and not _NODE.fullmatch(text):
        raise ValueError(f"{text!r:.200} is no name for a node: write up to 100 letters, digits and . _ : - [ ]")
    return text


def parse_schema(text: str) -> str:
    if not _SCHEMA.fullmatch(text):
        raise ValueError(f"{text!r:.200} is no name for a schema: write up to 63 of a-z, 0-9 and _, no digit first")
    return text


def split_url(url: str) -> SplitResult:
    """Split the URL of a store with several hosts, each alone: some `urlsplit`s accept only one IPv6 address."""
    scheme, separator, rest = re.sub(r"[\t\r\n]", "", url).partition("://")  # As `urlsplit` does.
    netloc = re.split(r"[/?#]", rest, maxsplit=1)[0]
    user, at, hosts = netloc.rpartition("@")
    for host in hosts.split(","):
        urlsplit(f"//{user}{at}{host}")
    return urlsplit(f"{scheme}{separator}{rest[len(netloc) :]}")._replace(netloc=netloc)


def is_torn(url: str) -> bool:
    """Tell whether an address is none, or a password may stand in it where none belongs."""
    try:
        parts = split_url(url)
        parse_qsl(parts.query)
    except ValueError:
        return True
    _, _, hosts = parts.netloc.rpartition("@")
    ports = [host.rpartition("]")[2].partition(":") for host in hosts.split(",")]
    tail = parts.path + parts.query
    return (
        "#" in url
        or "@" in tail
        or ";" in tail
        or any(colon and port and not (port.isascii() and port.isdigit()) for _, colon, port in ports)
    )


def has_password(url: str) -> bool:
    return shown(url) != url


def shown(url: str) -> str:
    if is_torn(url):
        return NO_URL
    parts = split_url(url)
    fields = parse_qsl(parts.query, keep_blank_values=True)
    user, at, hosts = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    visible = [(field, value) for field, value in fields if field.lower() not in SECRET_FIELDS]
    if not colon and len(visible) == len(fields):
        return url
    netloc = f"{name}{at}{hosts}" if name else hosts
    query = f"?{urlencode(visible, safe='/,:')}" if visible else ""
    return f"{parts.scheme}://{netloc}{parts.path}{query}"
