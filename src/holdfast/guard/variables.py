"""Variables of a command line whose values stand in the line itself: `for f in src/*.py`, `F=src/a`, `$PWD`.

A variable may have several values, and which one it has when is not followed: all of them count.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from holdfast.guard.wrappers import Word, is_assignment

VALUES_MAX = 50
"""Of one variable. If there are more, its value is as unknown as that of any other."""
EXPANSIONS_MAX = 2_000
"""How often a word with several values is read again in one line."""
_DECLARES = frozenset({"declare", "export", "local", "readonly", "typeset"})


class Variables:
    """What is known of the variables of one line."""

    def __init__(self) -> None:
        self._values: dict[str, list[Word]] = {}
        self._chosen: dict[str, Word] = {}
        self._left = EXPANSIONS_MAX

    def note(self, words: Sequence[Word]) -> None:
        """Take note of what a command sets, if that is all that it does."""
        texts = [word.text for word in words[:3]]
        if texts[:1] == ["for"] and texts[2:] == ["in"]:
            for word in words[3:]:
                self._add(texts[1], word)
            return
        if texts and texts[0] in _DECLARES:
            words = [word for word in words[1:] if not word.text.startswith("-")]
        if all(is_assignment(word.text) for word in words):
            for word in words:
                name, _, value = word.text.partition("=")
                if word.is_sure:
                    self._add(name, Word(value))

    def _add(self, name: str, value: Word) -> None:
        known = self._values.setdefault(name, [])
        if len(known) <= VALUES_MAX and all(value.text != each.text for each in known):
            known.append(value)

    def values(self, name: str, cwd: str) -> list[Word]:
        """Return the values of a variable; none if it is not known."""
        if name in self._chosen:
            return [self._chosen[name]]
        found = self._values.get(name, [])
        if not found and name in {"HOME", "PWD"}:
            return [Word(cwd if name == "PWD" else os.path.expanduser("~"))]
        return found if len(found) <= VALUES_MAX else []

    def may_choose(self, count: int) -> bool:
        """Tell whether a word may be read so many times more."""
        self._left -= count
        return self._left >= 0

    def choose(self, name: str, value: Word | None) -> None:
        """Let a variable have one of its values; None gives it all of them back."""
        if value is None:
            self._chosen.pop(name, None)
        else:
            self._chosen[name] = value
