"""Output of commands, as far as the command line defines it.

It becomes the names that `xargs`, `while read` and `$(…)` get, and the script that a shell reads. `find src` may print
anything below `src`. The output of a program that is not listed here is unknown.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from holdfast.agents.guard.paths import top_level
from holdfast.agents.guard.programs import (
    SHELLS,
    WRAPPERS,
    has_option,
    parsed,
    program,
    script_at,
    unwrapped,
    values_of,
)
from holdfast.agents.guard.syntax import ANY_NAME, UNKNOWN, Word

_FILTERS = frozenset({"cut", "head", "shuf", "sort", "tac", "tail", "tee", "tr", "uniq"})  # Print parts of their input.
_SEARCHERS = frozenset({"ack", "ag", "egrep", "fd", "fdfind", "fgrep", "grep", "rg"})
_SILENT = frozenset(  # Print no names.
    {":", "[", "[[", "cd", "declare", "exit", "export", "false", "for", "local", "mkdir", "popd", "pushd", "read"}
    | {"return", "rm", "set", "shift", "sleep", "test", "touch", "true", "typeset", "unset", "wait"}
)
# Print words without a slash.
_ONE_NAME = frozenset({"date", "hostname", "id", "nproc", "seq", "tty", "uname", "uuidgen", "wc", "whoami"})
# git verbs that print paths from the top of the working tree.
_OF_TREE = frozenset({"diff", "diff-index", "diff-tree", "log", "show", "status"})


class Output:
    """Output of a command: the file names in it, and its text if that is known."""

    def __init__(self, names: list[Word], text: str | None = None) -> None:
        self.names, self.text = names, text


def output_of(words: Sequence[Word], piped: Output | None, cwd: str) -> Output | None:
    """Return the output of a command with the input `piped`; None if it is unknown."""
    while program(words) in WRAPPERS:
        words = unwrapped(words, "/")[0]
    if not words:
        return None
    name, rest = program(words), words[1:]
    if name in {"echo", "printf"}:
        return _printed(name, rest)
    if name in _SILENT or (name in _ONE_NAME and not any("/" in word.text or "%D" in word.text for word in rest)):
        return Output([] if name in _SILENT else [ANY_NAME])
    if name == "find":
        return Output(below(start_folders_of_find(words)))
    if name in _SEARCHERS:
        # `grep -l` and its variants print names below their operands.
        options, paths = parsed(name, rest)
        gives_pattern = has_option(options, "-e", "-f", "--regexp", "--file") and name not in {"fd", "fdfind"}
        paths = paths if gives_pattern else paths[1:]
        return piped if piped is not None and not paths else Output(_all(paths))
    operands = [word for word in rest if word.text[:1] != "-"]
    if name == "git":
        return _out_of_git(rest, cwd)
    if name == "ls":
        return Output([*operands, *below(operands or [Word(".")])])
    if name == "pwd":
        return Output([Word(cwd)])
    if name == "mktemp":
        return _out_of_mktemp(rest)
    if name in {"basename", "dirname", "readlink", "realpath"}:
        named = operands or ([UNKNOWN] if piped is None else piped.names)
        return Output([_part_of_path(name, word, cwd) for word in (named[:1] if name == "basename" else named)])
    if name == "cat":
        return piped if not operands else None
    if name == "tr" and any("/" in word.text for word in operands):
        return None if piped is None or piped.names else piped
    # An awk script without strings prints only parts of its input.
    prints_parts = name in _FILTERS or (name in {"awk", "gawk"} and len(operands) == 1 and '"' not in operands[0].text)
    return piped if prints_parts else None


def _printed(name: str, words: Sequence[Word]) -> Output:
    printed = [word for word in words if name == "printf" or word.text not in {"-n", "-e", "-E", "-ne", "-en"}]
    text, names = " ".join(word.text for word in printed).replace("\\n", "\n"), printed
    if name == "printf" and printed and "%" in printed[0].text:
        is_plain = printed[0].text.replace("\\n", "").replace("\\0", "").strip() == "%s"
        names = printed[1:] if is_plain else [Word("", printed[0].text.partition("%")[0])]
        return Output(names, text if is_plain else None)
    # The reader may split a name with spaces.
    return Output([*names, *(Word(part) for word in names if word.is_sure and len(word.text.split()) > 1
                          for part in word.text.split())], text)  # fmt: skip


def _out_of_git(words: Sequence[Word], cwd: str) -> Output | None:
    texts = [word.text for word in words]
    verb = texts[0] if texts else ""
    if verb == "rev-parse":
        top = top_level(cwd)
        if "--show-toplevel" in texts:
            return Output([Word(top)]) if top else None
        return Output([ANY_NAME]) if texts[-1:] == ["HEAD"] and "--abbrev-ref" not in texts else None
    after_dashes = list(words[texts.index("--") + 1 :]) if "--" in texts else []
    if verb in _OF_TREE and (verb == "status" or "--name-only" in texts):
        top = top_level(cwd)
        return Output(_all(after_dashes) if after_dashes else below([Word("." if top in {cwd, ""} else top)]))
    if verb in {"grep", "ls-files"}:
        operands = [word for word in words[1:] if word.text[:1] != "-"]
        paths = after_dashes or ([] if "--" in texts else operands[1 if verb == "grep" else 0 :])
        return Output(_all([Word(folder) if (folder := before_star(word.text)) else word for word in paths]))
    return None


def before_star(text: str) -> str:
    """Return the folder before the `*` of a git pattern, which also matches slashes; "" without a `*`."""
    return (text.partition("*")[0].rpartition("/")[0] or ".") if "*" in text else ""


def _out_of_mktemp(words: Sequence[Word]) -> Output:
    """Represent the new name that `mktemp` prints by its template: no other file has such a name."""
    options, forms = parsed("mktemp", words)
    if folders := values_of(options, "-p"):
        return Output(below(folders[:1]))
    folder = next((each.text for each in values_of(options, "--tmpdir")), "")
    if forms and not has_option(options, "-t", "--tmpdir"):
        return Output(forms[-1:])
    return Output([Word((folder or os.environ.get("TMPDIR") or "/tmp") + "/tmp.XXXXXXXXXX")])  # noqa: S108 - as mktemp


def _part_of_path(name: str, word: Word, cwd: str) -> Word:
    if name == "basename":
        return Word(os.path.basename(word.text.rstrip("/"))) if word.is_sure else ANY_NAME
    if name == "dirname":
        return Word(os.path.dirname(word.text.rstrip("/")) or ".") if word.is_sure else word
    return Word(os.path.normpath(os.path.join(cwd, word.text))) if word.is_sure else word


def _all(paths: Sequence[Word]) -> list[Word]:
    """Return the paths and everything below them; by default everything below the current folder."""
    return [*paths, *below(paths or [Word(".")])]


def below(paths: Sequence[Word]) -> list[Word]:
    """Return words for anything below these paths; `UNKNOWN` for an unknown path."""
    folders = [None if word.clear == "" and not word.is_pattern else word.folder.rstrip("/") + "/" for word in paths]
    return [UNKNOWN if folder is None else Word(folder, folder, is_pattern=True) for folder in folders]


def start_folders_of_find(words: Sequence[Word]) -> list[Word]:
    rest = [word for word in words[1:] if word.text not in {"-H", "-L", "-P"}]
    end = next((at for at, word in enumerate(rest) if word.text[:1] in {"-", "(", "!"}), len(rest))
    return rest[:end] or [Word(".")]


def names_for(words: Sequence[Word], piped: Output | None) -> tuple[list[Word], list[Word]]:
    """Split the command of `xargs` or `parallel` into the command itself and its names."""
    marks = {":::", ":::+", "::::", "::::+"}  # `parallel` takes names after the first two, and files after the others.
    end = next((at for at, word in enumerate(words) if word.text in marks), len(words))
    if end == len(words):
        return list(words), (piped.names if piped is not None else []) or [UNKNOWN]
    is_names, named = False, list[Word]()
    for word in words[end:]:
        if word.text in marks:
            is_names = word.text.count(":") == 3  # noqa: PLR2004 - not a file
            named += [] if is_names else [UNKNOWN]
        elif is_names:
            named.append(word)
    return list(words[:end]), named or [UNKNOWN]


def placed(words: Sequence[Word], names: Sequence[Word], placeholder: str, *, is_added: bool = True) -> list[Word]:
    """Replace a placeholder by names, or append them. A shell's script keeps it until its words are read."""
    if not any(placeholder in word.text for word in words[1:]):
        return [*words, *names] if is_added else list(words)
    shell = next((at for at, word in enumerate(words) if os.path.basename(word.text) in SHELLS), len(words))
    script = shell + (script_at(words[shell:]) if shell < len(words) else 0)
    return [each for at, word in enumerate(words)
            for each in ([word] if at == script > shell else filled(word, placeholder, names))]  # fmt: skip


def filled(word: Word, placeholder: str, names: Sequence[Word]) -> list[Word]:
    if placeholder not in word.text:
        return [word]
    if word.text == placeholder:
        return list(names)
    before = word.text.partition(placeholder)[0]
    if not word.is_sure and len(word.clear or "") <= len(before):
        return [word]
    found = []
    for name in names:
        if name.is_sure and word.is_sure:
            found.append(Word(word.text.replace(placeholder, name.text)))
        else:
            clear = before + (name.text if name.clear is None else name.clear)
            found.append(Word(clear, clear, is_pattern=name.is_pattern))
    return found


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
