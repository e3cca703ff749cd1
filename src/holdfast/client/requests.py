"""Arguments of callers, checked as far as they can be sent at all (the server judges the rest); paths on the server.

Threads and tasks without an owner name get one: `host:pid:random`. They keep it unless it is unknown whether a lease
under it has ended (D1a): a wait for the same job under the old name could be a deadlock with that lease.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from urllib.parse import quote, urlencode
from weakref import WeakKeyDictionary, WeakValueDictionary

import msgspec

from holdfast.client import clock
from holdfast.errors import JobDone, JobHeld, LeaseLost, Refused, SettingsError

_PLAIN_NUMBERS = frozenset({int, float})


def integer_seconds(seconds: float, what: str = "ttl") -> int:
    """Return whole seconds, never fewer than were asked for."""
    _check_number(seconds, what)
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{what} is {seconds}; give a number of seconds, neither negative nor without end")
    return -int(-seconds // 1)


def wait_seconds(wait: float | None) -> float:
    """Return how long to wait; it may be without end."""
    if wait is None:
        return 0.0
    _check_number(wait, "wait")
    if not wait >= 0:
        raise ValueError(f"wait is {wait}; give the seconds to stand in line, 0 or None not to wait, math.inf for ever")
    return wait


def check_limit(limit: object) -> None:
    """Refuse what is no limit of a listing: a mistake must not look like a list with nothing in it."""
    text = f"limit is {limit!r:.50}; give a whole number of at least 1"
    if isinstance(limit, bool) or not isinstance(limit, Integral):
        raise TypeError(text)
    if limit < 1:
        raise ValueError(text)


def as_json(value: object) -> bytes:
    """Return a value as JSON. A text or number of a class of somebody's own travels as the text or number it is."""
    return msgspec.json.encode(value, enc_hook=_as_builtin)


def _as_builtin(value: object) -> object:
    # By the methods of the built-in types: a class may have given `str()` or `int()` another meaning.
    match value:
        case str():
            return str.__str__(value)
        case int():
            return int.__int__(value)
        case float():
            return float.__float__(value)
        case _:
            raise TypeError(f"{value!r:.50} is of the type {type(value).__name__}, which JSON does not know")


def names(jobs: Sequence[str]) -> list[str]:
    """Return the jobs as a list; one text alone is a mistake that would claim its letters."""
    if isinstance(jobs, str):
        raise TypeError("give a list of jobs, not one text")
    return list(jobs)


def job_name(job: object) -> str:
    """Return the name of a job. Whether it is a good one is the server's to say."""
    if not isinstance(job, str) or not job:
        raise ValueError(f"{job!r:.50} names no job; give a text that is not empty")
    try:
        job.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{job!r:.50} names no job: it is not text that UTF-8 can write") from None
    return job


def session_name(session: object) -> str:
    """Return the id of a session. A session itself would be sent whole, and its secret with it."""
    if not isinstance(session, str):
        raise TypeError(f"session is of the type {type(session).__name__}; give the id of one, its .session_id")
    return session


def patience(seconds: float, setting: str, *, allow_zero: bool) -> float:
    """Return a number of seconds that a client is made with. Raises `SettingsError`."""
    if not (seconds > 0 or (seconds == 0 and allow_zero)):
        allowed = f"a number of seconds{', 0 or more' if allow_zero else ' above 0'}"
        raise SettingsError(setting, "the given value", f"{seconds!r:.50} cannot be used", allowed)
    return seconds


def _check_number(seconds: object, what: str) -> None:
    if type(seconds) in _PLAIN_NUMBERS:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, Real):
        raise TypeError(f"{what} is {seconds!r:.50}; give a number of seconds")


def job_path(job: str, verb: str = "") -> str:
    """Return the path of a job: its name is one percent-encoded segment (N2)."""
    segment = quote(job_name(job), safe="")
    if segment in {".", ".."}:
        segment = segment.replace(".", "%2E")  # Whoever tidies addresses would take it for a step in the path.
    return f"/locks/{segment}" + (f"/{verb}" if verb else "")


def session_path(session_id: str, verb: str = "") -> str:
    return f"/sessions/{quote(session_name(session_id), safe='')}" + (f"/{verb}" if verb else "")


def with_query(path: str, labels: Mapping[str, str] | None = None, **fields: str | int | None) -> str:
    given = [(name, str(value)) for name, value in fields.items() if value is not None]
    given += [("label", f"{key}:{value}") for key, value in (labels or {}).items()]
    return f"{path}?{urlencode(given)}" if given else path


def token_path(name: str) -> str:
    return f"/tokens/{quote(name, safe='')}"


HOST_CHARS_MAX = 64
_SERVER_FAILED = 500  # From this status on, a refusal leaves open whether the request took effect.


class _Name:
    __slots__ = ("__weakref__", "is_retired", "pid", "text")

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.text = f"{socket.gethostname()[:HOST_CHARS_MAX]}:{pid}:{clock.new_key()[:8]}"
        self.is_retired = False


_names: WeakKeyDictionary[object, _Name] = WeakKeyDictionary()
_by_text: WeakValueDictionary[str, _Name] = WeakValueDictionary()


def owner_of(worker: object) -> str:
    """Return the generated name of a thread or task.

    Each has its own, because the server treats equal owners as one holder, and two threads that wait for the same job
    must be two waiters. A forked process gets new names.
    """
    pid = os.getpid()
    known = _names.get(worker)
    if known is None or known.is_retired or known.pid != pid:
        known = _Name(pid)
        _by_text[known.text] = known
        _names[worker] = known
    return known.text


def retire(owner: str | None) -> None:
    """Stop using a generated name, because a lease under it may be live. Names that users chose are kept."""
    known = None if owner is None else _by_text.get(owner)
    if known is not None:
        known.is_retired = True


def doubt(owner: str | None, error: BaseException) -> None:
    """Retire a name if this error leaves open whether a lease under it is live."""
    if isinstance(error, JobHeld | JobDone | LeaseLost):
        return
    if not isinstance(error, Refused) or error.status >= _SERVER_FAILED:
        retire(owner)
