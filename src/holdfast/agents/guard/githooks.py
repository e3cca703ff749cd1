"""`holdfast guard git pre-commit` and `pre-push`: a second check, for changes that no host hook saw.

The owner is the agent whose host is an ancestor of this process, else HOLDFAST_OWNER, else the user. With subagents any
of them may hold the job, because a git process does not show which one started it. Without an agent, the session
belongs to the git process, and its renewal daemon ends it when git exits.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress

from holdfast.agents.guard import decision, host_registry, paths, state
from holdfast.agents.guard.decision import GIT, Matcher, Requirement
from holdfast.agents.guard.host_registry import Process
from holdfast.agents.guard.hosts import REFUSE
from holdfast.agents.guard.owner_session import OwnerSession, jobs_of
from holdfast.agents.guard.rules import BrokenRulesError
from holdfast.agents.guard.server import RefusedError, UnavailableError
from holdfast.agents.guard.state import MAIN, Owner, Session
from holdfast.sanitize import plain

PRE_COMMIT, PRE_PUSH = "pre-commit", "pre-push"
HOOKS = (PRE_COMMIT, PRE_PUSH)
REFUSED = 2


class GitError(Exception):
    """git could not be asked."""


def main(arguments: list[str]) -> int:
    """Run a git hook; return its exit code. Any code but 0 stops git."""
    try:
        requirements = list(_pushed_requirements() if arguments[:1] == [PRE_PUSH] else _staged_requirements())
        text, is_refused = (
            _decided(requirements, state.base_of(os.environ), os.environ) if requirements else ("", False)
        )
    except (BrokenRulesError, GitError) as error:
        text, is_refused = str(error), True
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - reported, and the exit code stops git
        text, is_refused = f"unexpected {type(error).__name__}: {error}; nothing passes. Please report this", True
    if text:
        os.write(2, f"holdfast guard: {text}\n".encode("utf-8", "backslashreplace"))
    return REFUSED if is_refused else 0


def _staged_requirements() -> list[Requirement]:
    top = os.path.realpath(os.fsdecode(git_output(["rev-parse", "--show-toplevel"]).rstrip(b"\n")))
    names = git_output(["diff", "--cached", "--name-only", "-z", "--no-renames", "--ignore-submodules=none"]).split(
        b"\0"
    )
    matcher = Matcher(state.base_of(os.environ))
    # git commits a link itself and not its target.
    return [
        requirement
        for name in names
        if name
        for requirement in matcher.of_path(os.fsdecode(name), top, follows_links=False)
    ]


def _pushed_requirements() -> list[Requirement]:
    """Return what the push needs; git lists the refs on standard input: LOCAL-REF LOCAL-ID REMOTE-REF REMOTE-ID."""
    content = b""
    while piece := os.read(0, 65_536):
        content += piece
    refs = [words[2] for line in os.fsdecode(content).splitlines() if len(words := line.split(" ")) == 4]  # noqa: PLR2004 - the four
    pushed = [ref.removeprefix(paths.HEADS) for ref in refs]
    # Empty if the remote is up to date: git runs the hook then too.
    return list(Matcher(state.base_of(os.environ)).of_push(pushed, os.getcwd())) if pushed else []


def git_output(arguments: list[str], folder: str | None = None) -> bytes:
    try:
        done = subprocess.run([GIT, *arguments], cwd=folder, capture_output=True, check=False)  # noqa: S603 - our words
    except OSError as error:
        raise GitError(f"git cannot be run: {error.strerror}") from None
    if done.returncode:
        words = plain(os.fsdecode(done.stderr).strip()) or f"exit code {done.returncode}"
        raise GitError(f"git {arguments[0]} failed: {words}")
    return done.stdout


def _decided(requirements: list[Requirement], base: str, environment: Mapping[str, str]) -> tuple[str, bool]:
    ancestors = host_registry.ancestors()
    found = owners_of_host(base, ancestors)
    remaining = requirements
    if len(found) > 1:
        # If the server is away, `settle` below meets that too and follows the rules' `when_away`.
        with suppress(UnavailableError, RefusedError):
            ours = {str(job.get("name")) for session in found.values() for job in jobs_of(session)}
            remaining = [requirement for requirement in requirements if requirement.job not in ours]
    if not remaining:
        return "", False
    if found:
        folder, session = next(iter(found.items()))
        owner, key = Owner(base, state.host_session_of(folder).partition("-")[0], ""), session.host
        owner.folder, owner.name = folder, session.owner
    else:
        key = next((each.key for each in ancestors if each.name == GIT), ancestors[0].key if ancestors else "")
        owner = Owner(base, GIT, key.replace(":", "-"))
        owner.name = environment.get("HOLDFAST_OWNER") or f"git:{_user()}@{os.uname().nodename}"
    claims = OwnerSession(base, owner, environment, remaining[0].rule.ttl_seconds, key)
    verdict = decision.decide_requirements(remaining, claims, base, owner=owner)
    return verdict.text, verdict.kind == REFUSE


def owners_of_host(base: str, ancestors: list[Process]) -> dict[str, Session]:
    """Return the sessions of hosts among these ancestors by folder, an agent before its subagents."""
    keys = {each.key for each in ancestors}
    found = [(folder, session) for folder, session in state.sessions(base).items()
             if session.host in keys and not state.host_session_of(folder).startswith(GIT + "-")]  # fmt: skip
    return dict(sorted(found, key=lambda each: os.path.basename(each[0]) != MAIN))


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def run() -> None:
    os._exit(main(sys.argv[3:]))
