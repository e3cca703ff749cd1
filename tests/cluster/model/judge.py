"""What must be true in every state of the model, each with the number of its rule, and of every answer.

Where the store itself lost what it had said to be durable, N-23 promises less: acknowledged grants may be gone, and so
two may believe to hold. Tokens rise even then, nothing takes effect that was said to have failed, and there is one
writer.
"""

from __future__ import annotations

from itertools import pairwise

from tests.cluster.model.world import Answer, Request, Rules, World


class Broken(Exception):
    """A rule is broken."""

    def __init__(self, rule: str, how: str) -> None:
        super().__init__(f"{rule}: {how}")
        self.rule = rule


def answered(answer: Answer, it: Request, rules: Rules) -> None:
    """Judge an answer by all that anybody had been told when it was asked for."""
    said = answer.said
    if said.what == "got" and (said.token < it.after.token or (said.is_new and said.token == it.after.token)):
        raise Broken("I2", f"r{answer.request} gets token {said.token} after {it.after.token} was told")
    if rules.has_standby:
        return
    if answer.position < it.after.position:
        raise Broken("I7", f"r{answer.request} is told {said.what} of {answer.position} after {it.after.position}")
    if said.is_open is False and it.after.open_at >= answer.position:
        raise Broken("I7", f"r{answer.request} is told of a delay after it was told to be over (T3a)")


def look(world: World, rules: Rules) -> None:
    """Judge a state of the world."""
    _journal(world)
    _requests(world, rules)
    _writers(world, rules)
    if not rules.has_standby:
        _holders(world, rules)


def _journal(world: World) -> None:
    """I1, I2, I9 as the journal has them."""
    holder, token = None, 0
    for record in world.store.log:
        if record.kind == "granted":
            if holder is not None:
                raise Broken("I1", f"the journal grants to r{record.of} what r{holder} holds")
            if record.token <= token:
                raise Broken("I2", f"the journal has token {record.token} after {token}")
            holder, token = record.of, record.token
        elif record.kind in {"ended", "released"}:
            holder = None
    for before, after in pairwise(world.store.log):
        if after.epoch < before.epoch:
            raise Broken("I9", f"a record of epoch {after.epoch} follows one of epoch {before.epoch}")


def _requests(world: World, rules: Rules) -> None:
    """I5, I6, I8: what was acknowledged is there, what failed is not, and nothing is there twice."""
    for number, it in enumerate(world.requests):
        ask = rules.asks[number]
        if ask == "look":
            continue
        kind, of = ("released", int(ask.split()[1])) if ask.startswith("release") else ("granted", number)
        found = sum(record.kind == kind and record.of == of for record in world.store.log)
        if found > 1:
            raise Broken("I8", f"r{number} took effect twice")
        if found and it.status == "failed":
            raise Broken("I6", f"r{number} took effect, and was said to have failed")
        must_report = it.status == "answered" and it.said.what in {"got", "released"}
        if must_report and not found and not rules.has_standby:
            raise Broken("I5", f"r{number} was acknowledged, and is not in the journal")


def _writers(world: World, rules: Rules) -> None:
    """I9: whoever the store would let write knows the journal as it is."""
    store = world.store
    for at, node in enumerate(world.nodes):
        if node.mode not in {"opens", "leads"}:
            continue
        is_let = (node.epoch == store.epoch or not rules.fence) and (node.term == store.term or not rules.term)
        if is_let and node.durable == len(store.log) and node.view[: node.durable] != store.log:
            raise Broken("I9", f"n{at} may write number {node.durable + 1}, and knows another journal")


def _holders(world: World, rules: Rules) -> None:
    """I1, I3 as clients have them, each by its own clock from before it asked (T4)."""
    holders = [
        number
        for number, it in enumerate(world.requests)
        if it.said.what == "got"
        and it.status == "answered"
        and world.time < it.sent_at + it.said.left
        and not any(
            ask == f"release {number}" and other.status != "new"
            for ask, other in zip(rules.asks, world.requests, strict=True)
        )
    ]
    if len(holders) > 1:
        raise Broken("I1", f"r{holders[0]} and r{holders[1]} both believe to hold the name")
    for number in holders:
        if any(record.kind == "ended" and record.of == number for record in world.store.log):
            raise Broken("I3", f"the lease of r{number} has ended early")
