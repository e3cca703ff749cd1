"""What `make wheel` builds: the wheel and the source distribution, as others get them."""

from __future__ import annotations

import email
import email.message
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from holdfast.extras import how_to_install
from tests.support.package import build
from tests.support.pages import PAGES, ROOT


def metadata_of(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as opened:
        [name] = [each for each in opened.namelist() if each.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(opened.read(name))


def test_the_distribution_has_a_name_of_its_own(tmp_path: Path) -> None:
    """The distribution is `holdfast-jobs`, because `holdfast` is a stranger's. It has authors and the readme.

    There is no `Project-URL`: the docs have no address but their place in the repository, and the readme links them.
    """
    wheel, _ = build(ROOT, tmp_path)
    found = metadata_of(wheel)
    assert found["Name"] == "holdfast-jobs"
    assert found["Author"] == "The Holdfast authors"
    assert found["Project-URL"] is None and found["Home-page"] is None
    readme = found.get_payload(decode=True)
    assert isinstance(readme, bytes)
    assert readme.decode().strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()
    with zipfile.ZipFile(wheel) as opened:
        assert {name.partition("/")[0] for name in opened.namelist() if "dist-info" not in name} == {"holdfast"}


def test_the_source_distribution_is_complete(tmp_path: Path) -> None:
    """It has every file of the repository and no other: tests, docs, locks and Makefile too."""
    if not (ROOT / ".git").exists():
        pytest.skip("only a checkout knows which files there are")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    ours = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}
    new = subprocess.run(
        ["git", "ls-files", "-z", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    _, sdist = build(ROOT, tmp_path)
    with tarfile.open(sdist) as opened:
        packed = {name.partition("/")[2] for name in opened.getnames()}
    assert packed - {"PKG-INFO", *new.split("\0")} == ours


def test_a_wheel_from_the_source_distribution_is_the_same(tmp_path: Path) -> None:
    """Who builds the wheel from the source distribution gets the same bytes as who builds it from the checkout."""
    wheel, sdist = build(ROOT, tmp_path / "ours")
    (tmp_path / "unpacked").mkdir()
    # Not by `tarfile`: its `filter` exists from Python 3.11.4 on, and later versions warn without it.
    subprocess.run(["tar", "-xf", sdist, "-C", tmp_path / "unpacked"], check=True)
    [unpacked] = (tmp_path / "unpacked").iterdir()
    again, sdist_again = build(unpacked, tmp_path / "again")
    assert again.read_bytes() == wheel.read_bytes()
    with tarfile.open(sdist) as first, tarfile.open(sdist_again) as second:
        assert first.getnames() == second.getnames()
    # The Makefile is there, and knows what to do.
    helped = subprocess.run(["make", "help"], cwd=unpacked, capture_output=True, text=True, check=True)
    assert "wheel" in helped.stdout
    shutil.rmtree(unpacked)


def test_every_extra_is_used() -> None:
    """An extra exists only if code imports what it brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    code = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    for extra, lines in project["optional-dependencies"].items():
        names = [re.split(r"[^\w.-]", line)[0].replace("-", "_") for line in lines]
        # A part of a larger package has dots in its name there.
        said = {name: name.replace("_", "[._]") for name in names}
        unused = [name for name in names if not re.search(rf"^\s*(?:import|from) {said[name]}\b", code, re.MULTILINE)]
        assert not unused, f"{extra}: {unused}"


def test_missing_extra_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words for a missing extra name the Python that runs, whichever pip a shell finds: our `.venv` has none."""
    monkeypatch.setattr(sys, "executable", "/our tools/.venv/bin/python")
    _, *commands = re.split(r"(?:, or )?(?:in a checkout of Holdfast|with its wheel)[^:]*: ", how_to_install("otel"))
    here = ["pip", "--python", "/our tools/.venv/bin/python", "install"]
    assert [shlex.split(command) for command in commands] == [[*here, "-e", ".[otel]"], [*here, "WHEEL[otel]"]]


def test_docs_name_only_our_package() -> None:
    """Neither docs nor messages say `pip install holdfast`: on the package index that is somebody else's program."""
    other_package = re.compile(r"pip install (?:-\S+ )*['\"]?holdfast(?:-jobs)?\b(?!_)")
    texts = [*PAGES, *(ROOT / "src").rglob("*.py"), ROOT / "Makefile", *(ROOT / "examples").rglob("*.py")]
    assert [path.name for path in texts if other_package.search(path.read_text(encoding="utf-8"))] == []
    assert other_package.search("pip install 'holdfast[server]'") and other_package.search("pip install holdfast   # x")
    assert not other_package.search("pip install dist/holdfast_jobs-1-py3-none-any.whl")


def test_the_version_is_that_of_the_distribution() -> None:
    """`importlib.metadata` finds the version of `holdfast-jobs`, and it is `holdfast.__version__`."""
    code = "import importlib.metadata as m, holdfast; print(m.version('holdfast-jobs') == holdfast.__version__)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "True\n"
