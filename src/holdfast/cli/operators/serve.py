"""`holdfast serve`: put the settings together and start the server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from holdfast.api.mounts import Mount


class _Serve(click.Command):
    """A command whose help ends with the table of settings."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's form
        from holdfast.config import TABLE

        formatter.write_paragraph()
        formatter.write_text(
            "Every setting is --set NAME=VALUE, a variable HOLDFAST_NAME, or a line of holdfast.toml; the first wins."
            " The variable of max_ttl_seconds is HOLDFAST_MAX_TTL_SECONDS."
        )
        with formatter.section("Settings"):
            formatter.write_dl(
                [(row.name, f"{row.help.replace('`', '')} [{row.default_text.replace('`', '')}]") for row in TABLE]
            )


@click.command(cls=_Serve)
@click.option("--listen", metavar="HOST:PORT", help="Short for --set listen=HOST:PORT.")
@click.option("--data", metavar="DIR", help="Short for --set data=DIR.")
@click.option(
    "--store", metavar="URL", help="Short for --set store=URL: keep all in this PostgreSQL, as one of several nodes."
)
@click.option("--advertise", metavar="URL", help="Short for --set advertise=URL: where the other nodes reach this one.")
@click.option("--tls-cert", metavar="FILE", help="Short for --set tls_cert=FILE: speak HTTPS with this certificate.")
@click.option("--tls-key", metavar="FILE", help="Short for --set tls_key=FILE: the key of the certificate.")
@click.option("--public-url", metavar="URL", help="Short for --set public_url=URL: the address for clients elsewhere.")
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Read settings from FILE; else from HOLDFAST_CONFIG, else from holdfast.toml in this directory, which may not"
    " say who gets in or where.",
)
@click.option("--set", "changes", metavar="NAME=VALUE", multiple=True, help="Set one setting. Can be repeated.")
def serve(*, config: Path | None, changes: tuple[str, ...], **short: str | None) -> int:
    """Start the server.

    It stops on SIGTERM or Ctrl-C, after it has answered what was asked.
    """
    from holdfast.config import load, unknown_variables

    overrides = dict(_pair(change) for change in changes)
    overrides |= {name: value for name, value in short.items() if value is not None}
    loaded = load(overrides=overrides, environment=os.environ, file=config)
    from holdfast.server.app import serve as serve_until_stopped

    return serve_until_stopped(loaded.settings, loaded.file, unknown_variables(os.environ), _mounts())


def _mounts() -> dict[str, Mount]:
    """Return what stands beside the routes: the tools for agents, if what they need is installed."""
    from holdfast.agents.mcp.asgi import PATH
    from holdfast.agents.mcp.endpoint import is_installed, mcp_endpoint

    return {PATH: mcp_endpoint} if is_installed() else {}


def _pair(change: str) -> tuple[str, str]:
    name, equals, value = change.partition("=")
    if not equals or not name.strip():
        raise click.UsageError(f"--set {name!r:.100} has no value; write it as --set NAME=VALUE")
    return name.strip(), value
