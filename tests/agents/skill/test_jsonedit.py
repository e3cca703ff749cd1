"""JSON with comments is edited by position: what is added can be taken out again, and nothing else ever changes."""

from __future__ import annotations

import copy
import json
import re
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdfast.agents.skill.hosts import HOSTS
from holdfast.agents.skill.installer import hook_entries, server_entry
from holdfast.agents.skill.jsonedit import DEPTH_MAX, Entry, Json, UnsupportedSyntax, insert, remove, scan
from tests.support import proof

SERVER = Entry(("mcpServers",), "holdfast", {"command": "holdfast", "args": ["mcp"]})
HOOK = Entry(("hooks", "PreToolUse"), None, {"matcher": "Edit|Write", "hooks": [{"type": "command", "command": "x"}]})
FLAT = Entry(("hooks", "preToolUse"), None, {"command": "x"}, (("version", 1),))
FLAT_END = Entry(("hooks", "version"), None, {"command": "x"}, (("version", 1),))
ENTRIES = (SERVER, HOOK, FLAT, FLAT_END)
TOGETHER = st.sampled_from([(SERVER, HOOK, Entry(("hooks", "a"), None, {"hooks": []})), (FLAT, FLAT_END)])
"""What stands together in a file of a host."""

MANY = settings(max_examples=proof.count("skills: documents"), deadline=None)

SPACE = st.sampled_from(["", "", " ", "\n", "\r\n", "\t", "  ", "\n  ", "\n\n\t"])
COMMENT = st.sampled_from(["/* } */", '// "a": {\n', "//\n", "/**/", "// ü\r\n"])
TRIVIA = st.lists(st.one_of(SPACE, SPACE, COMMENT), max_size=3).map("".join)
SCALAR = st.sampled_from(["0", "-1.5e3", "true", "null", '"MARK"', r'"\"{\u00fc"', '"//"', '"/*"', '""', "1E400"])
KEY = st.sampled_from(
    [
        '"a"',
        '"mcpServers"',
        '"hooks"',
        '"PreToolUse"',
        '"preToolUse"',
        '"version"',
        r'"h\u006foks"',
        '"holdfast"',
        '"Ω"',
    ]
)


@st.composite
def containers(draw: st.DrawFn, inner: st.SearchStrategy[str], *, is_object: bool) -> str:
    """An object or an array with any white space, comments and commas that may be there."""
    values = draw(st.lists(inner, max_size=4))
    if is_object:
        keys = draw(
            st.lists(KEY, min_size=len(values), max_size=len(values), unique_by=lambda key: str(json.loads(key)))
        )
        values = [key + draw(TRIVIA) + ":" + draw(TRIVIA) + value for key, value in zip(keys, values, strict=True)]
    first, last = "{}" if is_object else "[]"
    text = first + draw(TRIVIA)
    for at, value in enumerate(values):
        is_last = at == len(values) - 1
        comma = "" if is_last and draw(st.booleans()) else ","
        text += value + draw(TRIVIA) + comma + (draw(TRIVIA) if comma else "")
    return text + last


VALUES = st.recursive(
    SCALAR,
    lambda inner: st.one_of(containers(inner, is_object=True), containers(inner, is_object=False)),
    max_leaves=12,
)
DOCUMENTS = st.builds(lambda *parts: "".join(parts), TRIVIA, containers(VALUES, is_object=True), TRIVIA)


def with_entry(value: Json, entry: Entry) -> Json:
    """What a document means once the entry is in it: the naive way, on loaded values."""
    changed = copy.deepcopy(value)
    assert isinstance(changed, dict)
    if entry.path[0] not in changed:
        for key, each in entry.siblings:
            changed.setdefault(key, each)
    container: Json = changed
    for depth, key in enumerate(entry.path):
        assert isinstance(container, dict)
        empty: Json = [] if entry.key is None and depth == len(entry.path) - 1 else {}
        container = container.setdefault(key, empty)
    if isinstance(container, list):
        container.append(entry.value)
    elif isinstance(container, dict):
        container[str(entry.key)] = entry.value
    return changed


def put_in(text: str | None, entry: Entry) -> str:
    """Add an entry, if it can stand there and does not yet."""
    if text is not None:
        container: Json = scan(text).value
        for key in entry.path:
            container = container.get(key) if isinstance(container, dict) else None
        assume(not (isinstance(container, dict) and "holdfast" in container))
        assume(not (isinstance(container, list) and entry.value in container))
    try:
        return insert(text, entry)
    except UnsupportedSyntax as error:
        assume("could not be taken out" in str(error))  # A string stands where an object should: nothing to see here.
        raise


@MANY
@given(DOCUMENTS, st.sampled_from(ENTRIES))
def test_remove_reverses_insert_byte_for_byte(text: str, entry: Entry) -> None:
    """Adding an entry changes what the document means by that entry alone, and taking it out gives the same text."""
    changed = put_in(text, entry)
    assert scan(changed).value == with_entry(scan(text).value, entry)
    assert remove(changed, entry) == text


@MANY
@given(DOCUMENTS, TOGETHER, st.randoms(use_true_random=False))
def test_entries_are_removed_in_any_order(text: str, entries: tuple[Entry, ...], chance: Random) -> None:
    """Entries that were added one after another can be taken out in any order, and the text is as it was."""
    changed = text
    for entry in chance.sample(entries, len(entries)):
        changed = put_in(changed, entry)
    for entry in chance.sample(entries, len(entries)):
        after = remove(changed, entry)
        assert after is not None
        changed = after
    assert changed == text


@MANY
@given(DOCUMENTS, TOGETHER, st.sampled_from(['"other, // } "', "[{},]", "-0.0", "{/**/}"]), TRIVIA)
def test_remove_keeps_other_edits(text: str, entries: tuple[Entry, ...], other: str, suffix: str) -> None:
    """Whatever others change between the two, in other parts, is there afterwards and nothing else is."""
    changed = text
    for entry in entries:
        changed = put_in(changed, entry)
    changed = changed.replace('"MARK"', other) + suffix
    for entry in entries:
        after = remove(changed, entry)
        assert after is not None
        changed = after
    assert changed == text.replace('"MARK"', other) + suffix


@MANY
@given(TOGETHER, st.randoms(use_true_random=False))
def test_remove_deletes_a_file_that_insert_created(entries: tuple[Entry, ...], chance: Random) -> None:
    """A file that we made is ours as a whole, and none is left when the last entry goes."""
    text: str | None = None
    for entry in chance.sample(entries, len(entries)):
        text = insert(text, entry)
    for entry in chance.sample(entries, len(entries)):
        assert text is not None
        text = remove(text, entry)
    assert text is None


@pytest.mark.parametrize(
    "text", ["{}", "{ }", "{\n}\n", '{"mcpServers":{}}', '{"hooks": {"PreToolUse": []}}', "{/**/}"]
)
def test_remove_keeps_empty_containers_of_others(text: str) -> None:
    """Empty objects and arrays that were there before us are there after us, and so is the file."""
    for entry in ENTRIES:
        assert remove(insert(text, entry), entry) == text


def test_insert_follows_the_style_of_the_file() -> None:
    """It has the indentation, the line ends and the comma of its neighbours, and a comment stays with its own."""
    text = '{\r\n\t"mcpServers": {\r\n\t\t"a": {} // why\r\n\t}\r\n}\r\n'
    ours = '\r\n\t\t"holdfast": {\r\n\t\t\t"command": "holdfast",\r\n\t\t\t"args": ["mcp"]\r\n\t\t}'
    assert insert(text, SERVER) == text.replace("{} // why", "{}, // why" + ours)
    one_line = insert('{ "a": 1 }', SERVER)
    assert one_line == '{ "a": 1, "mcpServers": { "holdfast": { "command": "holdfast", "args": ["mcp"] } } }'


def test_remove_rejects_an_edited_entry() -> None:
    """A comment inside of our entry is somebody's; an entry with another value is not ours at all."""
    with pytest.raises(UnsupportedSyntax, match="comment"):
        remove('{"mcpServers": {"holdfast": {"command": "holdfast", /* mine */ "args": ["mcp"]}}}', SERVER)
    for other in ('{"command": "holdfast", "args": ["mcp", "--owner", "me"]}', "true", '{"command": "holdfast"}'):
        with pytest.raises(UnsupportedSyntax, match="no such entry"):
            remove(f'{{"mcpServers": {{"holdfast": {other}}}}}', SERVER)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "{}}",
        '{"a": 1, "a": 2}',
        '{"a" 1}',
        "{,}",
        '{"a": 1 "b": 2}',
        "{'a': 1}",
        '{"a": 01}',
        '{"a": NaN}',
        '{"a": "\n"}',
        "{} /*",
        '{"a": "\\x"}',
        '{"a": ' + "[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1) + "}",
        '{"a": ' + "9" * 5000 + "}",
        '{"mcpServers": []}',
        '{"mcpServers": null}',
        "\ufeff{}",
    ],
)
def test_unsupported_syntax_is_rejected(text: str) -> None:
    """A text that is not what it should be raises `UnsupportedSyntax`, and nothing is made of it."""
    with pytest.raises(UnsupportedSyntax):
        insert(text, SERVER)


def reason_against(text: str) -> str:
    """Why the scanner does not take a text; empty if it does."""
    try:
        scan(text)
    except UnsupportedSyntax as error:
        return str(error)
    return ""


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@MANY
@given(st.text('{}[]",: \n019.-+eEtruefalsn\\', max_size=25))
def test_the_scanner_agrees_with_json(inside: str) -> None:
    """It reads what `json` reads, to the same value; beyond that only commas before a closing bracket."""
    text = "{" + inside + "}"
    if is_json(text) and not re.search("twice", reason_against(text)):
        assert scan(text).value == json.loads(text)
    if reason_against(text):
        return
    found = scan(text).value
    strings = re.compile(r'("(?:[^"\\]|\\.)*")')
    parts = strings.split(text)
    parts[::2] = [re.sub(r",(\s*)\Z", r"\1", re.sub(r",(\s*[}\]])", r"\1", part)) for part in parts[::2]]
    assert found == json.loads("".join(parts))


def test_every_entry_of_the_table_can_be_written() -> None:
    """Each entry that a host gets is there afterwards as the host reads it."""
    for host in HOSTS:
        entries = [entry for entry, _ in (server_entry(host), *hook_entries(host))]
        text: str | None = None
        for entry in entries:
            text = insert(text, entry)
        assert text is not None
        loaded = json.loads(text)
        assert loaded[host.mcp.key]["holdfast"]["command"]
        events = host.hooks.events if host.hooks and not host.hooks.plugin else ()
        assert all(len(loaded["hooks"][event]) == 1 for event, _ in events)
