"""What a look at the seat means: silence is counted on our own clock, and only over what was seen (N-13, N-37)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.cluster.watcher import ISOLATED_MS, LINK_MS, IsolationDetector, Observation, Watcher
from holdfast.engine.build import Leadership

POLL_MS = 250
LEADERSHIP = Leadership(
    authority="x",
    epoch=7,
    term_id="t7",
    heartbeat=100,
    is_held=True,
    node="b",
    process="pb",
    url="http://b",
    last_seq=10,
    now_ms=0,
    since_wall_ms=0,
    format=1,
    version="test",
)


def leadership(**changes: object) -> Leadership:
    return msgspec.structs.replace(LEADERSHIP, **changes)


class WatcherHarness:
    """A watcher of node a, and the clock that its looks are counted on."""

    def __init__(self, takeover_ms: int = 2_000) -> None:
        self.watcher = Watcher("a", "pa", takeover_ms=takeover_ms)
        self.now_ms = 50_000

    def poll(self, seen: Leadership, after_ms: int = POLL_MS, *, is_ours_over: bool = True) -> Observation:
        self.now_ms += after_ms
        return self.watcher.observe(seen, self.now_ms, is_ours_over=is_ours_over)

    def polls_until_taken(self, seen: Leadership, after_ms: int = POLL_MS) -> int:
        """How many more looks at a seat that stands still it takes."""
        for number in range(1, 1_000):
            if self.poll(seen, after_ms).why_take is not None:
                return number
        raise AssertionError("it is never taken")


def test_silent_leader_is_deposed() -> None:
    """A seat that stood still for two seconds is taken, and before that its node is followed (N-13)."""
    harness = WatcherHarness()
    first = harness.poll(LEADERSHIP)
    assert first == Observation(LEADERSHIP)
    assert harness.polls_until_taken(LEADERSHIP) == 2_000 // POLL_MS


def test_writing_leader_is_followed() -> None:
    """Whatever rises under the seat is a sign of life: it is never taken (N-13)."""
    harness = WatcherHarness()
    for heartbeat in range(1_000):
        assert harness.poll(leadership(heartbeat=heartbeat)).why_take is None
        assert harness.poll(leadership(heartbeat=heartbeat)).why_take is None


@pytest.mark.parametrize("changes", [{"heartbeat": 101}, {"epoch": 8, "term_id": "t8"}, {"term_id": "other"}])
def test_any_change_resets_the_silence(changes: dict[str, object]) -> None:
    """Another beat, epoch or tenure begins the count anew (N-13, N-1)."""
    harness = WatcherHarness()
    for _ in range(7):
        harness.poll(LEADERSHIP)
    assert harness.poll(leadership(**changes)).why_take is None
    assert harness.polls_until_taken(leadership(**changes)) == 2_000 // POLL_MS


def test_paused_follower_does_not_depose_the_leader() -> None:
    """Between two looks at most half a second counts: who was stopped for an hour saw nothing meanwhile (N-13)."""
    harness = WatcherHarness()
    harness.poll(LEADERSHIP)
    for _ in range(3):
        assert harness.poll(LEADERSHIP, after_ms=3_600_000).why_take is None
    assert harness.poll(LEADERSHIP, after_ms=3_600_000).why_take is not None, "but in the end silence is silence"


def test_failed_poll_adds_no_silence() -> None:
    """Time around a look that failed does not count: an unreachable store has no silent leader (N-13)."""
    harness = WatcherHarness()
    harness.poll(LEADERSHIP)
    for _ in range(100):
        harness.watcher.note_failed_poll()
        assert harness.poll(LEADERSHIP, after_ms=POLL_MS).why_take is None
    assert harness.polls_until_taken(LEADERSHIP) == 2_000 // POLL_MS


def test_free_leadership_is_taken_immediately() -> None:
    """Whoever gave the seat back is waited for by nobody (N-13)."""
    harness = WatcherHarness()
    harness.poll(LEADERSHIP)
    seen = harness.poll(leadership(is_held=False, heartbeat=101))
    assert seen.why_take is not None and seen.leader is None


def test_own_lost_term_is_taken_over_immediately() -> None:
    """A seat in the name of this process is taken at once, but not while a tenure of ours runs or stops (N-13)."""
    harness = WatcherHarness()
    ours = leadership(node="a", process="pa")
    assert harness.poll(ours, is_ours_over=False) == Observation(None)
    assert harness.poll(ours).why_take is not None


def test_restarted_node_takes_over_its_own_leadership() -> None:
    """At its first look a process takes a seat that has its node's name: whoever that was runs no more (N-13)."""
    harness = WatcherHarness()
    assert harness.poll(leadership(node="a", process="old")).why_take is not None


def test_namesake_is_reported_and_not_deposed() -> None:
    """Later a seat of another process with our name is anybody's: it is reported, and deposed for silence alone."""
    harness = WatcherHarness()
    harness.poll(LEADERSHIP)
    namesake = leadership(node="a", process="other", epoch=8)
    harness.poll(namesake)
    alive = msgspec.structs.replace(namesake, heartbeat=101)
    seen = harness.poll(alive)
    assert seen.is_namesake and seen.why_take is None and seen.leader is not None
    assert harness.polls_until_taken(alive) == 2_000 // POLL_MS


def test_dead_namesake_is_not_reported() -> None:
    """A store that was restored has the seat of this node as it was then: no other process has its name."""
    harness = WatcherHarness()
    harness.poll(LEADERSHIP)
    former = leadership(node="a", process="former", epoch=3, is_rolled_back=True)
    harness.watcher.back_off_until(harness.now_ms + 60_000)
    assert not any(harness.poll(former).is_namesake for _ in range(40))


def test_lower_epoch_is_stale() -> None:
    """An old copy of the store changes nothing: neither whom to follow nor what was counted (N-2)."""
    harness = WatcherHarness()
    harness.poll(LEADERSHIP)
    for _ in range(100):
        seen = harness.poll(leadership(epoch=6, term_id="t6", node="c", is_held=False))
        assert seen == Observation(LEADERSHIP), "the leader is still the one that was seen under the higher epoch"
    assert harness.poll(LEADERSHIP).why_take is None


@pytest.mark.parametrize("changes", [{"token_gaps": 1}, {"wants_token_gap": True}, {"is_rolled_back": True}])
def test_store_that_lost_an_epoch_and_goes_on_is_believed(changes: dict[str, object]) -> None:
    """A lower epoch is new once tokens jumped, an operator said so, or a node may go on after a loss (N-22, N-23)."""
    harness = WatcherHarness()
    for _ in range(7):
        harness.poll(LEADERSHIP)
    lost = leadership(epoch=6, term_id="t6", node="c", **changes)
    assert harness.poll(lost) == Observation(lost), "it is followed, and was not silent yet"
    assert harness.polls_until_taken(lost) == 2_000 // POLL_MS


def test_store_before_the_token_gap_is_stale() -> None:
    """An old copy from before tokens jumped changes nothing, however high its epoch is (N-2, N-21)."""
    harness = WatcherHarness()
    jumped = leadership(token_gaps=1)
    harness.poll(jumped)
    assert harness.poll(leadership(epoch=9, term_id="t9", node="c")) == Observation(jumped)


def test_watcher_backs_off() -> None:
    """Who gave the seat back for a reason leaves it alone for a while, also if nobody takes it (N-37)."""
    harness = WatcherHarness()
    harness.watcher.back_off_until(harness.now_ms + 10_000)
    assert harness.polls_until_taken(leadership(is_held=False)) == 10_000 // POLL_MS


def test_takeover_time_is_a_setting() -> None:
    """How long a leader may be silent is a setting (N-13)."""
    harness = WatcherHarness(takeover_ms=500)
    harness.poll(LEADERSHIP)
    assert harness.polls_until_taken(LEADERSHIP) == 2


def isolated_at(detector: IsolationDetector, now_ms: int, **company: Any) -> bool:  # noqa: ANN401 - passed on as it is
    """Whether it is lonely by then. Without a word of it another node told of itself just now."""
    return detector.is_isolated(now_ms, **{"links": 0, "requests": 0, "peer_seen_ms": now_ms, **company})


def test_unreachable_leader_detects_isolation() -> None:
    """Other nodes live, none has a link, nobody asks: after five seconds the leader knows that it is cut off (N-37)."""
    detector = IsolationDetector()
    for now_ms in range(0, ISOLATED_MS, 500):
        assert not isolated_at(detector, now_ms)
    assert isolated_at(detector, ISOLATED_MS)


@pytest.mark.parametrize("company", [{"links": 1}, {"requests": 1}, {"peer_seen_ms": None}])
def test_connected_leader_stays(company: dict[str, Any]) -> None:
    """A link, a request, or that there is no other node at all: each is a reason to stay (N-37)."""
    detector = IsolationDetector()
    requests = company.get("requests", 0)
    for now_ms in range(0, ISOLATED_MS, 500):
        assert not isolated_at(detector, now_ms)
    assert not isolated_at(detector, ISOLATED_MS, **company)
    for now_ms in range(ISOLATED_MS + 500, 2 * ISOLATED_MS + 500, 500):
        assert not isolated_at(detector, now_ms, requests=requests), "and the count begins anew"
    assert isolated_at(detector, 2 * ISOLATED_MS + 500, requests=requests)


def test_recently_dead_node_does_not_isolate_the_leader() -> None:
    """Who told of itself before its link was lost, and not since, may be gone: an idle leader stays (N-37)."""
    detector = IsolationDetector()
    for now_ms in range(0, 60_000, 500):
        assert not isolated_at(detector, now_ms, peer_seen_ms=-1)


@pytest.mark.parametrize("back_ms", [4_000, 7_000, 20_000])
def test_returning_node_has_time_to_link(back_ms: int) -> None:
    """A node that died, and tells of itself again, has two seconds for its link, whenever that is (N-37)."""
    detector = IsolationDetector()
    for now_ms in range(0, back_ms, 500):
        assert not isolated_at(detector, now_ms, peer_seen_ms=-1)
    for now_ms in range(back_ms, back_ms + LINK_MS, 500):
        assert not isolated_at(detector, now_ms, peer_seen_ms=back_ms)
