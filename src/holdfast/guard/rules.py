"""The rules of a repository, as `holdfast-guard.toml` says them."""

from __future__ import annotations

import json
import os
import stat

from holdfast.guard import state

CLAIM, ASK, ONLY_REFUSE = "claim", "ask", "only-refuse"
REFUSE, LET_PASS = "refuse", "let-pass"
SESSION, TURN = "session", "turn"


class BrokenRulesError(Exception):
    """A rule file that cannot be used. The text says which, why, and what to do."""

    def __init__(self, file: str, problem: str) -> None:
        super().__init__(
            f"{file} cannot be used: {problem}. Nothing that could fall under it passes until it is mended;"
            " `holdfast guard check` says whether it is"
        )


class Rule:
    """One rule."""

    __slots__ = ("arguments", "commands", "job", "paths", "tools", "when_away", "when_free")

    def __init__(self, table: dict[str, object]) -> None:
        """Make it of a table of the checked form, as `ruleparsing` makes it."""
        self.job: str = table["job"]  # type: ignore[assignment]
        self.paths: list[list[str]] = table["paths"]  # type: ignore[assignment]
        self.commands: list[list[str]] = table["commands"]  # type: ignore[assignment]
        self.tools: list[str] = table["tools"]  # type: ignore[assignment]
        self.arguments: dict[str, str] = table["arguments"]  # type: ignore[assignment]
        self.when_free: str = table["when_free"]  # type: ignore[assignment]
        self.when_away: str = table["when_away"]  # type: ignore[assignment]


class Rules:
    """A rule file that was read."""

    __slots__ = ("file", "release", "rules", "top", "ttl_seconds")

    def __init__(self, file: str, table: dict[str, object]) -> None:
        self.file, self.top = file, os.path.dirname(file)
        self.release: str = table["release"]  # type: ignore[assignment]
        self.ttl_seconds: int = table["ttl_seconds"]  # type: ignore[assignment]
        self.rules = [Rule(each) for each in table["rules"]]  # type: ignore[attr-defined]


FILE_BYTES_MAX = 256 * 1024
FORM = 1
"""Of what is kept; another form is not read."""
_KEPT_FILES_MAX = 64


def read(file: str, base: str) -> Rules:
    """Read a rule file; `base` is the guard's folder, where what was parsed is kept. Raises `BrokenRulesError`."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
        found = os.fstat(descriptor)
        with os.fdopen(descriptor, "rb") as opened:
            content = (opened.read(FILE_BYTES_MAX + 1) or b"") if stat.S_ISREG(found.st_mode) else b""
    except OSError as error:
        raise BrokenRulesError(file, error.strerror or str(error)) from None
    if not stat.S_ISREG(found.st_mode):
        # A pipe that nobody writes to, or /dev/null, would be a file without rules.
        raise BrokenRulesError(file, "it is not a regular file")
    if len(content) > FILE_BYTES_MAX:
        raise BrokenRulesError(file, f"it has more than {FILE_BYTES_MAX // 1024} KiB")
    try:
        # Some editors put a mark before the text, which TOML 1.0 does not know.
        text = content.removeprefix(b"\xef\xbb\xbf").decode()
    except UnicodeDecodeError:
        raise BrokenRulesError(file, "it is not UTF-8") from None
    kept = f"{base}/{state.RULES}/{found.st_dev:x}-{found.st_ino:x}.json"
    table = _kept(kept, text)
    if table is None:
        from holdfast.guard.ruleparsing import parse

        table = parse(file, text)
        _keep(kept, {"form": FORM, "text": text, "table": table})
    return Rules(file, table)


def _kept(file: str, text: str) -> dict[str, object] | None:
    found = state.read_object(file, FILE_BYTES_MAX * 8)
    if found.get("form") != FORM or found.get("text") != text:
        return None
    table = found.get("table")
    return table if isinstance(table, dict) else None


def _keep(file: str, content: dict[str, object]) -> None:
    """Keep what was parsed. It only saves time: a folder that cannot be written to is no reason to refuse anything."""
    from pathlib import Path

    from holdfast.privatefiles import replace

    try:
        folder = Path(file).parent
        state.make_private(str(folder))
        others = list(folder.iterdir())  # Also what a killed process did not finish.
        if len(others) >= _KEPT_FILES_MAX:
            for other in others:
                other.unlink(missing_ok=True)
        replace(Path(file), json.dumps(content).encode())
    except OSError:
        return
