"""Files that inline code and patches write: `python -c`, `node <<EOF`, `awk '… > "x"'`, `patch`, `git apply`.

Code is not interpreted. If it contains a call that writes files, every string in it that could be a path counts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from holdfast.guard.wrappers import UNKNOWN, Command, Word

PATCH_BYTES_MAX = 4 * 1024 * 1024
"""Longer patches are not read."""
_CODE_OPTIONS = {"python": "c", "node": "ep", "bun": "e", "ruby": "e", "perl": "eE", "php": "r", "lua": "e"}
"""The letters of the options that are followed by code."""
_WITH_VALUE = {"python": {"-W", "-X"}, "node": {"-r", "--require", "--import", "-C"}, "ruby": {"-I", "-r"}}
"""Options before the code that take the next word."""
_MODES = frozenset({"a", "a+", "ab", "at", "r+", "r+b", "rb+", "w", "w+", "w+b", "wb", "wb+", "wt", "x", "xb"})
"""Modes in which `open` writes."""
_WRITES = (
    ".rename(", ".touch(", ".unlink(", ".write_bytes(", ".write_text(", "Bun.write", "Deno.write", "File.write",
    "FileUtils.", "IO.write", "O_CREAT", "O_TRUNC", "O_WRONLY", "appendFile", "copyFile", "cpSync",
    "createWriteStream", "file_put_contents", "import remove", "import rename", "import replace", "import unlink",
    "inplace=True", "os.remove(", "os.rename(", "os.replace(", "os.symlink(", "os.truncate(", "renameSync", "rmSync",
    "rmtree(", "shutil", "truncateSync", "unlink ", "unlinkSync", "writeFile",
)  # fmt: skip
"""Calls that write files."""
_LITERAL_CHARS_MAX = 1_024
_DRY_RUN = frozenset({"--check", "--stat", "--numstat", "--summary", "--dry-run", "--cached"})


def interpreter(name: str) -> str:
    """Return the interpreter that a program is, without its version; "" if it is none that is known here."""
    plain = name.rstrip("0123456789.")
    plain = {"nodejs": "node", "pypy": "python", "luajit": "lua"}.get(plain, plain)
    return plain if plain in _CODE_OPTIONS else ""


def code_at(kind: str, words: Sequence[Word]) -> int:
    """Return the position of the code among the words behind an interpreter; -1 if it has none."""
    at = 0
    while at < len(words) and words[at].text[:1] == "-":
        text = words[at].text
        if text in _WITH_VALUE.get(kind, ()):
            at += 1
        elif text in {"--eval", "--print"} or (text[:2] != "--" and text[-1:] in _CODE_OPTIONS[kind] and len(text) > 1):
            return at + 1 if at + 1 < len(words) else -1
        at += 1
    return -1


def of_code(command: Command, kind: str) -> list[Word]:
    """Return the names that the inline code of an interpreter may write, with the arguments of that code."""
    words = command.words[1:]
    at = code_at(kind, words)
    if at >= 0:
        return _names_in(words[at].text, words[at + 1 :])
    if code := next((word for word in words if word.text.startswith(("--eval=", "--print="))), None):
        return _names_in(code.text, words)
    at = next((place for place, word in enumerate(words) if word.text[:1] != "-" or word.text == "-"), len(words))
    if at < len(words) and words[at].text != "-":
        return []  # A script file.
    return [name for text in command.typed for name in _names_in(text, words[at + 1 :])]


def _names_in(code: str, arguments: Sequence[Word]) -> list[Word]:
    texts = [text for _, text in _literals(code)]
    # Perl has the mode in the name, or before it: `open(F, ">x")`.
    opens = "open" in code and any(text in _MODES or text.startswith(">") for text in texts)
    if not opens and not any(call in code for call in _WRITES):
        return []
    names = [word for text in texts if text not in _MODES for word in _as_words(text.lstrip(">"))]
    return [*names, *arguments] or [UNKNOWN]


def of_awk(words: Sequence[Word]) -> list[Word]:
    """Return the names behind `>` in a script of awk."""
    scripts = [word.text for word in words if "{" in word.text and ">" in word.text]
    return [word for code in scripts for before, text in _literals(code) if before.endswith(">")
            for word in _as_words(text)]  # fmt: skip


def _as_words(text: str) -> list[Word]:
    """Return a string of code as a word, if it could be a path."""
    if not any(char.isalnum() for char in text) or any(char.isspace() for char in text) or "://" in text:
        return []
    at = min((place for place in map(text.find, "{%*?$") if place >= 0), default=-1)
    if at < 0:
        return [Word(text)]
    return [Word(text, text[:at], is_pattern=True)] if "/" in text[:at] else []


def _literals(code: str) -> list[tuple[str, str]]:
    """Return the strings of a program, each with the character before it that is not a space."""
    found, at, before = [], 0, ""
    while at < len(code):
        char = code[at]
        if char not in "'\"`":
            before = before if char.isspace() else char
            at += 1
            continue
        quote = char * 3 if code.startswith(char * 3, at) else char
        end = code.find(quote, at + len(quote), at + len(quote) + _LITERAL_CHARS_MAX)
        while end > 0 and code[end - 1] == "\\" and len(quote) == 1:
            end = code.find(quote, end + 1, at + len(quote) + _LITERAL_CHARS_MAX)
        text = code[at + len(quote) : end] if end >= 0 else "\n"
        if "\n" in text and len(quote) == 1 and char != "`":
            at += 1  # An apostrophe in a comment.
            continue
        if end < 0:
            at += len(quote)
            continue
        found.append((before, text))
        at, before = end + len(quote), char
    return found


def of_patch(command: Command, operands: Sequence[Word], cwd: str) -> list[Word]:
    """Return the names in the patch that a command applies; an unknown one if the patch cannot be read."""
    texts = command.texts
    if _DRY_RUN & set(texts):
        return []
    files = [*operands, *command.inputs, *(_value(texts, "-i", "--input"))]
    patches = [*command.typed, *(text for word in files if (text := _content(word, cwd)))]
    folder = next((word.text for word in _value(texts, "-d", "--directory")), "")
    names = [os.path.join(folder, name) for text in patches for name in _patched(text)]
    return [Word(name) for name in names] or [UNKNOWN]


def _value(texts: Sequence[str], *options: str) -> list[Word]:
    found = [text.partition("=")[2] for text in texts if text.partition("=")[0] in options and "=" in text]
    return [Word(text) for text in [*found, *(texts[at + 1] for at, text in enumerate(texts[:-1]) if text in options)]]


def _content(word: Word, cwd: str) -> str:
    file = os.path.join(cwd, word.text)
    if not word.is_sure or not os.path.isfile(file) or os.path.getsize(file) > PATCH_BYTES_MAX:
        return ""
    with open(file, encoding="utf-8", errors="surrogateescape") as opened:
        return opened.read()


def _patched(text: str) -> list[str]:
    """Return the names in the headers of a patch, with and without their first part."""
    found = []
    for line in text.splitlines():
        if line.startswith(("+++ ", "--- ", "rename to ", "rename from ")):
            name = line.partition(" ")[2].removeprefix("to ").removeprefix("from ").partition("\t")[0].strip(' "')
            if name not in {"", "/dev/null"}:
                found += [name, *([name.partition("/")[2]] if "/" in name.strip("/") else [])]
    return found
