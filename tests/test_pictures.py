"""The pictures of the guides: drawn by their script, and shown with words for those who cannot see them."""

from __future__ import annotations

import re
import runpy
import xml.etree.ElementTree as ET
from pathlib import Path

from tests.browser.photographs import BYTES_MAX, SHOTS
from tests.support.pages import PAGES, ROOT

FOLDER = ROOT / "docs" / "pictures"
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+\.(?:svg|png))\)")
ALT_CHARS_MIN = 60


def drawn() -> dict[str, str]:
    """What the script draws, by file."""
    return dict(runpy.run_path(str(FOLDER / "draw.py"))["pictures"]())


def test_pictures_are_what_the_script_draws() -> None:
    """Nobody edits a picture by hand: run `python docs/pictures/draw.py`."""
    kept = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.svg")}
    assert kept == drawn()


def test_pictures_are_whole() -> None:
    """Each is XML with a title, and nothing in it lies outside of it."""
    for name, content in drawn().items():
        root = ET.fromstring(content)
        width, height = (float(root.attrib[each]) for each in ("width", "height"))
        space = "{http://www.w3.org/2000/svg}"
        assert root.find(f"{space}title") is not None, name
        for box in root.iter(f"{space}rect"):
            x, y = (float(box.attrib.get(each, 0)) for each in ("x", "y"))
            assert x + float(box.attrib["width"]) <= width and y + float(box.attrib["height"]) <= height, name


def test_photographs_are_small() -> None:
    """Those of the operators' page are the ones that `make pictures` makes, each a PNG of at most 150 KB."""
    kept = {path.name: path.read_bytes() for path in FOLDER.glob("*.png")}
    assert set(kept) == set(SHOTS)
    assert [name for name, data in kept.items() if len(data) > BYTES_MAX or data[:8] != b"\x89PNG\r\n\x1a\n"] == []


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
