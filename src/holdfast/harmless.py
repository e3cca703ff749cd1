"""Text of others, made harmless: nothing in it moves a cursor, sets a colour, or turns or hides what stands beside it.

The one home of that, for all commands. It imports nothing, so that `rlock` can have it.

What Python calls printable is let through. All else is written out: control characters (C1 too, of which U+009B begins
a command for the terminal), what turns or hides text (U+202E, U+200B), line ends of Unicode, halves of characters, and
what no character has been assigned to.
"""

from __future__ import annotations


def plain(text: str) -> str:
    """Write a text for people: on one line, blanks as blanks."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " if char.isspace() else f"\\x{ord(char):02x}" for char in text)


def in_json(text: str) -> str:
    """Write JSON for programs, and for people who look at it: the same value, with what could act on them escaped."""
    if text.isprintable():
        return text
    # A line end stands only between the parts of JSON; in its strings it is escaped already.
    return "".join(char if char.isprintable() or char == "\n" else _escape(char) for char in text)


def _escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
