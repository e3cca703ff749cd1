"""One agent of LangGraph: a graph of model and tools, and a `ToolNode` that claims before it runs a tool.

    python -m examples.frameworks.story langgraph

The hook is `wrap_tool_call` of the `ToolNode`. In an agent that LangChain's `create_agent` makes, the same function is
a middleware (`langchain.agents.middleware.wrap_tool_call`).

The claims live in the context of the run, not in the state of the graph: the state may be kept by a checkpointer and be
resumed by another process later, and a claim does not come along. That process claims again, and reads the note.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, ToolRuntime, tools_condition
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command

import holdfast
from examples.frameworks.hook_claims import HookClaims
from examples.frameworks.stage import Part, next_call, read_part

# --- The tools, and the hook ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Context:
    """What a run of the graph has beside its state, and what no checkpoint keeps."""

    claims: HookClaims


@tool
def push_fix(issue: str, runtime: ToolRuntime[Context]) -> str:
    """Push the fix of an issue."""
    return send("push_fix", issue, runtime.context.claims)


@tool
def open_pull_request(issue: str, runtime: ToolRuntime[Context]) -> str:
    """Open the pull request for an issue whose fix is pushed."""
    return send("open_pull_request", issue, runtime.context.claims)


def send(step: str, issue: str, claims: HookClaims) -> str:
    return claims.part.send(step, issue, claims.token(issue))


def with_claim(
    request: ToolCallRequest, run_tool: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
) -> ToolMessage | Command[Any]:
    """Run a tool only if the issue is ours, and leave a note when it has run."""
    context: Context = request.runtime.context
    claims = context.claims
    issue = request.tool_call["args"]["issue"]
    if refusal := claims.take(issue):
        return ToolMessage(refusal, tool_call_id=request.tool_call["id"])
    answer = run_tool(request)
    if isinstance(answer, ToolMessage):
        claims.note(issue, str(answer.text))
    return answer


# --- The graph --------------------------------------------------------------------------------------------------------


def build(model: BaseChatModel) -> StateGraph[MessagesState, Context, MessagesState, MessagesState]:
    def think(state: MessagesState) -> dict[str, list[AnyMessage]]:
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(MessagesState, context_schema=Context)
    graph.add_node("model", think)
    graph.add_node("tools", ToolNode([push_fix, open_pull_request], wrap_tool_call=with_claim))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph


class ScriptedModel(BaseChatModel):
    """Stands for a model: what it calls next depends on what the tools have answered."""

    part: Part

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: list[BaseMessage], *_: object, **__: object) -> ChatResult:
        read = [str(message.text) for message in messages if isinstance(message, ToolMessage)]
        if read:
            self.part.say(f"the model reads: {read[-1]}")
        answer = AIMessage("finished")
        if call := next_call(self.part, read):
            name, issue = call
            self.part.say(f"the model calls {name}({issue})")
            answer = AIMessage("", tool_calls=[{"name": name, "args": {"issue": issue}, "id": f"call-{len(read)}"}])
        return ChatResult(generations=[ChatGeneration(message=answer)])


def main() -> None:
    played = read_part()
    graph = build(ScriptedModel(part=played)).compile()
    with HookClaims(played) as claims:
        graph.invoke({"messages": [HumanMessage(f"Fix one of these issues: {played.issues}")]}, context=Context(claims))


if __name__ == "__main__":
    try:
        main()
    except holdfast.HoldfastError as problem:
        sys.exit(f"stopped: {problem}")
