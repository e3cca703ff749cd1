"""What `run` and `session exec` share: the command after `--`, its environment, and reading that inside it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypedDict

import click
from click.shell_completion import CompletionItem

from holdfast.cli.shared.completion import COMMAND

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast import Claim

OWN_TOKENS = ("HOLDFAST_TOKEN", "HOLDFAST_TOKEN_FILE")
OF_ONE_JOB = (
    "HOLDFAST_JOB",
    "HOLDFAST_FENCING_TOKEN",
    "HOLDFAST_LEASE",
    "HOLDFAST_ATTEMPTS",
    "HOLDFAST_PREVIOUS_OWNER",
    "HOLDFAST_PREVIOUS_ENDED",
    "HOLDFAST_PREVIOUS_NOTE",
)
"""The variables about one job. A run inside another does not pass on those of the outer one."""
GRACE_SECONDS = 10
TTL_SECONDS = 60
RETRY_SECONDS = 10.0
"""Long enough for a server to restart."""

keeps_token = click.option(
    "--keep-token", is_flag=True, help="Leave your own access token to the command, instead of a secret for this alone."
)


def environment_with(secret: str | None, reached: Mapping[str, str]) -> dict[str, str]:
    """Return our environment with a secret in place of our token, and the variables by which the server is found.

    Without a secret, our token and address stay, and only how to trust the server is added.
    """
    if secret is None:
        return {**os.environ, **{name: reached[name] for name in reached.keys() - {"HOLDFAST_URL"}}}
    ours = {name: value for name, value in os.environ.items() if name not in OWN_TOKENS}
    return {**ours, **reached, "HOLDFAST_TOKEN": secret}


class WithCommand(click.Command):
    """A command that takes everything after `--` as another command to run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
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
        """Complete the command with files."""
        if ctx.meta.get(COMMAND) is not None:
            return [CompletionItem(incomplete, type="file")]
        return super().shell_complete(ctx, incomplete)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "-- COMMAND..."]


class JobEntry(TypedDict):
    """An entry of HOLDFAST_JOBS."""

    job: str
    fencing_token: int
    lease_id: str


def environment_for(base: Mapping[str, str], claims: Sequence[Claim]) -> dict[str, str]:
    """Add the variables about the claims. Lease ids are in the environment, never on a command line."""
    import msgspec

    environment = {name: value for name, value in base.items() if name not in OF_ONE_JOB}
    several: list[JobEntry] = [
        {"job": each.job_id, "fencing_token": each.fencing_token, "lease_id": each.lease_id} for each in claims
    ]
    environment["HOLDFAST_JOBS"] = msgspec.json.encode(several).decode()
    if len(claims) > 1:
        return environment
    (only,) = claims
    environment |= {
        "HOLDFAST_JOB": only.job_id,
        "HOLDFAST_FENCING_TOKEN": str(only.fencing_token),
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


def outer_jobs(environment: Mapping[str, str]) -> list[JobEntry]:
    """Return the jobs of the `holdfast run` around us."""
    import msgspec

    try:
        return msgspec.json.decode(environment.get("HOLDFAST_JOBS", "[]"), type=list[JobEntry])
    except (msgspec.MsgspecError, UnicodeEncodeError):  # Somebody else's variable.
        return []
