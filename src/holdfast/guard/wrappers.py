"""Words, and what may stand before a command: keywords, settings, programs that run another one.

A shell is such a program too: its command line is a word behind `-c`, or what is typed into it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

_KEYWORDS = frozenset({"if", "then", "else", "elif", "do", "while", "until", "!", "{", "}", "fi", "done"})
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "fish"})
RUNS_ANOTHER: dict[str, frozenset[str]] = {
    "builtin": frozenset(),
    "busybox": frozenset(),
    "caffeinate": frozenset({"-t", "-w"}),
    "chronic": frozenset(),
    "command": frozenset(),
    "coproc": frozenset(),
    "doas": frozenset({"-u", "-C"}),
    "env": frozenset({"-u", "-C", "-S", "--unset", "--chdir", "--split-string"}),
    "exec": frozenset({"-a"}),
    "flock": frozenset({"-w", "-E", "-c", "--timeout", "--wait", "--conflict-exit-code", "--command"}),
    "ionice": frozenset({"-c", "-n", "--class", "--classdata"}),
    "nice": frozenset({"-n", "--adjustment"}),
    "nohup": frozenset(),
    "setsid": frozenset(),
    "stdbuf": frozenset({"-i", "-o", "-e", "--input", "--output", "--error"}),
    "strace": frozenset({"-a", "-e", "-E", "-o", "-p", "-P", "-s", "-u"}),
    "su": frozenset({"-c", "-g", "-G", "-s", "--command", "--group", "--shell", "--session-command"}),
    "sudo": frozenset(
        {"-u", "-g", "-h", "-p", "-C", "-D", "-R", "-T", "-U", "-r", "-t", "--user", "--group", "--host", "--prompt"}
        | {"--close-from", "--chdir", "--chroot", "--command-timeout", "--other-user", "--role", "--type"}
    ),
    "taskset": frozenset(),
    "time": frozenset({"-f", "-o", "--format", "--output"}),
    "timeout": frozenset({"-s", "-k", "--signal", "--kill-after"}),
    "xargs": frozenset(
        {"-n", "-I", "-P", "-L", "-s", "-d", "-a", "-E", "--max-args", "--max-procs", "--max-lines", "--max-chars"}
        | {"--delimiter", "--arg-file"}
    ),
}
"""Programs that run the command behind their options, and the options of theirs that take the next word."""
_OPERANDS_FIRST = {"flock": 1, "su": 1_000, "taskset": 1, "timeout": 1}
_TAKES_SETTINGS = frozenset({"doas", "env", "sudo"})
_SCRIPTS = {
    "env": ("-S", "--split-string"),
    "flock": ("-c", "--command"),
    "su": ("-c", "--command", "--session-command"),
}
"""Options whose value is a command line."""
_FOLDERS = {"env": ("-C", "--chdir"), "sudo": ("-D", "--chdir")}
_NAME = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"


class Word:
    """One word of a command."""

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
        self.text = text
        """What it says, without quotes; of what is only known at run time nothing."""
        self.clear = clear
        """The beginning of it that is known for sure, where something in it is expanded; else None."""
        self.is_pattern = is_pattern
        """Whether the first thing to be expanded is a pattern of files."""
        self.is_quoted = is_quoted
        self.pattern = pattern
        """All of it, where nothing but patterns of files is expanded in it."""

    @property
    def is_sure(self) -> bool:
        """Is it known as a whole?"""
        return self.clear is None


def is_assignment(text: str) -> bool:
    """Tell whether a word sets a variable."""
    name, equals, _ = text.partition("=")
    return bool(equals) and bool(name) and not name.strip(_NAME) and not name[0].isdecimal()


def unwrapped(words: Sequence[Word], cwd: str) -> tuple[list[Word], str, str]:
    """Take a program that runs another one off, with its own options.

    Returns the command behind it, where that runs, and a command line that an option gave instead.
    """
    name, script = os.path.basename(words[0].text), ""
    with_value, operands = RUNS_ANOTHER[name], _OPERANDS_FIRST.get(name, 0)
    rest = list(words[1:])
    while rest:
        text = rest[0].text
        if text.startswith("-"):
            option, equals, value = text.partition("=")
            takes_next = not equals and option in with_value
            if takes_next:
                value = rest[1].text if len(rest) > 1 else ""
            if option in _FOLDERS.get(name, ()):
                cwd = os.path.join(cwd, value)
            elif option in _SCRIPTS.get(name, ()):
                script = value
            rest = rest[2 if takes_next else 1 :]
        elif name in _TAKES_SETTINGS and is_assignment(text):
            rest = rest[1:]
        elif operands:
            operands -= 1
            rest = rest[1:]
        else:
            break
    return rest, cwd, script


def begun(words: list[Word]) -> list[Word]:
    """Take off what stands before a command: keywords, settings of variables, the name of a function."""
    while words:
        text = words[0].text
        if text == "function" and not words[0].is_quoted:
            words = words[2:]
        elif (text in _KEYWORDS and not words[0].is_quoted) or is_assignment(text):
            words = words[1:]
        else:
            break
    return words


def place_of_script(words: Sequence[Word]) -> int:
    """Tell which word of a shell is the command line that it runs; 0 if none is."""
    for at, word in enumerate(words[1:], start=1):
        if word.text[:1] == "-" and word.text[:2] != "--" and "c" in word.text:
            return at + 1 if at + 1 < len(words) else 0
    return 0


def is_typed_into(words: list[Word]) -> bool:
    """Is this a shell that runs what it reads on its standard input?"""
    words = begun(words)
    while words and os.path.basename(words[0].text) in RUNS_ANOTHER:
        words = unwrapped(words, "/")[0]
    if not words or os.path.basename(words[0].text) not in SHELLS or place_of_script(words):
        return False
    texts = [word.text for word in words[1:]]
    return any(text[:1] == "-" and text[:2] != "--" and "s" in text for text in texts) or all(
        text.startswith("-") for text in texts
    )
