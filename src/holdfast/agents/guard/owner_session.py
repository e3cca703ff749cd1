"""An owner's session and its claims: opened by the first check that needs it, renewed by a daemon.

Every claim is sent with `resume`: the server returns a lease that the owner has, grants a free job, or names the other
owner. So the server decides each check, and nothing here caches who has what.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from holdfast.agents.guard import host_registry, server, state
from holdfast.agents.guard.server import RefusedError, Server, UnavailableError
from holdfast.agents.guard.state import Owner, Session
from holdfast.client import minihttp
from holdfast.sanitize import plain

SECONDS_MAX = 20.0  # For all requests of one check: a host may let a call pass when its hook is too slow.
_TRIES = 5
_ENDED_STATUSES = frozenset({401, 404, 410})  # The HTTP statuses for the secret of an ended session.


class ClaimedJob:
    def __init__(self, job: str, fields: Mapping[str, object]) -> None:
        self.job, self.fields = job, fields


class UnavailableJob(ClaimedJob):
    """A job that another owner holds, or that is done or delayed."""


class OwnerSession:
    def __init__(
        self, base: str, owner: Owner, environment: Mapping[str, str], ttl_seconds: int, host: str = ""
    ) -> None:
        """`host` is the key of the process whose end also ends the session; by default the agent's host."""
        self._base, self._owner, self._environment, self._ttl_seconds = base, owner, environment, ttl_seconds
        self._host = host
        self._deadline = minihttp.deadline_in(SECONDS_MAX)
        self._session: Session | None = None

    def claim(self, jobs: Mapping[str, str]) -> list[ClaimedJob] | UnavailableJob:
        """Claim all jobs (job: purpose), or return one that is held. Raises `UnavailableError`, `RefusedError`."""
        if len(jobs) == 1:
            ((job, what),) = jobs.items()
            found = self._claim_one(job, what)
            return found if isinstance(found, UnavailableJob) else [found]
        for _ in range(_TRIES):
            ours = {str(each.get("name")) for each in jobs_of(self._session_or_open())}
            # Atomically: releasing a partial claim could release a job that a parallel call has resumed meanwhile.
            claimed = self._claim_together({job: what for job, what in jobs.items() if job not in ours})
            if isinstance(claimed, UnavailableJob):
                if claimed.fields.get("owner") == self._session_or_open().owner:
                    continue  # A parallel call of this agent has just claimed it.
                return claimed
            for job in sorted(ours & jobs.keys()):
                found = self._claim_one(job, jobs[job])
                if isinstance(found, UnavailableJob):
                    return found
                claimed.append(found)
            return claimed
        raise RefusedError("parallel calls of this agent changed its jobs too often; try again")

    def _session_or_open(self) -> Session:
        self._session = self._session or self.ensure()
        return self._session

    def _claim_one(self, job: str, what: str) -> ClaimedJob | UnavailableJob:
        status, reply = self._post_claim(f"/locks/{server.quoted(job)}/acquire", {"resume": True}, what)
        return ClaimedJob(job, reply) if _is_acquired(status, reply) else UnavailableJob(job, reply)

    def _claim_together(self, jobs: Mapping[str, str]) -> list[ClaimedJob] | UnavailableJob:
        if not jobs:
            return []
        status, reply = self._post_claim("/claims", {"all": list(jobs)}, next(iter(jobs.values())))
        is_acquired = _is_acquired(status, reply)
        entries = reply.get("claims" if is_acquired else "held")
        found = [each for each in entries if isinstance(each, dict)] if isinstance(entries, list) else []
        if is_acquired:
            return [ClaimedJob(str(each.get("name")), each) for each in found]
        fields = {**reply, **(found[0] if found else {})}
        return UnavailableJob(str(fields.get("name") or next(iter(jobs))), fields)

    def _post_claim(self, path: str, fields: Mapping[str, object], what: str) -> tuple[int, dict[str, object]]:
        """Send a claim in this owner's session, or in a new one if that has ended."""
        for _ in range(_TRIES):
            session = self._session_or_open()
            body = {
                "owner": session.owner,
                "ttl_seconds": int(session.ttl_seconds),
                "metadata": plain(f"guard={self._owner.host} for={what}"),
                **fields,
            }
            status, reply = _of(session).call("POST", path, body, seconds=self._seconds_left())
            # An unknown job is 404 too, so ask for the session itself.
            check = status in _ENDED_STATUSES and _of(session).call(
                "GET", f"/sessions/{session.id}", seconds=self._seconds_left()
            )
            if not check or check[0] not in _ENDED_STATUSES:
                return status, reply
            self._session = None
            with state.locked_with_session(self._base, self._owner.folder, session) as is_current:
                if is_current:
                    text = f"{self._owner.name}: its session is over; its jobs may have had other owners"
                    state.log(self._base, text)
                    os.unlink(self._owner.folder + "/session")
        raise RefusedError("its session ended again and again; look whether somebody ends it")

    def read_holder(self, job: str) -> UnavailableJob | None:
        """Return a job if another owner holds it, without claiming. Raises as `claim`."""
        session = state.read_session(self._owner.folder)
        status, reply = server.find(self._environment).call(
            "GET", f"/locks/{server.quoted(job)}", seconds=self._seconds_left()
        )
        if status != 200 or not isinstance(reply.get("status"), str):  # noqa: PLR2004 - without a status it is not free
            raise server.refusal(status, reply)
        is_ours = session is not None and reply.get("session") == session.id
        return UnavailableJob(job, reply) if reply.get("status") == "held" and not is_ours else None

    def link_problem(self, held: UnavailableJob) -> str:
        """Explain why a job that the agent's own MCP process may hold does not count as the agent's; else ""."""
        host = host_registry.proven_host(self._environment)
        if not host:
            return (
                "The hook does not see its host among its ancestors (a sandbox or PID namespace hides them), so claims"
                " through the MCP tools count as another owner's: release the job there with release_job first."
            )
        urls = host_registry.mcp_owners(self._base, host).get(str(held.fields.get("owner")))
        if urls is None:
            return ""
        ours = server.find(self._environment).urls
        if urls != ours:
            return (
                f"The MCP tools of this host process have it at {urls}, and the hooks use the server at {ours}: set the"
                " same HOLDFAST_URL for both."
            )
        if len(host_registry.host_sessions(self._base, host)) > 1:
            return f"The MCP tools of this host process have it, and {host_registry.SEVERAL_SESSIONS}."
        return "The MCP tools of this host process have it in a session of their own. Call release_job, then try again."

    def ensure(self) -> Session:
        """Return a session with a live daemon. Raises `UnavailableError`, `RefusedError` and `StateError`."""
        found = state.read_session(self._owner.folder)
        if found is not None and self._is_current(found) and state.is_daemon_alive(self._owner.folder):
            return found
        with state.locked(self._base, self._owner.folder):
            try:
                return self._ensure_locked()
            except BaseException:
                # Nothing else removes the folder of an owner without a session.
                if state.read_session(self._owner.folder) is None:
                    state.remove_folder(self._owner.folder)
                raise

    def _ensure_locked(self) -> Session:
        found = state.read_session(self._owner.folder)
        if found is not None and not self._is_of_server(found):
            try:
                end_session(found, self._seconds_left())
            except (UnavailableError, RefusedError) as error:
                state.log(self._base, f"{self._owner.name}: the session at {found.urls} was left to lapse: {error}")
            found = None
        if (
            found is not None
            and not state.is_daemon_alive(self._owner.folder)
            and renew(found, self._seconds_left()) is None
        ):
            state.log(self._base, f"{self._owner.name}: its keeper was gone and its session is over")
            found = None
        host = self._host or host_registry.host_key(self._environment)
        if not host:
            raise state.StateError(f"the host's process cannot be found; name it in {host_registry.VARIABLE}")
        if found is not None and found.host not in {"", host} and host_registry.is_alive(found.host):
            raise state.StateError(
                f"the same session runs in another process of the host (pid {found.host.partition(':')[0]}), and two"
                f" processes cannot be one owner; end one of them, or name its process in {host_registry.VARIABLE}"
            )
        session = found or self._join_mcp_session() or self._open_session()
        if session.host != host or found is None:
            session.host = host
            session.is_proven = any(process.key == host for process in host_registry.ancestors())
            state.write_private(self._owner.folder + "/session", session.fields())
        state.start_daemon(self._owner.folder, sys.executable)
        return session

    def _is_current(self, session: Session) -> bool:
        """Tell whether it belongs to this server and this host process; a restarted host has another one."""
        if not self._is_of_server(session):
            return False
        # Without /proc, running `ps` would cost more than the whole check; the daemon checks the host there.
        return not host_registry.HAS_PROC or session.host == (self._host or host_registry.host_key(self._environment))

    def _is_of_server(self, session: Session) -> bool:
        return (session.from_url, session.from_config) == server.found_by(self._environment)

    def _linked_host(self) -> str:
        """Return the host's key if this is its only agent, so that its MCP process is this agent's; else ""."""
        if self._owner.agent or self._host:
            return ""
        host = host_registry.proven_host(self._environment)
        return host if host and host_registry.host_sessions(self._base, host) <= {self._owner.host_session} else ""

    def _join_mcp_session(self) -> Session | None:
        """Return the live session of the agent's own MCP process on the same server, if there is one."""
        host = self._linked_host()
        session = host_registry.mcp_session(self._base, host) if host else None
        if (
            session is None
            or session.urls != server.find(self._environment).urls
            or host_registry.is_of_another_host(self._base, session.id, host)
            or renew(session, self._seconds_left()) is None
        ):
            return None
        session.from_url, session.from_config = server.found_by(self._environment)
        return session

    def _open_session(self) -> Session:
        from_url, from_config = server.found_by(self._environment)
        target = server.find(self._environment)
        host = self._linked_host()
        name = (host_registry.mcp_owner(self._base, host) if host else "") or self._owner.name
        body = {"ttl_seconds": self._ttl_seconds, "name": name}
        status, reply = target.call("POST", "/sessions", body, key=minihttp.fresh_key(), seconds=self._seconds_left())
        if status != 201 or not {"session_id", "session_secret"} <= reply.keys():  # noqa: PLR2004 - made
            raise server.refusal(status, reply)
        expires_in_ms = reply.get("expires_in_ms")
        ttl_seconds = expires_in_ms / 1_000 if isinstance(expires_in_ms, int) else self._ttl_seconds
        fields = {
            "id": reply["session_id"],
            "secret": reply["session_secret"],
            "owner": name,
            "ttl_seconds": ttl_seconds,
        }
        source = {"urls": target.urls, "ca_file": target.ca_file, "from_url": from_url, "from_config": from_config}
        return Session({**fields, **source, "host": "", "is_proven": False})

    def _seconds_left(self) -> float:
        seconds = minihttp.seconds_until(self._deadline)
        if seconds <= 0:
            raise UnavailableError("it took too long altogether")
        return min(seconds, minihttp.SECONDS_MAX)


def _is_acquired(status: int, reply: Mapping[str, object]) -> bool:
    if status == 200 and reply.get("status") == "acquired":  # noqa: PLR2004 - done
        return True
    if reply.get("status") in {"held", "delayed", "done"}:
        return False
    raise server.refusal(status, reply)


def _of(session: Session) -> Server:
    return Server(session.urls, "the session", session.ca_file, session.secret)


def renew(session: Session, seconds: float) -> float | None:
    """Renew a session with its claims; return its seconds left, or None if it has ended. Raises as `claim`."""
    status, reply = _of(session).call("POST", f"/sessions/{session.id}/renew-all", seconds=seconds)
    if status in _ENDED_STATUSES:
        return None
    expires_in_ms = reply.get("expires_in_ms")
    if status != 200 or not isinstance(expires_in_ms, int):  # noqa: PLR2004 - done
        raise server.refusal(status, reply)
    return expires_in_ms / 1_000


def end_session(session: Session, seconds: float = minihttp.SECONDS_MAX) -> None:
    _of(session).call("DELETE", f"/sessions/{session.id}", seconds=seconds)


def jobs_of(session: Session) -> list[Mapping[str, object]]:
    status, reply = _of(session).call("GET", f"/locks?session={session.id}")
    found = reply.get("locks")
    if status != 200 or not isinstance(found, list):  # noqa: PLR2004 - done
        raise server.refusal(status, reply)
    return [each for each in found if isinstance(each, dict)]


def detach_host(base: str, folder: str) -> Session | None:
    """Clear the host of an owner's session, so that its daemon ends it; return the session, if there is one."""
    session = state.read_session(folder)
    if session is not None:
        with state.locked(base, folder):
            found = state.read_session(folder)
            if found is not None and found.id == session.id:
                found.host = ""
                state.write_private(folder + "/session", found.fields())
    return session


def release(base: str, folder: str, seconds: float = minihttp.SECONDS_MAX) -> str:
    """End an owner's session and remove its folder; return the owner's name or "". Raises `UnavailableError`."""
    # Detached first: the daemon ends it if the server is unavailable or this process is killed midway.
    session = detach_host(base, folder)
    if session is None:
        return ""
    end_session(session, seconds)
    with state.locked_with_session(base, folder, session) as is_current:
        if is_current:
            state.remove_folder(folder)
    return session.owner
