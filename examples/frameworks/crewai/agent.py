"""One agent of CrewAI: a hook before every tool call claims, a hook after it leaves the note.

    python -m examples.frameworks.story crewai

The hooks are `PRE_TOOL_CALL` and `POST_TOOL_CALL`. Mind two things. A hook that raises anything but `HookAborted` is
passed over, and the tool runs: so everything that goes wrong in the claim has to become a `HookAborted`. And the model
does not read the reason of a `HookAborted`: the hook after the call, which runs for blocked calls too, tells it.

As a second net the tools ask for the fencing token of the claim. Without a claim there is none, and the tool fails.
"""

import json
import sys
from typing import Any

from crewai import Agent, BaseLLM, Crew, Task
from crewai.hooks import HookAborted, InterceptionPoint, ToolCallHookContext, on
from crewai.tools import BaseTool, tool

import holdfast
from examples.frameworks.hook_claims import HookClaims
from examples.frameworks.stage import Part, next_call, read_part

WITH_EFFECT = ["push_fix", "open_pull_request"]

# --- The tools, and the hooks -----------------------------------------------------------------------------------------


def tools_of(claims: HookClaims) -> list[BaseTool]:
    @tool("push_fix")
    def push_fix(issue: str) -> str:
        """Push the fix of an issue."""
        return claims.part.send("push_fix", issue, claims.token(issue))

    @tool("open_pull_request")
    def open_pull_request(issue: str) -> str:
        """Open the pull request for an issue whose fix is pushed."""
        return claims.part.send("open_pull_request", issue, claims.token(issue))

    return [push_fix, open_pull_request]


class Claiming:
    """The two hooks around a tool call, and what went wrong in them."""

    def __init__(self, claims: HookClaims) -> None:
        self.problem: Exception | None = None
        self._hook_claims = claims
        self._refusals: dict[int, str] = {}  # By the input of the call, which is the same object in both hooks.

    def register(self) -> None:
        # Functions of their own, because CrewAI writes attributes on a hook, and methods take none.
        @on(InterceptionPoint.PRE_TOOL_CALL, tools=WITH_EFFECT)
        def before(call: ToolCallHookContext) -> None:
            self.before(call)

        @on(InterceptionPoint.POST_TOOL_CALL, tools=WITH_EFFECT)
        def after(call: ToolCallHookContext) -> str | None:
            return self.after(call)

    def before(self, call: ToolCallHookContext) -> None:
        try:
            refusal = self._hook_claims.take(call.tool_input["issue"])
        except Exception as problem:  # noqa: BLE001  # Whatever it is, the tool would run.
            self.problem = problem
            refusal = f"It is not known whose this issue is: {problem}"
        if refusal:
            self._refusals[id(call.tool_input)] = refusal
            raise HookAborted(refusal)

    def after(self, call: ToolCallHookContext) -> str | None:
        if refusal := self._refusals.pop(id(call.tool_input), None):
            return refusal
        try:
            self._hook_claims.note(call.tool_input["issue"], str(call.tool_result))
        except Exception as problem:  # noqa: BLE001  # It would be passed over, too.
            self.problem = problem
        return None


# --- The model, and the run -------------------------------------------------------------------------------------------


class ScriptedModel(BaseLLM):
    """Stands for a model: what it calls next depends on what the tools have answered."""

    part: Part

    def supports_function_calling(self) -> bool:
        return True

    def get_input_tokens_count(self, *_: object, **__: object) -> int:
        return 0  # The default one logs a line each time.

    def call(self, messages: str | list[dict[str, Any]], *_: object, **__: object) -> str | list[dict[str, Any]]:
        answers = [] if isinstance(messages, str) else [each for each in messages if each.get("role") == "tool"]
        read = [str(each["content"]) for each in answers]
        if read:
            self.part.say(f"the model reads: {read[-1]}")
        if (call := next_call(self.part, read)) is None:
            return "finished"
        name, issue = call
        self.part.say(f"the model calls {name}({issue})")
        function = {"name": name, "arguments": json.dumps({"issue": issue})}
        return [{"id": f"call-{len(read)}", "type": "function", "function": function}]


def main() -> None:
    played = read_part()
    with HookClaims(played) as claims:
        claiming = Claiming(claims)
        claiming.register()
        agent = Agent(
            role="Developer",
            goal="Fix one issue",
            backstory="You fix issues.",
            llm=ScriptedModel(model="scripted", part=played),
            tools=tools_of(claims),
            cache=False,  # An answer from a cache is no effect.
        )
        task = Task(description=f"Fix one of these issues: {played.issues}", expected_output="finished", agent=agent)
        Crew(agents=[agent], tasks=[task]).kickoff()
        if claiming.problem:
            raise claiming.problem


if __name__ == "__main__":
    try:
        main()
    except holdfast.HoldfastError as problem:
        sys.exit(f"stopped: {problem}")
