"""One request to a server and its raw response: for `holdfast doctor`, which judges responses, good or bad.

The client's public methods raise where a response is a refusal, so this module reaches below them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import NoReturn, Self

from holdfast.cli.shared.options import ServerOptions
from holdfast.client import answers, config
from holdfast.client.effects import Open, Send
from holdfast.client.sync_transport import transport_to

Answer = answers.Answer
STREAM_SECONDS = 60.0
SUCCESS = 200
_SECRETS = {"holds_": "the secret of a session", "holdc_": "the secret of a claim, for that claim alone"}


class Probe:
    """A transport to the server, and to each of its nodes, that a client would use."""

    def __init__(self, target: config.Target) -> None:
        self._target = target
        self.url = target.url
        self.url_origin = target.url_origin
        self.has_token = target.token is not None
        self.token_origin = target.token_origin
        self.secret = next((what for start, what in _SECRETS.items() if (target.token or "").startswith(start)), None)
        """What it is, if a secret takes the place of the access token."""
        self._transport = transport_to(target, environment=os.environ)

    @classmethod
    def find(cls, server_options: ServerOptions) -> Self:
        """Find the server and the access token as all commands do. Raises `SettingsError`."""
        target = config.find(environment=os.environ, **server_options)
        config.warn_if_insecure(target)
        return cls(target)

    @contextmanager
    def each(self) -> Iterator[list[Probe]]:
        """Yield a probe for each address."""
        with ExitStack() as stack:
            yield [stack.enter_context(Probe(self._target.at(address))) for address in self._target.addresses]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._transport.close()

    def ask(self, path: str, seconds: float | None = None) -> Answer:
        """Ask once, with this timeout or the client's. Raises `Unreachable`."""
        asked = Send("GET", path) if seconds is None else Send("GET", path, answer_seconds=seconds)
        return self._transport.send(asked)

    def pieces(self, path: str) -> Iterator[bytes]:
        """Yield the parts of a long response. Raises `Unreachable`, and the error of a refusal."""
        stream = self._transport.stream(Open(path, {}, STREAM_SECONDS))
        try:
            if stream.status != SUCCESS:
                body = b"".join(iter(stream.read, b""))
                raise answers.refusal(Answer(stream.status, {}, body), self.url)
            yield from iter(stream.read, b"")
        finally:
            stream.close()

    def is_refusal(self, answer: Answer) -> bool:
        """Return whether a response is a refusal of a Holdfast server."""
        return answers.envelope(answer) is not None

    def lacks_leader(self, answer: Answer) -> bool:
        return answers.lacks_leader(answer)

    def follows(self, details: object) -> bool:
        """Return whether these details are those of a follower that is well."""
        return details == answers.FOLLOWS

    def has_shared_store(self, health: Answer) -> bool:
        body = health.json()
        return isinstance(body, dict) and body.get("storage") == answers.SHARED

    def refuse(self, answer: Answer) -> NoReturn:
        """Raise the error of a refusal."""
        raise answers.refusal(answer, self.url)

    def refusal(self, answer: Answer) -> str:
        return str(answers.refusal(answer, self.url))
