"""What is done in the background for something that is held, a claim or a session.

    got ──► nothing, for a moment: what is given back by then costs no more than an entry in a list
              │ half a second, or less if a renewal is due before
              ▼
            watch_deadline     waits for nothing but time
            keep_renewed       beside it: a renewal that hangs must not hide the deadline
            Ends.attend        its end is heard of at once (L9)

It goes on for as long as somebody has it. So nothing is renewed that was dropped, or that an interrupt kept from
reaching its caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.client.common.background import Background, Beginner, Resting
from holdfast.client.flows.effects import Policy, Send
from holdfast.client.flows.ends import Ends
from holdfast.client.flows.renewing import MOMENT_MS, Renewal, keep_renewed, watch_deadline
from holdfast.client.values.term import Term


class Kept(Beginner):
    """What goes on for one term, until it ends or nobody has this any more."""

    __slots__ = ("__weakref__", "_background", "_ends", "_going_on", "_policy", "_renewal", "_send", "_term", "stopped")

    def __init__(
        self,
        background: Background,
        term: Term,
        renewal: Renewal,
        *,
        send: Callable[[Send], Any],
        ends: Ends,
        policy: Policy,
    ) -> None:
        """Wait for the moment to begin."""
        self.stopped = False
        self._background = background
        self._term = term
        self._renewal = renewal
        self._send = send
        self._ends = ends
        self._policy = policy
        self._going_on: list[Resting] = []
        # Last of all: where the answer took long, the moment is past, and another thread may begin at once.
        self._going_on.append(background.begin_at(term.quiet_ms(MOMENT_MS), self))

    def begin(self) -> None:
        """Watch the term, renew it, and hear of its end."""
        if self._term.ended:
            return
        renewal = self._renewal
        renewing = keep_renewed(self._term, renewal.request, self._policy, renewal.look)
        for flow in (watch_deadline(self._term), renewing):
            running = self._background.add(flow, self._send, self)
            self._going_on.append(running)
            if self.stopped:
                self._background.drop(running)  # Looked at afterwards: whoever stops it from now on sees this one.
        self._ends.attend(self._term, self._renewal)

    def stop(self) -> None:
        """Let it be; a second time is harmless. A thread of the user's may do this while the background begins."""
        self.stopped = True
        for each in self._going_on:
            self._background.drop(each)

    def abandon(self) -> None:
        """Let it be from wherever the garbage collector runs: the schedule of an event loop is not touched."""
        self.stopped = True
        for each in self._going_on:
            each.stopped = True
