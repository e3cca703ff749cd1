"""A certificate or a key that cannot be used stops the start before anything is made, by name and with what to do."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import callers
from tests.support.reverse_proxies import make_certificate
from tests.support.server import ServerFailed, ServerProcess, serving

EX_USAGE = 64


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A certificate and its key: `made.pem`, `key.pem`, and both in one, `both.pem`."""
    folder = tmp_path / "certificate"
    folder.mkdir()
    make_certificate(folder)
    return folder


def gone(folder: Path) -> None:
    """Lose the key."""
    (folder / "key.pem").unlink()


def swapped(folder: Path) -> None:
    """Put each in the other's place."""
    key = (folder / "key.pem").read_bytes()
    (folder / "key.pem").write_bytes((folder / "made.pem").read_bytes())
    (folder / "made.pem").write_bytes(key)


def another(folder: Path) -> None:
    """Put the key of another certificate there."""
    other = folder / "other"
    other.mkdir()
    make_certificate(other)
    (other / "key.pem").replace(folder / "key.pem")


def another_kind(folder: Path) -> None:
    """Put a key there that is not even of the same kind."""
    _openssl("genpkey", "-algorithm", "ed25519", "-out", str(folder / "key.pem"))


def closed_by_a_passphrase(folder: Path) -> None:
    """Give the key a passphrase."""
    key, locked = folder / "key.pem", folder / "locked.pem"
    _openssl("pkey", "-in", str(key), "-aes128", "-passout", "pass:word", "-out", str(locked))
    locked.replace(key)


def binary(folder: Path) -> None:
    """Write the certificate as DER."""
    made, other = folder / "made.pem", folder / "made.der"
    _openssl("x509", "-in", str(made), "-outform", "der", "-out", str(other))
    other.replace(made)


def cut(name: str) -> Callable[[Path], None]:
    """Keep only the first two lines of a file."""

    def spoil(folder: Path) -> None:
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(lines[:2]))

    return spoil


def a_directory(folder: Path) -> None:
    """Put a directory in the place of the certificate."""
    (folder / "made.pem").unlink()
    (folder / "made.pem").mkdir()


def for_all(folder: Path) -> None:
    """Let everybody read the key."""
    (folder / "key.pem").chmod(0o644)


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def settings_of(folder: Path, certificate: str | None = "made.pem", key: str | None = "key.pem") -> dict[str, object]:
    named = {"tls_cert": certificate, "tls_key": key}
    return {name: folder / file for name, file in named.items() if file is not None}


def refusal(folder: Path, settings: dict[str, object]) -> str:
    """Start a server that must not start, see that it made nothing, and return its one line."""
    data = folder.parent / "data"
    with pytest.raises(ServerFailed) as failed:
        ServerProcess.start(data, settings=settings, tokens=callers.TOKENS).kill()
    assert failed.value.returncode == EX_USAGE, failed.value.output
    (line,) = failed.value.output.splitlines()
    assert "_ssl.c" not in line and "Errno" not in line
    assert not data.exists(), "nothing was started"
    return line


@pytest.mark.parametrize(
    ("spoil", "file", "problem"),
    [
        (gone, "tls_key {}/key.pem", "cannot be read: No such file or directory"),
        (a_directory, "tls_cert {}/made.pem", "is not a regular file"),
        (swapped, "tls_cert {}/made.pem", "tls_cert and tls_key are swapped"),
        (binary, "tls_cert {}/made.pem", "holds no certificate in PEM"),
        (cut("made.pem"), "tls_cert {}/made.pem", "is damaged"),
        (cut("key.pem"), "tls_key {}/key.pem", "is damaged"),
        (another, "tls_key {}/key.pem", "do not belong together"),
        (another_kind, "tls_key {}/key.pem", "do not belong together"),
        (closed_by_a_passphrase, "tls_key {}/key.pem", "has a passphrase"),
        (for_all, "tls_key {}/key.pem", "(mode 0644); run: chmod 600"),
    ],
)
def test_unusable_tls_files_are_named(folder: Path, spoil: Callable[[Path], None], file: str, problem: str) -> None:
    """A certificate and a key that cannot be used stop the start: which file, and why; nothing ever asks."""
    spoil(folder)
    line = refusal(folder, settings_of(folder))
    assert file.format(folder) in line and problem in line


def test_one_setting_without_the_other(folder: Path) -> None:
    """A key without a certificate, and a certificate in whose file there is no key, say what is to be set."""
    assert "set both" in refusal(folder, settings_of(folder, certificate=None))
    assert "name the file of the key with tls_key" in refusal(folder, settings_of(folder, key=None))


def test_one_file_for_both(folder: Path) -> None:
    """A file with the chain and the key in it needs no `tls_key`, and is as private as a key."""
    settings = settings_of(folder, "both.pem", None)
    with serving(folder.parent / "data", settings=settings, tokens=callers.TOKENS) as server:
        assert server.url.startswith("https://") and "warning" not in server.log.lower()
        assert server.terminate() == 0
    (folder / "both.pem").chmod(0o604)
    with pytest.raises(ServerFailed, match=r"both\.pem holds a private key and is open to other users"):
        ServerProcess.start(folder.parent / "data", settings=settings, tokens=callers.TOKENS)


def test_key_that_a_group_may_read_is_a_warning(folder: Path) -> None:
    """A key behind links, as programs that renew certificates keep it, is taken; that a group may read it is said."""
    (folder / "live").mkdir()
    (folder / "live" / "key.pem").symlink_to(folder / "key.pem")
    settings = settings_of(folder, "made.pem", "live/key.pem")
    for mode, warnings in ((0o600, 0), (0o640, 1)):
        (folder / "key.pem").chmod(mode)
        with serving(folder.parent / "data", settings=settings, tokens=callers.TOKENS) as server:
            assert server.log.count("may be read by its group (mode 0640)") == warnings
            assert server.terminate() == 0
