"""`holdfast skill`: install the skill, the MCP server and the guard's hooks for agent hosts."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.agents.skill.hosts import HOSTS, SKILL, Host
from holdfast.cli.shared import output
from holdfast.cli.shared.options import InOrder

if TYPE_CHECKING:
    from holdfast.agents.skill.installer import FileChange, Outcome, Parts, Scope

EXAMPLES = """\
\b
holdfast skill install --for claude
holdfast skill install --for claude --for codex --hooks --dry-run
holdfast skill install --user --for cursor --no-mcp
"""


@click.group(cls=InOrder)
def skill() -> None:
    """Teach agents to claim: a skill, an MCP server and hooks."""


def _selects(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options for hosts and scope, and pass the command the named hosts, the scope and the parts."""

    @wraps(command)
    def selected(*, names: tuple[str, ...], folder: Path | None, is_user: bool, dry_run: bool, **parts: bool) -> int:
        from holdfast.agents.skill.installer import Parts

        hosts = [host for host in HOSTS if host.name in names]
        return command(hosts, _scope(folder, is_user=is_user), Parts(**parts), dry_run=dry_run)

    options = [
        click.option(
            "--for",
            "names",
            type=click.Choice([host.name for host in HOSTS]),
            multiple=True,
            help="A host of agents. Can be repeated.",
        ),
        click.option(
            "--dir",
            "folder",
            metavar="DIR",
            type=click.Path(path_type=Path, exists=True, file_okay=False),
            help="The project; else the top of the git repository you are in, else this folder.",
        ),
        click.option("--user", "is_user", is_flag=True, help="In your home directory, for all projects."),
        click.option("--dry-run", is_flag=True, help="Change nothing, and show what would change."),
    ]
    for option in reversed(options):
        selected = option(selected)
    return selected


@skill.command(epilog=EXAMPLES, short_help="Put the skill where a host finds it.")
@_selects
@click.option("--skill/--no-skill", default=True, help="The skill itself; it is put there.")
@click.option("--mcp/--no-mcp", default=True, help="The MCP server `holdfast mcp`; it is added.")
@click.option("--hooks/--no-hooks", default=False, help="The hooks of the guard; they are not added.")
def install(hosts: list[Host], scope: Scope, parts: Parts, *, dry_run: bool) -> int:
    """Put the skill where a host finds it, and add the MCP server and the hooks.

    Without --for: every host that has a folder here. Everything else in the files stays as it is, byte by byte. A file
    that cannot be read or is not understood is left alone, and what to write there by hand is printed.
    """
    from holdfast.agents.skill import installer
    from holdfast.agents.skill.installer import Outcome, problems

    if not (parts.skill or parts.mcp or parts.hooks):
        raise click.UsageError("nothing is left to put in place; leave out --no-skill or --no-mcp, or add --hooks")
    hosts = hosts or [host for host in HOSTS if scope.uses(host)]
    if not hosts:
        known = ", ".join(host.name for host in HOSTS)
        raise click.UsageError(f"no host of agents has a folder in {scope.base}; name one with --for: {known}")
    code = _apply_changes(
        installer.plan(hosts, scope, parts, is_install=True), scope, dry_run=dry_run, bad={Outcome.SKIPPED}
    )
    for host in hosts:
        _say_missing(host, scope, parts)
    for problem in problems(scope, _scope(None, is_user=True)):
        output.hint(output.plain(problem))
    _say_unready(parts)
    return code


@skill.command(short_help="Remove what install put in place.")
@_selects
@click.option("--skill/--no-skill", default=True, help="The skill itself; it is removed.")
@click.option("--mcp/--no-mcp", default=True, help="The MCP server; it is removed.")
@click.option("--hooks/--no-hooks", default=True, help="The hooks of the guard; they are removed.")
def uninstall(hosts: list[Host], scope: Scope, parts: Parts, *, dry_run: bool) -> int:
    """Remove what `holdfast skill install` put in place, and nothing else.

    Without --for: from all hosts. The files are as they were before, byte by byte. What somebody has changed in an
    entry of ours stays, and is said.
    """
    from holdfast.agents.skill import installer
    from holdfast.agents.skill.installer import Outcome

    changes = installer.plan(hosts or HOSTS, scope, parts, is_install=False)
    if all(outcome is Outcome.ABSENT for change in changes for _, outcome in change.outcomes):
        output.hint(output.plain(f"there is nothing of Holdfast's in {scope.base}"))
        return output.OK
    return _apply_changes(changes, scope, dry_run=dry_run, bad={Outcome.SKIPPED, Outcome.CHANGED})


@skill.command()
def show() -> None:
    """Print the skill."""
    from holdfast.agents.skill import files

    click.echo(files.text(), nl=False)


def _scope(folder: Path | None, *, is_user: bool) -> Scope:
    from holdfast.agents.skill.installer import Scope, project_of

    if is_user and folder is not None:
        raise click.UsageError("--dir is a project and --user is your home directory; write one of them")
    if is_user:
        return Scope(Path.home(), is_user=True, environment=os.environ)
    if folder is not None:
        return Scope(folder.absolute())
    return project_of(Path.cwd())


def _apply_changes(changes: list[FileChange], scope: Scope, *, dry_run: bool, bad: set[Outcome]) -> int:
    """Carry out the works, or show them; return the exit code."""
    from holdfast.agents.skill import installer

    output.hint(output.plain(f"in {scope.base}:"))
    found: set[Outcome] = set()
    for planned in changes:
        change = planned if dry_run else installer.apply_change(planned, scope)
        if dry_run and change.is_change:
            _show_diff(change, scope)
        _say_work(change, scope, is_shown=dry_run)
        found |= {outcome for _, outcome in change.outcomes}
    if dry_run:
        output.hint("nothing was changed: this was a dry run")
    return output.FAILED if found & bad else output.OK


def _say_work(change: FileChange, scope: Scope, *, is_shown: bool) -> None:
    """Print the outcome of each piece, in a dry run (`is_shown`) without the changes that it showed."""
    from holdfast.agents.skill.installer import Outcome

    name = _name(change.path, scope)
    for outcome in Outcome:
        things = ", ".join(what for what, found in change.outcomes if found is outcome)
        if not things or outcome is Outcome.ABSENT:
            continue
        if outcome is Outcome.CHANGED:
            output.complain(f"{name}: {things}: {outcome.value}")
        elif outcome is Outcome.SKIPPED:
            output.complain(f"{name} is left alone: {change.reason}. What you would write there by hand ({things}):")
            is_skill = change.path.name == Path(SKILL).name
            for line in ["what `holdfast skill show` prints"] if is_skill else change.manual_text.splitlines():
                output.hint(f"    {line}")
        elif not is_shown or outcome is Outcome.PRESENT:
            output.say(output.plain(f"{name}: {outcome.value}: {things}"))


def _say_missing(host: Host, scope: Scope, parts: Parts) -> None:
    """Hint at parts that a host does not support, and at manual steps."""
    if parts.mcp and scope.path(host.mcp.config_file) is None:
        where = "for a user" if scope.is_user else "in a project"
        output.hint(f"{host.title} names no file {where} for MCP servers: add `holdfast mcp` in its own settings")
    if parts.hooks and host.hooks is None:
        output.hint(f"the guard has no hooks for {host.title}")
    if host.after and (parts.mcp or parts.hooks):
        output.hint(host.after)


def _say_unready(parts: Parts) -> None:
    """Hint at what hosts would miss when they start the installed parts."""
    import sys
    from importlib.util import find_spec
    from shutil import which

    from holdfast.agents.skill import installer
    from holdfast.extras import how_to_install

    if (parts.mcp or parts.hooks) and which(installer.PROGRAM) is None:
        folder = Path(sys.executable).parent
        where = f": {folder}" if (folder / installer.PROGRAM).exists() else ""
        output.hint(
            "`holdfast` is not on your PATH here; hosts that do not find it can start neither server nor hooks."
            f" Put its folder into the PATH from which they are started{output.plain(where)}"
        )
    if parts.mcp and find_spec("mcp") is None:
        output.hint(f"the MCP server cannot start yet, because its parts are not installed: {how_to_install('mcp')}")


def _show_diff(change: FileChange, scope: Scope) -> None:
    from difflib import unified_diff

    old = change.found.content if change.found is not None else None
    name = _name(change.path, scope)
    before, after = ("/dev/null" if each is None else name for each in (old, change.after))
    # Split at line feeds only, as diff readers do.
    one, other = (re.findall(r"[^\n]*\n|[^\n]+", (each or b"").decode()) for each in (old, change.after))
    for line in unified_diff(one, other, before, after, lineterm="\n"):
        output.say("\t".join(map(output.plain, line.removesuffix("\n").split("\t"))))
        if not line.endswith("\n"):
            output.say("\\ No newline at end of file")


def _name(path: Path, scope: Scope) -> str:
    return str(path.relative_to(scope.base)) if path.is_relative_to(scope.base) else str(path)
