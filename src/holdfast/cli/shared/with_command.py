"""What commands have in common that run another one: where it stands on the line, their usual times, what it is told.

A command inside reads here what the `holdfast run` around it told.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NotRequired, TypedDict

import click
from click.shell_completion import CompletionItem

from holdfast.cli.shared.completion import COMMAND

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast import Claim

OWN_TOKENS = ("HOLDFAST_TOKEN", "HOLDFAST_TOKEN_FILE")
"""The variables by which a command would find the token of whoever runs it."""
OF_ONE_JOB = (
    "HOLDFAST_JOB",
    "HOLDFAST_FENCING_TOKEN",
    "HOLDFAST_LEASE",
    "HOLDFAST_ATTEMPTS",
    "HOLDFAST_PREVIOUS_OWNER",
    "HOLDFAST_PREVIOUS_ENDED",
    "HOLDFAST_PREVIOUS_NOTE",
)
"""The variables that speak of one job. A run inside another does not pass on those of the outer one."""
GRACE_SECONDS = 10
TTL_SECONDS = 60
RETRY_SECONDS = 10.0
"""Nobody sits in front of it: a server that restarts is waited for."""


keeps_token = click.option(
    "--keep-token", is_flag=True, help="Leave your own access token to the command, instead of a secret for this alone."
)


def environment_with(secret: str | None, reached: Mapping[str, str]) -> dict[str, str]:
    """Return our environment for a command that shall have this secret in place of our token.

    `reached` has the variables by which it finds the server. Without a secret our token and our address stay as they
    are, and only how to trust the server is added.
    """
    if secret is None:
        return {**os.environ, **{name: reached[name] for name in reached.keys() - {"HOLDFAST_URL"}}}
    ours = {name: value for name, value in os.environ.items() if name not in OWN_TOKENS}
    return {**ours, **reached, "HOLDFAST_TOKEN": secret}


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
        return [*super().collect_usage_pieces(ctx), "-- COMMAND..."]


# What a command is told of the jobs.


class JobEntry(TypedDict):
    """An entry of HOLDFAST_JOBS."""

    job: str
    fencing_token: int
    lease_id: NotRequired[str]
    """An older `holdfast run` does not tell it."""


def environment_for(base: Mapping[str, str], claims: Sequence[Claim]) -> dict[str, str]:
    """Add what the command is told of its claims. The lease ids are in the environment, never on a command line."""
    import msgspec

    environment = {name: value for name, value in base.items() if name not in OF_ONE_JOB}
    several: list[JobEntry] = [
        {"job": each.job_id, "fencing_token": each.token, "lease_id": each.lease_id} for each in claims
    ]
    environment["HOLDFAST_JOBS"] = msgspec.json.encode(several).decode()
    if len(claims) > 1:
        return environment
    (only,) = claims
    environment |= {
        "HOLDFAST_JOB": only.job_id,
        "HOLDFAST_FENCING_TOKEN": str(only.token),
        "HOLDFAST_LEASE": only.lease_id,
        "HOLDFAST_ATTEMPTS": str(only.attempts),
    }
    before = only.previous
    if before is not None:
        environment |= {
            "HOLDFAST_PREVIOUS_OWNER": before.owner or "",
            "HOLDFAST_PREVIOUS_ENDED": before.ended,
            "HOLDFAST_PREVIOUS_NOTE": before.note or "",
        }
    return environment


def fencing_tokens(environment: Mapping[str, str]) -> dict[str, int]:
    """Return the jobs of the `holdfast run` around us, with their fencing tokens."""
    return {each["job"]: each["fencing_token"] for each in _entries(environment)}


def lease_ids(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the jobs of the `holdfast run` around us, with their lease ids."""
    return {each["job"]: each["lease_id"] for each in _entries(environment) if "lease_id" in each}


def _entries(environment: Mapping[str, str]) -> list[JobEntry]:
    import msgspec

    try:
        return msgspec.json.decode(environment.get("HOLDFAST_JOBS", "[]"), type=list[JobEntry])
    except (msgspec.MsgspecError, UnicodeEncodeError):  # Somebody else's variable.
        return []
