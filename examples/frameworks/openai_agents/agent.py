"""One agent of the OpenAI Agents SDK: a guardrail of the tools claims before a tool runs.

    python -m examples.frameworks.story openai_agents

The hook is a `tool_input_guardrail`: `reject_content` keeps the tool from running and tells the model why. A guardrail
of the tool's output leaves the note. Both are named at each tool that has an effect, so that no run can forget them.
An exception in a guardrail ends the run: if nobody can say whose the job is, no tool runs.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

from agents import (
    Agent,
    AgentsException,
    Model,
    ModelResponse,
    RunContextWrapper,
    Runner,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrailData,
    ToolOutputGuardrailData,
    Usage,
    function_tool,
    tool_input_guardrail,
    tool_output_guardrail,
)
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

import holdfast
from examples.frameworks.hook_claims import AsyncHookClaims
from examples.frameworks.stage import Part, next_call, read_part

# --- The tools, and the hooks -----------------------------------------------------------------------------------------


@tool_input_guardrail
async def claimed(data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
    """Let a tool run only if the issue is ours."""
    claims: AsyncHookClaims = data.context.context
    refusal = await claims.take(json.loads(data.context.tool_arguments)["issue"])
    return ToolGuardrailFunctionOutput.reject_content(refusal) if refusal else ToolGuardrailFunctionOutput.allow()


@tool_output_guardrail
async def recorded(data: ToolOutputGuardrailData) -> ToolGuardrailFunctionOutput:
    """Leave a note of what was done."""
    claims: AsyncHookClaims = data.context.context
    await claims.note(json.loads(data.context.tool_arguments)["issue"], str(data.output))
    return ToolGuardrailFunctionOutput.allow()


# Without `failure_error_function=None` an error of a tool, such as the refusal of an old fencing token, is a text for
# the model, and the run goes on.
with_effect: dict[str, Any] = {
    "tool_input_guardrails": [claimed],
    "tool_output_guardrails": [recorded],
    "failure_error_function": None,
}


@function_tool(**with_effect)
async def push_fix(context: RunContextWrapper[AsyncHookClaims], issue: str) -> str:
    """Push the fix of an issue."""
    return await send("push_fix", issue, context.context)


@function_tool(**with_effect)
async def open_pull_request(context: RunContextWrapper[AsyncHookClaims], issue: str) -> str:
    """Open the pull request for an issue whose fix is pushed."""
    return await send("open_pull_request", issue, context.context)


async def send(step: str, issue: str, claims: AsyncHookClaims) -> str:
    return await asyncio.to_thread(claims.part.send, step, issue, claims.token(issue))


# --- The model, and the run -------------------------------------------------------------------------------------------


class ScriptedModel(Model):
    """Stands for a model: what it calls next depends on what the tools have answered."""

    def __init__(self, part: Part) -> None:
        self.part = part

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[Any],  # noqa: A002  # The SDK passes it by this name.
        *_: object,
        **__: object,
    ) -> ModelResponse:
        items = [] if isinstance(input, str) else input
        read = [item["output"] for item in items if item.get("type") == "function_call_output"]
        if read:
            self.part.say(f"the model reads: {read[-1]}")
        answer: Any = ResponseOutputMessage(
            id="finished",
            content=[ResponseOutputText(text="finished", type="output_text", annotations=[])],
            role="assistant",
            status="completed",
            type="message",
        )
        if call := next_call(self.part, read):
            name, issue = call
            self.part.say(f"the model calls {name}({issue})")
            answer = ResponseFunctionToolCall(
                name=name, arguments=json.dumps({"issue": issue}), call_id=f"call-{len(read)}", type="function_call"
            )
        return ModelResponse(output=[answer], usage=Usage(), response_id=None)

    def stream_response(self, *_: object, **__: object) -> AsyncIterator[Any]:
        raise RuntimeError("this model is not asked for a stream")


async def main() -> None:
    played = read_part()
    async with AsyncHookClaims(played) as claims:
        agent = Agent[AsyncHookClaims](
            name=played.name, model=ScriptedModel(played), tools=[push_fix, open_pull_request]
        )
        await Runner.run(agent, f"Fix one of these issues: {played.issues}", context=claims)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except (holdfast.HoldfastError, AgentsException) as problem:  # Errors of tools and guardrails arrive wrapped.
        sys.exit(f"stopped: {problem}")
