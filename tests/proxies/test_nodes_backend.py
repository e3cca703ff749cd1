"""The backend for several nodes that the guide shows is one that HAProxy takes."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.pages import ROOT, blocks_of
from tests.support.reverse_proxies import PAGE, _installed, make_certificate


def haproxy_of(page: Path) -> str:
    """The configuration that a page shows."""
    (text,) = [block.text for block in blocks_of(page) if block.language == "haproxy"]
    return text


def test_haproxy_takes_the_backend_of_the_guide(tmp_path: Path) -> None:
    """In place of the backend for one server, in the same configuration, HAProxy has nothing to say against it."""
    certificate = make_certificate(tmp_path)
    page, backend = map(haproxy_of, (PAGE, ROOT / "docs" / "guide" / "nodes.md"))
    text = page[: page.index("\nbackend holdfast") + 1] + backend
    for number in (1, 2, 3):
        text = text.replace(f"node{number}.example.com:7420", f"127.0.0.1:742{number}")
    text = text.replace("/etc/haproxy/locks.example.com.pem", str(certificate))
    text = text.replace("/etc/ssl/our-ca.pem", str(certificate))
    (tmp_path / "haproxy.cfg").write_text(text)
    command = [_installed("haproxy"), "-c", "-f", str(tmp_path / "haproxy.cfg")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[WARNING]" not in done.stderr, done.stderr
