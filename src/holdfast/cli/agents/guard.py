"""`holdfast guard`: manage and inspect the guard. Hooks are started directly by `start.py`."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from holdfast.cli.shared import output
from holdfast.cli.shared.options import InOrder, as_json, wants_json

_HOSTS = ["claude", "codex", "cursor", "gemini", "opencode", "qwen"]
_TEMPLATE = """\
# What agents touch here, and the job that it belongs to. Whoever has the job may touch it; `holdfast guard` sees to it.
# Every rule has one of `paths`, `command` and `tool`, and the name of a job. What no rule names is never held up.
# Try it: `holdfast guard check src/auth/login.py`, `holdfast guard check --command "git push"`.

# when_free = "claim"        # claim a free job; "ask": a person must agree; "only-refuse": claim nothing
# when_away = "refuse"       # the server cannot be asked; "let-pass" goes on without a claim, and says so
# ttl = "60s"                # how long jobs are kept after the agent and its keeper are gone
# release = "session"        # give jobs back when the agent's session ends; "turn": when it has answered

# `*` and `?` stand for anything within a folder, `**` for folders too. Paths begin where this file is.
[[rule]]
paths = "src/auth/**"
job = "{name}:auth"

# Options may stand in between: `git -C app push` is `git push`.
[[rule]]
command = "git push"
job = "{name}:push/{{branch}}"

# A tool by its name, as the host calls it, and by its arguments.
# [[rule]]
# tool = "mcp__deploy__*"
# arguments = {{ environment = "prod*" }}
# job = "{name}:deploy/{{argument.environment}}"
"""


@click.group(cls=InOrder, short_help="Let agents touch only what they own.")
def guard() -> None:
    """Map what agents touch to jobs, by `holdfast-guard.toml`, and let only the owner of a job touch it."""


@guard.command(short_help="Write a rule file with comments.")
def init() -> None:
    """Write `holdfast-guard.toml` at the top of this repository, with comments. One that is there is left alone."""
    from holdfast.agents.guard.paths import RULES_NAME
    from holdfast.agents.skill.installer import project_of

    top = project_of(Path.cwd()).base
    file = top / RULES_NAME
    name = "".join(char for char in top.name.lower() if char.isascii() and (char.isalnum() or char == "-"))
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(_TEMPLATE.format(name=name if name[:1].isalpha() else f"repo-{name}"))
    except FileExistsError:
        raise click.UsageError(f"{file} is there already; change it by hand") from None
    output.say(output.plain(f"{file} is written"))
    _say_ignored([str(file)])
    output.hint(
        "change its rules, then put the hooks in place: `holdfast guard git install`, and those of your host with"
        " `holdfast skill install --hooks`"
    )


@guard.command(short_help="Say which jobs something needs, and who has them.")
@click.argument("paths", nargs=-1)
@click.option("--command", "line", metavar="LINE", help="A command line that an agent would run.")
@as_json
def check(*, paths: tuple[str, ...], line: str | None) -> int:
    """Say which jobs writing PATHS, or running a command line, needs, and who has them. Nothing is claimed.

    Exit code 2: another has one of them, or it would be refused for another reason. Without arguments only the rule
    file is read.
    """
    from holdfast.agents.guard.decision import Matcher, owner_of
    from holdfast.agents.guard.paths import found_above
    from holdfast.agents.guard.rules import BrokenRulesError
    from holdfast.agents.guard.server import RefusedError, UnavailableError
    from holdfast.agents.guard.state import base_of

    matcher = Matcher(base_of(os.environ))
    cwd = str(Path.cwd())
    try:
        files = [rules.file for rules in matcher.rules_around(cwd)]
        requirements = [requirement for path in paths for requirement in matcher.of_path(path, cwd)]
        requirements += list(matcher.of_command_line(line, cwd)) if line else []
    except BrokenRulesError as error:
        raise click.UsageError(str(error)) from None
    rows = []
    for requirement in requirements:
        said: Mapping[str, object]
        try:
            said = {} if requirement.problem else owner_of(requirement.job, os.environ)
        except (UnavailableError, RefusedError) as error:
            said = {"status": "unknown", "problem": str(error)}
        rows.append(
            {
                "what": requirement.what,
                "job": requirement.job,
                "status": "refused" if requirement.problem else said.get("status"),
                "owner": said.get("owner") or said.get("shown_as"),
                "note": said.get("note"),
                "problem": requirement.problem or said.get("problem"),
            }
        )
    _say_ignored([file for file, _ in found_above(f"{Path(cwd).resolve()}/.")])
    if wants_json():
        output.say_json({"rule_files": files, "wants": rows})
    elif not rows:
        found = "no rule names that: it passes" if paths or line else f"{', '.join(files)} can be used"
        if not files:
            found = "there is no holdfast-guard.toml here, so nothing is guarded; write one with `holdfast guard init`"
        output.hint(output.plain(found))
    else:
        columns = ("what", "job", "status", "owner")
        cells = [[str(row[name] or "-") for name in columns] for row in rows]
        output.say_table([name.upper() for name in columns], cells)
    return output.FAILED if any(row["status"] != "free" for row in rows) else output.OK


def _say_ignored(files: list[str]) -> None:
    from holdfast.agents.guard.paths import is_open

    for file in filter(is_open, files):
        folder = shlex.quote(str(Path(file).parent))
        output.hint(output.plain(f"{file} is not asked: everybody may write to its folder; run: chmod o-w {folder}"))


@guard.command(short_help="List the agents that the guard knows here.")
@as_json
def status() -> None:
    """List the agents of this user on this machine that have a session of the guard, and the jobs they have.

    It warns if a host skips the hooks that are installed here or for the user.
    """
    from holdfast.agents.guard import host_registry, owner_session, state
    from holdfast.agents.guard.server import RefusedError, UnavailableError
    from holdfast.agents.skill.installer import Scope, problems, project_of

    base = state.base_of(os.environ)
    only_seen = host_registry.all_sessions(base) - {
        state.host_session_of(folder) for folder in state.owner_folders(base)
    }
    rows: list[tuple[str, list[str], bool, bool, str | None]] = [
        (name.replace("-", ":", 1), [], False, True, None) for name in sorted(only_seen)
    ]
    for folder, session in state.sessions(base).items():
        try:
            jobs, problem = [str(job.get("name")) for job in owner_session.jobs_of(session)], None
        except (UnavailableError, RefusedError) as error:
            jobs, problem = [], str(error)
        rows.append((session.owner, jobs, state.is_daemon_alive(folder), host_registry.is_alive(session.host), problem))
    user = Scope(Path.home(), is_user=True, environment=os.environ)
    warnings = [each for scope in (project_of(Path.cwd()), user) for each in problems(scope, user)]
    if wants_json():
        names = ("owner", "jobs", "keeper", "host", "problem")
        output.say_json({"owners": [dict(zip(names, row, strict=True)) for row in rows], "warnings": warnings})
        return
    for warning in warnings:
        output.complain(warning)
    if not rows:
        output.hint("no agent of yours has a job through the guard on this machine")
    else:
        word = {True: "lives", False: "gone"}
        cells = [[owner, ", ".join(jobs) or problem or "-", word[keeper], word[host]]
                 for owner, jobs, keeper, host, problem in rows]  # fmt: skip
        output.say_table(["OWNER", "JOBS", "KEEPER", "HOST"], cells, folded=("JOBS",))


@guard.command(short_help="Give back what an agent has through the guard.")
@click.option("--owner", metavar="NAME", help="The agent, as `holdfast guard status` names it.")
@click.option("--all", "everyone", is_flag=True, help="All agents of this user on this machine.")
def release(*, owner: str | None, everyone: bool) -> int:
    """End the session of the agent that runs this, or of another one, and give back every job of it."""
    from holdfast.agents.guard import host_registry, owner_session, state
    from holdfast.agents.guard.githooks import owners_of_host
    from holdfast.agents.guard.server import RefusedError, UnavailableError

    if owner and everyone:
        raise click.UsageError("say --owner or --all, not both")
    base = state.base_of(os.environ)
    if everyone or owner:
        chosen = [folder for folder, each in state.sessions(base).items() if everyone or each.owner == owner]
    else:
        chosen = list(owners_of_host(base, host_registry.ancestors()))
    named = {state.host_session_of(folder) for folder in chosen if Path(folder).name == state.MAIN}
    only_seen = (
        host_registry.all_sessions(base)
        if everyone
        else host_registry.all_sessions(base) & {(owner or "").replace(":", "-", 1)}
    )
    for name in named | only_seen:
        host_registry.forget_session(base, name)
    if only_seen and not chosen:
        output.say(output.plain(f"{', '.join(sorted(only_seen)).replace('-', ':', 1)} is forgotten; it had no job"))
        return output.OK
    if not chosen:
        raise click.UsageError("no such agent has a session of the guard here; see `holdfast guard status`")
    for folder in chosen:
        try:
            name = owner_session.release(base, folder)
        except (UnavailableError, RefusedError) as error:
            output.complain(f"{error}; its keeper goes on trying to end it")
            return output.UNREACHABLE
        output.say(output.plain(f"{name} has nothing any more"))
    return output.OK


@guard.command(short_help="Agree that an agent gets a job it asked for.")
@click.argument("job")
def agree(*, job: str) -> None:
    """Agree that an agent gets JOB, where a rule says `ask` and the agent's host cannot ask you itself."""
    from holdfast.agents.guard import decision, state

    base = state.base_of(os.environ)
    found = [folder for folder in state.owner_folders(base) if decision.record_consent(base, folder, job=job)]
    if not found:
        raise click.UsageError(f"no agent has asked for {job!r:.200} here")
    output.say(output.plain(f"agreed: {job}"))


@guard.command(short_help="The hook of an agent's host.")
@click.option("--host", type=click.Choice(_HOSTS), required=True, help="The host.")
def hook(*, host: str) -> int:
    """Read what the host says on standard input, and answer in its own way. The host runs this; see the guide."""
    from holdfast.agents.guard.hook import main

    return main(["--host", host])


@guard.group(cls=InOrder, short_help="The hooks of git: put in place, take away.")
def git() -> None:
    """Hooks of git for what no hook of a host has seen: files that are committed, branches that are pushed."""


@git.command(short_help="Put pre-commit and pre-push in place.")
@click.option("--shared", is_flag=True, help="Also where core.hooksPath is for all your repositories.")
def install(*, shared: bool) -> None:
    """Put the hooks pre-commit and pre-push in place. Hooks that are there go on running."""
    from holdfast.agents.guard.githooks import HOOKS
    from holdfast.agents.guard.hook_installer import install

    program = Path(shutil.which(sys.argv[0]) or Path(sys.executable).parent / "holdfast").absolute()
    folder = _folder(shared=shared)
    for name in HOOKS:
        output.say(output.plain(install(folder, name, str(program))))


@git.command(short_help="Take both hooks away again.")
def uninstall() -> None:
    """Take away exactly what `install` put in place."""
    from holdfast.agents.guard.githooks import HOOKS
    from holdfast.agents.guard.hook_installer import uninstall

    folder = _folder(shared=True)
    for name in HOOKS:
        output.say(output.plain(uninstall(folder, name)))


def _folder(*, shared: bool) -> str:
    from holdfast.agents.guard.githooks import GitError
    from holdfast.agents.guard.hook_installer import HooksError, folder_of_hooks

    try:
        return folder_of_hooks(str(Path.cwd()), shared=shared)
    except (GitError, HooksError) as error:
        raise click.UsageError(str(error)) from None


@git.command("pre-commit", short_help="The hook itself: git runs it.")
def pre_commit() -> int:
    """Have the jobs of the staged files, or stop the commit. git runs this."""
    from holdfast.agents.guard.githooks import PRE_COMMIT, main

    return main([PRE_COMMIT])


@git.command("pre-push", short_help="The hook itself: git runs it.")
@click.argument("remote", nargs=-1)
def pre_push(*, remote: tuple[str, ...]) -> int:  # noqa: ARG001 - git names it, and the branches come on standard input
    """Have the jobs of the pushed branches, or stop the push. git runs this."""
    from holdfast.agents.guard.githooks import PRE_PUSH, main

    return main([PRE_PUSH])
