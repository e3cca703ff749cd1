"""Who may touch a lease, or a place in the line: `may_touch`, asked by every decision (L3, S3).

A caller is a principal, the name of its token, and the session whose secret it used, if it used one.

- A token touches all that its principal claimed, bound to a session or not.
- A session's secret touches what is bound to that session, and nothing else: no run can release another's claim.

Which scope a request needs, and which names a confined token may speak of, is the server's to say: a principal is all
that the core knows of a token.

A run says no lease id when it comes back. `is_of_run` tells whether the live lease is its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.core.values import Lease, Limits, Terms


def may_touch(whose: Lease | Terms, principal: str, as_session: str | None) -> bool:
    """Tell whether a caller may act on what was, or is about to be, claimed with these terms."""
    if whose.principal != principal:
        return False
    return as_session is None or (whose.bound and whose.session == as_session)


def is_of_run(lease: Lease, session: str | None, name: str | None, limits: Limits) -> bool:
    """Tell whether a live lease is a run's own: bound to its session, and held under the run's own name.

    What a subagent claimed under another name in the same session is not the run's. By `reentrant = "holder"` all that
    its session holds is.
    """
    if session is None or not lease.bound or lease.session != session:
        return False
    return limits.reentrant == "holder" or lease.owner == name
