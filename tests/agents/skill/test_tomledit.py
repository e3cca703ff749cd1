"""A table is added to the end of a TOML text by position, and taken out again: nothing else ever changes."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from holdfast.agents.skill.jsonedit import Entry, UnsupportedSyntax
from holdfast.agents.skill.tomledit import insert, remove
from tests.support import proof

TABLE = Entry(("mcp_servers",), "holdfast", {"command": "holdfast", "args": ["mcp"]})

MANY = settings(max_examples=proof.count("skills: documents"), deadline=None)

LINES = [
    "",
    "  ",
    "# [mcp_servers.holdfast]",
    'model = "gpt" # why',
    '"quoted key" = "MARK"',
    "a.b.c = 1",
    "a.d = [1, # one ]\n  2,\n]",
    'text = """\n[mcp_servers.holdfast]\ncommand = "x" # no \\"""\n"""""',
    "raw = '''\n[mcp_servers.holdfast]\n'''''",
    "path = 'C:\\dir # no'",
    "inline = { x = [ { y = 1 } ], z = '}' }",
    "[features]",
    "[ mcp_servers . 'other' ]",
    "[mcp_servers.another.env]",
    "[[hooks.items]]",
    'command = "y"',
    "day = 1979-05-27",
]
DOCUMENTS = st.builds(
    lambda lines, newline, end: newline.join(line.replace("\n", newline) for line in lines) + (newline if end else ""),
    st.lists(st.sampled_from(LINES), max_size=8, unique=True),
    st.sampled_from(["\n", "\r\n"]),
    st.booleans(),
)


def loads(text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        assume(False)
        raise


@MANY
@given(DOCUMENTS)
def test_remove_reverses_insert_byte_for_byte(text: str) -> None:
    """Adding the table changes what the text means by that table alone, and taking it out gives the same text."""
    before = loads(text)
    changed = insert(text, TABLE)
    after = tomllib.loads(changed)
    assert after["mcp_servers"].pop("holdfast") == TABLE.value
    assert after == {"mcp_servers": {}, **before}
    assert changed.startswith(text)
    assert remove(changed, TABLE) == text


@MANY
@given(DOCUMENTS, st.sampled_from(["[other]\nx = 1\n", "\n[other]\nx = 1", "# end\n", "\n"]), st.booleans())
def test_remove_keeps_other_edits(text: str, suffix: str, is_before: bool) -> None:
    """What others change elsewhere, write before ours or behind it, is there afterwards and nothing else is."""
    loads(text)
    newline = "\r\n" if "\r\n" in text else "\n"
    suffix = suffix.replace("\n", newline)
    if text and not text.endswith("\n"):
        suffix = newline + suffix  # Behind a last line without an end, a new one begins with it.
    start = f"# new{newline}" if is_before else ""
    edited = start + insert(text, TABLE).replace('"MARK"', "'other'") + suffix
    assume(_is_toml(edited))
    assert remove(edited, TABLE) == start + text.replace('"MARK"', "'other'") + suffix


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def test_remove_deletes_a_file_that_insert_created() -> None:
    """A file that we made is ours as a whole; one that was there and empty stays."""
    made = insert(None, TABLE)
    assert made == '[mcp_servers.holdfast]\ncommand = "holdfast"\nargs = ["mcp"]\n'
    assert remove(made, TABLE) is None
    assert remove(insert("", TABLE), TABLE) == ""
    assert remove(made + "[other]\n", TABLE) == "[other]\n"


def test_lines_of_others_before_ours_keep_their_end() -> None:
    """If somebody writes right before our table, taking it out joins no two lines."""
    made = insert(None, TABLE)
    assert remove("a = 1\n" + made, TABLE) == "a = 1\n"
    assert remove("a = 1\n" + made + "[other]\n", TABLE) == "a = 1\n[other]\n"


@pytest.mark.parametrize(
    "text", ["a = ", "mcp_servers = {}", "mcp_servers = 1", "[[mcp_servers]]\n", "\x00", "a = " + "[" * 5000]
)
def test_unsupported_syntax_is_rejected(text: str) -> None:
    """A text that is no TOML, or in which the table cannot stand, raises `UnsupportedSyntax`."""
    with pytest.raises(UnsupportedSyntax):
        insert(text, TABLE)


@pytest.mark.parametrize(
    "text",
    [
        '[mcp_servers]\nholdfast = { command = "holdfast", args = ["mcp"] }\n',
        '[mcp_servers.holdfast]\ncommand = "holdfast" # mine\nargs = ["mcp"]\n',
        '[mcp_servers.holdfast]\n# mine\ncommand = "holdfast"\nargs = ["mcp"]\n',
    ],
)
def test_remove_rejects_a_reformatted_table(text: str) -> None:
    """A table that somebody wrote into, or wrote in another way, is refused."""
    with pytest.raises(UnsupportedSyntax):
        remove(text, TABLE)
