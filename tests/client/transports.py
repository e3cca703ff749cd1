"""The two ways to a server, made alike for tests: each sends one request and runs one flow, whoever waits inside."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from holdfast.client import aio as coroutines_driver
from holdfast.client import aio_transport as aiohttp_transport
from holdfast.client import sync as threads_driver
from holdfast.client.answers import Answer
from holdfast.client.config import Target
from holdfast.client.effects import Flow, Policy, Send
from holdfast.client.retry import ask
from holdfast.client.sync_transport import transport_to

T = TypeVar("T")

TRANSPORTS = ("http.client", "aiohttp")
ANSWER_SECONDS = 2.0


class EitherTransport:
    """A transport of either kind; `close` it."""

    def __init__(self, kind: str, target: Target, environment: dict[str, str]) -> None:
        self.transport: Any
        self._runner: asyncio.Runner | None = None
        if kind == "http.client":
            self.transport = transport_to(target, environment=environment)
        else:
            self._runner = asyncio.Runner()
            self.transport = aiohttp_transport.transport_to(target, environment=environment)
        self.policy = Policy(target.url, ANSWER_SECONDS, retry_seconds=0)

    def send(self, method: str, path: str, body: object = None, key: str | None = None) -> Answer:
        request = Send(method, path, body, key, ANSWER_SECONDS)
        answer: Answer = (
            self.transport.send(request) if self._runner is None else self._runner.run(self.transport.send(request))
        )
        return answer

    def ask(self, method: str, path: str, reply: type[T], body: object = None) -> T:
        return self.run(ask(Send(method, path, body, None, ANSWER_SECONDS), self.policy, reply))

    def run(self, flow: Flow[T]) -> T:
        if self._runner is None:
            return threads_driver.drive(flow, self.transport)
        return self._runner.run(coroutines_driver.drive(flow, self.transport, flow.send, [None]))

    def close(self) -> None:
        if self._runner is None:
            self.transport.close()
        else:
            self._runner.run(self.transport.close())
            self._runner.close()
