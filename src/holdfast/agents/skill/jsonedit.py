"""Add one entry to a JSON text, and remove it: byte-exact in both directions.

An entry is appended to its object or array, with any missing containers. White space encodes who wrote a container:

    {}       ->  {"hooks": …}         it existed and was empty: our entry directly follows the bracket
    nothing  ->  {⏎  "hooks": …⏎}     we wrote it: white space separates the bracket from our entry

So `remove` removes a container only if it holds our entry after white space, no other entry and no comment. White space
before our entry is ours, white space after it is not. The comma directly follows the previous value, before a comment:

    "a": 1 // why          "a": 1, // why
                             "holdfast": {…}

`insert` checks that `remove` reverses it, and refuses an edit that could not be undone.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

DEPTH_MAX = 100  # Protects the stack.

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None

_BLANK = " \t\r\n"
_TRIVIA = re.compile(r"[ \t\r\n]+|(?P<comment>//[^\r\n]*|/\*.*?\*/)", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"')
_PLAIN = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.+-])|true\b|false\b|null\b", re.ASCII)


class UnsupportedSyntax(ValueError):
    """Invalid or unsupported text; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Item:
    """One member of an object, or one element of an array."""

    key: str | None
    start: int  # Of the key, if there is one.
    node: Node
    comma: int | None  # The position of the comma after it.


@dataclass(frozen=True, slots=True)
class Node:
    start: int
    end: int  # Exclusive.
    value: Json
    items: tuple[Item, ...] = ()
    comments: tuple[tuple[int, int], ...] = ()  # Their start and end, without comments inside items.

    def member(self, key: str) -> Node | None:
        return next((item.node for item in self.items if item.key == key), None)


def load(text: str) -> Json:
    return scan(text).value


def scan(text: str) -> Node:
    scanner = _Scanner(text)
    start = scanner.skip(0, [])
    if text[start : start + 1] != "{":
        raise UnsupportedSyntax(f"{_line_of(text, start)}: an object `{{…}}` was expected")
    root = scanner.value(start, 0)
    end = scanner.skip(root.end, [])
    if end != len(text):
        raise UnsupportedSyntax(f"{_line_of(text, end)}: there is more behind the object")
    return root


def _line_of(text: str, position: int) -> str:
    return f"line {text.count(chr(10), 0, position) + 1}"


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text

    def skip(self, position: int, comments: list[tuple[int, int]]) -> int:
        """Skip white space, and comments into `comments`; return the position of the next token."""
        while found := _TRIVIA.match(self._text, position):
            if found["comment"]:
                comments.append(found.span())
            position = found.end()
        return position

    def value(self, start: int, depth: int) -> Node:
        if depth > DEPTH_MAX:
            raise UnsupportedSyntax(f"{_line_of(self._text, start)}: it is nested more than {DEPTH_MAX} deep")
        match self._text[start : start + 1]:
            case "{":
                return self._container(start, "}", depth)
            case "[":
                return self._container(start, "]", depth)
            case '"':
                return self._scalar(_STRING, start)
        return self._scalar(_PLAIN, start)

    def _scalar(self, pattern: re.Pattern[str], start: int) -> Node:
        found = pattern.match(self._text, start)
        try:
            if found is not None:
                return Node(start, found.end(), json.loads(found[0]))
        except ValueError:  # More digits than Python reads.
            pass
        raise self._unexpected(start)

    def _container(self, start: int, close: str, depth: int) -> Node:
        items: list[Item] = []
        comments: list[tuple[int, int]] = []
        position = self.skip(start + 1, comments)
        while not self._is(position, close):
            if items and items[-1].comma is None:
                raise self._unexpected(position)
            first, key = position, None
            if close == "}":
                name = self._scalar(_STRING, position)
                key, position = str(name.value), self.skip(name.end, [])
                if not self._is(position, ":"):
                    raise self._unexpected(position)
                position = self.skip(position + 1, [])
            node = self.value(position, depth + 1)
            position, comma = self.skip(node.end, comments), None
            if self._is(position, ","):
                comma, position = position, self.skip(position + 1, comments)
            items.append(Item(key, first, node, comma))
        members: Json = [item.node.value for item in items]
        if close == "}":
            members = {str(item.key): item.node.value for item in items}
            if len(members) != len(items):
                raise UnsupportedSyntax(f"{_line_of(self._text, start)}: this object has the same key twice")
        return Node(start, position + 1, members, tuple(items), tuple(comments))

    def _is(self, position: int, token: str) -> bool:
        return self._text.startswith(token, position)

    def _unexpected(self, position: int) -> UnsupportedSyntax:
        found = self._text[position : position + 10].split("\n")[0]
        said = f"{found!r} was not expected there" if position < len(self._text) else "the text ends too early"
        return UnsupportedSyntax(f"{_line_of(self._text, position)}: {said}")


@dataclass(frozen=True, slots=True)
class Entry:
    path: tuple[str, ...]  # The keys of its containers.
    key: str | None  # None: an element of an array.
    value: Json
    siblings: tuple[tuple[str, Json], ...] = ()  # Members added after it if missing and the first container is ours.

    def missing_member(self, depth: int) -> tuple[str | None, Json]:
        """Return key and value of the missing member of the container at this depth."""
        if depth == len(self.path):
            return self.key, self.value
        value: Json = [self.value] if self.key is None else {self.key: self.value}
        for key in reversed(self.path[depth + 1 :]):
            value = {key: value}
        return self.path[depth], value


def insert(text: str | None, entry: Entry) -> str:
    """Add the entry; None means no file. Raises `UnsupportedSyntax` for invalid JSON or an obstacle on the path."""
    if text is None:
        key, value = entry.missing_member(0)
        changed = render({str(key): value, **dict(entry.siblings)}) + "\n"
    else:
        root = scan(text)
        node, depth = _deepest(root, entry)
        changed = _appended(text, node, *entry.missing_member(depth))
        for key, value in entry.siblings if depth == 0 else ():
            if root.member(key) is None:
                changed = _appended(changed, scan(changed), key, value)
    if remove(changed, entry) != text:
        raise UnsupportedSyntax("it is written so that an entry of ours could not be taken out again without a trace")
    return changed


def remove(text: str, entry: Entry) -> str | None:
    """Remove the last equal entry; None if the whole file was ours.

    Raises `UnsupportedSyntax`, also if there is no such entry, or if it contains a comment.
    """
    chain, at = _found(text, entry)
    while len(chain) > 1 and _is_ours(text, chain[-1]):
        child = chain.pop()
        at = next(at for at, item in enumerate(chain[-1].items) if item.node is child)
    root = chain[-1]
    if len(chain) > 1:
        return _cut(text, root, at)
    last = at + _count_siblings(root, at, entry)
    is_alone = root.start == 0 and not text[root.end :].strip(_BLANK)
    if at == 0 and last == len(root.items) - 1 and _is_ours(text, root, last) and is_alone:
        return None
    for each in range(last, at - 1, -1):
        text = _cut(text, scan(text), each)
    return text


def replace(text: str, entry: Entry, old: Json) -> str:
    """Replace the last entry with the value `old`. Raises as `remove`."""
    chain, at = _found(text, Entry(entry.path, entry.key, old))
    item = chain[-1].items[at]
    is_long = "\n" in text[item.start : item.node.end]
    ours = _item(text, chain[-1], entry.key, entry.value, _indent_at(text, item.start) if is_long else None)
    return text[: item.start] + ours + text[item.node.end :]


def _found(text: str, entry: Entry) -> tuple[list[Node], int]:
    """Return the containers from the root to the last item equal to the entry, and its index."""
    chain = [scan(text)]
    for key in entry.path:
        found = chain[-1].member(key)
        if found is None:
            raise UnsupportedSyntax(f"there is no {key!r}")
        chain.append(found)
    for at, item in reversed(tuple(enumerate(chain[-1].items))):
        if item.key == entry.key and same(item.node.value, entry.value):
            if re.search(r"//|/\*", _STRING.sub("", text[item.start : item.node.end])):
                raise UnsupportedSyntax("a comment stands in the entry")
            return chain, at
    raise UnsupportedSyntax("there is no such entry")


def render(value: Json, indent: str = "", unit: str = "  ", newline: str = "\n") -> str:
    """Render a value on several lines, with lists of plain values on one."""
    text = json.dumps(value, ensure_ascii=False, indent=unit)
    text = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda found: "[" + re.sub(r",\s+", ", ", found[1]) + "]", text)
    return text.replace("\n", newline + indent)


def newline_of(text: str) -> str:
    found = re.search(r"\r?\n", text)
    return found[0] if found else "\n"


# --- Adding -----------------------------------------------------------------------------------------------------------


def _deepest(root: Node, entry: Entry) -> tuple[Node, int]:
    """Return the deepest existing container of the path, and its depth."""
    node = root
    for depth, key in enumerate(entry.path):
        found = node.member(key)
        if found is None:
            return node, depth
        is_array = entry.key is None and depth == len(entry.path) - 1
        if not isinstance(found.value, list if is_array else dict):
            raise UnsupportedSyntax(f"{key!r} is not {'an array' if is_array else 'an object'}")
        node = found
    return node, len(entry.path)


def _appended(text: str, node: Node, key: str | None, value: Json) -> str:
    newline, line = newline_of(text), _indent_at(text, node.start)
    if not node.items:
        at = node.comments[-1][1] if node.comments else node.start + 1
        return text[:at] + (newline + line if node.comments else "") + _item(text, node, key, value, line) + text[at:]
    last = node.items[-1]
    end = last.node.end if last.comma is None else last.comma + 1
    at = max([end, *(comment[1] for comment in node.comments)])
    is_long = "\n" in text[node.start : node.items[0].start] + text[last.node.end : node.end]
    indent = _indent_of(text, node) if is_long else None
    ours = (" " if indent is None else newline + indent) + _item(text, node, key, value, indent)
    if last.comma is None:
        return text[:end] + "," + text[end:at] + ours + text[at:]
    return text[:at] + ours + "," + text[at:]


def _item(text: str, node: Node, key: str | None, value: Json, indent: str | None) -> str:
    if indent is None:
        rendered = re.sub(r"\n\s*", " ", render(value))
    else:
        line = _indent_at(text, node.start)
        unit = indent.removeprefix(line) if indent.startswith(line) and indent != line else "  "
        rendered = render(value, indent, unit, newline_of(text))
    return rendered if key is None else f"{json.dumps(key)}: {rendered}"


def _indent_at(text: str, position: int) -> str:
    line = text[text.rfind("\n", 0, position) + 1 :]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _indent_of(text: str, node: Node) -> str:
    """Return the indent of a container's items: that of the last one that begins a line, else one step more."""
    for item in reversed(node.items):
        start = text.rfind("\n", 0, item.start) + 1
        if not text[start : item.start].strip(" \t"):
            return text[start : item.start]
    return _indent_at(text, node.start) + "  "


# --- Taking out -------------------------------------------------------------------------------------------------------


def same(one: object, other: object) -> bool:
    """Compare as JSON: in Python, True equals 1."""
    return json.dumps(one, sort_keys=True, default=repr) == json.dumps(other, sort_keys=True, default=repr)


def _blank_before(text: str, position: int) -> int:
    return len(text[:position].rstrip(_BLANK))


def _is_ours(text: str, node: Node, last: int = 0) -> bool:
    """Tell whether a container has only our entries, in the form in which we write containers."""
    first = node.items[0]
    has_space = _blank_before(text, first.start) < first.start
    return len(node.items) == last + 1 and has_space and not node.comments and node.items[-1].comma is None


def _count_siblings(root: Node, at: int, entry: Entry) -> int:
    """Count the items after ours that `siblings` added."""
    rest = [(item.key, item.node.value) for item in root.items[at + 1 :]]
    count = 0
    for key, value in entry.siblings:
        if count < len(rest) and rest[count][0] == key and same(rest[count][1], value):
            count += 1
    return count


def _cut(text: str, node: Node, at: int) -> str:
    item = node.items[at]
    start, end = _blank_before(text, item.start), item.node.end
    if at == 0 and item.comma is not None and len(node.items) > 1:
        # The next item takes its position after the bracket.
        rest = text[item.comma + 1 :]
        return text[: item.start] + text[end : item.comma] + rest.lstrip(_BLANK)
    if item.comma is not None:
        return text[:start] + text[end : item.comma] + text[item.comma + 1 :]
    comma = node.items[at - 1].comma if at else None
    if comma is None:
        return text[:start] + text[end:]
    return text[:comma] + text[comma + 1 : start] + text[end:]
