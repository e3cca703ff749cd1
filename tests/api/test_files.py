"""The key and the tokens of a server are files of its own user alone: else it does not start, and says what to do."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import clientconfig
from tests.support import callers
from tests.support.api import Api
from tests.support.server import ServerFailed, ServerProcess, serving

TOKENS = "alice:alice-0123456789abcdef\n"
EX_USAGE, EX_IOERR = 64, 74

Spoil = Callable[[Path], object]


def linked(path: Path) -> None:
    """Move a file away and leave a link to it."""
    path.symlink_to(path.rename(path.with_name(path.name + ".real")))


def opened(path: Path) -> None:
    """Let the group read it."""
    path.chmod(0o640)


def piped(path: Path) -> None:
    """Put a pipe there that nobody writes to."""
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o600)


SPOILT: list[tuple[Spoil, str]] = [
    (linked, "is a link"),
    (opened, "chmod 600"),
    (piped, "is not a regular file"),
]


def refusal(code: int, data: Path, **arguments: object) -> str:
    with pytest.raises(ServerFailed) as failed:
        ServerProcess.start(data, **arguments).kill()  # type: ignore[arg-type]
    assert failed.value.returncode == code, failed.value.output
    assert "Traceback" not in failed.value.output and TOKENS.strip() not in failed.value.output
    (line,) = failed.value.output.splitlines()
    return line


@pytest.mark.parametrize(("spoil", "problem"), SPOILT)
def test_key_of_others_stops_the_start(tmp_path: Path, spoil: Spoil, problem: str) -> None:
    """S5: a key that others may read, a link to one, and what is no file, stop the start with what to do."""
    data = tmp_path / "data"
    with serving(data, tokens=callers.TOKENS) as server:
        server.terminate()
    spoil(data / "authority.key")
    line = refusal(EX_IOERR, data, tokens=callers.TOKENS)
    assert str(data / "authority.key") in line and problem in line


@pytest.mark.parametrize(("spoil", "problem"), SPOILT)
def test_tokens_file_of_others_stops_the_start(tmp_path: Path, spoil: Spoil, problem: str) -> None:
    """A tokens_file that others may read, a link to one, and what is no file, stop the start with what to do."""
    file = tmp_path / "tokens"
    file.touch(0o600)
    file.write_text(TOKENS)
    spoil(file)
    line = refusal(EX_USAGE, tmp_path / "data", env={"HOLDFAST_TOKENS_FILE": str(file)})
    assert str(file) in line and problem in line
    assert not (tmp_path / "data").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_of_another_user_stop_the_start(tmp_path: Path) -> None:
    """Another user's key or tokens_file stops the start, however private it is."""
    data, file = tmp_path / "data", tmp_path / "tokens"
    file.touch(0o600)
    file.write_text(TOKENS)
    with serving(data, env={"HOLDFAST_TOKENS_FILE": str(file)}) as server:
        server.terminate()
    os.chown(file, 4_242, -1)
    assert "belongs to user 4242" in refusal(EX_USAGE, data, env={"HOLDFAST_TOKENS_FILE": str(file)})
    os.chown(file, 0, -1)
    os.chown(data / "authority.key", 4_242, -1)
    assert "belongs to user 4242" in refusal(EX_IOERR, data, env={"HOLDFAST_TOKENS_FILE": str(file)})


def test_secret_mounted_by_kubernetes(tmp_path: Path) -> None:
    """The tokens of a mounted secret, where each name is a link, are read by the name that the refusal says."""
    (tmp_path / "..2026").mkdir()
    file = tmp_path / "..2026" / "tokens"
    file.touch(0o600)
    file.write_text(TOKENS)
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "tokens").symlink_to("..data/tokens")
    line = refusal(EX_USAGE, tmp_path / "data", env={"HOLDFAST_TOKENS_FILE": str(tmp_path / "tokens")})
    assert "..data/tokens" in line
    with serving(tmp_path / "data", env={"HOLDFAST_TOKENS_FILE": str(tmp_path / "..data" / "tokens")}) as server:
        Api.of(server, "alice-0123456789abcdef").acquired("job")


@pytest.mark.parametrize("content", ["", "\n , \n", "# alice:alice-0123456789abcdef\n"])
def test_tokens_file_without_a_token_stops_the_start(tmp_path: Path, content: str) -> None:
    """A tokens_file in which there is no token is a mistake, and no reason to make a token with all scopes."""
    file = tmp_path / "tokens"
    file.touch(0o600)
    file.write_text(content)
    for tokens in (None, callers.TOKENS):
        line = refusal(EX_USAGE, tmp_path / "data", tokens=tokens, env={"HOLDFAST_TOKENS_FILE": str(file)})
        assert f"tokens_file {file} holds no access token" in line
    assert not (tmp_path / "data").exists()


def test_tokens_file_has_a_bound(tmp_path: Path) -> None:
    """A tokens_file without an end is not read to it."""
    file = tmp_path / "tokens"
    file.touch(0o600)
    os.truncate(file, 2**40)
    assert "bytes" in refusal(EX_USAGE, tmp_path / "data", env={"HOLDFAST_TOKENS_FILE": str(file)})


def test_first_token_replaces_a_link(tmp_path: Path) -> None:
    """A link in the place of the first token is replaced: what it leads to is neither written to nor given away."""
    data, other, config = tmp_path / "data", tmp_path / "other", tmp_path / "config"
    other.write_text("precious")
    data.mkdir(0o700)
    (data / "local-token").symlink_to(other)
    (config / "holdfast").mkdir(parents=True)
    (config / "holdfast" / "client.toml").write_text("url = 'https://elsewhere.example'\n")
    with serving(data, env={"XDG_CONFIG_HOME": str(config)}) as server:
        token = data / "local-token"
        assert not token.is_symlink() and stat.S_IMODE(token.stat().st_mode) == 0o600
        assert other.read_text() == "precious"
        assert Api.of(server, clientconfig.read_token(token)).get("/tokens").status == 200


@pytest.mark.parametrize("below", ["", "below"])
def test_data_directory_that_is_a_file_is_reported(tmp_path: Path, below: str) -> None:
    """A file in the place of the data directory, or on the way to it, stops the start by its name."""
    file = tmp_path / "file"
    file.touch()
    line = refusal(EX_IOERR, file / below, tokens=callers.TOKENS, env={"XDG_CONFIG_HOME": str(tmp_path)})
    assert f"{file} is not a directory" in line and "Errno" not in line
