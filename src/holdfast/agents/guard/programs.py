"""Tables of programs: their options, and which are wrappers, shells or interactive."""

from __future__ import annotations

import os
from collections.abc import Sequence

from holdfast.agents.guard.syntax import Command, Word, is_assignment, simple_command


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


SHELLS = _names("sh bash dash zsh ksh ash fish")
# Programs that run the command after their options, and how many operands precede it.
WRAPPERS = dict.fromkeys(
    _names(
        "builtin busybox caffeinate chronic command coproc doas env exec ionice linux32 linux64 nice nohup parallel"
        " pkexec prlimit runuser setarch setpriv setsid stdbuf strace sudo time unbuffer unshare watch xargs"
    ),
    0,
) | {"chroot": 1, "chrt": 1, "flock": 1, "script": 1_000, "su": 1_000, "taskset": 1, "timeout": 1}
# Programs that run the command after one of their verbs; a rule may also name them directly.
WRAPPER_VERBS = {
    "bundle": "exec", "pdm": "run", "pipenv": "run", "pnpm": "exec", "poetry": "run", "rye": "run", "uv": "run",
}  # fmt: skip
_OPTIONS = {  # Options that take the next word: first the letters, then the long ones.
    **dict.fromkeys(SHELLS, "oO rcfile init-file"),
    **dict.fromkeys(WRAPPER_VERBS, "Cp directory env-file extra group package project python with with-editable"
                                   " with-requirements"),
    **dict.fromkeys(("cp", "ln", "mv"), "St suffix target-directory"),
    **dict.fromkeys(("egrep", "fgrep", "grep"), "ABCDdefm exclude exclude-dir file include max-count regexp"),
    **dict.fromkeys(("ack", "ag", "fd", "fdfind", "rg"), "ABCETdefgjmt exclude file glob iglob max-count max-depth"
                                                         " regexp type type-not"),
    **dict.fromkeys(("git diff", "git log", "git show"), " output"),
    **dict.fromkeys(("mapfile", "readarray"), "dnOsuCc"),
    **dict.fromkeys(("mariadb", "mysql"), "ehuPDS execute host user port database socket"),
    **dict.fromkeys(("nvim", "vi", "vim"), "cu"),
    **dict.fromkeys(("awk", "gawk", "mawk"), "iFvf include file assign field-separator"),
    "bun": "e eval print",
    "caffeinate": "tw",
    "chroot": " userspec groups",
    "chrt": "TPD",
    "curl": "AbcCdDeEFHKmoPQrtTuUwxXyYz output",
    "doas": "uC",
    "env": "uCS unset chdir split-string",
    "exec": "a",
    "flock": "wEc timeout wait conflict-exit-code command",
    "git": "Cc git-dir work-tree namespace exec-path config-env",
    "git apply": "Cp directory exclude include",
    "git archive": "o output",
    "git clean": "e exclude",
    "git format-patch": "o output output-directory",
    "git push": "o push-option repo receive-pack exec recurse-submodules",
    "git restore": "s source",
    "install": "mogSt mode owner group suffix target-directory",
    "ionice": "cn class classdata",
    "lua": "el",
    "mktemp": "p",
    "mongosh": "f eval file host port",
    "nice": "n adjustment",
    "node": "eCr eval require import",
    "parallel": "aCdEIjLnNPsS arg-file basefile colsep delay delimiter env halt jobs joblog load max-args max-procs"
                " memfree nice results retries return sshlogin tagstring timeout tmpdir wd workdir",
    "patch": "BDFdgioprVYz directory input output strip",
    "perl": "eEIMm",
    "php": "Bdcr",
    "pkexec": " user",
    "prlimit": "po",
    "psql": "cdfFhLoPpRTUv command dbname file host output port username variable",
    "python": "cmWX",
    "read": "dinNptu",
    "ruby": "eIr",
    "runuser": "cgGsu command group shell user",
    "scp": "FJPScilo",
    "script": "cEmo command echo logging-format output-limit",
    "sed": "efl expression file",
    "setpriv": " bounding-set groups inh-caps rgid ruid euid egid",
    "shred": "ns",
    "sort": "kotST output",
    "stdbuf": "ioe input output error",
    "strace": "aeEopPsu",
    "su": "cgGs command group shell session-command",
    "sudo": "CDghpRrtTUu user group host prompt close-from chdir chroot command-timeout other-user role type",
    "tar": "bCfgHIKLNTVX directory exclude exclude-from file files-from",
    "time": "fo format output",
    "timeout": "sk signal kill-after",
    "touch": "dtr date reference",
    "truncate": "sr size reference",
    "unshare": "SGRw setuid setgid root wd",
    "unzip": "dPx",
    "watch": "nq equexit interval",
    "wget": "aeioOPQtTwU output-document",
    "xargs": "nIPLsdaE max-args max-procs max-lines max-chars delimiter arg-file",
}  # fmt: skip
# Options whose optional value is attached to the same word.
_ATTACHED = {"mariadb": "p", "mysql": "p", "perl": "i", "ruby": "i", "sed": "i"}
# Options whose value is a command line.
_SCRIPTS = {"env": "-S --split-string", "flock": "-c --command", "runuser": "-c --command", "script": "-c --command",
            "su": "-c --command --session-command"}  # fmt: skip
_FOLDERS = {"env": "-C --chdir", "sudo": "-D --chdir"}
_TAKES_SETTINGS = _names("doas env sudo")

Options = list[tuple[str, Word | None]]


def program(words: Sequence[Word]) -> str:
    return os.path.basename(words[0].text) if words else ""


def parsed(name: str, words: Sequence[Word], *, stops: bool = False) -> tuple[Options, list[Word]]:
    """Split words into options with values and operands; with `stops`, options end at the first operand.

    `-iS x` is `-i -S x`, and `-uana` is `-u ana`.
    """
    letters, _, names = _OPTIONS.get(name, "").partition(" ")
    attached, long = _ATTACHED.get(name, ""), names.split()
    options: Options = []
    operands: list[Word] = []
    rest = iter(words)
    for word in rest:
        text, value, takes_next = word.text, None, False
        if text == "--" or (stops and (text[:1] != "-" or text == "-")):
            return options, [*operands, *([] if text == "--" else [word]), *rest]
        if text[:1] != "-" or text == "-":
            operands.append(word)
            continue
        if text[:2] == "--":
            option, equals, _ = text.partition("=")
            value = word[len(option) + 1 :] if equals else None
            takes_next = not equals and option[2:] in long
        else:
            end = next((at for at in range(1, len(text)) if text[at] in letters or text[at] in attached), len(text) - 1)
            options += [(f"-{letter}", None) for letter in text[1:end]]
            option, value = f"-{text[end]}", word[end + 1 :] if text[end + 1 :] else None
            takes_next = value is None and text[end] in letters
        options.append((option, next(rest, None) if takes_next else value))
    return options, operands


def values_of(options: Options, *names: str) -> list[Word]:
    return [value for option, value in options if option in names and value is not None]


def has_option(options: Options, *names: str) -> bool:
    return any(option in names for option, _ in options)


def unwrapped(words: Sequence[Word], cwd: str) -> tuple[list[Word], str, str, Options]:
    """Unwrap a program that runs another one.

    Return the inner command, the folder it runs in, a command line given by an option instead, and the options.
    """
    name, rest = program(words), list(words[1:])
    if name == "runuser" and not has_option(parsed(name, rest, stops=True)[0], "-u", "--user"):
        name = "su"
    if name == "su":
        rest = [word for word in rest if word.text != "--"]  # The shell gets the words after it, also `-c`.
    options: Options = []
    operands = WRAPPERS[name]
    while rest:
        found, after = parsed(name, rest, stops=True)
        options += found
        if operands and name == "script" and len(after) < len(rest) and rest[len(rest) - len(after) - 1].text == "--":
            operands = 0
        if after and operands and after[0].text != "-":
            operands -= 1
        elif not (after and (after[0].text == "-" or (name in _TAKES_SETTINGS and is_assignment(after[0].text)))):
            rest = after
            break
        rest = after[1:]
    for folder in values_of(options, *_FOLDERS.get(name, "").split()):
        cwd = os.path.join(cwd, folder.text)
    scripts = values_of(options, *_SCRIPTS.get(name, "").split())
    return rest, cwd, scripts[-1].text if scripts else "", options


def script_at(words: Sequence[Word]) -> int:
    """Return the index of a shell's `-c` command line; 0 if there is none."""
    flags = (at for at, word in enumerate(words) if at and word.text[:1] == "-" and word.text[:2] != "--")
    flag = next((at for at in flags if "c" in words[at].text), 0)
    operands = parsed(program(words), words[flag + 1 :], stops=True)[1] if flag else []
    return len(words) - len(operands) if operands else 0


def is_typed_into(words: list[Word]) -> bool:
    """Tell whether this is a shell that runs its standard input."""
    words = simple_command(words)
    while program(words) in WRAPPERS:
        words = unwrapped(words, "/")[0]
    if program(words) not in SHELLS or script_at(words):
        return False
    options, operands = parsed(program(words), words[1:], stops=True)
    return all(word.text[:1] in {"-", "+"} for word in operands) or has_option(options, "-s")


_INTERPRETERS = _names(  # Run the named script, or else their input.
    "R bun deno ghci iex ipython irb jshell julia lua node nodejs perl php pry pypy python ruby scala tclsh"
)
_CODE = _names("-c -e -E -m -p -r --eval --print --test --batch")
_CLIENTS = {  # Run the command of one of these options, or else their input; operands name a database.
    "mariadb": _names("-e --execute"),
    "mongosh": _names("-f --eval --file"),
    "mysql": _names("-e --execute"),
    "psql": _names("-c -f -l --command --file --list"),
}
_EDITORS = _names("ed emacs ex gdb nano nvim pico vi view vim")


def is_interactive(command: Command) -> bool:
    """Tell whether a command reads instructions from the terminal; Codex calls no hook for such input."""
    name = program(command.words)
    if not name or command.has_input:
        return False
    name = name if name in _CLIENTS or name in _EDITORS else name.rstrip("0123456789.")
    # `+x` is an option of a shell.
    given_words = [word for word in command.words[1:] if word.text != "-" and word.text[:1] not in {"", "+"}]
    options, operands = parsed(name, given_words)
    texts, given = command.texts[1:], {option for option, _ in options}
    if {"-V", "--help", "--version", *(() if name in _CLIENTS else ("-h",))} & set(texts):
        return False
    if name in SHELLS:
        return not script_at(command.words) and (not operands or not given.isdisjoint({"-i", "-s"}))
    if name in _INTERPRETERS:
        # `-i` edits in place in Perl and Ruby; `-d` starts Perl's debugger, `-d:MODULE` no input.
        asks = "-d" in given and "-:" not in given if name == "perl" else "-i" in given and name != "ruby"
        return asks or not (given & _CODE or operands)
    if name in _CLIENTS:
        return given.isdisjoint(_CLIENTS[name])
    if name == "sqlite":
        return len(operands) < 2  # noqa: PLR2004 - the database and the statement
    return name in _EDITORS and not any(text[:1] == "+" or text in _CODE or text[:3] == "-es" for text in texts)
