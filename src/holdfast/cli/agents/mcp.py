"""`holdfast mcp`: the tools for agents, served over stdio to an MCP host."""

from __future__ import annotations

import os
from collections.abc import Mapping

import click

from holdfast.cli.shared import output
from holdfast.cli.shared.options import Duration, asks_server, from_environment, server_options
from holdfast.extras import how_to_install

TTL_SECONDS = 60
_PARTS = frozenset({"aiohttp", "mcp", "mcp_types", "yarl"})


@click.command(short_help="Give an agent's host the tools to claim jobs, over stdio (MCP).")
@click.option(
    "--owner",
    metavar="NAME",
    help="In whose name to claim; else HOLDFAST_OWNER. The next process of NAME resumes what this one leaves.",
)
@click.option(
    "--ttl",
    metavar="TIME",
    type=Duration(86_400, "1d", least=10),
    default=TTL_SECONDS,
    help="How long jobs outlive this process if it is killed; 1m unless given, 10s at least.",
)
@asks_server
def mcp(*, owner: str | None, ttl: int) -> int:
    """Serve the tools of Holdfast to an agent's host, which starts this: they speak MCP over its input and output.

    What the agent claims is renewed while this process lives, and released when its input ends.
    """
    if os.isatty(0):
        output.hint("the host of an agent starts this, to speak MCP with it: `holdfast skill install`; Ctrl-D ends it")
    named = owner or from_environment("HOLDFAST_OWNER")
    try:
        from holdfast.agents.mcp.stdio import run

        return run(owner=named, ttl=ttl, environment=_expanded(os.environ), **server_options())
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _PARTS:
            raise
        output.complain(f"the tools for agents are not installed ({error.name}); {how_to_install('mcp')}")
        return output.UNREACHABLE


def _expanded(environment: Mapping[str, str]) -> dict[str, str]:
    # Gemini CLI passes an unset variable as a literal reference such as `$HOLDFAST_TOKEN`.
    return {name: value for name, value in environment.items() if value not in {f"${name}", f"${{{name}}}"}}
