"""Two agents at the same moment, and hooks of one agent side by side."""

from __future__ import annotations

from collections.abc import Callable

from tests.agents.guard.agents import Answer, World
from tests.support import callers, proof
from tests.support.api import Api
from tests.support.checks import at_once, wait_until
from tests.support.server import ServerProcess

ROUNDS = proof.count("guard: times that two agents edit at once")


def test_race_of_two_agents_has_one_winner(world: World, record_property: Callable[[str, object], None]) -> None:
    """Two agents edit one area at once, again and again: exactly one passes, and the other is told what to do instead.

    The one that passes gives the job back at the end of its session, so each round begins with a free job.
    """
    hosts = [world.host(), world.host()]
    wins = [0, 0]
    for _ in range(ROUNDS):
        answers = at_once([lambda host=host: host.edit("src/auth/login.py") for host in hosts])  # type: ignore[misc]
        passed = [number for number, answer in enumerate(answers) if answer.passed]
        assert len(passed) == 1, answers
        winner, loser = passed[0], 1 - passed[0]
        reason = answers[loser].refused
        assert hosts[winner].owner in reason and "Instead:" in reason and "holdfast why area:auth" in reason
        for host in hosts:
            assert host.hook(host.fields("SessionEnd", reason="clear")).passed
        wins[winner] += 1
    record_property("count: rounds of two agents under the guard", sum(wins))


def test_parallel_hooks_share_one_session_and_one_daemon(world: World, server: ServerProcess) -> None:
    """Eight calls of one agent at once, none of which finds a session: one is opened, one daemon runs, all pass."""
    ana = world.host()
    jobs = [lambda n=n: ana.edit(f"src/auth/{n}.py") if n % 2 else ana.edit(f"src/billing/{n}.py") for n in range(8)]
    assert all(answer.passed for answer in at_once(jobs, seconds_max=60))
    sessions = Api.of(server, callers.ALICE).sessions().json()["sessions"]
    assert [each["name"] for each in sessions if each["name"] == ana.owner] == [ana.owner]
    world.wait_for_daemons(1)


def test_session_end_races_with_new_calls(world: World, api: Api) -> None:
    """Calls race with the end of the session: what passed is held by a session that a daemon keeps, or free again."""
    ana = world.host()

    def end() -> Answer:
        return ana.hook(ana.fields("SessionEnd", reason="clear"))

    for _ in range(4):
        answers = at_once([lambda: ana.edit("src/auth/a"), end, lambda: ana.edit("src/billing/b"), end], seconds_max=60)
        assert all(answer.passed for answer in answers), answers
        held = [job for job in ("area:auth", "area:billing") if api.status(job).json()["status"] == "held"]
        if held:
            world.wait_for_daemons(1)
    assert ana.edit("src/auth/a").passed
    end()
    assert api.status("area:auth").json()["status"] == "free"
    wait_until(lambda: not world.daemons())
