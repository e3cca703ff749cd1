"""What the client for threads and the one for coroutines have in common: which server, how patient, in whose name."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from holdfast.client.flows.effects import ANSWER_SECONDS, RETRY_SECONDS, Policy
from holdfast.client.values import config
from holdfast.client.values.arguments import patience

TTL_SECONDS = 60.0
"""For sessions."""
JOB_TTL_SECONDS = 120.0
"""For those who renew themselves: seldom, if they are agents."""
HISTORY_LIMIT = 100
SILENCE_SECONDS = 3.0
"""How long an address may be silent at least before another is asked, if so much was given for an answer."""


class Client(ABC):
    """The configuration of a client. The token never shows."""

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        allow_insecure_http: bool | None = None,
        owner: str | None = None,
        answer_seconds: float = ANSWER_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Find the server and the token; nothing is sent yet. Raises `SettingsError`.

        What is not given comes from HOLDFAST_URL, HOLDFAST_TOKEN, HOLDFAST_TOKEN_FILE, else from the user's
        client.toml. So do `ca_file` (HOLDFAST_CA_FILE), the certificates to trust in place of the system's, and
        `allow_insecure_http` (HOLDFAST_ALLOW_INSECURE_HTTP), without which no token goes to another machine over plain
        HTTP. `owner` is the name that claims bear unless they have one of their own; without any, each thread or
        task has one of the form host:pid:random. An answer may take `answer_seconds`; a server that does not answer is
        asked again for `retry_seconds`.

        `url` may be several addresses of the nodes of one server, with commas in between. One that does not answer, or
        knows no leader, is left for the next, and a silent one is given its share of `answer_seconds` only.
        """
        self._environment = os.environ if environment is None else environment
        self._target = config.find(
            url=url,
            token=token,
            token_file=None if token_file is None else Path(token_file),
            environment=self._environment,
            ca_file=None if ca_file is None else Path(ca_file),
            allow_insecure_http=allow_insecure_http,
        )
        config.tell_if_insecure(self._target)
        self._owner = owner
        answer_seconds = patience(answer_seconds, "answer_seconds", allow_zero=False)
        addresses = len(self._target.addresses)
        self._policy = Policy(
            self._target.url,
            max(answer_seconds / addresses, min(answer_seconds, SILENCE_SECONDS)),
            patience(retry_seconds, "retry_seconds", allow_zero=True),
            token_file=None if self._target.token_file is None else str(self._target.token_file),
            addresses=addresses,
        )
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None:
        """Make ready to ask; nothing is sent yet."""

    @property
    def url(self) -> str:
        """The server's address; several have commas in between."""
        return self._target.url

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which a child process reaches the same server in the same way; never the token."""
        return self._target.environment

    def __repr__(self) -> str:
        """Show where it leads, never the token."""
        return f"<{type(self).__name__} {self._target.url}>"
