"""A command line taken apart as a shell would, as far as that is reasonable: which programs run, with which words.

It is read and never run. Quotes, escapes, pipes, lists, subshells, substitutions, redirections and here-documents are
understood, `cd` is followed, and so are `sh -c`, `eval` and programs that run another one (`env`, `sudo`, `xargs`).
What is only known when it runs (a variable, a pattern) is marked in its word. A function, an alias, a script and a
program that writes files by itself cannot be seen; the docs say so.

What cannot be read raises `UnclearError`: whoever asks then refuses what could be meant.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

COMMANDS_MAX = 2_000
DEPTH_MAX = 12
_KEYWORDS = frozenset({"if", "then", "else", "elif", "do", "while", "until", "!", "{", "}", "fi", "done", "time"})
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "fish"})
_RUNS_ANOTHER: dict[str, frozenset[str]] = {
    "builtin": frozenset(),
    "busybox": frozenset(),
    "command": frozenset(),
    "doas": frozenset({"-u", "-C"}),
    "env": frozenset({"-u", "-C", "-S", "--unset", "--chdir"}),
    "exec": frozenset({"-a"}),
    "flock": frozenset({"-w", "-E", "--timeout"}),
    "ionice": frozenset({"-c", "-n"}),
    "nice": frozenset({"-n"}),
    "nohup": frozenset(),
    "setsid": frozenset(),
    "stdbuf": frozenset({"-i", "-o", "-e"}),
    "sudo": frozenset({"-u", "-g", "-h", "-p", "-C", "-D", "-R", "-T"}),
    "time": frozenset({"-f", "-o"}),
    "timeout": frozenset({"-s", "-k", "--signal", "--kill-after"}),
    "xargs": frozenset({"-n", "-I", "-P", "-L", "-s", "-d", "-a", "-E"}),
}
"""Programs that run the command behind their options, and the options of theirs that take the next word."""
_OPERANDS_FIRST = {"flock": 1, "timeout": 1}


class UnclearError(Exception):
    """A command line that cannot be read."""


class Word:
    """One word of a command."""

    __slots__ = ("clear", "is_pattern", "is_quoted", "text")

    def __init__(
        self, text: str, clear: str | None = None, *, is_pattern: bool = False, is_quoted: bool = False
    ) -> None:
        self.text = text
        """What it says, without quotes; of what is only known at run time nothing."""
        self.clear = clear
        """The beginning of it that is known for sure, where something in it is expanded; else None."""
        self.is_pattern = is_pattern
        """Whether the first thing to be expanded is a pattern of files."""
        self.is_quoted = is_quoted

    @property
    def is_sure(self) -> bool:
        """Is it known as a whole?"""
        return self.clear is None


class Command:
    """One program with its words, where it runs, and the files that its output is sent to."""

    __slots__ = ("cwd", "outputs", "words")

    def __init__(self, words: list[Word], cwd: str, outputs: list[Word]) -> None:
        self.words, self.cwd, self.outputs = words, cwd, outputs

    @property
    def texts(self) -> list[str]:
        """Its words as text."""
        return [word.text for word in self.words]


def commands_of(text: str, cwd: str) -> list[Command]:
    """Return every command of a line, in its order. Raises `UnclearError`."""
    found: list[Command] = []
    _Reader(text, cwd, found, 0).read("")
    return found


class _Reader:
    """Reads one text; substitutions are read by another one on the same list."""

    def __init__(self, text: str, cwd: str, found: list[Command], depth: int, at: int = 0) -> None:
        if depth > DEPTH_MAX:
            raise UnclearError("it is nested too deeply")
        self.text, self.cwd, self.found, self.depth, self.at = text, cwd, found, depth, at
        self.words: list[Word] = []
        self.outputs: list[Word] = []
        self.here: list[tuple[str, bool]] = []

    def read(self, end: str) -> int:
        """Read commands until `end`, or to the end of the text; return the place behind it."""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == end and end:
                self.finish()
                return self.at + 1
            if char in " \t\r":
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at += 2
            elif char == "#":
                self.at = self._until("\n")
            elif char in ";&|\n()<>":
                self.operator(char)
            else:
                self.words.append(self.word())
        if end:
            raise UnclearError(f"a {end} is missing")
        self.finish()
        return self.at

    def _until(self, char: str) -> int:
        found = self.text.find(char, self.at)
        return len(self.text) if found < 0 else found

    # Operators.

    def operator(self, char: str) -> None:
        rest = self.text[self.at : self.at + 3]
        if char in "<>" or rest.startswith("&>"):
            self.redirection(rest)
        elif char == "(":
            self.at += 1
            if self.words and not self.words[-1].text.endswith("="):
                return  # `name()` begins a function; its body follows.
            inner = _Reader(self.text, self.cwd, self.found, self.depth + 1, self.at)
            self.at = inner.read(")")
        elif char == ")":
            self.at += 1  # Behind a pattern of `case`, or `name()`.
            self.words = []
        else:
            self.at += 1
            self.finish()
            if char == "\n":
                self.skip_here_documents()

    def redirection(self, rest: str) -> None:
        if self.words and self.words[-1].text.isdecimal() and self.text[self.at - 1 : self.at].isdecimal():
            self.words.pop()
        if rest[:2] in {"<(", ">("}:
            self.at = _Reader(self.text, self.cwd, self.found, self.depth + 1, self.at + 2).read(")")
            return
        operator = next(each for each in ("<<<", "<<-", "&>>", "<<", "<>", "<&", ">>", ">|", ">&", "&>", "<", ">")
                        if rest.startswith(each))  # fmt: skip
        self.at += len(operator)
        while self.text[self.at : self.at + 1] in {" ", "\t"}:
            self.at += 1
        if self.at >= len(self.text) or self.text[self.at] in ";&|\n()":
            raise UnclearError(f"nothing stands behind {operator}")
        target = self.word()
        if operator in {"<<", "<<-"}:
            self.here.append((target.text, target.is_quoted))
        elif operator == ">&" and (target.text.isdecimal() or target.text == "-"):
            return
        elif operator not in {"<", "<<<", "<&"}:
            self.outputs.append(target)

    def skip_here_documents(self) -> None:
        """Pass over the text of here-documents; what they would substitute is read."""
        for delimiter, is_quoted in self.here:
            body = []
            while True:
                if self.at >= len(self.text):
                    break
                line = self.text[self.at : self._until("\n")]
                self.at = min(self._until("\n") + 1, len(self.text))
                if line.lstrip("\t") == delimiter:
                    break
                body.append(line)
            if not is_quoted:
                self.expand_only("\n".join(body))
        self.here = []

    def expand_only(self, text: str) -> None:
        """Read the substitutions of a text, and nothing else of it."""
        if "$(" in text or "`" in text:
            _Reader('"' + text.replace('"', "'") + '"', self.cwd, self.found, self.depth + 1).word()

    # Words.

    def word(self) -> Word:
        parts: list[str] = []
        clear: str | None = None
        is_pattern = is_quoted = False

        def unsure(*, pattern: bool = False) -> None:
            nonlocal clear, is_pattern
            if clear is None:
                clear, is_pattern = "".join(parts), pattern

        while self.at < len(self.text):
            char = self.text[self.at]
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
                self.expansion(parts, unsure)
            else:
                if char in "*?[{":
                    unsure(pattern=True)
                parts.append(char)
                self.at += 1
        return Word("".join(parts), clear, is_pattern=is_pattern, is_quoted=is_quoted)

    def double_quoted(self, parts: list[str], unsure: _Unsure) -> None:
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

    def expansion(self, parts: list[str], unsure: _Unsure) -> None:
        """Pass over `$name`, `${…}`, `$((…))`, `$(…)` and backquotes; the commands in them are read."""
        rest = self.text[self.at : self.at + 3]
        if rest[0] == "`":
            end = self.text.find("`", self.at + 1)
            if end < 0:
                raise UnclearError("a ` is missing")
            _Reader(self.text[self.at + 1 : end], self.cwd, self.found, self.depth + 1).read("")
            self.at = end + 1
        elif rest.startswith("$(("):
            end = self.text.find("))", self.at)
            if end < 0:
                raise UnclearError("a )) is missing")
            self.at = end + 2
        elif rest.startswith("$("):
            self.at = _Reader(self.text, self.cwd, self.found, self.depth + 1, self.at + 2).read(")")
        elif rest.startswith("${"):
            end = self.text.find("}", self.at)
            if end < 0:
                raise UnclearError("a } is missing")
            self.expand_only(self.text[self.at + 2 : end])
            self.at = end + 1
        elif rest.startswith("$'"):
            self.at += 1  # The escapes in it are not read: rare, and the words are still the right ones.
            return
        else:
            self.at += 1
            length = len(self.text[self.at :]) - len(self.text[self.at :].lstrip(_NAME))
            if not length and self.text[self.at : self.at + 1] not in set("?!#@*$-"):
                parts.append("$")
                return
            self.at += max(length, 1)
        unsure()

    # Commands.

    def finish(self) -> None:
        """A command is complete: unwrap it, follow it if it is `cd`, and keep it."""
        words, outputs = self.words, self.outputs
        self.words, self.outputs = [], []
        while words and ((words[0].text in _KEYWORDS and not words[0].is_quoted) or _is_assignment(words[0])):
            words = words[1:]
        self.keep(words, outputs, self.cwd)

    def keep(self, words: list[Word], outputs: list[Word], cwd: str) -> None:
        while words and (name := os.path.basename(words[0].text)) in _RUNS_ANOTHER:
            words, cwd = _unwrapped(name, words, cwd)
        if not words and not outputs:
            return
        if len(self.found) >= COMMANDS_MAX:
            raise UnclearError("it has too many commands")
        self.found.append(Command(words, cwd, outputs))
        name = os.path.basename(words[0].text) if words else ""
        if name in {"cd", "pushd"}:
            target = next((word for word in words[1:] if not word.text.startswith("-")), None)
            if target is not None and target.is_sure:
                self.cwd = os.path.join(self.cwd, os.path.expanduser(target.text))
        elif name == "eval":
            self.script(" ".join(word.text for word in words[1:]), cwd)
        elif name in _SHELLS:
            flags = [at for at, word in enumerate(words) if word.text[:1] == "-" and "c" in word.text.lstrip("-")]
            if flags and len(words) > flags[0] + 1 and not words[flags[0]].text.startswith("--"):
                self.script(words[flags[0] + 1].text, cwd)
        elif name == "find":
            self.found_by_find(words, cwd)

    def script(self, text: str, cwd: str) -> None:
        _Reader(text, cwd, self.found, self.depth + 1).read("")

    def found_by_find(self, words: list[Word], cwd: str) -> None:
        for at, word in enumerate(words):
            if word.text in {"-exec", "-execdir", "-ok"}:
                end = next(
                    (place for place in range(at + 1, len(words)) if words[place].text in {";", "+"}), len(words)
                )
                self.keep(words[at + 1 : end], [], cwd)


_NAME = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class _Unsure(Protocol):
        def __call__(self, *, pattern: bool = False) -> None: ...


def _is_assignment(word: Word) -> bool:
    name, equals, _ = word.text.partition("=")
    return bool(equals) and bool(name) and not name.strip(_NAME) and not name[0].isdecimal()


def _unwrapped(name: str, words: Sequence[Word], cwd: str) -> tuple[list[Word], str]:
    """Take the program that runs another one off, with its own options."""
    with_value, operands = _RUNS_ANOTHER[name], _OPERANDS_FIRST.get(name, 0)
    rest = list(words[1:])
    while rest:
        text = rest[0].text
        if text.startswith("-"):
            if text in {"-C", "--chdir"} and name == "env" and len(rest) > 1:
                cwd = os.path.join(cwd, rest[1].text)
            rest = rest[2 if text in with_value else 1 :]
        elif name == "env" and _is_assignment(rest[0]):
            rest = rest[1:]
        elif operands:
            operands -= 1
            rest = rest[1:]
        else:
            break
    return rest, cwd
