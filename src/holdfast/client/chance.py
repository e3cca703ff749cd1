"""The one place in the client that reads chance: keys that make a request once, and jitter."""

from __future__ import annotations

import os
import random


def new_key() -> str:
    """Return an idempotency key that nobody else has."""
    return os.urandom(16).hex()


def share() -> float:
    """Return a number from 0 up to 1."""
    return random.random()  # noqa: S311 - it spreads load, it hides nothing
