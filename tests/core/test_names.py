"""Names (N1): what is a name is kept byte for byte, what is not is refused with its reason and nothing else."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.names import COMPONENT_BYTES_MAX, NAME_BYTES_MAX, BadNameError, parse_name

GOOD = [
    "a",
    "job-7",
    "A_b.c-9",
    "repo/app/issue-7",
    "github-issue-1842",
    "github://acme/app/issues/42",
    "urn:isbn:0451450523",
    "x+y.z-1:rest",
    "mailto:ana@example.org",
    "https://example.org/a?b=c&d=%20#e",
    "a:b",
    "a::",
    "a:..",
    "...",
    "a..b",
    "a/.b",
    "lists",
    "list/status",
    "status/1",
    "LIST",
    "größe/ж/日本語/٣",
    "a:größe",
    "x" * COMPONENT_BYTES_MAX,
    "ä" * 32,
    "/".join(["x" * 63] * 4),
    "a:" + "x" * (NAME_BYTES_MAX - 2),
]

BAD = [
    ("", "at least one character"),
    ("list", "'list' is reserved"),
    ("status", "'status' is reserved"),
    ("x" * (COMPONENT_BYTES_MAX + 1), "at most 64 bytes"),
    ("ä" * 33, "at most 64 bytes"),
    ("/".join(["x" * 63] * 4) + "/y", "at most 256 bytes of UTF-8, this one has 257"),
    ("a:" + "ä" * 128, "this one has 258"),
    ("/", "empty"),
    ("/a", "empty"),
    ("a/", "empty"),
    ("a//b", "empty"),
    ("..", "'..'"),
    ("a/../b", "'..'"),
    ("a b", "' ' (U+0020)"),
    ("a\tb", "U+0009"),
    ("a\x00", "U+0000"),
    ("a\n", "U+000A"),
    ("job\u200b7", "U+200B"),
    ("job\u202e7", "U+202E"),
    ("a*b", "'*' (U+002A)"),
    ("a%2fb", "'%' (U+0025)"),
    ("a\\b", "U+005C"),
    ("½", "'½' (U+00BD)"),
    ("x²", "'²' (U+00B2)"),
    ("cafe\u0301", "NFC"),
    ("a:cafe\u0301", "NFC"),
    ("\ud800", "U+D800 is half of a character"),
    ("a:\udfff", "U+DFFF is half of a character"),
    (":x", "a name does not begin with ':'. Only a URI has a ':'"),
    ("1a:x", "'1a' is not a URI scheme"),
    ("ä:x", "'ä' is not a URI scheme"),
    ("a:", "something after its scheme"),
    ("a:x y", "' ' (U+0020)"),
    ("a:x\x7f", "U+007F"),
    ("a:x\u00a0y", "U+00A0"),
    ("a:x\u2028y", "U+2028"),
    ("a/b:c", "':' (U+003A)"),
]


@pytest.mark.parametrize("name", GOOD, ids=repr)
def test_good_name(name: str) -> None:
    """A path or URI within the limits is a name, unchanged (N1)."""
    assert parse_name(name) == name


@pytest.mark.parametrize(("name", "why"), BAD, ids=[repr(name)[:40] for name, _ in BAD])
def test_bad_name(name: str, why: str) -> None:
    """What is no name is refused with the reason and the offending character (N1)."""
    with pytest.raises(BadNameError) as caught:
        parse_name(name)
    assert why in str(caught.value)


ANY_TEXT = st.text(st.characters(exclude_categories=())) | st.text("ab1-_./: %é\u0301\ud800\u200b²٣", max_size=300)


@given(ANY_TEXT)
def test_accepted_names_keep_the_limits(text: str) -> None:
    """Any text is either refused as a bad name or kept as it is, in NFC and within the limits of N1."""
    name, reason = "", ""
    try:
        name = parse_name(text)
    except BadNameError as error:
        reason = str(error)
    # The reason is shown to people: no character of the name may act on their terminal.
    assert reason.isprintable()
    if reason:
        return
    assert name == text == name.encode().decode()
    assert 1 <= len(name.encode()) <= NAME_BYTES_MAX
    assert unicodedata.normalize("NFC", name) == name
    assert name not in {"list", "status"}
    assert not any(char.isspace() or unicodedata.category(char) in {"Cc", "Cs"} for char in name)
    if ":" not in name:
        components = name.split("/")
        assert all(0 < len(part.encode()) <= COMPONENT_BYTES_MAX and part != ".." for part in components)
        assert all(
            c in "-_." or unicodedata.category(c)[0] == "L" or unicodedata.category(c) == "Nd"
            for c in "".join(components)
        )


COMPONENT = st.text(st.characters(categories=["L", "Nd"]) | st.sampled_from("-_."), min_size=1, max_size=16)


@given(st.lists(COMPONENT, min_size=1, max_size=4))
def test_path_of_letters_and_digits_is_a_name(components: list[str]) -> None:
    """Letters and digits of any script make a path name, unless it is reserved, too long or goes up (N1)."""
    name = unicodedata.normalize("NFC", "/".join(components))
    letters = all(c in "-_./" or c.isalpha() or c.isdecimal() for c in name)
    parts = name.split("/")
    short = len(name.encode()) <= NAME_BYTES_MAX and all(len(part.encode()) <= COMPONENT_BYTES_MAX for part in parts)
    if letters and short and ".." not in parts and name not in {"list", "status"}:
        assert parse_name(name) == name
    else:
        with pytest.raises(BadNameError):
            parse_name(name)


def test_single_part_name_follows_the_rules_of_longer_names() -> None:
    """The short way for names of one part takes no character that the pattern for all names does not (N1)."""

    def is_one(text: str) -> bool:
        try:
            return parse_name(text) == text
        except BadNameError:
            return False

    # A colon makes a URI of what has one part, and of nothing else.
    for char in map(chr, range(0x250)):
        if char != ":":
            assert is_one(f"a{char}b") == is_one(f"x/a{char}b"), repr(char)
    assert [is_one("a" * size) for size in (0, 1, 64, 65)] == [False, True, True, False]
    assert is_one("a..b") == is_one("x/a..b")
