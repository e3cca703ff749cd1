"""A command line taken apart as a shell would, as far as that is reasonable: which programs run, with which words.

It is read and never run. Quotes, escapes, pipes, lists, subshells, substitutions, redirections and here-documents are
understood, `cd` is followed, and so are `sh -c`, what is typed into a shell (`sh <<EOF`, `echo … | sh`), `eval`,
programs that run another one (`wrappers`), and what one command hands to the next (`pipes`).
What is only known when it runs (a variable, a pattern) is marked in its word. A function, an alias, a script and a
program that writes files by itself cannot be seen; the docs say so.

What cannot be read raises `UnclearError`: whoever asks then refuses what could be meant.
"""

from __future__ import annotations

import os

from holdfast.guard import pipes
from holdfast.guard.pipes import Fed, Here
from holdfast.guard.variables import Variables
from holdfast.guard.wrappers import (
    BEHIND_A_VERB,
    RUNS_ANOTHER,
    SHELLS,
    UnclearError,
    Word,
    begun,
    behind_options,
    closing,
    is_typed_into,
    mark_of,
    place_of_script,
    unwrapped,
)

COMMANDS_MAX = 2_000
DEPTH_MAX = 12
LINE_CHARS_MAX = 4_000_000
"""Longer ones would take longer to read than a host waits, and no system runs them."""


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
    if len(text) > LINE_CHARS_MAX:
        raise UnclearError("it is too long")
    found: list[Command] = []
    _Reader(text, cwd, found, Variables(), 0).read("")
    return found


class _Reader:
    """Reads one text; substitutions are read by another one on the same list."""

    def __init__(self, text: str, cwd: str, found: list[Command], known: Variables, depth: int, *, at: int = 0) -> None:
        if depth > DEPTH_MAX:
            raise UnclearError("it is nested too deeply")
        self.text, self.cwd, self.found, self.known, self.depth, self.at = text, cwd, found, known, depth, at
        self.open_variable = ""
        self.words: list[Word] = []
        self.outputs: list[Word] = []
        self.here: list[Here] = []
        self.fed: Fed | None = None
        self.fed_here: list[Here] = []
        self.typed: list[str] = []
        self.before = cwd
        self.pushed: list[str] = []

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
                self.words += self.all_words()
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
        if char in "<>" and self.compares():
            self.words.append(Word(char))
            self.at += 1
        elif char in "<>" or rest.startswith("&>"):
            self.redirection(rest)
        elif char == "(":
            self.at += 1
            if self.words and not self.words[-1].text.endswith("="):
                return  # `name()` begins a function; its body follows.
            inner = _Reader(self.text, self.cwd, self.found, self.known, self.depth + 1, at=self.at)
            self.at = inner.read(")")
        elif char == ")":
            self.at += 1  # Behind a pattern of `case`, or `name()`.
            self.words = []
        else:
            self.at += 1
            is_pipe = char == "|" and "||" not in {rest[:2], self.text[self.at - 2 : self.at]}
            self.finish(is_pipe=is_pipe)
            if char == "\n":
                self.skip_here_documents()

    def compares(self) -> bool:
        """Are these the words of `[[ a > b ]]`? Nothing is redirected there."""
        return any(word.text == "[[" for word in self.words[:4]) and self.words[-1].text != "]]"

    def redirection(self, rest: str) -> None:
        if self.words and self.words[-1].text.isdecimal() and self.text[self.at - 1 : self.at].isdecimal():
            self.words.pop()
        if rest[:2] in {"<(", ">("}:
            self.at = _Reader(self.text, self.cwd, self.found, self.known, self.depth + 1, at=self.at + 2).read(")")
            return
        operator = next(each for each in ("<<<", "<<-", "&>>", "<<", "<>", "<&", ">>", ">|", ">&", "&>", "<", ">")
                        if rest.startswith(each))  # fmt: skip
        self.at += len(operator)
        while self.text[self.at : self.at + 1] in {" ", "\t"}:
            self.at += 1
        if self.at >= len(self.text) or self.text[self.at] in ";&|\n()":
            raise UnclearError(f"nothing stands behind {operator}")
        targets = self.all_words()
        target = targets[0]
        if operator in {"<<", "<<-"}:
            self.here.append(Here(target.text, self.words, is_quoted=target.is_quoted))
        elif operator == "<<<":
            self.typed.append(target.text)
        elif operator == ">&" and (target.text.isdecimal() or target.text == "-"):
            return
        elif operator not in {"<", "<&"}:
            self.outputs += targets

    def skip_here_documents(self) -> None:
        """Pass over the text of here-documents; what they would substitute is read, and what a shell would run."""
        for here in self.here:
            body = []
            while True:
                if self.at >= len(self.text):
                    break
                line = self.text[self.at : self._until("\n")]
                self.at = min(self._until("\n") + 1, len(self.text))
                if line.lstrip("\t") == here.delimiter:
                    break
                body.append(line)
            if is_typed_into(here.words):
                self.script("\n".join(body), self.cwd)
            elif not here.is_quoted:
                self.expand_only("\n".join(body))
        self.here, self.fed_here = [], []

    def expand_only(self, text: str) -> None:
        """Read the substitutions of a text, and nothing else of it."""
        if "$(" in text or "`" in text:
            _Reader('"' + text.replace('"', "'") + '"', self.cwd, self.found, self.known, self.depth + 1).word()

    # Words.

    def all_words(self) -> list[Word]:
        """Read a word; of one with a variable that has several values, what it is with each of them."""
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
        return words

    def word(self) -> Word:
        parts: list[str] = []
        clear: str | None = None
        is_pattern = is_quoted = False
        only_patterns = True

        def unsure(*, pattern: bool = False) -> None:
            nonlocal clear, is_pattern, only_patterns
            only_patterns = only_patterns and pattern
            if clear is None:
                clear, is_pattern = "".join(parts), pattern

        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "(" and parts and self.begins_pattern(parts[-1]):
                unsure(pattern=True)
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
                self.expansion(parts, unsure)
            else:
                if char in "*?[" or (char == "{" and not self.text.startswith("{}", self.at)):
                    unsure(pattern=True)
                parts.append(char)
                self.at += 1
        text = "".join(parts)
        pattern = text if clear is not None and only_patterns else None
        return Word(text, clear, is_pattern=is_pattern, is_quoted=is_quoted, pattern=pattern)

    def begins_pattern(self, before: str) -> bool:
        """Does a bracket within a word belong to a pattern, as in `*(.)`? `name()` is a function, `a=(1)` an array."""
        return not before.endswith("=") and self.text[self.at + 1 : self.at + 64].lstrip()[:1] not in {"", ")"}

    def ansi_quoted(self, parts: list[str], unsure: _Unsure) -> None:
        """Read `$'…'`. Of escapes only those of quotes are read; any other is known when it runs."""
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
            _Reader(self.text[self.at + 1 : end], self.cwd, self.found, self.known, self.depth + 1).read("")
            self.at = end + 1
        elif rest.startswith("$((") and (end := closing(self.text, self.at + 1)) == closing(self.text, self.at + 2) + 1:
            self.expand_only(self.text[self.at + 3 : end - 1])
            self.at = end + 1
        elif rest.startswith("$("):
            self.at = _Reader(self.text, self.cwd, self.found, self.known, self.depth + 1, at=self.at + 2).read(")")
        elif rest.startswith("${"):
            end = self.text.find("}", self.at)
            if end < 0:
                raise UnclearError("a } is missing")
            name = self.text[self.at + 2 : end]
            self.expand_only(name)
            self.at = end + 1
            if self.value_of(name, parts, unsure):
                return
        elif rest.startswith("$'"):
            self.ansi_quoted(parts, unsure)
            return
        elif rest.startswith('$"'):
            self.at += 1
            return
        else:
            self.at += 1
            length = 0
            while self.text[self.at + length : self.at + length + 1] in _LETTERS:
                length += 1
            if not length and self.text[self.at : self.at + 1] not in set("?!#@*$-"):
                parts.append("$")
                return
            name = self.text[self.at : self.at + length]
            self.at += max(length, 1)
            if self.value_of(name, parts, unsure):
                return
        unsure()

    def value_of(self, name: str, parts: list[str], unsure: _Unsure) -> bool:
        """Put the value of a variable where it stands, if the line says it; False if it does not."""
        values = self.known.values(name, self.cwd)
        if len(values) > 1:
            self.open_variable = self.open_variable or name
        if len(values) != 1:
            return False
        known = values[0].clear
        parts.append(values[0].text if known is None else known)
        if known is not None:
            unsure(pattern=values[0].is_pattern)
            parts.append(values[0].text[len(known) :])
        return True

    # Commands.

    def finish(self, *, is_pipe: bool = False) -> None:
        """A command is complete: unwrap it, follow it if it is `cd`, and keep it."""
        given, outputs, typed = self.words, self.outputs, self.typed
        if not given and not outputs:
            return  # As behind `|&`, or between a pipe and the next line.
        self.words, self.outputs, self.typed = [], [], []
        fed, fed_here = self.fed, self.fed_here
        self.fed, self.fed_here = None, []
        words = begun(given)
        self.known.note(words or given)
        self.keep(words, outputs, self.cwd, fed)
        if is_typed_into(words):
            texts = typed if fed is None or fed.text is None else [*typed, fed.text]
            for text in texts:
                self.script(text, self.cwd)
            for here in fed_here:
                here.words = words
        if is_pipe:
            self.fed = pipes.out_of(words, fed)
            if words and words[0].text == "cat":
                self.fed_here = [*fed_here, *(here for here in self.here if here.words is given)]

    def keep(self, words: list[Word], outputs: list[Word], cwd: str, fed: Fed | None = None) -> None:
        while words and (name := os.path.basename(words[0].text)) in RUNS_ANOTHER:
            mark = mark_of(words)
            words, cwd, script = unwrapped(words, cwd)
            if name in {"xargs", "parallel"}:
                words, names = pipes.with_names(words, fed, mark)
                if name == "parallel" and words and " " in words[0].text:
                    # It hands a line to a shell.
                    script, words = pipes.line_with(words[0].text, names, mark), []
            elif name == "env" and script:
                script, words = f"env {script} {pipes.quoted(words)}", []
            elif name == "watch" and words:
                script, words = " ".join(word.text for word in words), []
            words = begun(words)  # `time` may stand before a keyword.
            if script:
                self.script(script, cwd)
        if not words and not outputs:
            return
        if len(self.found) >= COMMANDS_MAX:
            raise UnclearError("it has too many commands")
        self.found.append(Command(words, cwd, outputs))
        name = os.path.basename(words[0].text) if words else ""
        if name in {"cd", "pushd", "popd"}:
            self.go(name, words)
        elif name == "eval":
            self.cwd = self.script(" ".join(word.text for word in words[1:]), cwd)
        elif name in SHELLS:
            if at := place_of_script(words):
                self.script(words[at].text, cwd)
        elif name == "trap" and words[2:] and words[1].text != "-":
            self.script(words[1].text, cwd)
        elif name in BEHIND_A_VERB and len(words) > 1 and words[1].text in BEHIND_A_VERB[name]:
            self.keep(behind_options(words[2:]), [], cwd, fed)
        elif name == "find":
            self.found_by_find(words, cwd)
        elif name == "holdfast":
            # `holdfast run JOB -- COMMAND`, `holdfast session exec NAME -- COMMAND`
            behind = next((at + 1 for at, word in enumerate(words) if word.text == "--"), len(words))
            self.keep(words[behind:], [], cwd)

    def go(self, name: str, words: list[Word]) -> None:
        """Follow `cd`, `pushd` and `popd`, as a shell does: `..` is taken off the name, wherever a link led."""
        target = next((word for word in words[1:] if word.text == "-" or word.text[:1] != "-"), None)
        place = self.cwd
        if name == "popd":
            place = self.pushed.pop() if self.pushed else place
        elif target is None:
            place = self.pushed.pop() if name == "pushd" and self.pushed else os.path.expanduser("~")
        elif target.is_sure:
            place = os.path.join(place, self.before if target.text == "-" else os.path.expanduser(target.text))
        if name == "pushd":
            self.pushed.append(self.cwd)
        self.before, self.cwd = self.cwd, os.path.normpath(place)

    def script(self, text: str, cwd: str) -> str:
        """Read a command line within this one; return the folder in which it ends."""
        reader = _Reader(text, cwd, self.found, self.known, self.depth + 1)
        reader.read("")
        return reader.cwd

    def found_by_find(self, words: list[Word], cwd: str) -> None:
        # What it finds is somewhere below the places that it begins at.
        places = pipes.below(pipes.places_of_find(words))
        for at, word in enumerate(words):
            if word.text in {"-exec", "-execdir", "-ok", "-okdir"}:
                end = next(
                    (place for place in range(at + 1, len(words)) if words[place].text in {";", "+"}), len(words)
                )
                self.keep(pipes.placed(words[at + 1 : end], places, "{}", is_added=False), [], cwd)


_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class _Unsure(Protocol):
        def __call__(self, *, pattern: bool = False) -> None: ...
