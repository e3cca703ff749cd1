"""What is asked of a server whose data directory will be kept: every kind of record, and questions to ask it later.

Everything is asked as a request of HTTP, so that nothing here needs to know how the program is built. A new kind
of record needs a request in `everything`, a new promise a question in `questions`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

from holdfast.api.router import Routes
from holdfast.http.messages import request_from

OPERATOR = "operator-of-what-is-kept"
GONE_SECONDS = 75
"""Longer than a place in line outlives its holder, and than anything is remembered."""
VOLATILE = frozenset(
    {
        "available_at",
        "expires_at",
        "expires_in_ms",
        "last_used",
        "remembered_for_ms",
        "renew_after_ms",
        "request_id",
        "retry_after_ms",
        "waited_ms",
    }
)
"""What an answer says of the time at which it is given."""
WORDING = frozenset({"details", "error", "shown_as"})
"""What an answer says to people, in words that may get better. Its code stays."""
VOLATILE_IF_NEW = frozenset({"at", "claimed_at", "last_heartbeat_at"})
"""The same, where the request itself changed something."""

Plain = Any
"""Whatever JSON can say."""


# Asking a server.


class World:
    """A server on a data directory, and ways to ask it."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes

    async def ask(
        self, method: str, path: str, body: Plain = None, *, token: str = OPERATOR, key: str | None = None
    ) -> tuple[int, Plain]:
        """Send a request, and return the status and what the body says."""
        headers = {b"authorization": f"Bearer {token}".encode(), b"content-type": b"application/json"}
        if key is not None:
            headers[b"idempotency-key"] = key.encode()
        path, _, query = path.partition("?")
        content = b"" if body is None else json.dumps(body).encode()
        answered = asyncio.get_running_loop().create_future()
        request = request_from(method.encode(), path.encode(), query.encode(), headers, content)
        self._routes.handle(request, lambda *answer: answered.set_result(answer))
        _, status, text, _ = await answered
        return status, json.loads(text) if text else None

    async def requested(self, method: str, path: str, body: Plain = None, **how: str) -> Plain:
        """Send a request that must succeed, and return what the body says."""
        status, answer = await self.ask(method, path, body, **how)
        if status >= 300:
            raise RuntimeError(f"{method} {path}: {status} {answer}")
        return answer

    async def acquire(self, name: str, *, token: str, key: str | None = None, **body: Plain) -> Plain:
        """Claim a name; held and waiting are answers too."""
        how = {"token": token} if key is None else {"token": token, "key": key}
        return await self.requested("POST", f"/locks/{_in_path(name)}/acquire", body, **how)

    async def verb(self, verb: str, name: str, *, token: str, key: str | None = None, **body: Plain) -> Plain:
        """Do something to a name."""
        how = {"token": token} if key is None else {"token": token, "key": key}
        return await self.requested("POST", f"/locks/{_in_path(name)}/{verb}", body, **how)


def _in_path(name: str) -> str:
    return name.replace("/", "%2F")


# Every kind of record.


async def everything(world: World, p: str) -> dict[str, Plain]:
    """Let every kind of record be written, for names that begin with `p`, and leave something of every kind alive."""
    worker, other = [
        (await world.requested("POST", "/tokens", {"name": f"{p}-{who}"}, key=f"{p}-token-{who}"))["token"]
        for who in ("worker", "other")
    ]
    await _forgotten(world, p, worker, other)
    await asyncio.sleep(GONE_SECONDS)
    await _ends(world, p, worker)
    await _queues(world, p, worker, other)
    sessions = await _sessions(world, p, worker, other)
    live = await _surviving(world, p, worker, other)
    return {"worker": worker, "other": other, **sessions, **live}


async def _forgotten(world: World, p: str, worker: str, other: str) -> None:
    """Let leases, sessions and places in line end by themselves, and let what is remembered of them be forgotten."""
    marked: dict[str, Any] = {"labels": {"team": "infra", "pr": "1842"}}
    lease = await world.acquire(f"{p}/expires", token=worker, key=f"{p}-expires", owner="ana", ttl_seconds=5, **marked)
    await world.verb("renew", f"{p}/expires", token=worker, lease_id=lease["lease_id"], ttl_seconds=6, note="half")
    await world.acquire(f"{p}/stays", token=worker, owner="ana", ttl_seconds=86_400)
    faded = await world.acquire(f"{p}/faded", token=worker, owner="ana", ttl_seconds=60)
    ending = {"lease_id": faded["lease_id"], "outcome": "done", "remember_seconds": 1, "result": "merged"}
    await world.verb("release", f"{p}/faded", token=worker, **ending)
    session = await world.requested("POST", "/sessions", {"ttl_seconds": 10}, token=other, key=f"{p}-lapses")
    bound = {"session_id": session["session_id"], "ephemeral": True, "ttl_seconds": 600, "owner": "bea"}
    await world.acquire(f"{p}/bound", token=other, **bound)
    await world.acquire(f"{p}/stays", token=other, wait_seconds=0.5, **bound)
    ticket = {"owner": "cleo", "ttl_seconds": 60, "wait_seconds": 0.5, **marked}
    await world.acquire(f"{p}/stays", token=other, key=f"{p}-gone", **ticket)
    for number in range(6):
        short = await world.acquire(f"{p}/short-{number}", token=worker, key=f"{p}-short-{number}", ttl_seconds=60)
        await world.verb(
            "release", f"{p}/short-{number}", token=worker, lease_id=short["lease_id"], key=f"{p}-short-end-{number}"
        )


async def _ends(world: World, p: str, worker: str) -> None:
    """Let leases end in every way that somebody can ask for."""
    failed = await world.acquire(f"{p}/failed", token=worker, owner="ana", ttl_seconds=60)
    await world.verb("release", f"{p}/failed", token=worker, lease_id=failed["lease_id"], outcome="failed")
    revoked = await world.acquire(f"{p}/revoked", token=worker, owner="ana", ttl_seconds=60)
    await world.verb("renew", f"{p}/revoked", token=worker, lease_id=revoked["lease_id"], ttl_seconds=60, note="alive")
    await world.verb("revoke", f"{p}/revoked", token=OPERATOR, reason="the disk is full", key=f"{p}-revoke")
    again = await world.acquire(f"{p}/reopened", token=worker, owner="ana", ttl_seconds=60)
    await world.verb(
        "release",
        f"{p}/reopened",
        token=worker,
        lease_id=again["lease_id"],
        outcome="done",
        remember_seconds=86_400,
        result="too early",
    )
    await world.verb("reopen", f"{p}/reopened", token=OPERATOR, reason="it was wrong", key=f"{p}-reopen")
    guest = {"name": f"{p}-guest", "scopes": ["read"], "prefix": f"{p}/", "expires_in_seconds": 3600}
    await world.requested("POST", "/tokens", guest, key=f"{p}-token-guest")
    await world.requested("POST", "/tokens", {"name": f"{p}-out"})
    await world.requested("DELETE", f"/tokens/{p}-out", key=f"{p}-token-out")


async def _queues(world: World, p: str, worker: str, other: str) -> None:
    """Let places in line end in every way: granted, withdrawn, refused, answered by finished work, in a circle."""
    first = await world.acquire(f"{p}/one", token=worker, ttl_seconds=600)
    second = await world.acquire(f"{p}/two", token=worker, ttl_seconds=600)
    one = asyncio.create_task(
        world.acquire(f"{p}/one", token=other, owner="bea", ttl_seconds=600, wait_seconds=20, key=f"{p}-in-turn")
    )
    await asyncio.sleep(0.1)
    await world.verb("release", f"{p}/one", token=worker, lease_id=first["lease_id"])
    granted = await one
    both = asyncio.create_task(
        world.requested(
            "POST",
            "/claims",
            {"all": [f"{p}/one", f"{p}/two"], "owner": "cleo", "ttl_seconds": 600, "wait_seconds": 20},
            token=worker,
            key=f"{p}-both-in-turn",
        )
    )
    await asyncio.sleep(0.1)
    await world.verb("release", f"{p}/one", token=other, lease_id=granted["lease_id"])
    await world.verb("release", f"{p}/two", token=worker, lease_id=second["lease_id"])
    await both
    dora = {"owner": "dora", "ttl_seconds": 60, "wait_seconds": 0.5}
    await world.acquire(f"{p}/one", token=other, key=f"{p}-had-the-place", **dora)
    ticket = await world.acquire(f"{p}/one", token=other, key=f"{p}-has-the-place", **dora)
    await world.requested("DELETE", f"/tickets/{ticket['ticket']}", token=other)
    await _ended_with_its_token(world, p, worker)
    await _done_while_queued(world, p, worker, other)
    await _cycle(world, p, worker)


async def _ended_with_its_token(world: World, p: str, worker: str) -> None:
    """Let a token be revoked, and one be replaced, while they have sessions and wait in line."""
    held = await world.acquire(f"{p}/refused", token=worker, ttl_seconds=60)
    token = (await world.requested("POST", "/tokens", {"name": f"{p}-late"}))["token"]
    session = await world.requested("POST", "/sessions", {"ttl_seconds": 600}, token=token)
    await world.acquire(f"{p}/late", token=session["session_secret"], ttl_seconds=600)
    waits = asyncio.create_task(
        world.ask("POST", f"/locks/{p}%2Frefused/acquire", {"ttl_seconds": 60, "wait_seconds": 20}, token=token)
    )
    await asyncio.sleep(0.1)
    await world.requested("DELETE", f"/tokens/{p}-late")
    await waits
    await world.verb("release", f"{p}/refused", token=worker, lease_id=held["lease_id"])
    token = (await world.requested("POST", "/tokens", {"name": f"{p}-turned", "prefix": f"{p}/"}))["token"]
    await world.requested("POST", "/sessions", {"ttl_seconds": 86_400, "name": "turned"}, token=token)
    body = {"keep_sessions": True, "expires_in_seconds": 86_400}
    await world.requested("POST", f"/tokens/{p}-turned/rotate", body, key=f"{p}-token-turned")


async def _done_while_queued(world: World, p: str, worker: str, other: str) -> None:
    """Let work be finished while one waits who takes that for an answer, and one who would do it again."""
    held = await world.acquire(f"{p}/done", token=worker, owner="ana", ttl_seconds=60)
    await world.acquire(f"{p}/done", token=other, owner="bea", ttl_seconds=60, wait_seconds=0.5)
    await world.verb(
        "release",
        f"{p}/done",
        token=worker,
        lease_id=held["lease_id"],
        outcome="done",
        remember_seconds=86_400,
        result="42 pages",
        key=f"{p}-done",
    )
    redone = await world.acquire(f"{p}/redone", token=worker, ttl_seconds=60)
    redo = asyncio.create_task(
        world.acquire(
            f"{p}/redone", token=other, owner="bea", redo=True, metadata="again", ttl_seconds=900, wait_seconds=20
        )
    )
    await asyncio.sleep(0.1)
    await world.verb(
        "release", f"{p}/redone", token=worker, lease_id=redone["lease_id"], outcome="done", remember_seconds=600
    )
    await redo


async def _cycle(world: World, p: str, worker: str) -> None:
    """Let one come back to its place in line and find that it would close a circle."""
    await world.acquire(f"{p}/left-hand", token=worker, owner="eva", ttl_seconds=600)
    await world.acquire(f"{p}/right-hand", token=worker, owner="fay", ttl_seconds=600)
    ticket = await world.acquire(f"{p}/right-hand", token=worker, owner="eva", ttl_seconds=600, wait_seconds=0.5)
    waits = asyncio.create_task(
        world.acquire(f"{p}/left-hand", token=worker, owner="fay", ttl_seconds=600, wait_seconds=2)
    )
    await asyncio.sleep(0.1)
    body = {"owner": "eva", "ttl_seconds": 600, "wait_seconds": 2, "ticket": ticket["ticket"]}
    await world.ask("POST", f"/locks/{p}%2Fright-hand/acquire", body, token=worker)
    await world.requested("DELETE", f"/tickets/{(await waits)['ticket']}", token=worker)


async def _sessions(world: World, p: str, worker: str, other: str) -> dict[str, Plain]:
    """Let a session end with all that is its own, and leave another alive."""
    ended = await world.requested(
        "POST", "/sessions", {"ttl_seconds": 600, "name": "ends"}, token=worker, key=f"{p}-session-ends"
    )
    bound = {"session_id": ended["session_id"], "ephemeral": True, "ttl_seconds": 600, "owner": "gil"}
    await world.acquire(f"{p}/ends-with", token=worker, lock_delay_seconds=1, **bound)
    await world.acquire(f"{p}/stays", token=worker, wait_seconds=0.5, **bound)
    await world.requested("DELETE", f"/sessions/{ended['session_id']}", token=worker, key=f"{p}-session-end")
    body = {"ttl_seconds": 86_400, "name": "night run", "metadata": "shift 3"}
    session = await world.requested("POST", "/sessions", body, token=other, key=f"{p}-session")
    await world.acquire(f"{p}/in-session", token=session["session_secret"], owner="hal", ttl_seconds=600)
    again = {"token": session["session_secret"], "key": f"{p}-in-session", "resume": True}
    await world.acquire(f"{p}/in-session", owner="hal", ttl_seconds=600, **again)
    taken_up = await world.acquire(f"{p}/taken-up", token=other, owner="hal", ttl_seconds=600)
    lease = {"token": other, "lease_id": taken_up["lease_id"]}
    await world.verb("renew", f"{p}/taken-up", keep_ttl=True, note="page 3", **lease)
    await world.verb("transfer", f"{p}/taken-up", to_owner="ivy", **lease)
    secret = session["session_secret"]
    await world.acquire(f"{p}/taken-up", token=secret, owner="ivy", resume=True, ttl_seconds=600)
    counted = {"session_id": session["session_id"], "ttl_seconds": 86_400}
    await world.acquire(f"{p}/counted", token=other, **counted)
    await world.requested("POST", f"/sessions/{session['session_id']}/keepalive", token=other)
    await world.requested("POST", f"/sessions/{session['session_id']}/renew-all", token=other)
    return {"session": session["session_id"], "secret": session["session_secret"]}


async def _surviving(world: World, p: str, worker: str, other: str) -> dict[str, Plain]:
    """Leave behind leases, places in line, a closed name, and keys that a retry may come with."""
    day: dict[str, Any] = {"ttl_seconds": 86_400}
    full = {**day, "owner": "ana", "metadata": f"{p}: page 7", "lock_delay_seconds": 5}
    held = await world.acquire(f"{p}/held", token=worker, key=f"{p}-held", **full)
    await world.verb(
        "renew",
        f"{p}/held",
        token=worker,
        key=f"{p}-held-on",
        lease_id=held["lease_id"],
        keep_ttl=True,
        note="page 9",
        metadata=f"{p}: page 9",
    )
    await world.acquire(f"{p}/held", token=worker, key=f"{p}-resumed", resume=True, **day, owner="ana")
    given = await world.acquire(f"{p}/given", token=worker, owner="ana", **day)
    given = await world.verb(
        "transfer", f"{p}/given", token=worker, key=f"{p}-given", lease_id=given["lease_id"], to_owner="ivo", **day,
        reason="the night shift"
    )  # fmt: skip
    names = [f"{p}/held", f"{p}/any"]
    await world.requested("POST", "/claims", {"any": names, **day}, token=worker, key=f"{p}-any")
    names = [f"{p}/all-1", f"{p}/all-2"]
    await world.requested("POST", "/claims", {"all": names, "owner": "ana", **day}, token=worker, key=f"{p}-all")
    ticket = await world.acquire(
        f"{p}/given", token=other, key=f"{p}-place", **{**full, "owner": "bea"}, redo=True, wait_seconds=0.5
    )
    body = {"all": [f"{p}/held", f"{p}/any"], "owner": "cleo", "wait_seconds": 0.5, **day}
    await world.requested("POST", "/claims", body, token=other, key=f"{p}-place-of-two")
    closed = await world.acquire(f"{p}/closed", token=worker, key=f"{p}-closed", lock_delay_seconds=30, ttl_seconds=60)
    await world.verb("release", f"{p}/closed", token=worker, lease_id=closed["lease_id"], key=f"{p}-closed-end")
    return {"given": given["lease_id"], "place": ticket["ticket"], "closed": closed["lease_id"]}


# What it answers.


def questions(p: str, left: dict[str, Plain]) -> Iterator[dict[str, Plain]]:
    """Yield requests whose answers rest on what was kept. They are asked in this order, soon after a start."""
    worker, other = left["worker"], left["other"]
    body: dict[str, Plain] = {
        "ttl_seconds": 86_400,
        "owner": "ana",
        "metadata": f"{p}: page 7",
        "lock_delay_seconds": 5,
    }
    held, given, closed, done = (f"/locks/{p}%2F{name}" for name in ("held", "given", "closed", "done"))
    yield question("a closed name is still closed", "POST", f"{closed}/acquire", {}, worker)
    yield question("who holds it, since when, and what it noted", "GET", held, None, worker)
    yield question("how the last lease of a name ended", "GET", f"/locks/{p}%2Ffailed", None, worker)
    yield question("a claim is asked again with its key", "POST", f"{held}/acquire", body, worker, f"{p}-held")
    both = {"all": [f"{p}/all-1", f"{p}/all-2"], "owner": "ana", "ttl_seconds": 86_400}
    yield question("a claim of all is asked again with its key", "POST", "/claims", both, worker, f"{p}-all")
    ending = {"lease_id": left["closed"]}
    yield question(
        "a release is asked again with its key", "POST", f"{closed}/release", ending, worker, f"{p}-closed-end"
    )
    yield question("finished work is not done again", "POST", f"{done}/acquire", {}, other)
    yield question("what happened to a name", "GET", f"{done}/history", None, worker)
    opening = {"ttl_seconds": 86_400, "name": "night run", "metadata": "shift 3"}
    yield question("a session is asked for again with its key", "POST", "/sessions", opening, other, f"{p}-session")
    yield question("what is in it", "GET", f"/locks?session={left['session']}", None, other)
    path = f"/sessions/{left['session']}/renew-all"
    yield question("the secret of a session still works", "POST", path, None, left["secret"])
    guest = {"name": f"{p}-guest", "scopes": ["read"], "prefix": f"{p}/", "expires_in_seconds": 3600}
    yield question("a token is asked for again with its key", "POST", "/tokens", guest, OPERATOR, f"{p}-token-guest")
    yield question("every token", "GET", "/tokens", None, OPERATOR)
    yield question("who waits for whom", "GET", f"{given}/why", None, worker)
    back = {**body, "owner": "bea", "redo": True, "ticket": left["place"]}
    yield question("a place in line is come back to", "POST", f"{given}/acquire", back, other, f"{p}-place")
    yield question("its holder gives the name back", "POST", f"{given}/release", {"lease_id": left["given"]}, worker)
    yield question("the place gets the name", "POST", f"{given}/acquire", back, other, f"{p}-place")


def question(what: str, method: str, path: str, body: Plain, token: str, key: str | None = None) -> dict[str, Plain]:
    return {"what": what, "method": method, "path": path, "body": body, "token": token, "key": key}


def comparable(question: dict[str, Plain], answer: Plain) -> Plain:
    """Return what of an answer must be the same in every later release."""
    is_new = question["what"] == "the place gets the name"
    return _without(VOLATILE | WORDING | (VOLATILE_IF_NEW if is_new else frozenset()), answer)


def _without(fields: frozenset[str], answer: Plain) -> Plain:
    match answer:
        case dict():
            return {name: _without(fields, value) for name, value in answer.items() if name not in fields}
        case list():
            return [_without(fields, item) for item in answer]
        case _:
            return answer
