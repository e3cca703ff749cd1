"""What commands have in common that run another one: where it stands on the line, and their usual times."""

from __future__ import annotations

import os

import click
from click.shell_completion import CompletionItem

from holdfast.cli.shared.suggestions import COMMAND

OWN_TOKENS = ("HOLDFAST_TOKEN", "HOLDFAST_TOKEN_FILE")
"""The variables by which a command would find the token of whoever runs it."""
GRACE_SECONDS = 10
TTL_SECONDS = 60
RETRY_SECONDS = 10.0
"""Nobody sits in front of it: a server that restarts is waited for."""


keeps_token = click.option(
    "--keep-token", is_flag=True, help="Leave your own token to the command, instead of a secret for this alone."
)


def environment_with(secret: str, url: str) -> dict[str, str]:
    """Return our environment for a command that shall have this secret, for this server, in place of our token."""
    ours = {name: value for name, value in os.environ.items() if name not in OWN_TOKENS}
    return {**ours, "HOLDFAST_URL": url, "HOLDFAST_TOKEN": secret}


class WithCommand(click.Command):
    """A command that takes everything behind `--` as another command to run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Cut it off before anything else is read."""
        cut = args.index("--") if "--" in args else len(args)
        ctx.meta[COMMAND] = args[cut + 1 :] if "--" in args else None
        rest = super().parse_args(ctx, args[:cut])
        if not ctx.meta[COMMAND] and not ctx.resilient_parsing:
            what = "there is no --" if ctx.meta[COMMAND] is None else "nothing stands behind --"
            raise click.UsageError(
                f"{what}; write the command at the end, as in: {ctx.command_path} ... -- ./fix.sh", ctx
            )
        return rest

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the command with files: which program it is, and what it takes, is nothing that we know."""
        if ctx.meta.get(COMMAND) is not None:
            return [CompletionItem(incomplete, type="file")]
        return super().shell_complete(ctx, incomplete)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Show where it goes."""
        return [*super().collect_usage_pieces(ctx), "-- COMMAND..."]
