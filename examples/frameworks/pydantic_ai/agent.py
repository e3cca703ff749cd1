"""One agent of Pydantic AI: a toolset around the tools claims before a tool runs, and releases when the run ends.

    python -m examples.frameworks.story pydantic_ai

The hook is `call_tool` of a `WrapperToolset`; its `__aenter__` and `__aexit__` go around the whole run. What it returns
instead of the tool's answer is read by the model. (`ModelRetry` would be read too, but counts against `retries`, and a
job that another has is no mistake of the model.) An exception ends the run: if nobody can say whose the job is, no tool
runs.
"""

import asyncio
import sys
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from pydantic_ai import Agent, FunctionToolset, ModelMessage, ModelResponse, RunContext, TextPart, ToolCallPart
from pydantic_ai.messages import ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import ToolsetTool, WrapperToolset

import holdfast
from examples.frameworks.hook_claims import AsyncHookClaims
from examples.frameworks.stage import Part, next_call, read_part

# --- The tools, and the hook ------------------------------------------------------------------------------------------

tools: FunctionToolset[AsyncHookClaims] = FunctionToolset()


@tools.tool
async def push_fix(context: RunContext[AsyncHookClaims], issue: str) -> str:
    """Push the fix of an issue."""
    return await send("push_fix", issue, context.deps)


@tools.tool
async def open_pull_request(context: RunContext[AsyncHookClaims], issue: str) -> str:
    """Open the pull request for an issue whose fix is pushed."""
    return await send("open_pull_request", issue, context.deps)


async def send(step: str, issue: str, claims: AsyncHookClaims) -> str:
    return await asyncio.to_thread(claims.part.send, step, issue, claims.token(issue))


@dataclass
class ClaimedToolset(WrapperToolset[AsyncHookClaims]):
    """Runs a tool only if the issue is ours, and leaves a note when it has run."""

    claims: AsyncHookClaims

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[AsyncHookClaims], tool: ToolsetTool[AsyncHookClaims]
    ) -> Any:  # noqa: ANN401  # As in the class above: whatever the tool answers.
        issue = tool_args["issue"]
        if refusal := await self.claims.take(issue):
            return refusal
        answer = await super().call_tool(name, tool_args, ctx, tool)
        await self.claims.note(issue, str(answer))
        return answer

    async def __aenter__(self) -> Self:
        await self.claims.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.claims.__aexit__(kind, error, trace)


# --- The model, and the run -------------------------------------------------------------------------------------------


def scripted(part: Part) -> FunctionModel:
    """Stands for a model: what it calls next depends on what the tools have answered."""

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        parts = [each for message in messages for each in message.parts]
        read = [str(each.content) for each in parts if isinstance(each, ToolReturnPart)]
        if read:
            part.say(f"the model reads: {read[-1]}")
        if (call := next_call(part, read)) is None:
            return ModelResponse(parts=[TextPart("finished")])
        name, issue = call
        part.say(f"the model calls {name}({issue})")
        return ModelResponse(parts=[ToolCallPart(name, {"issue": issue})])

    return FunctionModel(answer)


async def main() -> None:
    played = read_part()
    claims = AsyncHookClaims(played)
    agent = Agent(scripted(played), deps_type=AsyncHookClaims, toolsets=[ClaimedToolset(tools, claims)])
    await agent.run(f"Fix one of these issues: {played.issues}", deps=claims)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except holdfast.HoldfastError as problem:
        sys.exit(f"stopped: {problem}")
