"""The client's return values: plain records with times as `datetime` (UTC) and metadata as it was given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET

from holdfast.client.requests import as_json
from holdfast.errors import JobDone, JobHeld, ServerError
from holdfast.wire import replies
from holdfast.wire.replies import Previous as PreviousReply
from holdfast.wire.replies import shown_as

R = TypeVar("R", bound=msgspec.Struct)
Metadata: TypeAlias = Mapping[str, Any] | str | None  # A mapping is sent as JSON and returned as one; text is as is.


class Previous(msgspec.Struct, frozen=True):
    """Who had the job before, and how that ended."""

    owner: str | None
    fencing_token: int
    ended: str  # `released`, `expired`, `revoked`, `session_ended` or `transferred`.
    at: datetime
    note: str | None  # The last thing that owner said.
    shown_as: str = ""  # The owner for people: its name, or the access token's in brackets if no owner was given.


class JobClaim(msgspec.Struct, frozen=True):
    """One claim of one job, as of the answer. Only `heartbeat_job` renews it."""

    job_id: str
    owner: str | None
    lease_id: str  # The secret that renews and releases: not for logs.
    fencing_token: int  # The fencing token: greater than that of every claim before.
    expires_at: datetime
    claimed_at: datetime
    metadata: Metadata
    previous: Previous | None
    attempts: int  # How many claims it took since the job last ended well, this one included.
    reacquired: bool = False  # It was ours already, and we asked for it back.
    labels: dict[str, str] = {}

    def __repr__(self) -> str:  # Everything but the secret.
        about = f"owner={self.owner!r}, fencing_token={self.fencing_token}, until {self.expires_at}"
        return f"JobClaim({self.job_id!r}, {about})"


class JobOwner(msgspec.Struct, frozen=True):
    """The current owner of a job, and when it last renewed."""

    job_id: str
    owner: str | None
    fencing_token: int
    claimed_at: datetime
    last_heartbeat_at: datetime
    expires_at: datetime
    expires_in: float  # Seconds, as of when the server answered.
    metadata: Metadata
    note: str | None
    session: str | None
    waiting: int
    attempts: int
    previous: Previous | None
    labels: dict[str, str] = {}
    shown_as: str = ""  # The owner for people: its name, or the access token's in brackets if no owner was given.


class JobStatus(msgspec.Struct, frozen=True):
    """What is known of a job: `free`, `held` (then `owner` says by whom) or `done`."""

    job_id: str
    status: str
    owner: JobOwner | None
    waiting: int
    attempts: int
    previous: Previous | None
    available_at: datetime | None = None  # When a closed name opens.
    done_by: str | None = None
    completed_at: datetime | None = None
    result: str | None = None
    shown_as: str | None = None  # Who has it or has done it, for people, as in `JobOwner`. None while nobody has.


class JobEvent(msgspec.Struct, frozen=True):
    """An event of a job."""

    seq: int  # The number of its record.
    at: datetime | None  # None for `resync`: events before it are no longer kept.
    event: str
    job_id: str
    owner: str | None
    fencing_token: int | None
    by: str | None
    reason: str | None
    labels: dict[str, str] = {}
    shown_as: str | None = None  # The owner for people, as in `JobOwner`. None for events without one, like `reopened`.


class QueuePosition(msgspec.Struct, frozen=True):
    """A queue position, for `on_wait`."""

    job_id: str
    position: int  # 0 while it is unknown, and if there is no queue: for the first free one of several jobs.
    waited: float  # Seconds.
    owner: JobOwner | None  # Who has the job meanwhile, if it is one job and somebody has it.
    away: str | None = None  # Why the server does not answer right now, or None. Requests go on until the wait is over.
    rejoined: int = 0  # How often our place was lost, so that we joined the queue again at its end.


class SessionInfo(msgspec.Struct, frozen=True):
    """What is known of a session."""

    session_id: str
    name: str | None
    expires_at: datetime
    claims: int
    metadata: Metadata


def gateway_environment(url: str, secret: str) -> dict[str, str]:
    """Return what `rlock` and its variants need. One address only, because third-party programs read it too.

    Ours also use the other addresses if HOLDFAST_URL names them.
    """
    return {"GATEWAY_URL": url.partition(",")[0], "SHUTDOWN_SECRET": secret}


class OpenedSession(msgspec.Struct, frozen=True):
    """A session that the client does not keep alive: it expires unless a call with its secret comes in time."""

    session_id: str
    name: str | None
    secret: str  # A bearer token for this session alone: for a child process, not for logs.
    expires_at: datetime
    expires_in: float  # Seconds, as of when the server answered.
    metadata: Metadata
    url: str  # The address for its user: the server's `public_url` if it has one, else that of the client.

    @property
    def environment(self) -> dict[str, str]:
        """What a child process needs for `rlock` and its variants."""
        return gateway_environment(self.url, self.secret)

    def __repr__(self) -> str:  # Everything but the secret.
        return f"OpenedSession({self.name or self.session_id!r}, until {self.expires_at})"


class PastJobOwner(msgspec.Struct, frozen=True):
    """The owner of a job at a past time: the claim as granted. Heartbeats, and what they changed, are not kept."""

    job_id: str
    owner: str | None
    fencing_token: int
    claimed_at: datetime
    ttl: float  # Seconds, as claimed. The expiry at that time is not known.
    session: str | None
    record: int  # The number of the record that granted it; 0 if it is older than all numbers.
    labels: dict[str, str] = {}
    shown_as: str = ""  # The owner for people: its name, or the access token's in brackets if no owner was given.


class PastJobOwners(msgspec.Struct, frozen=True):
    """All owners at a past time, ordered by name."""

    at: datetime | None  # The requested time.
    record: int  # The last record by then: it is exact to this one.
    jobs: list[PastJobOwner]


def time_of(text: str) -> datetime:
    """Parse a time from a reply. Raises `ServerError`."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ServerError(f"the server wrote {text!r:.50} for a time; check that server and client agree") from None


def packed(metadata: Metadata) -> str | None:
    """Encode metadata as the text that is sent."""
    if metadata is None or isinstance(metadata, str):
        return metadata
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata is {metadata!r:.50}; give text, or a mapping that can be written as JSON")
    try:
        return as_json(dict(metadata)).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"metadata cannot be written as JSON ({error}); give it as text") from None


def unpacked(text: str | None) -> Metadata:
    """Decode metadata: a JSON object is a mapping unless it is nested too deep, the rest is text."""
    if text is None or not text.startswith("{"):
        return text
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return text


def plain_labels(labels: Mapping[str, str] | None) -> dict[str, str] | None:
    """Return labels as they are sent. Raises for invalid types before any request."""
    if labels is None:
        return None
    given: Any = labels
    if not isinstance(given, Mapping) or not all(isinstance(text, str) for pair in given.items() for text in pair):
        raise TypeError(f"labels is {labels!r:.50}; give a mapping of texts to texts")
    # A member of a str enum, for example, may print differently: its value is sent.
    return {str.__str__(key): str.__str__(value) for key, value in labels.items()}


def time_text(at: datetime | str) -> str:
    """Return a time as it is sent. Without a zone it is local time; text is RFC 3339."""
    if isinstance(at, str):
        return at
    if not isinstance(at, datetime):
        raise TypeError(f"at is {at!r:.50}; give a datetime, or a text in RFC 3339")
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def shown(reply: PreviousReply | replies.HeldReply | replies.HeldName | replies.LockReply | replies.DoneReply) -> str:
    """Return the owner for people. An older server sends nothing for one without a name."""
    if reply.owner is not None:
        return reply.owner
    return reply.shown_as if isinstance(reply.shown_as, str) else shown_as(None, getattr(reply, "metadata", None))


def record(kind: type[R], reply: object, **given: Any) -> R:  # noqa: ANN401 - of any field
    """Make a record from a reply. `given` are the fields that the reply does not have in this form."""
    return kind(**_fields(reply, kind.__struct_fields__, given))


def _fields(reply: Any, names: tuple[str, ...], given: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - any
    """Return the reply's fields by their names in records, with times as `datetime`, and the given ones."""
    found = dict(given)
    for name, on_the_wire, read in _plan(names):
        if name not in given:
            value = shown(reply) if name == "shown_as" else getattr(reply, on_the_wire, UNSET)
            if value is not UNSET:
                found[name] = value if read is None or value is None else read(value)
    return found


@cache
def _plan(names: tuple[str, ...]) -> list[tuple[str, str, Callable[[Any], object] | None]]:
    """Return for each field its name on the wire and its decoder."""
    return [(name, _ON_THE_WIRE.get(name, name), _READ.get(name)) for name in names]


_ON_THE_WIRE = {"job_id": "name"}
_READ: Mapping[str, Callable[[Any], object]] = {
    "metadata": unpacked,
    "previous": lambda reply: record(Previous, reply),
    **dict.fromkeys(("at", "available_at", "claimed_at", "completed_at", "expires_at", "last_heartbeat_at"), time_of),
}


def claimed(job: str, reply: replies.AcquiredReply) -> JobClaim:
    return record(JobClaim, reply, job_id=job)


def claimed_one(
    reply: replies.ClaimReply, owner: str | None, metadata: Metadata, labels: dict[str, str] | None
) -> JobClaim:
    """Make a claim from one of several; owner, metadata and labels are those of the request."""
    claimed_at = time_of(reply.expires_at) - timedelta(milliseconds=reply.expires_in_ms)
    return record(JobClaim, reply, owner=owner, metadata=metadata, labels=labels or {}, claimed_at=claimed_at)


def owner_of(reply: replies.LockReply) -> JobOwner | None:
    if reply.claimed_at is None or reply.last_heartbeat_at is None or reply.expires_at is None:
        return None
    return record(JobOwner, reply, expires_in=(reply.expires_in_ms or 0) / 1_000)


def status_of(reply: replies.LockReply) -> JobStatus:
    done_by = reply.owner if reply.status == "done" else None
    who = None if reply.status == "free" else shown(reply)
    return record(JobStatus, reply, owner=owner_of(reply), done_by=done_by, shown_as=who)


def job_event(reply: replies.HistoryEntryReply) -> JobEvent:
    return record(JobEvent, reply, shown_as=reply.owner if reply.shown_as is UNSET else reply.shown_as)


def session(reply: replies.SessionReply) -> SessionInfo:
    return record(SessionInfo, reply, claims=reply.lock_count)


def opened_session(reply: replies.SessionOpenedReply, url: str) -> OpenedSession:
    seconds = reply.expires_in_ms / 1_000
    return record(OpenedSession, reply, secret=reply.session_secret, expires_in=seconds, url=reply.public_url or url)


def past_job_owner(reply: replies.PastLockReply) -> PastJobOwner:
    who = reply.owner or (shown_as(None) if reply.shown_as is UNSET else reply.shown_as)
    return record(PastJobOwner, reply, ttl=reply.ttl_ms / 1_000, shown_as=who)


def _held(text: str, job: str, reply: replies.HeldReply | replies.HeldName) -> JobHeld:
    names = (
        *("owner", "metadata", "labels", "note", "claimed_at", "last_heartbeat_at", "expires_at"),
        *("same_owner", "waiting", "shown_as"),
    )
    given = {"job_id": job, "retry_after": reply.retry_after_ms / 1_000}
    return JobHeld(text, **_fields(reply, names, given))


def job_held(job: str, reply: replies.HeldReply) -> JobHeld:
    whose = f"you hold {job} yourself, as {shown(reply)}," if reply.same_owner else f"{job} is held by {shown(reply)}"
    text = f"{whose} since {_clock(reply.claimed_at)}"
    text += f", last heard of at {_clock(reply.last_heartbeat_at)}, until {_clock(reply.expires_at)} at least"
    if reply.note:
        text += f"; its note: {reply.note}"
    if reply.same_owner:
        text += "; resume=True gives it back. If another worker has it under your name, give each an owner of its own"
    return _held(text, job, reply)


def job_closed(job: str, reply: replies.DelayedReply) -> JobHeld:
    text = f"{job} is closed until {_clock(reply.available_at)} by the lock delay of its last owner"
    return JobHeld(text, job_id=job, expires_at=time_of(reply.available_at), retry_after=reply.retry_after_ms / 1_000)


def name_held(reply: replies.HeldName) -> JobHeld:
    if reply.holder_id is not None:
        return _held(f"{reply.name} is held by {shown(reply)}", reply.name, reply)
    held = _held(f"{reply.name} is closed by the lock delay of its last owner", reply.name, reply)
    held.shown_as = None
    return held


def job_done(reply: replies.DoneReply) -> JobDone:
    text = f"{reply.name} is done: by {shown(reply)} at {_clock(reply.completed_at)}"
    if reply.result:
        text += f"; result: {reply.result}"
    return JobDone(
        text, **_fields(reply, ("job_id", "owner", "fencing_token", "completed_at", "result", "shown_as"), {})
    )


def _clock(text: str) -> str:
    return time_of(text).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
