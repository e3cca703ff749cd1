"""A job as the operators' page shows it: its row, liveness, metadata and times.

    JobRow           a held name: for `GET /ui/rows`, the page's stream and the server's own templates
    HeartbeatUpdate  what a heartbeat changes of it: most of what the stream carries
    FreeJob          a free name, and how its last lease ended

A row never has a lease id. Times are wall times in milliseconds; `static/clock.js` formats signs and times in the same
way. User input is plain text here, and escaped by templates and scripts.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from holdfast.api.rendering import nameless_holder
from holdfast.core.state import EMPTY, State
from holdfast.wire.replies import shown_as

if TYPE_CHECKING:
    from holdfast.core.values import Instant, Labels, Lease

SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000
LATE_OF_3 = 2  # Late: no heartbeat for this many thirds of its ttl.
ENDING_PART = 10  # Ending: less than a tenth of its ttl left.
TAIL_CHARS = 16  # The end of a name that is never cut: numbers are there.
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]")
FIELDS_SHOWN = 8
FIELD_CHARS_SHOWN = 120  # Metadata in a row; the job's own page has all of it.
FIELDS_CACHED = 1_024  # Cached parsed metadata: a job is shown repeatedly.


class JobRow(msgspec.Struct, omit_defaults=True):
    name: str
    owner: str  # For a claim without an owner, the display name of its holder.
    token: int
    since: int
    beat: int
    until: int
    ttl: int  # Its own, or that of its session where the session ends first.
    line: int = 0  # Waiters, disconnected ones too.
    unnamed: bool = False
    note: str = ""
    labels: Labels = {}
    fields: tuple[tuple[str, str], ...] = ()
    session: str = ""
    bound: bool = False
    own: int = 0  # Its own end, if its session ends before; else 0.


HeartbeatUpdate = tuple[str, int, int, int, int, int]  # As in `JobRow`: name, token, beat, until, ttl, own.


class FreeJob(msgspec.Struct, omit_defaults=True):
    name: str
    how: str = ""  # `released`, `done`, `expired`, `revoked`, `session_ended`; empty if no end is known.
    owner: str = ""
    by: str = ""
    reason: str = ""
    token: int = 0
    at: int = 0


class Totals(msgspec.Struct, frozen=True):
    jobs: int
    waiting: int
    sessions: int


def totals_of(state: State) -> Totals:
    return Totals(len(state.index.held), len(state.tickets), len(state.sessions))


def row_of(name: str, lease: Lease, state: State, now: Instant) -> JobRow:
    _, token, beat_wall_ms, until_wall_ms, ttl_ms, own_wall_ms = heartbeat_of(name, lease, state, now)
    return JobRow(
        name,
        shown_as(lease.principal, lease.metadata) if lease.owner is None else lease.owner,
        token,
        lease.granted_wall_ms,
        beat_wall_ms,
        until_wall_ms,
        ttl_ms,
        len(state.index.queues.get(name, ())),
        lease.owner is None,
        lease.note or "",
        lease.labels or {},
        _fields_in_row(lease.metadata) if lease.metadata else (),
        lease.session or "",
        lease.bound,
        own_wall_ms,
    )


@lru_cache(maxsize=FIELDS_CACHED)
def _fields_in_row(metadata: str) -> tuple[tuple[str, str], ...]:
    return tuple((_cut(each.key), _cut(each.value)) for each in fields_of(metadata, FIELDS_SHOWN))


def _cut(text: str) -> str:
    return text if len(text) <= FIELD_CHARS_SHOWN else text[: FIELD_CHARS_SHOWN - 1] + "…"


def heartbeat_of(name: str, lease: Lease, state: State, now: Instant) -> HeartbeatUpdate:
    """Return what a heartbeat changes. If the session ends before the lease, its keepalives are the heartbeats."""
    to_wall_ms, until_ms = now.wall_ms - now.ms, state.until_of(lease)
    if until_ms == lease.until_ms:
        return name, lease.token, lease.beat_wall_ms, until_ms + to_wall_ms, lease.ttl_ms, 0
    beat_wall_ms, ttl_ms = lease.beat_wall_ms, lease.ttl_ms
    if lease.session is not None:
        ttl_ms = state.sessions[lease.session].ttl_ms
        beat_wall_ms = max(beat_wall_ms, until_ms - ttl_ms + to_wall_ms)
    return name, lease.token, beat_wall_ms, until_ms + to_wall_ms, ttl_ms, lease.until_ms + to_wall_ms


def free_job_of(name: str, state: State, now: Instant) -> FreeJob:
    slot = state.slots.get(name, EMPTY)
    done, end = slot.done, slot.last_end
    if done is not None and done.until_ms > now.ms:
        return FreeJob(name, "done", done.owner or shown_as(done.whose), token=done.token, at=done.wall_ms)
    if end is None:
        return FreeJob(name)
    owner = end.owner or shown_as(nameless_holder(end))
    by = "" if end.how == "released" else end.by or ""
    return FreeJob(name, end.how, owner, by, end.reason or "", end.token, end.wall_ms)


def name_parts(name: str) -> tuple[str, str]:
    """Split a name into the part that may be cut and its end. Right-to-left names are cut at their end."""
    if _RIGHT_TO_LEFT.search(name):
        return name, ""
    cut = max(0, len(name) - TAIL_CHARS)
    return name[:cut], name[cut:]


def liveness_of(row: JobRow, now_wall_ms: int) -> str:
    if (row.until - now_wall_ms) * ENDING_PART < row.ttl:
        return "ending"
    return "late" if (now_wall_ms - row.beat) * 3 > row.ttl * LATE_OF_3 else "alive"


def label_term(key: str, value: str) -> str:
    """Return the search for a label; for its key alone if the value has blanks and quotes: no search can express it."""
    if not any(char.isspace() for char in value):
        return f"label:{key}:{value}"
    return f"label:{key}" if '"' in value else f'label:"{key}:{value}"'


def span_text(ms: int) -> str:
    """Return a duration in the largest unit that fits: `31 s`, `4 min`, `2 h`, `3 d`."""
    for unit_ms, unit in ((DAY_MS, "d"), (HOUR_MS, "h"), (MINUTE_MS, "min")):
        if ms >= unit_ms:
            return f"{ms // unit_ms} {unit}"
    return f"{max(0, ms) // SECOND_MS} s"


def time_left_text(ms: int) -> str:
    """Return the time left: `0:09`, `1:32`, `2:05:00`, `3 d`."""
    if ms >= DAY_MS:
        return f"{ms // DAY_MS} d"
    minutes, seconds = divmod(max(0, ms) // SECOND_MS, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


# Metadata as fields. Users may send anything: nothing here raises, and text that cannot be split is shown unchanged.

FIELDS_MAX = 64  # Of one metadata. The last one then has the rest, unchanged.
LINK_CHARS_MAX = 2_048

_PAIR = re.compile(r"([\w./-]{1,63})=(.*)", re.DOTALL)
_FIRST_PAIR = re.compile(r"[\s,;]*[\w./-]{1,63}=")
_SEPARATORS = tuple(map(re.compile, (r"[\s,;]+", r"\s+", r"[\n;]\s*", r"\n\s*")))
"""Separators of pairs, the finest first; the first that leaves only pairs is used.

None begins with blanks before something else: that would take quadratic time on a long run of blanks.
"""
_LINK = re.compile(r"https?://[^\s<>\"\\^`{|}]+", re.IGNORECASE)
_RAW_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Field(msgspec.Struct, frozen=True):
    key: str  # Empty for text without a key.
    value: str
    href: str | None = None  # The value, if all of it is an address.


def fields_of(metadata: str | None, maximum: int = FIELDS_MAX) -> tuple[Field, ...]:
    """Split a JSON object or `key=value` pairs; any other text is one field."""
    text = "" if metadata is None else metadata.strip()
    if not text:
        return ()
    pairs = _of_json(text, maximum) if text.startswith("{") else _of_pairs(text, maximum)
    return tuple(Field(key, value, link_of(value)) for key, value in pairs or [("", text)])


def link_of(text: str) -> str | None:
    """Return the text if it is an http(s) address without anything that could disguise where it leads."""
    if len(text) > LINK_CHARS_MAX or not text.isprintable() or not _LINK.fullmatch(text):
        return None
    try:
        return text if urlsplit(text).hostname else None
    except ValueError:
        return None


def _of_json(text: str, maximum: int) -> list[tuple[str, str]]:
    try:
        found = list(_RAW_OBJECT.decode(text.encode()).items())
        shown = [(key, _unquoted(value)) for key, value in found[:maximum]]
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return []
    return shown if len(found) <= maximum else [*shown, ("…", f"{len(found) - maximum} more")]


def _unquoted(value: msgspec.Raw) -> str:
    written = bytes(value).strip()
    return msgspec.json.decode(written, type=str) if written.startswith(b'"') else written.decode()


def _of_pairs(text: str, maximum: int) -> list[tuple[str, str]]:
    if not _FIRST_PAIR.match(text):
        return []
    for separator in _SEPARATORS:
        pieces = [piece.strip() for piece in separator.split(text, maximum) if piece.strip()]
        pairs = [_PAIR.fullmatch(piece) for piece in pieces]
        if pieces and all(pairs):
            return [(pair[1], pair[2].strip()) for pair in pairs if pair is not None]
    return []
