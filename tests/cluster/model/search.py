"""Looks at every state that the world of the model can get into, breadth first, and tells the way to a bad one.

What was seen is kept as a number of 64 bits for each state, with that of the state before it. A way is found again by
walking it from the start, so no label is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.cluster.model import judge
from tests.cluster.model.steps import steps
from tests.cluster.model.world import Rules, World, start, without_dead_strays


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found."""

    states: int
    steps: int
    depth: int
    is_complete: bool
    """Whether every state was looked at. False: there were more than it may look at, or it found a bad one."""
    rule: str | None = None
    way: list[str] = field(default_factory=list)
    """How the world got into the bad state, and what is bad about it."""

    def __str__(self) -> str:
        size = f"{self.states:,} states, {self.steps:,} steps, depth {self.depth}"
        if self.rule is None:
            return f"nothing bad in {size}{'' if self.is_complete else ', cut off there'}"
        return "\n  ".join([f"{self.rule} is broken after {size}:", *self.way])


def search(rules: Rules, states_max: int) -> Found:
    """Look until all is seen, or so many states, or a bad one."""
    first = start(rules)
    before: dict[int, int] = {hash(first): 0}
    front = [first]
    taken = depth = 0
    while front and len(before) < states_max:
        depth += 1
        following: list[World] = []
        for world in front:
            number = hash(world)
            after = number
            try:
                for _, bare in steps(world, rules):
                    taken += 1
                    reached = without_dead_strays(bare, rules)
                    after = hash(reached)
                    if after in before:
                        continue
                    before[after] = number
                    judge.look(reached, rules)
                    following.append(reached)
                    after = number
            except judge.Broken as broken:
                way = [*_way(rules, before, after), str(broken)]
                return Found(len(before), taken, depth, is_complete=False, rule=broken.rule, way=way)
            if len(before) >= states_max:
                break
        front = following
    return Found(len(before), taken, depth, is_complete=len(before) < states_max)


def _way(rules: Rules, before: dict[int, int], last: int) -> list[str]:
    numbers = [last]
    while before[numbers[-1]]:
        numbers.append(before[numbers[-1]])
    world, labels = start(rules), []
    for number in reversed(numbers[:-1]):
        for label, bare in _bearable(world, rules):
            reached = without_dead_strays(bare, rules)
            if hash(reached) == number:
                labels.append(label)
                world = reached
                break
    return labels


def _bearable(world: World, rules: Rules) -> list[tuple[str, World]]:
    """The steps up to an answer that breaks a rule."""
    found = []
    try:
        for step in steps(world, rules):
            found.append(step)  # noqa: PERF402 - what came before the error counts
    except judge.Broken:
        pass
    return found
