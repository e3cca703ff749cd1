"""How commands say times, places and errors, without any server."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.cli.operators import watch
from holdfast.cli.shared import options, output, refusals, wait
from holdfast.client.records import JobEvent, JobOwner, Previous, QueuePosition
from holdfast.errors import (
    Deadlock,
    HoldfastError,
    JobDone,
    JobHeld,
    LeaseLost,
    NotAllowed,
    NotInTime,
    Refused,
    SettingsError,
    Unreachable,
)

AT = datetime(2026, 11, 15, 2, 14, 5, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Local time is UTC, and it is 02:14:05."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.setattr("holdfast.client.clock.wall_ms", lambda: round(AT.timestamp() * 1_000))
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0 s"),
        (0.4, "0 s"),
        (56, "56 s"),
        (119, "119 s"),
        (119.98, "2 min"),
        (250, "4 min"),
        (3_600, "1 h"),
        (7_500, "2 h 5 min"),
        (86_400 * 3, "3 d"),
        (86_400 + 3_600 * 5, "1 d 5 h"),
    ],
)
def test_spans(seconds: float, text: str) -> None:
    """A span is in the units people think in, and never negative."""
    assert output.span(seconds) == text


def test_clock_has_a_date_only_where_it_is_needed() -> None:
    """A time of today is a time of day; any other has its date."""
    assert output.clock(AT, AT) == "02:14:05"
    assert output.clock(AT - timedelta(days=1), AT) == "2026-11-14 02:14:05"
    assert output.since(AT - timedelta(minutes=4), AT) == "02:10:05 (4 min)"


def test_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are those of the reader's own zone."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    assert output.clock(AT, AT) == "11:14:05"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2h", "2026-11-15T00:14:05.000Z"),
        ("02:10", "2026-11-15T02:10:00.000Z"),
        ("2026-11-14T23:00:00+01:00", "2026-11-14T22:00:00.000Z"),
        ("2026-11-14 23:00:00", "2026-11-14T23:00:00.000Z"),
        ("2026-11-14", "2026-11-14T00:00:00.000Z"),
    ],
)
def test_past_times(text: str, meant: str) -> None:
    """A point in time can be written as people do: how long ago, the time of day, a date, RFC 3339."""
    assert options.PastTime().convert(text, None, None) == meant


def test_ordinals() -> None:
    """Places are counted as in English."""
    assert [wait.ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 111)] == [
        "1st",
        "2nd",
        "3rd",
        "4th",
        "11th",
        "12th",
        "13th",
        "21st",
        "111th",
    ]


def test_queue_position_uses_the_servers_clock() -> None:
    """How long somebody holds it is counted by the server's own clock, however wrong ours is."""
    began = AT - timedelta(days=400)
    owner = JobOwner(
        "j",
        "agent-2",
        1,
        began,
        began,
        began + timedelta(minutes=6),
        120,
        None,
        None,
        None,
        2,
        1,
        None,
        shown_as="agent-2",
    )
    assert wait.words(QueuePosition("j", 3, 1.0, owner)) == "3rd in line, held by agent-2 for 4 min"
    assert wait.words(QueuePosition("j", 1, 1.0, None)) == "1st in line"


def test_default_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is not named claims as HOLDFAST_OWNER, else as user@host:pid of the shell, also without a user name."""
    monkeypatch.setenv("HOLDFAST_OWNER", "agent-7")
    assert options.default_owner() == "agent-7"
    monkeypatch.delenv("HOLDFAST_OWNER")
    monkeypatch.setattr("socket.gethostname", lambda: "box")
    monkeypatch.setattr("getpass.getuser", lambda: "ana")
    assert options.default_owner() == f"ana@box:{os.getppid()}"

    def nobody() -> str:
        raise OSError("no name")

    monkeypatch.setattr("getpass.getuser", nobody)
    assert options.default_owner() == f"uid-{os.getuid()}@box:{os.getppid()}"


def test_user_name_may_be_any_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name of the system that is not UTF-8 becomes one that can be sent."""
    monkeypatch.delenv("HOLDFAST_OWNER", raising=False)
    monkeypatch.setattr("socket.gethostname", lambda: "box")
    monkeypatch.setenv("LOGNAME", os.fsdecode(b"ana\xff"))
    assert options.default_owner() == f"ana?@box:{os.getppid()}"


def held(kind: type[JobHeld] = JobHeld, *, same_owner: bool = False) -> JobHeld:
    return kind(
        "text",
        job_id="github-issue-1842",
        owner="agent-2",
        note="half way",
        claimed_at=AT - timedelta(minutes=4),
        last_heartbeat_at=AT - timedelta(seconds=3),
        expires_at=AT + timedelta(seconds=56),
        same_owner=same_owner,
        retry_after=56.0,
    )


HELD = "github-issue-1842 is held by agent-2 since 02:10:05 (4 min), last heartbeat 3 s ago; note: half way"


@pytest.mark.parametrize(
    ("error", "code", "status", "said"),
    [
        (
            held(),
            1,
            "held",
            f"{HELD}; try again in 56 s, wait with -w, or ask `holdfast why github-issue-1842`",
        ),
        (held(same_owner=True), 1, "held", "--resume"),
        (held(NotInTime), 11, "not_in_time", f"not acquired in time: {HELD}; wait longer with -w"),
        (JobDone("x", job_id="j", owner="a", completed_at=AT, result="ok"), 12, "done", "j is done: by a at 02:14:05"),
        (JobDone("x", job_id="j", owner="a", completed_at=AT), 12, "done", "to do it again, add --redo"),
        (Deadlock(409, "deadlock", "x", cycle=["a", "j", "b", "k"]), 13, "deadlock", "a -> j -> b -> k -> a"),
        (LeaseLost("it is lost", job_id="j j"), 20, "lost", "holdfast owner 'j j'"),
        (Refused(503, "outcome_unknown", "Outcome unknown"), 20, "uncertain", "Outcome unknown"),
        (Refused(410, "session_expired", "Session expired"), 20, "lost", "Session expired"),
        (Refused(503, "not_leader", "No leader", "y", "req_1"), 69, "refused", "no node leads right now"),
        (Refused(400, "invalid_ttl", "x", "y", "req_1"), 64, "refused", "(request req_1)"),
        (Refused(400, "invalid_ttl", "x", "ttl_seconds is 1 to 9.", "req_1"), 64, "refused", "--ttl is 1 to 9."),
        (NotAllowed(403, "lock_limit_exceeded", "x", "Full."), 75, "refused", "x: Full."),
        (SettingsError("a", "b", "c"), 64, "usage", "a (b): c"),
        (Unreachable("http://a", "b"), 69, "unreachable", "holdfast serve"),
        (NotAllowed(401, "authentication_failed", "x"), 77, "not_allowed", "HOLDFAST_TOKEN"),
        (NotAllowed(429, "too_many_wrong_tokens", "x"), 77, "not_allowed", "HOLDFAST_TOKEN"),
        (NotAllowed(403, "forbidden", "x", "The scope is missing."), 77, "not_allowed", "x: The scope is missing."),
        (HoldfastError("odd"), 70, "error", "odd"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_every_error_has_words_a_status_and_a_code(error: HoldfastError, code: int, status: str, said: str) -> None:
    """An error is a line that says what to do next, an object for programs, and an exit code."""
    assert refusals.exit_code(error) == code
    assert said in refusals.sentence(error)
    printed = refusals.as_object(error)
    assert (printed["status"], printed["exit_code"], printed["text"]) == (status, code, str(error))


def test_programs_find_the_same_fields_in_every_error_of_a_kind() -> None:
    """What is not known of an owner is there all the same, as null: a closed name has no owner, and nobody waits."""
    printed = refusals.as_object(JobHeld("closed", job_id="j", others=[JobHeld("k is held", job_id="k", owner="o")]))
    known = {"job_id", "owner", "metadata", "labels", "note", "claimed_at", "last_heartbeat_at", "expires_at"}
    known |= {"same_owner", "waiting", "retry_after", "shown_as"}
    assert printed.keys() == known | {"others", "status", "text", "exit_code"}
    assert (printed["owner"], printed["same_owner"], printed["waiting"]) == (None, False, 0)
    assert printed["others"][0].keys() == known and printed["others"][0]["shown_as"] == "o"
    assert refusals.as_object(Refused(400, "c", "e"))["retry_after"] is None


def test_closed_name_says_so() -> None:
    """A name without an owner that is closed for a while is said in the server's words."""
    assert refusals.sentence(JobHeld("j is closed until x", job_id="j", retry_after=5)).startswith(
        "j is closed until x; try again in 5 s"
    )


def test_previous_owner_is_described() -> None:
    """The owner before is named with how that ended and its last note."""
    previous = Previous("agent-2", 3, "session_ended", AT - timedelta(minutes=4), "tests pass", "agent-2")
    assert output.previous_words(previous, AT) == "agent-2, session ended 4 min ago; its note: tests pass"
    nameless = Previous(None, 3, "expired", AT, None, "(access token ci-runner)")
    assert output.previous_words(nameless, AT) == "(access token ci-runner), expired 0 s ago"


def test_dropped_events_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """A gap in the events is told beside them, with what to do."""
    watch._say(JobEvent(50, None, "resync", "", None, None, None, None))
    shown = capsys.readouterr()
    assert shown.out == "" and "before 50" in shown.err and "holdfast jobs" in shown.err


def test_table_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    """In a pipe a table is as wide as it must be, cell under cell, and no line ends with blanks."""
    output.say_table(["A", "LONG"], [["x" * 200, ""], ["y", "z\x1b"]])
    head, first, second = capsys.readouterr().out.splitlines()
    assert (head, first, second) == ("A" + " " * 201 + "LONG", "x" * 200, "y" + " " * 201 + "z\\x1b")


def _on_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")


def test_a_table_measures_cells(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Wide characters take two cells and combining ones none, so columns line up; in a pipe too."""
    rows = [["作業", "one"], ["e\u0301te\u0301", "two"], ["job", "three"]]
    expected = "JOB   NOTE\n作業  one\ne\u0301te\u0301   two\njob   three\n"
    output.say_table(["JOB", "NOTE"], rows)
    assert capsys.readouterr().out == expected
    _on_terminal(monkeypatch, 80)
    output.say_table(["JOB", "NOTE"], rows)
    assert capsys.readouterr().out == expected


def test_a_table_wraps_the_folded_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """They share what the others leave; words stay whole where they can, and no line is wider than the terminal."""
    _on_terminal(monkeypatch, 30)
    output.say_table(
        ["JOB", "AT", "NOTE"],
        [["a/very/long/name", "02:14", "short"], ["b", "02:15", "作業 is nearly done now"]],
        folded=("JOB", "NOTE"),
    )
    assert capsys.readouterr().out.splitlines() == [
        "JOB         AT     NOTE",
        "a/very/lon  02:14  short",
        "g/name",
        "b           02:15  作業 is",
        "                   nearly done",
        "                   now",
    ]


def test_a_table_too_narrow_to_read_is_fields(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A column that is never folded is whole, or the rows become fields."""
    _on_terminal(monkeypatch, 12)
    output.say_table(["JOB", "OWNER"], [["name", "somebody"]])
    assert capsys.readouterr().out == "name\n  owner  somebody\n"
