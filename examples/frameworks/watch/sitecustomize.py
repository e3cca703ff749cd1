"""Refuses what would leave this machine, and writes it down. Python loads this file by its name when it starts.

A framework may report home and pass over every error while it does. So it is not enough that the network is away: what
tries to reach it is written into the file that STORY_WATCH names, and story.py reads that.
"""

import ipaddress
import os
import socket
import sys
from pathlib import Path


def is_here(host: object) -> bool:
    if isinstance(host, bytes):
        host = host.decode(errors="replace")
    if not isinstance(host, str) or host in {"", "localhost"}:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def watch(event: str, arguments: tuple[object, ...]) -> None:
    host: object = None
    if event in {"socket.connect", "socket.sendto"}:
        address = arguments[-1]
        host = address[0] if isinstance(address, tuple) else None  # A path is a socket of this machine.
    elif event in {"socket.getaddrinfo", "socket.gethostbyname"}:
        host = arguments[0]
    if is_here(host) or host == socket.gethostname():
        return
    with Path(os.environ["STORY_WATCH"]).open("a", encoding="utf-8") as file:
        file.write(f"{event} {host}\n")
    raise PermissionError(f"the examples stay on this machine, and something asked for {host}")


if "STORY_WATCH" in os.environ:
    sys.addaudithook(watch)
