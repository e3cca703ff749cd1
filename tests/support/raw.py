"""Requests written out by hand, for what no client would send, and the facts that abuse must not change."""

from __future__ import annotations

from typing import Any

from tests.support.api import Api
from tests.support.checks import refused
from tests.support.http import Answer, RawReply, exchange


def facts(api: Api) -> dict[str, Any]:
    """What an abusive request must not change: every lease, the counter of grants, the counts of acquires and
    releases.
    """
    listed = api.locks()
    assert listed.status == 200, listed
    rows = [
        {key: row[key] for key in ("name", "fencing_token", "holder_id", "metadata")} for row in listed.json()["locks"]
    ]
    counts = api.get("/status").json()
    free = api.status("abuse-never-held").json()
    return {
        "locks": rows,
        "next_token": free["fencing_token"],
        "counts": [counts[key] for key in ("active_locks", "total_acquires", "total_releases")],
    }


def head(method: str, path: str, *headers: str, version: str = "HTTP/1.1") -> bytes:
    """The head of a request, written out."""
    return "\r\n".join([f"{method} {path} {version}", *headers, "", ""]).encode("latin-1")


def send(api: Api, payload: bytes, **options: Any) -> RawReply:  # noqa: ANN401 - passed on as it is
    """Exchange raw bytes; whatever comes back, none of it may be a server error but the documented 503."""
    reply = exchange(api.host, api.port, payload, **options)
    for answer in reply.answers():
        assert answer.status < 500 or answer.status == 503, answer
    return reply


def refused_or_closed(reply: RawReply, *statuses: int) -> None:
    """Either one of these refusals, in our envelope where it has a JSON body, or a closed connection without any
    answer.
    """
    answers = reply.answers()
    if not answers:
        assert reply.closed, f"neither answered nor closed: {reply.data[:200]!r}"
        return
    assert answers[0].status in statuses, answers[0]
    if answers[0].status >= 400 and answers[0].content_type == "application/json":
        refused(answers[0], statuses, tuple({answers[0].json().get("code", "")}))


def one(reply: RawReply) -> Answer:
    """The one answer."""
    answers = reply.answers()
    assert len(answers) == 1, f"expected one answer: {reply.data[:400]!r}"
    return answers[0]
