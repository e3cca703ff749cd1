"""`client.toml` for `rlock` and its kin, read without `holdfast.clientconfig`, which imports much.

It is imported only where neither GATEWAY_URL nor HOLDFAST_URL says which server it is.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping


class Kept:
    """What the user's `client.toml` says. What is not there, or is not text, is empty."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Read it; a file that is not there says nothing. Raises `ValueError` for one that cannot be read."""
        config = environment.get("XDG_CONFIG_HOME", "")
        if not config.startswith("/"):
            config = (environment.get("HOME") or os.path.expanduser("~")) + "/.config"  # noqa: PTH111 - pathlib is heavy
        self.file = config + "/holdfast/client.toml"
        lines: Mapping[str, object] = {}
        try:
            with open(self.file, encoding="utf-8") as opened:  # noqa: PTH123 - pathlib is heavy
                lines = tomllib.loads(opened.read())
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            raise ValueError(f"{self.file} cannot be read: {error}") from None
        self.url = _text(lines, "url")
        self.ca_file = _text(lines, "ca_file")
        if self.ca_file:
            self.ca_file = f"{config}/holdfast/" * (self.ca_file[0] not in "/~") + os.path.expanduser(self.ca_file)  # noqa: PTH111 - pathlib is heavy
        self.allow_insecure_http = lines.get("allow_insecure_http") is True


def _text(lines: Mapping[str, object], name: str) -> str:
    value = lines.get(name)
    return value if isinstance(value, str) else ""
