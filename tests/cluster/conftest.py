"""What a test of nodes leaves behind is let go before the next one begins."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _nothing_is_frozen() -> Iterator[None]:
    """Let the collector see everything again: a tenure that leads keeps it off what was loaded.

    A test may kill such a tenure. Then all garbage of this process would stay, with its sockets and open files.
    """
    yield
    if gc.get_freeze_count():
        gc.unfreeze()
        gc.collect()
