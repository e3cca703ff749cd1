"""The core's own tests count in entries: each weighs 1 unless a module asks for what they really weigh."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.core import index, leases

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", autouse=True)
def unit_weights(request: pytest.FixtureRequest) -> Iterator[None]:
    """Limits in bytes are limits in entries, except in a module with `REAL_WEIGHTS`."""
    with pytest.MonkeyPatch.context() as patch:
        if not getattr(request.module, "REAL_WEIGHTS", False):
            for name in ("weight_of_name", "weight_of_remembered", "weight_of_done"):
                patch.setattr(index, name, lambda *_: 1)
            patch.setattr(leases, "weight_of_done", lambda *_: 1)
        yield
