"""What stands in our documents where a token belongs is never one: everybody can read it there."""

from __future__ import annotations

import re

import pytest

from holdfast.api.auth.auth import Auth, BadTokenError, StaticTokens
from holdfast.api.auth.secrets import AuthorityKey, digest, is_placeholder, new_token
from holdfast.core.state import State
from holdfast.core.values import Session
from holdfast.engine.ids import new_uuid
from holdfast.wire.problems import Problem
from tests.support import callers
from tests.support.server import PROJECT

TEXTS = sorted(
    path
    for folder, kinds in {
        "": ("*.md", "Makefile"),
        "docs": ("**/*.md",),
        "examples": ("**/*",),
        "src": ("**/*.py", "**/*.html"),
    }.items()
    for kind in kinds
    for path in (PROJECT / folder).glob(kind)
    if path.is_file() and path.suffix != ".pyc"
)
STANDS = [
    re.compile(r"HOLDFAST_TOKENS?['\"]?[=:] ?['\"`]*([^\s'\"`|]+)"),
    re.compile(r"^ *tokens *= *[\"']([^\"']+)", re.MULTILINE),
    re.compile(r"SHUTDOWN_SECRET=['\"]?([^\s'\"`|]+)"),
    re.compile(r"Bearer ([^\s'\"`\\|]+)"),
    re.compile(r"token=['\"]([^'\"]+)['\"]"),
]
"""How a token is shown: as a variable, a line of a file, a header, an argument."""


def _found() -> dict[str, str]:
    """Every text that stands where a token belongs, and where it was seen first."""
    found: dict[str, str] = {}
    for path in TEXTS:
        text = path.read_text(encoding="utf-8")
        for pattern in STANDS:
            for match in pattern.finditer(text):
                for entry in re.split(r"[,\n]", match[1]):
                    name, colon, rest = entry.partition(":")
                    token = rest.partition(":")[0] if colon else name
                    found.setdefault(token.strip("`"), str(path.relative_to(PROJECT)))
    return {token: source for token, source in found.items() if token}


def test_something_is_found() -> None:
    """The search finds what is known to stand there: it does not pass because it sees nothing."""
    assert {"TOKEN", "$TOKEN", "$SECRET", "…"} <= set(_found())


@pytest.mark.parametrize(("token", "source"), sorted(_found().items()))
def test_documented_example_tokens_are_placeholders(token: str, source: str) -> None:
    """Nothing that is shown as a token in the documents, the examples or the program's own texts can be set as one, or
    passes as one.
    """
    with pytest.raises(BadTokenError):
        StaticTokens.parse(f"ci:{token}")
    auth = Auth(StaticTokens.parse(callers.TOKENS), AuthorityKey(b"k" * 32))
    with pytest.raises(Problem) as refused:
        auth.identify(f"Bearer {token}".encode(), State(), 0)
    assert refused.value.status == 401, source


@pytest.mark.parametrize(
    "token",
    [
        "YOUR_TOKEN_FOR_CI",
        "your-token-0123456789",
        "<a token of 32 chars>",
        "<16-characters-or-more>",
        "$HOLDFAST_CI_TOKEN",
        "${HOLDFAST_CI_TOKEN}",
        "$(openssl-rand-hex-24)",
        "{{vault.holdfast.token}}",
        "%HOLDFAST_CI_TOKEN%",
        "change-me-change-me",
        "CHANGEME0123456789",
        "replace_me_0123456789",
        "hold_…",
        "0123456789abcdef...",
        "xxxxxxxxxxxxxxxx",
        "0000-0000-0000-0000",
    ],
)
def test_placeholders_are_known(token: str) -> None:
    """What people write where a token belongs is known by its looks."""
    assert is_placeholder(token)


@pytest.mark.parametrize(
    "token",
    [
        callers.ALICE,
        "0123456789abcdef",
        "b7$kQ%w9<Zr{e2}>x",
        "aGVsbG8gd29ybGQ=/+",
        "correct-horse-battery-staple",
        "token.for.the.team",
    ],
)
def test_other_tokens_are_not_taken_for_one(token: str) -> None:
    """Signs inside a token make no placeholder of it."""
    assert not is_placeholder(token)


def test_generated_tokens_are_not_placeholders() -> None:
    """Tokens and secrets that the server makes do not look like placeholders."""
    key = AuthorityKey(b"k" * 32)
    for _ in range(1_000):
        assert not is_placeholder(new_token())
        session = Session(new_uuid(), "ana", None, None, 1, 1, 1, salt=new_uuid())
        assert not is_placeholder(key.session_secret(session, digest(new_token())))
