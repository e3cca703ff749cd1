"""Real proxies in front of a server, configured by the guide: nginx, HAProxy and Caddy, each in a process of its own.

The law of this file: what is tested is what the guide says. A configuration is taken out of its page, addresses and
paths are put in, and a text that is to be replaced must be there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.api import Api
from tests.support.checks import wait_until
from tests.support.pages import ROOT, blocks_of
from tests.support.program import Program

PAGE = ROOT / "docs" / "guide" / "proxies.md"
NAME = "locks.example.com"
FORBIDDEN = "forbidden"
"""The proxy itself refuses names that begin with this: who claims one got past it."""
STARTS_MAX = 5

PASSES_UPGRADE_ON = "nginx that passes Upgrade on"
SHARES_ALWAYS = "haproxy that shares connections at once"
APPENDS = "nginx that appends to X-Forwarded-For"
PROXY_KINDS = ("nginx", PASSES_UPGRADE_ON, "haproxy", SHARES_ALWAYS, "caddy")
"""As the guide says, and as many people have it."""
PACKAGES = {"caddy": "caddy", "nginx": "nginx-light", "haproxy": "haproxy", "openssl": "openssl"}


@dataclass(frozen=True)
class ReverseProxy:
    """A proxy that runs. It listens on two ports: for TLS, as the guide says, and in the clear, for requests that are
    written out by hand.
    """

    kind: str
    host: str
    port: int
    tls_port: int
    certificate: Path

    def api(self, token: str | None) -> Api:
        """A caller that comes through this proxy."""
        return Api(self.host, self.port, token)

    def tls(self) -> ssl.SSLContext:
        """What a client needs to believe this proxy."""
        return ssl.create_default_context(cafile=str(self.certificate))


@contextlib.contextmanager
def front(kind: str, folder: Path, upstream: tuple[str, int]) -> Iterator[ReverseProxy]:
    """Start a proxy of this kind in front of a server; it is gone at the end. Skips the test where there is none."""
    program, _, _ = kind.partition(" ")
    command = _installed(program)
    certificate = make_certificate(folder)
    output = ""
    for _ in range(STARTS_MAX):
        # Neither can be told to take any free port, so one that was free just now may be taken.
        running = ReverseProxy(kind, "127.0.0.1", _free_port(), _free_port(), certificate)
        arguments = _CONFIGURED[program](running, folder, upstream)
        env = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        with Program([command, *arguments], env=env, folder=folder) as process:
            if _starts(running, process):
                yield running
                assert process.process.poll() is None, f"the proxy ended during the tests:\n{process.output}"
                return
            output = process.output
    raise AssertionError(f"{kind} does not start:\n{output}")


def _installed(program: str) -> str:
    found = shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")
    if found is None:
        pytest.skip(f"there is no {program} here. On Debian: apt install {PACKAGES[program]}")
    return found


def _nginx(running: ReverseProxy, folder: Path, upstream: tuple[str, int]) -> list[str]:
    changes = {
        "server 127.0.0.1:7420": f"server {upstream[0]}:{upstream[1]}",
        "listen 443 ssl;": f"listen 127.0.0.1:{running.tls_port} ssl; listen 127.0.0.1:{running.port};",
        "/etc/ssl/holdfast/fullchain.pem": str(running.certificate),
        "/etc/ssl/holdfast/key.pem": str(running.certificate),
        "    location / {": f"    location ~ ^/locks/{FORBIDDEN} {{ return 403; }}\n    location / {{",
    }
    if running.kind == PASSES_UPGRADE_ON:
        changes['Upgrade           "";'] = "Upgrade           $http_upgrade;"
        changes['Connection        "";'] = 'Connection        "upgrade";'
    if running.kind == APPENDS:
        changes["X-Forwarded-For   $remote_addr"] = "X-Forwarded-For   $proxy_add_x_forwarded_for"
    (folder / "holdfast.conf").write_text(_from_the_guide("nginx", changes), encoding="utf-8")
    folders = " ".join(
        f"{kind}_temp_path {folder / kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    # One worker, so that all clients share the connections to the server: that is what smuggling needs.
    config = (
        f"daemon off; worker_processes 1; pid {folder / 'pid'}; error_log stderr;"
        f" {'user root;' if os.geteuid() == 0 else ''}\n"
        f"events {{ worker_connections 1024; }}\nhttp {{ access_log off; {folders} include {folder}/holdfast.conf; }}\n"
    )
    (folder / "nginx.conf").write_text(config, encoding="utf-8")
    return ["-c", str(folder / "nginx.conf"), "-p", str(folder), "-e", "stderr"]


def _haproxy(running: ReverseProxy, folder: Path, upstream: tuple[str, int]) -> list[str]:
    changes = {
        "server holdfast 127.0.0.1:7420": f"server holdfast {upstream[0]}:{upstream[1]}",
        "bind :443 ssl crt /etc/haproxy/locks.example.com.pem alpn http/1.1": (
            f"bind 127.0.0.1:{running.tls_port} ssl crt {running.certificate} alpn http/1.1\n"
            f"    bind 127.0.0.1:{running.port}\n    http-request deny if {{ path_beg /locks/{FORBIDDEN} }}"
        ),
        "global\n": "global\n    nbthread 1\n",
    }
    if running.kind == SHARES_ALWAYS:
        changes["http-reuse safe"] = "http-reuse always"
    (folder / "haproxy.cfg").write_text(_from_the_guide("haproxy", changes), encoding="utf-8")
    return ["-db", "-f", str(folder / "haproxy.cfg")]


def _caddy(running: ReverseProxy, folder: Path, upstream: tuple[str, int]) -> list[str]:
    # Whoever asks in the clear does so by address: one site for all names, on two ports.
    changes = {
        "locks.example.com {": (
            "{\n\tadmin off\n\tauto_https off\n}\n(whole) {\n"
            f"\t@forbidden path /locks/{FORBIDDEN}*\n\trespond @forbidden 403"
        ),
        "\ttls /etc/caddy/fullchain.pem /etc/caddy/key.pem\n": "",
        "127.0.0.1:7420": f"{upstream[0]}:{upstream[1]}",
    }
    text = _from_the_guide("caddy", changes)
    text += f"http://:{running.port} {{\n\tbind 127.0.0.1\n\timport whole\n}}\n"
    text += f"https://:{running.tls_port} {{\n\tbind 127.0.0.1\n\ttls {running.certificate} {running.certificate}\n"
    text += "\timport whole\n}\n"
    (folder / "Caddyfile").write_text(text, encoding="utf-8")
    return ["run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


_CONFIGURED = {"caddy": _caddy, "haproxy": _haproxy, "nginx": _nginx}


def guide_settings() -> dict[str, object]:
    """What the guide sets in Holdfast, but for the address to listen on."""
    settings = tomllib.loads(_from_the_guide("toml", {}))
    del settings["listen"]
    return settings


def _from_the_guide(language: str, changes: Mapping[str, str]) -> str:
    (text,) = [block.text for block in blocks_of(PAGE) if block.language == language]
    for old, new in changes.items():
        assert text.count(old) == 1, f"{PAGE.name} has {old!r} {text.count(old)} times, and the test replaces it"
        text = text.replace(old, new)
    return text


def make_certificate(folder: Path, name: str = NAME) -> Path:
    """A certificate for a name, that of the guide, and for this machine, and its key, in one file."""
    made, key, both = folder / "made.pem", folder / "key.pem", folder / "both.pem"
    options = (
        "-x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
        f" -subj /CN={name} -addext subjectAltName=DNS:{name},IP:127.0.0.1"
    )
    command = [_installed("openssl"), "req", *options.split(), "-keyout", str(key), "-out", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    both.touch(0o600)
    both.write_bytes(made.read_bytes() + key.read_bytes())
    return both


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _starts(running: ReverseProxy, process: Program) -> bool:
    wait_until(lambda: _listens(running) or process.process.poll() is not None)
    return process.process.poll() is None


def _listens(running: ReverseProxy) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((running.host, running.port), timeout=1):
        return True
    return False
