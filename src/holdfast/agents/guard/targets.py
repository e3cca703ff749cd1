"""The files that a command visibly writes, and whether a rule names the command."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise

from holdfast.agents.guard import paths
from holdfast.agents.guard.pipes import before_star, start_folders_of_find
from holdfast.agents.guard.programs import Options, has_option, parsed, program, values_of
from holdfast.agents.guard.syntax import BELOW, UNKNOWN, Command, Word

_ALL_OPERANDS = frozenset(
    {"ed", "ex", "nano", "nvim", "rename", "rm", "rmdir", "shred", "sponge", "tee", "touch", "truncate", "unlink"}
    | {"vi", "vim"}
)
_OUTPUT_OPTIONS: dict[str, tuple[str, ...]] = {  # Options that name an output file or folder.
    **dict.fromkeys(("curl", "git archive", "patch", "sort"), ("-o", "--output")),
    **dict.fromkeys(("git diff", "git log", "git show"), ("--output",)),
    "git format-patch": ("-o", "--output", "--output-directory"),
    "wget": ("-O", "--output-document"),
}
_COPIERS = frozenset({"cp", "install", "ln", "mv", "rsync", "scp"})
_PATCH_MARKS = ("*** Add File: ", "*** Update File: ", "*** Delete File: ", "*** Move to: ")


class Target:
    """A written file, or a tree (`is_below`) whose top entries match `pattern`; `is_unknown` before run time."""

    __slots__ = ("cwd", "is_below", "is_unknown", "pattern", "text")

    def __init__(
        self, text: str, cwd: str, *, is_below: bool = False, pattern: str = "", is_unknown: bool = False
    ) -> None:
        self.text, self.cwd, self.is_below = text, cwd, is_below
        self.is_unknown, self.pattern = is_unknown, pattern


def targets_of(command: Command) -> Iterator[Target]:
    for target in _targets_of(command):
        if command.lost and not os.path.isabs(target.text) and not target.text.startswith("~"):
            # Relative to a folder that is not known exactly.
            is_below = command.lost == BELOW and not target.is_unknown
            yield Target("." if is_below else "", command.cwd, is_below=is_below, is_unknown=not is_below)
        else:
            yield target


def _targets_of(command: Command) -> Iterator[Target]:
    words, cwd = command.words[1:], command.cwd
    for word in command.outputs:
        yield from _as_target(word, cwd)
    name = program(command.words)
    if name == "git":
        words, cwd = after_git_options(words, cwd)
        before = command.words[1 : len(command.words) - len(words)]
        for target in _of_git(command, words, cwd):
            yield target if all(word.is_sure for word in before) else Target("", cwd, is_unknown=True)
        return
    options, operands = parsed(name, words)
    if name in _COPIERS:
        yield from _of_copy(name, options, operands, cwd)
    elif name == "find":
        if any(word.text == "-delete" for word in words):
            yield from (Target(word.folder, cwd, is_below=True) for word in start_folders_of_find(command.words))
        for option, word in pairwise(words):
            if option.text in {"-fls", "-fprint", "-fprint0", "-fprintf"}:
                yield from _as_target(word, cwd)
    elif name in {"tar", "unzip"}:
        yield from _of_unpacking(name, words, options, cwd)
    else:
        for word in _written(command, name, options, operands):
            yield from _as_target(word, cwd)


def _written(command: Command, name: str, options: Options, operands: list[Word]) -> list[Word]:
    words, kind = command.words[1:], interpreter(name)
    if name in _ALL_OPERANDS:
        return operands
    if name in {"sed", "perl", "ruby"} and has_option(options, "-i", "--in-place"):
        if operands and not operands[0].text and operands[0].is_sure:
            operands = operands[1:]  # `sed -i ''` of macOS.
        scripts = ("-e", "-f", "--expression", "--file") if name == "sed" else ("-e", "-E")
        return operands if has_option(options, *scripts) else operands[1:]
    if kind:
        return _of_code(command, kind)
    if name in {"awk", "gawk", "mawk"}:
        edits_files = any(value.text == "inplace" for value in values_of(options, "-i", "--include"))
        has_script = has_option(options, "-f", "--file")
        return [*_of_awk(words), *(operands[not has_script :] if edits_files else [])]
    if name == "patch":
        outputs = _outputs(name, words, options)
        return [*outputs, *(operands[:1] or _of_patch(command, options, [], command.cwd))]
    if name == "dd":
        return [word[3:] for word in words if word.text[:3] == "of="]
    return _outputs(name, words, options)


def _outputs(name: str, words: Sequence[Word], options: Options) -> list[Word]:
    found = values_of(options, *_OUTPUT_OPTIONS.get(name, ()))
    is_remote = name == "curl" and has_option(options, "-O", "--remote-name", "--remote-name-all")
    if not found and (name == "wget" or is_remote):
        found = [word[word.text.rindex("/") + 1 :] for word in words if "://" in word.text]
    return [word for word in found if word.text != "-"]


def _of_unpacking(name: str, words: Sequence[Word], options: Options, cwd: str) -> Iterator[Target]:
    """Return the target tree: an archive may contain any name."""
    if name == "tar":
        first = words[0].text if words else ""
        # GNU tar takes abbreviations.
        extracts = any(option == "-x" or option.startswith(("--ext", "--ge")) for option, _ in options)
        extracts = extracts or (first[:1] != "-" and "x" in first)
        is_writing = extracts and not has_option(options, "-O", "--to-stdout")
    else:
        is_writing = not has_option(options, "-l", "-t", "-p", "-Z", "-v")
    if is_writing:
        folders = values_of(options, "-C", "--directory") if name == "tar" else values_of(options, "-d")
        for word in folders or [Word(".")]:
            yield from (Target(word.text, cwd, is_below=True),) if word.is_sure else _as_target(word, cwd)


def _of_copy(name: str, options: Options, operands: list[Word], cwd: str) -> Iterator[Target]:
    """Return the copies, which keep their names in a target folder, and the removed sources of `mv`."""
    folders = [] if name == "rsync" else values_of(options, "-t", "--target-directory")
    sources, last = (operands, list[Word]()) if folders else (operands[:-1], operands[-1:])
    if name == "ln" and len(operands) == 1 and not folders:
        last = [Word(os.path.basename(operands[0].text.rstrip("/")), operands[0].clear and "")]
    if last and not has_option(options, "-T", "--no-target-directory") and _is_folder(last[0], cwd):
        folders, last = last, []
    if name == "mv":
        yield from (target for word in sources for target in _as_target(word, cwd))
    brings_folder = name != "ln" and any(_is_folder(word, cwd) for word in sources)
    for word in last:
        if name in {"rsync", "scp"} and ":" in word.text.partition("/")[0]:
            continue  # On another machine.
        yield from (Target(word.text, cwd, is_below=True),) if brings_folder and word.is_sure else _as_target(word, cwd)
    for folder in folders:
        for source in sources:
            # `rsync a/ b` copies the entries of a.
            if source.is_sure and folder.is_sure and not (name == "rsync" and source.text.endswith("/")):
                entry = os.path.join(folder.text, os.path.basename(source.text.rstrip("/")))
                yield Target(entry, cwd, is_below=name != "ln" and _is_folder(source, cwd))
            elif folder.is_sure:
                pattern = "" if source.pattern is None else os.path.basename(source.pattern.rstrip("/"))
                yield Target(folder.text, cwd, is_below=True, pattern=pattern)
            else:
                yield from _as_target(folder, cwd)


def _is_folder(word: Word, cwd: str) -> bool:
    return os.path.isdir(os.path.join(cwd, word.text))


def _of_git(command: Command, words: Sequence[Word], cwd: str) -> Iterator[Target]:
    verb = words[0].text if words else ""
    name = f"git {verb}"
    options, operands = parsed(name, words[1:])
    for word in _outputs(name, words, options):
        yield from _as_target(word, cwd)
    if verb == "checkout":
        at = next((at for at, word in enumerate(words) if word.text == "--"), 0)
        if at:
            operands = list(words[at + 1 :])
        elif has_option(options, "-b", "-B", "-t", "--track", "--orphan"):
            operands = []
        else:
            # Without the dashes git takes an operand that is not a branch for a file.
            operands = [each for each in operands if not each.is_sure or os.path.lexists(os.path.join(cwd, each.text))]
    elif verb in {"am", "apply"}:
        operands = _of_patch(command, options, operands, cwd)
    elif verb == "clean":
        operands = [] if has_option(options, "-n", "--dry-run") else operands or [Word(".")]
    elif verb not in {"mv", "rm", "restore"}:
        return
    for word in operands:
        if word.is_sure and word.text.startswith(":"):
            yield Target(paths.top_level(cwd) or ".", cwd, is_below=True)  # `:/src`, `:(top)src`
        elif word.is_sure and (folder := before_star(word.text)):
            yield Target(folder, cwd, is_below=True)  # A quoted pattern, which git expands.
        else:
            yield from _as_target(word, cwd)


def _as_target(word: Word, cwd: str) -> Iterator[Target]:
    """Return the target of a word; for an uncertain word, the folder of its certain prefix."""
    if word.clear is None:
        if word.text:
            yield Target(word.text, cwd, is_below=_is_folder(word, cwd))
        return
    known = word.clear
    if not known and not word.is_pattern:
        yield Target("", cwd, is_unknown=True)
        return
    name = known[known.rfind("/") + 1 :]
    if word.pattern is not None:
        # A pattern with a slash may lead through a link: then the whole tree counts.
        name = word.pattern[len(known) - len(name) :]
        if "/.." in name or "../" in name:  # As in `tmp/{a,../b}`.
            yield Target("", cwd, is_unknown=True)
            return
        name = "" if "/" in name else name
    elif name:
        name += "*"
    yield Target(word.folder, cwd, is_below=True, pattern=name)


def after_git_options(words: Sequence[Word], cwd: str) -> tuple[list[Word], str]:
    """Strip git's global options; return the rest and the working folder they select."""
    options, rest = parsed("git", words, stops=True)
    for folder in values_of(options, "-C"):
        cwd = os.path.join(cwd, folder.text)
    trees = [tree.text for tree in values_of(options, "--work-tree")]
    trees += [os.path.dirname(each.text.rstrip("/")) or "." for each in values_of(options, "--git-dir")]
    return rest, os.path.join(cwd, trees[0] if trees else "")


def command_fits(rule: Sequence[str], command: Command) -> bool:
    """Match a rule's program and words in order; other options, and one word after each, may come between."""
    name, rest = program(command.words), command.words[1:]
    if not command.words or not paths.fits(rule[0], name):
        return False
    if name == "git":
        rest, _ = after_git_options(rest, command.cwd)
    texts = [word.text for word in rest]
    if any(option not in texts for option in rule[1:] if option.startswith("-")):
        return False
    wanted = [word for word in rule[1:] if not word.startswith("-")]
    may_be_value = False
    for text in texts:
        if not wanted:
            break
        if text.startswith("-"):
            may_be_value = "=" not in text
        elif paths.fits(wanted[0], text):
            wanted, may_be_value = wanted[1:], False
        elif may_be_value:
            may_be_value = False
        else:
            return False
    return not wanted


def could_touch(pattern: Sequence[str], text: str) -> bool:
    """Tell whether an unreadable line could touch a pattern's files: it contains the pattern's first name."""
    name = next((part for piece in pattern for part in piece.replace("?", "*").split("*") if part), "")
    return name in text


def patched(text: str) -> list[str]:
    lines = [line.strip() for line in text.splitlines()]
    return [line[len(mark) :].strip() for line in lines for mark in _PATCH_MARKS if line.startswith(mark)]


PATCH_BYTES_MAX = 4 * 1024 * 1024  # Larger patches are not read.
_CODE_OPTIONS = {  # Options followed by code.
    "python": ("-c",), "node": ("-e", "--eval", "--print"), "bun": ("-e", "--eval", "--print"), "ruby": ("-e",),
    "perl": ("-e", "-E"), "php": ("-r",), "lua": ("-e",),
}  # fmt: skip
# Modes in which `open` writes.
_MODES = frozenset({"a", "a+", "ab", "at", "r+", "r+b", "rb+", "w", "w+", "w+b", "wb", "wb+", "wt", "x", "xb"})
_WRITES = (  # Calls that write files.
    ".rename(", ".touch(", ".unlink(", ".write_bytes(", ".write_text(", "Bun.write", "Deno.write", "File.write",
    "FileUtils.", "IO.write", "O_CREAT", "O_TRUNC", "O_WRONLY", "appendFile", "copyFile", "cpSync",
    "createWriteStream", "file_put_contents", "import remove", "import rename", "import replace", "import unlink",
    "inplace=True", "os.remove(", "os.rename(", "os.replace(", "os.symlink(", "os.truncate(", "renameSync", "rmSync",
    "rmtree(", "shutil", "truncateSync", "unlink ", "unlinkSync", "writeFile",
)  # fmt: skip
_LITERAL_CHARS_MAX = 1_024
_DRY_RUN = ("--check", "--stat", "--numstat", "--summary", "--dry-run", "--cached")


def interpreter(name: str) -> str:
    plain = name.rstrip("0123456789.")
    plain = {"nodejs": "node", "pypy": "python", "luajit": "lua"}.get(plain, plain)
    return plain if plain in _CODE_OPTIONS else ""


def _of_code(command: Command, kind: str) -> list[Word]:
    words = command.words[1:]
    options, operands = parsed(kind, words, stops=True)
    if kind == "python":
        options = options[: next((at for at, (option, _) in enumerate(options) if option == "-m"), len(options)) + 1]
    codes = values_of(options, *_CODE_OPTIONS[kind])
    if not codes and kind == "node" and operands and has_option(options, "-p", "--print"):
        codes = operands[:1]
    if codes:
        # All words after the code are its arguments.
        at = next((at for at, word in enumerate(words) if word is codes[-1]), -1)
        return _names_in("\n".join(code.text for code in codes), words[at + 1 :])
    if (kind == "python" and has_option(options, "-m")) or (operands and operands[0].text != "-"):
        return []  # A module, or a script file.
    return [name for text in command.typed for name in _names_in(text, operands[1:])]


def _names_in(code: str, arguments: Sequence[Word]) -> list[Word]:
    texts = [text for _, text in _literals(code)]
    # Perl may put the mode into the name: `open(F, ">x")`.
    opens = "open" in code and any(text in _MODES or text.startswith(">") for text in texts)
    if not opens and not any(call in code for call in _WRITES):
        return []
    names = [word for text in texts if text not in _MODES for word in _as_words(text.lstrip(">"))]
    return [*names, *arguments] or [UNKNOWN]


def _of_awk(words: Sequence[Word]) -> list[Word]:
    scripts = [word.text for word in words if "{" in word.text and ">" in word.text]
    return [word for code in scripts for before, text in _literals(code) if before.endswith(">")
            for word in _as_words(text)]  # fmt: skip


def _as_words(text: str) -> list[Word]:
    if not any(char.isalnum() for char in text) or any(char.isspace() for char in text) or "://" in text:
        return []
    at = min((index for index in map(text.find, "{%*?$") if index >= 0), default=-1)
    if at < 0:
        return [Word(text)]
    return [Word(text, text[:at], is_pattern=True)] if "/" in text[:at] else []


def _literals(code: str) -> list[tuple[str, str]]:
    """Return a program's string literals, each with the last non-space character before it."""
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


def _of_patch(command: Command, options: Options, operands: Sequence[Word], cwd: str) -> list[Word]:
    if has_option(options, *_DRY_RUN):
        return []
    patches = [*command.typed]
    for word in [*operands, *command.inputs, *values_of(options, "-i", "--input")]:
        file = os.path.join(cwd, word.text)
        if word.is_sure and os.path.isfile(file) and os.path.getsize(file) <= PATCH_BYTES_MAX:
            with open(file, encoding="utf-8", errors="surrogateescape") as opened:
                patches.append(opened.read())
    folder = next((word.text for word in values_of(options, "-d", "--directory")), "")
    names = [os.path.join(folder, name) for text in patches for name in _names_in_patch(text)]
    return [Word(name) for name in names] or [UNKNOWN]


def _names_in_patch(text: str) -> list[str]:
    """Return the names in a patch's headers, with and without their first segment."""
    found = []
    for line in text.splitlines():
        if line.startswith(("+++ ", "--- ", "rename to ", "rename from ")):
            name = line.partition(" ")[2].removeprefix("to ").removeprefix("from ").partition("\t")[0].strip(' "')
            if name not in {"", "/dev/null"}:
                found += [name, *([name.partition("/")[2]] if "/" in name.strip("/") else [])]
    return found
