"""What a command touches: the files that it is seen to write, and whether it is one that a rule names."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from holdfast.guard import globs
from holdfast.guard.pipes import places_of_find
from holdfast.guard.shell import Command
from holdfast.guard.wrappers import Word

_GIT_WITH_VALUE = frozenset({"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--config-env"})
_WITH_VALUE: dict[str, frozenset[str]] = {
    "cp": frozenset({"-S", "--suffix", "-t", "--target-directory"}),
    "install": frozenset({"-m", "-o", "-g", "-S", "-t", "--mode", "--owner", "--group", "--target-directory"}),
    "ln": frozenset({"-S", "-t", "--target-directory"}),
    "mv": frozenset({"-S", "--suffix", "-t", "--target-directory"}),
    "perl": frozenset({"-e", "-E", "-I", "-M"}),
    "sed": frozenset({"-e", "-f", "-l", "--expression", "--file"}),
    "shred": frozenset({"-n", "-s"}),
    "touch": frozenset({"-d", "-t", "-r"}),
    "truncate": frozenset({"-s", "-r", "--size", "--reference"}),
}
_ALL_OPERANDS = frozenset({"rm", "rmdir", "shred", "tee", "touch", "truncate", "unlink"})
_COPIERS = frozenset({"cp", "install", "ln", "mv", "rsync"})
_PATCH_MARKS = ("*** Add File: ", "*** Update File: ", "*** Delete File: ", "*** Move to: ")


class Target:
    """A file, or a folder and all below it, that is about to be written."""

    __slots__ = ("cwd", "is_below", "pattern", "text")

    def __init__(self, text: str, cwd: str, *, is_below: bool = False, pattern: str = "") -> None:
        self.text, self.cwd, self.is_below = text, cwd, is_below
        self.pattern = pattern
        """Of what is right in that folder only this is meant, with all below it; "" means all."""


def targets_of(command: Command) -> Iterator[Target]:
    """Return what a command is seen to write."""
    for word in command.outputs:
        yield from _as_target(word, command.cwd)
    if not command.words:
        return
    name = os.path.basename(command.words[0].text)
    words, cwd = command.words[1:], command.cwd
    if name == "git":
        words, cwd = behind_git_options(words, cwd)
        yield from _of_git(words, cwd)
        return
    options, operands = _split(name, words)
    if name in _ALL_OPERANDS:
        wanted = operands
    elif name in _COPIERS:
        yield from _of_copy(name, words, operands, cwd)
        return
    elif (name == "sed" and _has_flag(options, "i", "--in-place")) or (name == "perl" and _has_flag(options, "i", "")):
        wanted = operands if any(_gives_script(name, option.text) for option in options) else operands[1:]
    elif name == "dd":
        wanted = [Word(word.text[3:], word.clear and word.clear[3:]) for word in words if word.text[:3] == "of="]
    elif name == "find" and any(word.text == "-delete" for word in words):
        yield from (Target(word.text if word.clear is None else word.clear, cwd, is_below=True)
                    for word in places_of_find(command.words))  # fmt: skip
        return
    else:
        return
    for word in wanted:
        yield from _as_target(word, cwd)


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
        yield from (Target(word.text, cwd, is_below=True),) if brings_folder and word.is_sure else _as_target(word, cwd)
    for folder in folders:
        for source in sources:
            # `rsync a/ b` copies what is in a.
            if source.is_sure and folder.is_sure and not (name == "rsync" and source.text.endswith("/")):
                entry = os.path.join(folder.text, os.path.basename(source.text.rstrip("/")))
                yield Target(entry, cwd, is_below=name != "ln" and _is_folder(source, cwd))
            else:
                yield Target(folder.text if folder.clear is None else folder.clear, cwd, is_below=True)


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
    if name == "perl":
        return option in {"-e", "-E"}
    return option[:2] in {"-e", "-f"} or option.partition("=")[0] in {"--expression", "--file"}


def _of_git(words: Sequence[Word], cwd: str) -> Iterator[Target]:
    verb = words[0].text if words else ""
    operands = [word for word in words[1:] if not word.text.startswith("-")]
    if verb == "checkout":
        dashes = [at for at, word in enumerate(words) if word.text == "--"]
        makes_branch = any(word.text in {"-b", "-B", "-t", "--track", "--orphan"} for word in words)
        if dashes:
            operands = list(words[dashes[0] + 1 :])
        else:
            # Without the dashes git takes what is no branch for a file.
            operands = [] if makes_branch else [word for word in operands if _is_there(word, cwd)]
    elif verb not in {"mv", "rm", "restore"}:
        return
    for word in operands:
        yield from _as_target(word, cwd)


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
        yield Target(word.text, cwd, is_below=os.path.isdir(os.path.join(cwd, word.text)))
        return
    known = word.clear or ""
    if "/" in known or word.is_pattern:
        folder = known.rpartition("/")[0] + "/" if "/" in known else "."
        behind = "" if word.pattern is None else word.pattern[len(known.rpartition("/")[0]) :].lstrip("/")
        # A pattern over several folders may lead through a link: then all below counts.
        yield Target(folder, cwd, is_below=True, pattern="" if "/" in behind else behind)


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
