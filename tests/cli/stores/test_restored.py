"""A store that was restored from a dump: refused until somebody says so, and then tokens jump."""

from __future__ import annotations

import asyncio
import json

import pytest

from holdfast.journal.interface import JournalLostError, Recovered
from tests.cli.stores.conftest import Ask, Leader
from tests.journal.records import grants
from tests.support import postgres


async def opened(node: Leader) -> Recovered:
    """Take the leadership, and give it back."""
    found = await node._journal.open()
    await node._journal.close()
    return found


async def refused(node: Leader) -> str:
    """Try to take the leadership."""
    try:
        with pytest.raises(JournalLostError) as caught:
            await node._journal.open()
    finally:
        await node._journal.close()
    return str(caught.value)


def test_restored_dump_is_refused_until_declared(ask: Ask, schema: str) -> None:
    """Other tables are another copy: nobody leads on it until an operator says that it was restored (N-22, N-23)."""
    with postgres.running("dump") as server:
        asyncio.run(Leader(schema, url=server.url).once(grants(1, 5)))
        where = ["-h", str(server.folder), "-p", str(server.port), "-U", "postgres"]
        file = str(server.folder / "holdfast.dump")
        server.run("pg_dump", *where, "--schema", schema, "--format", "custom", "--file", file, "postgres")
        asyncio.run(Leader(schema, "node2", url=server.url).once(grants(6, 8)))
        server.run("pg_restore", *where, "--clean", "--if-exists", "--dbname", "postgres", file)

        assert "holdfast store restored" in asyncio.run(refused(Leader(schema, "node3", url=server.url)))
        done = ask("doctor", "--json", "--store", server.url)
        checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
        assert checks["timeline"]["status"] == "warn" and "holdfast store restored" in checks["timeline"]["next"]

        done = ask("store", "restored", "--yes", "--store", server.url)
        assert done.returncode == 0, done.stderr
        found = asyncio.run(opened(Leader(schema, "node3", url=server.url)))
        assert found.needs_token_gap
