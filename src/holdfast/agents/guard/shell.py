"""Static shell parser: which programs a command line runs, with which words and in which folders.

It handles pipes, lists, subshells, substitutions, redirections and here-documents. It follows `cd`, `sh -c`, input of a
shell (`sh <<EOF`, `echo … | sh`), `eval`, wrappers (`programs`) and the data between commands (`pipes`). A word is a
text and its certain part. `$f` and `$(…)` may have several values; then one word becomes several (`variables`).
Functions, aliases, scripts and a program's own writes are out of reach, as the docs say.

An unreadable line raises `UnclearError`: the caller then refuses whatever it could touch.
"""

from __future__ import annotations

import os

from holdfast.agents.guard import pipes, programs, syntax
from holdfast.agents.guard.pipes import Output
from holdfast.agents.guard.programs import SHELLS, WRAPPER_VERBS, WRAPPERS, is_typed_into, program
from holdfast.agents.guard.syntax import (
    BELOW,
    KEYWORDS,
    LOST,
    UNKNOWN,
    Command,
    UnclearError,
    Word,
    closing,
    simple_command,
)
from holdfast.agents.guard.variables import Draft, Variables, changed, split

COMMANDS_MAX = 2_000
DEPTH_MAX = 12
LOCATIONS_MAX = 50  # Candidate folders of one command.
LINE_CHARS_MAX = 4_000_000  # A longer line takes longer to read than a host waits, and no system runs it.
_OPENS = frozenset({"if", "for", "while", "until", "select", "case", "{"})
_CLOSES = frozenset({"fi", "done", "esac", "}"})
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_SPECIAL = frozenset("?!#@*$-")
_Location = tuple[str, int]  # A folder, and how certain it is: see `Command.lost`.


class HereDocument:
    """A here-document whose text follows, and the command that reads it."""

    def __init__(self, delimiter: Word, words: list[Word]) -> None:
        self.delimiter, self.is_quoted, self.words = delimiter.text, delimiter.is_quoted, words
        self.command: Command | None = None


def commands_of(text: str, cwd: str) -> list[Command]:
    """Return every command of a line, in its order. Raises `UnclearError`."""
    if len(text) > LINE_CHARS_MAX:
        raise UnclearError("it is too long")
    found: list[Command] = []
    _Reader(text, cwd, found, Variables(), 0).read("")
    return found


class _Reader:
    def __init__(self, text: str, cwd: str, found: list[Command], known: Variables, depth: int, *, at: int = 0) -> None:
        if depth > DEPTH_MAX:
            raise UnclearError("it is nested too deeply")
        self.text, self.found, self.known, self.depth, self.at = text, found, known, depth, at
        self._locations: list[_Location] = [(cwd, 0)]
        self.open_variable = ""  # The first variable with several values in the current word.
        self.placeholder, self.names = "", list[Word]()  # The placeholder of `xargs -I` or `find -exec`, and its names.
        self.words: list[Word] = []
        self.outputs: list[Word] = []
        self.inputs: list[Word] = []
        self.here: list[HereDocument] = []
        self.piped: Output | None = None
        self.is_piped = False
        self.piped_here_documents: list[HereDocument] = []
        self.typed: list[str] = []
        self.produced: list[Output | None] = []  # Output of each command that is not piped on.
        self.before = (cwd, 0)
        self.pushed: list[_Location] = []
        self.blocks: list[list[_Location]] = []  # Folders at the start of each enclosing `if`, loop, `case` and `{`.
        self.list_start = self.locations
        self.is_conditional = self.may_stay = False
        self.moved_locations: list[_Location] = []  # After `cd … ||`: the folders if the `cd` succeeds.

    def inner(self, text: str, at: int = 0, cwd: str = "") -> _Reader:
        """Return a reader of another text, or of a part of this one, that appends to the same commands."""
        reader = _Reader(text, cwd or self.cwd, self.found, self.known, self.depth + 1, at=at)
        reader.placeholder, reader.names = self.placeholder, self.names
        reader.locations = reader.list_start = (
            self.locations if reader.cwd == self.cwd else [(cwd, self.locations[0][1])]
        )
        return reader

    def substituted(self, text: str, at: int, end: str) -> tuple[int, list[Word] | None]:
        """Read a substitution; return the position after it and its output (None if unknown)."""
        inner = self.inner(text, at)
        after = inner.read(end)
        if any(each is None for each in inner.produced):
            return after, None
        return after, [name for each in inner.produced if each is not None for name in each.names]

    def read(self, end: str) -> int:
        """Read commands until `end` (or all of the text if ""); return the position after it."""
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

    # Words.

    def all_words(self) -> list[Word]:
        """Read a word; return it once for each value of an expansion in it."""
        start, count, self.open_variable = self.at, len(self.found), ""
        words = [self.word()]
        name = self.open_variable
        values = self.known.values(name, self.cwd) if name else []
        self.known.expansions_left -= len(values)
        if len(values) > 1 and self.known.expansions_left >= 0:
            words = []
            for value in values:
                self.at = start
                del self.found[count:]
                self.known.chosen[name] = value
                words.append(self.word())
            del self.known.chosen[name]
        words = [each for word in words for each in split(word)]
        if self.placeholder and any(self.placeholder in word.text for word in words):
            self.known.spend(len(words) * len(self.names))
            words = [each for word in words for each in pipes.filled(word, self.placeholder, self.names)]
        return words

    def word(self) -> Word:
        draft = Draft()
        parts = draft.parts
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "(" and parts and self.begins_pattern(parts[-1]):
                draft.unsure(is_pattern=True, is_exact=True)
                end = closing(self.text, self.at) + 1
                parts.append(self.text[self.at : end])
                self.at = end
            elif char in " \t\r\n;&|()<>":
                break
            elif char == "\\":
                if self.text[self.at + 1 : self.at + 2] != "\n":
                    parts.append(self.text[self.at + 1 : self.at + 2])
                self.at += 2
            elif char == "'":
                end = self.end_of("'")
                parts.append(self.text[self.at + 1 : end])
                self.at, draft.is_quoted = end + 1, True
            elif char == '"':
                draft.is_quoted = True
                self.double_quoted(draft)
            elif char in "$`":
                count = len(parts)
                self.expansion(draft)
                draft.unquote(count)
            else:
                if char in "*?[" or (char == "{" and not self.text.startswith("{}", self.at)):
                    draft.unsure(is_pattern=True, is_exact=True)
                parts.append(char)
                self.at += 1
        return draft.word()

    def begins_pattern(self, before: str) -> bool:
        """Tell a pattern such as `*(.)` from a function `name()` and an array `a=(1)`."""
        return not before.endswith("=") and self.text[self.at + 1 : self.at + 64].lstrip()[:1] not in {"", ")"}

    def end_of(self, quote: str) -> int:
        end = self.text.find(quote, self.at + 1)
        if end < 0:
            raise UnclearError(f"a {quote} is missing")
        return end

    def ansi_quoted(self, draft: Draft) -> None:
        """Read `$'…'`. Only escaped quotes are decoded; any other escape makes the word uncertain."""
        self.at += 2
        while self.at < len(self.text):
            char = self.text[self.at]
            self.at += 1
            if char == "'":
                return
            if char == "\\":
                char = self.text[self.at : self.at + 1]
                self.at += 1
                if char not in {"'", '"', "\\"}:
                    draft.unsure()
            draft.parts.append(char)
        raise UnclearError("a ' is missing")

    def double_quoted(self, draft: Draft) -> None:
        self.at += 1
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == '"':
                self.at += 1
                return
            if char == "\\" and self.text[self.at + 1 : self.at + 2] in {"$", "`", '"', "\\", "\n"}:
                draft.parts.append(self.text[self.at + 1].replace("\n", ""))
                self.at += 2
            elif char in "$`":
                self.expansion(draft)
            else:
                draft.parts.append(char)
                self.at += 1
        raise UnclearError('a " is missing')

    def expand_only(self, text: str) -> Word:
        """Expand a text as within double quotes, and read the commands that it substitutes."""
        if "$" not in text and "`" not in text:
            return Word(text)
        return self.inner('"' + text.replace('"', "'") + '"').word()

    def expansion(self, draft: Draft) -> None:
        """Read `$name`, `${…}`, `$((…))`, `$(…)` or backquotes, and append the value if it is known."""
        rest, start = self.text[self.at : self.at + 3], self.at
        if rest[0] == "`":
            end = self.end_of("`")
            _, values = self.substituted(self.text[self.at + 1 : end], 0, "")
            self.at = end + 1
            self.value_of(self.known.put(f"{id(self)}:{start}", values), draft)
        elif rest.startswith("$((") and (end := closing(self.text, self.at + 1)) == closing(self.text, self.at + 2) + 1:
            self.expand_only(self.text[self.at + 3 : end - 1])
            self.at = end + 1
            self.value_of("#", draft)
        elif rest.startswith("$("):
            self.at, values = self.substituted(self.text, self.at + 2, ")")
            self.value_of(self.known.put(f"{id(self)}:{start}", values), draft)
        elif rest.startswith("${"):
            end = closing(self.text, self.at + 1, "{}")
            expression = self.text[self.at + 2 : end]
            self.at = end + 1
            self.braced(expression, draft)
        elif rest.startswith("$'"):
            self.ansi_quoted(draft)
        elif rest.startswith('$"'):
            self.at += 1
        else:
            self.at += 1
            name = _name_at(self.text, self.at)
            if not name and self.text[self.at : self.at + 1] not in _SPECIAL:
                draft.parts.append("$")
                return
            name = name or self.text[self.at]
            self.at += len(name)
            self.value_of(name, draft)

    def braced(self, expression: str, draft: Draft) -> None:
        name = _name_at(expression, 0)
        if not name and (expression[:1] in {"@", "*"} or expression in _SPECIAL):
            name = expression[:1]
        operator = expression[len(name) :]
        if operator.startswith("[") and "]" in operator:
            operator = operator[operator.index("]") + 1 :]
        given = self.expand_only(operator.lstrip(":-=+?%#/"))
        has_default = operator[:2] in {":-", ":="} or operator[:1] in {"-", "="}
        if operator.lstrip(":")[:1] == "+" or (has_default and not self.known.values(name, self.cwd)):
            draft.append(given)
        elif not name and expression[:1] == "#":
            self.value_of("#", draft)
        else:
            self.value_of(name, draft, operator)

    def value_of(self, name: str, draft: Draft, operator: str = "") -> None:
        values = self.known.values(name, self.cwd)
        if len(values) == 1:
            draft.append(changed(values[0], operator))
            return
        if len(values) > 1:
            self.open_variable = self.open_variable or name
        draft.unsure()

    # Operators.

    def operator(self, char: str) -> None:
        rest = self.text[self.at : self.at + 3]
        if (
            char in "<>"
            and [word.text for word in simple_command(self.words)[:1]] == ["[["]
            and self.words[-1].text != "]]"
        ):
            self.words.append(Word(char))  # `[[ a > b ]]` redirects nothing.
            self.at += 1
        elif char in "<>" or rest.startswith("&>"):
            self.redirection(rest)
        elif char == "(":
            self.at += 1
            if all(word.text in KEYWORDS or word.text == "time" for word in self.words):
                self.finish()  # As in `do (…)`.
            is_array = bool(self.words) and self.words[-1].text.endswith("=")
            if self.words and not is_array:
                return  # `name()` begins a function; its body follows.
            inner, count = self.inner(self.text, self.at), len(self.found)
            self.at = inner.read(")")
            if is_array:
                name = self.words.pop().text.rstrip("+=")
                for word in (word for command in self.found[count:] for word in command.words):
                    self.known.add(name, word)
            else:
                self.produced += inner.produced
        elif char == ")":
            self.at += 1  # After a pattern of `case`, or `name()`.
            if self.words and self.words[0].text == "case":
                self.blocks.append(self.locations)
            elif self.blocks:
                self.add_locations(self.blocks[-1])
            self.words = []
        else:
            separator = rest[:2] if rest[:2] in {"&&", "||", "|&"} else char
            self.at += len(separator)
            self.finish(separator)
            if char == "\n":
                self.skip_here_documents()

    def redirection(self, rest: str) -> None:
        if self.words and self.words[-1].text.isdecimal() and self.text[self.at - 1 : self.at].isdecimal():
            self.words.pop()
        if rest[:2] in {"<(", ">("}:
            self.at, names = self.substituted(self.text, self.at + 2, ")")
            if rest[0] == "<" and names:
                self.piped = Output(names)
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
            self.here.append(HereDocument(target, self.words))
        elif operator == "<<<":
            self.typed.append(" ".join(each.text for each in targets))
        elif operator == ">&" and (target.text.isdecimal() or target.text == "-"):
            return
        elif operator in {"<", "<&"}:
            self.inputs += targets
        else:
            self.outputs += targets

    def skip_here_documents(self) -> None:
        """Skip here-documents, but read their substitutions, and those that are a shell's input."""
        for here in self.here:
            body = []
            while self.at < len(self.text):
                end = self._until("\n")
                line = self.text[self.at : end]
                self.at = min(end + 1, len(self.text))
                if line.lstrip("\t") == here.delimiter:
                    break
                body.append(line)
            text = "\n".join(body)
            if is_typed_into(here.words):
                self.script(text, self.cwd)
                continue
            text = text if here.is_quoted else self.expand_only(text).text
            if here.command is not None:
                here.command.typed.append(text)
        self.here, self.piped_here_documents = [], []

    # Commands.

    def finish(self, separator: str = "") -> None:
        is_pipe = separator[:1] == "|" and separator != "||"
        given, outputs, typed, inputs = self.words, self.outputs, self.typed, self.inputs
        if not given and not outputs:
            return  # As after `|&`, or between a pipe and the next line.
        self.words, self.outputs, self.typed, self.inputs = [], [], [], []
        piped, piped_here_documents, is_piped = self.piped, self.piped_here_documents, self.is_piped
        self.piped, self.piped_here_documents, self.is_piped = None, [], is_pipe
        self.track_blocks(given)
        words, count, locations = simple_command(given), len(self.found), self.locations
        self.known.record_assignments(words or given, None if piped is None else piped.names)
        self.add_command(words, outputs, self.cwd, piped)
        here_documents = [here for here in self.here if here.words is given]
        for made in self.found[-len(self.locations) :] if len(self.found) > count else ():
            made.inputs += inputs
            made.typed += [*typed, *([piped.text] if piped is not None and piped.text is not None else [])]
            made.has_input = made.has_input or is_piped or bool(typed or inputs or here_documents)
            for here in [*here_documents, *piped_here_documents]:
                here.command = made
        if is_typed_into(words):
            for text in typed if piped is None or piped.text is None else [*typed, piped.text]:
                self.script(text, self.cwd)
            for here in piped_here_documents:
                here.words = words
        folder, lost = locations[0]
        if lost and words and words[0].text == "pwd":
            produced = Output(pipes.below([Word(folder)])) if lost == BELOW else None
        else:
            produced = pipes.output_of(words, piped, folder) if words else Output([])
        if is_pipe:
            self.piped = produced
            if words and words[0].text == "cat":
                self.piped_here_documents = [*piped_here_documents, *here_documents]
        else:
            self.produced.append(produced)
        self.update_locations(words, locations, separator, is_piped=is_pipe or is_piped)

    @property
    def cwd(self) -> str:
        return self._locations[0][0]

    @property
    def locations(self) -> list[_Location]:
        """Every folder in which the next command may run: a `cd` may fail or be skipped."""
        return self._locations

    @locations.setter
    def locations(self, locations: list[_Location]) -> None:
        self._locations = list(dict.fromkeys(locations))
        if len(locations) > LOCATIONS_MAX:
            raise UnclearError("it may run in too many folders")

    def add_locations(self, locations: list[_Location]) -> None:
        self.locations = [*self.locations, *locations]

    def track_blocks(self, words: list[Word]) -> None:
        """Save the folders at the start of a block, and add them after it: its body may not have run."""
        for at, word in enumerate(words):
            if word.is_quoted:
                return
            if word.text in _OPENS:
                self.blocks.append(self.locations)
            elif word.text in _CLOSES and self.blocks:
                self.add_locations(self.blocks.pop())
            elif word.text in {"else", "elif"} and self.blocks:
                self.add_locations(self.blocks[-1])
            elif not (
                word.text in KEYWORDS or syntax.is_assignment(word.text) or "function" in words[max(0, at - 1)].text
            ):
                return

    def update_locations(
        self, words: list[Word], locations: list[_Location], separator: str, *, is_piped: bool
    ) -> None:
        """Set where the next command may run; `locations` are the folders before this one, which may be a `cd`."""
        if is_piped:
            self.locations = locations  # In a process of its own.
        elif self.locations != locations and program(words) in {"cd", "pushd"}:
            is_there = self.cwd in self.known.folders or os.path.isdir(self.cwd) or not os.path.isdir(locations[0][0])
            self.may_stay = self.may_stay or self.is_conditional or not is_there
            if separator == "||":
                self.moved_locations, self.locations = self.locations, locations
        elif self.moved_locations and words and words[0].text in {"break", "continue", "exit", "return"}:
            self.locations, self.may_stay = self.moved_locations, False
        if separator == "||":
            self.add_locations(self.list_start)
        self.is_conditional = separator in {"&&", "||"} or (is_piped and self.is_conditional)
        if separator not in {"&&", "||", "|", "|&"}:
            if separator == "&":
                self.locations = self.list_start
            elif self.may_stay:
                self.add_locations(self.list_start)
            elif self.moved_locations and self.locations != self.moved_locations:
                self.add_locations(self.moved_locations)
            self.list_start, self.may_stay, self.moved_locations = self.locations, False, []

    def add_command(self, words: list[Word], outputs: list[Word], cwd: str, piped: Output | None = None) -> None:
        outer = self.placeholder, self.names
        while (name := program(words)) in WRAPPERS:
            words, cwd, script, options = programs.unwrapped(words, cwd)
            if name in {"xargs", "parallel"}:
                words, script = self.with_input(name, words, options, piped)
            elif name == "env" and script:
                rest = " ".join(pipes.quoted(word.text) for word in words if word.is_sure)
                script, words = f"env {script} {rest}", []
            elif name == "watch" and words:
                script, words = " ".join(word.text for word in words), []
            elif not (words or script) and name in {"chroot", "doas", "script", "su", "sudo"}:
                # Without a command they run a shell, some of them only with an option.
                is_shell = programs.has_option(options, "-i", "-s", "--login", "--shell")
                words = [Word("sh")] if is_shell or name in {"chroot", "script", "su"} else []
            words = simple_command(words)  # `time` may precede a keyword.
            if script:
                self.script(script, cwd)
        if words or outputs:
            if len(self.found) >= COMMANDS_MAX:
                raise UnclearError("it has too many commands")
            locations = self.locations if cwd == self.cwd else [(cwd, self.locations[0][1])] * len(self.locations)
            self.found += [Command(words, location, outputs, lost) for location, lost in locations]
        if words:
            self.follow(program(words), words, cwd, piped)
        self.placeholder, self.names = outer

    def with_input(
        self, name: str, words: list[Word], options: programs.Options, piped: Output | None
    ) -> tuple[list[Word], str]:
        """Return the command of `xargs` or `parallel`, or the line that `parallel` passes to a shell."""
        placeholder = next((word.text for word in programs.values_of(options, "-I")), "") or "{}"
        words, names = pipes.names_for(words, piped)
        self.placeholder, self.names = placeholder, names
        if name == "parallel" and words and " " in words[0].text:
            text = words[0].text
            return [], text if placeholder in text else f"{text} {placeholder}"
        return self.with_names(words, names, placeholder) if words else [], ""

    def with_names(
        self, words: list[Word], names: list[Word], placeholder: str, *, is_added: bool = True
    ) -> list[Word]:
        self.known.spend(len(names) * sum(placeholder in word.text for word in words))
        return pipes.placed(words, names, placeholder, is_added=is_added)

    def follow(self, name: str, words: list[Word], cwd: str, piped: Output | None) -> None:
        if name in {"cd", "pushd", "popd"}:
            self.change_folder(name, words)
        elif name == "eval":
            self.locations = self.script(" ".join(word.text for word in words[1:]), cwd).locations
        elif name in SHELLS:
            if at := programs.script_at(words):
                before = self.known.positional(words[at + 2 :])
                self.script(words[at].text, cwd)
                self.known.positional(before)
        elif name == "mkdir":
            self.known.folders |= {os.path.normpath(os.path.join(cwd, word.text)) for word in words[1:]}
        elif name == "trap" and words[2:] and words[1].text != "-":
            self.script(words[1].text, cwd)
        elif name in WRAPPER_VERBS and len(words) > 1 and words[1].text == WRAPPER_VERBS[name]:
            self.add_command(programs.parsed(name, words[2:], stops=True)[1], [], cwd, piped)
        elif name == "find":
            self.run_find_actions(words, cwd)
        elif name == "holdfast":
            # `holdfast run JOB -- COMMAND`, `holdfast session exec NAME -- COMMAND`
            start = next((at + 1 for at, word in enumerate(words) if word.text == "--"), len(words))
            self.add_command(words[start:], [], cwd)

    def change_folder(self, name: str, words: list[Word]) -> None:
        """Follow `cd`, `pushd` and `popd`. As in a shell, `..` removes the last name even after a link."""
        targets = [word for word in words[1:] if word.text == "-" or word.text[:1] != "-"]
        here = self.locations[0]
        if name == "popd" or (not targets and name == "pushd"):
            self.locations = [self.pushed.pop() if self.pushed else here, *self.locations[1:]]
        elif not targets:
            self.locations = [(os.path.expanduser("~"), 0)]
        else:
            # A variable with several values expands to several words.
            self.locations = [
                self.location_after_cd(location, target) for target in targets for location in self.locations
            ]
        if name == "pushd":
            self.pushed.append(here)
        self.before = here
        self.known.add("OLDPWD", Word(here[0]) if not here[1] else UNKNOWN)

    def location_after_cd(self, location: _Location, target: Word) -> _Location:
        folder, lost = location
        if target.text == "-":
            return self.before
        if target.is_sure:
            text = os.path.expanduser(target.text)
            return os.path.normpath(os.path.join(folder, text)), 0 if os.path.isabs(text) else lost
        if "/" in (target.clear or "") or target.is_pattern:
            return os.path.normpath(os.path.join(folder, target.folder)), BELOW
        return folder, LOST

    def script(self, text: str, cwd: str) -> _Reader:
        reader = self.inner(text, cwd=cwd)
        reader.read("")
        return reader

    def run_find_actions(self, words: list[Word], cwd: str) -> None:
        locations = pipes.below(pipes.start_folders_of_find(words))  # It finds anything below its start folders.
        for at, word in enumerate(words):
            if word.text in {"-exec", "-execdir", "-ok", "-okdir"}:
                end = next((each for each in range(at + 1, len(words)) if words[each].text in {";", "+"}), len(words))
                self.placeholder, self.names = "{}", locations
                self.add_command(self.with_names(words[at + 1 : end], locations, "{}", is_added=False), [], cwd)


def _name_at(text: str, start: int) -> str:
    end = start
    while text[end : end + 1] in _LETTERS:
        end += 1
    return text[start:end]
