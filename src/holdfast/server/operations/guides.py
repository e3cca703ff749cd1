"""Which route was meant by a request that has none: the verb that does what was asked for, or the nearest spelling.

Only looked at when a request is refused. Each word is compared with the few that can stand in its place.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from holdfast.extras import how_to_install

if TYPE_CHECKING:
    from holdfast.server.operations.operation import Operation

WORD_CHARS_MAX = 32
"""A longer word is no misspelt one of ours."""
DOCS = "GET /docs lists them."
WITHOUT_MCP = (
    "The tools for agents need a part of Holdfast that was not installed when this server started:"
    f" {how_to_install('mcp')}. Then start the server again."
)
"""Where it is installed, `/mcp` is an application of its own and no route."""

OTHER_WORDS = {
    "locks": {
        "beat": "renew",
        "claim": "acquire",
        "done": "release",
        "extend": "renew",
        "heartbeat": "renew",
        "keepalive": "renew",
        "lock": "acquire",
        "owner": "",
        "refresh": "renew",
        "status": "",
        "unlock": "release",
        "wait": "acquire",
    },
    "sessions": {"heartbeat": "keepalive", "renew": "keepalive", "release": "", "end": ""},
}
"""What other systems call our verbs, by the first word of the path. An empty verb is the thing itself."""

VERB_OF_METHOD = {"POST": "acquire", "PUT": "acquire", "DELETE": "release", "PATCH": "renew"}
"""What a method is most likely meant for that was sent to the bare name of a lock."""


class Guides:
    """All routes by their words, to say which one was meant."""

    def __init__(self, operations: tuple[Operation, ...]) -> None:
        self._routes: dict[tuple[str, str], list[Operation]] = {}
        """By the first word and the verb, of the paths that have a name between them; and the plain paths."""
        for operation in operations:
            first, _, rest = operation.path.removeprefix("/").partition("/")
            item, _, verb = rest.partition("/")
            key = (first, verb) if item.startswith("{") else (operation.path, "")
            self._routes.setdefault(key, []).append(operation)
        self._firsts = sorted({first.removeprefix("/").partition("/")[0] for first, _ in self._routes} - {""})

    def for_path(self, path: bytes) -> str:
        """Say which route a path without one is nearest to."""
        if path == b"/mcp":
            return WITHOUT_MCP
        found = self._nearest(path)
        return DOCS if found is None else f"Did you mean {_listed(found)}? {DOCS}"

    def for_method(self, method: bytes, path: bytes) -> str:
        """Say which route was meant by a method that the path does not take; nothing if that is not known."""
        first, _, last = _words(path)
        if first == "locks" and last not in OTHER_WORDS["locks"] and not self._verb(first, last):
            # The bare name of a lock, or one with slashes in it.
            verb = VERB_OF_METHOD.get(method.decode("latin-1"))
            found = None if verb is None else self._routes.get(("locks", verb))
        else:
            found = self._nearest(path)
        return "" if found is None else f" Did you mean {_listed(found)}?"

    def _nearest(self, path: bytes) -> list[Operation] | None:
        first, item, last = _words(path)
        near = first if first in self._firsts else _close(first, self._firsts)
        if near is None:
            return None
        if not item:
            return self._routes.get((f"/{near}", ""))
        verb = self._verb(near, last)
        return None if verb is None else self._routes.get((near, verb))

    def _verb(self, first: str, word: str) -> str | None:
        """Return our verb for a word, or None."""
        verbs = [verb for known, verb in self._routes if known == first]
        if word in verbs:
            return word
        meant = OTHER_WORDS.get(first, {}).get(word)
        return meant if meant is not None else _close(word, [verb for verb in verbs if verb])


def _words(path: bytes) -> tuple[str, str, str]:
    """Return the first word of a path, what stands behind it, and the last word if it is another than that."""
    first, _, rest = path.decode("latin-1").removeprefix("/").partition("/")
    item, slash, last = rest.rpartition("/")
    return (first, item, last) if slash else (first, rest, "")


def _close(word: str, known: list[str]) -> str | None:
    if not word or len(word) > WORD_CHARS_MAX:
        return None
    return next(iter(get_close_matches(word, known, 1)), None)


def _listed(operations: list[Operation]) -> str:
    return " or ".join(
        f"{each.method} {each.path} ({each.summary[0].lower()}{each.summary[1:]})" for each in operations
    )
