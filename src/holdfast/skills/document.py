"""Files that are installed as a whole, the skill first: their text, and whether a copy, of any version, is unchanged.

A copy carries a digest of all its other text. So a copy that an older Holdfast put in place is known as one, and one
that somebody has written into is known too, without a list of what we ever shipped.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

FILE = Path(__file__).with_name("holdfast") / "SKILL.md"
PLUGIN = Path(__file__).with_name("opencode.js")
_DIGEST = re.compile(r'^(  digest: ")([0-9a-f]*)("$)', re.MULTILINE)


def text(file: Path = FILE) -> str:
    return file.read_text(encoding="utf-8")


def digest_of(document: str) -> str:
    """Return the digest that belongs into a copy; its line ends do not matter, because git may change them."""
    plain = _DIGEST.sub(r"\1\3", document.replace("\r\n", "\n"))
    return hashlib.sha256(plain.encode()).hexdigest()[:16]


def is_unchanged(document: str) -> bool:
    """Is this a copy of a file of this version or another, as we wrote it?"""
    found = _DIGEST.findall(document.replace("\r\n", "\n"))
    return len(found) == 1 and found[0][1] == digest_of(document)
