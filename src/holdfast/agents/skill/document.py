"""Files that are installed whole, like the skill: their text, and whether a copy of any version is unmodified.

A copy carries a digest of its other text, which identifies unmodified copies of every version without a list of them.
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
    """Return the digest for a copy, with line ends normalised because git may change them."""
    plain = _DIGEST.sub(r"\1\3", document.replace("\r\n", "\n"))
    return hashlib.sha256(plain.encode()).hexdigest()[:16]


def is_unchanged(document: str) -> bool:
    found = _DIGEST.findall(document.replace("\r\n", "\n"))
    return len(found) == 1 and found[0][1] == digest_of(document)
