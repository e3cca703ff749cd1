"""How a client reaches a server on another machine: a CA of one's own, and plain HTTP only where somebody says so."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import AsyncHoldfast, Holdfast, clientconfig
from holdfast.client import config
from holdfast.clientconfig import ClientConfig
from holdfast.errors import SettingsError, Unreachable
from tests.support import callers
from tests.support.reverse_proxies import make_certificate
from tests.support.server import ServerProcess

ELSEWHERE = "http://holdfast.invalid:7420"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path / "config"), "HOLDFAST_TOKEN": callers.ALICE}


def write_config(environment: dict[str, str], text: str) -> Path:
    folder = clientconfig.client_config_dir(environment)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "client.toml").write_text(text)
    return folder


def ask_with_threads(**options: object) -> None:
    with Holdfast(retry_seconds=0, **options) as client:  # type: ignore[arg-type]
        client.list_claimed_jobs()


def ask_with_coroutines(**options: object) -> None:
    async def ask() -> None:
        async with AsyncHoldfast(retry_seconds=0, **options) as client:  # type: ignore[arg-type]
            await client.list_claimed_jobs()

    asyncio.run(ask())


EACH_CLIENT = pytest.mark.parametrize("ask", [ask_with_threads, ask_with_coroutines])
Ask = Callable[..., None]


# A CA of one's own.


@EACH_CLIENT
def test_an_own_ca_is_trusted_however_it_is_named(
    ask: Ask, secured: ServerProcess, pem: Path, environment: dict[str, str]
) -> None:
    """The argument, HOLDFAST_CA_FILE and `ca_file` of client.toml each name it; without any it is not trusted."""
    with pytest.raises(Unreachable, match="not trusted"):
        ask(url=secured.url, environment=environment)
    ask(url=secured.url, ca_file=pem, environment=environment)
    ask(url=secured.url, environment={**environment, "HOLDFAST_CA_FILE": str(pem)})
    folder = write_config(environment, f'url = "{secured.url}"\nca_file = "ours.pem"\n')
    (folder / "ours.pem").write_bytes(pem.read_bytes())
    ask(environment=environment)


@EACH_CLIENT
def test_own_ca_replaces_the_system_cas(
    ask: Ask, secured: ServerProcess, pem: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    """What is named is trusted and nothing else, not even what SSL_CERT_FILE or client.toml name."""
    other = make_certificate(tmp_path)
    write_config(environment, f'url = "{secured.url}"\nca_file = "{pem}"\n')
    with pytest.raises(Unreachable, match="not trusted"):
        ask(ca_file=other, environment=environment)
    with pytest.raises(Unreachable, match="not trusted"):
        ask(environment={**environment, "HOLDFAST_CA_FILE": str(other)})
    ask(ca_file=pem, environment={**environment, "HOLDFAST_CA_FILE": str(other)})


def test_the_ca_of_another_server_does_not_count(environment: dict[str, str], pem: Path) -> None:
    """What stands in client.toml is for the server that is named there."""
    write_config(environment, f'url = "https://one.example"\nca_file = "{pem}"\nallow_insecure_http = true\n')
    one = config.find(url=None, token_file=None, environment=environment)
    other = config.find(url="https://two.example", token_file=None, environment=environment)
    assert (one.ca_file, other.ca_file) == (pem, None)
    with pytest.raises(SettingsError, match="unencrypted"):
        config.find(url="http://two.example", token_file=None, environment=environment)


@pytest.mark.parametrize("content", [None, b"", b"-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n"])
@EACH_CLIENT
def test_unusable_ca_file_is_named(
    ask: Ask, content: bytes | None, environment: dict[str, str], tmp_path: Path, secured: ServerProcess
) -> None:
    """A file that is not there, or holds no certificate, is a wrong setting: the error names it."""
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SettingsError, match=str(file)):
        ask(url=secured.url, ca_file=file, environment=environment)


@EACH_CLIENT
def test_one_ca_for_all_addresses(
    ask: Ask, secured: ServerProcess, server: ServerProcess, pem: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    """N-35: of several addresses each is checked with the same CA, and one that cannot be trusted is left."""
    dead = "https://127.0.0.1:1"
    ask(url=f"{dead},{secured.url}", ca_file=pem, environment=environment)
    with pytest.raises(Unreachable, match="not trusted"):
        ask(url=f"{dead},{secured.url}", ca_file=make_certificate(tmp_path), environment=environment)
    ask(url=f"{secured.url},{server.url}", ca_file=make_certificate(tmp_path), environment=environment)


# Plain HTTP to another machine.


def test_plain_http_requires_permission(environment: dict[str, str]) -> None:
    """The argument, the variable and client.toml each allow it; the refusal says how. An explicit no wins."""
    with pytest.raises(SettingsError, match="HOLDFAST_ALLOW_INSECURE_HTTP=1"):
        Holdfast(ELSEWHERE, environment=environment)
    allowing = {**environment, "HOLDFAST_ALLOW_INSECURE_HTTP": "1"}
    for options in ({"environment": allowing}, {"environment": environment, "allow_insecure_http": True}):
        Holdfast(ELSEWHERE, **options).close()
    for denying in ({**environment, "HOLDFAST_ALLOW_INSECURE_HTTP": no} for no in ("0", "", "off")):
        with pytest.raises(SettingsError, match="unencrypted"):
            Holdfast(ELSEWHERE, environment=denying)
    with pytest.raises(SettingsError, match="unencrypted"):
        Holdfast(ELSEWHERE, environment=allowing, allow_insecure_http=False)
    with pytest.raises(SettingsError, match="1 or 0"):
        Holdfast(ELSEWHERE, environment={**environment, "HOLDFAST_ALLOW_INSECURE_HTTP": "maybe"})
    write_config(environment, f'url = "{ELSEWHERE}"\nallow_insecure_http = true\n')
    Holdfast(environment=environment).close()


def test_plain_http_is_warned_about_once() -> None:
    """A process that sends a token unencrypted says so on standard error, once for each server, without the token."""
    code = (
        "from holdfast import Holdfast\n"
        f"for _ in range(3): Holdfast({ELSEWHERE!r}, token='secret-token', allow_insecure_http=True).close()\n"
        "Holdfast('http://127.0.0.1:1', token='secret-token', allow_insecure_http=True).close()\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stderr.count("unencrypted") == len(shown.stderr.splitlines()) == 1
    assert ELSEWHERE in shown.stderr and "secret-token" not in shown.stderr + shown.stdout


def test_a_child_reaches_the_server_in_the_same_way(environment: dict[str, str], pem: Path) -> None:
    """`environment` of a client has what a child needs to reach the server as we do, and never the token."""
    with Holdfast("https://one.example", ca_file=pem, environment=environment) as client:
        assert client.environment == {"HOLDFAST_URL": "https://one.example", "HOLDFAST_CA_FILE": str(pem)}
    with Holdfast(ELSEWHERE, allow_insecure_http=True, environment=environment) as client:
        assert client.environment == {"HOLDFAST_URL": ELSEWHERE, "HOLDFAST_ALLOW_INSECURE_HTTP": "1"}


# client.toml.


def test_other_settings_in_the_file_stay(environment: dict[str, str], pem: Path) -> None:
    """A first start that writes its address and token into client.toml leaves the other lines as they mean."""
    folder = write_config(environment, f'ca_file = "{pem}"\nallow_insecure_http = true\n')
    clientconfig.remember("https://127.0.0.1:7420", "hold_0123456789", environment)
    config = clientconfig.read(environment)
    assert config == ClientConfig("https://127.0.0.1:7420", folder / "token", pem, allow_insecure_http=True)


@pytest.mark.parametrize(
    "line", ['allow_insecure_http = "yes"', "allow_insecure_http = 1", "ca_file = true", 'ca = "x"']
)
def test_other_lines_are_refused(environment: dict[str, str], line: str) -> None:
    """What client.toml cannot mean is refused, with what may stand there."""
    write_config(environment, f"{line}\n")
    with pytest.raises(SettingsError, match=r"true or false|text|url, token_file, ca_file, allow_insecure_http"):
        clientconfig.read(environment)
