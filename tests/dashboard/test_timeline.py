"""A name's history as a story and as a drawing: every lease and every wait has its place, and all of it is bounded."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.core.commands import Leave, Release, Reopen, Revoke, Transfer
from holdfast.core.events import Event, Record, names_of
from holdfast.core.values import Instant
from holdfast.dashboard import history, site
from holdfast.dashboard.history import (
    BADLY,
    CHANGES_MAX,
    JobHistory,
    JobTimeline,
    TimelineSpan,
    history_row,
    job_history_of,
    timeline_of,
)
from holdfast.engine.build import HistoryPage
from tests.core.bare_core import Core
from tests.support.commands import acquire

NAME = "job"
WALL_MS = 1_800_000_000_000


class HistoryEvent(Core):
    """The core with a history: what has happened so far, by record."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Record] = []
        self.at(0)

    def at(self, seconds: float) -> None:
        """Let it be so late."""
        ms = int(1_000 * seconds)
        self.now = Instant(ms, WALL_MS + ms)
        self.expire_due()

    def record(self, event: Event) -> None:
        self.records.append(Record(self.state.seq + 1, self.now.ms, self.now.wall_ms, event))
        super().record(event)

    def claim(self, owner: str | None, seconds: int = 60, token: int = 0, *, wait: bool = False) -> None:
        lease_id = f"L{len(self.records)}"
        wait_ms, new_ticket = (50_000, f"t-{owner}-{len(self.records)}") if wait else (0, "")
        self.ask(
            acquire(name=NAME, principal="p", owner=owner, lease_id=lease_id, ttl_ms=1_000 * seconds, wait_ms=wait_ms,
                    new_ticket=new_ticket)
        )  # fmt: skip

    @property
    def lease_id(self) -> str:
        lease = self.state.lease_of(NAME)
        assert lease is not None
        return lease.lease_id

    def page(self, *, before: int | None = None, offset: int = 0, limit: int = 100) -> JobHistory:
        """A page of history, as the journal gives it."""
        upto = None if before is None else before + (1 if offset else 0)
        those = [each for each in reversed(self.records) if NAME in names_of(each.event)]
        found = [each for each in those if upto is None or each.seq < upto]
        next_before = found[limit - 1].seq if len(found) > limit else None
        return job_history_of(HistoryPage(found[:limit], next_before), NAME, offset=offset, before=before)

    def story(self) -> JobTimeline:
        return timeline_of(self.page(), self.state.lease_of(NAME), is_newest=True)


def ends(story: JobTimeline) -> list[tuple[str, str]]:
    return [(held.owner, "live" if held.is_live else held.how) for held in story.held]


def test_every_end_has_its_word() -> None:
    """Releases, failures, finished work, expiries, revocations and transfers are told apart, in their order."""
    core = HistoryEvent()
    core.claim("ana")
    core.ask(Release(name=NAME, principal="p", lease_id=core.lease_id))
    core.at(1)
    core.claim("ben")
    core.ask(Release(name=NAME, principal="p", lease_id=core.lease_id, failed=True))
    core.at(2)
    core.claim("cem", seconds=3)
    core.at(5)
    core.at(10)
    core.claim("dan")
    core.ask(Revoke(name=NAME, principal="op", reason="stuck"))
    core.at(11)
    core.claim("eve")
    core.ask(
        Transfer(name=NAME, principal="p", lease_id=core.lease_id, new_lease_id="N", to_owner="fay", reason="shift")
    )
    core.at(12)
    core.ask(Release(name=NAME, principal="p", lease_id=core.lease_id, done=True, remember_ms=60_000, result="ok"))
    core.at(13)
    core.ask(Reopen(name=NAME, principal="op", reason="again"))
    core.claim(None)
    story = core.story()
    assert ends(story) == [
        ("ana", "released"),
        ("ben", "failed"),
        ("cem", "expired"),
        ("dan", "revoked"),
        ("eve", "transferred"),
        ("fay", "done"),
        ("(access token p)", "live"),
    ]
    assert [held.how in BADLY for held in story.held] == [False, True, True, True, False, False, False]
    assert story.held[2].to_ms == WALL_MS + 5_000
    assert (story.held[3].by, story.held[3].reason) == ("op", "stuck")
    assert story.held[4].reason == "shift"
    assert story.reopened_ms == [WALL_MS + 13_000]
    assert [held.token for held in story.held] == [1, 2, 3, 4, 5, 6, 7]


def test_a_wait_ends_with_its_grant_or_with_its_reason() -> None:
    """Who stood in line is told from joining to having, or to leaving, and who still waits has no end."""
    core = HistoryEvent()
    core.claim("ana")
    core.at(1)
    core.claim("ben", wait=True)
    core.claim("cem", wait=True)
    core.claim("dan", wait=True)
    core.at(4)
    ticket = next(each for each in core.state.tickets.values() if each.terms.owner == "cem")
    core.ask(Leave(ticket_id=ticket.ticket_id, principal="p"))
    core.at(6)
    core.ask(Release(name=NAME, principal="p", lease_id=core.lease_id))
    assert [(each.owner, each.from_ms, each.to_ms, each.how) for each in core.story().waited] == [
        ("ben", WALL_MS + 1_000, WALL_MS + 6_000, "granted"),
        ("cem", WALL_MS + 1_000, WALL_MS + 4_000, "withdrawn"),
        ("dan", WALL_MS + 1_000, None, ""),
    ]


def test_a_page_that_begins_in_the_middle_says_so() -> None:
    """A lease whose beginning is on an older page has none here, and one that ended later has no end."""
    core = HistoryEvent()
    for number in range(6):
        core.at(2 * number)
        core.claim(f"o{number}")
        core.at(2 * number + 1)
        core.ask(Release(name=NAME, principal="p", lease_id=core.lease_id))
    newest = timeline_of(core.page(limit=3), None, is_newest=True)
    assert ends(newest) == [("o4", "released"), ("o5", "released")]
    assert newest.held[0].from_ms is None
    page = core.page(limit=3)
    older = timeline_of(core.page(before=page.next_before, limit=3), None, is_newest=False)
    assert ends(older) == [("o3", "released"), ("o4", "")]
    assert older.held[-1].to_ms is None and not older.held[-1].is_live


def test_the_lease_that_lives_is_there_though_its_grant_is_not_on_the_page() -> None:
    """The state is newer than a page of history, and knows a lease that is older than it: both are drawn once."""
    core = HistoryEvent()
    core.claim("ana", seconds=10_000)
    for number in range(5):
        core.claim(f"w{number}", wait=True)
    story = timeline_of(core.page(limit=3), core.state.lease_of(NAME), is_newest=True)
    assert ends(story) == [("ana", "live")]
    assert len(core.story().held) == 1


def test_timeline_pages_show_each_change_once() -> None:
    """A record that says more than fits is cut, and the next page goes on inside of it."""
    core = HistoryEvent()
    core.claim("ana", seconds=10_000)
    for number in range(CHANGES_MAX + 120):
        core.claim(f"w{number}", wait=True)
    core.ask(Release(name=NAME, principal="p", lease_id=core.lease_id, done=True, remember_ms=60_000))
    rows: list[tuple[int, str, str]] = []
    page, pages = core.page(), 1
    while True:
        rows += [(each.seq, each.event, each.owner) for each in (history_row(*pair) for pair in page.events)]
        assert len(page.events) <= CHANGES_MAX
        if page.next_before is None:
            break
        page, pages = core.page(before=page.next_before, offset=page.next_offset), pages + 1
    assert pages > 3
    waited = CHANGES_MAX + 120
    assert [event for _, event, _ in rows] == ["left"] * waited + ["done"] + ["waiting"] * waited + ["granted"]
    assert len(set(rows)) == len(rows)


def test_timeline_contains_no_secret() -> None:
    """Neither a lease id nor a ticket leaves the history."""
    core = HistoryEvent()
    core.claim("ana")
    core.claim("ben", wait=True)
    core.ask(Release(name=NAME, principal="p", lease_id=core.lease_id))
    page = core.page()
    text = str(core.story()) + str([history_row(*pair) for pair in page.events])
    for secret in ("L0", "L1", "t-ben-1"):
        assert secret not in text


# The drawing.


def held(from_ms: int | None, to_ms: int | None, how: str = "released") -> TimelineSpan:
    return TimelineSpan("ana", from_ms, to_ms, how, token=1)


def draw(
    *those: TimelineSpan, waited: Sequence[TimelineSpan] = (), now_ms: int = 100_000, is_newest: bool = True
) -> history.TimelineDrawing:
    drawn = history.draw(JobTimeline(list(those), list(waited)), now_ms, is_newest=is_newest)
    assert drawn is not None
    return drawn


def test_timeline_without_changes_is_empty() -> None:
    """A name without a past has no history."""
    assert history.draw(JobTimeline([], []), 5, is_newest=True) is None


def test_time_is_drawn_in_proportion() -> None:
    """Bars stand where their times are, from the first to now, and never outside."""
    drawn = draw(held(0, 25_000), held(50_000, None, ""))
    assert [(bar.x, bar.width) for bar in drawn.bars] == [(0, 250), (500, 500)]
    assert all(bar.x >= 0 and bar.x + bar.width <= history.WIDTH for bar in drawn.bars)


def test_the_shortest_lease_can_be_seen() -> None:
    """What is shorter than a pixel is drawn as wide as can be pointed at, also at the right edge."""
    drawn = draw(held(0, 1), held(99_999, 100_000))
    assert [bar.width for bar in drawn.bars] == [history.BAR_WIDTH_MIN] * 2
    assert drawn.bars[1].x + drawn.bars[1].width <= history.WIDTH


def test_open_ends_are_not_rounded_and_narrow_bars_have_no_label() -> None:
    """A bar is rounded only if both its ends are on the page, and says its owner only where that has room."""
    leases = (held(None, 40_000), held(40_000, 41_000), held(41_000, 90_000), held(90_000, None, ""))
    drawn = draw(*leases, waited=[TimelineSpan("ben", 0, 1_000, "withdrawn")])
    text = site.environment().get_template("timeline.html").render(drawing=drawn, name=NAME)
    bars = [each.split("</g>")[0] for each in text.split('<rect class="lease ')[1:]]
    assert ['rx="3"' in bar for bar in bars] == [False, True, True, False]
    assert [re.findall(r"<text [^>]*>(.*?)</text>", bar) for bar in bars] == [["ana"], [], ["ana"], ["ana"]]


def test_an_older_page_ends_with_its_last_record() -> None:
    """Only the newest page reaches up to now; what goes on after an older one reaches its edge."""
    drawn = draw(held(0, 10_000), held(10_000, None, ""), now_ms=9_000_000, is_newest=False)
    assert drawn.to_ms == 10_000
    assert drawn.bars[1].x == history.WIDTH - history.BAR_WIDTH_MIN


def test_timeline_stacks_simultaneous_waits() -> None:
    """Waits that overlap stand in lanes of their own; of a crowd the first are drawn, the others counted."""
    crowd = [TimelineSpan("ben", 1_000 * number, None) for number in range(50)]
    drawn = draw(held(0, None, ""), waited=crowd)
    assert len(drawn.waits) == history.WAIT_ROWS_MAX
    assert drawn.waits_left_out == 50 - history.WAIT_ROWS_MAX
    assert len({bar.y for bar in drawn.waits}) == history.WAIT_ROWS_MAX
    one_by_one = [TimelineSpan("ben", 10_000 * number, 10_000 * number + 5_000, "granted") for number in range(8)]
    assert {bar.y for bar in draw(held(0, None, ""), waited=one_by_one).waits} == {0}


def test_the_axis_has_round_times() -> None:
    """However long the story is, the axis has a few marks at round times, in their order."""
    for length_ms in (1, 999, 5_000, 61_000, 3_600_000, 86_400_000, 40 * 86_400_000, 10**15):
        drawn = draw(held(7, 7 + length_ms), now_ms=0)
        assert len(drawn.ticks) <= history.TICKS_MAX + 1
        assert all(tick.at_ms % tick.step_ms == 0 for tick in drawn.ticks)
        assert all(0 <= tick.x <= history.WIDTH for tick in drawn.ticks)
        assert len(drawn.ticks) >= (1 if length_ms >= 2_000 else 0)


def test_a_wall_clock_that_was_set_back_draws_no_nonsense() -> None:
    """Where a lease seems to end before it began, it ends where it began."""
    core = HistoryEvent()
    core.at(100)
    core.claim("ana", seconds=1_000)
    core.now = Instant(core.now.ms + 1, WALL_MS - 50_000)
    core.ask(Release(name=NAME, principal="p", lease_id=core.lease_id))
    story = core.story()
    assert story.held[0].to_ms == story.held[0].from_ms
    drawn = history.draw(story, WALL_MS - 50_000, is_newest=True)
    assert drawn is not None and all(bar.width >= history.BAR_WIDTH_MIN for bar in drawn.bars)
