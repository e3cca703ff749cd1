"""Why the driver knew no password, although there is a file that may have it.

asyncpg reads no password from a file that others may read, and goes on without one: then the server says that a
password is wrong or missing, and nothing of the file. So whoever cannot be let in is told of it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import parse_qs, urlsplit


def why_none(url: str) -> str:
    """Say why the password file was not read, and what to do; nothing if it was, or is not needed, or not there."""
    file = _file_of(url)
    if file is None:
        return ""
    try:
        mode = file.stat().st_mode
        if not stat.S_ISREG(mode):
            return f"the password file {file} was not read, for it is no plain file"
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            shown = f"{stat.S_IMODE(mode):04o}"
            return f"the password file {file} was not read, for others may open it (mode {shown}): chmod 600 {file}"
        with file.open("rb"):
            return ""
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return f"the password file {file} cannot be read: {error.strerror or error}"


def _file_of(url: str) -> Path | None:
    """Return the file that the driver looks into; None if it has a password before, or no place to look."""
    parts = urlsplit(url)
    fields = parse_qs(parts.query)
    if parts.password or "password" in fields or "PGPASSWORD" in os.environ:
        return None
    named = fields["passfile"][-1] if "passfile" in fields else os.environ.get("PGPASSFILE")
    if named is not None:
        return Path(named)
    try:
        return Path.home() / ".pgpass"
    except RuntimeError:
        return None
