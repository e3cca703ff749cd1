"""Words of a shell command: quotes, escapes, patterns, and expansions as far as the line defines their values.

A word is a text and the part of it that is certain. `$f` and `$(…)` may have several values; then one word becomes
several. An expansion without a known value leaves the word uncertain from there on.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence

from holdfast.guard import globs, pipes
from holdfast.guard.wrappers import ANY_NAME, UNKNOWN, Command, UnclearError, Word, closing, is_assignment

VALUES_MAX = 50
"""Values of one variable. A variable with more is unknown."""
EXPANSIONS_MAX = 2_000
"""How often a word with several values is read again in one line."""
NAMES_MAX = 100_000
"""How many names may replace the placeholders of `xargs` and `find -exec` in one line."""
_DECLARES = frozenset({"declare", "export", "local", "readonly", "typeset"})
_ONE_NAME = frozenset({"#", "$", "!", "?", "-", "EUID", "LINENO", "PPID", "RANDOM", "SECONDS", "UID", "EPOCHSECONDS"})
"""Variables with a value that contains no slash."""
_READ_WITH_VALUE = {"read": "dinNptu", "mapfile": "dnOsuCc", "readarray": "dnOsuCc"}
"""The letters of the options that take the next word."""
_CHARS_MAX = 512
"""Longer values are not stripped: the time for it grows with the square of the length."""


class Variables:
    """The known variables of one line."""

    def __init__(self) -> None:
        self._values: dict[str, list[Word]] = {}
        self._chosen: dict[str, Word] = {}
        self._left = EXPANSIONS_MAX
        self._names_left = NAMES_MAX
        self.folders = set[str]()
        """The folders that the line makes."""

    def note(self, words: Sequence[Word], fed: Sequence[Word] | None = None) -> None:
        """Record the variables that a command sets; `fed` is its standard input, None if that is unknown."""
        texts = [word.text for word in words[:3]]
        if texts[:1] == ["for"] and texts[2:] == ["in"]:
            for word in words[3:]:
                self.add(texts[1], word)
        elif texts[:2] == ["set", "--"]:
            self._values["@"] = list(words[2:])
        elif texts[:1] in (["read"], ["mapfile"], ["readarray"]):
            names = _read_names(words)
            for name in names:
                for word in [UNKNOWN] if fed is None else fed:
                    # With several names, each gets a part of the line.
                    self.add(name, UNKNOWN if word.is_sure and len(names) > 1 else word)
        else:
            if texts and texts[0] in _DECLARES:
                words = [word for word in words[1:] if not word.text.startswith("-")]
            if all(is_assignment(word.text) for word in words):
                for word in words:
                    name, value = word.text.partition("=")[0], word.after(word.text.index("=") + 1)
                    for each in self._added_to(name[:-1], value) if name[-1:] == "+" else [value]:
                        self.add(name.removesuffix("+"), each)

    def _added_to(self, name: str, value: Word) -> list[Word]:
        """Return the values of a variable after `+=`."""
        known = self._values.get(name) or [Word(os.environ.get(name, ""))]
        if value.is_sure and all(each.is_sure for each in known) and len(known) < VALUES_MAX:
            return [Word(each.text + value.text) for each in known]
        return [UNKNOWN]

    def add(self, name: str, value: Word) -> None:
        """Add a value of a variable."""
        known = self._values.setdefault(name, [])
        if len(known) <= VALUES_MAX and all((value.text, value.clear) != (each.text, each.clear) for each in known):
            known.append(value)

    def put(self, reader: int, at: int, values: Sequence[Word] | None) -> str:
        """Record the output of the substitution at a position of a reader; return a name for it."""
        name = f"{reader}:{at}"
        self._values[name] = [UNKNOWN] if values is None else list(values)
        return name

    def positional(self, words: Sequence[Word] | None) -> list[Word] | None:
        """Set the positional parameters, None for none; return those from before."""
        before = self._values.pop("@", None)
        if words is not None:
            self._values["@"] = list(words)
        return before

    def values(self, name: str, cwd: str) -> list[Word]:
        """Return the values of a variable; none if it is unknown."""
        if name in self._chosen:
            return [self._chosen[name]]
        name = "@" if name == "*" or (name.isdecimal() and name != "0") else name
        found = self._values.get(name)
        if found is None:
            if name in _ONE_NAME:
                return [ANY_NAME]
            # Hosts run the hook and the command with the same environment.
            value = cwd if name == "PWD" else os.path.expanduser("~") if name == "HOME" else os.environ.get(name, "")
            return [Word(value)] if value else []
        return found if len(found) <= VALUES_MAX else []

    def may_choose(self, count: int) -> bool:
        """Tell whether a word may be read so many times more."""
        self._left -= count
        return self._left >= 0

    def spend(self, count: int) -> None:
        """Count names that replace placeholders. Raises `UnclearError` if there are too many."""
        self._names_left -= count
        if self._names_left < 0:
            raise UnclearError("too many names stand in too many places")

    def choose(self, name: str, value: Word | None) -> None:
        """Give a variable one of its values; None restores all of them."""
        if value is None:
            self._chosen.pop(name, None)
        else:
            self._chosen[name] = value

    def changed(self, value: Word, operator: str) -> Word:
        """Apply the operator of `${name…}` to a value."""
        kind = operator[:1]
        if operator == "" or operator[:2] in {":-", ":=", ":?"} or kind in {"-", "=", "?"}:
            return value
        if kind in {"%", "#"} and len(value.text) <= _CHARS_MAX:
            return _stripped(value, kind, operator.lstrip(kind), is_longest=operator[1:2] == kind)
        if kind == "/" and value.is_sure and not set(operator) & set("*?[$`\\"):
            old, _, new = operator.lstrip("/").partition("/")
            return Word(value.text.replace(old, new, -1 if operator[:2] == "//" else 1))
        return UNKNOWN


def _read_names(words: Sequence[Word]) -> list[str]:
    """Return the variables that `read` or `mapfile` sets."""
    names, rest = [], iter(words[1:])
    for word in rest:
        if word.text[:1] == "-":
            if word.text[-1:] in _READ_WITH_VALUE[words[0].text]:
                next(rest, None)
        else:
            names.append(word.text)
    return names or ["REPLY", "MAPFILE"]


def _stripped(value: Word, kind: str, pattern: str, *, is_longest: bool) -> Word:
    """Apply `${name%…}` and `${name#…}`; a pattern in the value counts as text."""
    text = value.text
    places = range(len(text) + 1)
    if kind == "%":
        for at in places if is_longest else reversed(places):
            if globs.fits(pattern, text[at:]):
                return value.before(at)
        return value
    if not value.is_sure and value.pattern is None:
        return ANY_NAME if pattern.endswith("/") and is_longest else UNKNOWN
    for at in reversed(places) if is_longest else places:
        if globs.fits(pattern, text[:at]):
            return value.after(at)
    return value


_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_SPECIAL = frozenset("?!#@*$-")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class _Unsure(Protocol):
        def __call__(self, *, pattern: bool = False, is_exact: bool = False) -> None: ...


_SPLIT = "\0"
"""Stands for white space in the value of an expansion without quotes, where a shell splits the word."""


def _unquoted(value: str) -> tuple[str, str]:
    """Return the value of an expansion without quotes, and the part of it from its first pattern on."""
    value = value.translate({ord(space): _SPLIT for space in " \t\n"})
    at = min((place for place in map(value.find, "*?[") if place >= 0), default=len(value))
    return value[:at], value[at:]


def _split(word: Word) -> list[Word]:
    """Return the words that a shell makes of one."""
    if _SPLIT not in word.text:
        return [word]
    if is_assignment(word.text):
        text = word.text.replace(_SPLIT, " ")
        return [Word(text, None if word.clear is None else text[: len(word.clear)], is_pattern=word.is_pattern)]
    found, start = list[Word](), 0
    known = len(word.text) + 1 if word.clear is None else len(word.clear)
    for text in word.text.split(_SPLIT):
        at = next((place for place, char in enumerate(text) if char in "*?[{("), -1)
        if not text and start + len(text) < known:
            pass
        elif word.pattern is not None:
            found.append(Word(text) if at < 0 else Word(text, text[:at], is_pattern=True, pattern=text))
        elif start + len(text) < known:
            found.append(Word(text))
        else:
            found.append(Word(text, text[: max(0, known - start)]))
        start += len(text) + 1
    return found


class WordReader(ABC):
    """Reads the words of one text. The subclass reads commands, also those of substitutions."""

    def __init__(self, text: str, cwd: str, found: list[Command], known: Variables, *, at: int = 0) -> None:
        self.text, self.cwd, self.found, self.known, self.at = text, cwd, found, known, at
        self.open_variable = ""
        self.mark, self.names = "", list[Word]()
        """The placeholder of `xargs -I` or `find -exec` in this text, and the names that replace it."""

    @abstractmethod
    def substituted(self, text: str, at: int, end: str) -> tuple[int, list[Word] | None]:
        """Read the commands of a substitution; return the position after it and its output, None if unknown."""

    @abstractmethod
    def inner(self, text: str) -> WordReader:
        """Return a reader of another text that adds to the same commands."""

    def all_words(self) -> list[Word]:
        """Read a word; if an expansion in it has several values, return the word with each of them."""
        start, count, self.open_variable = self.at, len(self.found), ""
        words = [self.word()]
        name = self.open_variable
        values = self.known.values(name, self.cwd) if name else []
        if len(values) > 1 and self.known.may_choose(len(values)):
            words = []
            for value in values:
                self.at = start
                del self.found[count:]
                self.known.choose(name, value)
                words.append(self.word())
            self.known.choose(name, None)
        words = [each for word in words for each in _split(word)]
        if self.mark and any(self.mark in word.text for word in words):
            self.known.spend(len(words) * len(self.names))
            words = [each for word in words for each in pipes.filled(word, self.mark, self.names)]
        return words

    def word(self) -> Word:
        """Read one word."""
        parts: list[str] = []
        clear: str | None = None
        is_pattern = is_quoted = False
        only_patterns = True

        def unsure(*, pattern: bool = False, is_exact: bool = False) -> None:
            nonlocal clear, is_pattern, only_patterns
            only_patterns = only_patterns and is_exact
            if clear is None:
                clear, is_pattern = "".join(parts), pattern

        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "(" and parts and self.begins_pattern(parts[-1]):
                unsure(pattern=True, is_exact=True)
                end = closing(self.text, self.at) + 1
                parts.append(self.text[self.at : end])
                self.at = end
                continue
            if char in " \t\r\n;&|()<>":
                break
            if char == "\\":
                if self.text[self.at + 1 : self.at + 2] != "\n":
                    parts.append(self.text[self.at + 1 : self.at + 2])
                self.at += 2
            elif char == "'":
                end = self.text.find("'", self.at + 1)
                if end < 0:
                    raise UnclearError("a ' is missing")
                parts.append(self.text[self.at + 1 : end])
                self.at, is_quoted = end + 1, True
            elif char == '"':
                is_quoted = True
                self.double_quoted(parts, unsure)
            elif char in "$`":
                count = len(parts)
                self.expansion(parts, unsure)
                value, pattern_text = _unquoted("".join(parts[count:]))
                parts[count:] = [value]
                if pattern_text and clear is None:
                    unsure(pattern=True, is_exact=True)
                parts.append(pattern_text)
            else:
                if char in "*?[" or (char == "{" and not self.text.startswith("{}", self.at)):
                    unsure(pattern=True, is_exact=True)
                parts.append(char)
                self.at += 1
        text = "".join(parts)
        clear = None if clear is None else text[: len(clear)]
        pattern = text if clear is not None and only_patterns else None
        return Word(text, clear, is_pattern=is_pattern, is_quoted=is_quoted, pattern=pattern)

    def begins_pattern(self, before: str) -> bool:
        """Does a bracket within a word belong to a pattern, as in `*(.)`? `name()` is a function, `a=(1)` an array."""
        return not before.endswith("=") and self.text[self.at + 1 : self.at + 64].lstrip()[:1] not in {"", ")"}

    def ansi_quoted(self, parts: list[str], unsure: _Unsure) -> None:
        """Read `$'…'`. Only escaped quotes are decoded; any other escape makes the word uncertain."""
        self.at += 2
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "'":
                self.at += 1
                return
            if char == "\\":
                if self.text[self.at + 1 : self.at + 2] not in {"'", '"', "\\"}:
                    unsure()
                parts.append(self.text[self.at + 1 : self.at + 2])
                self.at += 2
            else:
                parts.append(char)
                self.at += 1
        raise UnclearError("a ' is missing")

    def double_quoted(self, parts: list[str], unsure: _Unsure) -> None:
        """Read `"…"`."""
        self.at += 1
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == '"':
                self.at += 1
                return
            if char == "\\" and self.text[self.at + 1 : self.at + 2] in {"$", "`", '"', "\\", "\n"}:
                parts.append(self.text[self.at + 1].replace("\n", ""))
                self.at += 2
            elif char in "$`":
                self.expansion(parts, unsure)
            else:
                parts.append(char)
                self.at += 1
        raise UnclearError('a " is missing')

    def expand_only(self, text: str) -> Word:
        """Expand a text as within double quotes; the commands that it substitutes are read."""
        if "$" not in text and "`" not in text:
            return Word(text)
        return self.inner('"' + text.replace('"', "'") + '"').word()

    def expansion(self, parts: list[str], unsure: _Unsure) -> None:
        """Read `$name`, `${…}`, `$((…))`, `$(…)` or backquotes, and append the value if it is known."""
        rest, start = self.text[self.at : self.at + 3], self.at
        if rest[0] == "`":
            end = self.text.find("`", self.at + 1)
            if end < 0:
                raise UnclearError("a ` is missing")
            _, values = self.substituted(self.text[self.at + 1 : end], 0, "")
            self.at = end + 1
            self.value_of(self.known.put(id(self), start, values), parts, unsure)
        elif rest.startswith("$((") and (end := closing(self.text, self.at + 1)) == closing(self.text, self.at + 2) + 1:
            self.expand_only(self.text[self.at + 3 : end - 1])
            self.at = end + 1
            self.value_of("#", parts, unsure)
        elif rest.startswith("$("):
            self.at, values = self.substituted(self.text, self.at + 2, ")")
            self.value_of(self.known.put(id(self), start, values), parts, unsure)
        elif rest.startswith("${"):
            end = closing(self.text, self.at + 1, "{}")
            expression = self.text[self.at + 2 : end]
            self.at = end + 1
            self.braced(expression, parts, unsure)
        elif rest.startswith("$'"):
            self.ansi_quoted(parts, unsure)
        elif rest.startswith('$"'):
            self.at += 1
        else:
            self.at += 1
            length = 0
            while self.text[self.at + length : self.at + length + 1] in _LETTERS:
                length += 1
            if not length and self.text[self.at : self.at + 1] not in _SPECIAL:
                parts.append("$")
                return
            name = self.text[self.at : self.at + max(length, 1)]
            self.at += len(name)
            self.value_of(name, parts, unsure)

    def braced(self, expression: str, parts: list[str], unsure: _Unsure) -> None:
        """Read the inside of `${…}`: a name, and an operator with its own text."""
        length = 0
        while expression[length : length + 1] in _LETTERS:
            length += 1
        if not length and (expression[:1] in {"@", "*"} or expression in _SPECIAL):
            length = 1
        name, operator = expression[:length], expression[length:]
        if operator.startswith("[") and "]" in operator:
            operator = operator[operator.index("]") + 1 :]
        given = self.expand_only(operator.lstrip(":-=+?%#/"))
        has_default = operator[:2] in {":-", ":="} or operator[:1] in {"-", "="}
        if operator.lstrip(":")[:1] == "+" or (has_default and not self.known.values(name, self.cwd)):
            self.append(given, parts, unsure)
        elif expression[:1] == "#" and length == 0:
            self.value_of("#", parts, unsure)
        else:
            self.value_of(name, parts, unsure, operator)

    def value_of(self, name: str, parts: list[str], unsure: _Unsure, operator: str = "") -> None:
        """Append the value of a variable, or mark the word as uncertain if it has none or several."""
        values = self.known.values(name, self.cwd)
        if len(values) == 1:
            self.append(self.known.changed(values[0], operator), parts, unsure)
            return
        if len(values) > 1:
            self.open_variable = self.open_variable or name
        unsure()

    def append(self, value: Word, parts: list[str], unsure: _Unsure) -> None:
        """Append a value to the word that is being read."""
        known = value.clear
        parts.append(value.text if known is None else known)
        if known is not None:
            unsure(pattern=value.is_pattern, is_exact=value.pattern is not None)
            parts.append(value.text[len(known) :])
