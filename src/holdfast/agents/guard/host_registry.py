"""Link the two parts of one agent: the guard's hooks and `holdfast mcp`, both started by the same host process.

Both find the host among their ancestors as the kernel reports them (HOLDFAST_GUARD_HOST_PID must name one too), and
meet in the guard's state folder, which only this user can read.

A hook sees each call of a Holdfast tool before the MCP process does, with the host's session and agent id. It opens the
agent's Holdfast session and leaves a note of the call; the MCP process takes the note and acts in that session. If
hooks see no tool calls, the MCP process joins the session of the only agent under its host, and an agent that of the
only MCP process. With several host sessions in one process, calls cannot be told apart, so nothing is linked.

```text
hosts/PID+START+BOOT/     one host process; removed when it is gone
    session-HOST-SESSION  a host session that called a Holdfast tool
    call-NUMBER           a call that a hook has seen and no MCP process has served
    mcp-PID+START+BOOT    an MCP process: its owner name if one was given, and the session that it opened itself
```

A process's key has its PID, start time, boot and PID namespace, so that a reused PID is not the same process.

A host usually starts its hooks through `sh -c`, so the host is the nearest ancestor that is not such a shell.
`HOLDFAST_GUARD_HOST_PID` overrides this, for hosts whose launcher of hooks exits before the hook.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from holdfast.agents.guard import state
from holdfast.agents.guard.state import MAIN, Owner, Session

HOSTS = "hosts"
_SESSION, _CALL, _MCP = "session-", "call-", "mcp-"
CALLS_MAX = 200  # Unserved calls, for instance denied by a person; the oldest are removed.
AMBIGUOUS_SECONDS = 10.0  # How long an ambiguity also refuses the other calls involved.
_OWNER_PARTS = 3
TOOLS = frozenset(
    {"claim_job", "wait_for_job", "heartbeat_job", "release_job", "get_job_owner", "list_claimed_jobs", "my_jobs"}
)
CLAIM_TOOLS = frozenset({"claim_job", "wait_for_job"})
READ_TOOLS = frozenset({"get_job_owner", "list_claimed_jobs"})
SEVERAL_SESSIONS = (
    "several sessions run in one host process, so calls of the MCP tools cannot be assigned to one of them. Run each"
    " session in a host process of its own, or end the others; `holdfast guard status` lists them and `holdfast guard"
    " release --owner NAME` forgets one"
)


class AmbiguousCallError(Exception):
    """Two agents made the same call at the same time."""


class UnseenCallError(Exception):
    """Hooks see the calls of this host, and have not seen this one."""


def tool_of(name: str) -> str:
    """Return the Holdfast tool in a host's tool name such as `mcp__holdfast__claim_job`; "" for any other."""
    return next((each for each in TOOLS if name == each or name.endswith(("_" + each, ":" + each))), "")


def subject_of(arguments: Mapping[str, object]) -> str:
    """Return the job or jobs of a call, which identify it among calls of the same tool."""
    jobs = arguments.get("any_of")
    return "\n".join(map(str, jobs)) if isinstance(jobs, list) else str(arguments.get("job") or "")


def _folder(base: str, host_key: str) -> str:
    return f"{base}/{HOSTS}/{host_key.replace(':', '+')}"


def _folders(base: str) -> list[str]:
    return [f"{base}/{HOSTS}/{name}" for name in state.names_in(f"{base}/{HOSTS}")]


def _entries(folder: str, kind: str) -> list[str]:
    return [name.removeprefix(kind) for name in state.names_in(folder) if name.startswith(kind)]


def _ensure_folder(base: str, host_key: str) -> str:
    folder = _folder(base, host_key)
    if not os.path.isdir(folder):
        _remove_dead(base)
        state.make_folder(base, folder)
    return folder


def _remove_dead(base: str) -> None:
    for folder in _folders(base):
        host_key = os.path.basename(folder).replace("+", ":")
        if can_judge(host_key) and not is_alive(host_key):
            with suppress(OSError):
                for each in state.names_in(folder):
                    with suppress(OSError):
                        os.unlink(f"{folder}/{each}")
                os.rmdir(folder)


# --- Host sessions and their calls ------------------------------------------------------------------------------------


def record_call(base: str, host_key: str, owner: Owner, *, tool: str, subject: str, use: str = "") -> None:
    """Note a call that the MCP process is about to receive, once per `use`. Raises `StateError`."""
    folder = _ensure_folder(base, host_key)
    call = {"owner": [owner.host, owner.session, owner.agent], "tool": tool, "subject": subject, "use": use}
    with state.locked(base, folder):
        state.write_private(f"{folder}/{_SESSION}{owner.host_session}", {})
        calls = _calls(folder)
        if use and any(state.read_object(f"{folder}/{_CALL}{number}") == call for number in calls):
            return  # Two hooks are registered for one event.
        for number in calls[: max(0, len(calls) - CALLS_MAX + 1)]:
            os.unlink(f"{folder}/{_CALL}{number}")
        state.write_private(f"{folder}/{_CALL}{(calls or [0])[-1] + 1}", call)


def _calls(folder: str) -> list[int]:
    return sorted(int(number) for number in _entries(folder, _CALL) if number.isdecimal())


def sees_calls(base: str, host_key: str) -> bool:
    return bool(_entries(_folder(base, host_key), _SESSION))


def take_call(base: str, host_key: str, tool: str, subject: str) -> Owner | None:
    """Remove a call's note and return the caller; None if hooks see no calls under this host.

    Raises `AmbiguousCallError`, also for each call involved in an earlier one, and `UnseenCallError` for a call without
    a note.
    """
    if not sees_calls(base, host_key):
        return None
    folder = _folder(base, host_key)
    with state.locked(base, folder):
        same: list[tuple[str, tuple[str, ...]]] = []
        for number in _calls(folder):
            file = f"{folder}/{_CALL}{number}"
            call = state.read_object(file)
            if (call.get("tool"), call.get("subject")) != (tool, subject):
                continue
            if state.now() > float(str(call.get("until", state.now()))):
                os.unlink(file)
                continue
            owner = call.get("owner")
            same.append((file, tuple(map(str, owner)) if isinstance(owner, list) else ()))
        if not same:
            raise UnseenCallError
        os.unlink(same[0][0])
        if len({owner for _, owner in same}) == 1 and len(same[0][1]) == _OWNER_PARTS:
            return Owner(base, *same[0][1])
        # The other calls are refused too: each belongs to one of the same agents, and it is unknown which.
        refused = {"owner": [], "tool": tool, "subject": subject, "until": state.now() + AMBIGUOUS_SECONDS}
        for file, _ in same[1:]:
            state.write_private(file, refused)
    raise AmbiguousCallError


def host_sessions(base: str, host_key: str) -> set[str]:
    """Return the sessions of a host process that use Holdfast, each as HOST-SESSION."""
    sessions = state.sessions(base).items()
    proven = (folder for folder, session in sessions if session.host == host_key and session.is_proven)
    return {*_entries(_folder(base, host_key), _SESSION), *(state.host_session_of(folder) for folder in proven)}


def all_sessions(base: str) -> set[str]:
    """Return all live host sessions that called a Holdfast tool, each as HOST-SESSION."""
    _remove_dead(base)
    return {name for folder in _folders(base) for name in _entries(folder, _SESSION)}


def is_of_another_host(base: str, session_id: str, host_key: str) -> bool:
    found = (each.host for each in state.sessions(base).values() if each.id == session_id)
    return any(host != host_key and is_alive(host) for host in found)


def forget_session(base: str, name: str) -> None:
    """Remove the traces of an ended host session (HOST-SESSION), except for its owners' own folders."""
    for folder in _folders(base):
        with suppress(OSError):
            os.unlink(f"{folder}/{_SESSION}{name}")
        for number in _calls(folder):
            owner = state.read_object(f"{folder}/{_CALL}{number}").get("owner")
            if isinstance(owner, list) and len(owner) > 1 and Owner(base, *map(str, owner[:2])).host_session == name:
                with suppress(OSError):
                    os.unlink(f"{folder}/{_CALL}{number}")


def main_folder(base: str, host_key: str) -> str:
    """Return the owner folder of a host's only agent; "" if there is none, or more than one."""
    found = host_sessions(base, host_key)
    return f"{base}/{state.OWNERS}/{found.pop()}/{MAIN}" if len(found) == 1 else ""


# --- MCP processes ----------------------------------------------------------------------------------------------------


class Registration:
    def __init__(self, base: str, host_key: str, process: str, owner: str) -> None:
        """Register the MCP process `process` under a host, with a given owner name. Raises `StateError`."""
        self._base, self._host_key, self._owner = base, host_key, owner
        self._file = f"{_ensure_folder(base, host_key)}/{_MCP}{process.replace(':', '+')}"
        self.publish(None)

    def publish(self, session: Session | None) -> None:
        """Publish the session that this process opened, for the guard to join. Raises `StateError`."""
        fields = session.fields() if session is not None else None
        state.write_private(self._file, {"owner": self._owner, "session": fields})

    def close(self) -> None:
        with suppress(OSError):
            os.unlink(self._file)
            os.rmdir(os.path.dirname(self._file))  # Only if nothing else is in it.

    def is_used_by_others(self, session_id: str) -> bool:
        entries = _registrations(self._base, self._host_key).items()
        return any(file != self._file and session is not None and session.id == session_id
                   for file, (_, session) in entries)  # fmt: skip


def _registrations(base: str, host_key: str) -> dict[str, tuple[str, Session | None]]:
    """Return owner name and session of a host's live MCP processes, by file."""
    found = {}
    for name in _entries(_folder(base, host_key), _MCP):
        if is_alive(name.replace("+", ":")):
            file = f"{_folder(base, host_key)}/{_MCP}{name}"
            entry = state.read_object(file)
            fields = entry.get("session")
            session = state.session_of(fields) if isinstance(fields, dict) else None
            found[file] = str(entry.get("owner") or ""), session
    return found


def mcp_owners(base: str, host_key: str) -> dict[str, str]:
    """Return the server URLs of sessions that a host's MCP processes opened themselves, by owner name."""
    return {
        session.owner: session.urls for _, session in _registrations(base, host_key).values() if session is not None
    }


def mcp_session(base: str, host_key: str) -> Session | None:
    """Return the session that a host's MCP processes opened, for the guard to join; None unless it is only one."""
    found = [session for _, session in _registrations(base, host_key).values() if session is not None]
    return found[0] if len(found) == 1 else None


def mcp_owner(base: str, host_key: str) -> str:
    """Return the owner name given to a host's MCP process; "" if there is none, or several differ."""
    names = {owner for owner, _ in _registrations(base, host_key).values()} - {""}
    return names.pop() if len(names) == 1 else ""


VARIABLE = "HOLDFAST_GUARD_HOST_PID"
_ABOVE_MAX = 64
_LAUNCHERS = frozenset({"env", "timeout", "nice", "setsid", "uv", "uvx", "pipx"})
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash", "fish"})
HAS_PROC = os.path.exists("/proc/self/stat")


class Process:
    def __init__(self, key: str, parent: int, words: list[str]) -> None:
        self.key, self.parent = key, parent
        self.name = os.path.basename(words[0]).lstrip("-") if words else ""
        runs_script = any(word[:1] == "-" and "c" in word and word[:2] != "--" for word in words[1:3])
        # Started only to start another program: a shell with `-c`, `env` and so on.
        self.is_launcher = self.name in _LAUNCHERS or (self.name in _SHELLS and runs_script)


def read_process(pid: int) -> Process | None:
    """Read a process; None if there is none, or it is a zombie."""
    return _in_proc(pid) if HAS_PROC else _by_ps(pid)


def _in_proc(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as opened:
            # The name is in parentheses and may contain any character.
            fields = opened.read().rpartition(b")")[2].split()
        with open(f"/proc/{pid}/cmdline", "rb") as opened:
            words = opened.read(65_536).split(b"\0")
    except OSError:
        return None
    state, parent, start = fields[0], int(fields[1]), fields[19].decode()
    if state in {b"Z", b"X"}:
        return None
    return Process(f"{pid}:{start}:{_boot()}", parent, [os.fsdecode(word) for word in words])


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as opened:
            return f"{opened.read().strip()}.{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def can_judge(key: str) -> bool:
    """Tell whether `is_alive` is reliable here: not for a process of this boot in another PID namespace."""
    boot_id, _, namespace = key.rpartition(":")[2].partition(".")
    here_id, _, here_namespace = (_boot() if HAS_PROC else "").partition(".")
    return boot_id != here_id or namespace == here_namespace


def _by_ps(pid: int) -> Process | None:
    import subprocess

    done = subprocess.run(  # noqa: S603 - a number is all that varies
        ["ps", "-o", "stat=,ppid=,lstart=,command=", "-p", str(pid)],  # noqa: S607 - where it is differs
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
    )
    words = done.stdout.split()
    if len(words) < 8 or words[0].startswith("Z"):  # noqa: PLR2004 - state, parent, the five words of a date, a program
        return None
    return Process(f"{pid}:{'-'.join(words[2:7])}:", int(words[1]), words[7:])


def is_alive(key: str) -> bool:
    pid = key.partition(":")[0]
    return pid.isdecimal() and process_key(int(pid)) == key


def ancestors() -> list[Process]:
    found: list[Process] = []
    pid = os.getppid()
    while pid > 0 and len(found) < _ABOVE_MAX and (process := read_process(pid)):
        found.append(process)
        pid = process.parent
    return found


def host_key(environment: Mapping[str, str]) -> str:
    named = environment.get(VARIABLE, "")
    if named.isdecimal():
        return process_key(int(named))
    return next((process.key for process in ancestors() if not process.is_launcher), "")


def process_key(pid: int) -> str:
    process = read_process(pid)
    return process.key if process else ""


def proven_host(environment: Mapping[str, str]) -> str:
    """Return the host's key if the kernel shows it among our ancestors; else ""."""
    key = host_key(environment)
    return key if any(process.key == key for process in ancestors()) else ""
