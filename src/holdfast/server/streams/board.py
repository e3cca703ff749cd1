"""How things are, for all who look at the page: gathered, put into bytes once, and kept for a moment. See `live`.

    feed ──► Touched ──► every 200 ms: one look at each name that was touched ──► Sheet of each prefix ──► readers
             names        rows as bytes, once for everybody                        the newest frames

**Equal rights.** What a reader sees depends on one thing: the prefix that its token is confined to. (It has the scope
`read`, or it would not be here; other scopes let it do more, not see more.) So there is one `Sheet` for each prefix,
and all its readers are given the same bytes.

**Memory.** A sheet keeps its newest frames, up to `SHEET_BYTES_MAX`. A reader has nothing but a place in it: one who
does not take what it is sent finds its place gone when it comes back, and is told to look at all anew (`resync`).

**What it costs others.** While nobody looks there is no board: nothing is noted, and nothing runs. A name that changes
often is looked at five times a second at most. Names are looked at in slices, and readers are woken one after another,
so that claims are decided in between. If so much changes that it cannot be shown in time, what is shown gets older; if
there is no room to note it, all are told to look anew.

A session that is kept moves the end of all leases bound to it. That is told once for the session (`kept`), and not for
each of them. So is one that began, which changes the number of sessions; one that is over is told with 0.

Every look goes through the engine: a row is shown once all that it rests on is durable, like every answer (I16).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from holdfast.engine.build import JournalError
from holdfast.server.pages.rows import Totals, beat_of, gone_of, row_of, totals_of
from holdfast.server.render import encode

if TYPE_CHECKING:
    from holdfast.core.state import State
    from holdfast.core.values import Moment
    from holdfast.engine.engine import Engine
    from holdfast.engine.feed import Touched

log = logging.getLogger("holdfast.server")

FIRST_SECONDS = 0.02
"""How long after the first change is waited for more of the same moment: a claim on a quiet server is seen at once."""
GATHER_SECONDS = 0.18
"""How long nothing is told after that: what changes meanwhile is gathered."""
NAMES_MAX = 1_000
"""How many names are looked at in one round; those beyond it wait for the next."""
SLICE_NAMES = 50
SLICE_BYTES = 64 * 1024
SLICE_SESSIONS = 20
"""How much is looked at before others have their turn: well under a millisecond."""
SESSION_NAMES_MAX = 10_000
"""How many names of a session that was kept are looked at, to find out who may see it. So many take a millisecond."""
SHEET_BYTES_MAX = 1024 * 1024
WAKE_SECONDS = 0.002
WAKES_MAX = 40
"""How long after some readers the next are woken, for fifty of them must not write at once; and in how many groups, at
most: the next look begins when all were woken, and must not be late because there are many.
"""
STOOD_MS_MAX = 1_000
"""Beyond it the wall clock was set, or the server stood still: all are told to look at all ends anew."""
TRY_AGAIN_SECONDS = 1.0
"""How long after the store failed."""


class Head(msgspec.Struct, frozen=True):
    """As of when something was seen."""

    seq: int
    now: int
    """The wall time in milliseconds: by it a browser finds out how far off its own clock is."""
    stood_ms: int
    """How far the wall clock is before the time by which leases end. If it changes, what was told of ends is wrong."""
    totals: Totals


class Parts:
    """What one look found for one sheet, as bytes."""

    __slots__ = ("of",)

    def __init__(self) -> None:
        self.of: dict[str, list[bytes]] = {"rows": [], "beats": [], "gone": [], "kept": []}

    def frame(self, head: Head, *, is_all: bool) -> bytes:
        """Return a frame of it."""
        totals = b',"totals":%b' % encode(head.totals) if is_all else b""
        there = [b',"%b":[%b]' % (kind.encode(), b",".join(shown)) for kind, shown in self.of.items() if shown]
        return b'event: rows\ndata: {"seq":%d,"now":%d%b%b}\n\n' % (head.seq, head.now, totals, b"".join(there))


def _shown(name: str, state: State, now: Moment, *, is_whole: bool) -> tuple[str, bytes]:
    """Put a name into bytes, and say which kind of them it is."""
    lease = state.lease_of(name)
    if lease is None:
        return "gone", encode(gone_of(name, state, now))
    if is_whole:
        return "rows", encode(row_of(name, lease, state, now))
    return "beats", encode(beat_of(name, lease, state, now))


class Sheet:
    """The newest frames for all readers of one prefix."""

    def __init__(self, prefix: str | None) -> None:
        self.prefix = prefix
        self.readers: dict[Place, None] = {}
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self.end = 0
        """How many frames there were."""

    @property
    def size_bytes(self) -> int:
        """How much is kept."""
        return self._bytes

    def put(self, frame: bytes) -> None:
        """Add a frame, and let the oldest go."""
        self._frames.append(frame)
        self._bytes += len(frame)
        self.end += 1
        while self._bytes > SHEET_BYTES_MAX and len(self._frames) > 1:
            self._bytes -= len(self._frames.popleft())

    def lose(self) -> None:
        """Keep nothing: whoever reads on is told to look anew."""
        self._frames.clear()
        self._bytes = 0
        self.end += 1

    def after(self, place: int) -> bytes | None:
        """Return the frame after a place; None if it is not kept any more."""
        behind = self.end - place
        return self._frames[len(self._frames) - behind] if behind <= len(self._frames) else None


class Place:
    """Where one reader is in its sheet. It keeps nothing else for it."""

    def __init__(self, board: Board, sheet: Sheet) -> None:
        self._board = board
        self._sheet = sheet
        self._at = sheet.end
        self.news = asyncio.Event()

    @property
    def is_behind(self) -> bool:
        """Whether there is more to read."""
        return self._at < self._sheet.end

    def next(self) -> bytes | None:
        """Return the next frame and go on; None if some were lost: it is at the newest then."""
        frame = self._sheet.after(self._at)
        self._at = self._sheet.end if frame is None else self._at + 1
        return frame

    def leave(self) -> None:
        """Read no more."""
        self._board.forget(self._sheet, self)


class Board:
    """All sheets, and the one task that fills them while anybody reads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._sheets: dict[str | None, Sheet] = {}
        self._lengths: tuple[int, ...] = ()
        """Of the prefixes there are: a name's sheets are found by its beginnings, however many sheets there are."""
        self._touched: Touched | None = None
        self._task: asyncio.Task[None] | None = None
        self._stood_ms = 0
        """As of the last look, see `Head`."""

    def enter(self, prefix: str | None) -> Place:
        """Read from now on what may be seen with this prefix; None: all."""
        sheet = self._sheets.get(prefix)
        if sheet is None:
            sheet = self._sheets[prefix] = Sheet(prefix)
            self._measure()
        place = Place(self, sheet)
        sheet.readers[place] = None
        if self._touched is None:
            now = self._engine.turn()
            self._stood_ms = 0 if now is None else now.wall_ms - now.ms
            self._touched = self._engine.feed.look()
            self._task = asyncio.get_running_loop().create_task(self._run(self._touched))
        return place

    def forget(self, sheet: Sheet, place: Place) -> None:
        """Take a reader out, its sheet with its last reader, and all with the last sheet; harmless if it is out."""
        if sheet.readers.pop(place, place) is place or sheet.readers:
            return
        if self._sheets.get(sheet.prefix) is sheet:
            del self._sheets[sheet.prefix]
            self._measure()
        if not self._sheets and self._touched is not None and self._task is not None:
            self._engine.feed.look_away(self._touched)
            self._task.cancel()
            self._touched = self._task = None

    def _measure(self) -> None:
        self._lengths = tuple(sorted({len(prefix) for prefix in self._sheets if prefix is not None}))

    # Round after round.

    async def _run(self, touched: Touched) -> None:
        """Fill the sheets, until the last reader leaves."""
        while True:
            await touched.wait()
            await asyncio.sleep(FIRST_SECONDS)
            try:
                await self._look(touched)
            except JournalError:
                await self._begin_anew()
            except Exception:
                log.exception("a bug while looking at jobs for the page")
                await self._begin_anew()
            await asyncio.gather(self._wake(), asyncio.sleep(GATHER_SECONDS))

    async def _begin_anew(self) -> None:
        """What was taken was not told: whoever still reads looks anew, when that is possible again."""
        self._lose()
        await asyncio.sleep(TRY_AGAIN_SECONDS)

    async def _look(self, touched: Touched) -> None:
        """Look at what was touched, a slice at a time."""
        if touched.take_too_much():
            self._lose()
            return
        names = deque(touched.take(NAMES_MAX).items())
        sessions = deque(touched.take_sessions())
        while names or sessions:
            head, found = await self._engine.look(partial(self._show, names, sessions))
            if abs(head.stood_ms - self._stood_ms) > STOOD_MS_MAX:
                self._stood_ms = head.stood_ms
                self._lose()
                return
            for prefix, parts in found.items():
                # Its last reader may have left meanwhile.
                if (sheet := self._sheets.get(prefix)) is not None:
                    sheet.put(parts.frame(head, is_all=prefix is None))

    def _show(
        self, names: deque[tuple[str, bool]], sessions: deque[str], state: State, now: Moment
    ) -> tuple[Head, dict[str | None, Parts]]:
        """Take a slice, put each of it into bytes once, and give them to the sheets that may see it."""
        found: dict[str | None, Parts] = {}
        size, ends_at = 0, len(names) - SLICE_NAMES
        while names and len(names) > ends_at and size < SLICE_BYTES:
            name, is_whole = names.popleft()
            seen_by = self._seen_by(name)
            if seen_by:
                kind, shown = _shown(name, state, now, is_whole=is_whole)
                size += len(shown)
                for prefix in seen_by:
                    found.setdefault(prefix, Parts()).of[kind].append(shown)
        ends_at, looked_at = len(sessions) - SLICE_SESSIONS, 0
        while sessions and len(sessions) > ends_at and looked_at < SESSION_NAMES_MAX:
            looked_at += self._show_session(sessions.popleft(), found, state, now)
        return Head(state.seq, now.wall_ms, now.wall_ms - now.ms, totals_of(state)), found

    def _seen_by(self, name: str) -> list[str | None]:
        """Return the prefixes of the sheets that may see a name."""
        found: list[str | None] = [prefix for length in self._lengths if (prefix := name[:length]) in self._sheets]
        if None in self._sheets:
            found.append(None)
        return found

    def _show_session(self, session_id: str, found: dict[str | None, Parts], state: State, now: Moment) -> int:
        """Tell the deadline of a session to the sheets that may see a job bound to it. Return how many were looked at.

        Who may see all is told in any case: it may be that no job is bound to it, and then nothing changes.
        """
        session = state.sessions.get(session_id)
        if session is None:
            # It is over. What was bound to it is told by name; who may see all is told that there is one less.
            if None in self._sheets:
                found.setdefault(None, Parts()).of["kept"].append(encode((session_id, 0)))
            return 0
        shown = encode((session_id, now.wall_ms + session.until_ms - now.ms))
        seen_by: set[str | None] = {None} if None in self._sheets else set()
        wanted = tuple(prefix for prefix in self._sheets if prefix is not None)
        names = state.index.names_by_session.get(session_id, {}) if wanted else {}
        for name, is_bound in islice(names.items(), SESSION_NAMES_MAX):
            if is_bound and name.startswith(wanted):
                seen_by.update(self._seen_by(name))
                wanted = tuple(prefix for prefix in wanted if prefix not in seen_by)
                if not wanted:
                    break
        for prefix in seen_by:
            found.setdefault(prefix, Parts()).of["kept"].append(shown)
        return len(names)

    async def _wake(self) -> None:
        """Wake those who have something to read, some after others."""
        behind = [place for sheet in self._sheets.values() for place in sheet.readers if place.is_behind]
        together = -(-len(behind) // WAKES_MAX)
        for number, place in enumerate(behind, 1):
            place.news.set()
            if number % together == 0:
                await asyncio.sleep(WAKE_SECONDS)

    def _lose(self) -> None:
        for sheet in self._sheets.values():
            sheet.lose()
