"""Names for the shell to complete with: soon or not at all, and never an error on somebody's terminal."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

COMMAND = "holdfast.command"
"""Where the context has what stood behind `--`; nothing where there was none."""
REACH = "holdfast.reach"
"""Where the context has the options of how to reach the server."""
ANSWER_SECONDS = 1.0
NAMES_MAX = 100


def claimed_jobs(context: click.Context, _: click.Parameter, incomplete: str) -> list[str] | list[CompletionItem]:
    """Return the claimed jobs that begin so, if the server says so at once; files for a command behind `--`."""
    if context.meta.get(COMMAND) is not None:
        return [CompletionItem(incomplete, type="file")]
    try:
        return _printable(_ask(context, incomplete))
    except Exception:  # noqa: BLE001 - whatever it is, the shell must not show it
        return []


def own_jobs(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Return the jobs that were claimed from here and begin so."""
    from holdfast.cli.shared import leases

    try:
        return _printable(leases.own().jobs(incomplete))
    except Exception:  # noqa: BLE001 - whatever it is, the shell must not show it
        return []


def _ask(context: click.Context, prefix: str) -> list[str]:
    from holdfast import Holdfast

    url, file = context.params.get("url"), context.params.get("token_file")
    # Asked once: whoever pressed a key does not wait for a second try.
    reach = context.meta.get(REACH, {})
    with Holdfast(url, token_file=file, answer_seconds=ANSWER_SECONDS, retry_seconds=0, **reach) as server:
        return [each.job_id for each in server.list_claimed_jobs(prefix or None, limit=NAMES_MAX)]


def _printable(names: list[str]) -> list[str]:
    # A line break would end a name, and anything else could act on the terminal.
    return [name for name in names if name.isprintable()]
