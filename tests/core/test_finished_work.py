"""What finished work writes down when it answers a long line: bounded, and nothing that is needed is missing (L5)."""

from holdfast.api.rendering import changes
from holdfast.core.commands import Release
from holdfast.core.decide import decide
from holdfast.core.events import Ended, Record, names_of
from holdfast.core.evolve import event_fits
from holdfast.journal.codec import decode_batch, encode_batch
from tests.core.bare_core import Core
from tests.support.commands import acquire, claim_all

LABELS = {f"k{number:09}" * 6: "v" * 120 for number in range(14)}
NAME = "x" * 400
TICKETS = 2_000


def _finished(core: Core) -> Record:
    """Give the name back as done, and return the record."""
    release = Release(name=NAME, principal="p", lease_id=f"L-{NAME}", done=True, remember_ms=1_000)
    (event,) = decide(core.state, release, core.now, core.limits).events
    assert event_fits(core.state, event)
    record = Record(core.state.seq + 1, 0, 0, event)
    core.record(event)
    (read,) = decode_batch(encode_batch([record]))
    assert read == record
    return record


def _in_line(core: Core, labels: dict[str, str] | None) -> None:
    core.hold(NAME)
    for number in range(TICKETS):
        claim = acquire(name=NAME, principal="p", owner=f"o-{number}", lease_id=f"W-{number}", ttl_ms=1_000,
                        wait_ms=1_000, new_ticket=f"ticket-of-some-length-{number}", labels=labels)  # fmt: skip
        core.ask(claim)


def test_record_of_finished_work_names_the_job_once() -> None:
    """The record of finished work has under 100 bytes for each it answers, however long the name is."""
    core = Core()
    _in_line(core, None)
    record = _finished(core)
    assert isinstance(record.event, Ended) and len(record.event.left) == TICKETS
    assert len(encode_batch([record])) < 100 * TICKETS
    assert names_of(record.event) == (NAME,)
    notice = [(each.event, each.name, each.owner) for each in changes(record, NAME.__eq__)]
    assert notice == [("done", NAME, None), *(("left", NAME, f"o-{number}") for number in range(TICKETS))]
    assert not core.state.tickets


def test_labels_in_the_record_are_bounded() -> None:
    """Of the labels of all in line the first megabyte is kept; small ones are all there."""
    core = Core()
    _in_line(core, LABELS)
    record = _finished(core)
    assert len(encode_batch([record])) < 2**20 + 100 * TICKETS + 3_000
    core = Core()
    _in_line(core, {"team": "infra"})
    left = [each for each in changes(_finished(core), NAME.__eq__) if each.event == "left"]
    assert len(left) == TICKETS and all(each.labels == {"team": "infra"} for each in left)


def test_ticket_for_several_names_lists_them() -> None:
    """Whoever waits for several names has left the line of each."""
    core = Core()
    core.hold(NAME, "b")
    core.ask(
        claim_all(
            names=(NAME, "b"),
            lease_ids=("1", "2"),
            principal="p",
            owner="two",
            ttl_ms=1_000,
            wait_ms=1_000,
            new_ticket="t",
        )
    )
    record = _finished(core)
    assert set(names_of(record.event)) == {NAME, "b"}
    notice = [(each.event, each.name) for each in changes(record, lambda _name: True)]
    assert sorted(notice) == [("done", NAME), ("left", "b"), ("left", NAME)]
