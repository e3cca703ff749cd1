# ruff: noqa: INP001 - a script, and no package
"""Draws the pictures of the guides: `python docs/pictures/draw.py` writes them, a test compares them.

Each picture has a light ground of its own, so that it looks the same on a light page and on a dark one. Time goes from
left to right.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
WIDTH = 760
GROUND, INK, FAINT = "#fbfaf7", "#1f2933", "#7b8794"
GREEN, BLUE, RED, GREY = "#2f855a", "#2b6cb0", "#c53030", "#cbd2d9"


def text(x: float, y: float, words: str, *, colour: str = INK, size: int = 14, anchor: str = "start") -> str:
    """Write words."""
    return f'<text x="{x}" y="{y}" fill="{colour}" font-size="{size}" text-anchor="{anchor}">{escape(words)}</text>'


def bar(x: float, y: float, width: float, colour: str, words: str = "", *, height: int = 26, opacity: float = 1) -> str:
    """Draw a span of time, with words in it."""
    box = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" fill="{colour}" fill-opacity="{opacity}"/>'
    return box + (text(x + width / 2, y + height / 2 + 5, words, colour="#ffffff", anchor="middle") if words else "")


def dashed(x: float, y: float, width: float, words: str = "", *, height: int = 26) -> str:
    """Draw a span in which somebody is not there."""
    box = (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" fill="{GROUND}" stroke="{FAINT}"'
        ' stroke-dasharray="5 4"/>'
    )
    return box + (text(x + width / 2, y + height / 2 + 5, words, colour=FAINT, anchor="middle") if words else "")


def mark(x: float, top: float, bottom: float, words: str = "", *, colour: str = INK) -> str:
    """Draw a moment, with words above it."""
    line = f'<line x1="{x}" y1="{top}" x2="{x}" y2="{bottom}" stroke="{colour}" stroke-width="1.5"/>'
    return line + (text(x, top - 6, words, colour=colour, size=13, anchor="middle") if words else "")


def arrow(x1: float, y1: float, x2: float, y2: float, *, colour: str = INK) -> str:
    """Draw what goes from one to the other."""
    return (
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}" stroke-width="1.5" marker-end="url(#tip)"/>'
    )


def picture(title: str, height: int, parts: list[str]) -> str:
    """Put a picture together."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        f' role="img" font-family="Helvetica, Arial, sans-serif">\n<title>{escape(title)}</title>\n'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker></defs>\n'
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="{GROUND}" stroke="{GREY}"/>\n'
    )
    return head + "\n".join(parts) + "\n</svg>\n"


def lease() -> str:
    """Draw a lease's life."""
    beats = [110, 200, 290, 380]
    parts = [text(20, 66, "agent-1"), text(20, 186, "agent-2")]
    parts += [bar(110, 48, 300, GREEN, "works, fencing token 7"), text(418, 66, "dies", colour=RED)]
    for number, x in enumerate(beats):
        parts.append(mark(x, 40, 48, "claim" if number == 0 else "heartbeat"))
        parts.append(bar(x, 92 + number * 13, 180, BLUE, height=9, opacity=0.35 + 0.2 * number))
    parts.append(text(110, 160, "each heartbeat: the lease lives one ttl more", colour=BLUE, size=13))
    parts.append(mark(560, 40, 200, "the lease ends", colour=RED))
    parts += [bar(560, 168, 160, GREEN, "fencing token 8"), dashed(300, 168, 260, "waits in line")]
    parts.append(text(560, 222, "it reads agent-1's last note", size=13, colour=FAINT))
    return picture("A lease's life", 240, parts)


def line() -> str:
    """Draw a line with somebody away."""
    parts = [text(20, 66, "holder"), text(20, 116, "1st: ana"), text(20, 166, "2nd: ben"), text(20, 216, "3rd: eve")]
    parts += [mark(360, 36, 240, "release", colour=RED), mark(600, 90, 240, "release", colour=RED)]
    parts += [bar(110, 48, 250, GREEN, "works")]
    parts += [bar(140, 98, 120, BLUE, "waits"), dashed(260, 98, 190, "away: keeps the place")]
    parts += [bar(450, 98, 150, BLUE, "waits"), bar(600, 98, 140, GREEN, "is next, before eve")]
    parts += [bar(170, 148, 190, BLUE, "waits"), bar(360, 148, 240, GREEN, "gets the job: it is there")]
    parts += [bar(200, 198, 530, BLUE, "waits")]
    words = "Somebody who is away blocks nobody. Within 60 s it comes back to its old place."
    parts.append(text(110, 262, words, size=13))
    return picture("A line with somebody away", 280, parts)


def fencing() -> str:
    """Draw a paused worker and its fencing token."""
    parts = [text(20, 66, "agent-1"), text(20, 126, "agent-2"), text(20, 206, "database")]
    parts += [arrow(180, 74, 180, 186), arrow(420, 134, 420, 186), arrow(600, 74, 600, 186)]
    parts.append(mark(330, 36, 108, "the lease ends", colour=RED))
    parts += [bar(110, 48, 130, GREEN, "fencing token 7"), dashed(240, 48, 330, "asleep: a closed laptop")]
    parts += [bar(570, 48, 60, RED, "writes"), bar(330, 108, 400, GREEN, "claims the job: fencing token 8")]
    parts += [bar(110, 188, 620, GREY), text(130, 206, "has seen 7"), text(430, 206, "has seen 8")]
    parts.append(text(188, 164, "write, 7: taken", size=13, colour=GREEN))
    parts.append(text(428, 164, "write, 8: taken", size=13, colour=GREEN))
    parts.append(text(608, 164, "write, 7: refused", size=13, colour=RED))
    words = "7 is less than 8. So the database knows that agent-1 is late, although agent-1 does not."
    parts.append(text(110, 244, words, size=13))
    return picture("A paused worker and its fencing token", 262, parts)


def pictures() -> Iterator[tuple[str, str]]:
    """Yield each file's name and what stands in it."""
    yield "lease.svg", lease()
    yield "line.svg", line()
    yield "fencing.svg", fencing()


def main() -> None:
    """Write them all."""
    for name, content in pictures():
        (HERE / name).write_text(content, encoding="utf-8")
        sys.stdout.write(f"{HERE / name}\n")


if __name__ == "__main__":
    main()
