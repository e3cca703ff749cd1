"""The costliest request of each kind, as large as the limits of a server allow. Each makes its own stage and clears it.

A function asks one request under a timer. What it prepares and what it clears away is not measured.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from benchmarks.in_process import InProcessServer, Timer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    CostlyRequest = Callable[[InProcessServer], Awaitable[float]]

MANY = 1_000
"""How many names a call may have."""
WAITERS = 12
STREAMS = 10
TTL = 3_600

_number = itertools.count()


def fresh(count: int = MANY) -> list[str]:
    """Return names that were never used."""
    run = next(_number)
    return [f"mine/{run}/{number:04d}" for number in range(count)]


async def claimed(server: InProcessServer, names: list[str], **more: object) -> list[dict[str, Any]]:
    """Claim all of these names."""
    reply = await server.ask("POST", "/claims", {"all": names, "ttl_seconds": TTL, **more})
    return list(reply["claims"])


async def give_back(server: InProcessServer, claims: list[dict[str, Any]]) -> None:
    """Release all of these claims."""
    for claim in claims:
        await server.answer("POST", f"/locks/{claim['name']}/release", {"lease_id": claim["lease_id"]})


async def _session(server: InProcessServer, names: list[str]) -> str:
    session: str = (await server.ask("POST", "/sessions", {"ttl_seconds": TTL}))["session_id"]
    await claimed(server, names, session_id=session, ephemeral=True)
    return session


async def claim(server: InProcessServer) -> float:
    """Claim a free name."""
    path = f"/locks/{fresh(1)[0]}"
    with Timer() as timer:
        got = await server.ask("POST", f"{path}/acquire", {"ttl_seconds": TTL, "owner": "me"}, key=path)
    await server.ask("POST", f"{path}/release", {"lease_id": got["lease_id"]})
    return timer.seconds


async def renew(server: InProcessServer) -> float:
    """Renew a claim."""
    path = f"/locks/{fresh(1)[0]}"
    got = await server.ask("POST", f"{path}/acquire", {"ttl_seconds": TTL})
    with Timer() as timer:
        await server.ask("POST", f"{path}/renew", {"lease_id": got["lease_id"], "keep_ttl": True})
    await server.ask("POST", f"{path}/release", {"lease_id": got["lease_id"]})
    return timer.seconds


async def claim_all(server: InProcessServer) -> float:
    """Claim all of 1,000 free names."""
    with Timer() as timer:
        claims = await claimed(server, fresh(), owner="me")
    await give_back(server, claims)
    return timer.seconds


async def claim_all_followed(server: InProcessServer) -> float:
    """Claim all of 1,000 free names while ten read /events."""
    for _ in range(STREAMS):
        server.follow()
    await server.drained()
    with Timer() as timer:
        claims = await claimed(server, fresh(), owner="me")
        await server.drained()
    await server.stop_following()
    await give_back(server, claims)
    return timer.seconds


async def wait_for_all(server: InProcessServer) -> float:
    """Wait for all of 1,000 names, of which the last is held and twelve wait for the same."""
    names = fresh()
    held = await claimed(server, names[-1:])
    await _line_up(server, names)
    with Timer() as timer:
        server.send("POST", "/claims", _waiting(names, "last"))
        await server.drained()
    await _clear_line(server)
    await give_back(server, held)
    return timer.seconds


async def claim_any(server: InProcessServer) -> float:
    """Claim any of 1,000 names that are all held."""
    names = fresh()
    held = await claimed(server, names)
    with Timer() as timer:
        await server.answer("POST", "/claims", {"any": names, "ttl_seconds": TTL})
    await give_back(server, held)
    return timer.seconds


async def release_for_all(server: InProcessServer) -> float:
    """Release one of two held names for which twelve wait, each for all of the same 1,000."""
    names = fresh()
    held = await claimed(server, [names[0], names[-1]])
    await _line_up(server, names)
    with Timer() as timer:
        await give_back(server, held[:1])
        await server.drained()
    await _clear_line(server)
    await give_back(server, held[1:])
    return timer.seconds


async def release_to_line(server: InProcessServer) -> float:
    """Release a name for which 1,000 wait."""
    _, held = await _with_a_line(server)
    with Timer() as timer:
        await give_back(server, held)
        await server.drained()
    await _clear_line(server)
    await _release_mine(server)
    return timer.seconds


async def _with_a_line(server: InProcessServer) -> tuple[str, list[dict[str, Any]]]:
    """Let 1,000 wait for a name. Return it, and who holds it."""
    (name,) = names = fresh(1)
    held = await claimed(server, names)
    for number in range(MANY):
        server.send("POST", f"/locks/{name}/acquire", {"ttl_seconds": TTL, "owner": f"w{number}", "wait_seconds": 50})
    await server.drained()
    return name, held


def _waiting(names: list[str], owner: str) -> dict[str, object]:
    return {"all": names, "ttl_seconds": TTL, "owner": owner, "wait_seconds": 50}


async def _line_up(server: InProcessServer, names: list[str]) -> None:
    for number in range(WAITERS):
        server.send("POST", "/claims", _waiting(names, f"w{number}"))
    await server.drained()


async def _clear_line(server: InProcessServer) -> None:
    tickets = server.api.engine.state.tickets
    for ticket_id in [each for each, ticket in tickets.items() if ticket.terms.principal == "me"]:
        await server.answer("DELETE", f"/tickets/{ticket_id}")


async def _release_mine(server: InProcessServer) -> None:
    state = server.api.engine.state
    for name in [*state.index.held.walk("mine/")]:
        lease = state.lease_of(name)
        if lease is not None:
            await server.answer("POST", f"/locks/{name}/release", {"lease_id": lease.lease_id})


async def end_session(server: InProcessServer) -> float:
    """End a session with 1,000 names."""
    session = await _session(server, fresh())
    with Timer() as timer:
        await server.answer("DELETE", f"/sessions/{session}")
    return timer.seconds


async def renew_all(server: InProcessServer) -> float:
    """Renew a session and its 1,000 names."""
    session = await _session(server, fresh())
    with Timer() as timer:
        await server.ask("POST", f"/sessions/{session}/renew-all")
    await server.answer("DELETE", f"/sessions/{session}")
    return timer.seconds


def listing(query: str) -> CostlyRequest:
    """Make the request for a list of 1,000 names of one's own, with this filter."""

    async def list_(server: InProcessServer) -> float:
        names = fresh()
        session = (await server.ask("POST", "/sessions", {"ttl_seconds": TTL}))["session_id"]
        held = await claimed(server, names, owner="me", labels={"mark": "mine"}, session_id=session)
        await server.answer("GET", "/locks?limit=1")
        with Timer() as timer:
            await server.ask("GET", f"/locks?{query.format(session=session, prefix=names[0][:-4], last=names[-2])}")
        await give_back(server, held)
        await server.answer("DELETE", f"/sessions/{session}")
        return timer.seconds

    return list_


async def list_after_change(server: InProcessServer) -> float:
    """List one name after another was claimed."""
    await server.ask("GET", "/locks?limit=1")
    held = await claimed(server, fresh(1))
    with Timer() as timer:
        await server.ask("GET", "/locks?limit=1")
    await give_back(server, held)
    return timer.seconds


async def history(server: InProcessServer) -> float:
    """Ask for the history of a name that was claimed once."""
    names = fresh(1)
    await give_back(server, await claimed(server, names))
    with Timer() as timer:
        await server.ask("GET", f"/locks/{names[0]}/history?limit=1000")
    return timer.seconds


async def why(server: InProcessServer) -> float:
    """Ask why a name cannot be had for which 1,000 wait."""
    name, held = await _with_a_line(server)
    with Timer() as timer:
        await server.ask("GET", f"/locks/{name}/why")
    await _clear_line(server)
    await give_back(server, held)
    return timer.seconds


async def retry(server: InProcessServer) -> float:
    """Ask again for a claim, with its key."""
    path, body = f"/locks/{fresh(1)[0]}", {"ttl_seconds": TTL, "owner": "me"}
    got = await server.ask("POST", f"{path}/acquire", body, key=path)
    with Timer() as timer:
        await server.ask("POST", f"{path}/acquire", body, key=path)
    await server.ask("POST", f"{path}/release", {"lease_id": got["lease_id"]})
    return timer.seconds


async def retry_ended_all(server: InProcessServer) -> float:
    """Ask again for all of 1,000 names, of which one's lease has ended."""
    body = {"all": fresh(), "ttl_seconds": TTL, "owner": "me"}
    key = f"again-{next(_number)}"
    claims = (await server.ask("POST", "/claims", body, key=key))["claims"]
    await give_back(server, claims[-1:])
    with Timer() as timer:
        await server.answer("POST", "/claims", body, key=key)
    await give_back(server, claims[:-1])
    return timer.seconds


async def list_tokens(server: InProcessServer) -> float:
    """List the tokens, of which one was made."""
    name = f"token-{next(_number)}"
    await server.ask("POST", "/tokens", {"name": name})
    with Timer() as timer:
        await server.ask("GET", "/tokens")
    await server.answer("DELETE", f"/tokens/{name}")
    return timer.seconds


async def revoke_token(server: InProcessServer) -> float:
    """Revoke a token."""
    name = f"token-{next(_number)}"
    await server.ask("POST", "/tokens", {"name": name})
    with Timer() as timer:
        await server.answer("DELETE", f"/tokens/{name}")
    return timer.seconds


REQUESTS: dict[str, CostlyRequest] = {
    "claim": claim,
    "renew": renew,
    "retry": retry,
    "retry of an ended all": retry_ended_all,
    "claim all": claim_all,
    "claim all, followed": claim_all_followed,
    "claim any, all held": claim_any,
    "wait for all": wait_for_all,
    "release to a line": release_to_line,
    "release to lines of all": release_for_all,
    "end session": end_session,
    "renew-all": renew_all,
    "list": listing("limit=1000"),
    "list, limit 1": listing("limit=1"),
    "list, after a change": list_after_change,
    "list, prefix": listing("limit=1000&prefix={prefix}"),
    "list, after": listing("limit=1000&after={last}"),
    "list, owner": listing("limit=1000&owner=me"),
    "list, session": listing("limit=1000&session={session}"),
    "list, label": listing("limit=1000&label=mark:mine"),
    "history": history,
    "why": why,
    "list tokens": list_tokens,
    "revoke token": revoke_token,
}
