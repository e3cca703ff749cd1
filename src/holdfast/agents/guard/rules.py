"""The rules of a repository: `holdfast-guard.toml`, parsed strictly, so that no misspelled key disables a rule.

Parsing TOML takes a third of a check's time budget. So parsed rules are cached in a private file with their text, and
used only for exactly that text.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from contextlib import suppress

from holdfast.agents.guard import paths, shell, state
from holdfast.agents.guard.syntax import UnclearError

CLAIM, ASK, ONLY_REFUSE = "claim", "ask", "only-refuse"
REFUSE, LET_PASS = "refuse", "let-pass"
SESSION, TURN = "session", "turn"


class BrokenRulesError(Exception):
    def __init__(self, file: str, problem: str) -> None:
        super().__init__(
            f"{file} cannot be used: {problem}. Nothing that could fall under it passes until it is mended;"
            " `holdfast guard check` says whether it is"
        )


class Rule:
    def __init__(self, table: dict[str, object], ttl_seconds: int) -> None:
        self.ttl_seconds = ttl_seconds
        self.job: str = table["job"]  # type: ignore[assignment]
        self.paths: list[list[str]] = table["paths"]  # type: ignore[assignment]
        self.commands: list[list[str]] = table["commands"]  # type: ignore[assignment]
        self.tools: list[str] = table["tools"]  # type: ignore[assignment]
        self.arguments: dict[str, str] = table["arguments"]  # type: ignore[assignment]
        self.when_free: str = table["when_free"]  # type: ignore[assignment]
        self.when_away: str = table["when_away"]  # type: ignore[assignment]


class Rules:
    def __init__(self, file: str, table: dict[str, object]) -> None:
        self.file, self.ignores_case = file, paths.ignores_case(file)
        self.release: str = table["release"]  # type: ignore[assignment]
        self.ttl_seconds: int = table["ttl_seconds"]  # type: ignore[assignment]
        self.rules = [Rule(each, self.ttl_seconds) for each in table["rules"]]  # type: ignore[attr-defined]


FILE_BYTES_MAX = 256 * 1024
FORM = 1  # Version of the cached form.
_CACHED_FILES_MAX = 64


def read(file: str, base: str) -> Rules:
    """Read a rule file; `base` is the guard's folder with the cache. Raises `BrokenRulesError`."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
        found = os.fstat(descriptor)
        with os.fdopen(descriptor, "rb") as opened:
            if not stat.S_ISREG(found.st_mode):
                # A pipe without a writer, or /dev/null, would look like a file without rules.
                raise BrokenRulesError(file, "it is not a regular file")
            content = opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise BrokenRulesError(file, error.strerror or str(error)) from None
    if len(content) > FILE_BYTES_MAX:
        raise BrokenRulesError(file, f"it has more than {FILE_BYTES_MAX // 1024} KiB")
    try:
        # Without the byte order mark, which TOML 1.0 does not allow.
        text = content.removeprefix(b"\xef\xbb\xbf").decode()
    except UnicodeDecodeError:
        raise BrokenRulesError(file, "it is not UTF-8") from None
    cache_file = f"{base}/{state.RULES}/{found.st_dev:x}-{found.st_ino:x}.json"
    cached = state.read_object(cache_file, FILE_BYTES_MAX * 8)
    table = cached.get("table")
    if not isinstance(table, dict) or (cached.get("form"), cached.get("text")) != (FORM, text):
        table = parse(file, text)
        _cache(cache_file, {"form": FORM, "text": text, "table": table})
    return Rules(file, table)


def _cache(file: str, content: dict[str, object]) -> None:
    """Cache parsed rules. Only an optimisation: a read-only folder must not cause refusals."""
    from pathlib import Path

    from holdfast.privatefiles import replace

    with suppress(OSError):
        folder = Path(file).parent
        state.make_private(str(folder))
        others = list(folder.iterdir())  # With unfinished files of killed processes.
        for other in others if len(others) >= _CACHED_FILES_MAX else ():
            other.unlink(missing_ok=True)
        replace(Path(file), json.dumps(content).encode())


RULES_MAX = 500
TTL_SECONDS_MIN, TTL_SECONDS_MAX = 10, 3_600
_TOP = {"when_free", "when_away", "ttl", "release", "rule"}
_RULE = {"paths", "command", "tool", "arguments", "job", "when_free", "when_away"}
_WHEN_FREE = (CLAIM, ASK, ONLY_REFUSE)
_WHEN_AWAY = (REFUSE, LET_PASS)


def parse(file: str, text: str) -> dict[str, object]:
    import tomllib  # Late: most checks find cached rules.

    try:
        return _checked(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BrokenRulesError(file, f"it is not TOML: {str(error) or 'it is nested too deeply'}") from None
    except ValueError as problem:
        raise BrokenRulesError(file, str(problem)) from None


def _checked(lines: Mapping[str, object]) -> dict[str, object]:
    _known(lines, _TOP, "the file")
    rules = lines.get("rule", [])
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise ValueError("rules are written as [[rule]]")
    if len(rules) > RULES_MAX:
        raise ValueError(f"it has {len(rules)} rules, and {RULES_MAX} are the most")
    from holdfast.durations import seconds

    ttl = lines.get("ttl", "60s")
    ttl_seconds = seconds(ttl) if isinstance(ttl, str) else ttl if type(ttl) is int else None
    if ttl_seconds is None or not TTL_SECONDS_MIN <= ttl_seconds <= TTL_SECONDS_MAX:
        raise ValueError('ttl is a time from "10s" to "1h"')
    default = {
        "when_free": _one_of(lines, "when_free", _WHEN_FREE, CLAIM),
        "when_away": _one_of(lines, "when_away", _WHEN_AWAY, REFUSE),
    }
    return {
        "ttl_seconds": ttl_seconds,
        "release": _one_of(lines, "release", (SESSION, TURN), SESSION),
        "rules": [_rule(rule, f"rule {number}", default) for number, rule in enumerate(rules, start=1)],
    }


def _rule(table: Mapping[str, object], which: str, default: Mapping[str, str]) -> dict[str, object]:
    _known(table, _RULE, which)
    kinds = [name for name in ("paths", "command", "tool") if name in table]
    if len(kinds) != 1:
        raise ValueError(f"{which} needs exactly one of paths, command and tool")
    if "arguments" in table and kinds != ["tool"]:
        raise ValueError(f"{which}: arguments belong to a tool")
    job = table.get("job")
    if not isinstance(job, str) or not job:
        raise ValueError(f"{which} has no job")
    arguments = table.get("arguments", {})
    if not isinstance(arguments, dict) or not all(isinstance(value, str) for value in arguments.values()):
        raise ValueError(f"{which}: arguments are patterns by the name of the argument")
    _placeholders(job, which, kinds[0], arguments)
    return {
        "job": job,
        "paths": [paths.pieces_of(each) for each in _texts(table, "paths", which)],
        "commands": [_words(each, which) for each in _texts(table, "command", which)],
        "tools": _texts(table, "tool", which),
        "arguments": arguments,
        "when_free": _one_of(table, "when_free", _WHEN_FREE, default["when_free"], which),
        "when_away": _one_of(table, "when_away", _WHEN_AWAY, default["when_away"], which),
    }


def _words(text: str, which: str) -> list[str]:
    try:
        found = shell.commands_of(text, "/")
    except UnclearError as error:
        raise ValueError(f"{which}: the command cannot be read: {error}") from None
    if len(found) != 1 or not found[0].words:
        raise ValueError(f"{which}: the command is not one command")
    return found[0].texts


def _placeholders(job: str, which: str, kind: str, arguments: Mapping[str, str]) -> None:
    allowed = {"branch", *(["path"] if kind == "paths" else []), *(f"argument.{name}" for name in arguments)}
    rest = job
    while "{" in rest or "}" in rest:
        before, opened, rest = rest.partition("{")
        name, closed, rest = rest.partition("}")
        if "}" in before or not opened or not closed or name not in allowed:
            known = ", ".join(f"{{{each}}}" for each in sorted(allowed))
            raise ValueError(f"{which}: in the name of its job only {known} can be filled in")


def _texts(table: Mapping[str, object], name: str, which: str) -> list[str]:
    value = table.get(name, [])
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not all(isinstance(each, str) and each.strip() for each in found):
        raise ValueError(f"{which}: {name} is a text or a list of texts")
    if name in table and not found:
        raise ValueError(f"{which}: {name} is empty")
    return found


def _one_of(lines: Mapping[str, object], name: str, allowed: tuple[str, ...], default: str, which: str = "") -> str:
    value = lines.get(name, default)
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{which}{': ' * bool(which)}{name} is one of {', '.join(allowed)}")
    return value


def _known(table: Mapping[str, object], known: set[str], which: str) -> None:
    for name in table:
        if name not in known:
            raise ValueError(f"{which} knows no {name!r:.60}; it knows {', '.join(sorted(known))}")
