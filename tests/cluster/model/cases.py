"""The worlds that are searched: small ones to their end, large ones as far as a run allows, and the mutants.

A mutant is a node that breaks one rule of several nodes. The model is only worth something if it finds every one, so
each stands here with the rule of ownership that it must be seen to break.
"""

from __future__ import annotations

from tests.cluster.model.world import Rules

SMALL = {
    "one claim, three tenures, retried and sent on": Rules(asks=("claim",), epochs_max=3, retries=1, resends=1),
    "one claim, three tenures, two strays": Rules(asks=("claim",), epochs_max=3, retries=1, strays_max=2),
    "one claim and a look, two strays": Rules(asks=("claim", "look"), strays_max=2),
    "two claims, retried": Rules(asks=("claim", "claim"), retries=1),
    "two claims, two strays": Rules(asks=("claim", "claim"), strays_max=2),
    "a claim, its release, another claim": Rules(asks=("claim", "release 0", "claim")),
    "a claim, its release, a look": Rules(asks=("claim", "release 0", "look"), strays_max=0),
    "a lease that ends by itself": Rules(asks=("claim",), time_max=3, strays_max=0),
    "a delay that ends by itself": Rules(asks=("look", "look"), time_max=1, strays_max=0, has_delay=True),
    "the store loses what it had": Rules(asks=("claim", "claim"), strays_max=0, has_standby=True),
}
"""Searched to the end in every run."""

LARGE = {
    "two claims, expiry, lost answers": Rules(asks=("claim", "claim"), time_max=2),
    "two claims, long time": Rules(asks=("claim", "claim"), time_max=4, strays_max=0),
    "one claim, long time, lost answers": Rules(asks=("claim",), time_max=3),
    "two claims and a look, sent on": Rules(resends=1, strays_max=2),
    "one claim and a look, three tenures": Rules(
        asks=("claim", "look"), epochs_max=3, retries=1, resends=1, strays_max=2
    ),
    "two claims, retried and sent on": Rules(asks=("claim", "claim"), time_max=1, retries=1, resends=1),
    "a delay, lost answers": Rules(asks=("look", "look"), time_max=1, has_delay=True),
    "the store loses what it had, lost answers": Rules(asks=("claim", "claim"), has_standby=True),
}
"""Searched as far as the run allows."""

MUTANTS = {
    "look instead of resend": ("I6", Rules(asks=("claim",), lost="look")),
    "no row taken for deposed": ("I6", Rules(asks=("claim",), no_row="deposed")),
    "lost and deposed taken for failed": ("I6", Rules(asks=("claim",), lost_and_deposed="failed")),
    "a second copy taken for the only one": ("I6", Rules(asks=("claim",), resends=1, copies="failed")),
    "no fence": ("I5", Rules(asks=("claim", "claim"), fence=False, term=False)),
    "no barrier": ("I7", Rules(asks=("claim", "look"), strays_max=0, barrier=False)),
    "fast time": ("I3", Rules(asks=("claim",), time_max=1, strays_max=0, time="fast")),
    "time alone without a record": (
        "I7",
        Rules(asks=("look", "look"), time_max=1, strays_max=0, has_delay=True, timed=False),
    ),
    "no tenure": ("I9", Rules(asks=("claim",), has_standby=True, term=False)),
    "no jump of the tokens": (
        "I2",
        Rules(asks=("claim", "claim"), strays_max=0, has_standby=True, marks="never"),
    ),
}
"""Each is searched until it is found."""
