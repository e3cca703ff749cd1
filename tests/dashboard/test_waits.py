"""GET /ui/waits: who waits for whom, and the circles that were refused, as far as the reader may see."""

from __future__ import annotations

import pytest

from tests.support import callers
from tests.support.api import Api
from tests.support.checks import refused, unique
from tests.support.gateway import Run
from tests.support.pending import waiting
from tests.support.server import ServerProcess
from tests.support.visitor import Visitor, page_of


@pytest.fixture(scope="module")
def reader(server: ServerProcess) -> Visitor:
    visitor = Visitor(server)
    visitor.sign_in(callers.READER)
    return visitor


def words(visitor: Visitor) -> str:
    answer = visitor.get("/ui/waits")
    assert answer.status == 200, answer
    return page_of(answer).text.replace(" ", "")


def confined(server: ServerProcess, operator: Api, prefix: str) -> Visitor:
    made = operator.post("/tokens", {"name": unique("tok"), "scopes": ["read"], "prefix": prefix}).json()
    visitor = Visitor(server)
    visitor.sign_in(made["token"])
    return visitor


def test_wait_page_without_waiters(tmp_path_factory: pytest.TempPathFactory) -> None:
    """A server on which nobody waits says so, and that no circle was refused."""
    with ServerProcess.start(tmp_path_factory.mktemp("idle") / "data", tokens=callers.TOKENS) as idle:
        visitor = Visitor(idle)
        visitor.sign_in(callers.READER)
        said = words(visitor)
    assert "Nobodywaits" in said and "Nonesince" in said


def test_waits_are_drawn_and_listed(alice: Api, bob: Api, reader: Visitor) -> None:
    """A chain of waits is drawn with its names, and the same stands in nested lists."""
    first, second = unique(), unique()
    alice.acquired(first, owner="ana")
    bob.acquired(second, owner="ben")
    with waiting(alice, second, owner="ana"), waiting(bob, first, owner="cem"):
        answer = reader.get("/ui/waits")
        page = page_of(answer)
        assert answer.text.count('class="edge"') >= 2
        for text in ("ana", "ben", "cem"):
            assert text in page.words
        hrefs = [said.get("href") for tag, said in page.tags if tag == "a"]
        assert hrefs.count(f"/ui/jobs/{first}") == hrefs.count(f"/ui/jobs/{second}") == 2, (
            "in the drawing and in the table"
        )


def test_wait_page_shows_refused_deadlock(alice: Api, bob: Api, reader: Visitor) -> None:
    """A wait that was refused because it closes a circle is on the page with its whole path, and counted."""
    first, second = unique("one"), unique("two")
    alice.acquired(first, owner="ana")
    bob.acquired(second, owner="ben")
    with waiting(alice, second, owner="ana"):
        for _ in range(3):
            refused(bob.acquire(first, owner="ben", wait_seconds=5), 409, "deadlock")
    said = words(reader)
    assert f"ben→{first}→ana→{second}→ben" in said
    assert "3times" in said


def test_wait_page_masks_deadlock(server: ServerProcess, operator: Api, alice: Api, bob: Api) -> None:
    """A confined reader sees its own names in a circle and `(hidden)` for the others; one without any not at all."""
    stem = unique()
    mine, other = f"{stem}/a", unique("secret")
    alice.acquired(mine, owner="ana")
    bob.acquired(other, owner="secret-ben")
    with waiting(alice, other, owner="ana"):
        refused(bob.acquire(mine, owner="secret-ben", wait_seconds=5), 409, "deadlock")
    said = words(confined(server, operator, f"{stem}/"))
    assert f"(hidden)→{mine}→ana→(hidden)→(hidden)" in said
    assert other not in said and "secret-ben" not in said
    assert mine not in words(confined(server, operator, f"{unique()}/"))


def test_wait_page_shows_deadlock_of_runs(alice: Api, reader: Visitor) -> None:
    """What the gateway refuses as a possible deadlock is on the page too."""
    first, second = f"x://{unique()}/a", f"x://{unique()}/b"
    one, two = Run(alice), Run(alice)
    assert one.rlock(first).status == two.rlock(second).status == 200
    assert two.rlock(first).status == 409
    assert one.rlock(second).json()["deadlock"]
    assert f"{one.name}→{second}→{two.name}→{first}→{one.name}" in words(reader)
