"""Following events, as a flow: each exactly once, through broken connections and rotated tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.client import records
from holdfast.client.answers import Answer, lacks_leader, refusal
from holdfast.client.clock import Instant, elapsed_ms
from holdfast.client.effects import NOW, RANDOM, Close, Flow, Open, Policy, Read, Sleep
from holdfast.client.records import JobEvent
from holdfast.client.requests import with_query
from holdfast.client.retry import AWAY_SECONDS, LATE_TOKEN_SECONDS, fields_of, is_down, lacks_new_token
from holdfast.errors import NotAllowed, ServerError, Unreachable
from holdfast.wire.replies import HistoryEntryReply

AGAIN_SECONDS = 0.1
AGAIN_SECONDS_MAX = 2.0
LINE_BYTES_MAX = 16 * 1024 * 1024
PARTS_MAX = 10_000  # Parts of one record: about 640 MB.
_ID = re.compile(r"[0-9.]+")

OnAway = Callable[[str | None], object]  # Called with the reason if the server is away, with None when it is back.


class _Frame(msgspec.Struct):
    seq: int
    changes: list[HistoryEntryReply] = []
    part: int = 1
    parts: int = 1  # A large record comes in several events, of which only the last has an id.


class Follower:
    def __init__(
        self,
        policy: Policy,
        prefix: str | None,
        after: int | None,
        labels: Mapping[str, str] | None = None,
        on_away: OnAway | None = None,
    ) -> None:
        self._policy = policy
        self._on_away = on_away
        self._is_away = False  # Whether `on_away` was told so.
        self._path = with_query("/events", labels, prefix=prefix)
        # The id of the last event as the server wrote it: it may name a restore besides the number.
        self._after = None if after is None else str(after)
        self._stream: Any = None
        self._incomplete = b""
        self._parts: list[JobEvent] = []  # Of an incomplete record, which is held back so that it is never sent twice.
        self._pause = AGAIN_SECONDS
        self._was_connected = self._token_may_change = False

    def more(self) -> Flow[list[JobEvent]]:
        failing_since: Instant | None = None
        refused_since: Instant | None = None
        while True:
            try:
                if self._stream is None:
                    yield from self._open()
                data: bytes = yield Read(self._stream)
                if not data:
                    raise Unreachable(self._policy.url, "the connection was closed")
            except Unreachable as error:
                yield from self.close()
                now: Instant = yield NOW
                failing_since = failing_since or now
                failed_ms = elapsed_ms(failing_since, now)
                if not self._was_connected and failed_ms > self._policy.retry_seconds * 1_000:
                    raise
                if failed_ms >= AWAY_SECONDS * 1_000:
                    self._report_away(error.problem)
                yield from self._pause_before_retry()
                continue
            except NotAllowed:
                # The token is invalid, and a new one may be in its file soon.
                now = yield NOW
                refused_since = refused_since or now
                patience_ms = max(self._policy.retry_seconds, LATE_TOKEN_SECONDS) * 1_000
                if not self._token_may_change or elapsed_ms(refused_since, now) > patience_ms:
                    raise
                yield from self._pause_before_retry()
                continue
            self._pause, failing_since, refused_since = AGAIN_SECONDS, None, None
            events = self._take(data)
            if events:
                return events

    def _pause_before_retry(self) -> Flow[None]:
        yield Sleep(self._pause * (0.5 + (yield RANDOM) / 2))
        self._pause = min(self._pause * 2, AGAIN_SECONDS_MAX)

    def _report_away(self, why: str | None) -> None:
        is_away = why is not None
        if is_away != self._is_away:
            self._is_away = is_away
            if self._on_away is not None:
                self._on_away(why)

    def close(self) -> Flow[None]:
        """Close the stream; `more` continues where it ended."""
        stream, self._stream, self._incomplete, self._parts = self._stream, None, b"", []
        if stream is not None:
            yield Close(stream)

    def _open(self) -> Flow[None]:
        headers = {"Accept": "text/event-stream"}
        if self._after is not None:
            headers["Last-Event-ID"] = self._after
        self._stream = yield Open(self._path, headers, self._policy.read_seconds)
        if self._stream.status == 200:  # noqa: PLR2004 - the one good answer
            self._was_connected = True
            self._report_away(None)
            return
        status, body = self._stream.status, b""
        while len(body) <= LINE_BYTES_MAX and (part := (yield Read(self._stream))):
            body += part
        yield from self.close()
        answer = Answer(status, {}, body)
        if is_down(answer):
            why = "no node leads right now" if lacks_leader(answer) else f"it answered {status}"
            raise Unreachable(self._policy.url, why)
        self._token_may_change = self._was_connected and lacks_new_token(answer, self._policy)
        raise refusal(answer, self._policy.url, self._policy.token_file)

    def _take(self, data: bytes) -> list[JobEvent]:
        """Split data into frames, and keep the incomplete rest."""
        *frames, self._incomplete = (self._incomplete + data).split(b"\n\n")
        if len(self._incomplete) > LINE_BYTES_MAX:
            raise ServerError(f"{self._policy.url} sends events without end; is it a Holdfast server?")
        return [event for frame in frames for event in self._events(frame)]

    def _events(self, frame: bytes) -> list[JobEvent]:
        fields = fields_of(frame)
        if "data" not in fields:
            # Where the stream starts: after a break before the first event, we continue from here.
            words = fields.get("", "").split()
            begins = words[-1] if words[:1] == ["from"] else ""
            self._after = fields.get("id") or (begins if _ID.fullmatch(begins) else self._after)
            return []
        try:
            record = msgspec.json.decode(fields["data"], type=_Frame)
        except msgspec.MsgspecError as error:
            raise ServerError(f"{self._policy.url} sent an event that makes no sense: {error}") from None
        if fields.get("event") == "resync":
            self._after = fields.get("id") or str(record.seq)
            return [JobEvent(record.seq, None, "resync", "", None, None, None, None)]
        return self._complete_record(record, fields.get("id"))

    def _complete_record(self, record: _Frame, id_: str | None) -> list[JobEvent]:
        """Return the events of a record once its last part is there."""
        if record.parts > PARTS_MAX:
            raise ServerError(f"{self._policy.url} sends an event in {record.parts} parts; is it a Holdfast server?")
        if record.part == 1:
            self._parts = []
        self._parts += map(records.job_event, record.changes)
        if record.part < record.parts:
            return []
        events, self._parts = self._parts, []
        self._after = id_ or str(record.seq)
        return events
