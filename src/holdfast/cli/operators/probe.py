"""One question to a server and its answer as it came: what `holdfast doctor` looks at, good or bad.

The client's methods say what an answer means, and raise where it means no. Here the answer itself is looked at: its
status, its headers, a body that may be anybody's. So this file reaches below the client's public names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import NoReturn, Self

from holdfast.cli.shared.options import Reach
from holdfast.client import answers, config
from holdfast.client.operations.effects import Open, Send
from holdfast.client.transports.sync import transport_to

Answer = answers.Answer
STREAM_SECONDS = 60.0
SUCCESS = 200
_SECRETS = {"holds_": "the secret of a session", "holdc_": "the secret of a claim, for that claim alone"}


class Probe:
    """A way to a server, by the address and with the token that a client would use."""

    def __init__(self, target: config.Target) -> None:
        """Prepare; nothing is sent yet."""
        self._target = target
        self.url = target.url
        self.url_origin = target.url_origin
        self.has_token = target.token is not None
        self.token_origin = target.token_origin
        self.secret = next((what for start, what in _SECRETS.items() if (target.token or "").startswith(start)), None)
        """What it is, if it is shown in place of a token; by its look alone."""
        self._transport = transport_to(target, environment=os.environ)

    @classmethod
    def find(cls, reach: Reach) -> Self:
        """Find the server and the token, as all commands do. Raises `SettingsError`."""
        target = config.find(environment=os.environ, **reach)
        config.tell_if_insecure(target)
        return cls(target)

    @contextmanager
    def each(self) -> Iterator[list[Probe]]:
        """Give a way to each of its addresses alone."""
        with ExitStack() as stack:
            yield [stack.enter_context(Probe(self._target.at(address))) for address in self._target.addresses]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._transport.close()

    def ask(self, path: str, seconds: float | None = None) -> Answer:
        """Ask once, and wait for so long, or as clients do. Raises `Unreachable`."""
        asked = Send("GET", path) if seconds is None else Send("GET", path, answer_seconds=seconds)
        return self._transport.send(asked)

    def pieces(self, path: str) -> Iterator[bytes]:
        """Yield what a long answer consists of, as it comes. Raises `Unreachable`, and what a refusal means."""
        stream = self._transport.stream(Open(path, {}, STREAM_SECONDS))
        try:
            if stream.status != SUCCESS:
                body = b"".join(iter(stream.read, b""))
                raise answers.refusal(Answer(stream.status, {}, body), self.url)
            yield from iter(stream.read, b"")
        finally:
            stream.close()

    def is_refusal(self, answer: Answer) -> bool:
        """Tell whether this is how a Holdfast server says no."""
        return answers.envelope(answer) is not None

    def lacks_leader(self, answer: Answer) -> bool:
        """Tell whether this says that no node leads."""
        return answers.lacks_leader(answer)

    def follows(self, details: object) -> bool:
        """Tell whether a node that says this of itself is well and does not lead."""
        return answers.follows(details)

    def leads(self, details: str) -> bool:
        """Tell whether a node that says this of itself has the seat; also if it cannot serve now."""
        return answers.leads(details)

    def has_shared_store(self, health: Answer) -> bool:
        """Tell whether the store of which this tells is one that nodes share."""
        told = health.json()
        return isinstance(told, dict) and answers.is_shared(told.get("storage"))

    def refuse(self, answer: Answer) -> NoReturn:
        """Raise what an answer means that is no success."""
        raise answers.refusal(answer, self.url)

    def refusal(self, answer: Answer) -> str:
        """Say what an answer says that is no success."""
        return str(answers.refusal(answer, self.url))
