"""What a command touches: the files that it is seen to write, and whether it is one that a rule names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise

from holdfast.guard import branches, globs
from holdfast.guard.pipes import places_of_find
from holdfast.guard.wrappers import BELOW, UNKNOWN, Command, Word

_GIT_WITH_VALUE = frozenset({"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--config-env"})
_WITH_VALUE: dict[str, frozenset[str]] = {
    "cp": frozenset({"-S", "--suffix", "-t", "--target-directory"}),
    "install": frozenset({"-m", "-o", "-g", "-S", "-t", "--mode", "--owner", "--group", "--target-directory"}),
    "ln": frozenset({"-S", "-t", "--target-directory"}),
    "mv": frozenset({"-S", "--suffix", "-t", "--target-directory"}),
    "nvim": frozenset({"-c", "-u"}),
    "perl": frozenset({"-e", "-E", "-I", "-M"}),
    "ruby": frozenset({"-e", "-I", "-r"}),
    "scp": frozenset({"-F", "-J", "-P", "-S", "-c", "-i", "-l", "-o"}),
    "sed": frozenset({"-e", "-f", "-l", "--expression", "--file"}),
    "shred": frozenset({"-n", "-s"}),
    "touch": frozenset({"-d", "-t", "-r"}),
    "truncate": frozenset({"-s", "-r", "--size", "--reference"}),
    "vi": frozenset({"-c", "-u"}),
    "vim": frozenset({"-c", "-u"}),
}
_ALL_OPERANDS = frozenset(
    {"ed", "ex", "nano", "nvim", "rename", "rm", "rmdir", "shred", "sponge", "tee", "touch", "truncate", "unlink"}
    | {"vi", "vim"}
)
_OUTPUT_OPTIONS: dict[str, tuple[str, str]] = {
    "curl": ("-o", "--output"),
    "sort": ("-o", "--output"),
    "wget": ("-O", "--output-document"),
}
"""Programs that write the file which an option names."""
_UNPACKERS: dict[str, tuple[str, str]] = {"tar": ("-C", "--directory"), "unzip": ("-d", "-d")}
"""Programs that write any file below a folder, and the option that names it."""
_COPIERS = frozenset({"cp", "install", "ln", "mv", "rsync", "scp"})
_GIT_WITH_OUTPUT = frozenset({"archive", "diff", "format-patch", "log", "show"})
_PATCH_MARKS = ("*** Add File: ", "*** Update File: ", "*** Delete File: ", "*** Move to: ")


class Target:
    """A file, or a folder and all below it, that is about to be written."""

    __slots__ = ("cwd", "is_below", "is_unknown", "pattern", "text")

    def __init__(
        self, text: str, cwd: str, *, is_below: bool = False, pattern: str = "", is_unknown: bool = False
    ) -> None:
        self.text, self.cwd, self.is_below = text, cwd, is_below
        self.is_unknown = is_unknown
        """Whether nothing is known of its name before the command runs."""
        self.pattern = pattern
        """Of what is right in that folder only this is meant, with all below it; "" means all."""


def targets_of(command: Command) -> Iterator[Target]:
    """Return what a command is seen to write."""
    for target in _targets_of(command):
        if command.lost and not os.path.isabs(target.text) and not target.text.startswith("~"):
            # Relative to a folder that `cd` went to and that is not known exactly.
            is_below = command.lost == BELOW and not target.is_unknown
            yield Target("." if is_below else "", command.cwd, is_below=is_below, is_unknown=not is_below)
        else:
            yield target


def _targets_of(command: Command) -> Iterator[Target]:
    for word in command.outputs:
        yield from _as_target(word, command.cwd)
    if not command.words:
        return
    name = os.path.basename(command.words[0].text)
    words, cwd = command.words[1:], command.cwd
    if name == "git":
        words, cwd = behind_git_options(words, cwd)
        before = command.words[1 : len(command.words) - len(words)]
        for target in _of_git(command, words, cwd):
            yield target if all(word.is_sure for word in before) else Target("", cwd, is_unknown=True)
        return
    options, operands = _split(name, words)
    if name in _COPIERS:
        yield from _of_copy(name, words, operands, cwd)
    elif name == "find":
        if any(word.text == "-delete" for word in words):
            yield from (Target(word.folder, cwd, is_below=True) for word in places_of_find(command.words))
        for option, word in pairwise(words):
            if option.text in {"-fls", "-fprint", "-fprint0", "-fprintf"}:
                yield from _as_target(word, cwd)
    elif name in _UNPACKERS:
        yield from _of_unpacking(name, words, cwd)
    else:
        for word in _written(command, name, options, operands):
            yield from _as_target(word, cwd)


def _written(command: Command, name: str, options: Sequence[Word], operands: Sequence[Word]) -> list[Word]:
    """Return the words that name the files which a program writes."""
    words, kind = command.words[1:], interpreter(name)
    if name in _ALL_OPERANDS:
        return list(operands)
    if name in {"sed", "perl", "ruby"} and _has_flag(options, "i", "--in-place" if name == "sed" else ""):
        if operands and not operands[0].text and operands[0].is_sure:
            operands = operands[1:]  # `sed -i ''`, as macOS has it.
        return list(operands if any(_gives_script(name, option.text) for option in options) else operands[1:])
    if kind:
        return of_code(command, kind)
    if name in {"awk", "gawk", "mawk"}:
        at = next((at for at, word in enumerate(words) if word.text == "inplace"), 0)
        return [*of_awk(words), *(list(words[at + 2 :]) if at else [])]
    if name == "patch":
        return list(operands[:1]) or of_patch(command, [], command.cwd)
    if name == "dd":
        return [word.after(3) for word in words if word.text[:3] == "of="]
    return _outputs(name, words)


def _outputs(name: str, words: Sequence[Word]) -> list[Word]:
    """Return the files that an option of a program names; of `curl -O` and `wget`, the last part of the address."""
    if name not in _OUTPUT_OPTIONS:
        return []
    short, long = _OUTPUT_OPTIONS[name]
    found = list[Word]()
    for at, word in enumerate(words):
        text = word.text
        is_short = text[:1] == "-" and text[:2] != "--" and short[1] in text
        if text == long or (is_short and text.endswith(short[1])):
            found += words[at + 1 : at + 2]
        elif is_short or text.startswith(long + "="):
            found.append(word.after(text.index(short[1] if is_short else "=") + 1))
    if not found and (name == "wget" or (name == "curl" and _has_flag(words, "O", "--remote-name"))):
        found = [word.after(word.text.rindex("/") + 1) for word in words if "://" in word.text]
    return [word for word in found if word.text != "-"]


def _of_unpacking(name: str, words: Sequence[Word], cwd: str) -> Iterator[Target]:
    """An archive may contain any name: all below the folder counts."""
    texts = [word.text for word in words]
    if name == "tar":
        first = "".join(texts[:1]).partition("=")[0]
        is_writing = _has_flag(words, "x", "--extract") or _has_flag(words, "x", "--get") or "x" in first.lstrip("-")
        is_writing = is_writing and not {"-O", "--to-stdout"} & set(texts)
    else:
        is_writing = not {"-l", "-t", "-p", "-Z", "-v"} & set(texts)
    if not is_writing:
        return
    short, long = _UNPACKERS[name]
    places = [word.after(len(long) + 1) for word in words if word.text.startswith(long + "=")]
    places += [words[at + 1] for at, text in enumerate(texts[:-1]) if text in {short, long}]
    for word in places or [Word(".")]:
        yield from (Target(word.text, cwd, is_below=True),) if word.is_sure else _as_target(word, cwd)


def _of_copy(name: str, words: Sequence[Word], operands: Sequence[Word], cwd: str) -> Iterator[Target]:
    """What is copied or moved into a folder gets its own name there; what is moved is gone from where it was."""
    folders, operands = _folders(words, operands) if name != "rsync" else ([], operands)
    sources, last = (list(operands), list[Word]()) if folders else (list(operands[:-1]), list(operands[-1:]))
    if name == "ln" and len(operands) == 1 and not folders:
        last = [Word(os.path.basename(operands[0].text.rstrip("/")), operands[0].clear and "")]
    is_plain = _has_flag(words, "T", "--no-target-directory")
    if last and not is_plain and os.path.isdir(os.path.join(cwd, last[0].text)):
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
            # `rsync a/ b` copies what is in a.
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


def _folders(words: Sequence[Word], operands: Sequence[Word]) -> tuple[list[Word], list[Word]]:
    """Return the folders that `-t` names, in any of its forms, and the operands without them."""
    folders: list[Word] = []
    taken: list[Word] = []
    for at, word in enumerate(words):
        text, behind = word.text, words[at + 1 : at + 2]
        if text.startswith("--target-directory="):
            folders.append(Word(text.partition("=")[2]))
        elif text == "--target-directory" or (text[:1] == "-" and text[:2] != "--" and text[-1:] == "t"):
            folders += behind
            taken += behind
        elif text[:2] == "-t":
            folders.append(Word(text[2:]))
    return folders, [word for word in operands if not any(word is each for each in taken)]


def _gives_script(name: str, option: str) -> bool:
    """Tell whether an option has the script of `sed` or `perl`, so that no operand is it."""
    if name in {"perl", "ruby"}:
        return option in {"-e", "-E"}
    return option[:2] in {"-e", "-f"} or option.partition("=")[0] in {"--expression", "--file"}


def _of_git(command: Command, words: Sequence[Word], cwd: str) -> Iterator[Target]:
    verb = words[0].text if words else ""
    if verb in _GIT_WITH_OUTPUT:
        yield from (target for word in _git_outputs(verb, words) for target in _as_target(word, cwd))
    operands = [word for word in words[1:] if not word.text.startswith("-")]
    if verb == "checkout":
        dashes = [at for at, word in enumerate(words) if word.text == "--"]
        makes_branch = any(word.text in {"-b", "-B", "-t", "--track", "--orphan"} for word in words)
        if dashes:
            operands = list(words[dashes[0] + 1 :])
        else:
            # Without the dashes git takes what is no branch for a file.
            operands = [] if makes_branch else [word for word in operands if _is_there(word, cwd)]
    elif verb in {"am", "apply"}:
        operands = of_patch(command, operands, cwd)
    elif verb == "clean":
        operands = [] if _has_flag(words, "n", "--dry-run") else operands or [Word(".")]
    elif verb not in {"mv", "rm", "restore"}:
        return
    for word in operands:
        if word.is_sure and word.text.startswith(":"):
            yield Target(branches.top_level(cwd) or ".", cwd, is_below=True)  # As `:/src` and `:(top)src`.
        elif word.is_sure and "*" in word.text:
            # A quoted pattern reaches git, and there it goes over folders.
            yield Target(word.text.partition("*")[0].rpartition("/")[0] or ".", cwd, is_below=True)
        else:
            yield from _as_target(word, cwd)


def _git_outputs(verb: str, words: Sequence[Word]) -> list[Word]:
    """Return the file, or the folder, that an option of git names for its output."""
    options = {"--output", "--output-directory"} | ({"-o"} if verb in {"archive", "format-patch"} else set())
    found = [value for option, value in pairwise(words) if option.text in options]
    return found + [word.after(word.text.index("=") + 1) for word in words if word.text.partition("=")[0] in options
                    and "=" in word.text]  # fmt: skip


def _is_there(word: Word, cwd: str) -> bool:
    return not word.is_sure or os.path.lexists(os.path.join(cwd, word.text))


def _split(name: str, words: Sequence[Word]) -> tuple[list[Word], list[Word]]:
    """Tell options from operands."""
    options, operands = [], []
    rest = iter(words)
    for word in rest:
        if word.text == "--":
            operands += list(rest)
        elif word.text.startswith("-") and word.text != "-":
            options.append(word)
            if word.text in _WITH_VALUE.get(name, ()):
                next(rest, None)
        else:
            operands.append(word)
    return options, operands


def _has_flag(options: Sequence[Word], letter: str, long: str) -> bool:
    for option in options:
        text = option.text
        if (long and text.startswith(long)) or (text[:1] == "-" and text[:2] != "--" and letter in text):
            return True
    return False


def _as_target(word: Word, cwd: str) -> Iterator[Target]:
    """Return the place that a word means; of one that is expanded, the folder in which that begins."""
    if word.clear is None:
        if word.text:
            yield Target(word.text, cwd, is_below=os.path.isdir(os.path.join(cwd, word.text)))
        return
    known = word.clear
    if not known and not word.is_pattern:
        yield Target("", cwd, is_unknown=True)
        return
    name = known[known.rfind("/") + 1 :]
    if word.pattern is not None:
        # A pattern over several folders may lead through a link: then all below counts.
        name = word.pattern[len(known) - len(name) :]
        if "/.." in name or "../" in name:  # As in `tmp/{a,../b}`.
            yield Target("", cwd, is_unknown=True)
            return
        name = "" if "/" in name else name
    elif name:
        name += "*"
    yield Target(word.folder, cwd, is_below=True, pattern=name)


def behind_git_options(words: Sequence[Word], cwd: str) -> tuple[list[Word], str]:
    """Take git's own options off, and return what is behind them and the folder that they lead to."""
    rest, tree = list(words), ""
    while rest and rest[0].text.startswith("-"):
        option, equals, value = rest[0].text.partition("=")
        takes_next = not equals and option in _GIT_WITH_VALUE
        if takes_next:
            value = rest[1].text if len(rest) > 1 else ""
        if option == "-C":
            cwd = os.path.join(cwd, value)
        elif option == "--work-tree" or (option == "--git-dir" and not tree):
            tree = os.path.dirname(value.rstrip("/")) or "." if option == "--git-dir" else value
        rest = rest[2 if takes_next else 1 :]
    return rest, os.path.join(cwd, tree)


def command_fits(rule: Sequence[str], command: Command) -> bool:
    """Tell whether a command is one that a rule names: its program, then its words in their order.

    Options may stand in between, and a word right behind an option, which may be its value. An option that the rule
    names must be there. Of git's own options it is known which take a value.
    """
    words = command.words
    if not words or not globs.fits(rule[0], os.path.basename(words[0].text)):
        return False
    rest = words[1:]
    if os.path.basename(words[0].text) == "git":
        rest, _ = behind_git_options(rest, command.cwd)
    texts = [word.text for word in rest]
    if any(option not in texts for option in rule[1:] if option.startswith("-")):
        return False
    wanted = [word for word in rule[1:] if not word.startswith("-")]
    behind_option = False
    for text in texts:
        if not wanted:
            break
        if text.startswith("-"):
            behind_option = "=" not in text
        elif globs.fits(wanted[0], text):
            wanted, behind_option = wanted[1:], False
        elif behind_option:
            behind_option = False
        else:
            return False
    return not wanted


def could_be(rule: Sequence[str], text: str) -> bool:
    """Tell whether a line that cannot be read could have such a command in it: all its words are there."""
    return all(word.strip("*?") in text for word in rule)


def could_touch(pattern: Sequence[str], text: str) -> bool:
    """Tell whether a line that cannot be read could touch what a pattern means: the first name in it is there."""
    name = next((part for piece in pattern for part in piece.replace("?", "*").split("*") if part), "")
    return name in text


def patched(text: str) -> list[str]:
    """Return the files that a patch of `apply_patch` names."""
    lines = [line.strip() for line in text.splitlines()]
    return [line[len(mark) :].strip() for line in lines for mark in _PATCH_MARKS if line.startswith(mark)]


PATCH_BYTES_MAX = 4 * 1024 * 1024
"""Longer patches are not read."""
_CODE_OPTIONS = {"python": "c", "node": "ep", "bun": "e", "ruby": "e", "perl": "eE", "php": "r", "lua": "e"}
"""The letters of the options that are followed by code."""
_CODE_WITH_VALUE = {"python": {"-W", "-X"}, "node": {"-r", "--require", "--import", "-C"}, "ruby": {"-I", "-r"}}
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
        if text in _CODE_WITH_VALUE.get(kind, ()):
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
    names = [os.path.join(folder, name) for text in patches for name in _names_in_patch(text)]
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


def _names_in_patch(text: str) -> list[str]:
    """Return the names in the headers of a patch, with and without their first part."""
    found = []
    for line in text.splitlines():
        if line.startswith(("+++ ", "--- ", "rename to ", "rename from ")):
            name = line.partition(" ")[2].removeprefix("to ").removeprefix("from ").partition("\t")[0].strip(' "')
            if name not in {"", "/dev/null"}:
                found += [name, *([name.partition("/")[2]] if "/" in name.strip("/") else [])]
    return found
