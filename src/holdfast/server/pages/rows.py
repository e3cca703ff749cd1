"""One job as a row of the operators' list: for the page's own stream, its pages of rows, and the template alike.

A row is what `GET /locks` tells of a held name, with times as milliseconds of the server's wall clock: so a browser
can count by itself. Never a lease id. Everything that a user wrote is plain text in here; who shows it escapes it.

    Row    all that is shown of a held name
    Beat   what a plain heartbeat changes of it: most of what is told live
    Gone   a name that nobody holds any more, and how its last lease ended
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.state import EMPTY
from holdfast.server.pages.fields import fields_of
from holdfast.wire.holders import shown_as

if TYPE_CHECKING:
    from holdfast.core.state import State
    from holdfast.core.values import Labels, Lease, Moment

SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000
LATE_OF_3 = 2
"""Late: without a heartbeat for so many thirds of its ttl."""
ENDING_PART = 10
"""Ending: with less than this part of its ttl left."""
TAIL_CHARS = 16
"""How much of the end of a name is never cut: the number is there."""
_RIGHT_TO_LEFT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufeff]")
FIELDS_SHOWN = 8
FIELD_CHARS_SHOWN = 120
"""Of the metadata; the job's own page has all of it."""
FIELDS_KEPT = 1_024
"""Of how many metadata the fields are kept at hand: a job is shown again and again, and its metadata stays."""


class Row(msgspec.Struct, omit_defaults=True):
    """A held name."""

    name: str
    owner: str
    """The owner, or how people are shown a claim that named none."""
    token: int
    since: int
    """When it was granted. This and the next two are wall times in milliseconds."""
    beat: int
    until: int
    ttl: int
    """In milliseconds: its own, or that of the session that it ends with before."""
    line: int = 0
    """How many places there are in its line, with those whose request is away for the moment."""
    unnamed: bool = False
    """Whether the claim named no owner."""
    note: str = ""
    labels: Labels = {}
    fields: tuple[tuple[str, str], ...] = ()
    """The metadata, as keys and values."""
    session: str = ""
    bound: bool = False
    """Whether it ends with its session."""
    own: int = 0
    """When it would end if its session did not end before."""


Beat = tuple[str, int, int, int, int, int]
"""A name, its fencing token, its last heartbeat, its end, its ttl, and its own end as above."""


class Gone(msgspec.Struct, omit_defaults=True):
    """A name that nobody holds."""

    name: str
    how: str = ""
    """`released`, `done`, `expired`, `revoked`, `session_ended`; empty if nothing is known of an end."""
    owner: str = ""
    by: str = ""
    reason: str = ""
    token: int = 0
    at: int = 0


def row_of(name: str, lease: Lease, state: State, now: Moment) -> Row:
    """Show a held name."""
    until_ms, beat_wall_ms, ttl_ms = _life(lease, state, now)
    to_wall_ms = now.wall_ms - now.ms
    return Row(
        name,
        shown_as(lease.principal, lease.metadata) if lease.owner is None else lease.owner,
        lease.token,
        lease.granted_wall_ms,
        beat_wall_ms,
        until_ms + to_wall_ms,
        ttl_ms,
        len(state.index.lines.get(name, ())),
        lease.owner is None,
        lease.note or "",
        lease.labels or {},
        _fields(lease.metadata) if lease.metadata else (),
        lease.session or "",
        lease.bound,
        0 if until_ms == lease.until_ms else lease.until_ms + to_wall_ms,
    )


@lru_cache(maxsize=FIELDS_KEPT)
def _fields(metadata: str) -> tuple[tuple[str, str], ...]:
    return tuple((_cut(each.key), _cut(each.value)) for each in fields_of(metadata, FIELDS_SHOWN))


def _cut(text: str) -> str:
    return text if len(text) <= FIELD_CHARS_SHOWN else text[: FIELD_CHARS_SHOWN - 1] + "…"


def beat_of(name: str, lease: Lease, state: State, now: Moment) -> Beat:
    """Show what a heartbeat changed of a held name."""
    until_ms, beat_wall_ms, ttl_ms = _life(lease, state, now)
    to_wall_ms = now.wall_ms - now.ms
    own = 0 if until_ms == lease.until_ms else lease.until_ms + to_wall_ms
    return name, lease.token, beat_wall_ms, until_ms + to_wall_ms, ttl_ms, own


def _life(lease: Lease, state: State, now: Moment) -> tuple[int, int, int]:
    """Return when it ends, when it was last heard of, and for how long that is good.

    Where its session ends first, the session's keepalives are what it lives by. Else a lease of an hour in a session of
    a minute would look as if it were ending all the time.
    """
    until_ms = state.until_of(lease)
    if until_ms == lease.until_ms or lease.session is None:
        return until_ms, lease.beat_wall_ms, lease.ttl_ms
    ttl_ms = state.sessions[lease.session].ttl_ms
    kept_wall_ms = until_ms - ttl_ms + now.wall_ms - now.ms
    return until_ms, max(lease.beat_wall_ms, kept_wall_ms), ttl_ms


def gone_of(name: str, state: State, now: Moment) -> Gone:
    """Show a name that nobody holds."""
    slot = state.slots.get(name, EMPTY)
    done, end = slot.done, slot.last_end
    if done is not None and done.until_ms > now.ms:
        owner = done.owner or shown_as(done.whose)
        return Gone(name, "done", owner, token=done.token, at=done.wall_ms)
    if end is None:
        return Gone(name)
    owner = end.owner or shown_as(end.by if end.how == "released" else end.whose)
    by = "" if end.how == "released" else end.by or ""
    return Gone(name, end.how, owner, by, end.reason or "", end.token, end.wall_ms)


def name_parts(name: str) -> tuple[str, str]:
    """Return what of a name may be cut, and its end, which is kept. One from right to left is cut where it ends."""
    if _RIGHT_TO_LEFT.search(name):
        return name, ""
    cut = max(0, len(name) - TAIL_CHARS)
    return name[:cut], name[cut:]


# In words: the same as in `static/rows.js`.


def sign_of(row: Row, now_wall_ms: int) -> str:
    """Return the sign of life: `ending`, `late` or `alive`."""
    if (row.until - now_wall_ms) * ENDING_PART < row.ttl:
        return "ending"
    return "late" if (now_wall_ms - row.beat) * 3 > row.ttl * LATE_OF_3 else "alive"


def span_text(ms: int) -> str:
    """Return how long something lasts, in the largest unit that fits: `31 s`, `4 min`, `2 h`, `3 d`."""
    for unit_ms, unit in ((DAY_MS, "d"), (HOUR_MS, "h"), (MINUTE_MS, "min")):
        if ms >= unit_ms:
            return f"{ms // unit_ms} {unit}"
    return f"{max(0, ms) // SECOND_MS} s"


def left_text(ms: int) -> str:
    """Return how much time is left: `0:09`, `1:32`, `2:05:00`, `3 d`."""
    seconds = max(0, ms) // SECOND_MS
    if ms >= DAY_MS:
        return f"{ms // DAY_MS} d"
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
