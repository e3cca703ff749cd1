"""Programs that wait for input and run it: shells, interpreters, database clients, editors.

Codex calls no hook for input to a running program, so starting one is refused there.
"""

from __future__ import annotations

import os

from holdfast.guard.wrappers import SHELLS, Command, place_of_script

_OTHER_OPTIONS = frozenset({"-V", "-h", "--help", "--version"})
_INTERPRETERS = frozenset(
    {"bun", "deno", "ghci", "iex", "ipython", "irb", "jshell", "julia", "lua", "node", "nodejs", "perl", "php", "pry"}
    | {"python", "pypy", "ruby", "scala", "R", "tclsh"}
)
"""They run the script that is named, or else their input."""
_CLIENTS = {
    "mariadb": ("-e", "--execute"),
    "mongosh": ("--eval", "--file", "-f"),
    "mysql": ("-e", "--execute"),
    "psql": ("-c", "-f", "-l", "--command", "--file", "--list"),
}
"""They run the command of one of these options, or else their input; operands name a database."""
_EDITORS = frozenset({"ed", "emacs", "ex", "gdb", "nano", "nvim", "pico", "vi", "view", "vim"})
_WITH_CODE = frozenset({"-c", "-e", "-E", "-m", "-p", "-r", "--eval", "--print", "--test", "--batch"})


def is_interactive(command: Command) -> bool:
    """Tell whether a command reads what to do from the terminal."""
    if not command.words or command.has_input:
        return False
    name = os.path.basename(command.words[0].text)
    name = name if name in _CLIENTS or name in _EDITORS else name.rstrip("0123456789.")
    texts = command.texts[1:]
    if _OTHER_OPTIONS & set(texts):
        return False
    has_operand = any(text and (text[0] != "-" and text[0] != "+") for text in texts)
    if name in SHELLS:
        return not place_of_script(command.words) and (not has_operand or "-i" in texts or "-s" in texts)
    if name in _INTERPRETERS:
        has_code = any(text.partition("=")[0] in _WITH_CODE or _has_code(text) for text in texts)
        return not (has_code or has_operand) or ("-i" in texts and name not in {"perl", "ruby"})  # There: in place.
    if name in _CLIENTS:
        return not any(text.partition("=")[0] in _CLIENTS[name] or _joined(text, _CLIENTS[name]) for text in texts)
    if name == "sqlite":
        return sum(text[:1] != "-" for text in texts) < 2  # noqa: PLR2004 - the database and the statement
    return name in _EDITORS and not any(text[:1] == "+" or text in _WITH_CODE or text[:3] == "-es" for text in texts)


def _has_code(text: str) -> bool:
    """`perl -pe`, `python -Sc`: the last letter of several is the option with the code."""
    return text[:1] == "-" and text[:2] != "--" and text[-1:] in {"c", "e", "E"} and len(text) > 2  # noqa: PLR2004


def _joined(text: str, options: tuple[str, ...]) -> bool:
    """`-tAc` is `-t -A -c`, `-e'select 1'` has its value in the same word."""
    letters = [option[1] for option in options if option[:2] != "--"]
    return text[:1] == "-" and text[:2] != "--" and (text[-1:] in letters or text[1:2] in letters)
