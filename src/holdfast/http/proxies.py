"""Whom a request comes from, and over what: the other end of the connection, or what a trusted proxy there says.

`X-Forwarded-For` counts only on a connection from a trusted proxy, and is read from its end: trusted addresses are
passed by, the first other one is the client. An unreadable one ends the walk: its writer could have written the rest.
"""

from __future__ import annotations

import logging
import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TypeAlias

from holdfast.config import parse_networks
from holdfast.http.messages import Request

Address: TypeAlias = IPv4Address | IPv6Address

log = logging.getLogger("holdfast.server")

HOPS_MAX = 32
_WITH_PORT = re.compile(r"(?:\[([^\]]*)\]|([0-9.]+))(?::[0-9]{1,5})?")


class Proxies:
    def __init__(self, trusted: str) -> None:
        self._networks = parse_networks(trusted)
        for network in self._networks:
            if network.prefixlen == 0:
                log.warning(
                    "trusted_proxies has %s: everybody is believed who says in X-Forwarded-For where they come from;"
                    " name your proxies alone",
                    network,
                )

    def client_of(self, request: Request) -> Address | None:
        client = _read(request.peer)
        if client is None or not self._is_trusted(client):
            return client
        hops = request.headers.get(b"x-forwarded-for", b"").decode("latin-1").rsplit(",", HOPS_MAX)
        for text in reversed(hops[-HOPS_MAX:]):
            hop = _read(text.strip())
            if hop is None:
                break
            client = hop
            if not self._is_trusted(hop):
                break
        return client

    def scheme_of(self, request: Request, own: str) -> str:
        forwarded = request.headers.get(b"x-forwarded-proto")
        peer = None if forwarded is None else _read(request.peer)
        if forwarded is None or peer is None or not self._is_trusted(peer):
            return own
        last = forwarded.decode("latin-1").rpartition(",")[2].strip().lower()
        return last if last in {"http", "https"} else own

    def is_trusted_peer(self, peer: str) -> bool:
        address = _read(peer)
        return address is not None and self._is_trusted(address)

    def _is_trusted(self, address: Address) -> bool:
        return any(address in network for network in self._networks)


def _read(text: str) -> Address | None:
    """Return the address in a text, with or without a port. One of IPv4 that is written as IPv6 is one of IPv4."""
    found = _WITH_PORT.fullmatch(text)
    try:
        address = ip_address(text if found is None else found[1] or found[2] or "")
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
