"""Where things stand in a JSON text, comments and trailing commas allowed. Nothing is made of it but positions.

A tree that was loaded and written again has lost comments, indentation and line ends. So the text stays, and whoever
wants to change it asks here where an entry begins and ends, and where its comma is. What is not understood in every
byte raises `NotUnderstood`: such a file is left alone.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

DEPTH_MAX = 100
"""So deep is no configuration; deeper ones would use up the stack."""

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None

_SPACE = re.compile(r"[ \t\r\n]*")
_COMMENT = re.compile(r"//[^\r\n]*|/\*.*?\*/", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"')
_PLAIN = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.+-])|true\b|false\b|null\b", re.ASCII)


class NotUnderstood(ValueError):
    """A text that is not what its name says; the message tells where and why."""


@dataclass(frozen=True, slots=True)
class Item:
    """One member of an object, from its key on, or one element of an array."""

    key: str | None
    start: int
    node: Node
    comma: int | None
    """Where the comma behind it stands; the last one may have none."""


@dataclass(frozen=True, slots=True)
class Node:
    """One value, from its first character to the one behind its last."""

    start: int
    end: int
    value: Json
    items: tuple[Item, ...] = ()
    comments: tuple[tuple[int, int], ...] = field(default=())
    """Begin and end of the comments that stand right inside of it, not inside of its items."""

    def member(self, key: str) -> Node | None:
        return next((item.node for item in self.items if item.key == key), None)


def scan(text: str) -> Node:
    """Find the object that the text is. Raises `NotUnderstood`."""
    scanner = _Scanner(text)
    start, _ = scanner.skip(0)
    if text[start : start + 1] != "{":
        raise NotUnderstood(f"{_place(text, start)}: an object `{{…}}` was expected")
    root = scanner.value(start, 0)
    end, _ = scanner.skip(root.end)
    if end != len(text):
        raise NotUnderstood(f"{_place(text, end)}: there is more behind the object")
    return root


def _place(text: str, position: int) -> str:
    return f"line {text.count(chr(10), 0, position) + 1}"


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text

    def skip(self, position: int) -> tuple[int, list[tuple[int, int]]]:
        """Pass over white space and comments; return where the next token is, and the comments."""
        comments: list[tuple[int, int]] = []
        while True:
            position = _end(_SPACE, self._text, position)
            found = _COMMENT.match(self._text, position)
            if found is None:
                return position, comments
            comments.append(found.span())
            position = found.end()

    def value(self, start: int, depth: int) -> Node:
        if depth > DEPTH_MAX:
            raise NotUnderstood(f"{_place(self._text, start)}: it is nested more than {DEPTH_MAX} deep")
        match self._text[start : start + 1]:
            case "{":
                return self._container(start, "}", depth)
            case "[":
                return self._container(start, "]", depth)
            case '"':
                end, word = self._string(start)
                return Node(start, end, word)
        found = _PLAIN.match(self._text, start)
        if found is None:
            raise self._unexpected(start)
        try:
            return Node(start, found.end(), json.loads(found[0]))
        except ValueError:  # More digits than Python reads.
            raise self._unexpected(start) from None

    def _string(self, start: int) -> tuple[int, str]:
        found = _STRING.match(self._text, start)
        if found is None:
            raise self._unexpected(start)
        return found.end(), str(json.loads(found[0]))

    def _container(self, start: int, close: str, depth: int) -> Node:
        items: list[Item] = []
        position, comments = self.skip(start + 1)
        while self._text[position : position + 1] != close:
            if items and items[-1].comma is None:
                raise self._unexpected(position)
            item, position, passed = self._item(position, close, depth)
            items.append(item)
            comments += passed
        members: Json = [item.node.value for item in items]
        if close == "}":
            members = {str(item.key): item.node.value for item in items}
            if len(members) != len(items):
                raise NotUnderstood(f"{_place(self._text, start)}: this object has the same key twice")
        return Node(start, position + 1, members, tuple(items), tuple(comments))

    def _item(self, start: int, close: str, depth: int) -> tuple[Item, int, list[tuple[int, int]]]:
        """Read one item and its comma; return where the next token is, and the comments around the comma."""
        key, position = None, start
        if close == "}":
            position, key = self._string(start)
            position, _ = self.skip(position)
            if self._text[position : position + 1] != ":":
                raise self._unexpected(position)
            position, _ = self.skip(position + 1)
        node = self.value(position, depth + 1)
        position, comments = self.skip(node.end)
        if self._text[position : position + 1] != ",":
            return Item(key, start, node, None), position, comments
        comma = position
        position, more = self.skip(comma + 1)
        return Item(key, start, node, comma), position, comments + more

    def _unexpected(self, position: int) -> NotUnderstood:
        found = self._text[position : position + 10].split("\n")[0]
        said = f"{found!r} was not expected there" if position < len(self._text) else "the text ends too early"
        return NotUnderstood(f"{_place(self._text, position)}: {said}")


def _end(pattern: re.Pattern[str], text: str, position: int) -> int:
    found = pattern.match(text, position)
    return found.end() if found else position
