"""When a command is told to stop and when it is made to, as arithmetic."""

from __future__ import annotations

import itertools

import pytest

from holdfast.run.supervisor import Plan, plan


@pytest.mark.parametrize(
    ("remaining", "longest", "grace", "expected"),
    [
        pytest.param(60, 60, 10, Plan(49_500, 59_500, 10_000), id="all is well"),
        pytest.param(20, 60, 10, Plan(9_500, 19_500, 10_000), id="some of it is over"),
        pytest.param(10.5, 60, 10, Plan(0, 10_000, 10_000), id="time to tell"),
        pytest.param(4, 60, 10, Plan(0, 3_500, 10_000), id="told late, the grace is shorter"),
        pytest.param(0.5, 60, 10, Plan(0, 0, 10_000), id="no time left for a grace"),
        pytest.param(0, 60, 10, Plan(0, 0, 10_000), id="lost"),
        pytest.param(12, 12, 60, Plan(7_500, 11_500, 4_000), id="a grace is at most a third of the lease"),
        pytest.param(2, 2, 10, Plan(1_234, 1_900, 666), id="a short lease has a short margin"),
        pytest.param(60, 60, 0, Plan(59_500, 59_500, 0), id="no grace"),
        pytest.param(float("inf"), float("inf"), 10, Plan(2**32 * 1_000 - 10_500, 2**32 * 1_000 - 500, 10_000), id="∞"),
    ],
)
def test_counted_back_from_the_deadline(remaining: float, longest: float, grace: float, expected: Plan) -> None:
    """SIGKILL comes a margin before the lease can be lost, and SIGTERM the grace before that."""
    assert plan(remaining, longest_seconds=longest, grace_seconds=grace) == expected


@pytest.mark.parametrize(
    ("remaining", "stopping_ms", "expected"),
    [
        pytest.param(60, None, Plan(0, 10_000, 10_000), id="plenty remains: the whole grace"),
        pytest.param(3, None, Plan(0, 2_500, 10_000), id="little remains"),
        pytest.param(0, None, Plan(0, 0, 10_000), id="nothing remains: killed at once"),
        pytest.param(60, 4_000, Plan(0, 6_000, 10_000), id="told before: a renewal does not take it back"),
        pytest.param(3, 4_000, Plan(0, 2_500, 10_000), id="the deadline comes first"),
        pytest.param(60, 99_000, Plan(0, 0, 10_000), id="the grace is over"),
    ],
)
def test_grace_is_limited_by_the_deadline(remaining: float, stopping_ms: int | None, expected: Plan) -> None:
    """Once it must stop it is told at once, and killed after the grace or when the lease ends."""
    assert plan(remaining, longest_seconds=60, grace_seconds=10, must_stop=True, stopping_ms=stopping_ms) == expected


def test_never_later_than_the_deadline() -> None:
    """Whatever the lease, the grace and the moment: TERM no later than KILL, and KILL before the deadline."""
    for longest, share, grace, must_stop, stopping_ms in itertools.product(
        [0.1, 1, 5, 30, 3_600], [0, 0.01, 0.3, 1], [0, 0.5, 10, 1_000], [False, True], [None, 0, 700, 50_000]
    ):
        remaining = longest * share
        found = plan(
            remaining,
            longest_seconds=longest,
            grace_seconds=grace,
            must_stop=must_stop,
            stopping_ms=stopping_ms,
        )
        assert 0 <= found.term_ms <= found.kill_ms
        assert found.kill_ms < remaining * 1_000 or found.kill_ms == 0
