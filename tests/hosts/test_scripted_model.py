"""The scripted model itself, over HTTP, in each API. This needs no host, so every run has it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.hosts.dialects import Json, ToolCall
from tests.hosts.scripted_model import DONE, ScriptedModel, Until

CALL = ToolCall("edit", {"path": "a"})


def anthropic(results: Sequence[str]) -> tuple[str, Json]:
    """A request of Claude Code."""
    blocks = [{"type": "tool_result", "tool_use_id": "x", "content": text} for text in results]
    messages = [{"role": "user", "content": "AGENT: go"}, {"role": "user", "content": blocks}]
    return "/v1/messages?beta=true", {"messages": messages, "tools": [{"name": "edit"}], "stream": True}


def responses(results: Sequence[str]) -> tuple[str, Json]:
    """A request of Codex."""
    prompt = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "AGENT: go"}]}
    outputs = [{"type": "function_call_output", "output": text} for text in results]
    return "/v1/responses", {"input": [prompt, *outputs], "tools": [{"type": "function", "name": "edit"}]}


def chat(results: Sequence[str]) -> tuple[str, Json]:
    """A request of opencode."""
    messages = [{"role": "user", "content": "AGENT: go"}, *({"role": "tool", "content": text} for text in results)]
    return "/v1/chat/completions", {"messages": messages, "tools": [{"function": {"name": "edit"}}], "stream": True}


def gemini(results: Sequence[str]) -> tuple[str, Json]:
    """A request of Gemini CLI."""
    parts = [{"functionResponse": {"response": {"output": text}}} for text in results]
    contents = [{"role": "user", "parts": [{"text": "AGENT: go"}]}, {"role": "user", "parts": parts}]
    tools = [{"functionDeclarations": [{"name": "edit"}]}]
    return "/v1beta/models/m:streamGenerateContent?alt=sse", {"contents": contents, "tools": tools}


APIS = (anthropic, responses, chat, gemini)
Request = Callable[[Sequence[str]], tuple[str, Json]]


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    """A running model."""
    with ScriptedModel() as running:
        yield running


def post(model: ScriptedModel, request: Request, *results: str) -> str:
    """Ask for the next turn, and return the body of the response."""
    path, body = request(results)
    with urllib.request.urlopen(model.url + path, json.dumps(body).encode(), timeout=10) as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize("request_of", APIS)
def test_model_follows_script(model: ScriptedModel, request_of: Request) -> None:
    """In each API the model calls the tool of its script, reads the result, and ends."""
    model.follow({"AGENT": [CALL], "OTHER": []})
    first, last = post(model, request_of), post(model, request_of, "edited")
    assert '"edit"' in first and DONE not in first
    assert '"edit"' not in last and DONE in last
    assert [turn.marker for turn in model.turns] == ["AGENT", "AGENT"]
    assert ["edited" in result for result in model.results("AGENT")] == [True]


def test_function_runs_once_between_calls(model: ScriptedModel) -> None:
    """A function runs after the result of the call before it, and a repeated request does not run it again."""
    seen: list[int] = []
    model.follow({"AGENT": [CALL, lambda: seen.append(1), CALL]})
    post(model, chat)
    assert seen == []
    post(model, chat, "a")
    post(model, chat, "a")
    assert seen == [1]


def test_call_repeats_until_it_succeeds(model: ScriptedModel) -> None:
    """The step after a repeated call begins with the first result that contains the text."""
    model.follow({"AGENT": [Until(ToolCall("list", {}), "listed"), CALL]})
    answers = [post(model, chat, *results) for results in ((), ("no",), ("no", "listed"), ("no", "listed", "edited"))]
    assert ['"list"' in answer for answer in answers] == [True, True, False, False]
    assert ['"edit"' in answer for answer in answers] == [False, False, True, False]
