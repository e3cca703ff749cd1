"""Drives flows in a world of their own: time passes when the world says so, and the network is a function.

The law of this file: nothing here reads a clock or chance. A test that "waits" a minute takes no time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.client.answers import Answer
from holdfast.client.clock import Instant
from holdfast.client.effects import Effect, Flow, NewKey, Now, Policy, Random, Send, Sleep
from holdfast.errors import Unreachable

T = TypeVar("T")

URL = "http://server"
POLICY = Policy(URL)
AT = "2026-01-01T00:00:00.000Z"
LEASE = "11111111-1111-4111-8111-111111111111"
TICKET = "22222222-2222-4222-8222-222222222222"
HOLDER = "33333333-3333-4333-8333-333333333333"

Network = Callable[["World", Send], Answer]


class World:
    """Two clocks that only rise, in microseconds inside and milliseconds outside, and a network."""

    def __init__(self, network: Network, *, random_fraction: float = 0.5) -> None:
        self.network = network
        self.random_fraction = random_fraction
        self.sent: list[Send] = []
        self.sent_at: list[Instant] = []
        self.sleeps: list[float] = []
        self.on_sleep: Callable[[float], object] | None = None
        self._monotonic_us = 7_000_000_000
        self._boot_us = 9_000_000_000
        self._keys = 0

    def now(self) -> Instant:
        return Instant(self._monotonic_us // 1_000, self._boot_us // 1_000)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._monotonic_us += round(seconds * 1_000_000)
        self._boot_us += round(seconds * 1_000_000)

    def suspend(self, seconds: float) -> None:
        """Let the machine sleep: one of the clocks does not notice."""
        self._boot_us += round(seconds * 1_000_000)

    def perform(self, effect: Effect) -> Any:  # noqa: ANN401 - each effect has a result of its own
        match effect:
            case Now():
                return self.now()
            case Random():
                return self.random_fraction
            case NewKey():
                self._keys += 1
                return f"key-{self._keys}"
            case Sleep(seconds=seconds):
                self.sleeps.append(seconds)
                if self.on_sleep is not None:
                    self.on_sleep(seconds)
                return self.advance(seconds)
            case Send():
                self.sent.append(effect)
                self.sent_at.append(self.now())
                return self.network(self, effect)
            case _:
                raise TypeError(type(effect).__name__)

    def run(self, flow: Flow[T]) -> T:
        """Drive a flow to its end; what the network raises is thrown in."""
        step: Callable[[Any], Effect] = flow.send
        value: Any = None
        try:
            while True:
                effect = step(value)
                try:
                    step, value = flow.send, self.perform(effect)
                except BaseException as error:  # noqa: BLE001 - it is thrown on, into the flow
                    step, value = flow.throw, error
        except StopIteration as returned:
            result: T = returned.value
            return result

    @property
    def keys(self) -> list[str | None]:
        """The key of each request that was sent."""
        return [request.key for request in self.sent]

    @property
    def paths(self) -> list[str]:
        return [f"{request.method} {request.path}" for request in self.sent]


def scripted(*steps: Network | Answer | BaseException) -> Network:
    """A network that answers each request with the next step, whatever is asked; the last one stays."""
    left = list(steps)

    def network(world: World, request: Send) -> Answer:
        step = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(step, BaseException):
            raise step
        return step if isinstance(step, Answer) else step(world, request)

    return network


def after(seconds: float, step: Answer | BaseException) -> Network:
    """Let time pass, then answer."""

    def network(world: World, request: Send) -> Answer:
        world.advance(seconds)
        if isinstance(step, BaseException):
            raise step
        return step

    return network


def no_answer(world: World, request: Send) -> Answer:
    """Never answer: the caller waits for as long as it would."""
    world.advance(request.answer_seconds)
    raise Unreachable(URL, "the answer did not come in time")


BROKEN = Unreachable(URL, "connection refused")


def answer(status: int, /, **fields: object) -> Answer:
    return Answer(status, {}, msgspec.json.encode(fields))


def acquired(expires_in_ms: int = 60_000, waited_ms: int = 0, **fields: object) -> Answer:
    body = {
        "status": "acquired",
        "lease_id": LEASE,
        "fencing_token": 7,
        "expires_at": AT,
        "renew_after_ms": 1,
        "metadata": None,
        "owner": "o",
        "claimed_at": AT,
        "expires_in_ms": expires_in_ms,
        "waited_ms": waited_ms,
        "reacquired": False,
        "previous": None,
        "attempts": 1,
    }
    return answer(200, **{**body, **fields})


def held(**fields: object) -> Answer:
    body = {
        "status": "held",
        "holder_id": HOLDER,
        "expires_at": AT,
        "retry_after_ms": 5_000,
        "metadata": None,
        "owner": "ana",
        "same_owner": False,
        "claimed_at": AT,
        "last_heartbeat_at": AT,
        "expires_in_ms": 5_000,
        "note": "half way",
        "waiting": 0,
    }
    return answer(200, **{**body, **fields})


def waiting(position: int = 1) -> Answer:
    return answer(200, status="waiting", ticket=TICKET, position=position, waited_ms=0)


def lock(**fields: object) -> Answer:
    """What is known of a job that `ana` holds."""
    body = {
        "name": "j",
        "status": "held",
        "holder_id": HOLDER,
        "fencing_token": 3,
        "expires_at": AT,
        "metadata": None,
        "owner": "ana",
        "claimed_at": AT,
        "last_heartbeat_at": AT,
        "expires_in_ms": 5_000,
        "note": "half way",
        "session": None,
        "waiting": 1,
        "attempts": 1,
        "previous": None,
    }
    return answer(200, **{**body, **fields})


def problem(status: int, code: str, /, **fields: object) -> Answer:
    return answer(status, error="No", code=code, details="Because.", request_id="r", **fields)


def renewed(expires_in_ms: int = 60_000) -> Answer:
    return answer(200, lease_id=LEASE, expires_at=AT, renew_after_ms=1, expires_in_ms=expires_in_ms)


def bodies(requests: Sequence[Send]) -> list[dict[str, Any]]:
    """The JSON of each request, without what was not said."""
    found = [msgspec.json.decode(msgspec.json.encode(request.body)) or {} for request in requests]
    return [{name: value for name, value in body.items() if value is not None} for body in found]
