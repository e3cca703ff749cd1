"""Which server and which token: the order of the places, and what is refused before anything is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.client.config import Target, find, is_loopback
from holdfast.errors import SettingsError

LOCAL = "http://127.0.0.1:7420"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}


def token_file(folder: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(f"token-of-{name}\n")
    file.chmod(0o600)
    return file


def configure(environment: dict[str, str], url: str) -> None:
    folder = Path(environment["XDG_CONFIG_HOME"]) / "holdfast"
    token_file(folder, "kept")
    (folder / "client.toml").write_text(f"url = '{url}'\ntoken_file = 'kept'\n")


def refused(environment: dict[str, str], **arguments: object) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        find(**{"url": None, "token_file": None, "environment": environment, **arguments})  # type: ignore[arg-type]
    return caught.value


def test_empty_configuration_means_the_default(environment: dict[str, str]) -> None:
    """Without a word the server is the local one, without a token."""
    assert find(url=None, token_file=None, environment=environment) == Target(LOCAL, "the default", None, "nowhere")


def test_url_order(environment: dict[str, str]) -> None:
    """The argument beats HOLDFAST_URL, which beats client.toml."""
    configure(environment, "http://localhost:1")
    assert find(url=None, token_file=None, environment=environment).url == "http://localhost:1"
    environment["HOLDFAST_URL"] = "http://localhost:2/"
    assert find(url=None, token_file=None, environment=environment).url == "http://localhost:2"
    assert find(url="http://localhost:3", token_file=None, environment=environment).url == "http://localhost:3"


def test_token_order(environment: dict[str, str], tmp_path: Path) -> None:
    """The argument beats HOLDFAST_TOKEN, which beats HOLDFAST_TOKEN_FILE, which beats client.toml."""
    configure(environment, LOCAL)
    assert find(url=None, token_file=None, environment=environment).token == "token-of-kept"
    environment["HOLDFAST_TOKEN_FILE"] = str(token_file(tmp_path, "variable"))
    assert find(url=None, token_file=None, environment=environment).token == "token-of-variable"
    environment["HOLDFAST_TOKEN"] = "plain"
    assert find(url=None, token_file=None, environment=environment).token == "plain"
    file = token_file(tmp_path, "argument")
    assert find(url=None, token_file=file, environment=environment).token == "token-of-argument"


def test_configured_token_is_sent_to_its_server_only(environment: dict[str, str]) -> None:
    """The token of client.toml is not sent to a server that client.toml does not name."""
    configure(environment, LOCAL)
    elsewhere = find(url="https://elsewhere.example", token_file=None, environment=environment)
    assert (elsewhere.token, elsewhere.token_origin) == (None, "nowhere")
    assert find(url="http://127.0.0.1:7421", token_file=None, environment=environment).token is None
    assert find(url=LOCAL + "/", token_file=None, environment=environment).token == "token-of-kept"


ONE, OTHER = "https://one.example:7420", "https://other.example:7420"


def test_several_addresses(environment: dict[str, str]) -> None:
    """N-35: an address may be several, with commas in between; each counts once, and all are handed to a child."""
    environment["HOLDFAST_URL"] = f"{ONE}/, {OTHER} ,{ONE}"
    target = find(url=None, token_file=None, environment=environment, token="t")
    assert target.addresses == (ONE, OTHER)
    assert target.environment["HOLDFAST_URL"] == f"{ONE},{OTHER}"
    assert (target.at(OTHER).addresses, target.at(OTHER).token) == ((OTHER,), "t")


@pytest.mark.parametrize("url", [f"{ONE},", f",{ONE}", f"{ONE},,{OTHER}", f"{ONE},other", f"{ONE};{OTHER}", ","])
def test_each_address_has_to_be_one(environment: dict[str, str], url: str) -> None:
    """What is no address is refused among others too."""
    assert refused(environment, url=url).setting == "url"


def test_addresses_have_an_end(environment: dict[str, str]) -> None:
    """More than sixteen are refused: each may cost a try."""
    many = [f"https://node-{number}.example" for number in range(17)]
    assert len(find(url=",".join(many[:16]), token_file=None, environment=environment).addresses) == 16
    assert "at most 16" in str(refused(environment, url=",".join(many)))


def test_no_address_of_several_is_asked_unencrypted(environment: dict[str, str]) -> None:
    """One plain address on another machine is enough to refuse all of them, and is named; unless it is allowed."""
    plain = "http://plain.example:7420"
    urls = f"{ONE},{plain},http://127.0.0.1:7420"
    error = refused(environment, url=urls, token="t")
    assert plain in error.problem and ONE not in error.problem
    allowed = find(url=urls, token_file=None, environment=environment, token="t", allow_insecure_http=True)
    assert (allowed.is_insecure, allowed.unencrypted) == (True, (plain,))


def test_configured_token_is_sent_to_its_addresses_only(environment: dict[str, str]) -> None:
    """N-35: the token of client.toml goes to the addresses named there, and to no list with another in it."""
    configure(environment, f"{ONE},{OTHER}")
    for url in (None, ONE, OTHER, f"{OTHER},{ONE}"):
        assert find(url=url, token_file=None, environment=environment).token == "token-of-kept"
    assert find(url=f"{ONE},https://third.example", token_file=None, environment=environment).token is None
    configure(environment, ONE)
    assert find(url=f"{ONE},{OTHER}", token_file=None, environment=environment).token is None


def test_without_an_url_client_toml_is_for_the_default_server(environment: dict[str, str], tmp_path: Path) -> None:
    """A `client.toml` that names no server is for the local one: nothing in it counts for any HOLDFAST_URL."""
    folder = Path(environment["XDG_CONFIG_HOME"]) / "holdfast"
    token_file(folder, "kept")
    pem = tmp_path / "ca.pem"
    pem.write_text("-----BEGIN CERTIFICATE-----\n")
    (folder / "client.toml").write_text(f"token_file = 'kept'\nca_file = '{pem}'\nallow_insecure_http = true\n")
    assert find(url=None, token_file=None, environment=environment).token == "token-of-kept"
    for url in ("http://elsewhere.example", "https://elsewhere.example", "http://127.0.0.1:7421"):
        environment["HOLDFAST_URL"] = url
        found = find(url=None, token_file=None, environment=environment)
        assert (found.token, found.ca_file, found.is_insecure) == (None, None, False)
    environment |= {"HOLDFAST_TOKEN": "plain", "HOLDFAST_URL": "http://elsewhere.example"}
    assert "unencrypted" in str(refused(environment))


@pytest.mark.parametrize("url", ["http://h:99999", "http://[::1", "ftp://h", "h:7420", "http://h:0"])
def test_broken_url_in_client_toml_is_reported(environment: dict[str, str], url: str) -> None:
    """It is an error that names client.toml, also where another server is asked: what is kept cannot be placed."""
    configure(environment, url)
    assert "client.toml" in str(refused(environment))
    environment["HOLDFAST_URL"] = LOCAL
    assert "client.toml" in str(refused(environment))


@pytest.mark.parametrize(
    "host", ["10.0.0.7:7420", "holdfast.example", "localhost.example", "127.0.0.1.example", "[fe80::1]"]
)
def test_token_never_travels_unencrypted(environment: dict[str, str], host: str) -> None:
    """Over plain HTTP a token goes to this machine only; without one, or over HTTPS, anywhere."""
    environment["HOLDFAST_TOKEN"] = "hold_secret"
    error = refused(environment, url=f"http://{host}")
    assert "unencrypted" in str(error) and "https://" in str(error) and "hold_secret" not in str(error)
    assert find(url=f"https://{host}", token_file=None, environment=environment).token == "hold_secret"
    del environment["HOLDFAST_TOKEN"]
    assert find(url=f"http://{host}", token_file=None, environment=environment).token is None


@pytest.mark.parametrize("scheme", ["HTTP", "Http"])
def test_scheme_in_capitals_is_the_same_scheme(environment: dict[str, str], scheme: str, tmp_path: Path) -> None:
    """However the scheme is written: a token does not travel unencrypted, and over https the own CA counts."""
    environment |= {"HOLDFAST_TOKEN": "hold_secret"}
    with pytest.raises(SettingsError, match="unencrypted"):
        find(url=f"{scheme}://elsewhere:7420", token_file=None, environment=environment)
    certificates = tmp_path / "ca.pem"
    certificates.write_text("-----BEGIN CERTIFICATE-----")
    found = find(url=f"{scheme}S://Elsewhere/", token_file=None, environment=environment, ca_file=certificates)
    assert (found.url, found.ca_file) == ("https://Elsewhere", certificates)


def test_loopback() -> None:
    """Loopback is what never leaves the machine."""
    for url in ("http://127.0.0.1", "http://127.9.9.9:1", "http://[::1]:7420", "http://localhost:7420"):
        assert is_loopback(url), url
    for url in ("http://0.0.0.0", "http://10.0.0.1", "http://[::]", "http://localhost.example", "http://127.1.example"):
        assert not is_loopback(url), url


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:7420",
        "ftp://host",
        "http://",
        "http://host:0",
        "http://host:99999",
        "http://host:x",
        "http://host/?a=1",
        "http://host/#a",
        "http://ho st",
        "http://[::1",
        "http://höst",
    ],
)
def test_bad_url_is_refused(environment: dict[str, str], url: str) -> None:
    """An address that is none is refused with the place it stands in and the form it should have."""
    environment["HOLDFAST_URL"] = url
    error = refused(environment)
    assert error.origin == "HOLDFAST_URL"
    assert "http://host:port" in str(error)


def test_password_in_a_url_is_refused(environment: dict[str, str]) -> None:
    """An address with a password is refused, and the password is not shown."""
    error = refused(environment, url="https://ana:hold_secret@host")
    assert "HOLDFAST_TOKEN_FILE" in str(error) and "hold_secret" not in str(error)


@pytest.mark.parametrize("token", ["two words", "line\nbreak", "tökén"])
def test_bad_token_is_refused(environment: dict[str, str], token: str) -> None:
    """A token that cannot stand in a header is refused, and not shown."""
    environment["HOLDFAST_TOKEN"] = token
    error = refused(environment)
    assert error.origin == "HOLDFAST_TOKEN" and token not in str(error)


def test_token_is_not_in_repr(environment: dict[str, str]) -> None:
    """Printing the target shows where the token came from, never the token."""
    environment["HOLDFAST_TOKEN"] = "hold_secret"
    shown = repr(find(url=None, token_file=None, environment=environment))
    assert "HOLDFAST_TOKEN" in shown and "hold_secret" not in shown
