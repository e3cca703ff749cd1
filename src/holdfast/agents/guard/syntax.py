"""Words and commands of a shell line, and how much of each is known before it runs."""

from __future__ import annotations

KEYWORDS = frozenset({"if", "then", "else", "elif", "do", "while", "until", "!", "{", "}", "fi", "done"})
BELOW, LOST = 1, 2  # `cd` led to somewhere below a known folder, or to an unknown one.
_NAME = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"


class UnclearError(Exception):
    """A command line that cannot be parsed."""


class Word:
    """One word of a command; a slice of it is a word too.

    `text` has no quotes and no parts that are known only at run time. `clear` is the certain prefix of a word with
    expansions, else None. `is_pattern`: the first expansion is a file-name pattern. `pattern` is the whole word if all
    its expansions are such patterns.
    """

    __slots__ = ("clear", "is_pattern", "is_quoted", "pattern", "text")

    def __init__(
        self,
        text: str,
        clear: str | None = None,
        *,
        is_pattern: bool = False,
        is_quoted: bool = False,
        pattern: str | None = None,
    ) -> None:
        self.text, self.clear, self.pattern = text, clear, pattern
        self.is_pattern, self.is_quoted = is_pattern, is_quoted

    def __getitem__(self, part: slice) -> Word:
        clear = None if self.clear is None else self.clear[part]
        pattern = None if self.pattern is None else self.pattern[part]
        return Word(self.text[part], clear, is_pattern=self.is_pattern, pattern=pattern)

    @property
    def is_sure(self) -> bool:
        return self.clear is None

    @property
    def folder(self) -> str:
        """The word itself if it is certain, else the folder of its prefix or "."."""
        return self.text if self.clear is None else self.clear[: self.clear.rfind("/") + 1] or "."


UNKNOWN = Word("", "")
ANY_NAME = Word("*", "", is_pattern=True, pattern="*")  # Unknown, but without a slash: a number, a date, a base name.


class Command:
    """One program with its words, its folder, and the files of its redirections.

    `lost` is how certain `cwd` is: 0, `BELOW` or `LOST`. `inputs` are the files on its standard input, `typed` the
    known texts there; `has_input` is False if it would read the terminal.
    """

    __slots__ = ("cwd", "has_input", "inputs", "lost", "outputs", "typed", "words")

    def __init__(self, words: list[Word], cwd: str, outputs: list[Word], lost: int = 0) -> None:
        self.words, self.cwd, self.outputs, self.lost = words, cwd, outputs, lost
        self.inputs: list[Word] = []
        self.typed: list[str] = []
        self.has_input = False

    @property
    def texts(self) -> list[str]:
        return [word.text for word in self.words]


def is_assignment(text: str) -> bool:
    name, equals, _ = text.partition("=")
    name = name.removesuffix("+")
    return bool(equals) and bool(name) and not name.strip(_NAME) and not name[0].isdecimal()


def simple_command(words: list[Word]) -> list[Word]:
    """Remove the keywords, assignments and function name before a command."""
    while words:
        text = words[0].text
        if text == "function" and not words[0].is_quoted:
            words = words[2:]
        elif (text in KEYWORDS and not words[0].is_quoted) or is_assignment(text):
            words = words[1:]
        else:
            break
    return words


def closing(text: str, start: int, pair: str = "()") -> int:
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == pair[0]) - (text[at] == pair[1])
        if not depth:
            return at
    raise UnclearError(f"a {pair[1]} is missing")
