"""The address of a store: how it is shown, and where its password may stand.

What stands on a command line can be read by every user of the machine. So a password comes from the file of PGPASSFILE,
from PGPASSWORD, or with the address from the environment or a configuration file. It is shown nowhere.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit

SECRET_FIELDS = frozenset({"password", "sslpassword"})
HOW = "the URL without it: the password goes into the file of PGPASSFILE (~/.pgpass), or into PGPASSWORD"


def has_password(url: str) -> bool:
    """Tell whether there is a password in the address."""
    return shown(url) != url


def shown(url: str) -> str:
    """Return the address without its password, for people. What is no address is not shown at all."""
    try:
        parts = urlsplit(url)
        fields = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return "(not a URL)"
    user, at, hosts = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    kept = [(field, value) for field, value in fields if field.lower() not in SECRET_FIELDS]
    if not colon and len(kept) == len(fields):
        return url
    netloc = f"{name}{at}{hosts}" if name else hosts
    query = f"?{urlencode(kept, safe='/,:')}" if kept else ""
    return f"{parts.scheme}://{netloc}{parts.path}{query}"
