"""Which request goes to which row of the table, and whether it is for this server at all.

A name in a path is one percent-encoded segment. Literal slashes are taken too: a known verb as the last segment is the
verb, whatever the method (N2). Verbs that are not built yet are known too, so that a name never changes meaning.
A path that is a route as it stands comes first: `POST /locks/heartbeat` is the gateway's, `GET` there asks for a name.

What is kept for each row is up to whoever asks: the routes keep how it is read and answered, a node that passes
requests on only what it must know for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.server.access.hosts import Hosts
from holdfast.server.operations.guides import Guides
from holdfast.settings import parse_address, parse_url
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from holdfast.server.doors.request import Request
    from holdfast.server.operations.operation import Operation
    from holdfast.settings import Settings

VERBS = frozenset(
    {
        b"acl",
        b"acquire",
        b"check",
        b"history",
        b"release",
        b"renew",
        b"reopen",
        b"revoke",
        b"transfer",
        b"watch",
        b"why",
    }
)

_LOCKS = b"/locks/"
_PAGES = b"/ui/"
_ANY_PAGE = (b"{place}", b"")
_NONE: Mapping[bytes, Any] = {}

R = TypeVar("R")


class Finder(Generic[R]):
    """The rows of one server, by path and method."""

    def __init__(self, settings: Settings, operations: tuple[Operation, ...], keep: Callable[[Operation], R]) -> None:
        """`keep` makes what is kept for a row, and returned by `find`."""
        self._plain: dict[bytes, dict[bytes, R]] = {}
        self._lock_verbs: dict[bytes, dict[bytes, R]] = {}
        self._items: dict[tuple[bytes, bytes], dict[bytes, R]] = {}
        self._rooms: dict[tuple[bytes, bytes], dict[bytes, R]] = {}
        """Of the operators' page, by the room and the verb behind the name."""
        public = parse_url(settings.public_url)
        called = None if public is None else public.hostname
        self._hosts = Hosts(settings.allowed_hosts, parse_address(settings.listen)[0], called)
        self._passed_hosts = self._hosts.passed
        self._any_host = frozenset(operation.path.encode() for operation in operations if operation.any_host)
        self._guides = Guides(operations)
        for operation in operations:
            self._enter(operation.method.encode(), operation.path.encode(), keep(operation))
        # No path that is a route as it stands may look like a verb of a name: that is looked for first.
        below = (path.removeprefix(_LOCKS) for path in self._plain if path.startswith(_LOCKS))
        taken = {rest.rpartition(b"/")[2] for rest in below if rest.count(b"/")}
        self._by_verb = {verb: methods for verb, methods in self._lock_verbs.items() if verb and verb not in taken}

    def _enter(self, method: bytes, path: bytes, kept: R) -> None:
        parts = path.split(b"/")
        if b"{" not in path:
            self._plain.setdefault(path, {})[method] = kept
        elif path.startswith(_PAGES):
            self._rooms.setdefault((parts[2], b"/".join(parts[4:])), {})[method] = kept
        elif path.startswith(_LOCKS):
            self._lock_verbs.setdefault(b"/".join(parts[3:]), {})[method] = kept
        else:
            self._items.setdefault((parts[1], b"/".join(parts[3:])), {})[method] = kept

    def check_host(self, request: Request) -> None:
        """Raise if the request is for a server of another name. `handle` does it; a door does it before all else."""
        host = request.host
        if host not in self._passed_hosts and host is not None and request.path not in self._any_host:
            self._hosts.check(host)

    def find(self, method: bytes, path: bytes) -> tuple[R, bytes]:
        """Return the route and the segment of the path that it is about, or raise 404 or 405."""
        # `removeprefix` returns the very same bytes if they have another beginning.
        rest = path.removeprefix(_LOCKS)
        if rest is not path:
            # Nearly all requests are for a verb of a name: they come first.
            name, _, verb = rest.rpartition(b"/")
            route = self._by_verb.get(verb, _NONE).get(method)
            if name and route is not None:
                return route, name
        if method == b"HEAD":
            method = b"GET"
        plain = self._plain.get(path, _NONE)
        if method in plain:
            return plain[method], b""
        if rest is not path:
            segment, methods = self._find_lock(rest)
        elif plain:
            raise self._no_method(method, path, plain)
        elif path.startswith(_PAGES):
            segment, methods = self._find_page(path)
        else:
            segment, methods = self._find_item(path)
        if method not in methods:
            raise self._no_method(method, path, {**methods, **plain})
        return methods[method], segment

    def _find_lock(self, rest: bytes) -> tuple[bytes, dict[bytes, R]]:
        name, _, verb = rest.rpartition(b"/")
        if verb not in VERBS:
            name, verb = rest, b""
        methods = self._lock_verbs.get(verb)
        if not name or methods is None:
            raise self.no_route(_LOCKS + rest)
        return name, methods

    def _find_page(self, path: bytes) -> tuple[bytes, dict[bytes, R]]:
        """Find `/ui/room/name` or `/ui/room/name/verb`. A name may have literal slashes, if what follows is no verb."""
        room, _, rest = path.removeprefix(_PAGES).partition(b"/")
        item, _, verb = rest.partition(b"/")
        if verb and (room, verb) in self._rooms:
            return item, self._rooms[room, verb]
        methods = self._rooms.get((room, b""))
        if rest and methods is not None:
            return rest, methods
        if _ANY_PAGE not in self._rooms:
            raise self.no_route(path)
        return b"", self._rooms[_ANY_PAGE]

    def _find_item(self, path: bytes) -> tuple[bytes, dict[bytes, R]]:
        _, kind, item, verb = (*path.split(b"/", 3), b"", b"", b"")[:4]
        methods = self._items.get((kind, verb))
        if not item or methods is None:
            raise self.no_route(path)
        return item, methods

    def no_route(self, path: bytes) -> Problem:
        """Return the refusal of a path that is no route."""
        return Problem("not_found", f"No such route. {self._guides.for_path(path)}")

    def _no_method(self, method: bytes, path: bytes, methods: Mapping[bytes, R]) -> Problem:
        allowed = sorted(method.decode() for method in methods)
        if "GET" in allowed:
            allowed.insert(1, "HEAD")
        text = ", ".join(allowed)
        hint = self._guides.for_method(method, path)
        return Problem("invalid_input", f"This route takes {text}.{hint}", status=405, allow=text)
