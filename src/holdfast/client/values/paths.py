"""Where things are on the server."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from urllib.parse import quote, urlencode

from holdfast.client.values.arguments import job_name, session_name


def job_path(job: str, verb: str = "") -> str:
    """Return the path of a job: its name is one percent-encoded segment (N2)."""
    path = _job_path(job_name(job))
    return f"{path}/{verb}" if verb else path


@lru_cache(maxsize=1_024)
def _job_path(job: str) -> str:
    """Return the path of a job. Kept for a while: whoever claims a job renews it and gives it back."""
    segment = quote(job, safe="")
    if segment in {".", ".."}:
        segment = segment.replace(".", "%2E")  # Whoever tidies addresses would take it for a step in the path.
    return f"/locks/{segment}"


def session_path(session_id: str, verb: str = "") -> str:
    """Return the path of a session."""
    return f"/sessions/{quote(session_name(session_id), safe='')}" + (f"/{verb}" if verb else "")


def with_query(path: str, labels: Mapping[str, str] | None = None, **fields: str | int | None) -> str:
    """Add the fields that are there; each label is a field of its own."""
    given = [(name, str(value)) for name, value in fields.items() if value is not None]
    given += [("label", f"{key}:{value}") for key, value in (labels or {}).items()]
    return f"{path}?{urlencode(given)}" if given else path


def token_path(name: str) -> str:
    """Return the path of a token."""
    return f"/tokens/{quote(name, safe='')}"
