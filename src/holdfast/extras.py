"""How to install a part of Holdfast that is not there. It imports next to nothing, because much else may be missing.

Holdfast is on no package index yet, and `holdfast` there is somebody else's program: so the words name a checkout or a
wheel that was built from one, and nothing that an installer would look for elsewhere. They name the Python that runs
too: the `.venv` of a checkout has no pip, and the one that a shell finds would install into another place.
"""

from __future__ import annotations

import shlex
import sys


def how_to_install(extra: str) -> str:
    """Say which command brings an extra of ours to the Python that runs."""
    pip = f"pip --python {shlex.quote(sys.executable or 'python3')} install"
    return f"in a checkout of Holdfast run: {pip} -e '.[{extra}]', or with its wheel: {pip} 'WHEEL[{extra}]'"
