"""What a claim or a session needs of its client to act: run a flow, and renew in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from holdfast.client.common.keeping import Kept
from holdfast.client.flows.effects import Flow, Policy, Trail
from holdfast.client.flows.ends import Ends
from holdfast.client.flows.renewing import Renewal
from holdfast.client.threads.background import background_thread
from holdfast.client.threads.driver import drive
from holdfast.client.threads.transport import Transport
from holdfast.client.values.term import Term
from holdfast.errors import HoldfastError

T = TypeVar("T")
H = TypeVar("H")


class Link:
    """The way to one server for whoever holds something there. It outlives the client that made it."""

    def __init__(self, transport: Transport, policy: Policy) -> None:
        self.policy = policy
        self._transport = transport
        # Not methods: a circle of references would leave open connections to the garbage collector.
        self._ends = Ends(policy, partial(_keep, transport), partial(_listen, transport))

    def run(self, flow: Flow[T]) -> T:
        """Run a flow to its end, in this thread."""
        return drive(flow, self._transport)

    def hold(self, flow: Callable[[Trail], Flow[T]], make: Callable[[T], H]) -> H:
        """Run a flow that gets something, and return what is made of that.

        Whatever interrupts this, also between the answer and the end of it, what was got is given back.
        """
        trail = Trail()
        try:
            return make(self.run(flow(trail)))
        except HoldfastError:
            raise
        except BaseException:
            if trail.leave is not None:
                self.run(trail.leave())
            raise

    def give_back(self, flow: Flow[None], leave: Callable[[], Flow[None]]) -> None:
        """Run a flow that gives something back. If it is interrupted, `leave` does that in haste."""
        try:
            self.run(flow)
        except Exception:
            raise
        except BaseException:
            self.run(leave())
            raise

    def keep(self, term: Term, renewal: Renewal) -> Kept:
        """Renew a term in the background until it ends, or nobody has what this returns any more."""
        background, send = background_thread(), self._transport.send
        return Kept(background, term, renewal, send=send, ends=self._ends, policy=self.policy)


def _keep(transport: Transport, flow: Flow[None]) -> None:
    background_thread().add(flow, transport.send)


def _listen(transport: Transport, flow: Flow[None]) -> None:
    """Let a flow that blocks go on in a thread of its own, for as long as it takes."""
    threading.Thread(target=drive, args=(flow, transport), name="holdfast-ends", daemon=True).start()
