"""A host that listens hears of a loss at once, in the old way of the protocol and in the new one."""

from __future__ import annotations

import asyncio
import json
import warnings

from mcp.client import Client
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp.types import ResourceUpdatedNotification

from tests.agents.mcp.hosts import Agent, Home, run
from tests.support.api import Api

JOBS = "holdfast://my-jobs"


def test_listener_is_notified_of_a_loss(home: Home, operator: Api, name: str) -> None:
    """The resource of one's own jobs changes when one is lost, and whoever listens is told."""

    async def test() -> None:
        async with home.host("ana") as ana:
            await ana.call("claim_job", job=name)
            async with ana.client.listen(resource_subscriptions=[JOBS]) as events:
                operator.revoke(name, reason="wrong branch")
                event = await anext(aiter(events))
                assert getattr(event, "uri", None) == JOBS
            (shown,) = (await ana.client.read_resource(JOBS)).contents
            assert json.loads(shown.text)["jobs"] == []  # type: ignore[union-attr] # It is text.
            # To read the resource is not to be told: the next result does that.
            assert [each["job"] for each in (await ana.call("my_jobs"))["lost"]] == [name]

    run(test())


def test_subscriber_of_the_older_protocol_is_notified(home: Home, operator: Api, name: str) -> None:
    """A host that made a handshake subscribes to the resource, and is told in the same way."""

    async def test() -> None:
        updated = asyncio.Event()

        async def hear(message: object) -> None:
            if isinstance(message, ResourceUpdatedNotification) and str(message.params.uri) == JOBS:
                updated.set()

        parameters = home.parameters("ana")
        async with Client(stdio_client(parameters), mode="legacy", message_handler=hear) as client:
            ana = Agent(client)
            assert [str(each.uri) for each in (await client.list_resources()).resources] == [JOBS]
            await ana.call("claim_job", job=name)
            with warnings.catch_warnings():
                # The SDK says that this way is the old one. Hosts use it.
                warnings.simplefilter("ignore", MCPDeprecationWarning)
                await client.subscribe_resource(JOBS)
            operator.revoke(name, reason="wrong branch")
            await asyncio.wait_for(updated.wait(), 20)

    run(test())
