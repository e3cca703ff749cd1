"""The model APIs that agent hosts call: Anthropic Messages, OpenAI Responses and Chat Completions, Gemini.

A dialect reads the parts of a request that a script needs, and renders the next turn of the model. Identifiers come
from a counter, so a run does not depend on chance.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Json = dict[str, Any]
_numbers = itertools.count(1)
_USAGE = {"input_tokens": 10, "output_tokens": 10}


@dataclass(frozen=True)
class ToolCall:
    """One tool call of the model. `arguments` is text for a tool without a schema.

    `found` maps a placeholder in the arguments to a pattern whose first group is taken from earlier results.
    """

    tool: str
    arguments: Mapping[str, object] | str
    namespace: str = ""
    found: Mapping[str, str] = field(default_factory=dict)

    def filled(self, results: Sequence[str]) -> ToolCall:
        """Return this call with every placeholder replaced."""
        text = self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)
        for placeholder, pattern in self.found.items():
            matches = re.findall(pattern, "\n".join(results))
            text = text.replace(placeholder, matches[-1] if matches else "0")
        return ToolCall(self.tool, text if isinstance(self.arguments, str) else json.loads(text), self.namespace)


@dataclass(frozen=True)
class Reply:
    """An HTTP response body: JSON, or server-sent events."""

    content: bytes
    is_stream: bool = False


class Dialect(Protocol):
    """What the scripted model needs to know about one API."""

    def matches(self, path: str) -> bool: ...
    def results(self, body: Json) -> list[str]: ...
    def tools(self, body: Json) -> list[str]: ...
    def prompt(self, body: Json) -> str: ...
    def reply(self, path: str, body: Json, calls: Sequence[ToolCall], text: str) -> Reply: ...


class Anthropic:
    """Messages API: Claude Code."""

    def matches(self, path: str) -> bool:
        return path.endswith("/messages")

    def results(self, body: Json) -> list[str]:
        blocks = [block for message in body["messages"] if isinstance(message["content"], list)
                  for block in message["content"]]  # fmt: skip
        return [text_of(block) for block in blocks if block.get("type") == "tool_result"]

    def tools(self, body: Json) -> list[str]:
        return [tool["name"] for tool in body.get("tools") or []]

    def prompt(self, body: Json) -> str:
        contents = [message["content"] for message in body["messages"] if message["role"] == "user"]
        blocks = [block for content in contents for block in (content if isinstance(content, list) else [content])]
        return text_of([block for block in blocks if isinstance(block, str) or block.get("type") == "text"])

    def reply(self, path: str, body: Json, calls: Sequence[ToolCall], text: str) -> Reply:
        blocks: list[Json] = [
            {"type": "tool_use", "id": f"toolu_{next(_numbers)}", "name": call.tool, "input": call.arguments}
            for call in calls
        ] or [{"type": "text", "text": text}]
        reason = "tool_use" if calls else "end_turn"
        message = {
            "id": f"msg_{next(_numbers)}", "type": "message", "role": "assistant", "model": body.get("model"),
            "content": blocks, "stop_reason": reason, "stop_sequence": None, "usage": _USAGE,
        }  # fmt: skip
        if not body.get("stream"):
            return _json(message)
        return _events(self._stream(message, blocks, reason), named=True)

    @staticmethod
    def _stream(message: Json, blocks: Sequence[Json], reason: str) -> Iterator[Json]:
        yield {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
        for index, block in enumerate(blocks):
            if block["type"] == "text":
                start: Json = {"type": "text", "text": ""}
                delta = {"type": "text_delta", "text": block["text"]}
            else:
                start = {**block, "input": {}}
                delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            yield {"type": "content_block_start", "index": index, "content_block": start}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        yield {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": _USAGE}
        yield {"type": "message_stop"}


class Responses:
    """OpenAI Responses API: Codex. It always streams."""

    def matches(self, path: str) -> bool:
        return path.endswith("/responses")

    def results(self, body: Json) -> list[str]:
        return [text_of(item) for item in _items(body) if str(item.get("type", "")).endswith("_output")]

    def tools(self, body: Json) -> list[str]:
        extra = [tool for item in _items(body) if item.get("type") == "additional_tools" for tool in item["tools"]]
        names = []
        for tool in [*(body.get("tools") or []), *extra]:
            if tool.get("type") == "namespace":
                names += [f"{tool['name']}/{inner['name']}" for inner in tool.get("tools", [])]
            else:
                names.append(tool.get("name") or tool["type"])
        return names

    def prompt(self, body: Json) -> str:
        # In code mode the task of a subagent is encrypted; the task name is the last part of the recipient.
        tasks = [item["recipient"] for item in _items(body) if item.get("type") == "agent_message"]
        return "\n".join([_prompt_of(_items(body)), *tasks])

    def reply(self, path: str, body: Json, calls: Sequence[ToolCall], text: str) -> Reply:
        identifier = f"resp_{next(_numbers)}"
        items: list[Json] = [self._item(call) for call in calls] or [
            {"type": "message", "id": f"m_{next(_numbers)}", "role": "assistant", "status": "completed",
             "content": [{"type": "output_text", "text": text, "annotations": []}]}
        ]  # fmt: skip
        events: list[Json] = [{"type": "response.created", "response": {"id": identifier}}]
        for index, item in enumerate(items):
            events.append({"type": "response.output_item.added", "output_index": index, "item": item})
            events.append({"type": "response.output_item.done", "output_index": index, "item": item})
        usage = {**_USAGE, "total_tokens": 20, "input_tokens_details": None, "output_tokens_details": None}
        done = {"id": identifier, "output": items, "usage": usage}
        events.append({"type": "response.completed", "response": done})
        return _events(events, named=True)

    @staticmethod
    def _item(call: ToolCall) -> Json:
        number = next(_numbers)
        item: Json = {"id": f"it_{number}", "call_id": f"call_{number}", "status": "completed", "name": call.tool}
        if call.namespace:
            item["namespace"] = call.namespace
        if isinstance(call.arguments, str):
            return {"type": "custom_tool_call", "input": call.arguments, **item}
        return {"type": "function_call", "arguments": json.dumps(call.arguments), **item}


class Chat:
    """OpenAI Chat Completions API: opencode."""

    def matches(self, path: str) -> bool:
        return path.endswith("/chat/completions")

    def results(self, body: Json) -> list[str]:
        return [text_of(message) for message in body["messages"] if message.get("role") == "tool"]

    def tools(self, body: Json) -> list[str]:
        return [tool["function"]["name"] for tool in body.get("tools") or []]

    def prompt(self, body: Json) -> str:
        return _prompt_of(body["messages"])

    def reply(self, path: str, body: Json, calls: Sequence[ToolCall], text: str) -> Reply:
        made = [
            {"index": index, "id": f"call_{next(_numbers)}", "type": "function",
             "function": {"name": call.tool, "arguments": json.dumps(call.arguments)}}
            for index, call in enumerate(calls)
        ]  # fmt: skip
        message: Json = {"role": "assistant"} | ({"tool_calls": made} if made else {"content": text})
        reason = "tool_calls" if made else "stop"
        usage = {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}
        common = {"id": f"chat_{next(_numbers)}", "created": 1, "model": body.get("model")}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            return _json({**common, "object": "chat.completion", "choices": [choice], "usage": usage})
        chunk = {**common, "object": "chat.completion.chunk"}
        first = {**chunk, "choices": [{"index": 0, "delta": message, "finish_reason": None}]}
        last = {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage}
        return _events([first, last], named=False, end=b"data: [DONE]\n\n")


class Gemini:
    """Gemini API: Gemini CLI."""

    def matches(self, path: str) -> bool:
        return path.endswith("enerateContent")

    def results(self, body: Json) -> list[str]:
        parts = [part for content in body.get("contents", []) for part in content.get("parts", [])]
        return [json.dumps(part["functionResponse"].get("response")) for part in parts if "functionResponse" in part]

    def tools(self, body: Json) -> list[str]:
        groups = body.get("tools") or []
        return [tool["name"] for group in groups for tool in group.get("functionDeclarations", [])]

    def prompt(self, body: Json) -> str:
        return _prompt_of(body.get("contents", []))

    def reply(self, path: str, body: Json, calls: Sequence[ToolCall], text: str) -> Reply:
        parts: list[Json] = [{"functionCall": {"name": call.tool, "args": call.arguments}} for call in calls]
        content = {"role": "model", "parts": parts or [{"text": text}]}
        usage = {"promptTokenCount": 10, "candidatesTokenCount": 10, "totalTokenCount": 20}
        answer = {
            "candidates": [{"content": content, "finishReason": "STOP", "index": 0}],
            "usageMetadata": usage,
            "modelVersion": "scripted",
        }
        return _events([answer], named=False) if path.endswith("streamGenerateContent") else _json(answer)


DIALECTS: tuple[Dialect, ...] = (Anthropic(), Responses(), Chat(), Gemini())


def text_of(content: object) -> str:
    """Return the text of a message, a list of parts or one part."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(text_of(part) for part in content)
    if isinstance(content, dict):
        return "\n".join(text_of(content[key]) for key in ("text", "content", "parts", "output") if key in content)
    return ""


def _prompt_of(messages: Sequence[Json]) -> str:
    return "\n".join(text_of(message) for message in messages if message.get("role") == "user")


def _items(body: Json) -> list[Json]:
    items = body.get("input", [])
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    return [item for item in items if isinstance(item, dict)]


def _json(value: Json) -> Reply:
    return Reply(json.dumps(value).encode())


def _events(events: Iterator[Json] | Sequence[Json], *, named: bool, end: bytes = b"") -> Reply:
    lines = [(f"event: {event['type']}\n" if named else "") + f"data: {json.dumps(event)}\n\n" for event in events]
    return Reply("".join(lines).encode() + end, is_stream=True)
