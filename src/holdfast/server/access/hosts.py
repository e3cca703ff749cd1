"""Which names this server answers to, so that no web page can reach it through a browser (DNS rebinding).

A page may let the name of its own site lead to our address. The browser then takes us for that site, and lets the page
read what we say. Such a request has the site's name in `Host`, so a name passes only if it is one of ours. An IP
address passes: there is no name in it that anybody could have turned to us.
"""

from __future__ import annotations

import re
import socket
from ipaddress import IPv4Address, IPv6Address

from holdfast.settings import parse_hosts
from holdfast.wire.problems import Problem

PASSED_MAX = 1_000
"""How many headers that passed are kept at hand."""

_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]{1,254}))(?::[0-9]{0,5})?", re.IGNORECASE)
_LOOPBACK = frozenset({"localhost", ".localhost", "ip6-localhost", "ip6-loopback"})


class Hosts:
    def __init__(self, allowed: str, listens_on: str, called: str | None = None) -> None:
        """`allowed` is the setting `allowed_hosts`; the others are the hosts of `listen` and `public_url`."""
        machine = socket.gethostname().lower()
        own = {machine, machine.partition(".")[0], listens_on.lower(), (called or listens_on).lower()}
        self._names = parse_hosts(allowed) | _LOOPBACK | own
        self.passed: set[bytes | None] = {None}
        """Headers that may pass without another look. None: HTTP/1.0 has no `Host`, and no browser speaks it."""

    def check(self, host: bytes) -> None:
        name = _read(host)
        if not self._is_ours(name):
            # Without its port: so it can be copied into the setting.
            raise Problem(
                "misdirected",
                f"This server does not answer to the name {name!r}. If that is its name, add it to the setting"
                " allowed_hosts (HOLDFAST_ALLOWED_HOSTS) and start the server again.",
            )
        if len(self.passed) >= PASSED_MAX:
            self.passed.clear()
        self.passed |= {None, host}

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
