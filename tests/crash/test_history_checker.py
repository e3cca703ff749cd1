"""The judges are judged: each bug is planted and must be found, and no correct history may be accused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.crash.history import Kind, Operation, Outcome, What, check_search, check_tokens, check_witness, judge
from tests.crash.simulated_server import Bug, Imagined
from tests.support import proof

SEEDS = proof.count("history: imagined ones for each bug")
OPERATIONS = 200
STEPS_MAX = 20_000
"""Where a bug is, the search tries everything before it says so; this much tells most of them."""

TOKENS, WITNESS, SEARCH = "tokens", "witness", "search"


def found_by(played: Imagined) -> set[str]:
    """Which judges complain."""
    operations = played.history.operations
    found = set()
    if check_tokens(operations):
        found.add(TOKENS)
    if check_witness(operations, played.journal):
        found.add(WITNESS)
    if check_search(operations, steps_max=STEPS_MAX) is False:
        found.add(SEARCH)
    return found


# --- Small histories, one bug each -----------------------------------------------------------------------------------


def claim(label: str, called_at: float, returned_at: float, token: int, left_seconds: float = 10.0) -> Operation:
    outcome = Outcome("granted", label, token, f"id-{label}", left_seconds)
    return Operation("acquire", "job", label, left_seconds, called_at, called_at, returned_at, outcome)


def unheard(label: str, called_at: float, returned_at: float = float("inf")) -> Operation:
    return Operation("acquire", "job", label, 10.0, called_at, called_at, returned_at)


def other(kind: Kind, asker: str, called_at: float, returned_at: float, what: What, **more: Any) -> Operation:  # noqa: ANN401 - passed on as it is
    return Operation(kind, "job", asker, 10.0, called_at, called_at, returned_at, Outcome(what, **more))


def granted(seq: int, label: str, token: int, at: float, left_seconds: float = 10.0) -> dict[str, Any]:
    lease = {"lease_id": f"id-{label}", "token": token, "owner": label, "until_ms": (at + left_seconds) * 1000}
    return {"seq": seq, "at_ms": at * 1000, "event": "granted", "name": "job", "lease": lease}


def ended(seq: int, label: str, at: float, how: str = "released") -> dict[str, Any]:
    return {"seq": seq, "at_ms": at * 1000, "event": "ended", "name": "job", "lease_id": f"id-{label}", "how": how}


def _complaints(operations: list[Operation], journal: list[dict[str, Any]]) -> dict[str, bool]:
    return {
        TOKENS: bool(check_tokens(operations)),
        WITNESS: bool(check_witness(operations, journal)),
        SEARCH: check_search(operations) is False,
    }


def double_grant() -> tuple[list[Operation], list[dict[str, Any]], set[str]]:
    ops = [claim("a", 0, 1, 1), claim("b", 2, 3, 2)]
    return ops, [granted(1, "a", 1, 0.5), granted(2, "b", 2, 2.5)], {TOKENS, WITNESS, SEARCH}


def reused_token() -> tuple[list[Operation], list[dict[str, Any]], set[str]]:
    ops = [claim("a", 0, 1, 1), other("release", "a", 2, 3, "done"), claim("b", 4, 5, 1)]
    journal = [granted(1, "a", 1, 0.5), ended(2, "a", 2.5), granted(3, "b", 1, 4.5)]
    return ops, journal, {TOKENS, WITNESS, SEARCH}


def lower_token() -> tuple[list[Operation], list[dict[str, Any]], set[str]]:
    ops = [claim("a", 0, 1, 7), other("release", "a", 2, 3, "done"), claim("b", 4, 5, 6)]
    journal = [granted(1, "a", 7, 0.5), ended(2, "a", 2.5), granted(3, "b", 6, 4.5)]
    return ops, journal, {TOKENS, WITNESS, SEARCH}


def early_end() -> tuple[list[Operation], list[dict[str, Any]], set[str]]:
    ops = [claim("a", 0, 1, 1), other("renew", "a", 5, 6, "done", left_seconds=10.0), claim("b", 12, 13, 2)]
    journal = [granted(1, "a", 1, 0.5), ended(2, "a", 10.6, "expired"), granted(3, "b", 2, 12.5)]
    # The journal alone cannot know: it may have dropped the renewal.
    return ops, journal, {TOKENS, SEARCH}


def early_end_by_the_journal() -> tuple[list[Operation], list[dict[str, Any]], set[str]]:
    ops = [claim("a", 0, 1, 1)]
    return ops, [granted(1, "a", 1, 0.5), ended(2, "a", 10.4, "expired")], {WITNESS}


def early_end_seen_by_its_holder() -> tuple[list[Operation], list[dict[str, Any]], set[str]]:
    ops = [claim("a", 0, 1, 1), other("renew", "a", 5, 6, "gone")]
    return ops, [granted(1, "a", 1, 0.5)], {TOKENS, SEARCH}


def lost_release() -> tuple[list[Operation], list[dict[str, Any]], set[str]]:
    ops = [claim("a", 0, 1, 1), other("release", "a", 2, 3, "done"), other("get", "", 4, 5, "held", label="a", token=1)]
    return ops, [granted(1, "a", 1, 0.5)], {TOKENS, WITNESS, SEARCH}


def lost_grant() -> tuple[list[Operation], list[dict[str, Any]], set[str]]:
    ops = [claim("a", 0, 1, 1), other("get", "", 2, 3, "free")]
    return ops, [], {TOKENS, WITNESS, SEARCH}


def invented_grant() -> tuple[list[Operation], list[dict[str, Any]], set[str]]:
    ops = [other("acquire", "a", 0, 1, "held", label="ghost")]
    return ops, [granted(1, "ghost", 1, 0.2)], {WITNESS, SEARCH}


def refused_and_granted() -> tuple[list[Operation], list[dict[str, Any]], set[str]]:
    ops = [claim("a", 0, 1, 1), other("acquire", "b", 2, 3, "held", label="a"), other("release", "a", 4, 5, "done")]
    ops.append(other("get", "", 6, 7, "held", label="b", token=2))
    return ops, [granted(1, "a", 1, 0.5), ended(2, "a", 4.5), granted(3, "b", 2, 5.5)], {WITNESS, SEARCH}


def retry_granted_twice() -> tuple[list[Operation], list[dict[str, Any]], set[str]]:
    ops = [claim("a", 0, 5, 2)]
    journal = [granted(1, "a", 1, 0.5), ended(2, "a", 1.5, "revoked"), granted(3, "a", 2, 4.5)]
    return ops, journal, {WITNESS}


def other_lease_than_granted() -> tuple[list[Operation], list[dict[str, Any]], set[str]]:
    ops = [claim("a", 0, 1, 2)]
    return ops, [granted(1, "a", 1, 0.5)], {WITNESS}


def order_against_real_time() -> tuple[list[Operation], list[dict[str, Any]], set[str]]:
    ops = [claim("a", 4, 5, 1), other("release", "a", 5.1, 5.2, "done"), claim("b", 0, 1, 2)]
    journal = [granted(1, "a", 1, 0.2), ended(2, "a", 0.3), granted(3, "b", 2, 0.5)]
    return ops, journal, {TOKENS, WITNESS, SEARCH}


@pytest.mark.parametrize(
    "plant",
    [
        double_grant,
        reused_token,
        lower_token,
        early_end,
        early_end_by_the_journal,
        early_end_seen_by_its_holder,
        lost_release,
        lost_grant,
        invented_grant,
        refused_and_granted,
        retry_granted_twice,
        other_lease_than_granted,
        order_against_real_time,
    ],
)
def test_planted_bug_is_found(plant: Callable[[], tuple[list[Operation], list[dict[str, Any]], set[str]]]) -> None:
    """I1–I7: a history of a few operations with one bug in it is accused by every judge that can see that bug."""
    operations, journal, expected = plant()
    assert {judge for judge, complains in _complaints(operations, journal).items() if complains} == expected


def test_unknown_outcomes_are_accepted_either_way() -> None:
    """I6: a claim, a renewal or a release without an answer may have happened or not; either is no bug."""
    happened = [unheard("a", 0), other("acquire", "b", 2, 3, "held", label="a")]
    assert not any(_complaints(happened, [granted(1, "a", 1, 1.0)]).values())

    did_not = [unheard("a", 0), claim("b", 2, 3, 1), other("get", "", 4, 5, "held", label="b", token=1)]
    assert not any(_complaints(did_not, [granted(1, "b", 1, 2.5)]).values())

    release = Operation("release", "job", "a", 0, 2, 2)
    gave_back = [claim("a", 0, 1, 1), release, claim("b", 3, 4, 2)]
    assert not any(
        _complaints(gave_back, [granted(1, "a", 1, 0.5), ended(2, "a", 2.5), granted(3, "b", 2, 3.5)]).values()
    )
    operations = [claim("a", 0, 1, 1), release, other("get", "", 3, 4, "held", label="a", token=1)]
    assert not any(_complaints(operations, [granted(1, "a", 1, 0.5)]).values())


def test_unknown_claim_cannot_happen_after_the_server_died() -> None:
    """I6: what was not answered when the server died has happened by then or never will."""
    late = [unheard("a", 0, returned_at=1), other("get", "", 2, 3, "free"), claim("b", 4, 5, 2)]
    assert check_search(late) is True
    late.append(other("get", "", 15.5, 16, "held", label="a", token=3))
    assert check_search(late) is False


def test_lease_that_outlives_its_ttl_is_accepted() -> None:
    """T2: an outage may lengthen a lease, so one that is held beyond its time is not accused."""
    ops = [claim("a", 0, 1, 1), other("acquire", "b", 60, 61, "held", label="a"), claim("c", 62, 63, 2)]
    journal = [granted(1, "a", 1, 0.5), ended(2, "a", 10.5, "expired"), granted(3, "c", 2, 10.5)]
    assert not any(_complaints(ops, journal).values())


# --- Whole histories -------------------------------------------------------------------------------------------------


def test_correct_histories_are_never_accused() -> None:
    """I7: no judge accuses a correct server, whose clients lose replies, and few histories stay undecided."""
    undecided = 0
    for seed in range(SEEDS):
        played = Imagined(seed, OPERATIONS).play()
        verdict = judge(played.history, played.journal)
        assert verdict.complaints == [], f"seed {seed}"
        undecided += verdict.undecided
    assert undecided <= SEEDS // 10


@pytest.mark.parametrize(
    ("bug", "judges"),
    [
        ("double grant", {TOKENS, WITNESS, SEARCH}),
        ("reused token", {TOKENS, WITNESS, SEARCH}),
        ("lower token", {TOKENS, WITNESS, SEARCH}),
        ("early end", {TOKENS, WITNESS, SEARCH}),
        ("lost release", {TOKENS, WITNESS, SEARCH}),
        ("invented grant", {WITNESS, SEARCH}),
        ("lost grant", {WITNESS}),
        ("stale look", {TOKENS, SEARCH}),
        ("late effect", {WITNESS, SEARCH}),
    ],
)
def test_buggy_server_is_detected(bug: Bug, judges: set[str]) -> None:
    """I1–I7: a server that has a bug is accused in nearly every history, by each of the judges that can see it."""
    hits = dict.fromkeys((TOKENS, WITNESS, SEARCH), 0)
    any_hit = 0
    for seed in range(SEEDS):
        found = found_by(Imagined(seed, OPERATIONS, bug).play())
        any_hit += bool(found)
        for one in found:
            hits[one] += 1
    assert any_hit >= 0.9 * SEEDS, hits
    assert {one for one in judges if hits[one] < SEEDS // 3} == set(), hits
