"""Text of others made harmless: nothing in it moves a cursor, sets a colour, or turns or hides the text next to it.

Printable text, as Python defines it, is let through. All else is escaped: control characters (C1 too, of which U+009B
begins a command for the terminal), U+202E, U+200B, line ends of Unicode, surrogates and unassigned characters. The
module imports nothing, so that `rlock` can use it.
"""

from __future__ import annotations


def plain(text: str) -> str:
    """Return a text for people, on one line."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " if char.isspace() else f"\\x{ord(char):02x}" for char in text)


def in_json(text: str) -> str:
    """Return JSON of the same value in which nothing acts on a terminal."""
    if text.isprintable():
        return text
    # Line ends are between the parts of JSON; in its strings they are escaped already.
    return "".join(char if char.isprintable() or char == "\n" else _escape(char) for char in text)


def _escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
