"""The user's own client configuration: read, and remembered by the server's first start."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import clientconfig
from holdfast.clientconfig import ClientConfig
from holdfast.errors import SettingsError

URL = "http://127.0.0.1:7420"
TOKEN = "hold_0123456789"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path / "config"), "HOME": str(tmp_path / "home")}


@pytest.fixture
def folder(environment: dict[str, str]) -> Path:
    folder = clientconfig.client_config_dir(environment)
    folder.mkdir(parents=True)
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_user_without_a_home_has_no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user that nobody knows, as in a container, has no configuration, and that is no error."""

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert clientconfig.read({}) == clientconfig.ClientConfig()


def test_folder_follows_xdg() -> None:
    """The folder is below $XDG_CONFIG_HOME, else ~/.config; a relative path there is ignored."""
    home = {"HOME": "/home/ana"}
    assert clientconfig.client_config_dir({"XDG_CONFIG_HOME": "/c", **home}) == Path("/c/holdfast")
    assert clientconfig.client_config_dir(home) == Path("/home/ana/.config/holdfast")
    assert clientconfig.client_config_dir({"XDG_CONFIG_HOME": "c", **home}) == Path("/home/ana/.config/holdfast")


def test_remembered_is_found_again(environment: dict[str, str]) -> None:
    """What was remembered is read back, and only its user can read it."""
    file = clientconfig.remember(URL, TOKEN, environment)
    folder = clientconfig.client_config_dir(environment)
    assert file == folder / "token"
    assert clientconfig.read(environment) == ClientConfig(URL, file)
    assert clientconfig.read_token(file) == TOKEN
    assert (mode(folder), mode(file), mode(folder / "client.toml")) == (0o700, 0o600, 0o600)
    assert sorted(path.name for path in folder.iterdir()) == ["client.toml", "token"]


def test_remembering_again_renews_the_token(environment: dict[str, str]) -> None:
    """A new token of the same server replaces the old one, even one that others could read."""
    file = clientconfig.remember(URL, TOKEN, environment)
    assert file is not None
    file.chmod(0o644)
    assert clientconfig.remember(URL + "/", "hold_new", environment) == file
    assert (clientconfig.read_token(file), mode(file)) == ("hold_new", 0o600)


@pytest.mark.parametrize(
    "own_config",
    [
        "url = 'https://prod.example'\n",
        f"url = '{URL},https://prod.example'\n",
        "token_file = '/run/secrets/holdfast'\n",
        "url = 5\n",
        "url =\n",
        "nonsense = 1\n",
    ],
)
def test_remembering_leaves_the_users_own_alone(environment: dict[str, str], folder: Path, own_config: str) -> None:
    """A configuration for another server or another token, or one that cannot be read, is not touched."""
    (folder / "client.toml").write_text(own_config)
    assert clientconfig.remember(URL, TOKEN, environment) is None
    assert (folder / "client.toml").read_text() == own_config
    assert [path.name for path in folder.iterdir()] == ["client.toml"]


def test_missing_configuration_is_empty(environment: dict[str, str]) -> None:
    """Without a file there is no url and no token."""
    assert clientconfig.read(environment) == ClientConfig(None, None)


def test_token_file_is_relative_to_the_configuration(environment: dict[str, str], folder: Path) -> None:
    """`token_file` starts at the folder of client.toml."""
    (folder / "client.toml").write_text("token_file = 'keys/mine'\n")
    assert clientconfig.read(environment).token_file == folder / "keys" / "mine"


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o660, 0o602, 0o610])
def test_token_file_of_others_is_refused(tmp_path: Path, bits: int) -> None:
    """A token file that any other user may use is refused, with the command that helps and without the token."""
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(bits)
    with pytest.raises(SettingsError) as caught:
        clientconfig.read_token(file)
    assert f"chmod 600 '{file}'" in str(caught.value)
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"two words", b"one\ntwo", b"\xff", "ü".encode(), b"a" * 5_000, b"a\0b"]
)
def test_token_file_without_a_token_is_refused(tmp_path: Path, content: bytes) -> None:
    """A file that holds anything but one token is refused, and what it holds is not shown."""
    file = tmp_path / "token"
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(SettingsError, match="does not hold a token"):
        clientconfig.read_token(file)


def test_missing_token_file_is_refused(tmp_path: Path) -> None:
    """A token file that is not there, or is a folder, is an error with its path."""
    for file, problem in ((tmp_path / "nowhere", "cannot be read"), (tmp_path, "is not a regular file")):
        with pytest.raises(SettingsError, match=problem) as caught:
            clientconfig.read_token(file)
        assert str(file) in str(caught.value)


def test_token_file_that_is_a_link_is_refused(tmp_path: Path, foreign: Callable[[Path], Path]) -> None:
    """A link to a token is not followed, and another user's token is not used: it would say who we are."""
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    link = tmp_path / "link"
    link.symlink_to(file)
    with pytest.raises(SettingsError, match="is a link"):
        clientconfig.read_token(link)
    assert clientconfig.read_token(file) == TOKEN
    foreign(file)
    with pytest.raises(SettingsError, match="belongs to user"):
        clientconfig.read_token(file)


def test_remembering_replaces_a_link(environment: dict[str, str], folder: Path, tmp_path: Path) -> None:
    """A link that lies where the token goes is replaced, and what it points to stays as it is."""
    other = tmp_path / "other"
    other.write_text("precious")
    (folder / "token").symlink_to(other)
    file = clientconfig.remember(URL, TOKEN, environment)
    assert file is not None and not file.is_symlink()
    assert (clientconfig.read_token(file), other.read_text()) == (TOKEN, "precious")
