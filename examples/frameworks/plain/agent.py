"""One agent without a framework: a loop of model and tools in asyncio, inside of `async with client.claim(…)`.

    python -m examples.frameworks.story plain

The hook is the `async with` around the whole work on an issue. If the claim is lost, the block is cancelled wherever it
awaits, and what the tools send from then on carries a fencing token that is too old.
"""

import asyncio
import sys

import holdfast
from examples.frameworks.stage import Part, job_of, next_call, read_part, who_had_it, who_has_it


async def run_agent(part: Part, client: holdfast.AsyncHoldfast) -> None:
    read: list[str] = []
    while call := next_call(part, read):
        _, issue = call
        try:
            async with client.claim(job_of(issue), ttl=part.ttl, wait=part.wait) as claim:
                part.say(f"issue {issue} is mine, with fencing token {claim.fencing_token}")
                await work(part, claim, issue, read)
            part.say(f"finished issue {issue}, and released it")
        except holdfast.JobHeld as held:
            read.append(who_has_it(issue, held))
            part.say(f"the model reads: {read[-1]}")


async def work(part: Part, claim: holdfast.AsyncClaim, issue: str, read: list[str]) -> None:
    """Do what the model asks for until it has finished. Whoever takes over after us reads the note."""
    if claim.previous:
        read.append(who_had_it(issue, claim.previous))
        part.say(f"the model reads: {read[-1]}")
    while call := next_call(part, read):
        step, _ = call
        part.say(f"the model calls {step}({issue})")
        # In a thread, because renewals need the event loop.
        read.append(await asyncio.to_thread(part.send, step, issue, claim.fencing_token))
        await claim.note(read[-1])


async def main() -> None:
    played = read_part()
    async with holdfast.AsyncHoldfast(owner=played.name) as client:
        await run_agent(played, client)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except holdfast.HoldfastError as problem:
        sys.exit(f"stopped: {problem}")
