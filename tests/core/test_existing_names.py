"""Nothing begins under a name that nobody can read (N3), nor for a confined token under one that could lead out of its
prefix (N4). What began before goes on to its end.
"""

import re
import sys
import unicodedata

import pytest

from holdfast.core import outcomes
from holdfast.core.commands import ClaimAll, ClaimAny, Command, Leave, Release, Renew, Reopen, Revoke, Transfer
from holdfast.core.decide import decide, next_due
from holdfast.core.events import Event, Granted, Joined, Record, TokenCreated
from holdfast.core.evolve import evolve
from holdfast.core.names import has_dot_segment, parse_name, why_unreadable
from holdfast.core.state import State
from holdfast.core.values import AccessToken, Instant, Limits, Terms, Ticket, lease_from
from tests.support.commands import acquire

NOW = Instant(0, 0)
FILLER = "job\u3164"
TERMS = Terms(principal="ana", ttl_ms=60_000, owner="a", key="k", fingerprint="f")

INVISIBLE = [
    ("job\u3164", "U+3164"),
    ("\u115f", "U+115F"),
    ("a/\u1160", "U+1160"),
    ("a/\uffa0/b", "U+FFA0"),
    ("a:b\u034fc", "U+034F"),
    ("a:b\u2800", "U+2800"),
    ("a:\u17b4", "U+17B4"),
    ("a:\u17b5", "U+17B5"),
    ("a:\u180b", "U+180B"),
    ("a:x\ufe0f", "U+FE0F"),
    ("a:x\U000e0100", "U+E0100"),
    ("a:x\U000e0fff", "U+E0FFF"),
    ("a:x\u2065", "U+2065"),
    ("a:x\ufff0", "U+FFF0"),
    ("a:\U0001d159", "U+1D159"),
    ("a:\U00013441", "U+13441"),
    ("a:\U00016fe4", "U+16FE4"),
]
READABLE = ["job", "größe/ж/日本語/٣", "a:é?x=%E3%85%A4", "한국어", "a:नमस्ते", "a:🦭"]


def tell(state: State, *events: Event) -> State:
    for event in events:
        evolve(state, Record(state.seq + 1, NOW.ms, NOW.wall_ms, event))
    return state


def ask(state: State, command: Command) -> object:
    decision = decide(state, command, NOW, Limits())
    tell(state, *decision.events)
    return decision.answer


def held() -> State:
    """A state in which a name is held that no new claim may have."""
    return tell(State(), Granted(FILLER, lease_from(TERMS, "L", 1, NOW), "f"))


@pytest.mark.parametrize(("name", "character"), INVISIBLE, ids=[character for _, character in INVISIBLE])
def test_name_with_invisible_characters_is_refused(name: str, character: str) -> None:
    """N3: a character that looks like nothing or like a blank stands in no new claim; the refusal names it.

    It stays a name by N1, so that what is held under it can be reached.
    """
    assert parse_name(name) == name
    terms = Terms(principal="ana", ttl_ms=1_000)
    for command in (
        acquire(name=name, principal="ana", lease_id="L", ttl_ms=1_000),
        acquire(name=name, principal="ana", lease_id="L", ttl_ms=1_000, wait_ms=1_000, new_ticket="t"),
        acquire(name=name, principal="ana", lease_id="L", ttl_ms=1_000, redo=True),
        ClaimAny(names=("a", name), lease_id="L", terms=terms),
        ClaimAll(names=(name, "a"), lease_ids=("L", "M"), terms=terms, wait_ms=1_000, new_ticket="t"),
    ):
        state = State()
        answer = ask(state, command)
        assert isinstance(answer, outcomes.BadName) and character in answer.text
        assert answer.text.isprintable() and not state.slots and not state.tickets


@pytest.mark.parametrize("name", READABLE)
def test_names_of_any_script_are_accepted(name: str) -> None:
    """N3: letters of any script, marks, pictures and escapes can be read."""
    assert why_unreadable(name) is None
    answer = ask(State(), acquire(name=name, principal="ana", lease_id="L", ttl_ms=1_000))
    assert isinstance(answer, outcomes.Acquired)


def test_existing_lease_can_be_renewed_and_ended() -> None:
    """N3: a lease under such a name is renewed, handed on, released and revoked as any other."""
    renew = Renew(name=FILLER, principal="ana", lease_id="L", ttl_ms=1_000)
    release = Release(name=FILLER, principal="ana", lease_id="L", done=True, remember_ms=1_000)
    transfer = Transfer(name=FILLER, principal="ana", lease_id="L", new_lease_id="M", to_owner="b")
    revoke = Revoke(name=FILLER, principal="op", reason="it cannot be read")
    assert isinstance(ask(held(), renew), outcomes.Extended)
    assert isinstance(ask(held(), transfer), outcomes.Acquired)
    assert ask(held(), revoke) == outcomes.Released()
    state = held()
    assert ask(state, release) == outcomes.Released()
    assert ask(state, Reopen(name=FILLER, principal="op")) == outcomes.OpenAgain()
    assert isinstance(ask(state, acquire(name=FILLER, principal="ana", lease_id="N", ttl_ms=1_000)), outcomes.BadName)


def test_retry_and_resume_return_the_existing_lease() -> None:
    """N3, C4, C5: who claimed before the rule gets the same lease again, by its key or by `resume`; others do not."""
    state = held()
    retry = acquire(name=FILLER, principal="ana", lease_id="M", ttl_ms=60_000, owner="a", key="k", fingerprint="f")
    again = ask(state, retry)
    assert isinstance(again, outcomes.Acquired) and again.lease.lease_id == "L"
    back = ask(state, acquire(name=FILLER, principal="ana", lease_id="M", ttl_ms=1, owner="a", resume=True))
    assert isinstance(back, outcomes.Acquired) and back.lease.lease_id == "L" and back.reacquired
    other = acquire(name=FILLER, principal="ben", lease_id="M", ttl_ms=1, owner="a", resume=True)
    assert isinstance(ask(state, other), outcomes.BadName)


def waited() -> State:
    """The same with somebody in line."""
    terms = Terms(principal="ben", ttl_ms=1_000, owner="b")
    return tell(held(), Joined(Ticket("t", (FILLER,), ("M",), terms)))


def test_existing_ticket_can_leave_and_is_refused_when_granted() -> None:
    """N3, W5: a place from before the rule can be given up or come back to; at its turn it is refused, and no lease
    begins.
    """
    assert ask(waited(), Leave(ticket_id="t", principal="ben")) == outcomes.Withdrawn()
    state = waited()
    back = acquire(name=FILLER, principal="ben", lease_id="N", ttl_ms=1_000, owner="b", ticket="t", wait_ms=1_000)
    assert ask(state, back) == outcomes.MustWait("t", 1_000)
    state.attach("t")
    assert ask(state, Release(name=FILLER, principal="ana", lease_id="L")) == outcomes.Released()
    due = next_due(state, NOW, Limits())
    assert due is not None and isinstance(due.notices[0][1], outcomes.BadName)


def test_confined_token_is_refused_a_dot_segment_when_granted() -> None:
    """N4, W5: a place of a token with a prefix, in line for a name with a dot segment since before the rule, gets no
    lease.
    """
    for name, allowed in (("team-a/./x", False), ("team-a/x", True)):
        state = State()
        token = AccessToken("ben", "digest", ("claim",), "team-a/", None, 0, "op")
        terms = Terms(principal="ben", ttl_ms=1_000)
        tell(state, TokenCreated(token), Joined(Ticket("t", (name,), ("M",), terms, token_in_journal=True)))
        state.attach("t")
        due = next_due(state, NOW, Limits())
        assert due is not None
        assert isinstance(due.notices[0][1], outcomes.Acquired if allowed else outcomes.NotAllowedAnyMore)


def test_compatibility_characters_count_as_dots_and_slashes() -> None:
    """N4: whatever Unicode takes for dots, slashes or escapes counts as these, as it does for a whole name."""
    plain = re.compile(r"(?<![\w.~%-])\.\.?(?![\w.~%-])")
    others = [char for char in map(chr, range(sys.maxunicode + 1)) if unicodedata.normalize("NFKC", char) != char]
    assert len(others) > 4_000
    for char in others:
        for name in (f"a:x/{char}", f"a:x{char}.", f"a:.{char}x", f"a:x/{char}.{char}y"):
            usual = unicodedata.normalize("NFKC", name)
            if "%" not in usual:
                assert has_dot_segment(name) == bool(plain.search(usual)), (name, usual)
    assert has_dot_segment("a:x/\uff05\uff12\uff25/y"), "a full-width %2E"


def test_nested_escapes_are_decoded_to_a_limit() -> None:
    """N4: an escape may be escaped twice; one that is escaped more often counts as a dot segment, whatever it hides."""
    assert not has_dot_segment("a:%78") and not has_dot_segment("a:%2578") and not has_dot_segment("a:%252578")
    assert has_dot_segment("a:%25252578") and has_dot_segment("a:%" + "25" * 120)
    assert not has_dot_segment("a:100%") and not has_dot_segment("a:%%%%")
