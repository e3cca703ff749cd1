"""Settings that are addresses or names of machines: how each is read. What cannot be read raises `ValueError`."""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Network, ip_network

_NAME = re.compile(r"\*|\.?[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")


def parse_address(text: str) -> tuple[str, int]:
    """Split `host:port` or `[IPv6]:port`."""
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|([^\s:/\[\]@]+)):([0-9]{1,5})", text)
    if found is None or int(found[3]) > 65_535:  # noqa: PLR2004 - the largest port there is
        raise ValueError(f"{text!r} is not host:port or [IPv6]:port")
    return found[1] or found[2], int(found[3])


def parse_hosts(text: str) -> frozenset[str]:
    """Split names of hosts at their commas; each in lower case and without the dot at its end."""
    names = frozenset(name.strip().lower().removesuffix(".") for name in text.split(",") if name.strip())
    for name in sorted(names):
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r:.200} is not the name of a host: write it without scheme, port and path")
    return names


def parse_networks(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """Split IP addresses and networks at their commas; an address is a network of one."""
    return tuple(ip_network(each.strip()) for each in text.split(",") if each.strip())
