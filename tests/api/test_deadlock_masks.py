"""Circles as a confined caller is told of them: what lies outside of its prefix is hidden."""

from __future__ import annotations

import pytest

from holdfast.api.rendering import HIDDEN, masked
from tests.support.api import Api
from tests.support.checks import refused, unique
from tests.support.gateway import Run
from tests.support.pending import waiting


def confined(operator: Api, prefix: str) -> Api:
    answer = operator.post("/tokens", {"name": unique("confined"), "prefix": prefix})
    return Api(operator.host, operator.port, answer.json()["token"])


@pytest.fixture
def inside(operator: Api, name: str) -> Api:
    return confined(operator, f"{name}/in/")


def test_mask_keeps_names_within_prefix() -> None:
    """A name within the prefix is shown, and so is who holds it; who asks is always shown."""
    path = ("ana", "in/b", "ben", "out/x", "cem", "in/a")
    assert masked(path, "in/") == ("ana", "in/b", "ben", HIDDEN, HIDDEN, "in/a")
    assert masked(path, None) == path
    assert masked(("ana", "in/a"), "in/") == ("ana", "in/a")
    assert masked(("ana", "out/x", "ben", "out/y"), "in/") == ("ana", HIDDEN, HIDDEN, HIDDEN)


def ring(inside: Api, alice: Api, name: str) -> tuple[str, str, str]:
    """Ana is confined and holds `a`; ben holds `b` and waits for `x`, which cem holds, who waits for `a`."""
    a, b, x = f"{name}/in/a", f"{name}/in/b", f"{name}/out/secret"
    inside.acquired(a, owner="ana", ttl_seconds=600)
    alice.acquired(b, owner="ben", ttl_seconds=600)
    alice.acquired(x, owner="secret-cem", ttl_seconds=600)
    return a, b, x


def test_joining_wait_gets_masked_deadlock(inside: Api, alice: Api, name: str) -> None:
    """D1: the wait that closes a circle hears of it; names and owners outside of its prefix are hidden in all words."""
    a, b, x = ring(inside, alice, name)
    with waiting(alice, x, owner="ben"), waiting(alice, a, owner="secret-cem"):
        answer = inside.acquire(b, owner="ana", wait_seconds=20)
        body = refused(answer, 409, "deadlock")
        assert body["cycle"] == ["ana", b, "ben", HIDDEN, HIDDEN, a]
        assert "secret" not in answer.text


def test_retried_wait_gets_masked_deadlock(inside: Api, alice: Api, name: str) -> None:
    """D1: so does one that comes back to its place and finds that a circle closed meanwhile."""
    a, b, x = ring(inside, alice, name)
    queued = inside.acquire(b, owner="ana", wait_seconds=0.3).json()
    with waiting(alice, x, owner="ben"), waiting(alice, a, owner="secret-cem"):
        answer = inside.acquire(b, owner="ana", wait_seconds=20, ticket=queued["ticket"])
        assert refused(answer, 409, "deadlock")["cycle"] == ["ana", b, "ben", HIDDEN, HIDDEN, a]
        assert "secret" not in answer.text


def test_deadlock_at_handover_is_masked(inside: Api, alice: Api, name: str) -> None:
    """D1: and one whose wait a transfer made a circle of."""
    a, _, x = ring(inside, alice, name)
    free = f"{name}/in/free"
    lease = alice.acquired(free, owner="nobody", ttl_seconds=600)
    with (
        waiting(alice, x, owner="ben"),
        waiting(alice, a, owner="secret-cem"),
        waiting(inside, free, owner="ana") as mine,
    ):
        assert alice.transfer(free, lease["lease_id"], to_owner="ben").status == 200
        answer = mine.answer()
        assert refused(answer, 409, "deadlock")["cycle"] == ["ana", free, "ben", HIDDEN, HIDDEN, a]
        assert "secret" not in answer.text


def test_gateway_masks_deadlock(operator: Api, alice: Api, name: str) -> None:
    """D3: the gateway's words for a possible deadlock are masked too."""
    ana, ben = Run(confined(operator, f"{name}://in/"), "ana"), Run(alice, "ben")
    cem = Run(alice, "secret-cem")
    a, b, x = f"{name}://in/a", f"{name}://in/b", f"{name}://out/secret"
    for run, held in ((ana, a), (ben, b), (cem, x)):
        assert run.rlock(held).status == 200
    assert ben.rlock(x).status == 409
    assert cem.rlock(a).status == 409
    answer = ana.rlock(b)
    assert answer.json()["cycle"] == [ana.name, b, ben.name, HIDDEN, HIDDEN, a], answer
    assert "secret" not in answer.text
