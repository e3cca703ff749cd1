"""The address of a store: how it is shown, and where its password may stand.

What stands on a command line can be read by every user of the machine. So a password comes from the file of PGPASSFILE,
from PGPASSWORD, or with the address from the environment or a configuration file. It is shown nowhere.

A password with `#`, `/` or `?` in it ends where the URL has that sign: the rest of it is then path, query or fragment,
and what was meant as a name and a password looks like a host and a port. Such an address is refused, and nothing of it
is shown.
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

NO_URL = "(not a URL)"
ESCAPES = "it is no URL. In a name or a password write # as %23, / as %2F, ? as %3F, @ as %40, : as %3A and ; as %3B"
SECRET_FIELDS = frozenset({"password", "sslpassword"})
HOW = "the URL without it: the password goes into the file of PGPASSFILE (~/.pgpass), or into PGPASSWORD"


def split_url(url: str) -> SplitResult:
    """Split the URL of a store, which may list several hosts. Raises `ValueError`.

    Some versions of `urlsplit` accept only one IPv6 address in brackets, so each host is checked alone.
    """
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
    behind = parts.path + parts.query
    return (
        "#" in url
        or "@" in behind
        or ";" in behind
        or any(colon and port and not (port.isascii() and port.isdigit()) for _, colon, port in ports)
    )


def has_password(url: str) -> bool:
    """Tell whether there is a password in the address."""
    return shown(url) != url


def shown(url: str) -> str:
    """Return the address without its password, for people. What is no address is not shown at all."""
    if is_torn(url):
        return NO_URL
    parts = split_url(url)
    fields = parse_qsl(parts.query, keep_blank_values=True)
    user, at, hosts = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    kept = [(field, value) for field, value in fields if field.lower() not in SECRET_FIELDS]
    if not colon and len(kept) == len(fields):
        return url
    netloc = f"{name}{at}{hosts}" if name else hosts
    query = f"?{urlencode(kept, safe='/,:')}" if kept else ""
    return f"{parts.scheme}://{netloc}{parts.path}{query}"
