"""The life of a node: a follower until the seat is free or silent, the leader for one term, then a follower again.

    ┌─► look ── another leads: follow ──┐
    │     └──── take the seat           │ four times a second, whatever a look met
    │             │                     │
    │          term: beats twice a second, until it is deposed, fails, is alone, or is told to stop
    └─────────────┴─────────────────────┘

**It goes on watching, whatever happens:** a node that stopped looking would never lead again. A look, a term that
cannot begin, and one that ends in whatever way all lead back to the next look, until `stop`.

**One journal has one term**, and is closed with it; another one, which never has the seat, is for the looks. A term
ends while looks go on: an unanswered last write must not keep this node from following.

**The heartbeat** is a read of nothing through the one write path (N-14): it becomes a proof of the seat, or rides on an
append. If the loop, the engine or the store hangs, it stops, and others see that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import msgspec

from holdfast.engine.build import (
    DeposedError,
    JournalDamagedError,
    JournalError,
    JournalLockedError,
    JournalLostError,
    JournalUnavailableError,
    Leadership,
    OutcomeUnknownError,
    SharedJournal,
)
from holdfast.engine.clock import Clock
from holdfast.engine.ids import new_secret
from holdfast.server.nodes.node import LeaderTerm, Node
from holdfast.server.nodes.watcher import ALONE_MS, Loneliness, Seen, Watcher
from holdfast.server.times import rfc3339

LOOK_SECONDS = 0.25
LOOK_SECONDS_MAX = 5.0  # A look that takes longer is given up.
BEAT_SECONDS = 0.5
REPORT_SECONDS = 3.0
AGAIN_MS = 1_000  # How long the seat is left alone after a term could not begin because the store was away.
SAID_MAX = 16  # Different errors logged until the next success.
WENT_BACK = "the store went back in time, or is another one: if it was restored, run `holdfast store restored`"
UNUSABLE = "what the store has cannot be used by this node: its log says why"
AWAY = "the store cannot be reached, or refuses what is asked: the log says why"
CANNOT_TELL = "this node cannot use the store, or could not lead: its log says why"
_AWAY = (JournalUnavailableError, TimeoutError, OSError)  # The store cannot be reached.

log = logging.getLogger("holdfast.node")


class Life:
    def __init__(
        self,
        node: Node,
        *,
        journals: Callable[[str], SharedJournal],
        tenures: Callable[[SharedJournal, Leadership], Awaitable[LeaderTerm]],
        clock: Clock,
        takeover_ms: int,
        jitter_ms: Callable[[], int],
        known: Callable[[bytes], None] = lambda _key: None,
    ) -> None:
        """`journals` makes the journal of a term from its name, `tenures` begins the term.

        `tenures` gets the seat as it will be, but for the epoch, which only the write that takes it knows. `jitter_ms`
        draws the wait before the seat is taken. `known` is called with the authority's key.
        """
        self._node = node
        self._journals = journals
        self._tenures = tenures
        self._clock = clock
        self._jitter_ms = jitter_ms
        self._known = known
        self._watcher = Watcher(node.me.node, node.me.process, takeover_ms=takeover_ms)
        self._log = NodeLog(node.me.node, clock)
        self._journal = journals(_new_tenure())  # For looks and reports. It never has the seat.
        self._told_to_stop = asyncio.Event()
        self._looking: asyncio.Timeout | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._heard_ms: int | None = None  # When another node last reported, as far as known. Never later than it was.
        self._reported_ms: int | None = None
        self._cannot_lead: Exception | None = None  # By the last attempt; None if it succeeded, or another leads.
        self._failed_at: tuple[int, str, int] | None = None  # The seat that it could not take, as seen then.
        self._lost_epoch: int | None = None  # Where another took the seat last, while we tried.

    # Start and stop.

    async def run(self) -> None:
        while not self._told_to_stop.is_set():
            try:
                await self._watch()
            except Exception as error:  # noqa: BLE001 - a node that stops looking never leads again
                if self._told_to_stop.is_set():
                    break
                self._watcher.miss()
                self._log.missed(error)
                self._node.trouble = in_public(error)
                if not isinstance(error, _AWAY):
                    # The store is not what it was. One that only cannot be reached may have a leader all the same,
                    # which answers over our link or does not.
                    self._node.tell(None, None)
            await self._rest()
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
        """Give the seat back if it is ours, and stop looking. `run` returns when that is done."""
        self._told_to_stop.set()
        self._node.hurry.set()
        if self._looking is not None:
            # Its result is of no use any more.
            self._looking.reschedule(0)

    async def _rest(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._node.hurry.wait(), LOOK_SECONDS)
        if not self._told_to_stop.is_set():
            self._node.hurry.clear()

    # Following.

    async def _watch(self) -> None:
        try:
            async with asyncio.timeout(LOOK_SECONDS_MAX) as self._looking:
                leadership = await self._journal.read_leadership()
                if not self._node.key:
                    self._node.key = await self._journal.key()
                    self._known(self._node.key)
                await self._report()
        finally:
            self._looking = None
        seen = self._watcher.see(leadership, self._clock.monotonic_ms(), is_ours_over=not self._ending)
        self._log.saw(leadership, seen)
        if seen.leader is not None and _as_seen(leadership) != self._failed_at:
            # Not at the mere sight of a seat: its owner may be long gone, while no node can take it.
            self._cannot_lead = None
        self._node.trouble = None if self._cannot_lead is None else in_public(self._cannot_lead)
        self._node.tell(seen.leader, None)
        if seen.why_take is not None:
            await self._take(leadership, seen.why_take)

    async def _report(self) -> None:
        """Every few seconds, report this node to the store, and read which others did."""
        now_ms = self._clock.monotonic_ms()
        if self._reported_ms is not None and now_ms - self._reported_ms < REPORT_SECONDS * 1000:
            return
        self._reported_ms = now_ms
        await self._journal.report(self._node.me)
        asked_ms = self._clock.monotonic_ms()
        ages_ms = [peer.seen_ms_ago for peer in await self._journal.peers() if peer.process != self._node.me.process]
        self._heard_ms = asked_ms - min(ages_ms) if ages_ms else None

    # Leading.

    async def _take(self, leadership: Leadership, why_take: str) -> None:
        await asyncio.sleep(self._jitter_ms() / 1000)
        if self._told_to_stop.is_set():
            return
        log.info("this node tries to take the seat: %s", why_take)
        term = await self._begin(leadership)
        if term is None:
            return
        self._log.leads(term.leadership, why_take)
        self._cannot_lead = None
        self._node.trouble = None
        self._node.tell(None, term)
        try:
            why = await self._lead(term)
        except Exception as error:  # noqa: BLE001 - the term is over
            why = f"internal error: {type(error).__name__}: {error}"
        ending = asyncio.create_task(self._ended(term.end()))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        if term.engine.failed is None:
            # In order: all is answered before the node tells that nobody leads, and the links end.
            await asyncio.wait({ending})
        self._node.tell(None, None)
        self._node.look_soon()
        self._log.follows(term.leadership, why)

    async def _begin(self, leadership: Leadership) -> LeaderTerm | None:
        """Take the seat as it was seen, and return our term; None if that failed."""
        me, ours = self._node.me, _new_tenure()
        journal = self._journals(ours)
        if leadership.is_held:
            journal.depose(leadership)
        taken = msgspec.structs.replace(
            leadership,
            term_id=ours,
            is_held=True,
            node=me.node,
            process=me.process,
            url=me.url,
            version=me.version,
            since_wall_ms=self._clock.wall_ms(),
        )
        try:
            return await self._tenures(journal, taken)
        except (JournalLockedError, DeposedError) as error:
            self._log.lost_race(error)
            if self._lost_epoch == leadership.epoch:
                # No node was quicker, and yet it cannot be had. Not at every look.
                self._watcher.leave_alone(self._clock.monotonic_ms() + AGAIN_MS)
            self._lost_epoch = leadership.epoch
            self._node.look_soon()
        except Exception as error:  # noqa: BLE001 - another node may succeed, or this one later
            pause_ms = AGAIN_MS if isinstance(error, (*_AWAY, OutcomeUnknownError)) else ALONE_MS
            self._watcher.leave_alone(self._clock.monotonic_ms() + pause_ms)
            self._log.could_not_lead(error)
            self._cannot_lead, self._failed_at = error, _as_seen(leadership)
            self._node.trouble = in_public(error)
        return None

    async def _lead(self, term: LeaderTerm) -> str:
        engine, lonely = term.engine, Loneliness()
        ended = asyncio.ensure_future(engine.ended.wait())
        told = asyncio.ensure_future(self._told_to_stop.wait())
        reporting: asyncio.Task[None] | None = None
        try:
            while True:
                engine.heartbeat()
                await asyncio.wait({ended, told}, timeout=BEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if ended.done():
                    return engine.failed or "it ended"
                if told.done():
                    return "it was told to stop"
                if reporting is None or reporting.done():
                    reporting = asyncio.create_task(self._report_quietly())
                requests, now_ms = term.routes.requests, self._clock.monotonic_ms()
                if lonely.is_lonely(now_ms, links=self._node.links, requests=requests, heard_ms=self._heard_ms):
                    self._watcher.leave_alone(now_ms + ALONE_MS)
                    return "no other node and no client reached it for 5 s, although others are there"
        finally:
            for waiting in (ended, told, reporting):
                if waiting is not None:
                    waiting.cancel()

    async def _report_quietly(self) -> None:
        """Report while leading. If that fails, the heartbeat fails too, and is logged."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(LOOK_SECONDS_MAX):
                await self._report()

    async def _ended(self, ending: Awaitable[None]) -> None:
        try:
            await ending
        except Exception:
            log.exception("what was left of a leader term could not be ended in order")


def _as_seen(leadership: Leadership) -> tuple[int, str, int]:
    return leadership.epoch, leadership.term_id, leadership.heartbeat


def _new_tenure() -> str:
    return new_secret(16).hex()


class NodeLog:
    """Logs changes, as nearly every look finds what the last one found."""

    def __init__(self, node: str, clock: Clock) -> None:
        self._node = node
        self._clock = clock
        self._followed: tuple[int, str] | None = None  # The epoch and term that we follow.
        self._namesake: str | None = None
        self._said: set[str] = set()  # Logged of the current trouble: a store may fail in different ways.
        self._lost: str | None = None
        self._since = ""
        self.trouble: str | None = None  # Why the leader is unknown, and since when; None if the last look succeeded.

    def saw(self, leadership: Leadership, seen: Seen) -> None:
        if self.trouble is not None:
            log.warning("the store can be used again; it could not since %s", self._since)
            self.trouble = None
        leader = seen.leader
        if leader is None:
            if self._followed is not None and seen.why_take is None:
                log.warning("nobody leads now")
            self._followed = None
        elif (leader.epoch, leader.term_id) != self._followed:
            self._followed = leader.epoch, leader.term_id
            since = rfc3339(leader.since_wall_ms)
            log.warning("node %s leads since %s, epoch %d; we follow", leader.node, since, leader.epoch)
        if seen.is_namesake and self._namesake != leadership.process:
            self._namesake = leadership.process
            text = "another process at %s calls itself %s too: give each node a name of its own (setting node_name)"
            log.error(text, leadership.url, self._node)

    def missed(self, error: Exception) -> None:
        is_ours = isinstance(error, JournalError | TimeoutError | OSError)
        why = _words_of(error) if is_ours else f"internal error: {type(error).__name__}: {error}"
        if self.trouble is None:
            self._since = rfc3339(self._clock.wall_ms())
            self._said.clear()
        self._followed = None
        self.trouble = f"the store cannot be used since {self._since}: {why}"
        if self._is_new(why):
            log.error("%s; this node goes on looking", self.trouble, exc_info=None if is_ours else error)

    def lost_race(self, error: Exception) -> None:
        words = _words_of(error)
        if words != self._lost:
            self._lost = words
            log.warning("this node does not take the seat: %s", words)

    def could_not_lead(self, error: Exception) -> None:
        why = f"this node could not begin to lead: {_words_of(error)}"
        if self._is_new(why):
            is_ours = isinstance(error, JournalError | OSError)
            log.error("%s; it goes on trying", why, exc_info=None if is_ours else error)

    def leads(self, leadership: Leadership, why: str) -> None:
        self._followed = None
        self._said.clear()
        log.warning("this node leads since %s, epoch %d: %s", rfc3339(leadership.since_wall_ms), leadership.epoch, why)

    def follows(self, leadership: Leadership, why: str) -> None:
        why = why.removeprefix(f"epoch {leadership.epoch} is over: ")
        log.warning("this node does not lead any more, its epoch %d is over: %s", leadership.epoch, why)

    def _is_new(self, text: str) -> bool:
        if text in self._said or len(self._said) >= SAID_MAX:
            return False
        self._said.add(text)
        return True


def in_public(error: Exception) -> str:
    """Describe an error in fixed words, without addresses, names, or text from the store."""
    match error:
        case JournalLostError():
            return WENT_BACK
        case JournalDamagedError():
            return UNUSABLE
        case JournalUnavailableError() | OutcomeUnknownError() | TimeoutError() | OSError():
            return AWAY
        case _:
            return CANNOT_TELL


def _words_of(error: Exception) -> str:
    return str(error) or ("it did not answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
