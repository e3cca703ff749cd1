"""What commands say of several nodes: one that follows, one that is gone, and a database that is."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.cluster.cluster import Cluster
from tests.support import callers, postgres
from tests.support.checks import unique, wait_until

Run = Callable[..., subprocess.CompletedProcess[str]]
PgConnection = tuple[str, str, str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes on a PostgreSQL that tests cut them off from."""
    folder = tmp_path_factory.mktemp("nodes")
    with Cluster(folder, postgres.shared_url(), tokens=callers.TOKENS) as three:
        yield three


@pytest.fixture
def well(cluster: Cluster) -> Cluster:
    """The same, after each has what it needs."""
    for member in cluster.members:
        member.restore()
    cluster.leader()
    cluster.all_ready()
    return cluster


def urls(cluster: Cluster) -> str:
    return ",".join(member.server.url for member in cluster.members)


def lines(done: subprocess.CompletedProcess[str]) -> list[PgConnection]:
    """Each line of a doctor: its status, its name, and everything behind it."""
    parts = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    return [(status, name, text) for status, name, text in parts]


def said_of(done: subprocess.CompletedProcess[str], name: str) -> list[tuple[str, str]]:
    return [(status, text) for status, each, text in lines(done) if each == name]


def test_a_follower_that_is_well_is_all_ok(well: Cluster, holdfast: Run) -> None:
    """A node that follows is no warning: it says that it passes requests on, and no size that it does not know."""
    follower = well.followers(well.leader())[0]
    done = holdfast("doctor", HOLDFAST_URL=follower.server.url, HOLDFAST_TOKEN=callers.ALICE)
    assert (done.returncode, {status for status, _, _ in lines(done)}) == (0, {"ok"}), done.stdout
    assert said_of(done, "store") == [("ok", "postgresql; this node follows, and passes requests on to the leader")]


def test_every_address_has_a_line(well: Cluster, holdfast: Run) -> None:
    """Of several addresses each is asked and told; one that is dead is a warning while another one serves."""
    dead = well.followers(well.leader())[0]
    known = {"HOLDFAST_URL": urls(well), "HOLDFAST_TOKEN": callers.ALICE}
    done = holdfast("doctor", **known)
    assert [status for status, _ in said_of(done, "reachable")] == ["ok"] * 3, done.stdout
    dead.server.kill()
    done = holdfast("doctor", **known)
    found = {text: status for status, text in said_of(done, "reachable")}
    assert sorted(found.values()) == ["ok", "ok", "warn"] and done.returncode == 0, done.stdout
    (silent,) = [text for text, status in found.items() if status == "warn"]
    assert dead.server.url in silent and "-> start it" in silent
    assert [text for _, text in said_of(done, "ready")] == [
        f"{member.server.url}: it takes requests" for member in well.members if member is not dead
    ]


def test_every_command_reports_a_missing_database(well: Cluster, holdfast: Run) -> None:
    """With the database gone and all nodes up, no command says that the servers do not run, or sends one in circles."""
    leader = well.leader()
    follower = well.followers(leader)[0]
    for member in well.members:
        member.store_way.cut()
    wait_until(lambda: not leader.is_ready())
    known = {"HOLDFAST_URL": urls(well), "HOLDFAST_TOKEN": callers.ALICE}
    # First while the leader still hopes for its store, and its followers for it; then when nobody does.
    for _ in range(2):
        done = holdfast("nodes", **known)
        assert done.returncode == 2 and "no node that was asked knows of a leader" in done.stdout, done.stderr
        assert all(f"{name} " in done.stdout for name in ("node-a", "node-b", "node-c")), done.stdout
        done = holdfast("claim", unique("job"), **known)
        assert done.returncode == 69 and "`holdfast nodes` shows what each" in done.stderr, done.stderr
        assert "is the server running" not in done.stderr
        done = holdfast("jobs", HOLDFAST_URL=follower.server.url, HOLDFAST_TOKEN=callers.ALICE)
        assert done.returncode == 69, done.stderr
        assert done.stderr.startswith("holdfast: no node leads right now, and nothing was changed; ")
        done = holdfast("doctor", **known)
        assert [name for _, name, _ in lines(done)][-1] == "leader" and done.returncode == 2, done.stdout
        assert not any(name in {"clock", "version", "token"} for _, name, _ in lines(done)), done.stdout
        for member in well.members:
            wait_until(lambda: not member.is_ready(), seconds_max=60)  # noqa: B023 - it is asked at once
    done = holdfast("doctor", **known)
    assert [status for status, _ in said_of(done, "ready")] == ["FAIL"] * 3
    ((status, text),) = said_of(done, "store")
    assert status == "FAIL" and "-> `holdfast doctor --store URL` looks at the database" in text
    reply = json.loads(holdfast("nodes", "--json", **known).stdout)
    assert (reply["leader"], reply["epoch"], len(reply["nodes"])) == (None, None, 3)


def test_unreachable_node_is_listed_as_silent(well: Cluster, holdfast: Run) -> None:
    """Where no node knows of a leader, one that does not answer at all is in the list too."""
    gone, *others = well.members
    gone.server.kill()
    for member in others:
        member.store_way.cut()
        wait_until(lambda: not member.is_ready(), seconds_max=60)  # noqa: B023 - it is asked at once
    reply = json.loads(holdfast("nodes", "--json", HOLDFAST_URL=urls(well), HOLDFAST_TOKEN=callers.ALICE).stdout)
    assert [each["role"] for each in reply["nodes"]] == ["silent", "follower", "follower"]
    assert reply["nodes"][0]["details"].startswith("no answer: ")


def test_a_store_that_cannot_be_asked_has_a_next_step(holdfast: Run) -> None:
    """`doctor --store` and `nodes --store` say what to do where the database does not answer."""
    url = f"postgresql://nobody@127.0.0.1:{postgres.free_port()}/x"
    done = holdfast("doctor", "--store", url)
    assert done.returncode == 2 and "cannot be asked" in done.stdout
    assert " -> Check that the database runs, and the address" in done.stdout
    done = holdfast("nodes", "--store", url)
    assert done.returncode == 69 and ". Check that the database runs, and the address" in done.stderr
    assert done.stderr.count("\n") == 1
