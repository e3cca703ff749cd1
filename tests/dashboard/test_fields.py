"""Metadata as fields for people: JSON objects, `key=value` pairs, and everything else as the text that it is."""

from __future__ import annotations

import json
import time

import pytest

from holdfast.dashboard.rows import FIELDS_MAX, fields_of, link_of


def shown(metadata: str | None) -> list[tuple[str, str]]:
    return [(field.key, field.value) for field in fields_of(metadata)]


@pytest.mark.parametrize(
    ("metadata", "fields"),
    [
        (None, []),
        ("", []),
        ("   ", []),
        ("issue=1842", [("issue", "1842")]),
        ("issue=1842 branch=fix/it", [("issue", "1842"), ("branch", "fix/it")]),
        ("a=1, b=2;c=3", [("a", "1"), ("b", "2"), ("c", "3")]),
        ("a=1\nb=two words", [("a", "1"), ("b", "two words")]),
        ("url=https://x.test/?a,b", [("url", "https://x.test/?a,b")]),
        ("just some words", [("", "just some words")]),
        ("x = y", [("", "x = y")]),
        ('{"issue": 1842, "who": "ana"}', [("issue", "1842"), ("who", "ana")]),
        ('{"a": {"b": [1]}, "n": null}', [("a", '{"b": [1]}'), ("n", "null")]),
        ('{"a": 1', [("", '{"a": 1')]),
        ("{}", [("", "{}")]),
        ("[1, 2]", [("", "[1, 2]")]),
        ('{"big": 1e999999, "long": 123456789012345678901234567890}', None),
    ],
)
def test_metadata_is_shown_as_fields(metadata: str | None, fields: list[tuple[str, str]] | None) -> None:
    """A JSON object and `key=value` pairs become fields, all else stays one text, and nothing is evaluated."""
    if fields is None:
        fields = [("big", "1e999999"), ("long", "123456789012345678901234567890")]
    assert shown(metadata) == fields


@pytest.mark.parametrize(
    "metadata",
    [
        "{" * 5_000,
        '{"a":' * 5_000 + "1" + "}" * 5_000,
        '{"\\ud800": "\\udfff"}',
        "\ud800=1",
        '{"a": "\x00"}',
        "=",
        "=" * 1_000,
        "a=" * 500,
        "\u202eevil=1",
    ],
)
def test_metadata_fields_accept_any_text(metadata: str) -> None:
    """Whatever stands in metadata, there is something to show, and no error."""
    assert shown(metadata)


def test_fields_are_bounded() -> None:
    """However many fields there are, a bounded number is shown, and what is left out is said."""
    many = {f"k{number}": number for number in range(500)}
    of_json = shown(json.dumps(many))
    assert len(of_json) == FIELDS_MAX + 1
    assert of_json[-1] == ("…", f"{500 - FIELDS_MAX} more")
    assert len(shown(" ".join(f"{key}={value}" for key, value in many.items()))) <= FIELDS_MAX + 1


@pytest.mark.parametrize("text", ["https://acme.test/app/issues/42", "HTTP://x.test", "http://[::1]:7311/a?b=c#d"])
def test_addresses_of_pages_are_links(text: str) -> None:
    """A value is a link if all of it is an address of http or https."""
    assert link_of(text) == text
    assert fields_of(f"see={text}")[0].href == text


@pytest.mark.parametrize(
    "text",
    [
        "javascript:alert(1)",
        "JaVaScRiPt://x.test/%0aalert(1)",
        "data:text/html,<script>",
        "vbscript:x",
        "ftp://x.test",
        "//x.test",
        "github://acme/app",
        " https://x.test",
        "https://x.test y",
        "https://",
        "https:///path",
        "https://x.test/\u202etxt",
        "https://x.test/\n",
        "https://x.test/<b>",
        'https://x.test/"onclick="x',
        "https://[",
        "https://x.test/" + "a" * 3_000,
        "see https://x.test",
    ],
)
def test_nothing_else_is_a_link(text: str) -> None:
    """No other scheme, nothing with blanks or signs that could be taken for another text, is a link."""
    assert link_of(text) is None


@pytest.mark.parametrize("blank", ["\t", " ", "\u2003", "\n", ";"])
def test_a_long_run_of_blanks_costs_no_more_than_its_length(blank: str) -> None:
    """Whatever stands between pairs, a run of it is looked at once: it cannot be made dear for whoever shows it.

    By what is looked at anew: a hundred times the blanks, and never a thousand times the processor time.
    """

    def seconds(length: int) -> float:
        text = "a=" + blank * length + "b"
        began = time.process_time()
        for _ in range(20):
            fields_of(text)
        return time.process_time() - began

    assert seconds(100_000) < 1_000 * max(seconds(1_000), 1e-4)
