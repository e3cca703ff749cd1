"""Shell variables with every value that a line may give them, and word splitting."""

from __future__ import annotations

import os
from collections.abc import Sequence

from holdfast.agents.guard import paths
from holdfast.agents.guard.programs import parsed
from holdfast.agents.guard.syntax import ANY_NAME, UNKNOWN, UnclearError, Word, is_assignment

VALUES_MAX = 50  # A variable with more values is unknown.
EXPANSIONS_MAX = 2_000  # Rereads, per line, of words with several values.
NAMES_MAX = 100_000  # Names, per line, that replace placeholders of `xargs` and `find -exec`.
_DECLARES = frozenset({"declare", "export", "local", "readonly", "typeset"})
# Variables whose value contains no slash.
_ONE_NAME = frozenset({"#", "$", "!", "?", "-", "EUID", "LINENO", "PPID", "RANDOM", "SECONDS", "UID", "EPOCHSECONDS"})
_CHARS_MAX = 512  # Longer values are not stripped: stripping takes quadratic time.
_SPLIT = "\0"  # Marks white space in an unquoted expansion, where a shell splits the word.


class Variables:
    def __init__(self) -> None:
        self._values: dict[str, list[Word]] = {}
        self.chosen: dict[str, Word] = {}  # The value, out of several, that the current word is read with.
        self.expansions_left = EXPANSIONS_MAX
        self._names_left = NAMES_MAX
        self.folders = set[str]()  # Created by this line.

    def record_assignments(self, words: Sequence[Word], piped: Sequence[Word] | None = None) -> None:
        """Record the variables that a command sets; `piped` is its standard input (None if unknown)."""
        texts = [word.text for word in words[:3]]
        if texts[:1] == ["for"] and texts[2:] == ["in"]:
            for word in words[3:]:
                self.add(texts[1], word)
        elif texts[:2] == ["set", "--"]:
            self._values["@"] = list(words[2:])
        elif texts[:1] in (["read"], ["mapfile"], ["readarray"]):
            names = [word.text for word in parsed(texts[0], words[1:])[1]] or ["REPLY", "MAPFILE"]
            for name in names:
                for word in [UNKNOWN] if piped is None else piped:
                    # With several names, each gets an unknown part of the line.
                    self.add(name, UNKNOWN if word.is_sure and len(names) > 1 else word)
        else:
            if texts and texts[0] in _DECLARES:
                words = [word for word in words[1:] if not word.text.startswith("-")]
            if all(is_assignment(word.text) for word in words):
                for word in words:
                    name, value = word.text.partition("=")[0], word[word.text.index("=") + 1 :]
                    for each in self._added_to(name[:-1], value) if name[-1:] == "+" else [value]:
                        self.add(name.removesuffix("+"), each)

    def _added_to(self, name: str, value: Word) -> list[Word]:
        known = self._values.get(name) or [Word(os.environ.get(name, ""))]
        if value.is_sure and all(each.is_sure for each in known) and len(known) < VALUES_MAX:
            return [Word(each.text + value.text) for each in known]
        return [UNKNOWN]

    def add(self, name: str, value: Word) -> None:
        known = self._values.setdefault(name, [])
        if len(known) <= VALUES_MAX and all((value.text, value.clear) != (each.text, each.clear) for each in known):
            known.append(value)

    def put(self, name: str, values: Sequence[Word] | None) -> str:
        """Set a substitution's output (None if unknown); return the name."""
        self._values[name] = [UNKNOWN] if values is None else list(values)
        return name

    def values(self, name: str, cwd: str) -> list[Word]:
        if name in self.chosen:
            return [self.chosen[name]]
        name = "@" if name == "*" or (name.isdecimal() and name != "0") else name
        found = self._values.get(name)
        if found is not None:
            return found if len(found) <= VALUES_MAX else []
        if name in _ONE_NAME:
            return [ANY_NAME]
        # Hosts run hook and command with the same environment.
        value = cwd if name == "PWD" else os.path.expanduser("~") if name == "HOME" else os.environ.get(name, "")
        return [Word(value)] if value else []

    def positional(self, words: Sequence[Word] | None) -> list[Word] | None:
        """Set the positional parameters (None for none); return the earlier ones."""
        before = self._values.pop("@", None)
        if words is not None:
            self._values["@"] = list(words)
        return before

    def spend(self, count: int) -> None:
        self._names_left -= count
        if self._names_left < 0:
            raise UnclearError("too many names stand in too many places")


def changed(value: Word, operator: str) -> Word:
    kind = operator[:1]
    if operator == "" or operator[:2] in {":-", ":=", ":?"} or kind in {"-", "=", "?"}:
        return value
    if kind in {"%", "#"} and len(value.text) <= _CHARS_MAX:
        return _stripped(value, kind, operator.lstrip(kind), is_longest=operator[1:2] == kind)
    if kind == "/" and value.is_sure and not set(operator) & set("*?[$`\\"):
        old, _, new = operator.lstrip("/").partition("/")
        return Word(value.text.replace(old, new, -1 if operator[:2] == "//" else 1))
    return UNKNOWN


def _stripped(value: Word, kind: str, pattern: str, *, is_longest: bool) -> Word:
    """Apply `${name%…}` or `${name#…}`; a pattern in the value counts as text."""
    text = value.text
    indexes = range(len(text) + 1)
    if kind == "%":
        for at in indexes if is_longest else reversed(indexes):
            if paths.fits(pattern, text[at:]):
                return value[:at]
        return value
    if not value.is_sure and value.pattern is None:
        return ANY_NAME if pattern.endswith("/") and is_longest else UNKNOWN
    for at in reversed(indexes) if is_longest else indexes:
        if paths.fits(pattern, text[:at]):
            return value[at:]
    return value


class Draft:
    """The parts of the current word, and how much of them is certain."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.is_quoted = False
        self._clear: str | None = None
        self._is_pattern = False
        self._only_patterns = True

    def unsure(self, *, is_pattern: bool = False, is_exact: bool = False) -> None:
        """Mark the rest as expanded, for `is_pattern` by a file-name pattern; `is_exact` if the text shows it all."""
        self._only_patterns = self._only_patterns and is_exact
        if self._clear is None:
            self._clear, self._is_pattern = "".join(self.parts), is_pattern

    def append(self, value: Word) -> None:
        known = value.clear
        self.parts.append(value.text if known is None else known)
        if known is not None:
            self.unsure(is_pattern=value.is_pattern, is_exact=value.pattern is not None)
            self.parts.append(value.text[len(known) :])

    def unquote(self, start: int) -> None:
        """Mark where a shell splits the unquoted expansion in the parts from `start` on."""
        value = "".join(self.parts[start:]).translate({ord(space): _SPLIT for space in " \t\n"})
        at = min((index for index in map(value.find, "*?[") if index >= 0), default=len(value))
        self.parts[start:] = [value[:at]]
        if value[at:] and self._clear is None:
            self.unsure(is_pattern=True, is_exact=True)
        self.parts.append(value[at:])

    def word(self) -> Word:
        text = "".join(self.parts)
        clear = None if self._clear is None else text[: len(self._clear)]
        pattern = text if clear is not None and self._only_patterns else None
        return Word(text, clear, is_pattern=self._is_pattern, is_quoted=self.is_quoted, pattern=pattern)


def split(word: Word) -> list[Word]:
    if _SPLIT not in word.text:
        return [word]
    if is_assignment(word.text):
        text = word.text.replace(_SPLIT, " ")
        return [Word(text, None if word.clear is None else text[: len(word.clear)], is_pattern=word.is_pattern)]
    found, start = list[Word](), 0
    known = len(word.text) + 1 if word.clear is None else len(word.clear)
    for text in word.text.split(_SPLIT):
        at = next((index for index, char in enumerate(text) if char in "*?[{("), -1)
        if not text and start + len(text) < known:
            pass
        elif word.pattern is not None:
            found.append(Word(text) if at < 0 else Word(text, text[:at], is_pattern=True, pattern=text))
        else:
            found.append(Word(text) if start + len(text) < known else Word(text, text[: max(0, known - start)]))
        start += len(text) + 1
    return found
