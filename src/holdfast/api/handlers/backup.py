"""GET /backup: all state as one file, with the authority's key and the hashes of all tokens.

Only operators without a prefix may have it: its owner can make the secret of every session. One is made at a time. It
stops with the server and with the caller's token. An interrupted file has no end frame, and is not a backup.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from holdfast import __version__
from holdfast.api.stream import Stream
from holdfast.engine import backup as backups
from holdfast.engine.build import JournalError
from holdfast.wire.problems import Problem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.api.context import RequestContext
    from holdfast.api.service import ApiService

TOPIC = " backup"  # Not a valid name. A backup listens to it to hear of the end of its token.
RETRY_MS = 5_000

log = logging.getLogger("holdfast.server")


class Backup(Stream):
    def __init__(self, api: ApiService, context: RequestContext) -> None:
        if context.caller.cookie is not None:
            # It holds the key that signs cookies: with it a copied cookie would be worth more than its own end.
            text = "A backup holds the server's key, and the page's cookie is not enough for it: send an access token."
            raise Problem("forbidden", text)
        if context.caller.prefix is not None:
            text = "A backup holds all names, and this token is confined to a prefix: use one without a prefix."
            raise Problem("forbidden", text)
        if api.engine.feed.is_listened_to(TOPIC):
            text = "A backup is being made already, and one is made at a time: try again."
            raise Problem("capacity_exceeded", text, retry_after_ms=RETRY_MS)
        super().__init__(api, context, api.streams)
        self._listener = api.engine.feed.listen(TOPIC, context.caller.principal, context.caller.session)

    async def frames(self) -> AsyncIterator[bytes]:
        writer, whose = backups.BackupWriter(), self._caller.principal
        pieces = backups.backup(self._api.engine, self._api.auth.key.for_backup(), __version__, writer)
        try:
            # Close the reader however it ends: an open one keeps the journal from dropping records.
            async with contextlib.aclosing(pieces):
                async for piece in pieces:
                    if self._listener.is_over or not self._is_authorized():
                        log.warning("the backup for %s broke off: its token has ended, or the server stops", whose)
                        return
                    yield piece
        except JournalError as error:
            log.warning("the backup for %s broke off: %s", whose, error)
            return
        made = writer.totals()
        log.info("a backup was made for %s: %d bytes, %d records", whose, made.size_bytes, made.records)

    def close(self) -> None:
        self._listener.close()
        super().close()
