"""What one command hands to the next: the names that `xargs` and `parallel` get, the text that a shell runs.

As far as the line itself says it. `find src | xargs rm` may remove whatever is below `src`, as `find -exec` may; what a
program makes up, or reads from a file, is known only when it runs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from holdfast.guard.wrappers import RUNS_ANOTHER, UnclearError, Word, unwrapped

WORDS_MAX = 100_000
LINE_CHARS_MAX = 4_000_000

_FILTERS = frozenset({"head", "sort", "shuf", "tac", "tail", "uniq"})
"""They hand on some of the lines that they get."""
_SEARCHERS = frozenset({"ack", "ag", "egrep", "fgrep", "grep", "rg"})
_MARKS = frozenset({":::", ":::+"})
"""Behind them `parallel` has its names."""
_FILES_OF_NAMES = frozenset({"::::", "::::+"})


class Fed:
    """What comes out of a command, as far as it is known."""

    __slots__ = ("names", "text")

    def __init__(self, names: list[Word], text: str | None = None) -> None:
        self.names = names
        """Names of files; of one that is not whole, the folder that it is below."""
        self.text = text
        """All of it as text; None if that is not known."""


class Here:
    """A here-document whose text is still to come, and the command that gets it."""

    __slots__ = ("delimiter", "is_quoted", "words")

    def __init__(self, delimiter: str, words: list[Word], *, is_quoted: bool) -> None:
        self.delimiter, self.words, self.is_quoted = delimiter, words, is_quoted


def out_of(words: Sequence[Word], fed: Fed | None) -> Fed | None:
    """Return what a command hands on, given what it gets itself; None if that cannot be told."""
    while words and os.path.basename(words[0].text) in RUNS_ANOTHER:
        words = unwrapped(words, "/")[0]
    if not words:
        return None
    name, rest = os.path.basename(words[0].text), words[1:]
    if name in {"echo", "printf"}:
        said = [word for word in rest if name == "printf" or word.text not in {"-n", "-e", "-E", "-ne", "-en"}]
        text = " ".join(word.text for word in said)
        return Fed([word for word in said if "%" not in word.text], text.replace("\\n", "\n"))
    if name == "find":
        return Fed(below(places_of_find(words)))
    operands = [word for word in rest if word.text[:1] != "-"]
    if name == "ls":
        return Fed([*operands, *below(operands or [Word(".")])])
    if name == "git":
        return _out_of_git(operands)
    if name in _SEARCHERS:
        gives_pattern = any(word.text[:2] == "-e" or word.text.startswith("--regexp") for word in rest)
        places = operands if gives_pattern else operands[1:]
        return fed if fed is not None and not places else Fed(_all(places))
    if name == "cat":
        return fed
    return fed if name in _FILTERS and fed is not None else None


def _out_of_git(operands: Sequence[Word]) -> Fed | None:
    """`git ls-files`, `git grep -l` and `git diff --name-only` name files of where they are, or of the places given."""
    verb = operands[0].text if operands else ""
    if verb not in {"diff", "grep", "ls-files"}:
        return None
    places = [] if verb == "diff" else operands[2 if verb == "grep" else 1 :]
    return Fed(_all(places))


def _all(places: Sequence[Word]) -> list[Word]:
    """What is named, and what is below it; without a name all that is below the folder."""
    return [*places, *below(places or [Word(".")])]


def below(places: Sequence[Word]) -> list[Word]:
    """Return words for whatever is somewhere below these places."""
    return [
        Word("{}", (word.text if word.clear is None else word.clear).rstrip("/") + "/", is_pattern=True)
        for word in places
    ]


def places_of_find(words: Sequence[Word]) -> list[Word]:
    """Return where a `find` begins to look."""
    found = []
    for word in words[1:]:
        if word.text in {"-H", "-L", "-P"}:
            continue
        if word.text[:1] in {"-", "(", "!"}:
            break
        found.append(word)
    return found or [Word(".")]


def with_names(words: Sequence[Word], fed: Fed | None, mark: str) -> tuple[list[Word], list[Word]]:
    """Return the command that `xargs` or `parallel` runs, with its names in their places; and these names.

    `parallel` may have them behind a mark of its own.
    """
    marks = _MARKS | _FILES_OF_NAMES
    end = next((at for at, word in enumerate(words) if word.text in marks), len(words))
    names = [] if fed is None or end < len(words) else fed.names
    is_names, named = False, list[Word]()
    for word in words[end:]:
        if word.text in marks:
            is_names = word.text in _MARKS
        elif is_names:
            named.append(word)
    names = [*names, *named]
    return placed(words[:end], names, mark), names


def placed(words: Sequence[Word], names: Sequence[Word], mark: str, *, is_added: bool = True) -> list[Word]:
    """Put names where a mark stands for them, else behind the last word. Raises `UnclearError` if it is too much."""
    marks = sum(mark in word.text for word in words[1:])
    if not marks:
        return [*words, *names] if is_added else list(words)
    if marks * len(names) > WORDS_MAX:
        raise UnclearError("too many names stand in too many places")
    return [
        each
        for word in words
        for each in ((names or [word]) if word.text == mark else [_partly(word, mark) if names else word])
    ]


def _partly(word: Word, mark: str) -> Word:
    """Return a word in which a name stands that is only known when it runs."""
    if mark not in word.text or not word.is_sure:
        return word
    return Word(word.text, word.text.partition(mark)[0])


def line_with(text: str, names: Sequence[Word], mark: str) -> str:
    """Return the line that `parallel` hands to a shell. Raises `UnclearError` if it is too much."""
    said = quoted(names)
    if text.count(mark) * len(said) > LINE_CHARS_MAX:
        raise UnclearError("too many names stand in too many places")
    return text.replace(mark, said) if mark in text else f"{text} {said}"


def quoted(words: Sequence[Word]) -> str:
    """Write words that are known so that a shell reads the same ones."""
    return " ".join("'" + word.text.replace("'", "'\\''") + "'" for word in words if word.is_sure)
