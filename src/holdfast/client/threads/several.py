"""The way to an authority that has several addresses, for threads. `values/addresses.py` says why it is so."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from holdfast.client.common.http import Bearer, may_repeat
from holdfast.client.flows.effects import Open, Send
from holdfast.client.threads.http import HttpStream, HttpTransport
from holdfast.client.threads.transport import Transport
from holdfast.client.values.addresses import BEGIN_SECONDS, Addresses
from holdfast.client.values.answer import NOT_NOW, Answer
from holdfast.client.values.config import Target
from holdfast.errors import Unreachable


def way_to(target: Target, *, environment: Mapping[str, str]) -> Transport:
    """Return the way to an authority: with one address, what it always was."""
    if len(target.addresses) == 1:
        return HttpTransport(target, environment=environment)
    return SeveralTransport(target, environment=environment)


class SeveralTransport:
    """A way to one authority over whichever of its addresses answers."""

    def __init__(self, target: Target, *, environment: Mapping[str, str]) -> None:
        """Prepare; nothing is sent yet."""
        self.target = target
        self._addresses = Addresses(target.addresses)
        bearer = Bearer(target)
        self._ways = [
            HttpTransport(
                target.at(each),
                environment=environment,
                bearer=bearer,
                connect_share=self._addresses.connect_share,
                begin_seconds=BEGIN_SECONDS,
            )
            for each in target.addresses
        ]

    def __repr__(self) -> str:
        """Show where it leads, never the token."""
        return f"SeveralTransport({self.target!r})"

    def close(self) -> None:
        """Close the connections of all threads."""
        for way in self._ways:
            way.close()

    def send(self, request: Send) -> Answer:
        """Send one request to the first that answers. Raises `Unreachable`."""
        tries = self._addresses.tries(may_repeat=may_repeat(request))
        for at in tries:
            try:
                answer = tries.named(at, self._ways[at].send(request))
            except Unreachable as error:
                if not tries.go_on_after(at, error):
                    raise
            else:
                if tries.settles(at, answer):
                    return answer
        return tries.result()

    def stream(self, opening: Open) -> HttpStream:
        """Open a response that goes on and on, at the first that answers. Raises `Unreachable`."""
        tries = self._addresses.tries(may_repeat=True)
        for at in tries:
            try:
                stream = self._ways[at].stream(opening)
            except Unreachable as error:
                tries.go_on_after(at, error)
                continue
            if stream.status not in NOT_NOW:
                stream.on_broken = partial(self._addresses.failed, at)
                return stream
            self._addresses.failed(at)
            if not tries.left:
                return stream
            stream.close()
        raise tries.error()
