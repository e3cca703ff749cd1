"""The rules of a repository, as `holdfast-guard.toml` says them."""

from __future__ import annotations

import os

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
