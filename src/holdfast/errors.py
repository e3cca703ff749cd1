"""Every exception a user of Holdfast may meet.

HoldfastError
├── SettingsError        a setting or the client's configuration is wrong: you, before anything was asked
└── ServerError          the server was asked and there is no good answer
    ├── Unreachable      no answer came: nobody knows whether the request took effect
    └── Refused          it answered no: status, code, details and request id say why
        └── NotAllowed   it answered 401 or 403: the token is missing, unknown or may not do this
"""

__all__ = ["HoldfastError", "NotAllowed", "Refused", "ServerError", "SettingsError", "Unreachable"]


class HoldfastError(Exception):
    """Anything that Holdfast itself raises. Its text is one line that says what to do next."""


class SettingsError(HoldfastError):
    """A setting cannot be used: its name, where the value came from, what is wrong with it, what is allowed."""

    def __init__(self, setting: str, origin: str, problem: str, allowed: str = "") -> None:
        """Take the parts; the text is made of them. None of them may hold a secret."""
        self.setting = setting
        self.origin = origin
        self.problem = problem
        self.allowed = allowed
        super().__init__(f"{setting} ({origin}): {problem}" + (f"; allowed: {allowed}" if allowed else ""))

    def __reduce__(self) -> tuple[type["SettingsError"], tuple[str, str, str, str]]:
        """Let it travel between processes: an exception is otherwise made anew from its text alone."""
        return type(self), (self.setting, self.origin, self.problem, self.allowed)


class ServerError(HoldfastError):
    """The server was asked and there is no good answer."""


class Unreachable(ServerError):
    """No answer came from `url`."""

    def __init__(self, url: str, problem: str) -> None:
        """Say whom we asked and what happened instead of an answer."""
        self.url = url
        self.problem = problem
        super().__init__(f"no answer from {url}: {problem}")

    def __reduce__(self) -> tuple[type["Unreachable"], tuple[str, str]]:
        """Let it travel between processes."""
        return type(self), (self.url, self.problem)


class Refused(ServerError):
    """The server answered no. `code` is for programs, `details` for people, `request_id` for whoever reads its logs."""

    def __init__(
        self, status: int, code: str, error: str, details: str | None = None, request_id: str | None = None
    ) -> None:
        """Take the parts of the server's error envelope."""
        self.status = status
        self.code = code
        self.error = error
        self.details = details
        self.request_id = request_id
        super().__init__(f"{error}: {details}" if details else error)

    def __reduce__(self) -> tuple[type["Refused"], tuple[int, str, str, str | None, str | None]]:
        """Let it travel between processes."""
        return type(self), (self.status, self.code, self.error, self.details, self.request_id)


class NotAllowed(Refused):
    """The server answered 401 or 403."""
