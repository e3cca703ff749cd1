"""Words, commands, and what may stand before a command: keywords, settings, programs that run another one.

A shell is such a program too: its command line is a word behind `-c`, or what is typed into it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

KEYWORDS = frozenset({"if", "then", "else", "elif", "do", "while", "until", "!", "{", "}", "fi", "done"})
SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "fish"})
RUNS_ANOTHER: dict[str, frozenset[str]] = {
    "builtin": frozenset(),
    "busybox": frozenset(),
    "caffeinate": frozenset({"-t", "-w"}),
    "chroot": frozenset({"--userspec", "--groups"}),
    "chronic": frozenset(),
    "chrt": frozenset({"-T", "-P", "-D"}),
    "command": frozenset(),
    "coproc": frozenset(),
    "doas": frozenset({"-u", "-C"}),
    "env": frozenset({"-u", "-C", "-S", "--unset", "--chdir", "--split-string"}),
    "exec": frozenset({"-a"}),
    "flock": frozenset({"-w", "-E", "-c", "--timeout", "--wait", "--conflict-exit-code", "--command"}),
    "ionice": frozenset({"-c", "-n", "--class", "--classdata"}),
    "nice": frozenset({"-n", "--adjustment"}),
    "nohup": frozenset(),
    "parallel": frozenset(
        {"-a", "-C", "-d", "-E", "-I", "-j", "-L", "-n", "-N", "-P", "-s", "-S", "--arg-file", "--basefile", "--colsep"}
        | {"--delay", "--delimiter", "--env", "--halt", "--jobs", "--joblog", "--load", "--max-args", "--max-procs"}
        | {"--memfree", "--nice", "--results", "--retries", "--return", "--sshlogin", "--tagstring", "--timeout"}
        | {"--tmpdir", "--wd", "--workdir"}
    ),
    "pkexec": frozenset({"--user"}),
    "runuser": frozenset({"-c", "-g", "-G", "-s", "-u", "--command", "--group", "--shell", "--user"}),
    "script": frozenset({"-c", "-E", "-m", "-o", "--command", "--echo", "--logging-format", "--output-limit"}),
    "linux32": frozenset(),
    "linux64": frozenset(),
    "prlimit": frozenset({"-p", "-o"}),
    "setarch": frozenset(),
    "setpriv": frozenset({"--bounding-set", "--groups", "--inh-caps", "--rgid", "--ruid", "--euid", "--egid"}),
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
    "unbuffer": frozenset(),
    "unshare": frozenset({"-S", "-G", "-R", "-w", "--setuid", "--setgid", "--root", "--wd"}),
    "watch": frozenset({"-n", "-q", "--equexit", "--interval"}),
    "xargs": frozenset(
        {"-n", "-I", "-P", "-L", "-s", "-d", "-a", "-E", "--max-args", "--max-procs", "--max-lines", "--max-chars"}
        | {"--delimiter", "--arg-file"}
    ),
}
"""Programs that run the command behind their options, and the options of theirs that take the next word."""
_OPERANDS_FIRST = {"chroot": 1, "chrt": 1, "flock": 1, "script": 1_000, "su": 1_000, "taskset": 1, "timeout": 1}
BEHIND_A_VERB: dict[str, frozenset[str]] = {
    "bundle": frozenset({"exec"}),
    "pdm": frozenset({"run"}),
    "pipenv": frozenset({"run"}),
    "pnpm": frozenset({"exec"}),
    "poetry": frozenset({"run"}),
    "rye": frozenset({"run"}),
    "uv": frozenset({"run"}),
}
"""Programs that run the command behind one of their verbs; they are commands that a rule may name themselves."""
_TAKES_SETTINGS = frozenset({"doas", "env", "sudo"})
_BEFORE_A_COMMAND = frozenset(
    {"-C", "-p", "--directory", "--env-file", "--extra", "--group", "--package", "--project", "--python", "--with"}
    | {"--with-editable", "--with-requirements"}
)
"""Options of these programs that take the next word."""
_SCRIPTS = {
    "env": ("-S", "--split-string"),
    "flock": ("-c", "--command"),
    "runuser": ("-c", "--command"),
    "script": ("-c", "--command"),
    "su": ("-c", "--command", "--session-command"),
}
"""Options whose value is a command line."""
_FOLDERS = {"env": ("-C", "--chdir"), "sudo": ("-D", "--chdir")}
_NAME = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"


class UnclearError(Exception):
    """A command line that cannot be read."""


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

    @property
    def folder(self) -> str:
        """The word itself if it is certain, else the folder that it begins with; "." if there is none."""
        if self.clear is None:
            return self.text
        return self.clear[: self.clear.rfind("/") + 1] or "."

    def after(self, count: int) -> Word:
        """Return the word without its first characters."""
        clear = None if self.clear is None else self.clear[count:]
        pattern = None if self.pattern is None else self.pattern[count:]
        return Word(self.text[count:], clear, is_pattern=self.is_pattern, pattern=pattern)

    def before(self, count: int) -> Word:
        """Return the first characters of the word."""
        clear = None if self.clear is None else self.clear[:count]
        pattern = None if self.pattern is None else self.pattern[:count]
        return Word(self.text[:count], clear, is_pattern=self.is_pattern, pattern=pattern)


UNKNOWN = Word("", "")
"""A word of which nothing is known before the command runs."""
ANY_NAME = Word("*", "", is_pattern=True, pattern="*")
"""A name without a slash, otherwise unknown: a number, a date, the last part of a path."""


BELOW, LOST = 1, 2
"""A `cd` led to a folder somewhere below a known one, or to an unknown one."""


class Command:
    """One program with its words, where it runs, what it reads, and the files that its output is sent to."""

    __slots__ = ("cwd", "has_input", "inputs", "lost", "outputs", "typed", "words")

    def __init__(self, words: list[Word], cwd: str, outputs: list[Word], lost: int = 0) -> None:
        self.words, self.cwd, self.outputs = words, cwd, outputs
        self.lost = lost
        """How certain `cwd` is: 0, or `BELOW`, or `LOST`."""
        self.inputs: list[Word] = []
        """The files that its standard input is read from."""
        self.typed: list[str] = []
        """The texts that its standard input consists of, as far as they are known."""
        self.has_input = False
        """Whether its standard input is a pipe, a file or a here-document."""

    @property
    def texts(self) -> list[str]:
        """Its words as text."""
        return [word.text for word in self.words]


def is_assignment(text: str) -> bool:
    """Tell whether a word sets a variable."""
    name, equals, _ = text.partition("=")
    name = name.removesuffix("+")
    return bool(equals) and bool(name) and not name.strip(_NAME) and not name[0].isdecimal()


def unwrapped(words: Sequence[Word], cwd: str) -> tuple[list[Word], str, str]:
    """Take a program that runs another one off, with its own options.

    Returns the command behind it, where that runs, and a command line that an option gave instead.
    """
    name, script = os.path.basename(words[0].text), ""
    if name == "runuser" and not any(word.text[:2] == "-u" or word.text[:6] == "--user" for word in words):
        name = "su"
    with_value, operands = RUNS_ANOTHER[name], _OPERANDS_FIRST.get(name, 0)
    rest = list(words[1:])
    while rest:
        text = rest[0].text
        if text == "--":
            rest, operands = rest[1:], 0 if name == "script" else operands
            if not operands:
                break
        elif text.startswith("-"):
            option, value = _option(text, with_value)
            takes_next = value is None and option in with_value
            if takes_next:
                value = rest[1].text if len(rest) > 1 else ""
            if option in _FOLDERS.get(name, ()):
                cwd = os.path.join(cwd, value or "")
            elif option in _SCRIPTS.get(name, ()):
                script = value or ""
            rest = rest[2 if takes_next else 1 :]
        elif name in _TAKES_SETTINGS and is_assignment(text):
            rest = rest[1:]
        elif operands:
            operands -= 1
            rest = rest[1:]
        else:
            break
    return rest, cwd, script


def mark_of(words: Sequence[Word]) -> str:
    """Return what stands for a name in the command of `xargs` and `parallel`."""
    for at, word in enumerate(words[1:], start=1):
        if word.text[:2] == "-I":
            return word.text[2:] or (words[at + 1].text if at + 1 < len(words) else "{}") or "{}"
        if word.text[:1] != "-" and not words[at - 1].text.startswith("-"):
            break
    return "{}"


def behind_options(words: Sequence[Word]) -> list[Word]:
    """Take the options of `uv run` and its kin off that stand before a command."""
    rest = list(words)
    while rest and rest[0].text.startswith("-"):
        rest = rest[2 if rest[0].text in _BEFORE_A_COMMAND else 1 :]
    return rest


def _option(text: str, with_value: frozenset[str]) -> tuple[str, str | None]:
    """Return an option and the value in the same word, None if none is: `-iS` is `-i -S`, `-uana` is `-u ana`."""
    if text.startswith("--"):
        option, equals, value = text.partition("=")
        return option, value if equals else None
    for at, letter in enumerate(text[1:], start=1):
        if f"-{letter}" in with_value:
            return f"-{letter}", text[at + 1 :] or None
    return text, None


def begun(words: list[Word]) -> list[Word]:
    """Take off what stands before a command: keywords, settings of variables, the name of a function."""
    while words:
        text = words[0].text
        if text == "function" and not words[0].is_quoted:
            words = words[2:]
        elif (text in KEYWORDS and not words[0].is_quoted) or is_assignment(text):
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


def starts_shell(words: Sequence[Word]) -> bool:
    """Tell whether a program that was given no command runs a shell instead."""
    name = os.path.basename(words[0].text)
    takes_shell = any(word.text in {"-i", "-s", "--login", "--shell"} for word in words[1:])
    return name in {"chroot", "script", "su"} or (name in {"doas", "sudo"} and takes_shell)


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


def closing(text: str, start: int, pair: str = "()") -> int:
    """Return where the bracket that opens at a place is closed."""
    depth = 0
    for at in range(start, len(text)):
        depth += (text[at] == pair[0]) - (text[at] == pair[1])
        if not depth:
            return at
    raise UnclearError(f"a {pair[1]} is missing")
