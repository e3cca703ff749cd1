"""`client.toml` for programs that must start at once, read without `holdfast.clientconfig`, which imports much.

Parsing TOML is imported only where it is done: `rlock` does not where GATEWAY_URL or HOLDFAST_URL names the server.
"""

from __future__ import annotations

import os
from collections.abc import Mapping


class Kept:
    """What the user's `client.toml` says. What is not there, or is not text, is empty."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Read it; a file that is not there says nothing. Raises `ValueError` for one that cannot be read."""
        import tomllib

        self.file = file_of(environment)
        lines: Mapping[str, object] = {}
        try:
            with open(self.file, encoding="utf-8") as opened:
                lines = tomllib.loads(opened.read())
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.file} cannot be read: {error}") from None
        self.url = _text(lines, "url")
        self.ca_file = self._named(lines, "ca_file")
        self.token_file = self._named(lines, "token_file")
        self.allow_insecure_http = lines.get("allow_insecure_http") is True

    def _named(self, lines: Mapping[str, object], name: str) -> str:
        """Return a file that is named there; it may be named from where `client.toml` is."""
        found = _text(lines, name)
        if not found:
            return ""
        return self.file.removesuffix("client.toml") * (found[0] not in "/~") + os.path.expanduser(found)


def file_of(environment: Mapping[str, str]) -> str:
    """Tell where the user's `client.toml` is."""
    config = environment.get("XDG_CONFIG_HOME", "")
    if not config.startswith("/"):
        config = (environment.get("HOME") or os.path.expanduser("~")) + "/.config"
    return config + "/holdfast/client.toml"


def _text(lines: Mapping[str, object], name: str) -> str:
    value = lines.get(name)
    return value if isinstance(value, str) else ""
