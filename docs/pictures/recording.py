# ruff: noqa: INP001 - a script, and no package
"""The recording of `make demo`: `make recording` makes it anew, `make pictures` draws it from what was kept.

`demo.cast` is what a real run printed on a terminal, with its times, in version 2 of asciinema's format. `demo.svg` is
drawn from it alone, and a test compares them. It needs no script: the lines of the whole run stand below each other, a
cover hides those that are not printed yet, and both move by CSS. Where nothing moves, because the reader wants it so or
the program cannot, it is a picture of the last screen, with the proof.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
CAST, PICTURE = HERE / "demo.cast", HERE / "demo.svg"
TITLE = "make demo"
COLUMNS, ROWS = 100, 32
SECONDS_MAX = 90
LAST_SECONDS = 8.0
"""How long the last screen stays before it begins anew."""
TIMES = 3
"""How often it is played. What moves for ever cannot be read beside."""

CELL, LINE, SIZE, MARGIN, BAR = 7.8, 18, 13, 16, 30
WIDTH, HEIGHT = round(COLUMNS * CELL + 2 * MARGIN), ROWS * LINE + BAR + MARGIN
FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono','Liberation Mono',monospace"
NAMES = {
    "1": "bold",
    "2": "dim",
    "31": "red",
    "32": "green",
    "33": "yellow",
    "34": "blue",
    "35": "magenta",
    "36": "cyan",
}
LIGHT = {
    "ground": "#fbfaf7",
    "bar": "#ebe8e1",
    "ink": "#1f2933",
    "dim": "#5b6773",
    "red": "#b42318",
    "green": "#1b6b43",
    "yellow": "#855700",
    "blue": "#2456a6",
    "magenta": "#8b2a8b",
    "cyan": "#0b6570",
}
DARK = {
    "ground": "#14181f",
    "bar": "#232a34",
    "ink": "#e4e7eb",
    "dim": "#9aa5b1",
    "red": "#ff8a80",
    "green": "#7ee2a8",
    "yellow": "#f2c94c",
    "blue": "#8ab4f8",
    "magenta": "#e39df0",
    "cyan": "#6fd6e0",
}
ESCAPE = re.compile(r"\x1b\[([\d;]*)m")
WORDS = re.compile(r"\S+(?: \S+)*")
"""What stands together. Wider gaps are columns, and what is behind one begins at its own place."""


@dataclass(frozen=True)
class Run:
    """Some words of a line that look the same."""

    column: int
    text: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Line:
    """One line, and when it was printed."""

    at: float
    runs: tuple[Run, ...]


def record() -> None:
    """Run the demonstration on a terminal, and keep what it prints and when."""
    ours, theirs = pty.openpty()
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    command = [sys.executable, "-m", "examples.demo"]
    began = time.monotonic()
    running = subprocess.Popen(  # noqa: S603 - our own program
        command, stdin=subprocess.DEVNULL, stdout=theirs, env={**env, "TERM": "xterm-256color"}, cwd=HERE.parents[1]
    )
    os.close(theirs)
    printed = [(round(at - began, 3), text) for at, text in _read(ours)]
    if running.wait(SECONDS_MAX) != 0:
        sys.exit(f"the demonstration ended with {running.returncode}: nothing was kept")
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": TITLE, "env": {"TERM": "xterm-256color"}}
    lines = [header, *([at, "o", text] for at, text in printed)]
    CAST.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")


def _read(terminal: int) -> Iterator[tuple[float, str]]:
    """Yield what is printed, line by line, until nobody can print any more."""
    rest = b""
    while True:
        try:
            rest += os.read(terminal, 65_536)
        except OSError:
            os.close(terminal)
            return
        whole, newline, rest = rest.rpartition(b"\n")
        if newline:
            yield time.monotonic(), (whole + newline).decode()


def lines_of(cast: str) -> list[Line]:
    """Read a recording as lines; one that does anything but print lines in colour is refused."""
    _, *events = (json.loads(line) for line in cast.splitlines())
    lines = []
    for at, _, text in events:
        for line in text.replace("\r\n", "\n").splitlines():
            if "\x1b" in ESCAPE.sub("", line):
                raise ValueError(f"not a line in colour: {line!r}")
            lines.append(Line(at, tuple(_runs(line))))
    return lines


def _runs(line: str) -> Iterator[Run]:
    column = 0
    names: tuple[str, ...] = ()
    for part, text in enumerate(ESCAPE.split(line)):
        if part % 2:
            names = tuple(NAMES[code] for code in text.split(";") if code not in {"", "0"})
        else:
            for words in WORDS.finditer(text):
                yield Run(column + words.start(), words[0], names)
            column += len(text)
            if column > COLUMNS:
                raise ValueError(f"longer than {COLUMNS} columns: {line!r}")


def draw(lines: Sequence[Line]) -> str:
    """Draw a recording. What has a colour of its own beside its class is for programs that know no variables of CSS."""
    seconds = lines[-1].at + LAST_SECONDS
    shown = "".join(_text(number, line) for number, line in enumerate(lines))
    last = max(0, len(lines) - ROWS) * LINE
    moves = {round(100 * line.at / seconds, 2): number + 1 for number, line in enumerate(lines)}
    covers = "".join(f"{at}%{{transform:translateY({count * LINE}px)}}" for at, count in moves.items())
    scrolls = "".join(
        f"{at}%{{transform:translateY(-{(count - ROWS) * LINE}px)}}" for at, count in moves.items() if count > ROWS
    )
    plays = f"{seconds:.1f}s step-end {TIMES} both"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        f' role="img">\n<title>A recording of {TITLE}</title>\n<style>\n'
        f"text{{font:{SIZE}px {FONT};white-space:pre;fill:var(--ink)}}\n"
        f"{_palette(LIGHT)}\n@media(prefers-color-scheme:dark){{{_palette(DARK)}}}\n"
        f"{_classes()}\n"
        f"@media(prefers-reduced-motion:no-preference){{.lines{{animation:scroll {plays}}}"
        f".cover{{animation:cover {plays}}}}}\n"
        f"@keyframes scroll{{0%{{transform:none}}{scrolls}}}\n"
        f"@keyframes cover{{0%{{transform:none}}{covers}}}\n"
        "</style>\n"
        f'<rect class="ground" fill="{LIGHT["ground"]}" width="{WIDTH}" height="{HEIGHT}" rx="8"/>\n'
        f'<clipPath id="screen"><rect width="{WIDTH}" height="{ROWS * LINE}"/></clipPath>\n'
        f'<g transform="translate(0 {BAR})" clip-path="url(#screen)">'
        f'<g class="lines" transform="translate(0 {-last})">\n{shown}'
        f'<rect class="cover ground" fill="{LIGHT["ground"]}" width="{WIDTH}" height="{ROWS * LINE}"'
        f' transform="translate(0 {len(lines) * LINE})"/>\n</g></g>\n'
        f'<path class="bar" fill="{LIGHT["bar"]}"'
        f' d="M0 {BAR - 6}V8a8 8 0 0 1 8-8H{WIDTH - 8}a8 8 0 0 1 8 8v{BAR - 14}z"/>'
        f'<text x="{MARGIN}" y="16" class="bold">$ {TITLE}</text>\n'
        f'<rect class="frame" fill="none" width="{WIDTH}" height="{HEIGHT}" rx="8"/>\n</svg>\n'
    )


def _text(number: int, line: Line) -> str:
    """One line of the screen. Every run has its place and its length, whatever font there is."""
    spans = "".join(
        f'<tspan x="{MARGIN + run.column * CELL:.1f}" textLength="{len(run.text) * CELL:.1f}"'
        f"{_class(run.names)}>{escape(run.text)}</tspan>"
        for run in line.runs
    )
    return f'<text y="{number * LINE + SIZE}">{spans}</text>\n' if spans else ""


def _class(names: Sequence[str]) -> str:
    return f' class="{" ".join(names)}"' if names else ""


def _palette(colours: dict[str, str]) -> str:
    return "svg{" + ";".join(f"--{name}:{colour}" for name, colour in colours.items()) + "}"


def _classes() -> str:
    fills = "".join(f".{name}{{fill:var(--{name})}}" for name in LIGHT if name != "ink")
    return f"{fills}.bold{{font-weight:bold}}.frame{{stroke:var(--bar)}}"


def pictures() -> Iterator[tuple[str, str]]:
    """Yield the file's name and what stands in it."""
    yield PICTURE.name, draw(lines_of(CAST.read_text(encoding="utf-8")))


def main() -> None:
    """Draw what was kept, or what is recorded now."""
    parser = argparse.ArgumentParser(description="Draw the recording of `make demo`.")
    parser.add_argument("--record", action="store_true", help="run the demonstration, and keep what it prints")
    if parser.parse_args().record:
        record()
    for name, content in pictures():
        (HERE / name).write_text(content, encoding="utf-8")
        sys.stdout.write(f"{HERE / name} {len(content.encode()):,} bytes\n")


if __name__ == "__main__":
    main()
