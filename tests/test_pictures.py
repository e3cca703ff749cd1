"""The pictures of the guides: drawn by their script, and shown with words for those who cannot see them."""

from __future__ import annotations

import re
import runpy
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from tests.browser.screenshots import BYTES_MAX, SHOTS
from tests.support.pages import PAGES, ROOT

FOLDER = ROOT / "docs" / "pictures"
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+\.(?:svg|png))\)")
ALT_CHARS_MIN = 60
RECORDING_BYTES_MAX = 200_000
CONTRAST_MIN = 4.5


def drawn() -> dict[str, str]:
    """What the scripts draw, by file."""
    return dict([*runpy.run_path(str(FOLDER / "draw.py"))["pictures"](), *recording()["pictures"]()])


def recording() -> dict[str, Any]:
    """The script that draws the recording of the demonstration."""
    return runpy.run_path(str(FOLDER / "recording.py"))


def test_pictures_are_what_the_script_draws() -> None:
    """Nobody edits a picture by hand: run `make pictures`."""
    stored = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.svg")}
    assert stored == drawn()


def test_pictures_are_complete() -> None:
    """Each is XML with a title, and nothing in it lies outside of it."""
    for name, content in drawn().items():
        root = ET.fromstring(content)
        width, height = (float(root.attrib[each]) for each in ("width", "height"))
        space = "{http://www.w3.org/2000/svg}"
        assert root.find(f"{space}title") is not None, name
        for box in root.iter(f"{space}rect"):
            x, y = (float(box.attrib.get(each, 0)) for each in ("x", "y"))
            assert x + float(box.attrib["width"]) <= width and y + float(box.attrib["height"]) <= height, name


def test_recording_is_small_and_needs_no_script() -> None:
    """The recording has at most 200 KB, moves by CSS alone, and only for readers who do not mind; it is of a run that
    ended with its proof, and fits its screen."""
    content = drawn()["demo.svg"]
    assert len(content.encode()) <= RECORDING_BYTES_MAX
    assert not re.search(r"<script|\bon\w+=|href=|url\((?!#)|@import", content)
    root = ET.fromstring(content)
    style = root.findtext("{http://www.w3.org/2000/svg}style") or ""
    moves = style.index("@media(prefers-reduced-motion:no-preference)")
    assert "animation" not in style[:moves] and "animation" not in style[style.index("\n", moves) :]
    assert "prefers-color-scheme:dark" in style
    words = ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any(re.search(r"Proved: \d+ jobs, each done exactly once", line) for line in words)
    edge = float(root.attrib["width"])
    for run in root.iter("{http://www.w3.org/2000/svg}tspan"):
        assert float(run.attrib["x"]) + float(run.attrib["textLength"]) <= edge, run.text


@pytest.mark.parametrize("theme", ["LIGHT", "DARK"])
def test_recording_can_be_read(theme: str) -> None:
    """Every colour of the recording has a contrast of at least 4.5 to its ground, in both themes (WCAG AA)."""
    colours = recording()[theme]
    grounds = {"ground", "bar"}
    weak = {
        name: round(contrast(colour, colours["ground"]), 1)
        for name, colour in colours.items()
        if name not in grounds and contrast(colour, colours["ground"]) < CONTRAST_MIN
    }
    assert weak == {}
    assert contrast(colours["ink"], colours["bar"]) >= CONTRAST_MIN


def contrast(one: str, other: str) -> float:
    """How far two colours are apart in brightness: from 1 to 21."""
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_photographs_are_small() -> None:
    """Those of the operators' page are the ones that `make pictures` makes, each a PNG of at most 150 KB."""
    stored = {path.name: path.read_bytes() for path in FOLDER.glob("*.png")}
    assert set(stored) == set(SHOTS)
    assert [name for name, data in stored.items() if len(data) > BYTES_MAX or data[:8] != b"\x89PNG\r\n\x1a\n"] == []


def test_each_picture_stands_in_a_guide_with_words() -> None:
    """A picture that no page shows is not needed, and one without words is not there for everybody."""
    shown: dict[Path, str] = {}
    for page in PAGES:
        for words, link in IMAGE.findall(page.read_text(encoding="utf-8")):
            shown[(page.parent / link).resolve()] = words
    measured = {path.name for path in shown if path.parent == FOLDER / "measured"}
    assert {path.name for path in shown} - measured == {*drawn(), *SHOTS}
    assert measured == {path.name for path in (FOLDER / "measured").glob("*.svg")}
    assert [path.name for path, words in shown.items() if len(words) < ALT_CHARS_MIN] == []
