"""How to install a part of Holdfast that is not there. It imports nothing, because much else may be missing.

Holdfast is on no package index yet, and `holdfast` there is somebody else's program: so the words name a checkout or a
wheel that was built from one, and nothing that an installer would look for elsewhere.
"""

from __future__ import annotations


def how_to_install(extra: str) -> str:
    """Say which command brings an extra of ours."""
    return f"in a checkout of Holdfast run: pip install '.[{extra}]', or with its wheel: pip install 'WHEEL[{extra}]'"
