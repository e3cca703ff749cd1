"""What is done in the background for something that is held, a claim or a session.

    got ──► nothing, for a moment: what is given back by then costs no more than an entry in a list
              │ half a second, or less if a renewal is due before
              ▼
            watch_deadline     waits for nothing but time
            keep_renewed       beside it: a renewal that hangs must not hide the deadline
            Ends.attend        its end is heard of at once (L9)

It goes on for as long as somebody has what `keep` returns. So nothing is renewed that was dropped, or that an interrupt
kept from reaching its caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

from holdfast.client.common.background import Background, BackgroundFlow
from holdfast.client.flows.effects import Policy, Send
from holdfast.client.flows.ends import Ends
from holdfast.client.flows.renewing import MOMENT_MS, Renewal, keep_renewed, watch_held
from holdfast.client.values.term import Term


class Kept:
    """What goes on for one term."""

    __slots__ = ("__weakref__", "_background", "_flows", "stopped")

    def __init__(self, background: Background) -> None:
        self.stopped = False
        self._background = background
        self._flows: list[BackgroundFlow] = []

    def add(self, flow: BackgroundFlow) -> None:
        """Let a flow stop with the others. The background adds to what a thread of the user's may stop meanwhile."""
        self._flows.append(flow)
        if self.stopped:
            self._background.drop(flow)  # Looked at afterwards: whoever stops it from now on sees this one.

    def stop(self) -> None:
        """Let it be; a second time is harmless."""
        self.stopped = True
        for flow in self._flows:
            self._background.drop(flow)

    def abandon(self) -> None:
        """Let it be from wherever the garbage collector runs: the schedule of an event loop is not touched."""
        self.stopped = True
        for flow in self._flows:
            flow.stopped = True


def keep(
    background: Background, term: Term, renewal: Renewal, *, send: Callable[[Send], Any], ends: Ends, policy: Policy
) -> Kept:
    """Keep a term until it ends, or nobody has what this returns any more."""
    kept = Kept(background)
    whose = ref(kept)

    def begin() -> None:
        held = whose()
        if held is not None:
            held.add(background.add(keep_renewed(term, renewal.request, policy), send, held))
            ends.attend(term, renewal)

    kept.add(background.add(watch_held(term, begin), send, kept, begins_ms=term.quiet_ms(MOMENT_MS)))
    return kept
