"""Every exception a user of Holdfast may meet. A name says who broke it: `LeaseReleased` is you, `LeaseLost` the world.

HoldfastError
├── SettingsError        a setting or the client's configuration is wrong: you, before anything was asked (ValueError)
├── JobHeld              somebody else owns the job: who, since when, until when, how alive that one looks
│   └── NotInTime        and still did when the wait was over (TimeoutError)
├── JobDone              the job is finished, and remembered as such: do not do it again
├── LeaseLost            the claim was ours and is not any more: reason says how it ended
├── LeaseReleased        the claim was given back, by you, before this call
├── StaleToken           a newer owner has been here: what you write to refused the fencing token
├── CannotFence          a fence cannot promise what it is there for: its text says what to do
└── ServerError          the server was asked and there is no good answer
    ├── Unreachable      no answer came: nobody knows whether the request took effect, unless was_sent is False
    │                    (ConnectionError)
    └── Refused          it answered no: status, code, details and request id say why
        ├── NotAllowed   the token is missing, unknown or may not do this: it answered 401, 403, or 429 after too many
        │                wrong tokens (PermissionError)
        └── Deadlock     waiting would never end: cycle says who waits for whom

The class in brackets is a second base, so that code that knows nothing of Holdfast handles the error as what it is.
`errno`, `strerror` and `filename` of those that are an `OSError` are None: they come from no call of the system. So a
handler for `OSError` or `ValueError` around a call of the client catches them too; handle `HoldfastError` before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

__all__ = [
    "CannotFence",
    "Deadlock",
    "HoldfastError",
    "JobDone",
    "JobHeld",
    "LeaseLost",
    "LeaseReleased",
    "NotAllowed",
    "NotInTime",
    "Refused",
    "ServerError",
    "SettingsError",
    "StaleToken",
    "Unreachable",
]


class HoldfastError(Exception):
    """Anything that Holdfast itself raises. Its text is one line that says what to do next."""

    def __init__(self, text: str = "", **details: Any) -> None:  # noqa: ANN401 - values of the class's own attributes
        super().__init__(text)
        for name, value in details.items():
            # What `OSError` has would say something wrong: the errno of a call that was never made.
            if not hasattr(type(self), name) or hasattr(OSError, name):
                raise TypeError(f"{type(self).__name__} has no {name!r}")
            setattr(self, name, value)


class SettingsError(HoldfastError, ValueError):
    """A setting cannot be used: its name, where the value came from, what is wrong with it, what is allowed."""

    def __init__(self, setting: str, origin: str, problem: str, allowed: str = "") -> None:
        # None of these may hold a secret.
        self.setting = setting
        self.origin = origin
        self.problem = problem
        self.allowed = allowed
        super().__init__(f"{setting} ({origin}): {problem}" + (f"; allowed: {allowed}" if allowed else ""))

    def __reduce__(self) -> tuple[type[SettingsError], tuple[str, str, str, str]]:
        # For pickle: an exception is otherwise made anew from its text alone.
        return type(self), (self.setting, self.origin, self.problem, self.allowed)


class JobHeld(HoldfastError):
    """Somebody else owns the job. For several jobs, `others` has one of these for each that is in the way."""

    job_id: str = ""
    owner: str | None = None
    metadata: Any = None
    """Whatever the owner attached."""
    labels: dict[str, str] = {}  # noqa: RUF012 - each has its own
    note: str | None = None
    claimed_at: datetime | None = None
    """None, like the other times, where a closed name has no owner."""
    last_heartbeat_at: datetime | None = None
    expires_at: datetime | None = None
    same_owner: bool = False
    waiting: int = 0
    retry_after: float | None = None
    """Seconds after which it may be free."""
    others: Sequence[JobHeld] = ()
    shown_as: str | None = None
    """The owner for people: its name, or the access token's in brackets if none was given. None: nobody has it."""

    def __init__(self, text: str, **details: Any) -> None:  # noqa: ANN401 - the same
        super().__init__(text, **details)
        self.labels = dict(self.labels or {})
        self.others = tuple(self.others)
        self.shown_as = self.shown_as or self.owner


class NotInTime(JobHeld, TimeoutError):
    """Somebody else owned the job for as long as the caller would wait."""


class JobDone(HoldfastError):
    """The job is finished: by whom, when, and what came of it."""

    job_id: str = ""
    owner: str | None = None
    fencing_token: int = 0
    completed_at: datetime | None = None
    result: str | None = None
    shown_as: str | None = None
    """Who did it, for people: as in `JobHeld`."""

    def __init__(self, text: str, **details: Any) -> None:  # noqa: ANN401 - the same
        super().__init__(text, **details)
        self.shown_as = self.shown_as or self.owner


class LeaseLost(HoldfastError):
    """The claim was ours and is not any more.

    `reason` is `expired` (its time passed), `unreachable` (it could not be renewed in time, or nobody knows whether it
    was handed over), `refused` (the server would not renew it), `revoked` (an operator ended it: `by` and `why` say who
    and why), `session_ended`, `released` or `transferred` (by another client with the lease id,
    or by an operator).
    """

    job_id: str = ""
    fencing_token: int | None = None
    reason: str = "expired"
    by: str | None = None
    why: str | None = None


class LeaseReleased(HoldfastError):
    """The claim was given back before this call."""


class StaleToken(HoldfastError):
    """A newer owner has been here: `current` is the greatest token that was seen."""

    resource: str = ""
    fencing_token: int = 0
    current: int | None = None


class CannotFence(HoldfastError):
    """The fence cannot keep its promise here, so nothing may be written. Its text says what to change."""


class ServerError(HoldfastError):
    """The server was asked and there is no good answer."""


class Unreachable(ServerError, ConnectionError):
    """No answer came from `url`. `was_sent` is False if there was no connection, so that nothing can have happened."""

    def __init__(self, url: str, problem: str, hint: str = "", *, was_sent: bool = True) -> None:
        """Take whom we asked, what happened instead of an answer, and what to do, where the problem tells it."""
        self.url = url
        self.problem = problem
        self.hint = hint
        self.was_sent = was_sent
        super().__init__(f"no answer from {url}: {problem}" + (f"; {hint}" if hint else ""))

    def __reduce__(self) -> tuple[type[Unreachable], tuple[str, str, str], dict[str, Any]]:
        return type(self), (self.url, self.problem, self.hint), vars(self)


class Refused(ServerError):
    """The server answered no. `code` is for programs, `details` for people, `request_id` for whoever reads its logs."""

    retry_after: float | None = None
    """Seconds; only where a retry can help."""

    def __init__(
        self,
        status: int,
        code: str,
        error: str,
        details: str | None = None,
        request_id: str | None = None,
        **more: Any,  # noqa: ANN401 - values of the class's own attributes
    ) -> None:
        self.status = status
        self.code = code
        self.error = error
        self.details = details
        self.request_id = request_id
        super().__init__(f"{error}: {details}" if details else error, **more)

    def __reduce__(self) -> tuple[type[Refused], tuple[int, str, str, str | None, str | None], dict[str, Any]]:
        return type(self), (self.status, self.code, self.error, self.details, self.request_id), vars(self)


class NotAllowed(Refused, PermissionError):
    """The token is missing, unknown or may not do this: the server answered 401 or 403.

    Or 429 `too_many_wrong_tokens`: unknown too, and so were too many before it. A right one passes at once.
    """

    token_file: str | None = None
    """The file that the token was read from; None if it is from elsewhere."""

    def __str__(self) -> str:
        """Name the file as well: it may be another than was thought, or its new token may not be there yet."""
        text = super().__str__()
        where = f"{text.rstrip('.')}. The access token was read from {self.token_file}."
        return text if self.token_file is None else where


class Deadlock(Refused):
    """Waiting would close a circle: `cycle` is who waits, for what, held by whom, and so on around."""

    cycle: Sequence[str] = ()
