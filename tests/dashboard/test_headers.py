"""What every page says to a browser: run nothing that is not ours, show it in no frame, guess nothing, tell nobody."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from holdfast.dashboard import site
from tests.support import callers
from tests.support.api import Api
from tests.support.http import Answer
from tests.support.server import ServerProcess
from tests.support.visitor import Visitor, page_of

STATIC = Path(str(files("holdfast.dashboard"))) / "static"
TEMPLATES = STATIC.parent / "templates"
VIEWS = ["/", "/ui/sign-in", "/ui/nowhere"]


@pytest.fixture(scope="module")
def signed_in(server: ServerProcess) -> Visitor:
    """Somebody with all rights."""
    visitor = Visitor(server)
    visitor.sign_in(callers.OPERATOR)
    return visitor


def policy_of(answer: Answer) -> dict[str, list[str]]:
    [policy] = answer.headers.get_all("Content-Security-Policy") or []
    parts = (part.split() for part in policy.split(";"))
    return {name: words for name, *words in parts}


@pytest.mark.parametrize("path", VIEWS)
def test_the_policy_of_every_page(signed_in: Visitor, nobody: Api, path: str) -> None:
    """Nothing is allowed but files of our own: no script or style in the page, no frame, no base, no form elsewhere."""
    for answer in (signed_in.get(path), nobody.get(path)):
        policy = policy_of(answer)
        assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == ["'none'"]
        fetched = {name: words for name, words in policy.items() if name.endswith("-src") and name != "default-src"}
        assert all(words == ["'self'"] for words in fetched.values()) and "script-src" in fetched
        assert policy["form-action"] == ["'self'"]
        assert policy["require-trusted-types-for"] == ["'script'"]
        assert answer.headers.get_all("X-Frame-Options") == ["DENY"]
        assert answer.headers.get_all("X-Content-Type-Options") == ["nosniff"]
        assert answer.headers.get_all("Cross-Origin-Resource-Policy") == ["same-origin"]
        assert answer.headers.get_all("Cache-Control") == ["no-store"]


def test_pages_send_no_referrer(signed_in: Visitor, nobody: Api) -> None:
    """Names and searches in addresses go to no other site; the sign-in page tells its own site alone."""
    assert signed_in.get("/").headers.get_all("Referrer-Policy") == ["no-referrer"]
    assert signed_in.get("/ui/nowhere").headers.get_all("Referrer-Policy") == ["no-referrer"]
    assert nobody.get("/").headers.get_all("Referrer-Policy") == ["same-origin"]


@pytest.mark.parametrize("template", sorted(path.name for path in TEMPLATES.glob("*.html")))
def test_no_template_has_script_or_style_in_it(template: str) -> None:
    """Scripts and styles are files. No template has one in it, nor an attribute that is one, nor unescaped text."""
    text = (TEMPLATES / template).read_text(encoding="utf-8")
    for tag in re.findall(r"<script[^>]*>", text):
        assert "src=" in tag or 'type="application/json"' in tag, tag
    assert not re.search(r"<style|\sstyle\s*=|\son[a-z]+\s*=\s*[\"']|javascript:|\|\s*safe|autoescape false", text)


@pytest.mark.parametrize("script", sorted(path.name for path in STATIC.glob("*.js")))
def test_no_script_makes_a_page_of_text(script: str) -> None:
    """No script of ours writes HTML, runs text, or keeps anything but the theme: what users wrote stays text."""
    text = (STATIC / script).read_text(encoding="utf-8")
    writes = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function|srcdoc|\.cookie\b"
    assert not re.search(writes, text)
    assert set(re.findall(r"localStorage\.\w+\(\"([^\"]+)\"", text)) <= {"holdfast-theme"}
    assert set(re.findall(r"https?://[^\"]*", text)) <= {"http://www.w3.org/2000/svg"}


def test_static_files_are_immutable_under_their_hash(nobody: Api) -> None:
    """A file has the hash of all files in its address, so it is kept; under another version it is not."""
    known = site.static_files()
    assert {"page.css", "page.js", "theme.js"} <= set(known.by_name)
    for name, (kind, content) in known.by_name.items():
        answer = nobody.get(site.static_path(name))
        assert (answer.status, answer.body) == (200, content), name
        assert answer.headers.get_all("Content-Type") == [kind.decode()]
        assert answer.headers.get_all("Cache-Control") == ["public, max-age=31536000, immutable"]
        assert answer.headers.get_all("X-Content-Type-Options") == ["nosniff"]
    old = nobody.get("/ui/static/00000000000000000000/page.css")
    assert old.status == 200 and old.headers.get_all("Cache-Control") == ["no-store"]


@pytest.mark.parametrize(
    "path", ["docs.html", "../table.py", "..%2Ftable.py", "", "page.css/", "%2e%2e/site.py", "page.CSS"]
)
def test_nothing_else_is_served(nobody: Api, path: str) -> None:
    """Only the files that pages load are there: no folder, no template, no module."""
    assert nobody.get(f"/ui/static/{site.static_files().version}/{path}").status == 404


def test_pages_load_existing_files(signed_in: Visitor, nobody: Api) -> None:
    """Every file that a page names, and every module that one imports, is served; nothing comes from elsewhere."""
    known = site.static_files().by_name
    for path in VIEWS:
        for tag, said in (*page_of(signed_in.get(path)).tags, *page_of(nobody.get(path)).tags):
            loaded = said.get("src") or (said.get("href") if tag == "link" else None)
            if loaded is not None:
                assert loaded.startswith("/ui/static/") and nobody.get(loaded).status == 200, loaded
    for name, (_, content) in known.items():
        for module in re.findall(r"(?:from|import)\s+\"([^\"]+)\"", content.decode()):
            assert module.startswith("./") and module[2:] in known, (name, module)


# Contrast.


def _tokens() -> dict[str, tuple[str, str]]:
    css = (STATIC / "page.css").read_text(encoding="utf-8")
    return {name: (light, dark) for name, light, dark in re.findall(r"--([\w-]+): light-dark\((#\w+), (#\w+)\)", css)}


def _contrast(one: str, other: str) -> float:
    def brightness(colour: str) -> float:
        parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((brightness(one), brightness(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_can_be_read_on_every_ground(theme: int) -> None:
    """Every colour of text has 4.5 : 1 on every ground, in both themes; what only draws a border or a bar has 3 : 1."""
    tokens = _tokens()
    grounds = [name for name in tokens if name in {"ground", "card", "raised"} or name.endswith("-wash")]
    texts = ["text", "dim", "accent", "alive", "late", "ending", "done", "revoked"]
    assert len(grounds) >= 9
    for text in texts:
        for ground in grounds:
            assert _contrast(tokens[text][theme], tokens[ground][theme]) >= 4.5, (text, ground)
    assert _contrast(tokens["on-accent"][theme], tokens["accent"][theme]) >= 4.5
    for line in ("line-strong", "focus"):
        for ground in ("ground", "card", "raised"):
            assert _contrast(tokens[line][theme], tokens[ground][theme]) >= 3, (line, ground)


def test_colours_have_names() -> None:
    """Every colour of the style is a token on its top, so that both themes have it."""
    css = re.sub(r"/\*.*?\*/", "", (STATIC / "page.css").read_text(encoding="utf-8"), flags=re.DOTALL)
    rules = css[css.index("}") :]
    rules = rules[: rules.index("@media print")]
    assert re.findall(r":[^;{}]*(#[0-9a-f]{3,8})\b", rules) == []
