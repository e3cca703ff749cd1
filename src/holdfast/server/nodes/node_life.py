"""The life of a node: a follower until the seat is free or silent, the leader for one tenure, then a follower again.

    ┌─► look ── another leads: follow ──┐
    │     └──── take the seat           │ four times a second, whatever a look met
    │             │                     │
    │          tenure: beats twice a second, until it is deposed, fails, is alone, or is told to stop
    └─────────────┴─────────────────────┘

**It goes on watching, whatever happens.** A node that stopped looking would never lead again, and if that happens to
each there is no leader. So a look, a tenure that cannot begin, and one that ends in whatever way all lead back to the
next look. Only `stop` ends that.

**One journal has one tenure**, and is closed with it; another one, which never has a seat, is for the looks. A tenure
that is over is ended beside the next looks: what it still waits for (the answer to its last write) must not keep this
node from following.

**The heartbeat** is a read of nothing, by the one write path (N-14): it becomes a proof of the seat, or rides on an
append. If the loop, the engine or the store hangs, it stops, and others see that.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import msgspec

from holdfast.engine.build import (
    DeposedError,
    JournalLockedError,
    JournalUnavailableError,
    OutcomeUnknownError,
)
from holdfast.engine.ids import new_secret
from holdfast.server.nodes.node_log import NodeLog, in_public
from holdfast.server.nodes.watcher import ALONE_MS, Loneliness, Watcher

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.engine.build import Seat, SharedJournal
    from holdfast.engine.clock import Clock
    from holdfast.server.nodes.node import Node
    from holdfast.server.nodes.tenure import Tenure
    from holdfast.server.nodes.watcher import Seen

LOOK_SECONDS = 0.25
LOOK_SECONDS_MAX = 5.0
"""A look that takes longer is given up."""
BEAT_SECONDS = 0.5
REPORT_SECONDS = 3.0
AGAIN_MS = 1_000
"""How long the seat is left alone after a tenure could not begin because the store could not be reached."""


class Life:
    """What a node does from its start to its stop."""

    def __init__(
        self,
        node: Node,
        *,
        journals: Callable[[str], SharedJournal],
        tenures: Callable[[SharedJournal, Seat], Awaitable[Tenure]],
        clock: Clock,
        takeover_ms: int,
        jitter_ms: Callable[[], int],
        known: Callable[[bytes], None] | None = None,
    ) -> None:
        """`node` is told who leads. `journals` makes a journal for the tenure that is named so, `tenures` begins it.

        The seat that it is given is as it will be, but for the epoch: only whoever takes it knows that.
        `jitter_ms` draws how long to wait before the seat is taken. `known` hears of the authority's key.
        """
        self._node = node
        self._journals = journals
        self._tenures = tenures
        self._clock = clock
        self._jitter_ms = jitter_ms
        self._known = known or _ignore_key
        self._watcher = Watcher(node.me.node, node.me.process, takeover_ms=takeover_ms)
        self._log = NodeLog(node.me.node, clock)
        self._journal = journals(_new_tenure())
        """What this node looks with, and tells of itself. It never has the seat."""
        self._told_to_stop = asyncio.Event()
        self._looking: asyncio.Timeout | None = None
        """How long the look that is under way may take."""
        self._ending: set[asyncio.Task[None]] = set()
        """Tenures that are over, and are still being ended."""
        self._heard_ms: int | None = None
        """When another node last told the store of itself, as far as is known. Never later than it was."""
        self._reported_ms: int | None = None
        self._cannot_lead: tuple[str, Exception] | None = None
        """Why this node could not lead when it tried last; None if it could, or another leads."""
        self._failed_at: tuple[int, str, int] | None = None
        """The seat that it could not take, as it was seen then."""
        self._lost_epoch: int | None = None
        """The epoch under which the seat was last taken by another, while we tried."""

    # Start and stop.

    async def run(self) -> None:
        """Watch, and lead when it is our turn, until told to stop."""
        while not self._told_to_stop.is_set():
            try:
                await self._watch()
            except Exception as error:  # noqa: BLE001 - Whatever it is: who stops looking never leads again.
                if self._told_to_stop.is_set():
                    break
                self._watcher.miss()
                self._log.missed(error)
                self._tell_trouble(self._log.trouble, error)
                if not isinstance(error, _AWAY):
                    # What is there is not what was there. One that only cannot be reached may have a leader all the
                    # same, and that one answers over our link or does not.
                    self._node.tell(None, None)
            await self._rest(LOOK_SECONDS)
        self._node.tell(None, None)
        while self._ending:
            await asyncio.wait(self._ending)
        self._journal.hurry(0)  # To tell the others that this node ends is a courtesy.
        await self._ended(self._journal.close())

    @property
    def is_told_to_stop(self) -> bool:
        """Whether `run` ends, or has ended, because it was told to. If it ends otherwise, it may be run again."""
        return self._told_to_stop.is_set()

    def stop(self) -> None:
        """Give the seat back if it is ours, and look no more. `run` returns when that is done."""
        self._told_to_stop.set()
        self._node.hurry.set()
        if self._looking is not None:
            # It is asked whether somebody leads. Nobody waits for that any more.
            self._looking.reschedule(0)

    async def _rest(self, seconds: float) -> None:
        """Wait, unless told to stop meanwhile, or to look at once."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._node.hurry.wait(), seconds)
        if not self._told_to_stop.is_set():
            self._node.hurry.clear()

    # Following.

    async def _watch(self) -> None:
        """Look once, and follow or lead."""
        try:
            async with asyncio.timeout(LOOK_SECONDS_MAX) as self._looking:
                seat = await self._journal.look()
                if not self._node.key:
                    self._node.key = await self._journal.key()
                    self._known(self._node.key)
                await self._report()
        finally:
            self._looking = None
        seen = self._watcher.see(seat, self._clock.monotonic_ms(), is_ours_over=not self._ending)
        self._log.saw(seat, seen)
        if seen.leader is not None and _as_seen(seat) != self._failed_at:
            # Not at the mere sight of a seat: whoever had it may be long gone, and nobody could take it.
            self._cannot_lead = None
        self._tell_trouble(*self._cannot_lead or (None, None))
        self._node.tell(seen.leader, None)
        if seen.why_take is not None:
            await self._take(seat, seen)

    def _tell_trouble(self, text: str | None, error: Exception | None) -> None:
        self._node.trouble = text
        self._node.public_trouble = None if error is None else in_public(error)

    async def _report(self) -> None:
        """Tell the store of this node now and then, and ask who else did."""
        now_ms = self._clock.monotonic_ms()
        if self._reported_ms is not None and now_ms - self._reported_ms < REPORT_SECONDS * 1000:
            return
        self._reported_ms = now_ms
        await self._journal.report(self._node.me)
        asked_ms = self._clock.monotonic_ms()
        ages_ms = [peer.seen_ms_ago for peer in await self._journal.peers() if peer.process != self._node.me.process]
        self._heard_ms = asked_ms - min(ages_ms) if ages_ms else None

    # Leading.

    async def _take(self, seat: Seat, seen: Seen) -> None:
        """Take the seat as it was seen, and lead for as long as it is ours."""
        await asyncio.sleep(self._jitter_ms() / 1000)
        if self._told_to_stop.is_set():
            return
        self._log.takes(seen)
        me, ours = self._node.me, _new_tenure()
        journal = self._journals(ours)
        if seat.is_held:
            journal.depose(seat)
        taken = msgspec.structs.replace(
            seat,
            tenure=ours,
            is_held=True,
            node=me.node,
            process=me.process,
            url=me.url,
            version=me.version,
            since_wall_ms=self._clock.wall_ms(),
        )
        try:
            tenure = await self._tenures(journal, taken)
        except (JournalLockedError, DeposedError) as error:
            self._log.lost_race(error)
            if self._lost_epoch == seat.epoch:
                # Nobody was quicker, and yet it cannot be had. Not at every look.
                self._watcher.leave_alone(self._clock.monotonic_ms() + AGAIN_MS)
            self._lost_epoch = seat.epoch
            self._node.look_soon()
            return
        except Exception as error:  # noqa: BLE001 - Whatever it is, another node may do better, or this one later.
            pause_ms = AGAIN_MS if isinstance(error, (*_AWAY, OutcomeUnknownError)) else ALONE_MS
            self._watcher.leave_alone(self._clock.monotonic_ms() + pause_ms)
            self._cannot_lead, self._failed_at = (self._log.could_not_lead(error), error), _as_seen(seat)
            self._tell_trouble(*self._cannot_lead)
            return
        self._log.leads(tenure.seat, seen)
        self._cannot_lead = None
        self._tell_trouble(None, None)
        self._node.tell(None, tenure)
        try:
            why = await self._lead(tenure)
        except Exception as error:  # noqa: BLE001 - A tenure that nobody looks after is over.
            why = f"internal error: {type(error).__name__}: {error}"
        ending = self._let_end(tenure.end())
        if tenure.engine.failed is None:
            # In order: all is answered before anybody is told that nobody leads, and the links end.
            await asyncio.wait({ending})
        self._node.tell(None, None)
        self._node.look_soon()
        self._log.follows(tenure.seat, why)

    async def _lead(self, tenure: Tenure) -> str:
        """Let the heart beat until the tenure is over; return why it is."""
        engine, lonely = tenure.engine, Loneliness()
        ended = asyncio.ensure_future(engine.ended.wait())
        told = asyncio.ensure_future(self._told_to_stop.wait())
        reporting: asyncio.Task[None] | None = None
        try:
            while True:
                engine.beat()
                await asyncio.wait({ended, told}, timeout=BEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    return engine.failed or "it ended"
                if told.done():
                    return "it was told to stop"
                if reporting is None or reporting.done():
                    reporting = asyncio.create_task(self._report_quietly())
                requests, now_ms = tenure.requests(), self._clock.monotonic_ms()
                if lonely.is_lonely(now_ms, links=self._node.links, requests=requests, heard_ms=self._heard_ms):
                    self._watcher.leave_alone(now_ms + ALONE_MS)
                    return "no other node and no client reached it for 5 s, although others are there"
        finally:
            for waiting in (ended, told, reporting):
                if waiting is not None:
                    waiting.cancel()

    async def _report_quietly(self) -> None:
        """Report while leading. If that fails, the heartbeat is in trouble too, and tells it."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(LOOK_SECONDS_MAX):
                await self._report()

    def _let_end(self, ending: Awaitable[None]) -> asyncio.Task[None]:
        """End a tenure beside what comes next."""
        task = asyncio.create_task(self._ended(ending))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    async def _ended(self, ending: Awaitable[None]) -> None:
        try:
            await ending
        except Exception as error:  # noqa: BLE001 - It is over in any case.
            self._log.could_not_end(error)


_AWAY = (JournalUnavailableError, TimeoutError, OSError)
"""What a store is met with that cannot be reached."""


def _as_seen(seat: Seat) -> tuple[int, str, int]:
    return seat.epoch, seat.tenure, seat.beat


def _new_tenure() -> str:
    return new_secret(16).hex()


def _ignore_key(_key: bytes) -> None:
    """Nobody else needs it."""
