"""How to install a missing part of Holdfast, in words.

Holdfast is on no package index, and `holdfast` there is another program: so the words name a checkout or a wheel. They
name the Python that runs too: the `.venv` of a checkout has no pip.
"""

from __future__ import annotations

import shlex
import sys


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra for the Python that runs."""
    pip = f"pip --python {shlex.quote(sys.executable or 'python3')} install"
    return f"in a checkout of Holdfast run: {pip} -e '.[{extra}]', or with its wheel: {pip} 'WHEEL[{extra}]'"
