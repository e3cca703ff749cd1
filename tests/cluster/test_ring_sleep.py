"""A leader that was stopped, deposed and woken, with requests that lay in its socket meanwhile.

It must give no answer of its old epoch: what it read there is over. A node that answers looks before it proves its seat
is caught by this ring (N-15), and so is one that believes the time for which it slept itself (N-13).
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster import Cluster, Member, insist, rest
from tests.cluster.mutants import wrapper
from tests.support import callers, proof
from tests.support.api import Api, lock_path
from tests.support.checks import unique
from tests.support.http import Answer, parse_answers
from tests.support.postgres import shared_url

ROUNDS = proof.count("nodes: leaders woken with requests in their sockets")
READS, CLAIMS = 5, 3
ANSWER_SECONDS_MAX = 20.0
SLEEP_SECONDS = 3.5


def left_in_socket(member: Member, method: str, path: str, body: str = "") -> socket.socket:
    """Send a request to a process that does not run: it is among the first things that it finds afterwards."""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {callers.ALICE}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    sock = socket.create_connection(member.address, timeout=ANSWER_SECONDS_MAX)
    sock.sendall((head + body).encode())
    return sock


def answer_on(sock: socket.socket) -> Answer:
    with sock:
        data = b""
        while not (found := parse_answers(data, closed=False)):
            more = sock.recv(1 << 16)
            assert more, "closed without an answer"
            data += more
        return found[0]


def epoch_of(answer: Answer) -> int:
    return int(answer.headers["Holdfast-Epoch"])


class WokenLeaderRound:
    """One round: what was true before the stop, what is true since, and what the woken one says."""

    def __init__(self, cluster: Cluster, chance: random.Random, *, has_claims: bool) -> None:
        """Without claims there is nothing to append: then looks alone must find out that the seat is gone."""
        self.old = cluster.leader()
        self.new = cluster.followers(self.old)[0]
        cluster.all_ready()
        self.name = unique("woken")
        alice = Api.of(self.old.server, callers.ALICE)
        self._before = insist(lambda: alice.acquire(self.name, key=f"first-{self.name}", ttl_seconds=600)).json()
        self.old.server.pause()
        try:
            self._left = [self._read() for _ in range(2)]
            cluster.leader(but=self.old)
            self._replaced(Api.of(self.new.server, callers.ALICE))
            self._left += [self._read() for _ in range(READS)]
            claims = {name: self._claim(name) for name in (unique("left") for _ in range(CLAIMS * has_claims))}
            rest(chance.uniform(0, 0.2))
        finally:
            self.old.server.resume()
        self.reads = [answer_on(sock) for sock in self._left]
        self.claims = {name: answer_on(sock) for name, sock in claims.items()}

    def _replaced(self, alice: Api) -> None:
        """Give the name to another lease, at the new leader."""
        lease_id = self._before["lease_id"]
        assert insist(lambda: alice.release(self.name, lease_id, key=f"end-{self.name}")).status == 200
        answer = insist(lambda: alice.acquire(self.name, key=f"second-{self.name}", ttl_seconds=600))
        self._now, self.epoch = answer.json(), epoch_of(answer)

    def _read(self) -> socket.socket:
        return left_in_socket(self.old, "GET", lock_path(self.name))

    def _claim(self, name: str) -> socket.socket:
        return left_in_socket(self.old, "POST", f"{lock_path(name)}/acquire", '{"ttl_seconds": 600}')

    def complaints(self) -> list[str]:
        """What was answered out of the old epoch, or is not so."""
        found = []
        alice = Api.of(self.new.server, callers.ALICE)
        for answer in [*self.reads, *self.claims.values()]:
            if answer.status == 200 and epoch_of(answer) < self.epoch:
                found.append(f"an answer of epoch {epoch_of(answer)}, and {self.epoch} had begun: {answer}")
            elif answer.status != 200 and answer.json()["code"] not in {"not_leader", "outcome_unknown"}:
                found.append(f"not an answer to be expected: {answer}")
        found += [
            f"a stale look: {answer}"
            for answer in self.reads
            if answer.status == 200 and answer.json()["fencing_token"] != self._now["fencing_token"]
        ]
        for name, answer in self.claims.items():
            found += self._claim_complaints(answer, insist(partial(alice.status, name)).json())
        return found

    def _claim_complaints(self, answer: Answer, seen: Mapping[str, Any]) -> list[str]:
        if answer.status == 200:
            is_so = seen["status"] == "held" and seen["fencing_token"] == answer.json()["fencing_token"]
            return [] if is_so else [f"a claim was granted, and is not there: {answer}, {seen}"]
        if answer.json()["code"] == "not_leader" and seen["status"] != "free":
            return [f"a claim was refused, and is there: {answer}, {seen}"]
        return []


def test_woken_leader_answers_nothing_of_its_epoch(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """I7, I9, N-15: what lay in the socket of a stopped leader gets no answer of the epoch that is over."""
    chance = random.Random()
    with Cluster(tmp_path, shared_url(), nodes=2, tokens=callers.TOKENS) as cluster:
        for number in range(ROUNDS):
            woken = WokenLeaderRound(cluster, chance, has_claims=number % 2 == 1)
            assert not woken.complaints(), woken.complaints()
        cluster.stop()
        cluster.journal()
    record_property("count: requests in the socket of a woken leader", ROUNDS * (2 + READS))


def test_answer_before_the_proof_is_caught(tmp_path: Path) -> None:
    """A node that answers looks before it proves its seat is caught by this ring: a woken one shows what is over."""
    each = [{"wrapper": wrapper("no-barrier")}] * 2
    with Cluster(tmp_path, shared_url(), nodes=2, tokens=callers.TOKENS, each=each) as cluster:
        for _ in range(6):
            if WokenLeaderRound(cluster, random.Random(), has_claims=False).complaints():
                return
    pytest.fail("nobody noticed")


def epochs_around_a_sleep(folder: Path, *each: dict[str, Any]) -> tuple[int, int]:
    """Let both nodes sleep for longer than a takeover takes, as on a machine that is suspended; who leads then?

    The follower wakes a little sooner. It sees the seat as it was, for the leader had no time to write.
    """
    settings = {"takeover_seconds": 3}
    with Cluster(folder, shared_url(), nodes=2, tokens=callers.TOKENS, settings=settings, each=each) as cluster:
        leader = cluster.leader()
        follower = cluster.followers(leader)[0]
        cluster.all_ready()
        before = epoch_of(insist(lambda: Api.of(leader.server, callers.ALICE).status("any")))
        leader.server.pause()
        rest(0.6)  # The follower has seen its last word.
        follower.server.pause()
        rest(SLEEP_SECONDS)
        follower.server.resume()
        rest(0.5)
        leader.server.resume()
        rest(1.0)
        return before, epoch_of(insist(lambda: Api.of(cluster.leader().server, callers.ALICE).status("any")))


def test_woken_follower_does_not_depose_the_leader(tmp_path: Path) -> None:
    """N-13: a follower that slept for longer than a takeover takes, as its leader did, deposes nobody on waking."""
    before, after = epochs_around_a_sleep(tmp_path)
    assert after == before


def test_trusted_silence_is_caught(tmp_path: Path) -> None:
    """A follower that counts its own sleep as the leader's silence is caught: it deposes one that is alive."""
    mutant = {"wrapper": wrapper("believed-silence")}
    before, after = epochs_around_a_sleep(tmp_path, mutant, mutant)
    assert after > before
