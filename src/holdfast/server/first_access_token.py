"""The first access token: made where there is none, for the user of this machine alone, and found again later."""

from __future__ import annotations

import contextlib
import logging
import os

from holdfast import clientconfig
from holdfast.api import rendering
from holdfast.api.auth.auth import SCOPES
from holdfast.api.auth.secrets import digest, new_token
from holdfast.api.service import ApiService
from holdfast.config import Settings, parse_address
from holdfast.core.commands import CreateToken
from holdfast.core.outcomes import TokenMade
from holdfast.errors import SettingsError
from holdfast.privatefiles import make_folder, replace
from holdfast.server.components import EX_IOERR, EX_USAGE, StartError

FIRST_TOKEN = "local"  # noqa: S105 - the name of the token
TOKEN_FILE = "local-token"  # noqa: S105 - the name of the file
HIDDEN_REPORTED_MAX = 10

log = logging.getLogger("holdfast.server")


async def first_token(api: ApiService, url: str, settings: Settings) -> str | None:
    """Make the first token where there is none, for this machine's user alone. Return where it is kept."""
    if api.auth.static.callers or api.engine.state.tokens:
        return None
    if not is_loopback(parse_address(settings.listen)[0]):
        text = (
            "there is no access token, and this address is open to others: set HOLDFAST_TOKENS or HOLDFAST_TOKENS_FILE"
        )
        raise StartError(text, EX_USAGE)
    token = new_token()
    path = None
    with contextlib.suppress(OSError):
        path = clientconfig.remember(url, token, os.environ)
    if path is None:
        # The user's configuration is for another server, or cannot be written: it is left alone.
        path = settings.data / TOKEN_FILE
        make_folder(settings.data)
        replace(path, f"{token}\n".encode())
    command = CreateToken(principal=FIRST_TOKEN, name=FIRST_TOKEN, digest=digest(token), scopes=SCOPES)
    outcome, _ = await api.engine.ask(command)
    if not isinstance(outcome, TokenMade):
        raise StartError(f"the first access token could not be made: {rendering.problem(outcome).details}", EX_IOERR)
    return str(path)


def is_loopback(host: str) -> bool:
    return host in {"localhost", "::1"} or host.startswith("127.")


def find_token(api: ApiService) -> str | None:
    """Return where a valid access token is kept: in the user's configuration, or in the data directory."""
    files = [api.settings.data / TOKEN_FILE]
    with contextlib.suppress(OSError, SettingsError):
        config = clientconfig.read(os.environ)
        if config.token_file is not None:
            # Its address may be another one of this server: the access token is checked below.
            files.insert(0, config.token_file)
    for file in files:
        with contextlib.suppress(OSError, SettingsError):
            stored = digest(clientconfig.read_token(file))
            if api.auth.by_digest(stored, api.engine.state, api.engine.clock.wall_ms()) is not None:
                return str(file)
    return None


def warn_of_hidden(api: ApiService) -> None:
    """Log which made tokens are out of use, because static ones have their names."""
    hidden = api.auth.hidden(api.engine.state)
    if hidden:
        log.warning(
            "%d made tokens have the name of a static one and are not let in: %s. Revoke them with `holdfast token"
            " revoke NAME`, which leaves the static one, or take the static one out of the settings.",
            len(hidden),
            ", ".join(hidden[:HIDDEN_REPORTED_MAX]),
        )
