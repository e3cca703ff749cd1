"""`holdfast guard hook --host HOST`: reads an event from standard input and answers in the host's own format.

On any failure, a call that could fall under a rule is refused. Hosts treat every exit code but 0 and 2 as a broken hook
and continue, so this program exits with those two alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from holdfast.agents.guard import decision, host_registry, hosts, owner_session, paths, state
from holdfast.agents.guard.decision import Verdict
from holdfast.agents.guard.hosts import (
    AFTER,
    AGENT_ENDS,
    BEFORE,
    PASS,
    REFUSE,
    SESSION_ENDS,
    TURN_ENDS,
    BadInputError,
    Event,
)
from holdfast.agents.guard.rules import TURN, BrokenRulesError, Rules
from holdfast.agents.guard.server import RefusedError, UnavailableError
from holdfast.agents.guard.state import Owner, StateError

INPUT_BYTES_MAX = 64 * 1024 * 1024
USAGE = f"usage: holdfast guard hook --host {'|'.join(hosts.HOSTS)}"
TTL_SECONDS = 60  # For sessions without a rule file.
_END_SECONDS_MAX = 1.0  # Hosts barely wait for hooks at the end of a session; Claude Code waits 1.5 s.


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--host"]:
        arguments = ["--host=" + " ".join(arguments[1:])]
    host = arguments[0].removeprefix("--host=") if len(arguments) == 1 else ""
    if host not in hosts.HOSTS:
        _write(2, USAGE + "\n")
        return hosts.BLOCKED
    name = ""
    try:
        content = _read_input()
        base = state.base_of(os.environ)
        fields: Mapping[str, object] = {}
        try:
            fields = hosts.parsed(content)
            name = str(fields.get("hook_event_name", ""))
            event = Event(host, fields)
        except BadInputError as error:
            verdict = _bad_input_verdict(str(error), fields.get("cwd"))
        else:
            verdict = _handle(event, base, os.environ)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - Python's own exit code would let the call pass
        verdict = Verdict(REFUSE, f"unexpected {type(error).__name__}: {error}; nothing passes. Please report this")
    if verdict.kind == REFUSE and hosts.is_notification(name):
        # Notifications cannot be refused: refusing the end of a turn would keep the agent from ending it.
        state.log(state.base_of(os.environ), f"at {name}: {verdict.text}")
        verdict = Verdict(PASS)
    text = f"holdfast guard: {verdict.text}" if verdict.text else ""
    code, output, errors = hosts.render_verdict(host, name, verdict.kind, text)
    _write(1, output)
    _write(2, errors)
    return code


def _handle(event: Event, base: str, environment: Mapping[str, str]) -> Verdict:
    owner = Owner(base, event.host, event.session, event.agent)
    if event.kind == BEFORE:
        verdict = decision.decide(event, owner, base, environment)
        tool = host_registry.tool_of(event.tool)
        return (
            _prepare_mcp_call(event, owner, base, environment, tool) or verdict
            if tool and verdict.kind != REFUSE
            else verdict
        )
    try:
        if event.kind == AFTER and event.use_id:
            decision.record_consent(base, owner.folder, call=event.use_id)
        elif event.kind == SESSION_ENDS or (event.kind == AGENT_ENDS and event.agent):
            if event.kind == SESSION_ENDS:
                host_registry.forget_session(base, owner.host_session)
            _release(base, owner, all_agents=event.kind == SESSION_ENDS)
        elif event.kind == TURN_ENDS and any(rules.release == TURN for rules in _rules(event, base)):
            _release(base, owner, all_agents=False)
    except (UnavailableError, RefusedError, StateError) as error:
        state.log(base, f"{owner.name}: not released at {event.name}: {error}; its keeper goes on trying")
    return Verdict(PASS)


def _prepare_mcp_call(
    event: Event, owner: Owner, base: str, environment: Mapping[str, str], tool: str
) -> Verdict | None:
    """Note the call for the MCP process, and open the session it claims in; return a refusal if that fails."""
    host = host_registry.proven_host(environment)
    if not host:
        return None  # Not linked; the refusal of an edit explains it.
    try:
        subject = host_registry.subject_of(event.arguments)
        host_registry.record_call(base, host, owner, tool=tool, subject=subject, use=event.use_id)
        if tool in host_registry.CLAIM_TOOLS and len(host_registry.host_sessions(base, host)) == 1:
            ttl_seconds = min((rules.ttl_seconds for rules in _rules(event, base)), default=TTL_SECONDS)
            owner_session.OwnerSession(base, owner, environment, ttl_seconds).ensure()
    except StateError as error:
        return Verdict(REFUSE, f"the MCP tools would not know which agent makes this call: {error}")
    except (UnavailableError, RefusedError) as error:
        state.log(base, f"{owner.name}: no session for {tool}: {error}")  # The tool itself reports it to the agent.
    return None


def _rules(event: Event, base: str) -> list[Rules]:
    try:
        return decision.Matcher(base).rules_around(event.cwd)
    except BrokenRulesError:
        return []


def _release(base: str, owner: Owner, *, all_agents: bool) -> None:
    folders = [owner.folder]
    if all_agents:
        folders = [each for each in state.owner_folders(base) if state.host_session_of(each) == owner.host_session]
    for folder in folders:  # All of them first: their daemons end the sessions if the server does not answer.
        owner_session.detach_host(base, folder)
    for folder in folders:
        owner_session.release(base, folder, _END_SECONDS_MAX)


def _bad_input_verdict(problem: str, cwd: object) -> Verdict:
    """Refuse unreadable input wherever a rule file could apply."""
    folders = [os.getcwd(), *([cwd] if isinstance(cwd, str) and os.path.isabs(cwd) and "\0" not in cwd else [])]
    if not any(paths.rule_files_above(os.path.join(os.path.realpath(folder), ".")) for folder in folders):
        return Verdict(PASS)
    return Verdict(REFUSE, f"what the host sent cannot be used: {problem}. Look whether --host names the right host")


def _read_input() -> bytes:
    content = bytearray()
    while len(content) <= INPUT_BYTES_MAX and (piece := os.read(0, 1 << 20)):
        content += piece
    return bytes(content) if len(content) <= INPUT_BYTES_MAX else b""  # Invalid, so it is refused.


def _write(descriptor: int, text: str) -> None:
    data = text.encode("utf-8", "backslashreplace")
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        return


def run() -> None:
    # Everything is written, so skip the interpreter's cleanup.
    os._exit(main(sys.argv[3:]))
