"""The election loop of a node: follow until nobody leads or the leader is silent, lead for one term, follow again.

    ┌─► poll ── another leads: follow ──┐
    │     └──── campaign                │ four times a second, whatever the poll found
    │             │                     │
    │          term: a heartbeat twice a second, until deposed, failed, isolated, or asked to stop
    └─────────────┴─────────────────────┘

**The loop never ends by an error:** a node that stopped polling would never lead again. A failed poll, a term that
cannot begin, and a term that ends for any reason all lead back to the next poll, until `stop`.

**One journal has one term**, and is closed with it. Another journal, which never holds the leadership, is for the
polls. Polling continues while a term is being ended: an unanswered last write must not keep this node from following.

**The heartbeat** is an empty read through the one write path (N-14): it confirms the leadership, or rides on an append.
If the loop, the engine or the store hangs, the heartbeat stops, and other nodes see that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import msgspec

from holdfast.api.rendering import rfc3339
from holdfast.cluster.node import LeaderTerm, Node
from holdfast.cluster.watcher import BACKOFF_MS, IsolationDetector, Observation, Watcher
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

POLL_SECONDS = 0.25
POLL_SECONDS_MAX = 5.0  # A poll that takes longer is cancelled.
HEARTBEAT_SECONDS = 0.5
REPORT_SECONDS = 3.0
RETRY_MS = 1_000  # The wait after a term could not begin because the store was away.
LOGGED_ERRORS_MAX = 16  # Different errors logged until the next success.
WENT_BACK = "the store went back in time, or is another one: if it was restored, run `holdfast store restored`"
UNUSABLE = "what the store has cannot be used by this node: its log says why"
AWAY = "the store cannot be reached, or refuses what is asked: the log says why"
CANNOT_LEAD = "this node cannot use the store, or could not lead: its log says why"
_AWAY = (JournalUnavailableError, TimeoutError, OSError)  # The store cannot be reached.

log = logging.getLogger("holdfast.node")


class ElectionLoop:
    def __init__(
        self,
        node: Node,
        *,
        journals: Callable[[str], SharedJournal],
        start_term: Callable[[SharedJournal, Leadership], Awaitable[LeaderTerm]],
        clock: Clock,
        takeover_ms: int,
        jitter_ms: Callable[[], int],
        on_key: Callable[[bytes], None] = lambda _key: None,
    ) -> None:
        """`journals` makes the journal of a term from its name, `start_term` begins the term.

        `start_term` gets the leadership as it will be, without its epoch, which only the acquiring write knows.
        `jitter_ms` draws the wait before a campaign. `on_key` is called with the authority's key.
        """
        self._node = node
        self._journals = journals
        self._start_term = start_term
        self._clock = clock
        self._jitter_ms = jitter_ms
        self._on_key = on_key
        self._watcher = Watcher(node.me.node, node.me.process, takeover_ms=takeover_ms)
        self._log = NodeLog(node.me.node, clock)
        self._journal = journals(_new_term_id())  # For polls and reports. It never holds the leadership.
        self._stop_requested = asyncio.Event()
        self._poll_timeout: asyncio.Timeout | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._peer_seen_ms: int | None = (
            None  # When another node last reported, as far as known. Never later than it was.
        )
        self._reported_ms: int | None = None
        self._lead_error: Exception | None = None  # By the last attempt; None if it succeeded, or another leads.
        self._failed_at: tuple[int, str, int] | None = None  # The leadership that it could not acquire, as seen then.
        self._lost_epoch: int | None = None  # Where another node won last, while we tried.

    # Start and stop.

    async def run(self) -> None:
        while not self._stop_requested.is_set():
            try:
                await self._poll()
            except Exception as error:  # noqa: BLE001 - a node that stops looking never leads again
                if self._stop_requested.is_set():
                    break
                self._watcher.note_failed_poll()
                self._log.poll_failed(error)
                self._node.trouble = public_reason(error)
                if not isinstance(error, _AWAY):
                    # The store is not what it was. One that only cannot be reached may have a leader all the same,
                    # which answers over our link or does not.
                    self._node.set_leader(None, None)
            await self._sleep()
        self._node.set_leader(None, None)
        while self._ending:
            await asyncio.wait(self._ending)
        self._journal.hurry(0)  # To tell the others that this node ends is a courtesy.
        await self._finish(self._journal.close())

    @property
    def is_stop_requested(self) -> bool:
        """Whether `run` ends, or has ended, because it was told to. If it ends otherwise, it may be run again."""
        return self._stop_requested.is_set()

    def stop(self) -> None:
        """Give up the leadership if it is ours, and stop polling. `run` returns when that is done."""
        self._stop_requested.set()
        self._node.wake_up.set()
        if self._poll_timeout is not None:
            # Its result is of no use any more.
            self._poll_timeout.reschedule(0)

    async def _sleep(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._node.wake_up.wait(), POLL_SECONDS)
        if not self._stop_requested.is_set():
            self._node.wake_up.clear()

    # Following.

    async def _poll(self) -> None:
        try:
            async with asyncio.timeout(POLL_SECONDS_MAX) as self._poll_timeout:
                leadership = await self._journal.read_leadership()
                if not self._node.key:
                    self._node.key = await self._journal.key()
                    self._on_key(self._node.key)
                await self._report()
        finally:
            self._poll_timeout = None
        observed = self._watcher.observe(leadership, self._clock.monotonic_ms(), is_ours_over=not self._ending)
        self._log.polled(leadership, observed)
        if observed.leader is not None and _as_seen(leadership) != self._failed_at:
            # A leadership that was only seen proves nothing: its owner may be gone, and no node able to lead.
            self._lead_error = None
        self._node.trouble = None if self._lead_error is None else public_reason(self._lead_error)
        self._node.set_leader(observed.leader, None)
        if observed.why_take is not None:
            await self._campaign(leadership, observed.why_take)

    async def _report(self) -> None:
        """Every few seconds, report this node to the store, and read which others did."""
        now_ms = self._clock.monotonic_ms()
        if self._reported_ms is not None and now_ms - self._reported_ms < REPORT_SECONDS * 1000:
            return
        self._reported_ms = now_ms
        await self._journal.report(self._node.me)
        asked_ms = self._clock.monotonic_ms()
        ages_ms = [peer.seen_ms_ago for peer in await self._journal.peers() if peer.process != self._node.me.process]
        self._peer_seen_ms = asked_ms - min(ages_ms) if ages_ms else None

    # Leading.

    async def _campaign(self, leadership: Leadership, why_take: str) -> None:
        await asyncio.sleep(self._jitter_ms() / 1000)
        if self._stop_requested.is_set():
            return
        log.info("this node tries to take the seat: %s", why_take)
        term = await self._begin_term(leadership)
        if term is None:
            return
        self._log.leads(term.leadership, why_take)
        self._lead_error = None
        self._node.trouble = None
        self._node.set_leader(None, term)
        try:
            why = await self._lead(term)
        except Exception as error:  # noqa: BLE001 - the term is over
            why = f"internal error: {type(error).__name__}: {error}"
        ending = asyncio.create_task(self._finish(term.end()))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        if term.engine.failed is None:
            # In order: all is answered before the node tells that nobody leads, and the links end.
            await asyncio.wait({ending})
        self._node.set_leader(None, None)
        self._node.poll_soon()
        self._log.follows(term.leadership, why)

    async def _begin_term(self, leadership: Leadership) -> LeaderTerm | None:
        """Acquire the leadership as it was seen, and return our term; None if that failed."""
        me, term_id = self._node.me, _new_term_id()
        journal = self._journals(term_id)
        if leadership.is_held:
            journal.depose(leadership)
        taken = msgspec.structs.replace(
            leadership,
            term_id=term_id,
            is_held=True,
            node=me.node,
            process=me.process,
            url=me.url,
            version=me.version,
            since_wall_ms=self._clock.wall_ms(),
        )
        try:
            return await self._start_term(journal, taken)
        except (JournalLockedError, DeposedError) as error:
            self._log.lost_race(error)
            if self._lost_epoch == leadership.epoch:
                # No other node won, and yet it cannot be acquired: do not try at every poll.
                self._watcher.back_off_until(self._clock.monotonic_ms() + RETRY_MS)
            self._lost_epoch = leadership.epoch
            self._node.poll_soon()
        except Exception as error:  # noqa: BLE001 - another node may succeed, or this one later
            pause_ms = RETRY_MS if isinstance(error, (*_AWAY, OutcomeUnknownError)) else BACKOFF_MS
            self._watcher.back_off_until(self._clock.monotonic_ms() + pause_ms)
            self._log.could_not_lead(error)
            self._lead_error, self._failed_at = error, _as_seen(leadership)
            self._node.trouble = public_reason(error)
        return None

    async def _lead(self, term: LeaderTerm) -> str:
        engine, isolation = term.engine, IsolationDetector()
        ended = asyncio.ensure_future(engine.ended.wait())
        stop_requested = asyncio.ensure_future(self._stop_requested.wait())
        reporting: asyncio.Task[None] | None = None
        try:
            while True:
                engine.heartbeat()
                await asyncio.wait(
                    {ended, stop_requested}, timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if ended.done():
                    return engine.failed or "it ended"
                if stop_requested.done():
                    return "it was told to stop"
                if reporting is None or reporting.done():
                    reporting = asyncio.create_task(self._report_while_leading())
                requests, now_ms = term.routes.requests, self._clock.monotonic_ms()
                if isolation.is_isolated(
                    now_ms, links=self._node.links, requests=requests, peer_seen_ms=self._peer_seen_ms
                ):
                    self._watcher.back_off_until(now_ms + BACKOFF_MS)
                    return "no other node and no client reached it for 5 s, although others are there"
        finally:
            for waiting in (ended, stop_requested, reporting):
                if waiting is not None:
                    waiting.cancel()

    async def _report_while_leading(self) -> None:
        """Report while leading. If that fails, the heartbeat fails too, and is logged."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(POLL_SECONDS_MAX):
                await self._report()

    async def _finish(self, ending: Awaitable[None]) -> None:
        try:
            await ending
        except Exception:
            log.exception("what was left of a leader term could not be ended in order")


def _as_seen(leadership: Leadership) -> tuple[int, str, int]:
    return leadership.epoch, leadership.term_id, leadership.heartbeat


def _new_term_id() -> str:
    return new_secret(16).hex()


class NodeLog:
    """Logs changes: nearly every poll finds what the last one found."""

    def __init__(self, node: str, clock: Clock) -> None:
        self._node = node
        self._clock = clock
        self._followed: tuple[int, str] | None = None  # The epoch and term that we follow.
        self._namesake: str | None = None
        self._logged: set[str] = set()  # Logged of the current trouble: a store may fail in different ways.
        self._lost_reason: str | None = None
        self._since = ""
        self.trouble: str | None = None  # Why the leader is unknown, and since when; None if the last poll succeeded.

    def polled(self, leadership: Leadership, observed: Observation) -> None:
        if self.trouble is not None:
            log.warning("the store can be used again; it could not since %s", self._since)
            self.trouble = None
        leader = observed.leader
        if leader is None:
            if self._followed is not None and observed.why_take is None:
                log.warning("nobody leads now")
            self._followed = None
        elif (leader.epoch, leader.term_id) != self._followed:
            self._followed = leader.epoch, leader.term_id
            since = rfc3339(leader.since_wall_ms)
            log.warning("node %s leads since %s, epoch %d; we follow", leader.node, since, leader.epoch)
        if observed.is_namesake and self._namesake != leadership.process:
            self._namesake = leadership.process
            text = "another process at %s calls itself %s too: give each node a name of its own (setting node_name)"
            log.error(text, leadership.url, self._node)

    def poll_failed(self, error: Exception) -> None:
        is_ours = isinstance(error, JournalError | TimeoutError | OSError)
        why = _text_of(error) if is_ours else f"internal error: {type(error).__name__}: {error}"
        if self.trouble is None:
            self._since = rfc3339(self._clock.wall_ms())
            self._logged.clear()
        self._followed = None
        self.trouble = f"the store cannot be used since {self._since}: {why}"
        if self._is_new(why):
            log.error("%s; this node goes on looking", self.trouble, exc_info=None if is_ours else error)

    def lost_race(self, error: Exception) -> None:
        words = _text_of(error)
        if words != self._lost_reason:
            self._lost_reason = words
            log.warning("this node does not take the seat: %s", words)

    def could_not_lead(self, error: Exception) -> None:
        why = f"this node could not begin to lead: {_text_of(error)}"
        if self._is_new(why):
            is_ours = isinstance(error, JournalError | OSError)
            log.error("%s; it goes on trying", why, exc_info=None if is_ours else error)

    def leads(self, leadership: Leadership, why: str) -> None:
        self._followed = None
        self._logged.clear()
        log.warning("this node leads since %s, epoch %d: %s", rfc3339(leadership.since_wall_ms), leadership.epoch, why)

    def follows(self, leadership: Leadership, why: str) -> None:
        why = why.removeprefix(f"epoch {leadership.epoch} is over: ")
        log.warning("this node does not lead any more, its epoch %d is over: %s", leadership.epoch, why)

    def _is_new(self, text: str) -> bool:
        if text in self._logged or len(self._logged) >= LOGGED_ERRORS_MAX:
            return False
        self._logged.add(text)
        return True


def public_reason(error: Exception) -> str:
    """Describe an error in fixed words, without addresses, names, or text from the store."""
    match error:
        case JournalLostError():
            return WENT_BACK
        case JournalDamagedError():
            return UNUSABLE
        case JournalUnavailableError() | OutcomeUnknownError() | TimeoutError() | OSError():
            return AWAY
        case _:
            return CANNOT_LEAD


def _text_of(error: Exception) -> str:
    return str(error) or ("it did not answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
